//! The connected workers, the owners of functions, the subscriptions and the pending calls.
//!
//! Invariant: a function has one owner, and all registrations of a worker end with its connection.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use repertoire_core::markdown::truncate_text;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

mod pending;
mod triggers;

pub(super) use pending::{PendingCall, PendingCaller};

use self::triggers::{Subscription, TriggerProvider};
use super::{
    super::{
        bus::CallError,
        protocol::{Frame, HubMessage},
    },
    outbox::{Outbox, QueuedMessage},
};
use crate::service::FunctionTool;

/// The id of a connection.
pub(super) type WorkerId = Arc<str>;

/// The most bytes of a description, a schema, a configuration.
const MAX_METADATA_BYTES: usize = 256 * 1024;

/// What an entry of the table counts beside its texts.
const ENTRY_BYTES: usize = 256;

/// The most bytes of all descriptions, schemas and configurations of one connection, and of all.
const MAX_CONNECTION_BYTES: usize = 16 * 1024 * 1024;
const MAX_TABLE_BYTES: usize = 512 * 1024 * 1024;

/// The only namespace of the hub.
pub(super) const NAMESPACE: &str = "default";

/// One connection.
#[derive(Debug)]
pub(super) struct ConnectedWorker {
    pub(super) outbox: Outbox,
    pub(super) reattach_token: String,
    /// The description that the worker gave of itself.
    pub(super) info: Value,
    pub(super) connected_at: u128,
    functions: HashSet<Arc<str>>,
    triggers: HashSet<Arc<str>>,
    types: HashSet<Arc<str>>,
    /// The bytes of its registrations.
    registered_bytes: usize,
    /// Unanswered calls that the worker made, and that it received.
    outgoing_calls: usize,
    incoming_calls: usize,
}

/// A function of a worker.
#[derive(Debug)]
struct RegisteredFunction {
    owner: WorkerId,
    description: Option<String>,
    request: Option<Arc<RawValue>>,
    response: Option<Arc<RawValue>>,
    metadata: Option<Arc<RawValue>>,
    /// What it counts against the limit of its connection.
    bytes: usize,
}

/// A function as listings show it; serialized after the table is unlocked.
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
    /// Whether its worker declares it as content that anyone may read: `{"content": true}` in its
    /// metadata.
    pub(super) fn is_content(&self) -> bool {
        let metadata = parse_raw(self.metadata.as_deref());
        metadata.is_some_and(|metadata| metadata["content"] == true)
    }

    /// Converts the row to an MCP tool.
    pub(super) fn to_tool(&self) -> FunctionTool {
        FunctionTool {
            function_id: self.function_id.to_string(),
            description: self.description.clone(),
            request: parse_raw(self.request_format.as_deref()),
            response: parse_raw(self.response_format.as_deref()),
        }
    }
}

#[derive(Debug)]
pub(super) struct RoutingTable {
    workers: HashMap<WorkerId, ConnectedWorker>,
    functions: BTreeMap<Arc<str>, RegisteredFunction>,
    types: BTreeMap<Arc<str>, TriggerProvider>,
    subscriptions: BTreeMap<Arc<str>, Subscription>,
    /// The subscriptions by trigger type.
    by_type: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    pending: HashMap<Uuid, PendingCall>,
    max_registrations: usize,
    /// The bytes of all registrations.
    registered_bytes: usize,
}

/// Returns a copy of a description of a function, or `None` if it is too long.
fn share_bounded(raw: Option<&RawValue>) -> Option<Arc<RawValue>> {
    let short = raw.filter(|raw| raw.get().len() <= MAX_METADATA_BYTES);
    short.map(|raw| raw.to_owned().into())
}

fn parse_raw(raw: Option<&RawValue>) -> Option<Value> {
    raw.and_then(|raw| repertoire_core::json::from_str(raw.get()).ok())
}

impl RoutingTable {
    pub(super) fn new(max_registrations: usize) -> Self {
        Self {
            workers: HashMap::new(),
            functions: BTreeMap::new(),
            types: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            by_type: HashMap::new(),
            pending: HashMap::new(),
            max_registrations,
            registered_bytes: 0,
        }
    }

