//! A bus in this process: takes the place of an iii engine, with embedded state.
//!
//! Workers connect over WebSocket and use the protocol of the engine. The hub records the owner of
//! each function and the subscribers of each trigger type (`table`), forwards calls, and answers
//! `engine::*`, `state::*` and the functions of the registry itself.
//!
//! Invariant: the hub never waits for a worker. Messages to a worker are queued; a worker that
//! does not read its queue is dropped.

mod builtin;
mod call_load;
mod connection;
mod incoming;
mod inspection;
mod listener;
mod outbox;
mod routing_table;
mod state;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use repertoire_app::Permission;
use repertoire_registry::{AccountSkills, registered::RegisteredRow};
use serde_json::{Value, value::RawValue};
use tokio::sync::{
    Notify, Semaphore,
    mpsc::{self, UnboundedSender},
    oneshot,
};
use tokio_tungstenite::tungstenite::Bytes;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) use builtin::builtin_permissions;
pub(crate) use connection::MESSAGE_TYPES;
pub use listener::HubListener;

use self::routing_table::{FunctionRow, PendingCall, PendingCaller, RoutingTable, WorkerId};
use self::{
    call_load::CallLoad,
    incoming::IncomingBytes,
    outbox::{QueuedBytes, QueuedMessage},
};
use super::{
    bus::{Bus, BusResult, CallError},
    changes,
    functions::{self, FunctionOptions, SkillFunctions, is_tool},
    protocol::{Frame, TraceContext, invoke_text, result_text, with_caller},
};
use crate::service::SkillService;

/// How many condition functions are asked at a time.
const MAX_CONDITIONS: usize = 1024;
/// How many long listings are built at a time.
const MAX_LISTINGS: usize = 4;
/// The functions whose answers are long, although their requests are short.
const LISTINGS: [&str; 10] = [
    "state::list",
    "state::list_groups",
    "skills::list",
    "skills::resources-list",
    "skills::resources-read",
    "skills::fetch_skill",
    "skill::fetch",
    "prompts::list",
    "prompts::mcp-list",
    "state::get",
];

/// Those among them that may call functions of workers.
const MAY_CALL_WORKERS: [&str; 3] = [
    "skills::resources-read",
    "skills::fetch_skill",
    "skill::fetch",
];

/// Which process answers the functions of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillsProvider {
    /// The hub.
    OnHub,
    /// A connected worker.
    OnWorker,
}

/// Whether the hub reports changes of its state.
///
/// Not every engine does; a hub without the trigger is used to test workers on such an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateTrigger {
    /// The hub provides a trigger type `state`.
    Provided,
    /// The hub does not provide it.
    Missing,
}

/// The limits and the behaviour of the hub.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The most bytes of a message, in either direction.
    pub max_message: usize,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most functions and triggers of one connection.
    pub max_registrations: usize,
    /// The most unanswered calls of one connection.
    pub max_calls: usize,
    /// How many bytes of unfinished writes and notifications are held; above it no connection is
    /// read, and a connection with more than a quarter of it is not read.
    pub max_pending_bytes: usize,
    /// How many bytes of messages that have not arrived completely are held; above it a connection
    /// with a long one is closed.
    pub max_incoming_bytes: usize,
    /// How many bytes wait for workers in all queues; above it those who do not read are dropped.
    pub max_queued_bytes: usize,
    /// After how long an unanswered call to a worker fails.
    pub call_deadline: Duration,
    /// How long a write to a worker may block before the worker is dropped.
    pub write_timeout: Duration,
    /// How long a worker may send nothing, not even a pong, before it is dropped.
    pub idle_timeout: Duration,
    /// Functions that become MCP tools: ids, or prefixes with `*` at the end.
    pub tools: Vec<String>,
    /// How the functions of the registry behave.
    pub functions: FunctionOptions,
    /// Which process answers the functions of the registry.
    pub skills_provider: SkillsProvider,
    /// Whether changes of the state are reported.
    pub state_trigger: StateTrigger,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024 * 1024,
            max_connections: 4096,
            max_registrations: 10_000,
            max_calls: 4096,
            max_pending_bytes: 256 * 1024 * 1024,
            max_incoming_bytes: 256 * 1024 * 1024,
            max_queued_bytes: 512 * 1024 * 1024,
            call_deadline: Duration::from_mins(10),
            write_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(75),
            tools: Vec::new(),
            functions: FunctionOptions::default(),
            skills_provider: SkillsProvider::OnHub,
            state_trigger: StateTrigger::Provided,
        }
    }
}

