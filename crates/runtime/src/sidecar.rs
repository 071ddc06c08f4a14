//! The sidecar: runs DSPy in a separate process, for artifacts that are DSPy programs.
//!
//! An artifact names a template that the sidecar ships and may carry a state; no code of it runs.
//! Signature and state are checked here before DSPy sees them. Model requests of the program come
//! back over the pipe, so the process needs neither keys nor network access.

mod child_process;
mod client;
mod process_dir;
mod protocol;
mod signature;
mod state;

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

pub use client::{Sidecar, SidecarCommand};
pub use signature::{FieldType, Signature, SignatureField};
pub use state::ProgramState;

pub(crate) use self::protocol::{HostRequest, HostRequestHandler};
use crate::{
    dispatch::{ArtifactHandler, ArtifactOutput, ExecutionContext, ExecutionNotes},
    error::{Error, Result},
    limits::{self, Limits},
    model::{Budget, ChatRole, ChatTurn, MeteredModel, Model, ModelRequest, ModelUsage},
    spans::CallPurpose,
    workspace::Workspace,
};

/// The default deadline of one program.
pub(crate) const PROGRAM_DEADLINE: Duration = Duration::from_mins(5);
/// The maximum number of host requests of one program.
const MAX_HOST_REQUESTS: u64 = 200;
/// The maximum number of pages in one search result.
const MAX_RESULTS: usize = 10;

