//! Who is connected, who has which function, who follows what, and who waits for whom.
//!
//! Invariant: a function has one owner, and everything a worker brought goes when it goes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use repertoire_core::markdown::cut;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

mod pending;
mod triggers;

pub(super) use pending::{Caller, Pending};

use self::triggers::{Provider, Subscription};
use super::{
    super::{
        bus::CallError,
        protocol::{Frame, Message},
    },
    outbox::Outbox,
};
use crate::engine::FunctionTool;

/// The id of a connection.
pub(super) type WorkerId = Arc<str>;

/// The most bytes of a description, a schema, a configuration.
const MAX_ABOUT: usize = 256 * 1024;

/// The namespace everything is in.
pub(super) const NAMESPACE: &str = "default";

/// One connection.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) outbox: Outbox,
    pub(super) reattach_token: String,
    /// What it says about itself.
    pub(super) about: Value,
    pub(super) connected_at: u128,
    functions: HashSet<Arc<str>>,
    triggers: HashSet<Arc<str>>,
    types: HashSet<Arc<str>>,
    /// Calls it made, and calls it was given, that are not answered yet.
    made: usize,
    given: usize,
}

/// A function of a worker.
#[derive(Debug)]
struct Function {
    owner: WorkerId,
    description: Option<String>,
    request: Option<Arc<RawValue>>,
    response: Option<Arc<RawValue>>,
    metadata: Option<Arc<RawValue>>,
}

/// A function as listings show it, to be written when the table is free again.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FunctionRow {
    pub(super) function_id: Arc<str>,
    namespace: &'static str,
    worker_name: Value,
    worker_id: WorkerId,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Arc<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_format: Option<Arc<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Arc<RawValue>>,
}

impl FunctionRow {
    /// The same as a tool.
    pub(super) fn tool(&self) -> FunctionTool {
        FunctionTool {
            function_id: self.function_id.to_string(),
            description: self.description.clone(),
            request: value(self.request_format.as_deref()),
            response: value(self.response_format.as_deref()),
        }
    }
}

#[derive(Debug)]
pub(super) struct Table {
    workers: HashMap<WorkerId, Worker>,
    functions: BTreeMap<Arc<str>, Function>,
    types: BTreeMap<Arc<str>, Provider>,
    subscriptions: BTreeMap<Arc<str>, Subscription>,
    /// Those of one trigger type.
    by_type: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    pending: HashMap<Uuid, Pending>,
    max_registrations: usize,
}

/// What a worker says about a function, unless it says too much.
fn shared(raw: Option<&RawValue>) -> Option<Arc<RawValue>> {
    let short = raw.filter(|raw| raw.get().len() <= MAX_ABOUT);
    short.map(|raw| raw.to_owned().into())
}

fn value(raw: Option<&RawValue>) -> Option<Value> {
    raw.and_then(|raw| repertoire_core::json::from_str(raw.get()).ok())
}

impl Table {
    pub(super) fn new(max_registrations: usize) -> Self {
        Self {
            workers: HashMap::new(),
            functions: BTreeMap::new(),
            types: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            by_type: HashMap::new(),
            pending: HashMap::new(),
            max_registrations,
        }
    }

