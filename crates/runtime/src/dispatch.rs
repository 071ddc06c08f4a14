//! Dispatch: an artifact's kind says who runs it.
//!
//! One execution leaves one record, whatever becomes of it. An artifact is loaded when it is its
//! turn and not before; a DSPy module whose sidecar is not there is stood in for by the prompt
//! template it names.

mod context;
mod handlers;

use std::{collections::HashMap, sync::Arc, time::Instant};

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde_json::Value;
use uuid::Uuid;

pub use context::{Checkpoints, ExecutionContext, Forgetful, Notes, Others};
pub use handlers::examples_of;

use self::handlers::{Injected, Prompted};
use crate::{
    assertion::{self, Severity},
    error::{Error, Result},
    record::{Details, ExecutionRecord, now},
    variant::choose,
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
    context
        .notes
        .begin(format!("{}/{}", outline.skill_id, info.id));
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
            // What a script asks others for is the script's doing.
            values: match context.depth {
                0 => context.fingerprint(),
                _ => String::new(),
            },
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
    let noted = context.notes.take();
    record.rendered_input = noted.input;
    record.charge(noted.usage);
    record.details.used = noted.used;
    record.details.others = noted.others;
    record.details.printed = noted.printed;
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
