//! Being the `skills` worker on somebody else's bus, through its SDK.
//!
//! Registered content is in the engine's state; what the catalogue knows of it comes from a first
//! look at all of it, from our own writes, and from the engine's `state` trigger. An engine
//! without that trigger is asked again before every listing.
//!
//! Of several workers one serves. The others stand by: they keep their catalogue warm, look every
//! second whether the functions still have an owner, and take over functions and trigger types
//! when they have none.

mod sdk;
mod state;

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

use self::{sdk::SdkBus, state::Feeder};
use super::{
    boot,
    bus::{Bus, CallError},
    changes,
    client::Client,
    functions::{self, FunctionOptions, Functions, TRIGGER_TYPES, is_tool},
};
use crate::engine::{Engine, FunctionTool};

/// How often a standby looks whether it is needed, and a worker whether it still serves.
const LOOK: Duration = Duration::from_secs(1);
/// How often the state is read again where the bus does not tell of its changes.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// How often the connection is looked at.
const TICK: Duration = Duration::from_millis(250);

/// Where the bus is, and how to behave on it.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The address of the bus.
    pub url: String,
    /// What to present where a token is needed; by default what `III_TOKEN` holds.
    pub token: Option<String>,
    /// The worker's name; an engine that starts it gives it one.
    pub name: String,
    /// How the functions behave.
    pub functions: FunctionOptions,
    /// Functions of other workers that are tools over MCP: ids, or prefixes with `*`.
    pub tools: Vec<String>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            url: super::DEFAULT_URL.to_owned(),
            token: std::env::var("III_TOKEN").ok().filter(|t| !t.is_empty()),
            name: name_of(std::env::var("III_WORKER_NAME").ok()),
            functions: FunctionOptions::default(),
            tools: Vec::new(),
        }
    }
}

/// The name an engine gives its worker, or the usual one.
fn name_of(given: Option<String>) -> String {
    let given = given.filter(|name| !name.is_empty());
    given.unwrap_or_else(|| "skills".to_owned())
}

/// Where the bus is: as asked for, else as an engine says in the environment, else where it
/// usually is.
pub fn url_of(asked: Option<String>) -> String {
    let said = ["III_URL", "III_ENGINE_URL"].map(|name| std::env::var(name).ok());
    let mut urls = std::iter::once(asked).chain(said).flatten();
    let url = urls.find(|url| !url.trim().is_empty());
    url.unwrap_or_else(|| super::DEFAULT_URL.to_owned())
}

/// Those who follow the two trigger types, by the id of their trigger.
#[derive(Debug, Default)]
struct Followers(Mutex<HashMap<String, (&'static str, String)>>);

impl Followers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (&'static str, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, kind: &str) -> Vec<String> {
        let all = self.lock();
        let fitting = all.values().filter(|(followed, _)| *followed == kind);
        fitting.map(|(_, function)| function.clone()).collect()
    }
}

/// Hears from the bus who follows a trigger type.
struct Provider {
    kind: &'static str,
    followers: Arc<Followers>,
}

#[async_trait::async_trait]
impl TriggerHandler for Provider {
    async fn register_trigger(&self, config: TriggerConfig) -> Result<(), SdkError> {
        let follower = (self.kind, config.function_id);
        self.followers.lock().insert(config.id, follower);
        Ok(())
    }

    async fn unregister_trigger(&self, config: TriggerConfig) -> Result<(), SdkError> {
        self.followers.lock().remove(&config.id);
        Ok(())
    }
}

/// The worker.
#[derive(Debug)]
pub struct Worker {
    engine: Arc<Engine>,
    options: WorkerOptions,
    bus: Arc<SdkBus>,
    functions: Arc<Functions>,
    feeder: Arc<Feeder>,
    followers: Arc<Followers>,
    /// Tells the functions of this process from those of another one.
    instance: String,
    /// Whether everybody who follows is known: until then nothing is changed.
    ready: watch::Sender<bool>,
    stop: CancellationToken,
}

/// What this process is to the bus.
enum Role {
    /// Not known yet.
    Unknown,
    /// It has offered the functions.
    Serving(Serving),
    /// Another worker serves.
    Standby,
}

/// What was offered.
#[derive(Default)]
struct Serving {
    functions: HashMap<&'static str, FunctionRef>,
    /// Whether the trigger types were.
    types: bool,
    /// Whether the bus was seen to know who has the functions.
    seen: bool,
}

/// How the connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    New,
    Up,
    Down,
}

