//! A bus in this process: what an iii engine is to its workers, on embedded state.
//!
//! Workers connect over WebSocket and speak the engine's protocol. The hub knows who has which
//! function and who follows which trigger type (`table`), passes calls on, and answers
//! `engine::*`, `state::*` and the functions of the registry itself.
//!
//! Invariant: nothing here waits for a worker. What is sent to one is queued; a worker that does
//! not read what is queued for it is dropped.

mod builtin;
mod connection;
mod listen;
mod outbox;
mod state;
mod table;

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use repertoire_registry::registered::Row;
use serde_json::{Value, value::RawValue};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use listen::HubListener;

use self::table::{Caller, FunctionRow, Pending, Table, WorkerId};
use super::{
    bus::{Answer, Bus, CallError},
    changes,
    functions::{self, FunctionOptions, Functions, is_tool},
    protocol::{Frame, Trace, invoke_text, result_text, with_caller},
};
use crate::engine::Engine;

/// Whether the hub answers the functions of the registry itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skills {
    /// It does.
    Here,
    /// It leaves them to a worker.
    Elsewhere,
}

/// Whether the hub tells of changes of its state.
///
/// Not every engine does; a hub that does not is how workers are tried out on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateTrigger {
    /// There is a trigger type `state`.
    Provided,
    /// There is none.
    Missing,
}

/// What the hub allows, and how much of it.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The most bytes of a message, in either direction.
    pub max_message: usize,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most functions and triggers of one connection.
    pub max_registrations: usize,
    /// The most calls of one connection that are not answered yet.
    pub max_calls: usize,
    /// After how long a call that a worker does not answer is given up.
    pub call_deadline: Duration,
    /// How long a worker may not take what is sent to it.
    pub write_patience: Duration,
    /// How long nothing may be heard of a worker that is asked whether it is still there.
    pub idle: Duration,
    /// Functions that are tools over MCP: ids, or prefixes with `*` at the end.
    pub tools: Vec<String>,
    /// How the functions of the registry behave.
    pub functions: FunctionOptions,
    /// Whether they are here.
    pub skills: Skills,
    /// Whether changes of the state are told.
    pub state: StateTrigger,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024 * 1024,
            max_connections: 4096,
            max_registrations: 10_000,
            max_calls: 4096,
            call_deadline: Duration::from_mins(10),
            write_patience: Duration::from_secs(20),
            idle: Duration::from_secs(75),
            tools: Vec::new(),
            functions: FunctionOptions::default(),
            skills: Skills::Here,
            state: StateTrigger::Provided,
        }
    }
}

/// The hub. Cheap to share.
#[derive(Debug)]
pub struct Hub {
    engine: Arc<Engine>,
    options: HubOptions,
    /// The id under which the hub itself calls.
    id: WorkerId,
    table: Mutex<Table>,
    functions: OnceLock<Functions>,
    /// The hub itself, for what goes on in the background.
    own: Weak<Self>,
    runtime: Handle,
    /// Rung when functions come or go.
    changed: Notify,
    written: state::Written,
    stop: CancellationToken,
}

impl Hub {
    /// A hub over an engine's catalogue and state.
    ///
    /// The engine is put on it, so that content made by functions can be had over MCP.
    pub fn start(engine: &Arc<Engine>, options: HubOptions) -> Arc<Self> {
        let hub = Arc::new_cyclic(|own| Self {
            own: own.clone(),
            runtime: Handle::current(),
            engine: engine.clone(),
            id: Uuid::new_v4().to_string().into(),
            table: Mutex::new(Table::new(options.max_registrations)),
            functions: OnceLock::new(),
            changed: Notify::new(),
            written: state::Written::default(),
            stop: CancellationToken::new(),
            options,
        });
        let on = hub.options.functions.clone();
        if hub.options.skills == Skills::Here {
            let functions = Functions::new(engine.clone(), hub.clone(), on.clone());
            let _ = hub.functions.set(functions);
        }
        engine.join(hub.clone(), on);
        hub.lock().provide(builtin::trigger_types(&hub.options));
        tokio::spawn(hub.clone().tell_changes());
        tokio::spawn(hub.clone().look_after());
        tokio::spawn(hub.clone().offer_tools());
        hub
    }

    /// How the hub behaves.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// How many workers are connected.
    pub fn workers(&self) -> usize {
        self.lock().worker_count()
    }