/// The hub. Cheap to share.
#[derive(Debug)]
pub struct Hub {
    service: Arc<SkillService>,
    options: HubOptions,
    /// The id under which the hub itself calls.
    id: WorkerId,
    table: Mutex<RoutingTable>,
    functions: OnceLock<SkillFunctions>,
    /// The hub itself, for background tasks.
    weak_self: Weak<Self>,
    /// Notified when functions are registered or removed.
    functions_changed: Arc<Notify>,
    catalogue_sync: state::CatalogueSync,
    /// What unfinished calls hold.
    load: Arc<CallLoad>,
    /// What has arrived of messages.
    incoming: Arc<IncomingBytes>,
    /// What waits for workers.
    queued: Arc<QueuedBytes>,
    /// One permit for each condition function that is being asked.
    conditions: Arc<Semaphore>,
    /// One permit for each long listing that is being built.
    listings: Semaphore,
    /// Changes of the state that are not reported yet, in the order of their commits.
    state_changes: UnboundedSender<state::StateNotice>,
    stop: CancellationToken,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Hub {
    /// Starts a hub over the catalogue and state of a service.
    ///
    /// The service joins the hub, so that MCP clients can read content made by functions.
    pub fn start(engine: &Arc<SkillService>, options: HubOptions) -> Arc<Self> {
        let (state_changes, notices) = mpsc::unbounded_channel();
        let hub = Arc::new_cyclic(|own| Self {
            weak_self: own.clone(),
            service: engine.clone(),
            id: Uuid::new_v4().to_string().into(),
            table: Mutex::new(RoutingTable::new(options.max_registrations)),
            functions: OnceLock::new(),
            functions_changed: Arc::default(),
            catalogue_sync: state::CatalogueSync::default(),
            load: Arc::default(),
            incoming: IncomingBytes::new(options.max_incoming_bytes),
            queued: QueuedBytes::new(options.max_queued_bytes),
            conditions: Arc::new(Semaphore::new(MAX_CONDITIONS)),
            listings: Semaphore::new(MAX_LISTINGS),
            state_changes,
            stop: CancellationToken::new(),
            options,
        });
        let weak: Weak<dyn Bus> = hub.weak_self.clone();
        let on = hub.options.functions.clone();
        if hub.options.skills_provider == SkillsProvider::OnHub {
            let functions = SkillFunctions::new(engine.clone(), weak.clone(), on.clone());
            let _ = hub.functions.set(functions);
        }
        let shared: Arc<dyn Bus> = hub.clone();
        engine.join_bus(&shared, on);
        hub.lock_table()
            .add_builtin_types(builtin::trigger_types(&hub.options));
        // Tasks hold the hub only while they use it, so that dropping the last handle frees it.
        let (own, stop) = (&hub.weak_self, &hub.stop);
        if hub.options.skills_provider == SkillsProvider::OnHub {
            let account = hub.options.functions.account;
            let publish = Self::publish_changes(own.clone(), engine, account, stop.clone());
            tokio::spawn(publish);
        }
        tokio::spawn(Self::expire_calls(own.clone(), stop.clone()));
        tokio::spawn(Self::report_state_changes(
            own.clone(),
            notices,
            stop.clone(),
        ));
        let changed = hub.functions_changed.clone();
        tokio::spawn(Self::offer_tools(own.clone(), changed, stop.clone()));
        hub
    }

    /// Returns the options of the hub.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// Returns the number of connected workers.
    pub fn worker_count(&self) -> usize {
        self.lock_table().worker_count()
    }

    /// Closes all connections, accepts no new ones, and waits until all are closed.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        while self.worker_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops without waiting.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    fn lock_table(&self) -> MutexGuard<'_, RoutingTable> {
        // Every change of the table is complete before the lock is released.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the hub answers a function itself.
    fn is_native(&self, id: &str) -> bool {
        builtin::is_builtin(id)
            || (self.functions.get().is_some() && functions::find_function(id).is_some())
    }

    /// Returns what calling a function needs. Functions of workers may do anything.
    fn function_permission(&self, id: &str) -> Permission {
        builtin::permission_of(id)
            .or_else(|| {
                self.functions.get()?;
                functions::find_function(id).map(|function| function.permission)
            })
            .unwrap_or(Permission::Run)
    }

    /// Whether a call of a function of the registry would call a function of a worker.
    fn calls_other_function(&self, id: &str, data: Option<&RawValue>) -> bool {
        let payload = data.and_then(|data| repertoire_core::json::from_str(data.get()).ok());
        let payload: Value = payload.unwrap_or_default();
        let snapshot = self.service.opened_registry().map(|one| one.snapshot());
        functions::calls_other_function(snapshot.as_deref(), id, &payload)
    }

    /// Answers a function of the hub itself.
    fn call_native(
        self: &Arc<Self>,
        caller: WorkerId,
        id: &str,
        data: Option<&RawValue>,
    ) -> BoxFuture<'static, BusResult> {
        let (hub, id) = (self.clone(), id.to_owned());
        let data = data.map_or("{}", RawValue::get).to_owned();
        Box::pin(async move {
            if builtin::is_builtin(&id) {
                return hub.call_builtin(&caller, &id, &data).await;
            }
            let payload = repertoire_core::json::from_str(&data)
                .map_err(|error| CallError::new("invalid_request", format!("{id}: {error}")))?;
            match hub.functions.get() {
                Some(functions) => functions.call_function(&id, payload).await,
                None => Err(CallError::function_not_found(&id)),
            }
        })
    }

