//! The engine's state as the catalogue knows it.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_registry::{Feed, Retell};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::{Notify, watch};

use super::WorkerOptions;
use crate::{
    engine::Engine,
    iii::{
        bus::{Bus, CallError},
        client::Client,
    },
};

/// For how long after a write an event about the same key may be an older one.
const RECENT: Duration = Duration::from_secs(5);
/// How many values are read at a time, where the bus has pages.
const PAGE: usize = 1000;
/// How long the bus may take to list its state.
const PATIENCE: Duration = Duration::from_mins(2);
/// How long an event that was asked for may take.
const PROBE: Duration = Duration::from_secs(3);

/// Where it is tried out whether the bus tells of changes.
const PROBE_SCOPE: &str = "repertoire-probe";

/// A page of the state, where the bus has pages.
#[derive(Deserialize)]
struct Page {
    items: Vec<Item>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    key: String,
    value: Box<RawValue>,
}

/// The names a row has for itself, where the bus does not say its key.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

impl Named {
    fn key(self, feed: Feed) -> Option<String> {
        match feed {
            Feed::Skills => self.id,
            Feed::Prompts => self.name,
        }
    }
}

impl Known {
    /// Notes that a key was touched.
    fn touch(&mut self, key: &Key) {
        if self.touched.len() > 4096 {
            self.touched.retain(|_, at| at.elapsed() < RECENT);
        }
        self.touched.insert(key.clone(), Instant::now());
    }

    fn is_recent(&self, key: &Key) -> bool {
        self.touched
            .get(key)
            .is_some_and(|at| at.elapsed() < RECENT)
    }
}

/// A key of one of the scopes.
type Key = (Feed, String);

/// Keeps the catalogue what the state of a bus is.
#[derive(Debug)]
pub(super) struct Feeder {
    engine: Arc<Engine>,
    url: String,
    token: Option<String>,
    skills: String,
    prompts: String,
    deadline: Duration,
    known: Mutex<Known>,
    /// Whether the bus was seen to tell of changes.
    tells: AtomicBool,
    asked: AtomicBool,
    /// How many changes were told, and how many of them are in the catalogue.
    received: AtomicU64,
    taken: watch::Sender<u64>,
    /// Rung when a change is told.
    news: Notify,
    /// Held by whoever takes over changes, so that they are taken over one after the other.
    turn: tokio::sync::Mutex<()>,
}

/// What is going on with keys.
#[derive(Debug, Default)]
struct Known {
    /// Changes that were told and wait for their turn; `None` where more than one did, and only
    /// the bus knows what came last.
    told: HashMap<Key, Option<Value>>,
    /// What we are writing ourselves.
    writing: HashMap<Key, Option<Value>>,
    /// When a key was last touched, for those touched lately.
    touched: HashMap<Key, Instant>,
}

/// A write of our own that is on its way.
#[derive(Debug)]
pub(super) struct Write {
    key: Key,
    value: Option<Value>,
}

