//! The engine's state as the catalogue knows it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_registry::{Feed, Retell};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

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

/// Keeps the catalogue what the state of a bus is.
#[derive(Debug)]
pub(super) struct Feeder {
    engine: Arc<Engine>,
    url: String,
    token: Option<String>,
    skills: String,
    prompts: String,
    deadline: Duration,
    /// When which key was last touched, for those touched lately.
    touched: Mutex<HashMap<(Feed, String), Instant>>,
    /// Whether the bus was seen to tell of changes.
    tells: AtomicBool,
    asked: AtomicBool,
    /// Changes the bus told of, in the order in which it did.
    inbox: mpsc::UnboundedSender<Value>,
    waiting: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
    /// How many of them came in, and how many are in the catalogue.
    received: AtomicU64,
    taken: watch::Sender<u64>,
}

/// A write of our own that is on its way.
#[derive(Debug)]
pub(super) struct Write {
    feed: Feed,
    key: String,
    value: Option<String>,
}

impl Feeder {
    pub(super) fn new(engine: Arc<Engine>, options: &WorkerOptions) -> Self {
        let (inbox, waiting) = mpsc::unbounded_channel();
        Self {
            engine,
            url: options.url.clone(),
            token: options.token.clone(),
            skills: options.functions.skills.clone(),
            prompts: options.functions.prompts.clone(),
            deadline: options.functions.deadline,
            touched: Mutex::default(),
            tells: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            inbox,
            waiting: Mutex::new(Some(waiting)),
            received: AtomicU64::new(0),
            taken: watch::Sender::new(0),
        }
    }

    /// Puts down a change the bus tells of; it is taken over in its turn.
    pub(super) fn receive(&self, event: Value) {
        self.received.fetch_add(1, Ordering::SeqCst);
        // The receiver lives as long as this does.
        let _ = self.inbox.send(event);
    }

    /// Takes over what the bus tells of, one after the other.
    pub(super) async fn run(&self, bus: Arc<dyn Bus>) {
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(mut waiting) = waiting else {
            return;
        };
        while let Some(event) = waiting.recv().await {
            self.heard(&*bus, &event).await;
            self.taken.send_modify(|taken| *taken += 1);
        }
    }

    /// Waits until everything that has been told so far is in the catalogue.
    pub(super) async fn settled(&self) {
        let received = self.received.load(Ordering::SeqCst);
        let mut taken = self.taken.subscribe();
        // The sender lives as long as this does.
        let _ = taken.wait_for(|taken| *taken >= received).await;
    }

    /// The scopes that matter.
    pub(super) fn scopes(&self) -> [&str; 2] {
        [&self.skills, &self.prompts]
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
            "state::set" => Some(payload["value"].to_string()),
            "state::delete" => None,
            _ => return None,
        };
        Some(Write {
            feed: self.feed_of(payload["scope"].as_str()?)?,
            key: payload["key"].as_str()?.to_owned(),
            value,
        })
    }

    /// Takes over a write of our own.
    pub(super) fn wrote(&self, write: &Write) {
        let Some(registry) = self.engine.opened() else {
            return;
        };
        self.touch(write.feed, &write.key);
        registry.feed(write.feed, &write.key, write.value.as_deref(), Retell::Yes);
    }

    /// Notes that a key was touched; says whether it had been lately.
    fn touch(&self, feed: Feed, key: &str) -> bool {
        let now = Instant::now();
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        if touched.len() > 4096 {
            touched.retain(|_, at| now.duration_since(*at) < RECENT);
        }
        let before = touched.insert((feed, key.to_owned()), now);
        before.is_some_and(|at| now.duration_since(at) < RECENT)
    }

    /// Takes over a change the bus tells of.
    async fn heard(&self, bus: &dyn Bus, event: &Value) {
        self.tells.store(true, Ordering::Relaxed);
        let scope = event["scope"].as_str().unwrap_or_default();
        let key = event["key"].as_str().unwrap_or_default();
        let (Some(feed), Some(registry)) = (self.feed_of(scope), self.engine.opened()) else {
            return;
        };
        if self.touch(feed, key) {
            // Two changes so close together may be told in the wrong order.
            let payload = json!({"scope": scope, "key": key});
            if let Ok(value) = bus.call("state::get", payload, self.deadline).await {
                let value = Some(value).filter(|value| value != "null");
                registry.feed(feed, key, value.as_deref(), Retell::No);
            }
            return;
        }
        let value = Some(&event["new_value"]).filter(|value| !value.is_null());
        let value = value.map(Value::to_string);
        registry.feed(feed, key, value.as_deref(), Retell::No);
    }

    /// Reads everything, as after a time when nobody listened.
    pub(super) async fn catch_up(&self, bus: &dyn Bus) -> Result<(), CallError> {
        let registry = self.engine.registry().await?;
        // A connection of its own: the SDK's takes no answer of this size.
        let client = Client::connect(&self.url, self.token.as_deref());
        let client = client
            .await
            .map_err(|error| CallError::new("disconnected", error.to_string()))?;
        for feed in [Feed::Skills, Feed::Prompts] {
            let rows = self.rows(&client, feed).await?;
            let rows = rows
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()));
            registry.feed_all(feed, rows);
        }
        self.probe(bus).await;
        Ok(())
    }

    /// Every row of a scope.
    async fn rows(&self, client: &Client, feed: Feed) -> Result<Vec<(String, String)>, CallError> {
        let mut rows: Vec<(String, String)> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut payload = json!({"scope": self.scope_of(feed), "limit": PAGE});
            if let Some(cursor) = &cursor {
                payload["cursor"] = json!(cursor);
            }
            let listed = client
                .ask("state::list", &payload.to_string(), PATIENCE)
                .await?;
            let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
            match listed {
                // An engine knows no pages.
                Value::Array(values) => {
                    let name = match feed {
                        Feed::Skills => "id",
                        Feed::Prompts => "name",
                    };
                    let keyed = values.iter().filter_map(|value| {
                        let key = value.get(name)?.as_str()?.to_owned();
                        Some((key, value.to_string()))
                    });
                    rows.extend(keyed);
                    return Ok(rows);
                }
                Value::Object(mut page) => {
                    let items = page.get_mut("items").and_then(Value::as_array_mut);
                    for item in items.into_iter().flatten() {
                        if let Some(key) = item["key"].as_str() {
                            rows.push((key.to_owned(), item["value"].to_string()));
                        }
                    }
                    cursor = page
                        .get("next_cursor")
                        .and_then(Value::as_str)
                        .map(str::to_owned);
                    if cursor.is_none() {
                        return Ok(rows);
                    }
                }
                _ => return Ok(rows),
            }
        }
    }

    /// Finds out, once, whether the bus tells of changes.
    async fn probe(&self, bus: &dyn Bus) {
        if self.asked.load(Ordering::Relaxed) {
            return;
        }
        // A value that is no skill, so that nobody sees it.
        let row = json!({"scope": self.skills, "key": ".repertoire-probe"});
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