    /// Forwards a call to the worker that owns the function.
    fn route_call(&self, from: &WorkerId, frame: &Frame<'_>, id: &str) -> Result<(), CallError> {
        let data = with_caller(frame.data.map(RawValue::get), from);
        let Some(data) = data else {
            let message = format!("{id}: the data has a key that is not valid text");
            return Err(CallError::new("invalid_request", message));
        };
        let metadata = frame.metadata.map(RawValue::get);
        let trace = trace_context(frame);
        let mut table = self.lock_table();
        let Some(target) = table.owner_of(id) else {
            return Err(CallError::function_not_found(id));
        };
        if table.is_backlogged(&target) {
            let message = format!("{id}: its worker does not keep up");
            return Err(CallError::new("busy", message));
        }
        let waits = frame.invocation_id.as_deref().filter(|_| !is_void(frame));
        let Some(invocation) = waits else {
            table.send_to(&target, invoke_text(None, id, &data, metadata, trace));
            return Ok(());
        };
        if table.outgoing_call_count(from) >= self.options.max_calls {
            let message = format!("more than {} calls at a time", self.options.max_calls);
            return Err(CallError::new("too_many_calls", message));
        }
        let key = table.add_pending(PendingCall {
            caller: PendingCaller::Worker(from.clone(), invocation.to_owned()),
            target: target.clone(),
            function_id: id.into(),
            deadline: Instant::now() + self.options.call_deadline,
        });
        let text = invoke_text(Some(&key.to_string()), id, &data, metadata, trace);
        table.send_to(&target, text);
        Ok(())
    }

    /// Passes the result from a worker to the caller that waits for it.
    fn deliver_result(&self, from: &WorkerId, frame: &Frame<'_>) {
        let key = frame.invocation_id.as_deref();
        let Some(key) = key.and_then(|key| Uuid::parse_str(key).ok()) else {
            return;
        };
        let mut table = self.lock_table();
        // Only the worker that was called can answer.
        let Some(pending) = table.take_pending(key, from) else {
            return;
        };
        let outcome = match frame.error {
            None => Ok(frame.result.map_or("null", RawValue::get)),
            Some(error) => Err(error.get()),
        };
        match pending.caller {
            PendingCaller::Worker(worker, invocation) => {
                let function = &pending.function_id;
                let text = result_text(&invocation, function, outcome, trace_context(frame));
                table.send_to(&worker, text);
            }
            PendingCaller::Local(sender) => {
                let answer = outcome.map(str::to_owned).map_err(|error| {
                    repertoire_core::json::from_str(error).unwrap_or_else(|_| {
                        CallError::new("invocation_failed", "the function failed")
                    })
                });
                // The caller may have stopped waiting.
                let _ = sender.send(answer);
            }
        }
    }

    /// Calls the subscribers of a trigger type that the hub provides.
    fn fire_trigger_type(&self, kind: &str, payload: &Value) {
        let functions = self.lock_table().subscribers(kind, None);
        for function in functions {
            self.fire_and_forget(&function, payload);
        }
    }

