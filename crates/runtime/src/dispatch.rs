//! Dispatch: an artifact's kind says who runs it.
//!
//! One execution leaves one record, whatever becomes of it. An artifact is loaded when it is its
//! turn and not before; a DSPy module whose sidecar is not there is stood in for by the prompt
//! template it names.

mod handlers;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Instant,
};

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use handlers::examples_of;

use self::handlers::{Injected, Prompted};
use crate::{
    assertion::{self, Severity},
    error::{Error, Result},
    model::{Listener, Model, Turn, Usage},
    record::{Details, ExecutionRecord, Used, now},
    redact::Redactor,
    template::PromptEngine,
    variant::{choose, family_of},
};

/// What is known of a skill before any artifact of it is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// The UUID of the skill.
    pub skill_id: String,
    /// Its id in the catalogue.
    pub skill: String,
    /// Its artifacts without their contents, by ordinal.
    pub artifacts: Vec<ArtifactInfo>,
}

/// What is known of an artifact without its content.
#[derive(Debug, Clone, PartialEq)]
pub struct ArtifactInfo {
    /// Its UUID.
    pub id: String,
    /// The artifact, with an empty content.
    pub artifact: Artifact,
}

/// A skill whose artifacts are loaded one at a time.
pub trait SkillSource: Send + Sync {
    /// What is known before anything is loaded.
    fn outline(&self) -> &Outline;

    /// The content of one artifact.
    fn content(&self, info: &ArtifactInfo) -> Result<String>;
}

/// The skills a running skill can run.
pub trait Skills: Send + Sync {
    /// A skill by its id, or by its UUID.
    fn open(&self, name: &str) -> Result<Arc<dyn SkillSource>>;
}

/// What a running skill runs others with.
pub struct Others {
    /// The skills there are.
    pub skills: Arc<dyn Skills>,
    /// Who runs which kind.
    pub dispatcher: ArtifactDispatcher,
    /// Keeps what is left of each execution.
    pub keep: Arc<dyn Fn(&ExecutionRecord) + Send + Sync>,
}

/// Values that scripts keep, so that a run that is resumed has them.
pub trait Checkpoints: Send + Sync {
    /// What was kept of a session's artifact under a name.
    fn load(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>>;

    /// Keeps a value, durably.
    fn save(&self, session: &str, artifact: &str, name: &str, value: &Value) -> Result<()>;
}

/// Keeps values for as long as it is there itself.
#[derive(Debug, Default)]
pub struct Forgetful(Mutex<HashMap<[String; 3], Value>>);

impl Checkpoints for Forgetful {
    fn load(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept
            .get(&[session, artifact, name].map(str::to_owned))
            .cloned())
    }

    fn save(&self, session: &str, artifact: &str, name: &str, value: &Value) -> Result<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert([session, artifact, name].map(str::to_owned), value.clone());
        Ok(())
    }
}

/// What a run has at hand.
pub struct ExecutionContext {
    /// The run.
    pub session_id: String,
    /// Values for templates and code.
    pub values: Map<String, Value>,
    /// What the user says.
    pub message: Option<String>,
    /// The model that is asked.
    pub model: Option<Arc<dyn Model>>,
    /// Renders templates.
    pub engine: PromptEngine,
    /// What has been put into the system prompt so far.
    pub system: Vec<String>,
    /// What has been put before the conversation so far.
    pub examples: Vec<Turn>,
    /// The most tokens of one answer.
    pub max_tokens: u64,
    /// Hears answers as they come.
    pub listener: Option<Listener>,
    /// Takes secrets out of what is kept.
    pub redactor: Redactor,
    /// Ends the run; what is being executed then leaves its record too.
    pub stop: CancellationToken,
    /// What scripts keep.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// The other skills, where scripts may run them.
    pub others: Option<Arc<Others>>,
    /// How many skills are running this one.
    pub depth: usize,
    /// How many bytes scripts of this run have kept.
    pub kept: Arc<AtomicU64>,
    /// What handlers note.
    pub notes: Notes,
}

/// What a handler notes while it works, so that a failure leaves it behind too.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// What is being executed: the skill's UUID and the artifact's.
    place: String,
    input: Option<String>,
    usage: Usage,
    model_id: Option<String>,
    used: BTreeMap<String, Used>,
}

