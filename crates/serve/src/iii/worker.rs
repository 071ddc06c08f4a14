//! Runs the `skills` worker on an external bus.
//!
//! Registered content is stored in the state of the engine. The catalogue follows it through an
//! initial full read, our own writes, and the `state` trigger of the engine. An engine without
//! that trigger is read again before every listing.
//!
//! One of several workers serves. The others stand by: they keep their catalogue current, check
//! every second whether the functions have an owner, and take over functions and trigger types
//! that have none.

mod connection;
mod event_lanes;
mod leadership;
mod state_feed;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    connection::WorkerBus,
    leadership::{LEADER_PROBE_FUNCTION, LeaderProbe, LeaderStatus, WorkerRole},
    state_feed::StateFeed,
};
use super::{
    bus::{Bus, BusResult, CallError},
    bus_client::{BusClient, IncomingCall, PeerHandler, SubscribedFunction, WorkerIdentity},
    changes,
    functions::{self, FunctionOptions, SkillFunctions, TRIGGER_TYPES},
    startup_log,
};
use crate::{local_token, peer_owner::PeerOwner, service::SkillService};

/// How often a worker checks which worker owns the functions.
const OWNER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the state is read again if the bus does not report changes.
const STATE_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long to wait before the next attempt to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(250);
/// The most calls that are answered at the same time.
const MAX_CALLS: usize = 1024;

/// The address of the bus and the behaviour of the worker on it.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The address of the bus.
    pub url: String,
    /// The token to authenticate with; by default the value of `III_TOKEN`.
    pub token: Option<String>,
    /// The name of the worker; an engine that starts the worker sets it.
    pub name: String,
    /// The namespace of the bus that the functions are offered in, if it is not the default one; an
    /// engine that starts the worker sets it.
    pub namespace: Option<String>,
    /// The account's folder, in which the workers of this user find each other.
    pub account: Option<PathBuf>,
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
            namespace: std::env::var("III_NAMESPACE")
                .ok()
                .filter(|namespace| !namespace.trim().is_empty()),
            account: None,
            functions: FunctionOptions::default(),
            tools: Vec::new(),
        }
    }
}

impl WorkerOptions {
    /// Returns the account's folder of this user, of which a worker uses the user's own token and the
    /// identities of workers.
    pub fn default_account() -> Option<PathBuf> {
        let named = std::env::var_os("REPERTOIRE_HOME").filter(|home| !home.is_empty());
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let default = home.map(|home| home.join(repertoire_registry::trust::WORKSPACE_FOLDER));
        named.map(PathBuf::from).or(default)
    }

