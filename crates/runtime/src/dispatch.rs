//! Dispatch: selects the handler of an artifact by its kind.
//!
//! One execution leaves one record, however it ends. The content of an artifact is loaded only when
//! it is executed. A DSPy module whose sidecar is not available is replaced by the prompt template
//! that it names as its fallback.

mod context;
mod handlers;

use std::{collections::HashMap, sync::Arc, time::Instant};

use async_trait::async_trait;
use repertoire_core::{
    Artifact, ArtifactKind, AssertionSeverity, ExecutionRecord, RecordDetails, SkillVersion,
    Verdict,
};
use serde_json::Value;
use uuid::Uuid;

pub use context::{
    Checkpoints, ExecutionContext, ExecutionNotes, InMemoryCheckpoints, NestedSkills,
};
pub use handlers::parse_examples;

use self::handlers::{ContextHandler, PromptHandler};
use crate::{
    assertion::{self, Assertion},
    error::{Error, Result},
    record::{now_rfc3339, redact_and_truncate},
    variant::choose_variant,
};

/// The metadata of a skill, known before any artifact content is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillOutline {
    /// The UUID of the skill.
    pub skill_id: String,
    /// Its id in the catalogue.
    pub skill: String,
    /// Its version.
    pub version: SkillVersion,
    /// Its artifacts without their content, by ordinal.
    pub artifacts: Vec<ArtifactInfo>,
}

/// An artifact without its content.
#[derive(Debug, Clone, PartialEq)]
pub struct ArtifactInfo {
    /// Its UUID.
    pub id: String,
    /// The artifact, with an empty content.
    pub artifact: Artifact,
}

/// A skill whose artifact contents are loaded one at a time.
pub trait LoadableSkill: Send + Sync {
    /// The metadata of the skill and its artifacts.
    fn outline(&self) -> &SkillOutline;

    /// Loads the content of one artifact.
    fn load_content(&self, info: &ArtifactInfo) -> Result<String>;
}

/// Finds the skills that a running skill can run.
pub trait SkillLookup: Send + Sync {
    /// Opens a skill by its id or UUID.
    fn open_skill(&self, name: &str) -> Result<Arc<dyn LoadableSkill>>;
}

/// The output of an execution.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ArtifactOutput {
    /// The output as text.
    pub text: String,
    /// The output as JSON, if it is JSON.
    pub value: Option<Value>,
    /// The model that was called.
    pub model_id: Option<String>,
    /// Whether the output was cut at the token limit.
    pub cut: bool,
}

impl ArtifactOutput {
    /// An output from a text, which may be JSON.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            value: assertion::parse_json_output(&text),
            text,
            model_id: None,
            cut: false,
        }
    }
}

/// Runs artifacts of one kind.
#[async_trait]
pub trait ArtifactHandler: Send + Sync + std::fmt::Debug {
    /// The kind of artifacts it runs.
    fn kind(&self) -> ArtifactKind;

    /// Why it cannot run anything now, if it cannot.
    fn unavailable_reason(&self) -> Option<Error> {
        None
    }

    /// Runs an artifact.
    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput>;
}

/// The result of one execution.
#[derive(Debug)]
pub struct ExecutionResult {
    /// The record of the execution.
    pub record: ExecutionRecord,
    /// The output or the error.
    pub outcome: Result<ArtifactOutput>,
    /// The record of the failed execution that this one replaced, if it had started.
    pub failed_attempt: Option<Box<ExecutionRecord>>,
}

/// The handlers by artifact kind.
#[derive(Debug, Clone)]
pub struct ArtifactDispatcher {
    handlers: HashMap<ArtifactKind, Arc<dyn ArtifactHandler>>,
    /// Checks of the application, for every output.
    assertions: Vec<Arc<dyn Assertion>>,
}

impl Default for ArtifactDispatcher {
    fn default() -> Self {
        let mut dispatcher = Self {
            handlers: HashMap::new(),
            assertions: Vec::new(),
        };
        for kind in [
            ArtifactKind::Description,
            ArtifactKind::Approach,
            ArtifactKind::Example,
        ] {
            dispatcher.add_handler(Arc::new(ContextHandler(kind)));
        }
        dispatcher.add_handler(Arc::new(PromptHandler));
        dispatcher
    }
}

impl ArtifactDispatcher {
    /// Adds a handler; replaces the one of the same kind.
    pub fn add_handler(&mut self, handler: Arc<dyn ArtifactHandler>) {
        self.handlers.insert(handler.kind(), handler);
    }

    /// Adds a check for the output of every artifact that runs, besides those it declares itself.
    pub fn add_assertion(&mut self, assertion: Arc<dyn Assertion>) {
        self.assertions.push(assertion);
    }

