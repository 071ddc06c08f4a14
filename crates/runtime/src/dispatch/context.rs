//! The context of a run, and the notes handlers take during an execution.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use repertoire_core::{Digest, ExecutionRecord, ModelUsage, ResourceUse};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{ArtifactDispatcher, SkillLookup};
use crate::{
    error::{Error, Result},
    limits::Limits,
    model::{ChatTurn, Model, ReplyListener},
    redact::Redactor,
    spans::{SpanPlace, SpanRecorder},
    template::TemplateEngine,
    variant::family_of,
};

/// What a script needs to run nested skills.
pub struct NestedSkills {
    /// Finds skills by name.
    pub skills: Arc<dyn SkillLookup>,
    /// Runs their artifacts.
    pub dispatcher: ArtifactDispatcher,
    /// Stores the record of each execution.
    pub save_record: Arc<dyn Fn(&ExecutionRecord) + Send + Sync>,
}

/// Stores values of scripts, so that a resumed run can load them.
pub trait Checkpoints: Send + Sync {
    /// Loads the value saved under a name for a session and an artifact.
    fn load_checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>>;

    /// Saves a value durably.
    fn save_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &Value,
    ) -> Result<()>;
}

/// Checkpoints in memory, lost when this is dropped.
#[derive(Debug, Default)]
pub struct InMemoryCheckpoints(Mutex<HashMap<[String; 3], Value>>);

impl Checkpoints for InMemoryCheckpoints {
    fn load_checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept
            .get(&[session, artifact, name].map(str::to_owned))
            .cloned())
    }

    fn save_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &Value,
    ) -> Result<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert([session, artifact, name].map(str::to_owned), value.clone());
        Ok(())
    }
}

/// The context of a run.
pub struct ExecutionContext {
    /// The session id of the run.
    pub session_id: String,
    /// Values for templates and code.
    pub values: Map<String, Value>,
    /// The user's message.
    pub message: Option<String>,
    /// The model.
    pub model: Option<Arc<dyn Model>>,
    /// Renders templates.
    pub engine: TemplateEngine,
    /// The system prompt so far.
    pub system: Vec<String>,
    /// The few-shot examples so far.
    pub examples: Vec<ChatTurn>,
    /// The maximum number of tokens in one reply.
    pub max_tokens: u64,
    /// Receives replies as they are streamed.
    pub listener: Option<ReplyListener>,
    /// Removes secrets from records.
    pub redactor: Redactor,
    /// Cancels the run; the current execution still leaves its record.
    pub stop: CancellationToken,
    /// The checkpoints of scripts.
    pub checkpoints: Arc<dyn Checkpoints>,
    /// The nested skills, where scripts may run them.
    pub nested_skills: Option<Arc<NestedSkills>>,
    /// The nesting depth: how many skills are running this one.
    pub depth: usize,
    /// The remaining limits of the script that runs this skill.
    pub remaining_limits: Option<Limits>,
    /// The checkpoint prefix that separates nested runs of one script.
    pub checkpoint_scope: String,
    /// The checkpoint bytes saved by scripts of this run.
    pub checkpoint_bytes: Arc<AtomicU64>,
    /// The number of nested skills run by scripts of this run.
    pub nested_runs: Arc<AtomicU64>,
    /// The notes of the handlers.
    pub notes: ExecutionNotes,
    /// Records what the run does.
    pub spans: SpanRecorder,
    /// The span of the run.
    pub place: SpanPlace,
}

/// Notes a handler takes while it works, so that they are recorded even if it fails.
#[derive(Debug, Clone, Default)]
pub struct ExecutionNotes(Arc<Mutex<NotedValues>>);

#[derive(Debug, Default)]
pub(super) struct NotedValues {
    /// The current skill UUID and artifact UUID.
    place: String,
    /// The id of the current execution.
    execution: Option<Uuid>,
    pub(super) input: Option<String>,
    pub(super) usage: ModelUsage,
    pub(super) nested_usage: Option<ModelUsage>,
    pub(super) model_id: Option<String>,
    pub(super) used: ResourceUses,
    pub(super) printed: Option<String>,
    pub(super) warnings: Vec<String>,
    /// Computes the resource use so far.
    measure: Option<DeferredNote<ResourceUses>>,
    /// Computes the printed text so far.
    printing: Option<DeferredNote<Option<String>>>,
}

type ResourceUses = BTreeMap<String, ResourceUse>;

/// A note that is computed when the notes are taken.
struct DeferredNote<T>(Box<dyn Fn(&mut T) + Send>);

impl<T> std::fmt::Debug for DeferredNote<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeferredNote")
    }
}

impl ExecutionNotes {
    /// Clears the notes for the next execution.
    pub(super) fn begin_execution(&self, place: String, execution: Uuid) {
        *self.lock_notes() = NotedValues {
            place,
            execution: Some(execution),
            ..NotedValues::default()
        };
    }