    /// Counts the bytes of a registration that replaces another one.
    fn charge_bytes(
        &mut self,
        id: &WorkerId,
        bytes: usize,
        replaced: usize,
    ) -> Result<(), RegistrationRefusal> {
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        let mine = worker.registered_bytes - replaced + bytes;
        let all = self.registered_bytes - replaced + bytes;
        if mine > MAX_CONNECTION_BYTES || all > MAX_TABLE_BYTES {
            return Err(RegistrationRefusal::TooLarge);
        }
        worker.registered_bytes = mine;
        self.registered_bytes = all;
        Ok(())
    }

    /// Stops counting the bytes of a registration.
    fn release_bytes(&mut self, id: &WorkerId, bytes: usize) {
        self.registered_bytes -= bytes;
        if let Some(worker) = self.workers.get_mut(id) {
            worker.registered_bytes -= bytes;
        }
    }

    pub(super) fn worker_count(&self) -> usize {
        self.workers.len()
    }

    /// Adds a connection, and queues its greeting.
    pub(super) fn add_worker(&mut self, outbox: Outbox) -> WorkerId {
        let id: WorkerId = Uuid::new_v4().to_string().into();
        let reattach_token = Uuid::new_v4().to_string();
        outbox.send(
            HubMessage::WorkerRegistered {
                worker_id: &id,
                reattach_token: &reattach_token,
            }
            .to_json(),
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let worker = ConnectedWorker {
            outbox,
            reattach_token,
            info: json!({}),
            connected_at: now.map_or(0, |time| time.as_millis()),
            functions: HashSet::new(),
            triggers: HashSet::new(),
            types: HashSet::new(),
            registered_bytes: 0,
            outgoing_calls: 0,
            incoming_calls: 0,
        };
        self.workers.insert(id.clone(), worker);
        id
    }

    /// Returns the previous connection of a worker, if the token proves ownership.
    pub(super) fn find_previous(&self, id: &str, token: &str) -> Option<(WorkerId, Outbox)> {
        let (id, worker) = self.workers.get_key_value(id)?;
        (worker.reattach_token == token).then(|| (id.clone(), worker.outbox.clone()))
    }

    /// Removes a connection and its registrations. Returns whether it had functions.
    pub(super) fn remove_worker(&mut self, id: &WorkerId) -> bool {
        let Some(worker) = self.workers.remove(id) else {
            return false;
        };
        for function in &worker.functions {
            if let Some(function) = self.functions.remove(function) {
                self.registered_bytes -= function.bytes;
            }
        }
        for kind in &worker.types {
            if let Some(provider) = self.types.remove(kind) {
                self.registered_bytes -= provider.bytes;
            }
        }
        for trigger in &worker.triggers {
            self.unsubscribe(trigger);
        }
        if worker.incoming_calls > 0 || worker.outgoing_calls > 0 {
            let gone = self.pending.extract_if(|_, pending| {
                pending.target == *id
                    || matches!(&pending.caller, PendingCaller::Worker(caller, _) if caller == id)
            });
            let gone: Vec<PendingCall> = gone.map(|(_, pending)| pending).collect();
            for pending in gone {
                self.release_counts(&pending);
                let message = format!("{}: its worker disconnected", pending.function_id);
                self.fail_call(pending, &CallError::new("invocation_stopped", message));
            }
        }
        !worker.functions.is_empty()
    }

    /// Queues a message for a worker.
    pub(super) fn send_to(&self, id: &str, message: impl Into<QueuedMessage>) {
        if let Some(worker) = self.workers.get(id) {
            worker.outbox.send(message);
        }
    }

    pub(super) fn set_worker_info(&mut self, id: &WorkerId, about: Value) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.info = about;
        }
    }

    pub(super) fn owner_of(&self, function: &str) -> Option<WorkerId> {
        self.functions.get(function).map(|f| f.owner.clone())
    }

    /// Registers a function of a worker, unless another worker owns it.
    pub(super) fn register_function(
        &mut self,
        id: &WorkerId,
        frame: &Frame<'_>,
    ) -> Result<(), RegistrationRefusal> {
        let function_id = frame.id.as_deref().unwrap_or_default();
        if let Some(taken) = self.functions.get(function_id)
            && taken.owner != *id
        {
            return Err(RegistrationRefusal::Taken(taken.owner.clone()));
        }
        let Some(worker) = self.workers.get(id) else {
            return Ok(());
        };
        if worker.functions.len() >= self.max_registrations
            && !worker.functions.contains(function_id)
        {
            return Err(RegistrationRefusal::TooMany);
        }
        let name: Arc<str> = function_id.into();
        let about = frame.description.as_deref();
        let mut function = RegisteredFunction {
            owner: id.clone(),
            description: about.map(|about| truncate_text(about, 8 * 1024)),
            request: share_bounded(frame.request_format),
            response: share_bounded(frame.response_format),
            metadata: share_bounded(frame.metadata),
            bytes: 0,
        };
        let raw = [&function.request, &function.response, &function.metadata];
        let raw = raw.into_iter().flatten().map(|raw| raw.get().len());
        let about = function.description.as_deref().map_or(0, str::len);
        function.bytes = raw.sum::<usize>() + about + function_id.len() + ENTRY_BYTES;
        let replaced = self
            .functions
            .get(function_id)
            .map_or(0, |known| known.bytes);
        self.charge_bytes(id, function.bytes, replaced)?;
        if let Some(worker) = self.workers.get_mut(id) {
            worker.functions.insert(name.clone());
        }
        self.functions.insert(name, function);
        Ok(())
    }

    /// Removes a function of a worker, if the worker owns it.
    pub(super) fn unregister_function(&mut self, id: &WorkerId, function: &str) -> bool {
        let own = self.functions.get(function).is_some_and(|f| f.owner == *id);
        if own {
            if let Some(function) = self.functions.remove(function) {
                self.release_bytes(id, function.bytes);
            }
            if let Some(worker) = self.workers.get_mut(id) {
                worker.functions.remove(function);
            }
        }
        own
    }

    /// Whether the queue of a worker is above the high-water mark.
    pub(super) fn is_backlogged(&self, id: &str) -> bool {
        self.workers
            .get(id)
            .is_some_and(|worker| worker.outbox.is_backlogged())
    }

    /// Returns the functions of all workers.
    pub(super) fn list_functions(&self) -> Vec<FunctionRow> {
        let rows = self.functions.iter();
        rows.map(|(id, function)| self.function_row(id, function))
            .collect()
    }

    /// Returns one function.
    pub(super) fn find_function(&self, id: &str) -> Option<FunctionRow> {
        let (id, function) = self.functions.get_key_value(id)?;
        Some(self.function_row(id, function))
    }

    fn function_row(&self, id: &Arc<str>, function: &RegisteredFunction) -> FunctionRow {
        FunctionRow {
            function_id: id.clone(),
            namespace: NAMESPACE,
            worker_name: self.worker_name(&function.owner),
            worker_id: function.owner.clone(),
            description: function.description.clone(),
            metadata: function.metadata.clone(),
            request_format: function.request.clone(),
            response_format: function.response.clone(),
        }
    }

    /// The name that a worker gave itself, or its id.
    fn worker_name(&self, id: &WorkerId) -> Value {
        let worker = self.workers.get(id);
        let name = worker.and_then(|worker| worker.info.get("name").cloned());
        name.unwrap_or_else(|| json!(id))
    }

    /// Returns all connected workers, in the order in which they connected.
    pub(super) fn list_workers(&self) -> Vec<Value> {
        let mut rows: Vec<(u128, Value)> = Vec::with_capacity(self.workers.len());
        for (id, worker) in &self.workers {
            let mut functions: Vec<&str> = worker.functions.iter().map(|f| &**f).collect();
            functions.sort_unstable();
            let mut row = json!({
                "id": id,
                "status": if worker.incoming_calls > 0 { "busy" } else { "connected" },
                "connected_at_ms": u64::try_from(worker.connected_at).unwrap_or(u64::MAX),
                "function_count": functions.len(), "functions": functions,
                "active_invocations": worker.incoming_calls, "namespace": NAMESPACE,
            });
            for key in [
                "name",
                "description",
                "runtime",
                "version",
                "os",
                "pid",
                "isolation",
                "namespace",
            ] {
                if let Some(value) = worker.info.get(key).filter(|value| !value.is_null()) {
                    row[key] = value.clone();
                }
            }
            rows.push((worker.connected_at, row));
        }
        rows.sort_by_key(|(at, _)| *at);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

/// Why a registration is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RegistrationRefusal {
    /// Another worker owns the id.
    Taken(WorkerId),
    /// The worker has reached its limit.
    TooMany,
    /// The descriptions, schemas and configurations of the worker, or of all, have too many bytes.
    TooLarge,
    /// The configuration is invalid.
    Config(String),
}
