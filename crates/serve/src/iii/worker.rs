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
use tokio::{runtime::Handle, time::Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{sdk::SdkBus, state::Feeder};
use super::{
    boot,
    bus::{Bus, CallError},
    changes,
    functions::{self, FunctionOptions, Functions, TRIGGER_TYPES, is_tool},
};
use crate::engine::{Engine, FunctionTool};

/// How often a standby looks whether it is needed, and a worker whether it still serves.
const LOOK: Duration = Duration::from_secs(1);
/// How often the connection is looked at.
const TICK: Duration = Duration::from_millis(250);

/// Where the bus is, and how to behave on it.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The address of the bus.
    pub url: String,
    /// What to present where a token is needed.
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
            token: None,
            name: "skills".to_owned(),
            functions: FunctionOptions::default(),
            tools: Vec::new(),
        }
    }
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
    stop: CancellationToken,
}

/// What this process is to the bus.
enum Role {
    /// Not known yet.
    Unknown,
    /// It has offered the functions, and has seen that they are its own.
    Serving {
        functions: Vec<FunctionRef>,
        seen: bool,
    },
    /// Another worker serves.
    Standby,
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
        loop {
            tokio::select! {
                () = tokio::time::sleep(TICK) => {}
                () = self.stop.cancelled() => {
                    self.step_down(client, role).await;
                    return Ok(());
                }
            }
            if let Some(error) = client.fatal_error() {
                return Err(error);
            }
            if client.get_connection_state() != IIIConnectionState::Connected {
                if link != Link::Down {
                    tracing::warn!(url = self.options.url, "waiting for the bus");
                    // Whoever still follows is told to us again.
                    self.followers.lock().clear();
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
                tracing::info!(url = self.options.url, "connected to the bus");
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK;
                match self.owner().await {
                    Ok(owner) => role = self.take_role(client, role, owner).await,
                    Err(error) => tracing::debug!(%error, "the functions cannot be listed"),
                }
            }
        }
    }

    /// Does what follows from who has the functions.
    async fn take_role(self: &Arc<Self>, client: &IIIClient, role: Role, owner: Owner) -> Role {
        match (owner, role) {
            (Owner::Nobody, role @ Role::Serving { .. }) => {
                // What was registered got lost on the way; the next look begins anew.
                self.step_down(client, role).await;
                Role::Unknown
            }
            (Owner::Nobody, Role::Unknown | Role::Standby) => self.step_up(client),
            (
                Owner::This,
                Role::Serving {
                    functions,
                    seen: false,
                },
            ) => {
                tracing::info!("serving: skills and prompts are on the bus");
                Role::Serving {
                    functions,
                    seen: true,
                }
            }
            (Owner::This, role) => role,
            (Owner::Another, role @ Role::Serving { .. }) => {
                tracing::warn!("another worker has the functions: standing by");
                self.step_down(client, role).await;
                Role::Standby
            }
            (Owner::Another, Role::Unknown) => {
                tracing::info!("another worker serves: standing by");
                Role::Standby
            }
            (Owner::Another, Role::Standby) => Role::Standby,
        }
    }

    /// Who has the functions.
    async fn owner(&self) -> Result<Owner, CallError> {
        let deadline = Duration::from_secs(5);
        let listed = self
            .bus
            .call("engine::functions::list", json!({}), deadline);
        let listed: Value = serde_json::from_str(&listed.await?).unwrap_or_default();
        let rows = listed["functions"].as_array();
        if !self.options.tools.is_empty() {
            self.offer_tools(rows.map_or(&[], Vec::as_slice));
        }
        let row = rows.and_then(|rows| {
            rows.iter()
                .find(|row| row["function_id"] == "skills::register")
        });
        Ok(match row {
            None => Owner::Nobody,
            Some(row) if row["metadata"]["instance"] == self.instance.as_str() => Owner::This,
            Some(_) => Owner::Another,
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

    /// Offers the functions and the trigger types.
    fn step_up(self: &Arc<Self>, client: &IIIClient) -> Role {
        let mut offered = Vec::new();
        for described in functions::all() {
            let worker = self.clone();
            let runtime = Handle::current();
            let id = described.id;
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
            offered.push(client.register_function(id, function));
        }
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
        Role::Serving {
            functions: offered,
            seen: false,
        }
    }

    /// Takes the functions and the trigger types back.
    async fn step_down(&self, client: &IIIClient, role: Role) {
        let Role::Serving { functions, .. } = role else {
            return;
        };
        for function in functions {
            function.unregister();
        }
        for kind in TRIGGER_TYPES {
            #[allow(
                deprecated,
                reason = "trigger types are what the seed's workers follow"
            )]
            client.unregister_trigger_type(kind.id);
        }
        self.followers.lock().clear();
        // The SDK drops what is queued when it shuts down; a round trip makes sure it is not.
        let deadline = Duration::from_secs(2);
        let _ = self
            .bus
            .call("engine::workers::list", json!({}), deadline)
            .await;
    }

    /// Answers one of the functions.
    async fn answer(&self, id: &str, payload: Value) -> Result<Value, CallError> {
        if self.feeder.has_to_ask() && !id.ends_with("register") {
            self.feeder.catch_up(&*self.bus).await?;
        }
        self.feeder.settled().await;
        let answer = self.functions.call(id, payload).await?;
        serde_json::from_str(&answer).map_err(|error| CallError::new("internal", error.to_string()))
    }

    /// Asks the bus to tell of changes of the state.
    fn follow_state(self: &Arc<Self>, client: &IIIClient) {
        let function_id = format!("repertoire::{}::on_state", self.instance);
        let feeder = self.feeder.clone();
        let heard = RegisterFunction::new(move |event: Value| {
            feeder.receive(event);
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

/// Who has the functions of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    This,
    Another,
}
