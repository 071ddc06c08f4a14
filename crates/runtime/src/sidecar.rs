//! The sidecar: DSPy in a process of its own, for artifacts that are programs.
//!
//! An artifact names a template the sidecar ships and brings a state; no code of it runs. Signature
//! and state are checked here before DSPy sees them. Whatever the program asks a model comes back
//! over the pipe, so that the process needs no key and reaches nobody.

mod own;
mod process;
mod running;
mod signature;
mod state;
mod wire;

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use process::{Program, Sidecar};
pub use signature::{Field, Signature, Type};
pub use state::State;

pub(crate) use self::wire::{Answers, Question};
use crate::{
    dispatch::{ArtifactHandler, ArtifactOutput, ExecutionContext, Notes},
    error::{Error, Result},
    limits::{self, Limits},
    model::{Ask, Budget, Metered, Model, Role, Turn, Usage},
    workspace::Workspace,
};

/// How long one program may run, where nobody says otherwise.
pub(crate) const DEADLINE: Duration = Duration::from_mins(5);
/// How often one program may ask.
const MAX_QUESTIONS: u64 = 200;
/// The most pages a program finds at a time.
const MAX_RESULTS: usize = 10;

/// A program: a template, and what it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// The template.
    pub template: String,
    /// What goes in, and what comes out.
    pub signature: Signature,
    /// What the template is set to.
    pub options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    template_id: String,
    signature: String,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    options: Options,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    max_iters: Option<u8>,
}

impl Module {
    /// Reads the content of an artifact.
    pub fn read(artifact: &Artifact) -> Result<Self> {
        let refuse = |reason: String| Error::Artifact {
            artifact: artifact.name.clone(),
            reason,
        };
        let content: Content = repertoire_core::json::from_str(&artifact.content)
            .map_err(|error| refuse(format!("a dspy_module is JSON: {error}")))?;
        let mut signature =
            Signature::parse(&content.signature).map_err(|error| refuse(error.to_string()))?;
        signature.instructions = content.instructions;
        if state::parts_of(&content.template_id, &signature).is_none() {
            let known = "predict, chain_of_thought, react, draft_and_refine";
            let template = content.template_id;
            return Err(refuse(format!(
                "there is no template `{template}`: there are {known}"
            )));
        }
        if let Some(field) = signature
            .fields()
            .find(|field| state::is_taken(&content.template_id, &field.name))
        {
            let (template, name) = (&content.template_id, &field.name);
            return Err(refuse(format!(
                "the template `{template}` has a value `{name}` itself: call this one something \
                 else"
            )));
        }
        let mut options = Map::new();
        if let Some(most) = content.options.max_iters {
            options.insert("max_iters".to_owned(), json!(most.min(20)));
        }
        Ok(Self {
            template: content.template_id,
            signature,
            options,
        })
    }

    /// The state an artifact brings, checked.
    pub fn state(&self, artifact: &Artifact) -> Result<Option<State>> {
        let blob = artifact.state_blob.as_deref();
        let state = blob.map(|blob| State::read(blob, &self.template, &self.signature));
        state.transpose().map_err(|error| Error::Artifact {
            artifact: artifact.name.clone(),
            reason: error.to_string(),
        })
    }

    /// Its inputs, from the values of a run.
    pub fn inputs(&self, values: &crate::template::Context) -> Result<Map<String, Value>> {
        let inputs = self.signature.inputs.iter().map(|field| {
            let value = values.get(&field.name).ok_or_else(|| Error::Undefined {
                line: None,
                name: field.name.clone(),
            })?;
            Ok((field.name.clone(), value.clone()))
        });
        inputs.collect()
    }

    pub(crate) fn request(&self, kind: &str, state: Option<&State>) -> Value {
        json!({
            "type": kind, "template_id": self.template, "signature": self.signature,
            "options": self.options, "state": state.map(|state| &state.parts),
        })
    }
}

