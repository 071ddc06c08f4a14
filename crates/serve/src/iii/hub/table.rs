//! Who is connected, who has which function, who follows what, and who waits for whom.
//!
//! Invariant: a function has one owner, and everything a worker brought goes when it goes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json, value::RawValue};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    super::{
        bus::{Answer, CallError},
        protocol::{Frame, Message, Trace, result_text},
    },
    outbox::Outbox,
};
use crate::engine::FunctionTool;

/// The id of a connection.
pub(super) type WorkerId = Arc<str>;

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
    request: Option<Box<RawValue>>,
    response: Option<Box<RawValue>>,
    metadata: Option<Box<RawValue>>,
}

/// Who tells followers of a trigger type.
#[derive(Debug)]
struct Provider {
    /// `None`: the hub itself.
    worker: Option<WorkerId>,
    description: String,
}

/// Somebody who follows a trigger type, whether anybody provides it or not.
#[derive(Debug)]
struct Subscription {
    subscriber: WorkerId,
    kind: Arc<str>,
    function_id: String,
    config: Box<RawValue>,
    metadata: Option<Box<RawValue>>,
}

impl Subscription {
    fn message(&self, id: &str) -> String {
        Message::RegisterTrigger {
            id,
            trigger_type: &self.kind,
            function_id: &self.function_id,
            config: &self.config,
            metadata: self.metadata.as_deref(),
        }
        .text()
    }
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) enum Caller {
    /// A worker, by the id it gave the call.
    Worker(WorkerId, String),
    /// Somebody in this process.
    Local(oneshot::Sender<Answer>),
}

/// A call that is not answered yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) caller: Caller,
    pub(super) target: WorkerId,
    pub(super) function_id: Arc<str>,
    pub(super) deadline: Instant,
}

#[derive(Debug)]
pub(super) struct Table {
    workers: HashMap<WorkerId, Worker>,
    functions: BTreeMap<Arc<str>, Function>,
    types: BTreeMap<Arc<str>, Provider>,
    subscriptions: BTreeMap<Arc<str>, Subscription>,
    pending: HashMap<Uuid, Pending>,
    max_registrations: usize,
}

fn owned(raw: Option<&RawValue>) -> Option<Box<RawValue>> {
    raw.map(ToOwned::to_owned)
}

fn value(raw: Option<&RawValue>) -> Option<Value> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

impl Table {
    pub(super) fn new(max_registrations: usize) -> Self {
        Self {
            workers: HashMap::new(),
            functions: BTreeMap::new(),
            types: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            pending: HashMap::new(),
            max_registrations,
        }
    }