impl Notes {
    fn lock(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is being executed.
    pub(crate) fn place(&self) -> String {
        self.lock().place.clone()
    }

    /// Notes what goes in.
    pub fn input(&self, input: &str) {
        self.lock().input = Some(input.to_owned());
    }

    /// Notes what a call costs.
    pub fn usage(&self, usage: Usage) {
        self.lock().usage.add(usage);
    }

    /// What was noted of what calls cost, so far.
    pub fn spent(&self) -> Usage {
        self.lock().usage
    }

    /// Notes which model is asked.
    pub fn model(&self, id: &str) {
        self.lock().model_id = Some(id.to_owned());
    }

    /// Notes how much of something was used.
    pub fn used(&self, what: &str, used: u64, limit: Option<u64>) {
        self.lock()
            .used
            .insert(what.to_owned(), Used { used, limit });
    }
}

impl std::fmt::Debug for ExecutionContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecutionContext")
            .field("session_id", &self.session_id)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

impl ExecutionContext {
    /// A run with nothing at hand yet.
    pub fn new() -> Self {
        Self {
            session_id: Uuid::new_v4().to_string(),
            values: Map::new(),
            message: None,
            model: None,
            engine: PromptEngine::new(),
            system: Vec::new(),
            examples: Vec::new(),
            max_tokens: 1024,
            listener: None,
            redactor: Redactor::default(),
            stop: CancellationToken::new(),
            checkpoints: Arc::new(Forgetful::default()),
            others: None,
            depth: 0,
            kept: Arc::default(),
            notes: Notes::default(),
        }
    }

    /// The family of the model, for variants.
    pub fn family(&self) -> String {
        self.model
            .as_ref()
            .map(|model| family_of(model.id()))
            .unwrap_or_default()
    }

    /// What templates are rendered with: what was given, and what was said.
    pub fn template_values(&self) -> crate::template::Context {
        let mut values: crate::template::Context = self.values.clone().into_iter().collect();
        if let Some(message) = &self.message {
            for name in ["message", "query"] {
                values
                    .entry(name.to_owned())
                    .or_insert_with(|| Value::from(message.as_str()));
            }
        }
        values
    }

    pub(crate) fn needs_model(&self) -> Result<&Arc<dyn Model>> {
        self.model
            .as_ref()
            .ok_or_else(|| Error::Model("this skill asks a model, and none was named".to_owned()))
    }
}

impl Default for ExecutionContext {
    fn default() -> Self {
        Self::new()
    }
}

/// What an execution gives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArtifactOutput {
    /// As text.
    pub text: String,
    /// As JSON, where it is some.
    pub value: Option<Value>,
    /// The model that was asked.
    pub model_id: Option<String>,
    /// Whether it ends because it had to.
    pub cut: bool,
}

impl ArtifactOutput {
    /// An output that is a text.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            value: assertion::json_of(&text),
            text,
            model_id: None,
            cut: false,
        }
    }
}

/// Runs artifacts of one kind.
#[async_trait]
pub trait ArtifactHandler: Send + Sync + std::fmt::Debug {
    /// The kind.
    fn kind(&self) -> ArtifactKind;

    /// What it lacks to run anything now.
    fn lacks(&self) -> Option<Error> {
        None
    }

    /// Runs an artifact.
    async fn execute(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput>;
}

/// One execution.
#[derive(Debug)]
pub struct Executed {
    /// What is kept of it.
    pub record: ExecutionRecord,
    /// What came of it.
    pub outcome: Result<ArtifactOutput>,
    /// What is kept of the execution this one stood in for, if that had begun.
    pub failed: Option<Box<ExecutionRecord>>,
}

/// Knows who runs which kind.
#[derive(Debug, Clone)]
pub struct ArtifactDispatcher {
    handlers: HashMap<ArtifactKind, Arc<dyn ArtifactHandler>>,
}

impl Default for ArtifactDispatcher {
    fn default() -> Self {
        let mut dispatcher = Self {
            handlers: HashMap::new(),
        };
        for kind in [
            ArtifactKind::Description,
            ArtifactKind::Approach,
            ArtifactKind::Example,
        ] {
            dispatcher.add(Arc::new(Injected(kind)));
        }
        dispatcher.add(Arc::new(Prompted));
        dispatcher
    }
}

impl ArtifactDispatcher {
    /// Adds a handler in place of any of its kind.
    pub fn add(&mut self, handler: Arc<dyn ArtifactHandler>) {
        self.handlers.insert(handler.kind(), handler);
    }

    /// Whether artifacts of a kind can be run now.
    pub fn runs(&self, kind: ArtifactKind) -> bool {
        self.handlers
            .get(&kind)
            .is_some_and(|handler| handler.lacks().is_none())
    }

