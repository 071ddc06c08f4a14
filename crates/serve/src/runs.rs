//! Skills of the registry as the runtime takes them, and its records as the registry keeps them.

use std::sync::Arc;

use repertoire_core::{Artifact, ArtifactKind};
use repertoire_registry::{
    Entry, Reference, Registry, Scope,
    store::{SkillRepository, Trace},
};
use repertoire_runtime::{
    ArtifactDispatcher, ArtifactInfo, Checkpoints, Error, ExecutionContext, ExecutionRecord,
    Others, Outline, Result, SkillSource, Skills,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// The name of the step that puts a message to a skill that is a document and nothing else.
const MESSAGE: &str = "Message";

/// A skill of the registry that can be run.
#[derive(Debug)]
pub struct Runnable {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
    outline: Outline,
}

impl Runnable {
    /// Looks at what a skill is made of; no content of it is read.
    ///
    /// A skill without artifacts is its document, as a description, and the message. One that has
    /// nothing to execute puts the message to the model, too.
    pub fn new(registry: &Arc<Registry>, entry: &Arc<Entry>) -> repertoire_registry::Result<Self> {
        let parts = registry.parts(entry)?;
        let mut artifacts: Vec<ArtifactInfo> = parts
            .artifacts
            .into_iter()
            .map(|(id, artifact)| ArtifactInfo { id, artifact })
            .collect();
        let is_context = |info: &ArtifactInfo| {
            matches!(
                info.artifact.kind,
                ArtifactKind::Description | ArtifactKind::Approach | ArtifactKind::Example
            )
        };
        if artifacts.iter().all(is_context) {
            let implied = |kind: ArtifactKind, name: &str, ordinal: i64| ArtifactInfo {
                id: format!("{}:{name}", parts.skill_id),
                artifact: Artifact {
                    id: None,
                    kind,
                    name: name.to_owned(),
                    ordinal,
                    content: String::new(),
                    file: None,
                    model_variant: None,
                    metadata: None,
                    state_blob: None,
                    created_at: None,
                    updated_at: None,
                },
            };
            if artifacts.is_empty() {
                artifacts.push(implied(ArtifactKind::Description, "SKILL.md", 0));
            }
            let last = artifacts.iter().map(|info| info.artifact.ordinal).max();
            let next = last.unwrap_or(0).saturating_add(1);
            artifacts.push(implied(ArtifactKind::PromptTemplate, MESSAGE, next));
        }
        let outline = Outline {
            skill_id: parts.skill_id,
            skill: entry.id.to_string(),
            artifacts,
        };
        Ok(Self {
            registry: registry.clone(),
            entry: entry.clone(),
            outline,
        })
    }
}

impl SkillSource for Runnable {
    fn outline(&self) -> &Outline {
        &self.outline
    }

    fn content(&self, info: &ArtifactInfo) -> Result<String> {
        let implied = info.artifact.file.is_none() && info.artifact.name == MESSAGE;
        if implied && info.artifact.kind == ArtifactKind::PromptTemplate {
            return Ok("{{ message }}".to_owned());
        }
        let content = self.registry.artifact_content(&self.entry, &info.artifact);
        content.map_err(|error| Error::Artifact {
            artifact: info.artifact.name.clone(),
            reason: error.to_string(),
        })
    }
}

/// Gives a run what it has of the registry: other skills to run, and a place to keep values.
pub fn equip(
    context: &mut ExecutionContext,
    registry: &Arc<Registry>,
    dispatcher: &ArtifactDispatcher,
) {
    let whole = Arc::new(Whole(registry.clone()));
    let keeper = registry.clone();
    context.checkpoints = whole.clone();
    context.others = Some(Arc::new(Others {
        skills: whole,
        dispatcher: dispatcher.clone(),
        keep: Arc::new(move |record| {
            if let Err(error) = keeper.put_trace(trace_of(record)) {
                tracing::warn!(%error, "a trace could not be kept");
            }
        }),
    }));
}

/// The registry, as a running skill sees it.
struct Whole(Arc<Registry>);

impl Skills for Whole {
    fn open(&self, wanted: &str) -> Result<Arc<dyn SkillSource>> {
        let refuse = |reason: String| Error::Call {
            call: "run_skill".to_owned(),
            reason,
        };
        let snapshot = self.0.snapshot();
        let reference: Option<Reference> = wanted.parse().ok();
        let by_id = reference.and_then(|reference| snapshot.skill(&reference).cloned());
        // The name of a package, or its UUID, for those who know it by that.
        let scopes = [Scope::Workspace, Scope::Account];
        let stores = scopes
            .into_iter()
            .filter_map(|scope| self.0.store(scope).ok());
        let uuid: Option<Uuid> = wanted.parse().ok();
        let by_uuid = stores.filter_map(|store| store.get_skill(uuid?).ok().flatten());
        let name = by_uuid.map(|package| package.name).next();
        let name = name.as_deref().unwrap_or(wanted);
        let known = |entry: &&Arc<Entry>| {
            let package = entry.head.package.as_ref();
            package.is_some_and(|package| *package.name == *name)
        };
        let entry = by_id.or_else(|| snapshot.skills().find(known).cloned());
        let entry = entry.ok_or_else(|| refuse(format!("there is no skill {wanted:?}")))?;
        let skill = Runnable::new(&self.0, &entry).map_err(|error| refuse(error.to_string()))?;
        Ok(Arc::new(skill))
    }
}

impl Checkpoints for Whole {
    fn load(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>> {
        let kept = self.0.checkpoint(session, artifact, name);
        let kept = kept.map_err(|error| not_kept(&error))?;
        kept.map(|text| repertoire_core::json::from_str(&text).map_err(|error| not_kept(&error)))
            .transpose()
    }

    fn save(&self, session: &str, artifact: &str, name: &str, value: &Value) -> Result<()> {
        let kept = self
            .0
            .put_checkpoint(session, artifact, name, &value.to_string());
        kept.map_err(|error| not_kept(&error))
    }
}

fn not_kept(error: &dyn std::error::Error) -> Error {
    Error::Call {
        call: "checkpoint".to_owned(),
        reason: error.to_string(),
    }
}

/// A record as it is kept.
pub fn trace_of(record: &ExecutionRecord) -> Trace {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    Trace {
        id: record.id.to_string(),
        session_id: record.session_id.clone(),
        skill_id: record.skill_id.clone(),
        artifact_id: record.artifact_id.clone(),
        artifact_kind: record.artifact_kind.as_str().to_owned(),
        rendered_input: record.rendered_input.clone(),
        raw_output: record.raw_output.clone(),
        error: record.error.clone(),
        started_at: record.started_at.clone(),
        completed_at: record.completed_at.clone(),
        duration_ms: record.duration_ms.map(number),
        input_tokens: record.input_tokens.map(number),
        output_tokens: record.output_tokens.map(number),
        model_id: record.model_id.clone(),
        estimated_cost: record.estimated_cost,
        assertions_run: number(record.assertions_run),
        assertions_passed: number(record.assertions_passed),
        details: json!(record.details),
    }
}
