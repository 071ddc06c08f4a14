//! What a run has at hand, and what is noted while it goes on.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

use repertoire_core::Digest;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{ArtifactDispatcher, Skills};
use crate::{
    error::{Error, Result},
    limits::Limits,
    model::{Listener, Model, Turn, Usage},
    record::{ExecutionRecord, Used},
    redact::Redactor,
    template::PromptEngine,
    variant::family_of,
};

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
    /// What the script that runs this one has left; this one has no more.
    pub left: Option<Limits>,
    /// What tells this one from others that the same script runs: its place in their checkpoints.
    pub within: String,
    /// How many bytes scripts of this run have kept.
    pub kept: Arc<AtomicU64>,
    /// How many skills scripts of this run have run.
    pub runs: Arc<AtomicU64>,
    /// What handlers note.
    pub notes: Notes,
}

/// What a handler notes while it works, so that a failure leaves it behind too.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
pub(super) struct Noted {
    /// What is being executed: the skill's UUID and the artifact's.
    place: String,
    pub(super) input: Option<String>,
    pub(super) usage: Usage,
    pub(super) others: Option<Usage>,
    pub(super) model_id: Option<String>,
    pub(super) used: Uses,
    pub(super) printed: Option<String>,
    /// Tells what has been used so far.
    measure: Option<Later<Uses>>,
    /// Tells what has been printed so far.
    printing: Option<Later<Option<String>>>,
}

type Uses = BTreeMap<String, Used>;

/// Notes something, whenever that is asked for.
struct Later<T>(Box<dyn Fn(&mut T) + Send>);

impl<T> std::fmt::Debug for Later<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Later")
    }
}

impl Notes {
    /// Begins anew, with what is executed next.
    pub(super) fn begin(&self, place: String) {
        *self.lock() = Noted {
            place,
            ..Noted::default()
        };
    }

    /// What was noted; nothing is, after that.
    pub(super) fn take(&self) -> Noted {
        let mut noted = std::mem::take(&mut *self.lock());
        // What was printed is measured, too.
        if let Some(Later(printing)) = noted.printing.take() {
            printing(&mut noted.printed);
        }
        if let Some(Later(measure)) = noted.measure.take() {
            measure(&mut noted.used);
        }
        noted
    }

    /// Asks for what was used when it is over, however it ends.
    pub(crate) fn measure(&self, measure: impl Fn(&mut Uses) + Send + 'static) {
        self.lock().measure = Some(Later(Box::new(measure)));
    }

    /// Asks for what was printed if it is stopped.
    pub(crate) fn printing(&self, so_far: impl Fn() -> String + Send + 'static) {
        let note = move |printed: &mut Option<String>| {
            *printed = Some(so_far()).filter(|text| !text.is_empty());
        };
        self.lock().printing = Some(Later(Box::new(note)));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is being executed: the skill and the artifact of it.
    pub fn place(&self) -> String {
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

    /// Notes what a skill cost that was run on the way.
    pub fn others(&self, usage: Usage) {
        let others = &mut self.lock().others;
        others.get_or_insert_default().add(usage);
    }

    /// What was noted of what calls cost, so far.
    pub fn spent(&self) -> Usage {
        self.lock().usage
    }

    /// Notes which model is asked.
    pub fn model(&self, id: &str) {
        self.lock().model_id = Some(id.to_owned());
    }

    /// Notes what was printed besides the result, when it is over.
    pub fn printed(&self, text: Option<String>) {
        let mut noted = self.lock();
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
            left: None,
            within: String::new(),
            kept: Arc::default(),
            runs: Arc::default(),
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

    /// What tells the values of this run from those of others.
    pub fn fingerprint(&self) -> String {
        // In an order of their own.
        let values: BTreeMap<_, _> = self.template_values().into_iter().collect();
        let digest = Digest::of(json!(values).to_string().as_bytes()).hex();
        digest.chars().take(16).collect()
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