    /// Trigger types of the hub itself.
    pub(super) fn provide(
        &mut self,
        types: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) {
        for (id, description) in types {
            let provider = Provider {
                worker: None,
                description: description.to_owned(),
            };
            self.types.insert(id.into(), provider);
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
        if worker.functions.len() >= self.max_registrations {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = function_id.into();
        worker.functions.insert(name.clone());
        let function = Function {
            owner: id.clone(),
            description: frame.description.as_deref().map(str::to_owned),
            request: owned(frame.request_format),
            response: owned(frame.response_format),
            metadata: owned(frame.metadata),
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

    /// Makes a worker the one who tells followers of a trigger type, and tells it of them.
    pub(super) fn provide_type(
        &mut self,
        id: &WorkerId,
        kind: &str,
        about: &str,
    ) -> Result<(), Refusal> {
        if let Some(provider) = self.types.get(kind)
            && provider.worker.as_ref() != Some(id)
        {
            let owner = provider.worker.clone().unwrap_or_else(|| "hub".into());
            return Err(Refusal::Taken(owner));
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        if worker.types.len() >= self.max_registrations {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = kind.into();
        worker.types.insert(name.clone());
        let provider = Provider {
            worker: Some(id.clone()),
            description: about.to_owned(),
        };
        self.types.insert(name, provider);
        for (trigger, subscription) in &self.subscriptions {
            if *subscription.kind == *kind {
                self.send(id, subscription.message(trigger));
            }
        }
        Ok(())
    }

    pub(super) fn withdraw_type(&mut self, id: &WorkerId, kind: &str) {
        let own = self
            .types
            .get(kind)
            .is_some_and(|p| p.worker.as_ref() == Some(id));
        if own {
            self.types.remove(kind);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.types.remove(kind);
            }
        }
    }

    /// Writes down who follows a trigger type, and tells whoever provides it.
    pub(super) fn subscribe(
        &mut self,
        id: &WorkerId,
        trigger: &str,
        kind: &str,
        function_id: &str,
        config: Option<&RawValue>,
        metadata: Option<&RawValue>,
    ) -> Result<(), Refusal> {
        if let Some(taken) = self.subscriptions.get(trigger) {
            if taken.subscriber != *id {
                return Err(Refusal::Taken(taken.subscriber.clone()));
            }
            // A worker says it again when it comes back; it means the same subscription.
            self.unsubscribe(trigger);
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        if worker.triggers.len() >= self.max_registrations {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = trigger.into();
        worker.triggers.insert(name.clone());
        let subscription = Subscription {
            subscriber: id.clone(),
            kind: kind.into(),
            function_id: function_id.to_owned(),
            config: owned(config).unwrap_or_else(|| RawValue::NULL.to_owned()),
            metadata: owned(metadata),
        };
        let provider = self.types.get(kind).and_then(|p| p.worker.clone());
        if let Some(provider) = provider {
            self.send(&provider, subscription.message(trigger));
        }
        self.subscriptions.insert(name, subscription);
        Ok(())
    }

    /// Ends a subscription that is the worker's own.
    pub(super) fn unsubscribe_own(&mut self, id: &WorkerId, trigger: &str) {
        let own = self.subscriptions.get(trigger);
        if own.is_some_and(|subscription| subscription.subscriber == *id) {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.triggers.remove(trigger);
            }
            self.unsubscribe(trigger);
        }
    }

    fn unsubscribe(&mut self, trigger: &str) {
        let Some(subscription) = self.subscriptions.remove(trigger) else {
            return;
        };
        let provider = self.types.get(&subscription.kind);
        if let Some(provider) = provider.and_then(|p| p.worker.as_ref()) {
            let message = Message::UnregisterTrigger {
                id: trigger,
                trigger_type: &subscription.kind,
            };
            self.send(provider, message.text());
        }
    }

    /// Tells a subscriber that its subscription failed.
    pub(super) fn subscription_failed(&self, from: &WorkerId, trigger: &str, error: &RawValue) {
        let Some(subscription) = self.subscriptions.get(trigger) else {
            return;
        };
        let provider = self.types.get(&subscription.kind);
        if provider.and_then(|p| p.worker.as_ref()) == Some(from) {
            let message = Message::TriggerRegistrationResult {
                id: trigger,
                trigger_type: &subscription.kind,
                function_id: &subscription.function_id,
                error,
            };
            self.send(&subscription.subscriber, message.text());
        }
    }

    /// The functions that follow a trigger type with a configuration that fits.
    pub(super) fn subscribers(&self, kind: &str, fits: impl Fn(&RawValue) -> bool) -> Vec<String> {
        let all = self.subscriptions.values();
        let fitting = all.filter(|s| *s.kind == *kind && fits(&s.config));
        fitting.map(|s| s.function_id.clone()).collect()
    }

    /// The configurations of those who follow a trigger type, with their functions.
    pub(super) fn configured(&self, kind: &str) -> Vec<(String, Box<RawValue>)> {
        let all = self.subscriptions.values().filter(|s| *s.kind == *kind);
        all.map(|s| (s.function_id.clone(), s.config.clone()))
            .collect()
    }

    pub(super) fn has_subscribers(&self, kind: &str) -> bool {
        self.subscriptions.values().any(|s| *s.kind == *kind)
    }

    pub(super) fn calls_of(&self, id: &str) -> usize {
        self.workers.get(id).map_or(0, |worker| worker.made)
    }

    /// Writes down that an answer is expected.
    pub(super) fn expect(&mut self, pending: Pending) -> Uuid {
        if let Caller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.made += 1;
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.given += 1;
        }
        let key = Uuid::new_v4();
        self.pending.insert(key, pending);
        key
    }

    fn uncount(&mut self, pending: &Pending) {
        if let Caller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.made = worker.made.saturating_sub(1);
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.given = worker.given.saturating_sub(1);
        }
    }

    /// The call a worker answers, if it was given it.
    pub(super) fn take(&mut self, key: Uuid, from: &WorkerId) -> Option<Pending> {
        let theirs = self.pending.get(&key).is_some_and(|p| p.target == *from);
        theirs.then(|| self.forget(key)).flatten()
    }

    /// Stops expecting an answer.
    pub(super) fn forget(&mut self, key: Uuid) -> Option<Pending> {
        let pending = self.pending.remove(&key)?;
        self.uncount(&pending);
        Some(pending)
    }

    /// The calls whose time is up.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Pending> {
        let over = self
            .pending
            .extract_if(|_, pending| pending.deadline <= now);
        let over: Vec<Pending> = over.map(|(_, pending)| pending).collect();
        for pending in &over {
            self.uncount(pending);
        }
        over
    }

    /// Tells whoever waits that there will be no answer.
    pub(super) fn fail(&self, pending: Pending, error: &CallError) {
        match pending.caller {
            Caller::Worker(worker, invocation) => {
                let error = json!(error).to_string();
                let function = &pending.function_id;
                let text = result_text(&invocation, function, Err(&error), Trace::default());
                self.send(&worker, text);
            }
            Caller::Local(tell) => drop(tell.send(Err(error.clone()))),
        }
    }

    /// Functions as tools.
    pub(super) fn tools(&self, allowed: impl Fn(&str) -> bool) -> Vec<FunctionTool> {
        let functions = self.functions.iter().filter(|(id, _)| allowed(id));
        let tools = functions.map(|(id, function)| FunctionTool {
            function_id: id.to_string(),
            description: function.description.clone(),
            request: value(function.request.as_deref()),
            response: value(function.response.as_deref()),
        });
        tools.collect()
    }

    /// The functions of all workers, as `engine::functions::list` shows them.
    pub(super) fn list_functions(&self) -> Vec<Value> {
        let rows = self.functions.iter();
        rows.map(|(id, function)| self.function_row(id, function))
            .collect()
    }

    /// One function with its worker.
    pub(super) fn function_info(&self, id: &str) -> Option<Value> {
        let function = self.functions.get(id)?;
        let mut row = self.function_row(id, function);
        row["worker_id"] = json!(function.owner);
        Some(row)
    }

    fn function_row(&self, id: &str, function: &Function) -> Value {
        let worker = self.workers.get(&function.owner);
        let name = worker.and_then(|worker| worker.about.get("name").cloned());
        let mut row = json!({
            "function_id": id, "namespace": NAMESPACE,
            "worker_name": name.unwrap_or_else(|| json!(function.owner)),
        });
        let parts = [
            (
                "description",
                function.description.clone().map(Value::String),
            ),
            ("metadata", value(function.metadata.as_deref())),
            ("request_format", value(function.request.as_deref())),
            ("response_format", value(function.response.as_deref())),
        ];
        for (key, part) in parts {
            if let Some(part) = part {
                row[key] = part;
            }
        }
        row
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

    pub(super) fn list_types(&self) -> Vec<Value> {
        let types = self.types.iter();
        types
            .map(|(id, provider)| json!({"id": id, "description": provider.description}))
            .collect()
    }

    pub(super) fn list_triggers(&self) -> Vec<Value> {
        let all = self.subscriptions.iter();
        all.map(|(id, subscription)| {
            json!({
                "id": id, "trigger_type": subscription.kind,
                "function_id": subscription.function_id,
                "config": value(Some(&subscription.config)),
            })
        })
        .collect()
    }
}

/// Why a registration is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Another worker has it.
    Taken(WorkerId),
    /// The worker has as many as it may have.
    TooMany,
}