    /// Whether artifacts of a kind can be run now.
    pub fn can_run(&self, kind: ArtifactKind) -> bool {
        self.handlers
            .get(&kind)
            .is_some_and(|handler| handler.unavailable_reason().is_none())
    }

    /// Why artifacts of a kind cannot be run now, if they cannot.
    pub fn unavailable_reason(&self, kind: ArtifactKind) -> Option<Error> {
        match self.handlers.get(&kind) {
            None => Some(Error::NoHandler(kind)),
            Some(handler) => handler.unavailable_reason(),
        }
    }

    /// Returns the artifact that is executed: itself or its fallback; `None` if neither can run.
    pub fn executable_artifact<'a>(
        &self,
        skill: &'a dyn LoadableSkill,
        info: &'a ArtifactInfo,
        family: &str,
    ) -> Option<&'a ArtifactInfo> {
        match self.choose_fallback(skill, info, family) {
            FallbackChoice::NotNeeded => Some(info),
            FallbackChoice::Fallback(other) => Some(other),
            FallbackChoice::Unnamed | FallbackChoice::Missing(_) => None,
        }
    }

    /// Selects the prompt template that replaces a module whose sidecar is not available.
    fn choose_fallback<'a>(
        &self,
        skill: &'a dyn LoadableSkill,
        info: &'a ArtifactInfo,
        family: &str,
    ) -> FallbackChoice<'a> {
        if info.artifact.kind != ArtifactKind::DspyModule || self.can_run(info.artifact.kind) {
            return FallbackChoice::NotNeeded;
        }
        let Some(name) = info.artifact.fallback_name() else {
            return FallbackChoice::Unnamed;
        };
        fallback_variant(skill, info, family)
            .map_or(FallbackChoice::Missing(name), FallbackChoice::Fallback)
    }

    /// Loads and runs an artifact; a DSPy module without its sidecar is replaced by its fallback.
    pub async fn dispatch_artifact(
        &self,
        skill: &dyn LoadableSkill,
        info: &ArtifactInfo,
        context: &mut ExecutionContext,
    ) -> ExecutionResult {
        let name = match self.choose_fallback(skill, info, &context.model_family()) {
            FallbackChoice::NotNeeded => {
                let executed = self.execute_and_record(skill, info, None, context).await;
                return self
                    .retry_with_fallback(skill, info, executed, context)
                    .await;
            }
            FallbackChoice::Fallback(other) => {
                let stood_in = Some(info.artifact.name.as_str());
                return self
                    .execute_and_record(skill, other, stood_in, context)
                    .await;
            }
            FallbackChoice::Unnamed => {
                let error = Error::NeedsSidecar(info.artifact.name.clone());
                return refused_execution(skill, info, context, error);
            }
            FallbackChoice::Missing(name) => name,
        };
        let error = Error::Artifact {
            artifact: info.artifact.name.clone(),
            reason: format!("its fallback {name:?} does not exist"),
        };
        refused_execution(skill, info, context, error)
    }
}

impl ArtifactDispatcher {
    /// Runs the fallback of a module whose sidecar or program failed; both executions leave a record.
    async fn retry_with_fallback(
        &self,
        skill: &dyn LoadableSkill,
        info: &ArtifactInfo,
        executed: ExecutionResult,
        context: &mut ExecutionContext,
    ) -> ExecutionResult {
        let family = context.model_family();
        let by = match &executed.outcome {
            Err(Error::Sidecar(_) | Error::Program { .. }) => {
                fallback_variant(skill, info, &family)
            }
            _ => None,
        };
        let Some(other) = by else { return executed };
        let stood_in = Some(info.artifact.name.as_str());
        let mut second = self
            .execute_and_record(skill, other, stood_in, context)
            .await;
        second.failed_attempt = Some(Box::new(executed.record));
        second
    }
}

/// The fallback prompt template of a module, for a model family.
fn fallback_variant<'a>(
    skill: &'a dyn LoadableSkill,
    info: &ArtifactInfo,
    family: &str,
) -> Option<&'a ArtifactInfo> {
    let name = info.artifact.fallback_name()?;
    let variants = skill.outline().artifacts.iter().filter(|other| {
        other.artifact.kind == ArtifactKind::PromptTemplate && other.artifact.name == name
    });
    let variants: Vec<&ArtifactInfo> = variants.collect();
    choose_variant(&variants, family)
}