/// A DSPy program: a template with a signature and options.
#[derive(Debug, Clone, PartialEq)]
pub struct DspyModule {
    /// The template.
    pub template: String,
    /// The input and output fields.
    pub signature: Signature,
    /// The options of the template.
    pub options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DspyModuleContent {
    template_id: String,
    signature: String,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    options: DspyModuleOptions,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DspyModuleOptions {
    max_iters: Option<u8>,
}

impl DspyModule {
    /// Parses the content of an artifact.
    pub fn from_artifact(artifact: &Artifact) -> Result<Self> {
        let refuse = |reason: String| Error::Artifact {
            artifact: artifact.name.clone(),
            reason,
        };
        let content: DspyModuleContent = repertoire_core::json::from_str(&artifact.content)
            .map_err(|error| refuse(format!("a dspy_module is JSON: {error}")))?;
        let mut signature =
            Signature::parse(&content.signature).map_err(|error| refuse(error.to_string()))?;
        signature.instructions = content.instructions;
        if state::template_parts(&content.template_id, &signature).is_none() {
            let known = "predict, chain_of_thought, react, draft_and_refine";
            let template = content.template_id;
            return Err(refuse(format!(
                "there is no template `{template}`: there are {known}"
            )));
        }
        if let Some(field) = signature
            .fields()
            .find(|field| state::is_reserved_name(&content.template_id, &field.name))
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

    /// Reads and checks the state of an artifact.
    pub fn read_state(&self, artifact: &Artifact) -> Result<Option<ProgramState>> {
        let blob = artifact.state_blob.as_deref();
        let state = blob.map(|blob| ProgramState::from_blob(blob, &self.template, &self.signature));
        state.transpose().map_err(|error| Error::Artifact {
            artifact: artifact.name.clone(),
            reason: error.to_string(),
        })
    }

    /// Collects the input fields from the values of a run.
    pub fn collect_inputs(
        &self,
        values: &crate::template::TemplateContext,
    ) -> Result<Map<String, Value>> {
        let inputs = self.signature.inputs.iter().map(|field| {
            let value = values
                .get(&field.name)
                .ok_or_else(|| Error::UndefinedVariable {
                    line: None,
                    name: field.name.clone(),
                })?;
            Ok((field.name.clone(), value.clone()))
        });
        inputs.collect()
    }

    pub(crate) fn build_request(&self, kind: &str, state: Option<&ProgramState>) -> Value {
        json!({
            "type": kind, "template_id": self.template, "signature": self.signature,
            "options": self.options, "state": state.map(|state| &state.parts),
        })
    }
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramOutput {
    /// Its outputs.
    pub output: Map<String, Value>,
    /// The usage.
    pub usage: ModelUsage,
}

impl Sidecar {
    /// Runs a program once, with a deadline.
    pub async fn execute_program(
        &self,
        module: &DspyModule,
        state: Option<&ProgramState>,
        inputs: &Map<String, Value>,
        desk: &HostServices,
        within: Duration,
    ) -> Result<Map<String, Value>> {
        let mut request = module.build_request("execute", state);
        request["params"] = json!(inputs);
        let body = self.send_request(request, desk, within).await;
        let mut body = body.map_err(|error| desk.restore_refusal(error))?;
        match body.remove("output") {
            Some(Value::Object(output)) => Ok(output),
            _ => Err(Error::Sidecar("it gave no output".to_owned())),
        }
    }

    /// Returns the available templates and optimizers.
    pub async fn manifest(&self) -> Result<Value> {
        let desk = HostServices::default();
        let body = self.send_request(json!({"type": "manifest"}), &desk, PROGRAM_DEADLINE);
        Ok(Value::Object(body.await?))
    }
}

/// The services a program can call: a model and the pages of a workspace.
#[derive(Default)]
pub struct HostServices {
    /// The model.
    pub model: Option<Arc<dyn Model>>,
    /// The maximum number of tokens in one reply.
    pub max_tokens: u64,
    /// The workspace.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// Records input, model and usage.
    pub notes: ExecutionNotes,
    /// The number of requests so far.
    pub request_count: Arc<AtomicU64>,
    /// The maximum number of requests.
    pub max_requests: Option<u64>,
    /// The last refused request, to report its reason if the program fails because of it.
    last_refusal: Mutex<Option<Error>>,
}

#[derive(Deserialize)]
struct CompletionParams {
    system: Option<String>,
    messages: Vec<CompletionMessage>,
    max_tokens: Option<u64>,
    temperature: Option<f64>,
}

#[derive(Deserialize)]
struct CompletionMessage {
    role: String,
    text: Option<String>,
}

impl HostServices {
    /// Takes model and workspace from a run.
    pub fn from_context(context: &ExecutionContext) -> Self {
        Self {
            model: context.model.clone(),
            max_tokens: context.max_tokens,
            workspace: context.engine.workspace().cloned(),
            notes: context.notes.clone(),
            request_count: Arc::default(),
            max_requests: None,
            last_refusal: Mutex::default(),
        }
    }

    /// Returns the refusal that caused a program error, or the error itself.
    pub(crate) fn restore_refusal(&self, error: Error) -> Error {
        let refused = self
            .last_refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match (&error, &*refused) {
            (Error::Program { code, .. }, Some(refused)) if code == refused.code() => {
                refused.clone()
            }
            _ => error,
        }
    }

    pub(crate) fn count_request(&self) -> Result<()> {
        let before = self.request_count.fetch_add(1, Ordering::Relaxed);
        let most = self.max_requests.unwrap_or(MAX_HOST_REQUESTS);
        if before >= most {
            return Err(Error::Budget(format!(
                "a program makes at most {most} requests"
            )));
        }
        Ok(())
    }

    async fn complete_chat(&self, params: CompletionParams) -> Result<Value> {
        let none = || Error::Model("this skill needs a model, but none is named".to_owned());
        let model = self.model.as_ref().ok_or_else(none)?;
        let mut ask = ModelRequest::new(String::new());
        ask.system = params.system;
        ask.turns = params
            .messages
            .into_iter()
            .map(|message| ChatTurn {
                role: if message.role == "assistant" {
                    ChatRole::Assistant
                } else {
                    ChatRole::User
                },
                text: message.text.unwrap_or_default(),
            })
            .collect();
        let most = self.max_tokens.max(1);
        ask.max_tokens = params
            .max_tokens
            .map_or(most, |wanted| wanted.clamp(1, most));
        ask.temperature = params.temperature.filter(|t| (0.0..=2.0).contains(t));
        ask.purpose = CallPurpose::Program;
        ask.parent_span = self.notes.current_execution();
        self.notes.set_model(model.id());
        let reply = model.send_request(&ask, None).await?;
        self.notes.add_usage(reply.usage);
        let ModelUsage {
            input_tokens,
            output_tokens,
            ..
        } = reply.usage;
        Ok(json!({
            "text": reply.text, "cut": reply.cut,
            "usage": {"input_tokens": input_tokens, "output_tokens": output_tokens},
        }))
    }

    /// Reads pages on a blocking thread, because this may wait for a disk.
    async fn query_workspace(&self, mut body: Map<String, Value>) -> Result<Value> {
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
                    json!(workspace.search_pages(&query, MAX_RESULTS)?)
                }
                (Some("get_page"), _, Some(name)) => json!(workspace.find_page(&name)?),
                _ => {
                    let call = body.remove("name").unwrap_or_default().to_string();
                    let reason = "there is no such call".to_owned();
                    return Err(Error::InvalidCall { call, reason });
                }
            };
            Ok(json!({"value": value}))
        });
        looked.await.map_err(|_| Error::Interrupted)?
    }
}

