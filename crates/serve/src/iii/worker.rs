//! Runs the `skills` worker on an external bus, through its SDK.
//!
//! Registered content is stored in the state of the engine. The catalogue follows it through an
//! initial full read, our own writes, and the `state` trigger of the engine. An engine without
//! that trigger is read again before every listing.
//!
//! One of several workers serves. The others stand by: they keep their catalogue current, check
//! every second whether the functions have an owner, and take over functions and trigger types
//! that have none.

mod sdk;
mod state_feed;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use iii_sdk::{
    Error as SdkError, IIIClient, InitOptions, RegisterFunction, RegisterTriggerType,
    protocol::RegisterTriggerInput,
    register_worker,
    runtime::{FunctionRef, IIIConnectionState, WorkerMetadata},
    trigger::{TriggerConfig, TriggerHandler},
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{sdk::SdkBus, state_feed::StateFeed};
use super::{
    bus::{Bus, CallError},
    changes,
    client::Client,
    functions::{self, FunctionOptions, SkillFunctions, TRIGGER_TYPES, is_tool},
    startup_log,
};
use crate::service::{FunctionTool, SkillService};

/// How often a worker checks which worker owns the functions.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the state is read again if the bus does not report changes.
const STATE_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How often the connection is checked.
const CONNECTION_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The address of the bus and the behaviour of the worker on it.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The address of the bus.
    pub url: String,
    /// The token to authenticate with; by default the value of `III_TOKEN`.
    pub token: Option<String>,
    /// The name of the worker; an engine that starts the worker sets it.
    pub name: String,
    /// How the functions behave.
    pub functions: FunctionOptions,
    /// Functions of other workers that become MCP tools: ids, or prefixes with `*`.
    pub tools: Vec<String>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            url: super::DEFAULT_URL.to_owned(),
            token: std::env::var("III_TOKEN").ok().filter(|t| !t.is_empty()),
            name: worker_name(std::env::var("III_WORKER_NAME").ok()),
            functions: FunctionOptions::default(),
            tools: Vec::new(),
        }
    }
}

/// Returns the name that an engine set, or the default.
fn worker_name(given: Option<String>) -> String {
    let given = given.filter(|name| !name.is_empty());
    given.unwrap_or_else(|| "skills".to_owned())
}

/// Returns the address of the bus: the requested one, else the one in the environment, else the
/// default.
pub fn bus_url(requested: Option<String>) -> String {
    let from_env = ["III_URL", "III_ENGINE_URL"].map(|name| std::env::var(name).ok());
    let mut urls = std::iter::once(requested).chain(from_env).flatten();
    let url = urls.find(|url| !url.trim().is_empty());
    url.unwrap_or_else(|| super::DEFAULT_URL.to_owned())
}