    /// Returns the token to connect with: the given one, else the user's own for a server of the user on
    /// this machine.
    fn connection_token(&self) -> Option<String> {
        self.token.clone().or_else(|| {
            let account = self.account.as_deref()?;
            local_token::read_for(account, &self.url).ok().flatten()
        })
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
struct TriggerSubscribers(Mutex<SubscribersById>);

type SubscribersById = HashMap<String, (&'static str, SubscribedFunction)>;

impl TriggerSubscribers {
    fn lock(&self) -> std::sync::MutexGuard<'_, SubscribersById> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribed_functions(&self, kind: &str) -> Vec<SubscribedFunction> {
        let all = self.lock();
        let fitting = all.values().filter(|(followed, _)| *followed == kind);
        fitting.map(|(_, function)| function.clone()).collect()
    }
}

/// The worker.
#[derive(Debug)]
pub struct SkillsWorker {
    service: Arc<SkillService>,
    options: WorkerOptions,
    bus: Arc<WorkerBus>,
    functions: Arc<SkillFunctions>,
    state_feed: Arc<StateFeed>,
    subscribers: Arc<TriggerSubscribers>,
    /// Distinguishes the functions of this process from those of another worker.
    instance: String,
    /// Whether all subscribers are known. Calls wait until then.
    ready: watch::Sender<bool>,
    calls: Arc<Semaphore>,
    files_logged: AtomicBool,
    /// Whether another worker has the name, so that this one adds something to it.
    is_name_taken: AtomicBool,
    stop: CancellationToken,
}

impl SkillsWorker {
    /// Creates a worker over a service whose registered content is stored by a bus.
    pub fn new(service: Arc<SkillService>, options: WorkerOptions) -> Arc<Self> {
        let feed = Arc::new(StateFeed::new(service.clone(), &options));
        let bus = Arc::new(WorkerBus::new(feed.clone()));
        let shared: Arc<dyn Bus> = bus.clone();
        let weak = Arc::downgrade(&shared);
        let functions = SkillFunctions::new(service.clone(), weak, options.functions.clone());
        service.join_bus(&shared, options.functions.clone());
        let stop = service.stop.child_token();
        Arc::new(Self {
            service,
            bus,
            functions: Arc::new(functions),
            state_feed: feed,
            subscribers: Arc::default(),
            instance: Uuid::new_v4().to_string(),
            ready: watch::Sender::new(false),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            files_logged: AtomicBool::new(false),
            is_name_taken: AtomicBool::new(false),
            options,
            stop,
        })
    }

    /// Serves until the service shuts down.
    pub async fn run(self: Arc<Self>) {
        // Weak: the service, which the bus belongs to, keeps this callback.
        let (followers, bus) = (self.subscribers.clone(), Arc::downgrade(&self.bus));
        let change_task = tokio::spawn(changes::publish_changes(
            &self.service,
            self.options.functions.account,
            move |kind, payload| {
                let Some(bus) = bus.upgrade() else {
                    return;
                };
                for function in followers.subscribed_functions(kind) {
                    bus.notify_subscriber(&function, payload);
                }
            },
        ));
        let (feeder, bus) = (self.state_feed.clone(), self.bus.clone());
        let feed_task = tokio::spawn(async move { feeder.apply_changes(bus).await });
        let mut outage_logged = false;
        let mut previous: Option<WorkerIdentity> = None;
        while !self.stop.is_cancelled() {
            let handler = Arc::new(ConnectionHandler {
                worker: Arc::downgrade(&self),
                // New for each connection: a bus may still know the function of the last one.
                state_function: format!("skills::on_state::{}", Uuid::new_v4()),
                rejected: watch::Sender::new(false),
            });
            let url = &self.options.url;
            let token = self.options.connection_token();
            let connecting = BusClient::connect_worker(url, token.as_deref(), handler.clone());
            let connected = tokio::select! {
                connected = connecting => connected,
                () = self.stop.cancelled() => break,
            };
            match connected {
                Ok(client) => {
                    let client = Arc::new(client);
                    if PeerOwner::is_other_user(url) {
                        tracing::warn!(
                            url,
                            "the bus is a program of another user of this machine, whose skills and \
                             prompts will count as yours"
                        );
                    }
                    self.bus.set_namespace(self.namespace_on(&client));
                    // The bus drops the previous connection first, with its registrations.
                    if let Some(previous) = previous.replace(client.identity().clone()) {
                        let _ = client.send_text(previous.reattach_message());
                    }
                    self.bus.replace_client(Some(client.clone()));
                    self.run_connection(&client, &handler, &mut outage_logged)
                        .await;
                    self.bus.replace_client(None);
                    // Calls in flight may still hold it.
                    client.close();
                    // The bus sends all subscriptions again on the next connection.
                    self.subscribers.lock().clear();
                    self.ready.send_replace(false);
                }
                Err(error) if !outage_logged => {
                    tracing::warn!("waiting for the bus: {error}");
                    outage_logged = true;
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(RECONNECT_INTERVAL) => {}
                () = self.stop.cancelled() => {}
            }
        }
        change_task.abort();
        feed_task.abort();
    }

    /// The namespace on a bus. Our hub has only one.
    fn namespace_on(&self, client: &BusClient) -> Option<String> {
        let namespace = self.options.namespace.clone()?;
        if client.is_hub() {
            tracing::warn!(
                namespace,
                "this bus has no namespaces: III_NAMESPACE is ignored"
            );
            return None;
        }
        Some(namespace)
    }

    /// Introduces this worker to the bus.
    fn register_worker(&self, client: &BusClient) {
        let namespace = self.bus.namespace();
        let mut name = self.options.name.clone();
        if self.is_name_taken.load(Ordering::Relaxed) {
            name = format!("{name}-{}", &self.instance[..8]);
        }
        let mut worker = json!({
            "name": name, "version": env!("CARGO_PKG_VERSION"), "runtime": "rust",
            "os": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            "pid": std::process::id(), "description": "Skills and prompts of Repertoire.",
            "features": ["large-messages.v1"],
        });
        if let Some(namespace) = namespace {
            worker["namespace"] = json!(namespace);
        }
        client.fire_and_forget("engine::workers::register", &worker);
    }

    /// Runs one connection until it ends: follows the state, and serves while no other worker
    /// does.
    async fn run_connection(
        self: &Arc<Self>,
        client: &Arc<BusClient>,
        handler: &ConnectionHandler,
        outage_logged: &mut bool,
    ) {
        let mut rejected = handler.rejected.subscribe();
        self.register_worker(client);
        self.subscribe_to_state(client, &handler.state_function);
        let mut role = WorkerRole::Unknown;
        let mut is_loaded = false;
        let mut probe = LeaderProbe::default();
        let mut last_read = Instant::now();
        let mut ticks = tokio::time::interval(OWNER_CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // The next connection has another name.
                () = client.closed(), if *rejected.borrow() => return,
                () = client.closed() => {
                    if !*outage_logged {
                        tracing::warn!(url = self.options.url, "waiting for the bus");
                    }
                    *outage_logged = true;
                    return;
                }
                // The next connection has another name.
                () = async { drop(rejected.wait_for(|rejected| *rejected).await) } => return,
                () = self.stop.cancelled() => {
                    if let WorkerRole::Serving(serving) = role {
                        self.withdraw_functions(client, serving).await;
                    }
                    return;
                }
            }
            if !is_loaded {
                // Changes made while disconnected were missed: read the state again.
                let loaded = tokio::select! {
                    loaded = self.state_feed.reload_state(&*self.bus) => loaded,
                    // The next turn of the loop ends the connection.
                    () = self.stop.cancelled() => continue,
                };
                if let Err(error) = loaded {
                    // A rejected connection is replaced without a word.
                    if !client.is_closed() {
                        tracing::warn!(%error, "the state could not be read: trying again");
                    }
                    continue;
                }
                if let Some(registry) = self.service.opened_registry()
                    && !self.files_logged.swap(true, Ordering::Relaxed)
                {
                    startup_log::log_loaded_files(registry);
                }
                is_loaded = true;
                *outage_logged = false;
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
            match self.fetch_owners().await {
                Ok(owners)
                    if owners.leader == LeaderStatus::Absent
                        && matches!(role, WorkerRole::Standby)
                        && self.state_feed.is_unfollowed()
                        && self.state_feed.reload_state(&*self.bus).await.is_err() => {}
                Ok(owners) => role = self.update_role(client, role, owners).await,
                Err(error) => tracing::debug!(%error, "the functions cannot be listed"),
            }
            if matches!(role, WorkerRole::Standby) {
                self.check_leader(client, &mut probe).await;
            }
        }
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
    async fn answer_call(&self, id: &str, payload: &str) -> BusResult {
        let payload = repertoire_core::json::from_str(payload)
            .map_err(|error| CallError::new("invocation_failed", error.to_string()))?;
        let mut ready = self.ready.subscribe();
        let waited = ready.wait_for(|ready| *ready);
        let _ = tokio::time::timeout(self.options.functions.deadline, waited).await;
        if self.state_feed.needs_polling() && !id.ends_with("register") {
            self.state_feed.reload_state(&*self.bus).await?;
        }
        self.state_feed.wait_applied().await;
        self.functions.call_function(id, payload).await
    }

    /// Subscribes to changes of the state.
    fn subscribe_to_state(&self, client: &BusClient, function_id: &str) {
        send(
            client,
            &json!({
                "type": "registerfunction", "id": function_id,
                "description": "Receives changes of the state.",
            }),
        );
        let namespace = self.bus.namespace();
        for scope in self.state_feed.watched_scopes() {
            let mut trigger = json!({
                "type": "registertrigger", "id": Uuid::new_v4().to_string(),
                "trigger_type": "state", "function_id": function_id,
                "config": {"scope": scope},
            });
            if let Some(namespace) = &namespace {
                trigger["namespace"] = json!(namespace);
            }
            send(client, &trigger);
        }
    }
}

/// Queues a message. If the connection has ended, the next one registers everything again.
fn send(client: &BusClient, message: &Value) {
    let _ = client.send_text(message.to_string());
}

/// Receives the messages of one connection.
struct ConnectionHandler {
    worker: Weak<SkillsWorker>,
    /// The function by which this connection receives changes of the state. Content, prompts and
    /// tools cannot call functions in this namespace.
    state_function: String,
    /// Whether the bus refused this worker.
    rejected: watch::Sender<bool>,
}

impl PeerHandler for ConnectionHandler {
    fn on_call(&self, call: IncomingCall) {
        let Some(worker) = self.worker.upgrade() else {
            return;
        };
        if call.function_id == self.state_function {
            // In the order of arrival: later events replace earlier ones.
            if let Ok(event) = repertoire_core::json::from_str(&call.payload) {
                worker.state_feed.receive_change(&event);
            }
            call.respond(&Ok("null".to_owned()));
            return;
        }
        if call.function_id == LEADER_PROBE_FUNCTION {
            // Standbys ask this to see whether the worker hangs, so it waits for nothing.
            call.respond(&Ok(functions::list_templates()));
            return;
        }
        let Ok(permit) = worker.calls.clone().try_acquire_owned() else {
            let message = format!("more than {MAX_CALLS} calls at a time: try again");
            call.respond(&Err(CallError::new("overloaded", message)));
            return;
        };
        tokio::spawn(async move {
            let (id, payload) = (call.function_id.clone(), call.payload.clone());
            // A task of its own: the caller gets an answer also if the function panics.
            let work = tokio::spawn(async move { worker.answer_call(&id, &payload).await });
            let failed = |_| Err(CallError::new("internal", "the function failed"));
            call.respond(&work.await.unwrap_or_else(failed));
            drop(permit);
        });
    }

    fn on_subscribe(&self, trigger_type: &str, id: &str, function: SubscribedFunction) {
        let kind = TRIGGER_TYPES.iter().find(|kind| kind.id == trigger_type);
        if let (Some(kind), Some(worker)) = (kind, self.worker.upgrade()) {
            let subscriber = (kind.id, function);
            worker.subscribers.lock().insert(id.to_owned(), subscriber);
        }
    }

    fn on_unsubscribe(&self, id: &str) {
        if let Some(worker) = self.worker.upgrade() {
            worker.subscribers.lock().remove(id);
        }
    }

    fn on_rejected(&self, code: &str, function_id: Option<&str>) {
        // A function of the registry is offered again by the owner check; a worker whose name is taken
        // connects again with another one.
        if code == "WORKER_NAMESPACE_CONFLICT" {
            if let Some(worker) = self.worker.upgrade()
                && !worker.is_name_taken.swap(true, Ordering::Relaxed)
            {
                tracing::info!(
                    name = worker.options.name,
                    "another worker has this name: connecting with another one"
                );
            }
            self.rejected.send_replace(true);
            return;
        }
        tracing::warn!(code, function_id, "the bus rejected a registration");
    }
}