    /// Lets every worker go, and nobody in any more; waits until they are gone.
    pub async fn end(&self) {
        self.stop.cancel();
        while self.workers() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Stops without waiting.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    fn myself(&self) -> Option<Arc<Self>> {
        self.own.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Every change of the table is complete before the lock is given back.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a function is answered here.
    fn is_native(&self, id: &str) -> bool {
        builtin::is_builtin(id) || (self.functions.get().is_some() && functions::is_ours(id))
    }

    /// Answers a function that is answered here.
    fn native(
        self: &Arc<Self>,
        caller: WorkerId,
        id: &str,
        data: Option<&RawValue>,
    ) -> BoxFuture<'static, Answer> {
        let (hub, id) = (self.clone(), id.to_owned());
        let data = data.map_or("{}", RawValue::get).to_owned();
        Box::pin(async move {
            if builtin::is_builtin(&id) {
                return hub.builtin(&caller, &id, &data).await;
            }
            let payload = repertoire_core::json::from_str(&data)
                .map_err(|error| CallError::new("invalid_request", format!("{id}: {error}")))?;
            match hub.functions.get() {
                Some(functions) => functions.call(&id, payload).await,
                None => Err(CallError::no_function(&id)),
            }
        })
    }

    /// Passes a call on to the worker that has the function.
    fn route(&self, from: &WorkerId, frame: &Frame<'_>, id: &str) -> Result<(), CallError> {
        let data = with_caller(frame.data.map(RawValue::get), from);
        let Some(data) = data else {
            let message = format!("{id}: the data holds a key that is no text");
            return Err(CallError::new("invalid_request", message));
        };
        let metadata = frame.metadata.map(RawValue::get);
        let trace = trace_of(frame);
        let mut table = self.lock();
        let Some(target) = table.owner(id) else {
            return Err(CallError::no_function(id));
        };
        if table.is_high(&target) {
            let message = format!("{id}: its worker does not keep up");
            return Err(CallError::new("busy", message));
        }
        let waits = frame.invocation_id.as_deref().filter(|_| !is_void(frame));
        let Some(invocation) = waits else {
            table.send(&target, invoke_text(None, id, &data, metadata, trace));
            return Ok(());
        };
        if table.calls_of(from) >= self.options.max_calls {
            let message = format!("more than {} calls at a time", self.options.max_calls);
            return Err(CallError::new("too_many_calls", message));
        }
        let key = table.expect(Pending {
            caller: Caller::Worker(from.clone(), invocation.to_owned()),
            target: target.clone(),
            function_id: id.into(),
            deadline: Instant::now() + self.options.call_deadline,
        });
        let text = invoke_text(Some(&key.to_string()), id, &data, metadata, trace);
        table.send(&target, text);
        Ok(())
    }

    /// Takes the answer of a worker to whoever waits for it.
    fn answered(&self, from: &WorkerId, frame: &Frame<'_>) {
        let key = frame.invocation_id.as_deref();
        let Some(key) = key.and_then(|key| Uuid::parse_str(key).ok()) else {
            return;
        };
        let mut table = self.lock();
        // Nobody answers for somebody else.
        let Some(pending) = table.take(key, from) else {
            return;
        };
        let outcome = match frame.error {
            None => Ok(frame.result.map_or("null", RawValue::get)),
            Some(error) => Err(error.get()),
        };
        match pending.caller {
            Caller::Worker(worker, invocation) => {
                let function = &pending.function_id;
                let text = result_text(&invocation, function, outcome, trace_of(frame));
                table.send(&worker, text);
            }
            Caller::Local(tell) => {
                let answer = outcome.map(str::to_owned).map_err(|error| {
                    repertoire_core::json::from_str(error).unwrap_or_else(|_| {
                        CallError::new("invocation_failed", "the function failed")
                    })
                });
                // Whoever asked may have stopped waiting.
                let _ = tell.send(answer);
            }
        }
    }

    /// Fires a trigger type of the hub's own.
    fn fire_type(&self, kind: &str, payload: &Value) {
        let functions = self.lock().subscribers(kind, None);
        for function in functions {
            self.fire(&function, payload);
        }
    }

    async fn tell_changes(self: Arc<Self>) {
        if self.options.skills == Skills::Elsewhere {
            return;
        }
        let hub = self.clone();
        changes::follow(self.engine.clone(), move |kind, payload| {
            hub.fire_type(kind, payload);
        })
        .await;
    }

    /// Gives up calls that nobody answers.
    async fn look_after(self: Arc<Self>) {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => return,
            }
            let mut table = self.lock();
            for pending in table.overdue(Instant::now()) {
                let error = CallError::timeout(&pending.function_id, self.options.call_deadline);
                table.fail(pending, &error);
            }
        }
    }

    /// Keeps the tools over MCP what the functions of the workers are.
    async fn offer_tools(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.stop.cancelled() => return,
            }
            // A worker registers its functions one by one.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let guard = &self.options.functions.guard;
            let mut rows = self.lock().functions();
            rows.retain(|row| is_tool(&self.options.tools, guard, &row.function_id));
            self.engine.offer_tools(rows.iter().map(FunctionRow::tool));
        }
    }
}

fn is_void(frame: &Frame<'_>) -> bool {
    frame.action.as_ref().is_some_and(|a| a.kind == "void")
}

fn trace_of<'a>(frame: &'a Frame<'_>) -> Trace<'a> {
    Trace {
        traceparent: frame.traceparent.as_deref(),
        baggage: frame.baggage.as_deref(),
    }
}

impl Bus for Hub {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, Answer> {
        if state::is_state(function_id) {
            return Box::pin(async move { self.state(function_id, &payload.to_string()).await });
        }
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            // Before the table is taken: it may be long.
            let data = with_caller(Some(&payload.to_string()), &self.id).unwrap_or_default();
            let key = {
                let mut table = self.lock();
                let Some(target) = table.owner(function_id) else {
                    return Err(CallError::no_function(function_id));
                };
                let key = table.expect(Pending {
                    caller: Caller::Local(tell),
                    target: target.clone(),
                    function_id: function_id.into(),
                    deadline: Instant::now() + deadline,
                });
                let invocation = key.to_string();
                let none = Trace::default();
                let text = invoke_text(Some(&invocation), function_id, &data, None, none);
                table.send(&target, text);
                key
            };
            match tokio::time::timeout(deadline, told).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(CallError::new("invocation_stopped", "the hub stopped")),
                Err(_) => {
                    self.lock().forget(key);
                    Err(CallError::timeout(function_id, deadline))
                }
            }
        })
    }

    fn keep<'a>(
        &'a self,
        scope: &'a str,
        key: &'a str,
        row: Row,
        _deadline: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(self.keep_row(scope, key, row))
    }

    fn fire(&self, function_id: &str, payload: &Value) {
        // Before the table is taken: it may be long.
        let data = with_caller(Some(&payload.to_string()), &self.id).unwrap_or_default();
        let text = invoke_text(None, function_id, &data, None, Trace::default());
        let table = self.lock();
        if let Some(target) = table.owner(function_id) {
            table.send(&target, text);
        }
    }
}
