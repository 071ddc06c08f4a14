//! Who is connected, who has which function, who follows what, and who waits for whom.
//!
//! Invariant: a function has one owner, and everything a worker brought goes when it goes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use repertoire_core::markdown::cut;
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    super::{
        bus::{Answer, CallError},
        protocol::{Frame, Message, Trace, result_text},
    },
    outbox::Outbox,
    state::{TRIGGER, Wanted},
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
    /// What of the state it is about, if it is about the state.
    wanted: Option<Arc<Wanted>>,
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
    /// Those of one trigger type.
    by_type: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    pending: HashMap<Uuid, Pending>,
    max_registrations: usize,
}

fn owned(raw: Option<&RawValue>) -> Option<Box<RawValue>> {
    raw.map(ToOwned::to_owned)
}

/// What a worker says about a function, unless it says too much.
fn shared(raw: Option<&RawValue>) -> Option<Arc<RawValue>> {
    let short = raw.filter(|raw| raw.get().len() <= MAX_ABOUT);
    short.map(|raw| raw.to_owned().into())
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
            by_type: HashMap::new(),
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
        if worker.types.len() >= self.max_registrations && !worker.types.contains(kind) {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = kind.into();
        worker.types.insert(name.clone());
        let provider = Provider {
            worker: Some(id.clone()),
            description: cut(about, 8 * 1024),
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
        let wanted = match (kind == TRIGGER).then(|| Wanted::of(config)) {
            None => None,
            Some(Ok(wanted)) => Some(Arc::new(wanted)),
            Some(Err(reason)) => return Err(Refusal::Config(reason)),
        };
        if config.is_some_and(|config| config.get().len() > MAX_ABOUT) {
            return Err(Refusal::Config(format!("has at most {MAX_ABOUT} bytes")));
        }
        let known = self.subscriptions.get(trigger);
        if let Some(taken) = known
            && taken.subscriber != *id
        {
            return Err(Refusal::Taken(taken.subscriber.clone()));
        }
        let Some(worker) = self.workers.get(id) else {
            return Ok(());
        };
        if known.is_none() && worker.triggers.len() >= self.max_registrations {
            return Err(Refusal::TooMany);
        }
        // A worker says it again when it comes back; it means the same subscription.
        self.unsubscribe(trigger);
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        let name: Arc<str> = trigger.into();
        worker.triggers.insert(name.clone());
        let subscription = Subscription {
            subscriber: id.clone(),
            kind: kind.into(),
            function_id: function_id.to_owned(),
            config: owned(config).unwrap_or_else(|| RawValue::NULL.to_owned()),
            metadata: owned(metadata),
            wanted,
        };
        let of_type = self.by_type.entry(subscription.kind.clone());
        of_type.or_default().insert(name.clone());
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
        if let Some(of_type) = self.by_type.get_mut(&subscription.kind) {
            of_type.remove(trigger);
            if of_type.is_empty() {
                self.by_type.remove(&subscription.kind);
            }
        }
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

    /// The functions that follow a trigger type; of the state, those that want to hear of a key.
    pub(super) fn subscribers(&self, kind: &str, row: Option<(&str, &str)>) -> Vec<String> {
        let followers = self.following(kind).filter(|subscription| match row {
            Some((scope, key)) => {
                let wanted = subscription.wanted.as_ref();
                wanted.is_some_and(|w| w.condition.is_none() && w.fits(scope, key))
            }
            None => true,
        });
        followers.map(|s| s.function_id.clone()).collect()
    }

    /// Those that want to hear of a key of the state if another function says so, and that one.
    pub(super) fn conditional(&self, scope: &str, key: &str) -> Vec<(String, String)> {
        let followers = self.following(TRIGGER).filter_map(|subscription| {
            let wanted = subscription.wanted.as_ref()?;
            let condition = wanted
                .condition
                .as_ref()
                .filter(|_| wanted.fits(scope, key))?;
            Some((subscription.function_id.clone(), condition.clone()))
        });
        followers.collect()
    }

    fn following(&self, kind: &str) -> impl Iterator<Item = &Subscription> {
        let of_type = self.by_type.get(kind).into_iter().flatten();
        of_type.filter_map(|id| self.subscriptions.get(id))
    }

    /// Whether a worker lets what it is given pile up.
    pub(super) fn is_high(&self, id: &str) -> bool {
        self.workers
            .get(id)
            .is_some_and(|worker| worker.outbox.is_high())
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
    /// What it is configured with makes no sense.
    Config(String),
}