/// What a program gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// Its outputs.
    pub output: Map<String, Value>,
    /// What it cost.
    pub usage: Usage,
}

impl Sidecar {
    /// Runs a program once, within some time.
    pub async fn execute(
        &self,
        module: &Module,
        state: Option<&State>,
        inputs: &Map<String, Value>,
        desk: &Desk,
        within: Duration,
    ) -> Result<Map<String, Value>> {
        let mut request = module.request("execute", state);
        request["params"] = json!(inputs);
        let body = self.request(request, desk, within).await;
        let mut body = body.map_err(|error| desk.reason(error))?;
        match body.remove("output") {
            Some(Value::Object(output)) => Ok(output),
            _ => Err(Error::Sidecar("it gave no output".to_owned())),
        }
    }

    /// What templates and optimisers it has.
    pub async fn manifest(&self) -> Result<Value> {
        let desk = Desk::default();
        let body = self.request(json!({"type": "manifest"}), &desk, DEADLINE);
        Ok(Value::Object(body.await?))
    }
}

/// What a program can ask: a model, and pages.
#[derive(Default)]
pub struct Desk {
    /// The model that is asked.
    pub model: Option<Arc<dyn Model>>,
    /// The most tokens of one answer.
    pub max_tokens: u64,
    /// The pages.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// Where what is used is noted.
    pub notes: Notes,
    /// How often it was asked.
    pub questions: Arc<AtomicU64>,
    /// How often it may be.
    pub most: Option<u64>,
    /// The last question that was refused, so that a program that ends with it ends with its reason.
    refused: Mutex<Option<Error>>,
}

#[derive(Deserialize)]
struct Completion {
    system: Option<String>,
    messages: Vec<Message>,
    max_tokens: Option<u64>,
    temperature: Option<f64>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    text: Option<String>,
}

impl Desk {
    /// What a run has at hand.
    pub fn of(context: &ExecutionContext) -> Self {
        Self {
            model: context.model.clone(),
            max_tokens: context.max_tokens,
            workspace: context.engine.workspace().cloned(),
            notes: context.notes.clone(),
            questions: Arc::default(),
            most: None,
            refused: Mutex::default(),
        }
    }

    /// What a program that failed failed of: of what it was refused, if it says so.
    pub(crate) fn reason(&self, error: Error) -> Error {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match (&error, &*refused) {
            (Error::Program { code, .. }, Some(refused)) if code == refused.code() => {
                refused.clone()
            }
            _ => error,
        }
    }

    pub(crate) fn count(&self) -> Result<()> {
        let before = self.questions.fetch_add(1, Ordering::Relaxed);
        let most = self.most.unwrap_or(MAX_QUESTIONS);
        if before >= most {
            return Err(Error::Budget(format!(
                "a program asks at most {most} times"
            )));
        }
        Ok(())
    }

    async fn complete(&self, told: Completion) -> Result<Value> {
        let none = || Error::Model("this skill asks a model, and none was named".to_owned());
        let model = self.model.as_ref().ok_or_else(none)?;
        let mut ask = Ask::new(String::new());
        ask.system = told.system;
        ask.turns = told
            .messages
            .into_iter()
            .map(|message| Turn {
                role: if message.role == "assistant" {
                    Role::Assistant
                } else {
                    Role::User
                },
                text: message.text.unwrap_or_default(),
            })
            .collect();
        let most = self.max_tokens.max(1);
        ask.max_tokens = told.max_tokens.map_or(most, |wanted| wanted.clamp(1, most));
        ask.temperature = told.temperature.filter(|t| (0.0..=2.0).contains(t));
        self.notes.model(model.id());
        let reply = model.ask(&ask, None).await?;
        self.notes.usage(reply.usage);
        let Usage {
            input_tokens,
            output_tokens,
            ..
        } = reply.usage;
        Ok(json!({
            "text": reply.text, "cut": reply.cut,
            "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens},
        }))
    }