impl Feeder {
    pub(super) fn new(engine: Arc<Engine>, options: &WorkerOptions) -> Self {
        Self {
            engine,
            url: options.url.clone(),
            token: options.token.clone(),
            skills: options.functions.skills.clone(),
            prompts: options.functions.prompts.clone(),
            deadline: options.functions.deadline,
            known: Mutex::default(),
            tells: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            received: AtomicU64::new(0),
            taken: watch::Sender::new(0),
            news: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts down a change the bus tells of; it is taken over in its turn.
    pub(super) fn receive(&self, event: &Value) {
        self.tells.store(true, Ordering::Relaxed);
        let scope = event["scope"].as_str().unwrap_or_default();
        let key = event["key"].as_str().unwrap_or_default();
        let Some(feed) = self.feed_of(scope) else {
            return;
        };
        let key = (feed, key.to_owned());
        let value = event["new_value"].clone();
        let mut known = self.lock();
        let again = known.told.contains_key(&key) || known.is_recent(&key);
        known.told.insert(key, (!again).then_some(value));
        self.received.fetch_add(1, Ordering::SeqCst);
        drop(known);
        self.news.notify_one();
    }

    /// Takes over what the bus tells of.
    pub(super) async fn run(&self, bus: Arc<dyn Bus>) {
        loop {
            self.news.notified().await;
            let _turn = self.turn.lock().await;
            let (told, received) = {
                let mut known = self.lock();
                let received = self.received.load(Ordering::SeqCst);
                (std::mem::take(&mut known.told), received)
            };
            for (key, value) in told {
                self.take(&*bus, key, value).await;
            }
            self.taken.send_replace(received);
        }
    }

    /// Waits until everything that has been told so far is in the catalogue, or for so long as a
    /// call may take.
    pub(super) async fn settled(&self) {
        let received = self.received.load(Ordering::SeqCst);
        let mut taken = self.taken.subscribe();
        let settled = taken.wait_for(|taken| *taken >= received);
        let _ = tokio::time::timeout(self.deadline, settled).await;
    }

    /// Brings one key up to date.
    async fn take(&self, bus: &dyn Bus, key: Key, told: Option<Value>) {
        let Some(registry) = self.engine.opened() else {
            return;
        };
        let value = if let Some(value) = told {
            value
        } else {
            // Changes so close together may be told in the wrong order.
            let payload = json!({"scope": self.scope_of(key.0), "key": key.1});
            let Ok(value) = bus.call("state::get", payload, self.deadline).await else {
                return;
            };
            repertoire_core::json::from_str(&value).unwrap_or_default()
        };
        let value = Some(value).filter(|value| !value.is_null());
        {
            let mut known = self.lock();
            // What we are writing is told when it is written.
            if known.writing.get(&key) == Some(&value) {
                return;
            }
            known.touch(&key);
        }
        let text = value.map(|value| value.to_string());
        registry.feed(key.0, &key.1, text.as_deref(), Retell::No);
    }

    /// The scopes that matter.
    pub(super) fn scopes(&self) -> [&str; 3] {
        [&self.skills, &self.prompts, PROBE_SCOPE]
    }

    /// Whether the bus does not tell of changes, so that it has to be asked each time.
    pub(super) fn has_to_ask(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && !self.tells.load(Ordering::Relaxed)
    }

    fn feed_of(&self, scope: &str) -> Option<Feed> {
        if scope == self.skills {
            Some(Feed::Skills)
        } else if scope == self.prompts {
            Some(Feed::Prompts)
        } else {
            None
        }
    }

    fn scope_of(&self, feed: Feed) -> &str {
        match feed {
            Feed::Skills => &self.skills,
            Feed::Prompts => &self.prompts,
        }
    }

    /// What a call writes to one of the scopes, if it does.
    pub(super) fn write_of(&self, function_id: &str, payload: &Value) -> Option<Write> {
        let value = match function_id {
            "state::set" => Some(payload["value"].clone()),
            "state::delete" => None,
            _ => return None,
        };
        let feed = self.feed_of(payload["scope"].as_str()?)?;
        let key = (feed, payload["key"].as_str()?.to_owned());
        self.lock().writing.insert(key.clone(), value.clone());
        Some(Write { key, value })
    }

    /// Takes over a write of our own, if it was made.
    pub(super) fn wrote(&self, write: &Write, made: bool) {
        let Some(registry) = self.engine.opened() else {
            return;
        };
        let mut known = self.lock();
        known.touch(&write.key);
        if known.writing.get(&write.key) == Some(&write.value) {
            known.writing.remove(&write.key);
        }
        drop(known);
        if made {
            let (feed, key) = &write.key;
            let text = write.value.as_ref().map(Value::to_string);
            registry.feed(*feed, key, text.as_deref(), Retell::Yes);
        }
    }

    /// Reads everything, as after a time when nobody listened.
    pub(super) async fn catch_up(&self, bus: &dyn Bus) -> Result<(), CallError> {
        let registry = self.engine.registry().await?;
        {
            // What is told meanwhile is newer, and waits.
            let _turn = self.turn.lock().await;
            let start = Instant::now();
            // A connection of its own: the SDK's takes no answer of this size.
            let client = Client::connect(&self.url, self.token.as_deref()).await;
            let client =
                client.map_err(|error| CallError::new("disconnected", error.to_string()))?;
            for feed in [Feed::Skills, Feed::Prompts] {
                let rows = self.rows(&client, feed).await?;
                let touched: HashSet<String> = {
                    let known = self.lock();
                    let touched = known
                        .touched
                        .iter()
                        .filter(|((of, _), at)| *of == feed && **at >= start);
                    touched.map(|((_, key), _)| key.clone()).collect()
                };
                let rows = rows.iter().map(|(key, value)| (key.as_str(), value.get()));
                registry.feed_all(feed, rows, |key| touched.contains(key));
            }
        }
        self.probe(bus).await;
        Ok(())
    }

    /// Every row of a scope. One that cannot be read is left out; a listing that cannot is none.
    async fn rows(
        &self,
        client: &Client,
        feed: Feed,
    ) -> Result<Vec<(String, Box<RawValue>)>, CallError> {
        let mut rows = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut payload = json!({"scope": self.scope_of(feed), "limit": PAGE});
            if let Some(cursor) = &cursor {
                payload["cursor"] = json!(cursor);
            }
            let listed = client
                .ask("state::list", &payload.to_string(), PATIENCE)
                .await?;
            let unreadable = |error: serde_json::Error| {
                CallError::new("internal", format!("the state cannot be listed: {error}"))
            };
            match listed.trim_start().as_bytes().first() {
                // An engine knows no pages.
                Some(b'[') => {
                    let values: Vec<Box<RawValue>> =
                        repertoire_core::json::from_str(&listed).map_err(unreadable)?;
                    for value in values {
                        let named = repertoire_core::json::from_str::<Named>(value.get()).ok();
                        if let Some(key) = named.and_then(|named| named.key(feed)) {
                            rows.push((key, value));
                        } else {
                            tracing::warn!("a row without a name is left out");
                        }
                    }
                    return Ok(rows);
                }
                Some(b'{') => {
                    let page: Page =
                        repertoire_core::json::from_str(&listed).map_err(unreadable)?;
                    rows.extend(page.items.into_iter().map(|item| (item.key, item.value)));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(rows);
                    }
                }
                // Nothing was ever kept there.
                _ => return Ok(rows),
            }
        }
    }

    /// Finds out, once, whether the bus tells of changes.
    async fn probe(&self, bus: &dyn Bus) {
        if self.asked.load(Ordering::Relaxed) {
            return;
        }
        let row = json!({"scope": PROBE_SCOPE, "key": uuid::Uuid::new_v4()});
        let mut set = row.clone();
        set["value"] = json!(true);
        let set = bus.call("state::set", set, self.deadline).await;
        let start = Instant::now();
        while set.is_ok() && !self.tells.load(Ordering::Relaxed) && start.elapsed() < PROBE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = bus.call("state::delete", row, self.deadline).await;
        if set.is_ok() {
            self.asked.store(true, Ordering::Relaxed);
            if !self.tells.load(Ordering::Relaxed) {
                tracing::warn!(
                    "this bus does not tell of changes of its state: it is read again before \
                     every listing"
                );
            }
        }
    }
}