    /// Why artifacts of a kind cannot be run now.
    pub fn lacks(&self, kind: ArtifactKind) -> Option<Error> {
        match self.handlers.get(&kind) {
            None => Some(Error::NoHandler(kind)),
            Some(handler) => handler.lacks(),
        }
    }

    /// What is executed for an artifact: itself, or what stands in for it; nothing, if nothing can.
    pub fn executed<'a>(
        &self,
        skill: &'a dyn SkillSource,
        info: &'a ArtifactInfo,
        family: &str,
    ) -> Option<&'a ArtifactInfo> {
        match self.stand_in(skill, info, family) {
            StandIn::NotNeeded => Some(info),
            StandIn::By(other) => Some(other),
            StandIn::Unnamed | StandIn::Missing(_) => None,
        }
    }

    /// A module whose sidecar is not there is stood in for by the prompt template it names.
    fn stand_in<'a>(
        &self,
        skill: &'a dyn SkillSource,
        info: &'a ArtifactInfo,
        family: &str,
    ) -> StandIn<'a> {
        if info.artifact.kind != ArtifactKind::DspyModule || self.runs(info.artifact.kind) {
            return StandIn::NotNeeded;
        }
        let Some(name) = info.artifact.fallback() else {
            return StandIn::Unnamed;
        };
        fallback(skill, info, family).map_or(StandIn::Missing(name), StandIn::By)
    }

    /// Loads an artifact and runs it; a DSPy module without its sidecar is stood in for.
    pub async fn dispatch(
        &self,
        skill: &dyn SkillSource,
        info: &ArtifactInfo,
        context: &mut ExecutionContext,
    ) -> Executed {
        let name = match self.stand_in(skill, info, &context.family()) {
            StandIn::NotNeeded => {
                let executed = self.execute(skill, info, None, context).await;
                return self.retried(skill, info, executed, context).await;
            }
            StandIn::By(other) => {
                let stood_in = Some(info.artifact.name.as_str());
                return self.execute(skill, other, stood_in, context).await;
            }
            StandIn::Unnamed => {
                let error = Error::NeedsSidecar(info.artifact.name.clone());
                return refuse(skill, info, context, error);
            }
            StandIn::Missing(name) => name,
        };
        let error = Error::Artifact {
            artifact: info.artifact.name.clone(),
            reason: format!("its fallback {name:?} is not there"),
        };
        refuse(skill, info, context, error)
    }
}

impl ArtifactDispatcher {
    /// A module whose sidecar failed on the way is stood in for, too; both leave their record.
    async fn retried(
        &self,
        skill: &dyn SkillSource,
        info: &ArtifactInfo,
        executed: Executed,
        context: &mut ExecutionContext,
    ) -> Executed {
        let family = context.family();
        let by = match &executed.outcome {
            Err(Error::Sidecar(_)) => fallback(skill, info, &family),
            _ => None,
        };
        let Some(other) = by else { return executed };
        let stood_in = Some(info.artifact.name.as_str());
        let mut second = self.execute(skill, other, stood_in, context).await;
        second.failed = Some(Box::new(executed.record));
        second
    }
}

/// The prompt template a module names, for a family of models.
fn fallback<'a>(
    skill: &'a dyn SkillSource,
    info: &ArtifactInfo,
    family: &str,
) -> Option<&'a ArtifactInfo> {
    let name = info.artifact.fallback()?;
    let variants = skill.outline().artifacts.iter().filter(|other| {
        other.artifact.kind == ArtifactKind::PromptTemplate && other.artifact.name == name
    });
    let variants: Vec<&ArtifactInfo> = variants.collect();
    choose(&variants, family)
}