/// The subscribers of the two trigger types, by the id of their trigger.
#[derive(Debug, Default)]
struct TriggerSubscribers(Mutex<HashMap<String, (&'static str, String)>>);

impl TriggerSubscribers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (&'static str, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribed_functions(&self, kind: &str) -> Vec<String> {
        let all = self.lock();
        let fitting = all.values().filter(|(followed, _)| *followed == kind);
        fitting.map(|(_, function)| function.clone()).collect()
    }
}

/// Receives the subscriptions to a trigger type from the bus.
struct TriggerTypeHandler {
    kind: &'static str,
    subscribers: Arc<TriggerSubscribers>,
}

#[async_trait::async_trait]
impl TriggerHandler for TriggerTypeHandler {
    async fn register_trigger(&self, config: TriggerConfig) -> Result<(), SdkError> {
        let follower = (self.kind, config.function_id);
        self.subscribers.lock().insert(config.id, follower);
        Ok(())
    }

    async fn unregister_trigger(&self, config: TriggerConfig) -> Result<(), SdkError> {
        self.subscribers.lock().remove(&config.id);
        Ok(())
    }
}

/// The worker.
#[derive(Debug)]
pub struct SkillsWorker {
    service: Arc<SkillService>,
    options: WorkerOptions,
    bus: Arc<SdkBus>,
    functions: Arc<SkillFunctions>,
    state_feed: Arc<StateFeed>,
    subscribers: Arc<TriggerSubscribers>,
    /// Distinguishes the functions of this process from those of another worker.
    instance: String,
    /// Whether all subscribers are known. Calls wait until then.
    ready: watch::Sender<bool>,
    stop: CancellationToken,
}

/// The role of this process on the bus.
enum WorkerRole {
    /// Not known yet.
    Unknown,
    /// This process has offered the functions.
    Serving(OfferedFunctions),
    /// Another worker serves.
    Standby,
}

/// The functions and trigger types that this process has offered.
#[derive(Default)]
struct OfferedFunctions {
    functions: HashMap<&'static str, FunctionRef>,
    /// Whether the trigger types were offered.
    types_offered: bool,
    /// Whether the bus has listed this process as the owner of the functions.
    confirmed: bool,
}

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkState {
    New,
    Up,
    Down,
}

impl SkillsWorker {
    /// Creates a worker over a service whose registered content is stored by a bus.
    pub fn new(engine: Arc<SkillService>, options: WorkerOptions) -> Arc<Self> {
        let bus = Arc::new(SdkBus::new(Handle::current()));
        let feeder = Arc::new(StateFeed::new(engine.clone(), &options));
        bus.attach_feed(feeder.clone());
        let functions = SkillFunctions::new(engine.clone(), bus.clone(), options.functions.clone());
        engine.join(bus.clone(), options.functions.clone());
        let stop = engine.stop.child_token();
        Arc::new(Self {
            service: engine,
            bus,
            functions: Arc::new(functions),
            state_feed: feeder,
            subscribers: Arc::default(),
            instance: Uuid::new_v4().to_string(),
            ready: watch::Sender::new(false),
            options,
            stop,
        })
    }

    /// Serves until the service shuts down.
    pub async fn run(self: Arc<Self>) {
        let (followers, bus) = (self.subscribers.clone(), self.bus.clone());
        let change_task = tokio::spawn(changes::publish_changes(
            self.service.clone(),
            move |kind, payload| {
                for function in followers.subscribed_functions(kind) {
                    bus.fire_and_forget(&function, payload);
                }
            },
        ));
        let (feeder, bus) = (self.state_feed.clone(), self.bus.clone());
        let feed_task = tokio::spawn(async move { feeder.apply_changes(bus).await });
        while !self.stop.is_cancelled() {
            let client = self.connect_client();
            self.bus.replace_client(client.clone());
            let ended = self.run_connection(&client).await;
            // Joining the SDK's thread may take a while; nothing below depends on it.
            client.shutdown_async().await;
            if let Err(error) = ended {
                tracing::warn!(%error, "the bus rejected this worker: trying again");
                tokio::select! {
                    () = tokio::time::sleep(OWNER_CHECK_INTERVAL) => {}
                    () = self.stop.cancelled() => {}
                }
            }
        }
        change_task.abort();
        feed_task.abort();
    }

    fn connect_client(&self) -> IIIClient {
        let otel = iii_helpers::observability::OtelConfig {
            enabled: Some(false),
            ..Default::default()
        };
        let headers =
            self.options.token.as_ref().map(|token| {
                HashMap::from([("Authorization".to_owned(), format!("Bearer {token}"))])
            });
        let metadata = WorkerMetadata {
            name: self.options.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..WorkerMetadata::default()
        };
        let options = InitOptions {
            metadata: Some(metadata),
            headers,
            otel: Some(otel),
            ..InitOptions::default()
        };
        register_worker(&self.options.url, options)
    }

    /// Runs one connection: follows the state, and serves while no other worker does.
    async fn run_connection(self: &Arc<Self>, client: &IIIClient) -> Result<(), SdkError> {
        self.subscribe_to_state(client);
        let mut files_logged = false;
        let mut role = WorkerRole::Unknown;
        let mut link = LinkState::New;
        let mut next_look = Instant::now();
        let mut last_read = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(CONNECTION_POLL_INTERVAL) => {}
                () = self.stop.cancelled() => {
                    if let WorkerRole::Serving(serving) = role {
                        self.withdraw_functions(client, serving).await;
                    }
                    return Ok(());
                }
            }
            if let Some(error) = client.fatal_error() {
                return Err(error);
            }
            if client.get_connection_state() != IIIConnectionState::Connected {
                if link != LinkState::Down {
                    self.log_connection_error().await;
                    // The bus sends all subscriptions again after a reconnect.
                    self.subscribers.lock().clear();
                    self.ready.send_replace(false);
                    link = LinkState::Down;
                }
                continue;
            }
            if link != LinkState::Up {
                // Changes made while disconnected were missed: read the state again.
                if let Err(error) = self.state_feed.reload_state(&*self.bus).await {
                    tracing::warn!(%error, "the state could not be read: trying again");
                    continue;
                }
                if let Some(registry) = self.service.opened_registry().filter(|_| !files_logged) {
                    startup_log::log_loaded_files(registry);
                    files_logged = true;
                }
                link = LinkState::Up;
                last_read = Instant::now();
                tracing::info!(url = self.options.url, "connected to the bus");
            }
            // Calls read the state themselves; MCP requests do not.
            if self.state_feed.needs_polling() && last_read.elapsed() >= STATE_POLL_INTERVAL {
                last_read = Instant::now();
                if let Err(error) = self.state_feed.reload_state(&*self.bus).await {
                    tracing::warn!(%error, "the state could not be read");
                }
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + OWNER_CHECK_INTERVAL;
                match self.fetch_owners().await {
                    Ok(owners) => role = self.update_role(client, role, owners).await,
                    Err(error) => tracing::debug!(%error, "the functions cannot be listed"),
                }
            }
        }
    }

    /// Logs why there is no connection, because the SDK does not report the reason.
    async fn log_connection_error(&self) {
        let tried = Client::connect(&self.options.url, self.options.token.as_deref());
        let tried = tokio::time::timeout(Duration::from_secs(2), tried).await;
        if let Ok(Err(error)) = tried {
            tracing::warn!("waiting for the bus: {error}");
        } else {
            tracing::warn!(url = self.options.url, "waiting for the bus");
        }
    }

    /// Updates the role according to the owners of the functions.
    ///
    /// The owner of `skills::register` serves. It takes functions and trigger types that it lost,
    /// or that another worker owned before, as soon as they are free.
    async fn update_role(
        self: &Arc<Self>,
        client: &IIIClient,
        role: WorkerRole,
        owners: FunctionOwners,
    ) -> WorkerRole {
        match (owners.leader, role) {
            (LeaderStatus::Absent, WorkerRole::Unknown | WorkerRole::Standby) => {
                let serving = WorkerRole::Serving(self.offer_functions(client));
                // Ownership is known immediately; calls wait for the remaining steps.
                match self.fetch_owners().await {
                    Ok(owners) if owners.leader != LeaderStatus::Absent => {
                        Box::pin(self.update_role(client, serving, owners)).await
                    }
                    _ => serving,
                }
            }
            (LeaderStatus::Absent | LeaderStatus::ThisWorker, WorkerRole::Serving(mut serving)) => {
                for id in owners.free {
                    self.offer_function(client, &mut serving, id);
                }
                if owners.leader == LeaderStatus::ThisWorker {
                    if !serving.confirmed {
                        tracing::info!("serving: skills and prompts are on the bus");
                        serving.confirmed = true;
                    }
                    // Only now: offering a type takes it away from its current provider.
                    if !serving.types_offered || owners.types_lost {
                        self.offer_trigger_types(client);
                        serving.types_offered = true;
                    }
                    if !*self.ready.borrow() {
                        // The bus sends the subscriptions before it answers these two calls.
                        self.round_trip().await;
                        self.round_trip().await;
                        self.ready.send_replace(true);
                    }
                }
                WorkerRole::Serving(serving)
            }
            (LeaderStatus::ThisWorker, role) => role,
            (LeaderStatus::OtherWorker, WorkerRole::Serving(serving)) => {
                tracing::warn!("another worker has the functions: standing by");
                self.withdraw_functions(client, serving).await;
                WorkerRole::Standby
            }
            (LeaderStatus::OtherWorker, WorkerRole::Unknown) => {
                tracing::info!("another worker serves: standing by");
                WorkerRole::Standby
            }
            (LeaderStatus::OtherWorker, WorkerRole::Standby) => WorkerRole::Standby,
        }
    }

    /// Returns the owners of the functions and the trigger types.
    async fn fetch_owners(&self) -> Result<FunctionOwners, CallError> {
        let deadline = Duration::from_secs(5);
        let listed = self
            .bus
            .call_function("engine::functions::list", json!({}), deadline);
        let listed: Value = repertoire_core::json::from_str(&listed.await?).unwrap_or_default();
        let none = Vec::new();
        let rows = listed["functions"].as_array().unwrap_or(&none);
        if !self.options.tools.is_empty() {
            self.offer_tools(rows);
        }
        let find = |id: &str| rows.iter().find(|row| row["function_id"] == id);
        let leader = match find(LEADER_FUNCTION) {
            None => LeaderStatus::Absent,
            Some(row) if row["metadata"]["instance"] == self.instance.as_str() => {
                LeaderStatus::ThisWorker
            }
            Some(_) => LeaderStatus::OtherWorker,
        };
        let free = functions::all().iter().map(|f| f.id);
        let free = free.filter(|id| find(id).is_none()).collect();
        // Not every bus lists trigger types; without a list none counts as lost.
        let types = self
            .bus
            .call_function("engine::trigger-types::list", json!({}), deadline);
        let types: Option<Value> = types
            .await
            .ok()
            .and_then(|t| repertoire_core::json::from_str(&t).ok());
        let types = types
            .as_ref()
            .and_then(|types| types["trigger_types"].as_array());
        let types_lost = types.is_some_and(|types| {
            let there = |id: &str| types.iter().any(|kind| kind["id"] == id);
            TRIGGER_TYPES.iter().any(|kind| !there(kind.id))
        });
        Ok(FunctionOwners {
            leader,
            free,
            types_lost,
        })
    }

    /// Offers the functions of other workers as MCP tools.
    fn offer_tools(&self, rows: &[Value]) {
        let guard = &self.options.functions.guard;
        let schema = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let tools = rows.iter().filter_map(|row| {
            let id = row["function_id"].as_str()?;
            is_tool(&self.options.tools, guard, id).then(|| FunctionTool {
                function_id: id.to_owned(),
                description: row["description"].as_str().map(str::to_owned),
                request: schema(&row["request_format"]),
                response: schema(&row["response_format"]),
            })
        });
        self.service.offer_tools(tools);
    }

    /// Offers the functions.
    fn offer_functions(self: &Arc<Self>, client: &IIIClient) -> OfferedFunctions {
        let mut serving = OfferedFunctions::default();
        for described in functions::all() {
            self.offer_function(client, &mut serving, described.id);
        }
        serving
    }

    /// Offers one function; replaces an earlier offer of the same function.
    fn offer_function(
        self: &Arc<Self>,
        client: &IIIClient,
        serving: &mut OfferedFunctions,
        id: &'static str,
    ) {
        let Some(described) = functions::all().iter().find(|f| f.id == id) else {
            return;
        };
        if let Some(before) = serving.functions.remove(id) {
            before.unregister();
        }
        let (worker, runtime) = (self.clone(), Handle::current());
        let function = RegisterFunction::new_async(move |payload: Value| {
            // The SDK runs everything on one thread, so the work runs on our runtime.
            let (worker, runtime) = (worker.clone(), runtime.clone());
            async move {
                let work = runtime.spawn(async move { worker.answer_call(id, payload).await });
                let failed = |error: CallError| SdkError::Remote {
                    code: error.code,
                    message: error.message,
                    stacktrace: None,
                };
                match work.await {
                    Ok(answer) => answer.map_err(failed),
                    Err(_) => Err(failed(CallError::new("internal", "the function failed"))),
                }
            }
        });
        let function = function
            .description(described.about)
            .metadata(json!({"instance": self.instance}))
            .request_format(described.request.clone())
            .response_format(described.response.clone())
            .local_dispatch(false);
        let function = client.register_function(id, function);
        serving.functions.insert(id, function);
    }

    /// Offers the trigger types.
    fn offer_trigger_types(&self, client: &IIIClient) {
        for kind in TRIGGER_TYPES {
            let provider = TriggerTypeHandler {
                kind: kind.id,
                subscribers: self.subscribers.clone(),
            };
            #[allow(
                deprecated,
                reason = "trigger types are what the seed's workers follow"
            )]
            client.register_trigger_type(RegisterTriggerType::new(kind.id, kind.about, provider));
        }
    }

    /// Withdraws the functions and trigger types of this process.
    async fn withdraw_functions(&self, client: &IIIClient, serving: OfferedFunctions) {
        for function in serving.functions.into_values() {
            function.unregister();
        }
        if serving.types_offered {
            for kind in TRIGGER_TYPES {
                #[allow(
                    deprecated,
                    reason = "trigger types are what the seed's workers follow"
                )]
                client.unregister_trigger_type(kind.id);
            }
        }
        self.subscribers.lock().clear();
        self.ready.send_replace(false);
        // The SDK drops queued messages at shutdown; a round trip makes sure they were sent.
        self.round_trip().await;
    }

    /// Waits for one answer, which shows that the bus has handled all earlier messages.
    async fn round_trip(&self) {
        let deadline = Duration::from_secs(2);
        let _ = self
            .bus
            .call_function("engine::workers::list", json!({}), deadline)
            .await;
    }

    /// Answers one of the functions.
    async fn answer_call(&self, id: &str, payload: Value) -> Result<Value, CallError> {
        let mut ready = self.ready.subscribe();
        let waited = ready.wait_for(|ready| *ready);
        let _ = tokio::time::timeout(self.options.functions.deadline, waited).await;
        if self.state_feed.needs_polling() && !id.ends_with("register") {
            self.state_feed.reload_state(&*self.bus).await?;
        }
        self.state_feed.wait_applied().await;
        let answer = self.functions.call_function(id, payload).await?;
        repertoire_core::json::from_str(&answer)
            .map_err(|error| CallError::new("internal", error.to_string()))
    }

    /// Subscribes to changes of the state.
    fn subscribe_to_state(self: &Arc<Self>, client: &IIIClient) {
        // Content, prompts and tools cannot call functions in this namespace.
        let function_id = format!("skills::on_state::{}", self.instance);
        let feeder = self.state_feed.clone();
        let heard = RegisterFunction::new(move |event: Value| {
            feeder.receive_change(&event);
            Ok::<_, SdkError>(Value::Null)
        });
        let heard = heard.description("Receives changes of the state.");
        client.register_function(function_id.clone(), heard);
        for scope in self.state_feed.watched_scopes() {
            let trigger = RegisterTriggerInput::new("state", &function_id, json!({"scope": scope}));
            #[allow(deprecated, reason = "this is how the state is followed")]
            if let Err(error) = client.register_trigger(trigger) {
                tracing::warn!(%error, scope, "the state cannot be followed");
            }
        }
    }
}

/// The worker that owns this function serves.
const LEADER_FUNCTION: &str = "skills::register";

/// The owners of the functions and trigger types.
#[derive(Debug)]
struct FunctionOwners {
    leader: LeaderStatus,
    /// Functions without an owner.
    free: Vec<&'static str>,
    /// Whether a trigger type has no provider.
    types_lost: bool,
}

/// Which worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaderStatus {
    Absent,
    ThisWorker,
    OtherWorker,
}