    /// Takes the notes and leaves them empty.
    pub(super) fn take_notes(&self) -> NotedValues {
        let mut noted = std::mem::take(&mut *self.lock_notes());
        // Compute the printed text first, because it counts as resource use.
        if let Some(DeferredNote(printing)) = noted.printing.take() {
            printing(&mut noted.printed);
        }
        if let Some(DeferredNote(measure)) = noted.measure.take() {
            measure(&mut noted.used);
        }
        noted
    }

    /// Sets how the resource use is computed when the execution ends.
    pub(crate) fn set_usage_source(&self, measure: impl Fn(&mut ResourceUses) + Send + 'static) {
        self.lock_notes().measure = Some(DeferredNote(Box::new(measure)));
    }

    /// Sets how the printed text is computed if the execution is stopped.
    #[cfg(feature = "sandbox")]
    pub(crate) fn set_output_source(&self, so_far: impl Fn() -> String + Send + 'static) {
        let note = move |printed: &mut Option<String>| {
            *printed = Some(so_far()).filter(|text| !text.is_empty());
        };
        self.lock_notes().printing = Some(DeferredNote(Box::new(note)));
    }

    fn lock_notes(&self) -> std::sync::MutexGuard<'_, NotedValues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The skill and the artifact that are being executed.
    pub fn current_artifact(&self) -> String {
        self.lock_notes().place.clone()
    }

    /// The id of the current execution, which is the parent of what it calls.
    pub fn current_execution(&self) -> Option<Uuid> {
        self.lock_notes().execution
    }

    /// Notes the input.
    pub fn set_input(&self, input: &str) {
        self.lock_notes().input = Some(input.to_owned());
    }

    /// Adds the usage of a model call.
    pub fn add_usage(&self, usage: ModelUsage) {
        self.lock_notes().usage.add_usage(usage);
    }

    /// Adds the usage of a nested skill.
    pub fn add_nested_usage(&self, usage: ModelUsage) {
        let others = &mut self.lock_notes().nested_usage;
        others.get_or_insert_default().add_usage(usage);
    }

    /// The usage noted so far.
    pub fn usage_so_far(&self) -> ModelUsage {
        self.lock_notes().usage
    }

    /// Notes which model is called.
    pub fn set_model(&self, id: &str) {
        self.lock_notes().model_id = Some(id.to_owned());
    }

    /// Adds a warning; at most ten are kept, and each of them once.
    #[cfg(feature = "sandbox")]
    pub(crate) fn add_warning(&self, warning: &str) {
        let warnings = &mut self.lock_notes().warnings;
        if warnings.len() < 10 && !warnings.iter().any(|known| known == warning) {
            warnings.push(warning.to_owned());
        }
    }

    /// Notes the final printed text besides the result.
    pub fn set_printed(&self, text: Option<String>) {
        let mut noted = self.lock_notes();
        noted.printed = text;
        noted.printing = None;
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
    /// An empty context with a new session id.
    pub fn new() -> Self {
        Self {
            session_id: Uuid::new_v4().to_string(),
            values: Map::new(),
            message: None,
            model: None,
            engine: TemplateEngine::new(),
            system: Vec::new(),
            examples: Vec::new(),
            max_tokens: 1024,
            listener: None,
            redactor: Redactor::default(),
            stop: CancellationToken::new(),
            checkpoints: Arc::new(InMemoryCheckpoints::default()),
            nested_skills: None,
            depth: 0,
            remaining_limits: None,
            checkpoint_scope: String::new(),
            checkpoint_bytes: Arc::default(),
            nested_runs: Arc::default(),
            notes: ExecutionNotes::default(),
            spans: SpanRecorder::default(),
            place: SpanPlace::below(None),
        }
    }

    /// The family of the model, for variants.
    pub fn model_family(&self) -> String {
        self.model
            .as_ref()
            .map(|model| family_of(model.id()))
            .unwrap_or_default()
    }

    /// A short digest of the input values, to compare runs.
    pub fn fingerprint(&self) -> String {
        // Sorted, so that the digest does not depend on their order.
        let values: BTreeMap<_, _> = self.template_values().into_iter().collect();
        let digest = Digest::hash_bytes(json!(values).to_string().as_bytes()).hex_digits();
        digest.chars().take(16).collect()
    }

    /// The values for templates: the given values and the message.
    pub fn template_values(&self) -> crate::template::TemplateContext {
        let mut values: crate::template::TemplateContext =
            self.values.clone().into_iter().collect();
        if let Some(message) = &self.message {
            for name in ["message", "query"] {
                values
                    .entry(name.to_owned())
                    .or_insert_with(|| Value::from(message.as_str()));
            }
        }
        values
    }

    pub(crate) fn require_model(&self) -> Result<&Arc<dyn Model>> {
        self.model
            .as_ref()
            .ok_or_else(|| Error::Model("this skill needs a model, but none is named".to_owned()))
    }
}

impl Default for ExecutionContext {
    fn default() -> Self {
        Self::new()
    }
}