#[async_trait]
impl HostRequestHandler for HostServices {
    async fn handle_request(&self, question: HostRequest) -> Result<Value> {
        let answered = self.dispatch_request(question).await;
        if let Err(error) = &answered {
            *self
                .last_refusal
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        answered
    }
}

impl HostServices {
    async fn dispatch_request(&self, mut question: HostRequest) -> Result<Value> {
        self.count_request()?;
        match question.kind.as_str() {
            "complete" => {
                let request = question.body.remove("request").unwrap_or_default();
                let request =
                    serde_json::from_value(request).map_err(|error| Error::InvalidCall {
                        call: "complete".to_owned(),
                        reason: error.to_string(),
                    })?;
                self.complete_chat(request).await
            }
            "host" => {
                if !question.body.get("args").is_some_and(Value::is_object) {
                    question.body.insert("args".to_owned(), json!({}));
                }
                self.query_workspace(question.body).await
            }
            other => Err(Error::InvalidCall {
                call: repertoire_core::markdown::truncate_text(other, 40),
                reason: "there is no such request".to_owned(),
            }),
        }
    }
}

/// Runs `dspy_module` artifacts in the sidecar.
#[derive(Debug, Clone)]
pub struct DspyHandler {
    sidecar: Arc<Sidecar>,
    limits: Limits,
}

impl DspyHandler {
    /// Uses the time, token and cost limits; the others do not apply to programs.
    pub fn new(sidecar: Arc<Sidecar>, limits: Limits) -> Self {
        Self { sidecar, limits }
    }
}

#[async_trait]
impl ArtifactHandler for DspyHandler {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    fn unavailable_reason(&self) -> Option<Error> {
        self.sidecar.unavailable_reason()
    }

    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let module = DspyModule::from_artifact(artifact)?;
        let state = module.read_state(artifact)?;
        let inputs = module.collect_inputs(&context.template_values())?;
        context
            .notes
            .set_input(&Value::Object(inputs.clone()).to_string());
        let limits = self
            .limits
            .for_artifact(artifact)?
            .capped_by(context.remaining_limits);
        let budget = Arc::new(Budget::new(Some(limits.tokens), limits.cost));
        let model = MeteredModel::new(context.require_model()?.clone(), budget.clone());
        let mut services = HostServices::from_context(context);
        services.model = Some(Arc::new(model));
        let (begun, took) = (Instant::now(), Arc::new(OnceLock::new()));
        let (asked, over) = (services.request_count.clone(), took.clone());
        context.notes.set_usage_source(move |used| {
            let asked = asked.load(Ordering::Relaxed);
            limits::record_use(used, "model_calls", asked, Some(MAX_HOST_REQUESTS));
            let time = over.get().copied().unwrap_or_else(|| begun.elapsed());
            limits::record_common_use(used, &limits, time, &budget);
        });
        let work = self.sidecar.execute_program(
            &module,
            state.as_ref(),
            &inputs,
            &services,
            limits.time(),
        );
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