/// The artifact that is executed in place of another.
enum FallbackChoice<'a> {
    NotNeeded,
    Fallback(&'a ArtifactInfo),
    /// It names no fallback.
    Unnamed,
    /// The fallback it names does not exist.
    Missing(&'a str),
}

/// Records an execution that fails before it starts.
fn refused_execution(
    skill: &dyn LoadableSkill,
    info: &ArtifactInfo,
    context: &ExecutionContext,
    error: Error,
) -> ExecutionResult {
    let mut record = begin_record(skill, info, context);
    finish_record(&mut record, Err(error.clone()), Instant::now(), context);
    ExecutionResult {
        record,
        outcome: Err(error),
        failed_attempt: None,
    }
}

fn begin_record(
    skill: &dyn LoadableSkill,
    info: &ArtifactInfo,
    context: &ExecutionContext,
) -> ExecutionRecord {
    let outline = skill.outline();
    let id = Uuid::new_v4();
    context
        .notes
        .begin_execution(format!("{}/{}", outline.skill_id, info.id), id);
    ExecutionRecord {
        id,
        session_id: context.session_id.clone(),
        skill_id: outline.skill_id.clone(),
        artifact_id: info.id.clone(),
        artifact_kind: info.artifact.kind,
        rendered_input: None,
        raw_output: None,
        error: None,
        started_at: now_rfc3339(),
        completed_at: None,
        duration_ms: None,
        input_tokens: None,
        output_tokens: None,
        model_id: None,
        estimated_cost: None,
        assertions_run: 0,
        assertions_passed: 0,
        details: RecordDetails {
            skill: outline.skill.clone(),
            artifact: info.artifact.name.clone(),
            parent: Some(context.place.id),
            version: outline.version.clone(),
            ordinal: Some(info.artifact.ordinal),
            // Nested runs are never resumed on their own, so their values are not compared.
            values: match context.depth {
                0 => context.fingerprint(),
                _ => String::new(),
            },
            variant: info.artifact.model_variant.clone(),
            ..RecordDetails::default()
        },
    }
}

impl ArtifactDispatcher {
    async fn execute_and_record(
        &self,
        skill: &dyn LoadableSkill,
        info: &ArtifactInfo,
        fallback_for: Option<&str>,
        context: &mut ExecutionContext,
    ) -> ExecutionResult {
        let mut record = begin_record(skill, info, context);
        record.details.fallback_for = fallback_for.map(str::to_owned);
        let start = Instant::now();
        let stop = context.stop.clone();
        let outcome = tokio::select! {
            outcome = self.load_and_execute(skill, info, context, &mut record) => outcome,
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
                        .extend(parse_examples(artifact).unwrap_or_default());
                }
                ArtifactKind::PromptTemplate
                | ArtifactKind::CodeTemplate
                | ArtifactKind::DspyModule => {}
            }
        }
        let outcome = outcome.map(|(output, _)| output);
        finish_record(
            &mut record,
            outcome.as_ref().map_err(Clone::clone),
            start,
            context,
        );
        ExecutionResult {
            record,
            outcome,
            failed_attempt: None,
        }
    }

    async fn load_and_execute(
        &self,
        skill: &dyn LoadableSkill,
        info: &ArtifactInfo,
        context: &ExecutionContext,
        record: &mut ExecutionRecord,
    ) -> Result<(ArtifactOutput, Artifact)> {
        let kind = info.artifact.kind;
        let handler = self.handlers.get(&kind).ok_or(Error::NoHandler(kind))?;
        if let Some(error) = handler.unavailable_reason() {
            return Err(error);
        }
        let artifact = Artifact {
            content: skill.load_content(info)?,
            ..info.artifact.clone()
        };
        // Artifacts with invalid assertions are not run.
        let assertions = assertion::read_assertions(&artifact)?;
        let output = handler.execute_artifact(&artifact, context).await?;
        record.model_id.clone_from(&output.model_id);
        record.raw_output = Some(output.text.clone());
        let mut broken = None;
        let declared = assertions.iter().map(|one| one as &dyn Assertion);
        let added = self.assertions.iter().map(|one| &**one);
        let added = added.filter(|_| !kind.is_context());
        for assertion in declared.chain(added) {
            let found = assertion.evaluate(&output, context).await;
            let verdict = Verdict {
                description: assertion.description().to_owned(),
                severity: assertion.severity(),
                passed: found.is_ok(),
                explanation: found.err().map(|failure| failure.explanation),
            };
            record.assertions_run += 1;
            record.assertions_passed += u64::from(verdict.passed);
            if !verdict.passed && verdict.severity == AssertionSeverity::Hard && broken.is_none() {
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

fn finish_record(
    record: &mut ExecutionRecord,
    outcome: Result<&ArtifactOutput>,
    start: Instant,
    context: &ExecutionContext,
) {
    let noted = context.notes.take_notes();
    record.rendered_input = noted.input;
    record.add_usage(noted.usage);
    record.details.used = noted.used;
    record.details.others = noted.nested_usage;
    record.details.printed = noted.printed;
    record.details.warnings = noted.warnings;
    if record.model_id.is_none() {
        record.model_id = noted.model_id;
    }
    record.completed_at = Some(now_rfc3339());
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
    redact_and_truncate(record, &context.redactor);
}