/// Who is executed in place of an artifact.
enum StandIn<'a> {
    NotNeeded,
    By(&'a ArtifactInfo),
    /// It names nobody.
    Unnamed,
    /// It names somebody who is not there.
    Missing(&'a str),
}

/// An execution that ends before it has begun.
fn refuse(
    skill: &dyn SkillSource,
    info: &ArtifactInfo,
    context: &ExecutionContext,
    error: Error,
) -> Executed {
    let mut record = begin(skill, info, context);
    finish(&mut record, Err(error.clone()), Instant::now(), context);
    Executed {
        record,
        outcome: Err(error),
        failed: None,
    }
}

fn begin(
    skill: &dyn SkillSource,
    info: &ArtifactInfo,
    context: &ExecutionContext,
) -> ExecutionRecord {
    let outline = skill.outline();
    *context.notes.lock() = Noted {
        place: format!("{}/{}", outline.skill_id, info.id),
        ..Noted::default()
    };
    ExecutionRecord {
        id: Uuid::new_v4(),
        session_id: context.session_id.clone(),
        skill_id: outline.skill_id.clone(),
        artifact_id: info.id.clone(),
        artifact_kind: info.artifact.kind,
        rendered_input: None,
        raw_output: None,
        error: None,
        started_at: now(),
        completed_at: None,
        duration_ms: None,
        input_tokens: None,
        output_tokens: None,
        model_id: None,
        estimated_cost: None,
        assertions_run: 0,
        assertions_passed: 0,
        details: Details {
            skill: outline.skill.clone(),
            artifact: info.artifact.name.clone(),
            variant: info.artifact.model_variant.clone(),
            ..Details::default()
        },
    }
}

impl ArtifactDispatcher {
    async fn execute(
        &self,
        skill: &dyn SkillSource,
        info: &ArtifactInfo,
        fallback_for: Option<&str>,
        context: &mut ExecutionContext,
    ) -> Executed {
        let mut record = begin(skill, info, context);
        record.details.fallback_for = fallback_for.map(str::to_owned);
        let start = Instant::now();
        let stop = context.stop.clone();
        let outcome = tokio::select! {
            outcome = self.attempt(skill, info, context, &mut record) => outcome,
            () = stop.cancelled() => Err(Error::Interrupted),
        };
        if let Ok((output, artifact)) = &outcome {
            match artifact.kind {
                ArtifactKind::Description | ArtifactKind::Approach => {
                    context.system.push(output.text.clone());
                }
                ArtifactKind::Example => {
                    context
                        .examples
                        .extend(examples_of(artifact).unwrap_or_default());
                }
                _ => {}
            }
        }
        let outcome = outcome.map(|(output, _)| output);
        finish(
            &mut record,
            outcome.as_ref().map_err(Clone::clone),
            start,
            context,
        );
        Executed {
            record,
            outcome,
            failed: None,
        }
    }

    async fn attempt(
        &self,
        skill: &dyn SkillSource,
        info: &ArtifactInfo,
        context: &ExecutionContext,
        record: &mut ExecutionRecord,
    ) -> Result<(ArtifactOutput, Artifact)> {
        let kind = info.artifact.kind;
        let handler = self.handlers.get(&kind).ok_or(Error::NoHandler(kind))?;
        if let Some(error) = handler.lacks() {
            return Err(error);
        }
        let artifact = Artifact {
            content: skill.content(info)?,
            ..info.artifact.clone()
        };
        // One that cannot be checked is not run.
        let assertions = assertion::of(&artifact)?;
        let output = handler.execute(&artifact, context).await?;
        record.model_id.clone_from(&output.model_id);
        record.raw_output = Some(output.text.clone());
        let mut broken = None;
        for assertion in &assertions {
            let (verdict, usage) = assertion
                .evaluate(&output.text, context.model.as_ref())
                .await;
            context.notes.usage(usage);
            record.assertions_run += 1;
            record.assertions_passed += u64::from(verdict.passed);
            if !verdict.passed && verdict.severity == Severity::Hard && broken.is_none() {
                broken = Some(Error::Assertion {
                    artifact: artifact.name.clone(),
                    description: verdict.description.clone(),
                    explanation: verdict.explanation.clone().unwrap_or_default(),
                });
            }
            record.details.assertions.push(verdict);
        }
        match broken {
            Some(error) => Err(error),
            None => Ok((output, artifact)),
        }
    }
}

fn finish(
    record: &mut ExecutionRecord,
    outcome: Result<&ArtifactOutput>,
    start: Instant,
    context: &ExecutionContext,
) {
    let noted = std::mem::take(&mut *context.notes.lock());
    record.rendered_input = noted.input;
    record.charge(noted.usage);
    record.details.used = noted.used;
    if record.model_id.is_none() {
        record.model_id = noted.model_id;
    }
    record.completed_at = Some(now());
    record.duration_ms = Some(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX));
    if let Err(error) = outcome {
        record.error = Some(error.to_string());
        record.details.code = Some(error.code().to_owned());
    }
    if record.model_id.is_none()
        && record.artifact_kind == ArtifactKind::PromptTemplate
        && let Some(model) = &context.model
    {
        record.model_id = Some(model.id().to_owned());
    }
    record.tidy(&context.redactor);
}