    pub(super) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Takes a connection in, and greets it.
    pub(super) fn connect(&mut self, outbox: Outbox) -> WorkerId {
        let id: WorkerId = Uuid::new_v4().to_string().into();
        let reattach_token = Uuid::new_v4().to_string();
        outbox.send(
            Message::WorkerRegistered {
                worker_id: &id,
                reattach_token: &reattach_token,
            }
            .text(),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let worker = Worker {
            outbox,
            reattach_token,
            about: json!({}),
            connected_at: now.map_or(0, |time| time.as_millis()),
            functions: HashSet::new(),
            triggers: HashSet::new(),
            types: HashSet::new(),
            made: 0,
            given: 0,
        };
        self.workers.insert(id.clone(), worker);
        id
    }

    /// The connection a worker had before, if it proves that it was its own.
    pub(super) fn previous(&self, id: &str, token: &str) -> Option<(WorkerId, Outbox)> {
        let (id, worker) = self.workers.get_key_value(id)?;
        (worker.reattach_token == token).then(|| (id.clone(), worker.outbox.clone()))
    }

    /// Lets a connection go, with everything it brought. Gives whether functions went with it.
    pub(super) fn disconnect(&mut self, id: &WorkerId) -> bool {
        let Some(worker) = self.workers.remove(id) else {
            return false;
        };
        for function in &worker.functions {
            self.functions.remove(function);
        }
        for kind in &worker.types {
            self.types.remove(kind);
        }
        for trigger in &worker.triggers {
            self.unsubscribe(trigger);
        }
        if worker.given > 0 || worker.made > 0 {
            let gone = self.pending.extract_if(|_, pending| {
                pending.target == *id
                    || matches!(&pending.caller, Caller::Worker(caller, _) if caller == id)
            });
            let gone: Vec<Pending> = gone.map(|(_, pending)| pending).collect();
            for pending in gone {
                self.uncount(&pending);
                let message = format!("{}: its worker went away", pending.function_id);
                self.fail(pending, &CallError::new("invocation_stopped", message));
            }
        }
        !worker.functions.is_empty()
    }

    /// Queues a message for a worker.
    pub(super) fn send(&self, id: &str, text: String) {
        if let Some(worker) = self.workers.get(id) {
            worker.outbox.send(text);
        }
    }

    pub(super) fn describe(&mut self, id: &WorkerId, about: Value) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.about = about;
        }
    }

    pub(super) fn owner(&self, function: &str) -> Option<WorkerId> {
        self.functions.get(function).map(|f| f.owner.clone())
    }

    /// Gives a function to a worker, unless another one has it.
    pub(super) fn register(&mut self, id: &WorkerId, frame: &Frame<'_>) -> Result<(), Refusal> {
        let function_id = frame.id.as_deref().unwrap_or_default();
        if let Some(taken) = self.functions.get(function_id)
            && taken.owner != *id
        {
            return Err(Refusal::Taken(taken.owner.clone()));
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        if worker.functions.len() >= self.max_registrations
            && !worker.functions.contains(function_id)
        {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = function_id.into();
        worker.functions.insert(name.clone());
        let about = frame.description.as_deref();
        let function = Function {
            owner: id.clone(),
            description: about.map(|about| cut(about, 8 * 1024)),
            request: shared(frame.request_format),
            response: shared(frame.response_format),
            metadata: shared(frame.metadata),
        };
        self.functions.insert(name, function);
        Ok(())
    }

    /// Takes a function from a worker, if it has it.
    pub(super) fn unregister(&mut self, id: &WorkerId, function: &str) -> bool {
        let own = self.functions.get(function).is_some_and(|f| f.owner == *id);
        if own {
            self.functions.remove(function);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.functions.remove(function);
            }
        }
        own
    }

    /// Whether a worker lets what it is given pile up.
    pub(super) fn is_high(&self, id: &str) -> bool {
        self.workers
            .get(id)
            .is_some_and(|worker| worker.outbox.is_high())
    }

    /// The functions of all workers.
    pub(super) fn functions(&self) -> Vec<FunctionRow> {
        let rows = self.functions.iter();
        rows.map(|(id, function)| self.row(id, function)).collect()
    }

    /// One function.
    pub(super) fn function(&self, id: &str) -> Option<FunctionRow> {
        let (id, function) = self.functions.get_key_value(id)?;
        Some(self.row(id, function))
    }

    fn row(&self, id: &Arc<str>, function: &Function) -> FunctionRow {
        let worker = self.workers.get(&function.owner);
        let name = worker.and_then(|worker| worker.about.get("name").cloned());
        FunctionRow {
            function_id: id.clone(),
            namespace: NAMESPACE,
            worker_name: name.unwrap_or_else(|| json!(function.owner)),
            worker_id: function.owner.clone(),
            description: function.description.clone(),
            metadata: function.metadata.clone(),
            request_format: function.request.clone(),
            response_format: function.response.clone(),
        }
    }

    /// Everybody who is connected and has said anything.
    pub(super) fn list_workers(&self) -> Vec<Value> {
        let mut rows: Vec<(u128, Value)> = Vec::with_capacity(self.workers.len());
        for (id, worker) in &self.workers {
            let mut functions: Vec<&str> = worker.functions.iter().map(|f| &**f).collect();
            functions.sort_unstable();
            let mut row = json!({
                "id": id,
                "status": if worker.given > 0 { "busy" } else { "available" },
                "connected_at_ms": u64::try_from(worker.connected_at).unwrap_or(u64::MAX),
                "function_count": functions.len(), "functions": functions,
                "active_invocations": worker.given,
            });
            for key in [
                "name",
                "runtime",
                "version",
                "os",
                "pid",
                "isolation",
                "namespace",
            ] {
                if let Some(value) = worker.about.get(key).filter(|value| !value.is_null()) {
                    row[key] = value.clone();
                }
            }
            rows.push((worker.connected_at, row));
        }
        rows.sort_by_key(|(at, _)| *at);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// Why a registration is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another worker has it.
    Taken(WorkerId),
    /// The worker has as many as it may have.
    TooMany,
    /// What it is configured with makes no sense.
    Config(String),
}