    fn publish_changes(
        hub: Weak<Self>,
        service: &Arc<SkillService>,
        account: AccountSkills,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let publish = changes::publish_changes(service, account, move |kind, payload| {
            if let Some(hub) = hub.upgrade() {
                hub.fire_trigger_type(kind, payload);
            }
        });
        async move {
            tokio::select! {
                () = publish => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Fails calls that are not answered before their deadline.
    async fn expire_calls(hub: Weak<Self>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let Some(hub) = hub.upgrade() else { return };
            let mut table = hub.lock_table();
            for pending in table.take_overdue(Instant::now()) {
                let error = CallError::timeout(&pending.function_id, hub.options.call_deadline);
                table.fail_call(pending, &error);
            }
        }
    }

    /// Offers the functions of the workers as MCP tools.
    async fn offer_tools(hub: Weak<Self>, changed: Arc<Notify>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = changed.notified() => {}
                () = stop.cancelled() => return,
            }
            // Wait briefly: a worker registers its functions one by one.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let Some(hub) = hub.upgrade() else { return };
            let guard = &hub.options.functions.guard;
            let mut rows = hub.lock_table().list_functions();
            let content = rows.iter().filter(|row| row.is_content());
            let content = content.map(|row| row.function_id.to_string()).collect();
            hub.service.set_content_functions(content);
            rows.retain(|row| is_tool(&hub.options.tools, guard, &row.function_id));
            hub.service
                .offer_tools(rows.iter().map(FunctionRow::to_tool));
        }
    }
}

fn is_void(frame: &Frame<'_>) -> bool {
    frame.action.as_ref().is_some_and(|a| a.kind == "void")
}

fn trace_context<'a>(frame: &'a Frame<'_>) -> TraceContext<'a> {
    TraceContext {
        traceparent: frame.traceparent.as_deref(),
        baggage: frame.baggage.as_deref(),
    }
}

impl Bus for Hub {
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult> {
        if state::is_state_function(function_id) {
            return Box::pin(
                async move { self.call_state(function_id, &payload.to_string()).await },
            );
        }
        Box::pin(async move {
            // Before the table is locked, because the payload may be long.
            let data = with_caller(Some(&payload.to_string()), &self.id).unwrap_or_default();
            self.call_with_data(function_id, &data.into(), deadline)
                .await
        })
    }

    fn store_row<'a>(
        &'a self,
        scope: &'a str,
        key: &'a str,
        row: RegisteredRow,
        _deadline: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(self.store_registered(scope, key, row))
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
        // Before the table is locked, because the payload may be long.
        let data = with_caller(Some(&payload.to_string()), &self.id).unwrap_or_default();
        self.fire_with_data(function_id, &data.into());
    }
}

impl Hub {
    /// Calls a function of a worker with data that is ready to be sent, and waits for the answer.
    async fn call_with_data(
        &self,
        function_id: &str,
        data: &Bytes,
        deadline: Duration,
    ) -> BusResult {
        let (sender, receiver) = oneshot::channel();
        let key = {
            let mut table = self.lock_table();
            let Some(target) = table.owner_of(function_id) else {
                return Err(CallError::function_not_found(function_id));
            };
            let key = table.add_pending(PendingCall {
                caller: PendingCaller::Local(sender),
                target: target.clone(),
                function_id: function_id.into(),
                deadline: Instant::now() + deadline,
            });
            table.send_to(
                &target,
                invocation(Some(&key.to_string()), function_id, data),
            );
            key
        };
        match tokio::time::timeout(deadline, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::new("invocation_stopped", "the hub stopped")),
            Err(_) => {
                self.lock_table().remove_pending(key);
                Err(CallError::timeout(function_id, deadline))
            }
        }
    }

    /// Calls a function of a worker with data that is ready to be sent, without an answer.
    fn fire_with_data(&self, function_id: &str, data: &Bytes) {
        let table = self.lock_table();
        if let Some(target) = table.owner_of(function_id) {
            table.send_to(&target, invocation(None, function_id, data));
        }
    }
}

/// Longer data is shared between the messages that carry it.
const SHARED_DATA_BYTES: usize = 16 * 1024;

/// Builds the message that calls a function; long data is not copied.
fn invocation(id: Option<&str>, function_id: &str, data: &Bytes) -> QueuedMessage {
    let none = TraceContext::default();
    if data.len() <= SHARED_DATA_BYTES
        && let Ok(text) = std::str::from_utf8(data)
    {
        return invoke_text(id, function_id, text, None, none).into();
    }
    let mut head = invoke_text(id, function_id, "", None, none);
    // The closing brace comes after the data.
    head.pop();
    QueuedMessage {
        head,
        shared: Some((data.clone(), "}")),
    }
}