    /// Looks at pages, elsewhere: it may wait for a disk.
    async fn page(&self, mut body: Map<String, Value>) -> Result<Value> {
        let none = || Error::Workspace("there is none".to_owned());
        let workspace = self.workspace.clone().ok_or_else(none)?;
        let looked = tokio::task::spawn_blocking(move || {
            let word = |key: &str| body["args"][key].as_str().map(str::to_owned);
            let value = match (
                body.get("name").and_then(Value::as_str),
                word("query"),
                word("name"),
            ) {
                (Some("workspace_search"), Some(query), _) => {
                    json!(workspace.search(&query, MAX_RESULTS)?)
                }
                (Some("get_page"), _, Some(name)) => json!(workspace.page(&name)?),
                _ => {
                    let call = body.remove("name").unwrap_or_default().to_string();
                    let reason = "there is no such call".to_owned();
                    return Err(Error::Call { call, reason });
                }
            };
            Ok(json!({"value": value}))
        });
        looked.await.map_err(|_| Error::Interrupted)?
    }
}

#[async_trait]
impl Answers for Desk {
    async fn answer(&self, question: Question) -> Result<Value> {
        let answered = self.answered(question).await;
        if let Err(error) = &answered {
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        answered
    }
}

impl Desk {
    async fn answered(&self, mut question: Question) -> Result<Value> {
        self.count()?;
        match question.kind.as_str() {
            "complete" => {
                let request = question.body.remove("request").unwrap_or_default();
                let request = serde_json::from_value(request).map_err(|error| Error::Call {
                    call: "complete".to_owned(),
                    reason: error.to_string(),
                })?;
                self.complete(request).await
            }
            "host" => {
                if !question.body.get("args").is_some_and(Value::is_object) {
                    question.body.insert("args".to_owned(), json!({}));
                }
                self.page(question.body).await
            }
            other => Err(Error::Call {
                call: repertoire_core::markdown::cut(other, 40),
                reason: "there is no such question".to_owned(),
            }),
        }
    }
}

/// Runs the programs of skills.
#[derive(Debug, Clone)]
pub struct Modules {
    sidecar: Arc<Sidecar>,
    limits: Limits,
}

impl Modules {
    /// With a sidecar; of the limits, those of time, tokens and money count.
    pub fn new(sidecar: Arc<Sidecar>, limits: Limits) -> Self {
        Self { sidecar, limits }
    }
}

#[async_trait]
impl ArtifactHandler for Modules {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    fn lacks(&self) -> Option<Error> {
        self.sidecar.lacks()
    }

    async fn execute(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let module = Module::read(artifact)?;
        let state = module.state(artifact)?;
        let inputs = module.inputs(&context.template_values())?;
        context
            .notes
            .input(&Value::Object(inputs.clone()).to_string());
        let limits = self.limits.of(artifact)?.within(context.left);
        let budget = Arc::new(Budget::new(Some(limits.tokens), limits.cost));
        let model = Metered::new(context.needs_model()?.clone(), budget.clone());
        let mut desk = Desk::of(context);
        desk.model = Some(Arc::new(model));
        let (begun, took) = (Instant::now(), Arc::new(OnceLock::new()));
        let (asked, over) = (desk.questions.clone(), took.clone());
        context.notes.measure(move |used| {
            let asked = asked.load(Ordering::Relaxed);
            limits::tell(used, "model_calls", asked, Some(MAX_QUESTIONS));
            let time = over.get().copied().unwrap_or_else(|| begun.elapsed());
            limits::tell_common(used, &limits, time, &budget);
        });
        let work = self
            .sidecar
            .execute(&module, state.as_ref(), &inputs, &desk, limits.time());
        let output = work.await;
        let _ = took.set(begun.elapsed());
        let output = Value::Object(output?);
        Ok(ArtifactOutput {
            text: output.to_string(),
            value: Some(output),
            ..ArtifactOutput::default()
        })
    }
}