impl Worker {
    /// A worker over an engine whose registered content is kept by a bus. Runs until the engine
    /// shuts down.
    pub fn new(engine: Arc<Engine>, options: WorkerOptions) -> Arc<Self> {
        let bus = Arc::new(SdkBus::new(Handle::current()));
        let feeder = Arc::new(Feeder::new(engine.clone(), &options));
        bus.watch(feeder.clone());
        let functions = Functions::new(engine.clone(), bus.clone(), options.functions.clone());
        engine.join(bus.clone(), options.functions.clone());
        let stop = engine.stop.child_token();
        Arc::new(Self {
            engine,
            bus,
            functions: Arc::new(functions),
            feeder,
            followers: Arc::default(),
            instance: Uuid::new_v4().to_string(),
            ready: watch::Sender::new(false),
            options,
            stop,
        })
    }

    /// Serves until the engine shuts down.
    pub async fn run(self: Arc<Self>) {
        let (followers, bus) = (self.followers.clone(), self.bus.clone());
        let telling = tokio::spawn(changes::follow(
            self.engine.clone(),
            move |kind, payload| {
                for function in followers.of(kind) {
                    bus.fire(&function, payload);
                }
            },
        ));
        let (feeder, bus) = (self.feeder.clone(), self.bus.clone());
        let feeding = tokio::spawn(async move { feeder.run(bus).await });
        while !self.stop.is_cancelled() {
            let client = self.connect();
            self.bus.put(client.clone());
            let ended = self.attend(&client).await;
            // Joining the SDK's thread may take a while; nothing here depends on it.
            client.shutdown_async().await;
            if let Err(error) = ended {
                tracing::warn!(%error, "the bus turned this worker away: trying again");
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = self.stop.cancelled() => {}
                }
            }
        }
        telling.abort();
        feeding.abort();
    }

    fn connect(&self) -> IIIClient {
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

    /// Lives on one client: follows the state, and serves as long as nobody else does.
    async fn attend(self: &Arc<Self>, client: &IIIClient) -> Result<(), SdkError> {
        self.follow_state(client);
        let mut told = false;
        let mut role = Role::Unknown;
        let mut link = Link::New;
        let mut next_look = Instant::now();
        let mut last_read = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = self.stop.cancelled() => {
                    if let Role::Serving(serving) = role {
                        self.step_down(client, serving).await;
                    }
                    return Ok(());
                }
            }
            if let Some(error) = client.fatal_error() {
                return Err(error);
            }
            if client.get_connection_state() != IIIConnectionState::Connected {
                if link != Link::Down {
                    self.say_why().await;
                    // Whoever still follows is told to us again.
                    self.followers.lock().clear();
                    self.ready.send_replace(false);
                    link = Link::Down;
                }
                continue;
            }
            if link != Link::Up {
                // What changed while nobody listened is read again.
                if let Err(error) = self.feeder.catch_up(&*self.bus).await {
                    tracing::warn!(%error, "the state could not be read: trying again");
                    continue;
                }
                if let Some(registry) = self.engine.opened().filter(|_| !told) {
                    boot::log_files(registry);
                    told = true;
                }
                link = Link::Up;
                last_read = Instant::now();
                tracing::info!(url = self.options.url, "connected to the bus");
            }
            // Calls read it themselves; whoever asks over MCP does not.
            if self.feeder.has_to_ask() && last_read.elapsed() >= READ_AGAIN {
                last_read = Instant::now();
                if let Err(error) = self.feeder.catch_up(&*self.bus).await {
                    tracing::warn!(%error, "the state could not be read");
                }
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                match self.owners().await {
                    Ok(owners) => role = self.take_role(client, role, owners).await,
                    Err(error) => tracing::debug!(%error, "the functions cannot be listed"),
                }
            }
        }
    }

    /// Says why there is no connection; the SDK keeps it to itself.
    async fn say_why(&self) {
        let tried = Client::connect(&self.options.url, self.options.token.as_deref());
        let tried = tokio::time::timeout(Duration::from_secs(2), tried).await;
        if let Ok(Err(error)) = tried {
            tracing::warn!("waiting for the bus: {error}");
        } else {
            tracing::warn!(url = self.options.url, "waiting for the bus");
        }
    }

    /// Does what follows from who has the functions.
    ///
    /// Whoever has `skills::register` serves. Functions and trigger types that it lost, or that
    /// somebody else had when it began, it takes as soon as they are free.
    async fn take_role(self: &Arc<Self>, client: &IIIClient, role: Role, owners: Owners) -> Role {
        match (owners.leader, role) {
            (Leader::Nobody, Role::Unknown | Role::Standby) => {
                let serving = Role::Serving(self.step_up(client));
                // Whether they are ours is known at once; callers wait for the rest.
                match self.owners().await {
                    Ok(owners) if owners.leader != Leader::Nobody => {
                        Box::pin(self.take_role(client, serving, owners)).await
                    }
                    _ => serving,
                }
            }
            (Leader::Nobody | Leader::This, Role::Serving(mut serving)) => {
                for id in owners.free {
                    self.offer(client, &mut serving, id);
                }
                if owners.leader == Leader::This {
                    if !serving.seen {
                        tracing::info!("serving: skills and prompts are on the bus");
                        serving.seen = true;
                    }
                    // Only now: a type that is offered twice is taken from whoever had it.
                    if !serving.types || owners.types_lost {
                        self.offer_types(client);
                        serving.types = true;
                    }
                    if !*self.ready.borrow() {
                        // Those who follow are told to us before these are answered.
                        self.round_trip().await;
                        self.round_trip().await;
                        self.ready.send_replace(true);
                    }
                }
                Role::Serving(serving)
            }
            (Leader::This, role) => role,
            (Leader::Another, Role::Serving(serving)) => {
                tracing::warn!("another worker has the functions: standing by");
                self.step_down(client, serving).await;
                Role::Standby
            }
            (Leader::Another, Role::Unknown) => {
                tracing::info!("another worker serves: standing by");
                Role::Standby
            }
            (Leader::Another, Role::Standby) => Role::Standby,
        }
    }

    /// Who has the functions and the trigger types.
    async fn owners(&self) -> Result<Owners, CallError> {
        let deadline = Duration::from_secs(5);
        let listed = self
            .bus
            .call("engine::functions::list", json!({}), deadline);
        let listed: Value = repertoire_core::json::from_str(&listed.await?).unwrap_or_default();
        let none = Vec::new();
        let rows = listed["functions"].as_array().unwrap_or(&none);
        if !self.options.tools.is_empty() {
            self.offer_tools(rows);
        }
        let find = |id: &str| rows.iter().find(|row| row["function_id"] == id);
        let leader = match find(LEADER) {
            None => Leader::Nobody,
            Some(row) if row["metadata"]["instance"] == self.instance.as_str() => Leader::This,
            Some(_) => Leader::Another,
        };
        let free = functions::all().iter().map(|f| f.id);
        let free = free.filter(|id| find(id).is_none()).collect();
        // Not every bus lists its trigger types; one that does not is believed.
        let types = self
            .bus
            .call("engine::trigger-types::list", json!({}), deadline);
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
        Ok(Owners {
            leader,
            free,
            types_lost,
        })
    }

    /// Keeps the tools over MCP what the functions of other workers are.
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
        self.engine.offer_tools(tools);
    }

    /// Offers the functions.
    fn step_up(self: &Arc<Self>, client: &IIIClient) -> Serving {
        let mut serving = Serving::default();
        for described in functions::all() {
            self.offer(client, &mut serving, described.id);
        }
        serving
    }

    /// Offers one function, again if it has been offered before.
    fn offer(self: &Arc<Self>, client: &IIIClient, serving: &mut Serving, id: &'static str) {
        let Some(described) = functions::all().iter().find(|f| f.id == id) else {
            return;
        };
        if let Some(before) = serving.functions.remove(id) {
            before.unregister();
        }
        let (worker, runtime) = (self.clone(), Handle::current());
        let function = RegisterFunction::new_async(move |payload: Value| {
            // The SDK has one thread for everything: the work is done on ours.
            let (worker, runtime) = (worker.clone(), runtime.clone());
            async move {
                let work = runtime.spawn(async move { worker.answer(id, payload).await });
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
    fn offer_types(&self, client: &IIIClient) {
        for kind in TRIGGER_TYPES {
            let provider = Provider {
                kind: kind.id,
                followers: self.followers.clone(),
            };
            #[allow(
                deprecated,
                reason = "trigger types are what the seed's workers follow"
            )]
            client.register_trigger_type(RegisterTriggerType::new(kind.id, kind.about, provider));
        }
    }

    /// Takes back what was offered.
    async fn step_down(&self, client: &IIIClient, serving: Serving) {
        for function in serving.functions.into_values() {
            function.unregister();
        }
        if serving.types {
            for kind in TRIGGER_TYPES {
                #[allow(
                    deprecated,
                    reason = "trigger types are what the seed's workers follow"
                )]
                client.unregister_trigger_type(kind.id);
            }
        }
        self.followers.lock().clear();
        self.ready.send_replace(false);
        // The SDK drops what is queued when it shuts down; a round trip makes sure it is not.
        self.round_trip().await;
    }

    /// Asks the bus something, to know that everything before has been heard.
    async fn round_trip(&self) {
        let deadline = Duration::from_secs(2);
        let _ = self
            .bus
            .call("engine::workers::list", json!({}), deadline)
            .await;
    }

    /// Answers one of the functions.
    async fn answer(&self, id: &str, payload: Value) -> Result<Value, CallError> {
        let mut ready = self.ready.subscribe();
        let waited = ready.wait_for(|ready| *ready);
        let _ = tokio::time::timeout(self.options.functions.deadline, waited).await;
        if self.feeder.has_to_ask() && !id.ends_with("register") {
            self.feeder.catch_up(&*self.bus).await?;
        }
        self.feeder.settled().await;
        let answer = self.functions.call(id, payload).await?;
        repertoire_core::json::from_str(&answer)
            .map_err(|error| CallError::new("internal", error.to_string()))
    }

    /// Asks the bus to tell of changes of the state.
    fn follow_state(self: &Arc<Self>, client: &IIIClient) {
        // In a namespace that content, prompts and tools never reach.
        let function_id = format!("skills::on_state::{}", self.instance);
        let feeder = self.feeder.clone();
        let heard = RegisterFunction::new(move |event: Value| {
            feeder.receive(&event);
            Ok::<_, SdkError>(Value::Null)
        });
        let heard = heard.description("Hears of changes of the state.");
        client.register_function(function_id.clone(), heard);
        for scope in self.feeder.scopes() {
            let trigger = RegisterTriggerInput::new("state", &function_id, json!({"scope": scope}));
            #[allow(deprecated, reason = "this is how the state is followed")]
            if let Err(error) = client.register_trigger(trigger) {
                tracing::warn!(%error, scope, "the state cannot be followed");
            }
        }
    }
}

/// Whoever has this function serves.
const LEADER: &str = "skills::register";

/// Who has what.
#[derive(Debug)]
struct Owners {
    leader: Leader,
    /// Functions that nobody has.
    free: Vec<&'static str>,
    /// Whether a trigger type is provided by nobody.
    types_lost: bool,
}

/// Who serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leader {
    Nobody,
    This,
    Another,
}
