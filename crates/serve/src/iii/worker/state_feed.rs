//! Feeds the state of the engine into the catalogue.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_registry::{NotifyUnchanged, RegisteredScope};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::{Notify, watch};

use super::WorkerOptions;
use crate::{
    iii::{
        bus::{Bus, CallError},
        functions::StateWriters,
    },
    service::SkillService,
};

/// How long after a change of a key an event about it may be older than the change.
const RECENT_WRITE: Duration = Duration::from_secs(5);
/// So many keys are kept although they were not changed recently, and how often older ones are dropped.
const MAX_IDLE_KEYS: usize = 4096;
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);
/// How many values are read at a time, if the bus supports pages.
const PAGE_SIZE: usize = 1000;
/// How long the bus may take to list its state.
const LIST_TIMEOUT: Duration = Duration::from_mins(2);
/// How long to wait before a value is read again that the bus did not return.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long the event of the probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The scope of the probe that checks whether the bus reports changes.
const PROBE_SCOPE: &str = "repertoire-probe";

/// A page of the state, if the bus supports pages.
#[derive(Deserialize)]
struct StatePage {
    items: Vec<StateItem>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct StateItem {
    key: String,
    value: Box<RawValue>,
}

/// The name in a row, used if the bus does not return its key.
#[derive(Deserialize)]
struct RowName {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

impl RowName {
    fn into_key(self, feed: RegisteredScope) -> Option<String> {
        match feed {
            RegisteredScope::Skills => self.id,
            RegisteredScope::Prompts => self.name,
        }
    }
}

impl KeyTracker {
    /// Records that a key was just changed.
    fn mark_touched(&mut self, key: &FeedKey) -> &mut TouchedKey {
        let now = Instant::now();
        let is_due = self
            .pruned
            .is_none_or(|at| now.duration_since(at) >= PRUNE_INTERVAL);
        if self.touched.len() > MAX_IDLE_KEYS && is_due {
            self.pruned = Some(now);
            let needed = self.reload_start;
            self.touched.retain(|_, touched| {
                let is_needed = needed.is_some_and(|start| touched.at >= start);
                is_needed || now.duration_since(touched.at) < RECENT_WRITE
            });
        }
        self.changes += 1;
        let touched = TouchedKey {
            at: now,
            change: self.changes,
            echo: None,
        };
        let place = self.touched.entry(key.clone()).or_insert(touched);
        *place = touched;
        place
    }

    fn is_recent(&self, key: &FeedKey) -> bool {
        self.touched
            .get(key)
            .is_some_and(|touched| touched.at.elapsed() < RECENT_WRITE)
    }

    /// The number of the last change of a key in the catalogue, if that was not long ago.
    fn last_change(&self, key: &FeedKey) -> Option<u64> {
        self.touched.get(key).map(|touched| touched.change)
    }

    /// Whether an event only reports a write of our own, so that there is nothing to do. Any other event
    /// about the key means that it is written by others too, and then only the bus knows its value.
    fn is_own_echo(&mut self, key: &FeedKey, value: &Value) -> bool {
        let fingerprint = self.fingerprint(Some(value).filter(|value| !value.is_null()));
        if let Some(write) = self.own_writes.get_mut(key) {
            if !write.is_contested && !write.is_echoed && write.fingerprint == fingerprint {
                write.is_echoed = true;
                return true;
            }
            write.is_contested = true;
            return false;
        }
        let Some(touched) = self.touched.get_mut(key) else {
            return false;
        };
        touched.echo.take() == Some(fingerprint)
    }

    /// Returns a number that equal values share.
    fn fingerprint(&self, value: Option<&Value>) -> u64 {
        fn add(value: &Value, hasher: &mut impl Hasher) {
            match value {
                Value::Object(fields) => {
                    // A bus may return the fields in another order.
                    let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
                    fields.sort_unstable_by_key(|(name, _)| *name);
                    fields.len().hash(hasher);
                    for (name, value) in fields {
                        name.hash(hasher);
                        add(value, hasher);
                    }
                }
                Value::Array(items) => {
                    items.len().hash(hasher);
                    for item in items {
                        add(item, hasher);
                    }
                }
                Value::String(text) => text.hash(hasher),
                other => other.to_string().hash(hasher),
            }
        }
        let mut hasher = self.hashing.build_hasher();
        value.is_some().hash(&mut hasher);
        if let Some(value) = value {
            add(value, &mut hasher);
        }
        hasher.finish()
    }
}

/// A key of one of the scopes.
type FeedKey = (RegisteredScope, String);

/// Keeps the catalogue equal to the state of a bus.
#[derive(Debug)]
pub(super) struct StateFeed {
    service: Arc<SkillService>,
    skills: String,
    prompts: String,
    deadline: Duration,
    writers: StateWriters,
    keys: Mutex<KeyTracker>,
    /// Whether the bus has reported a change.
    reports_changes: AtomicBool,
    probed: AtomicBool,
    /// How many changes were reported, and how many of them are in the catalogue.
    received: AtomicU64,
    applied: watch::Sender<u64>,
    /// Notified when a change is reported.
    change_received: Notify,
    /// Held while changes are applied, so that they are applied one after the other.
    apply_lock: tokio::sync::Mutex<()>,
}

/// The keys with pending or recent changes.
#[derive(Debug, Default)]
struct KeyTracker {
    /// Reported changes that are not applied yet; `None` after more than one change, because then
    /// only the bus knows the last value.
    reported: HashMap<FeedKey, Option<Value>>,
    /// Our own writes that are not acknowledged yet.
    own_writes: HashMap<FeedKey, UnacknowledgedWrite>,
    /// The keys that were changed recently.
    touched: HashMap<FeedKey, TouchedKey>,
    /// How many changes were made.
    changes: u64,
    /// When the state began to be read again, while it is: later changes are newer than what is read.
    reload_start: Option<Instant>,
    /// When old entries were last dropped.
    pruned: Option<Instant>,
    hashing: RandomState,
}

/// A write of ours to a key, or several at the same time.
#[derive(Debug, Clone, Copy)]
struct UnacknowledgedWrite {
    count: usize,
    fingerprint: u64,
    /// Whether the event about it has arrived.
    is_echoed: bool,
    /// Whether the key was written by others, or twice by us, meanwhile.
    is_contested: bool,
}

/// When and by what a key was last changed.
#[derive(Debug, Clone, Copy)]
struct TouchedKey {
    at: Instant,
    change: u64,
    /// The value of our own write whose event has not arrived yet.
    echo: Option<u64>,
}

/// A write of this process that is not acknowledged yet.
#[derive(Debug)]
pub(super) struct OwnWrite {
    key: FeedKey,
    value: Option<Value>,
}

impl StateFeed {
    pub(super) fn new(service: Arc<SkillService>, options: &WorkerOptions) -> Self {
        Self {
            service,
            skills: options.functions.skills.clone(),
            prompts: options.functions.prompts.clone(),
            deadline: options.functions.deadline,
            writers: options.functions.state,
            keys: Mutex::default(),
            reports_changes: AtomicBool::new(false),
            probed: AtomicBool::new(false),
            received: AtomicU64::new(0),
            applied: watch::Sender::new(0),
            change_received: Notify::new(),
            apply_lock: tokio::sync::Mutex::default(),
        }
    }

    fn lock_keys(&self) -> std::sync::MutexGuard<'_, KeyTracker> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a change that the bus reported.
    pub(super) fn receive_change(&self, event: &Value) {
        self.reports_changes.store(true, Ordering::Relaxed);
        let scope = event["scope"].as_str().unwrap_or_default();
        let key = event["key"].as_str().unwrap_or_default();
        let Some(feed) = self.feed_for_scope(scope) else {
            return;
        };
        let key = (feed, key.to_owned());
        let value = event["new_value"].clone();
        let mut known = self.lock_keys();
        if known.is_own_echo(&key, &value) {
            return;
        }
        let again = known.reported.contains_key(&key)
            || known.own_writes.contains_key(&key)
            || known.is_recent(&key);
        known.reported.insert(key, (!again).then_some(value));
        self.received.fetch_add(1, Ordering::SeqCst);
        drop(known);
        self.change_received.notify_one();
    }

    /// Applies the reported changes.
    pub(super) async fn apply_changes(&self, bus: Arc<dyn Bus>) {
        loop {
            self.change_received.notified().await;
            let turn = self.apply_lock.lock().await;
            let (reported, received) = {
                let mut known = self.lock_keys();
                let received = self.received.load(Ordering::SeqCst);
                (std::mem::take(&mut known.reported), received)
            };
            let mut unread = Vec::new();
            for (key, value) in reported {
                unread.extend(self.apply_change(&*bus, key, value).await);
            }
            self.applied.send_replace(received);
            drop(turn);
            if !unread.is_empty() {
                // Newer reports of the same keys win.
                tokio::time::sleep(RETRY_PAUSE).await;
                let mut known = self.lock_keys();
                for key in unread {
                    known.reported.entry(key).or_insert(None);
                }
                self.change_received.notify_one();
            }
        }
    }

    /// Waits until every change reported so far is in the catalogue, at most as long as the
    /// deadline of a call.
    pub(super) async fn wait_applied(&self) {
        let received = self.received.load(Ordering::SeqCst);
        let mut taken = self.applied.subscribe();
        let settled = taken.wait_for(|taken| *taken >= received);
        let _ = tokio::time::timeout(self.deadline, settled).await;
    }

    /// Brings one key up to date; returns it if the bus did not return its value.
    async fn apply_change(
        &self,
        bus: &dyn Bus,
        key: FeedKey,
        reported: Option<Value>,
    ) -> Option<FeedKey> {
        let registry = self.service.opened_registry()?;
        let change_before = self.lock_keys().last_change(&key);
        let value = if let Some(value) = reported {
            value
        } else {
            // Changes this close together may be reported in the wrong order.
            let payload = json!({"scope": self.scope_for_feed(key.0), "key": key.1});
            let Ok(value) = bus
                .call_function("state::get", payload, self.deadline)
                .await
            else {
                return Some(key);
            };
            let Ok(value) = repertoire_core::json::from_str(&value) else {
                tracing::warn!(key = key.1, "the state has a value that cannot be read");
                return None;
            };
            value
        };
        let text = (!value.is_null()).then(|| value.to_string());
        let mut known = self.lock_keys();
        if let Some(write) = known.own_writes.get_mut(&key) {
            // It is read again once our own write is acknowledged.
            write.is_contested = true;
            return None;
        }
        if known.last_change(&key) != change_before {
            // Our own write was faster, and this value may be older.
            known.reported.entry(key).or_insert(None);
            self.received.fetch_add(1, Ordering::SeqCst);
            self.change_received.notify_one();
            return None;
        }
        known.mark_touched(&key);
        // Under the lock, so that no acknowledged write comes in between.
        registry.apply_bus_value(key.0, &key.1, text.as_deref(), NotifyUnchanged::No);
        None
    }

    /// The scopes to subscribe to.
    pub(super) fn watched_scopes(&self) -> Vec<&str> {
        match self.writers {
            StateWriters::Others => vec![&self.skills, &self.prompts, PROBE_SCOPE],
            StateWriters::WorkersOnly => Vec::new(),
        }
    }

    /// Whether a worker that begins to serve has to read the state, because it did not follow it.
    pub(super) fn is_unfollowed(&self) -> bool {
        self.writers == StateWriters::WorkersOnly
    }

    /// Whether the bus does not report changes, so that the state has to be read each time.
    pub(super) fn needs_polling(&self) -> bool {
        self.probed.load(Ordering::Relaxed) && !self.reports_changes.load(Ordering::Relaxed)
    }

    fn feed_for_scope(&self, scope: &str) -> Option<RegisteredScope> {
        if scope == self.skills {
            Some(RegisteredScope::Skills)
        } else if scope == self.prompts {
            Some(RegisteredScope::Prompts)
        } else {
            None
        }
    }

    fn scope_for_feed(&self, feed: RegisteredScope) -> &str {
        match feed {
            RegisteredScope::Skills => &self.skills,
            RegisteredScope::Prompts => &self.prompts,
        }
    }

    /// Records the write that a call makes to one of the scopes, if it makes one.
    pub(super) fn begin_write(&self, function_id: &str, payload: &Value) -> Option<OwnWrite> {
        let value = match function_id {
            "state::set" => Some(payload["value"].clone()),
            "state::delete" => None,
            _ => return None,
        };
        let feed = self.feed_for_scope(payload["scope"].as_str()?)?;
        let key = (feed, payload["key"].as_str()?.to_owned());
        let mut known = self.lock_keys();
        let fingerprint = known.fingerprint(value.as_ref());
        let write = known
            .own_writes
            .entry(key.clone())
            .or_insert(UnacknowledgedWrite {
                count: 0,
                fingerprint,
                is_echoed: false,
                is_contested: false,
            });
        write.count += 1;
        write.is_contested |= write.count > 1;
        Some(OwnWrite { key, value })
    }

    /// Applies a write of this process if it succeeded.
    pub(super) fn finish_write(&self, write: &OwnWrite, made: bool) {
        let Some(registry) = self.service.opened_registry() else {
            return;
        };
        let text = write.value.as_ref().map(Value::to_string);
        let mut known = self.lock_keys();
        let Some(own) = known.own_writes.get_mut(&write.key) else {
            return;
        };
        own.count -= 1;
        let own = *own;
        if own.count == 0 {
            known.own_writes.remove(&write.key);
        }
        let is_echo_due = made && own.count == 0 && !own.is_contested && !own.is_echoed;
        known.mark_touched(&write.key).echo = is_echo_due.then_some(own.fingerprint);
        if made {
            // Under the lock, so that no older value comes in between.
            let (feed, key) = &write.key;
            registry.apply_bus_value(*feed, key, text.as_deref(), NotifyUnchanged::Yes);
        }
        if own.count == 0 && (own.is_contested || !made) {
            // The order of the writes is known to the bus only, and one that failed may have been made.
            known.reported.insert(write.key.clone(), None);
            self.received.fetch_add(1, Ordering::SeqCst);
            self.change_received.notify_one();
        }
    }

    /// Reads the whole state, as after a time without a connection.
    pub(super) async fn reload_state(&self, bus: &dyn Bus) -> Result<(), CallError> {
        let registry = self.service.registry().await?;
        {
            // Changes reported meanwhile are newer, and are applied afterwards.
            let _turn = self.apply_lock.lock().await;
            let start = Instant::now();
            self.lock_keys().reload_start = Some(start);
            for feed in [RegisteredScope::Skills, RegisteredScope::Prompts] {
                let rows = self.list_rows(bus, feed).await?;
                // Held until the rows are applied: a write that is acknowledged meanwhile is newer.
                let known = self.lock_keys();
                let touched: HashSet<String> = {
                    let written = known.own_writes.keys();
                    let touched = known.touched.iter();
                    let touched = touched.filter(|(_, touched)| touched.at >= start);
                    let keys = touched.map(|(key, _)| key).chain(written);
                    let keys = keys.filter(|(of, _)| *of == feed);
                    keys.map(|(_, key)| key.clone()).collect()
                };
                let rows = rows.iter().map(|(key, value)| (key.as_str(), value.get()));
                registry.apply_bus_values(feed, rows, |key| touched.contains(key));
                drop(known);
            }
            self.lock_keys().reload_start = None;
        }
        self.probe_changes(bus).await;
        Ok(())
    }

    /// Returns every row of a scope. Rows without a name are skipped.
    async fn list_rows(
        &self,
        bus: &dyn Bus,
        feed: RegisteredScope,
    ) -> Result<Vec<(String, Box<RawValue>)>, CallError> {
        let mut rows = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut payload = json!({"scope": self.scope_for_feed(feed), "limit": PAGE_SIZE});
            if let Some(cursor) = &cursor {
                payload["cursor"] = json!(cursor);
            }
            let listed = bus
                .call_function("state::list", payload, LIST_TIMEOUT)
                .await?;
            let unreadable = |error: serde_json::Error| {
                CallError::new("internal", format!("the state cannot be listed: {error}"))
            };
            match listed.trim_start().as_bytes().first() {
                // An engine does not support pages.
                Some(b'[') => {
                    let values: Vec<Box<RawValue>> =
                        repertoire_core::json::from_str(&listed).map_err(unreadable)?;
                    for value in values {
                        let named = repertoire_core::json::from_str::<RowName>(value.get()).ok();
                        if let Some(key) = named.and_then(|named| named.into_key(feed)) {
                            rows.push((key, value));
                        } else {
                            tracing::warn!("skipped a row without a name");
                        }
                    }
                    return Ok(rows);
                }
                Some(b'{') => {
                    let page: StatePage =
                        repertoire_core::json::from_str(&listed).map_err(unreadable)?;
                    rows.extend(page.items.into_iter().map(|item| (item.key, item.value)));
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        return Ok(rows);
                    }
                }
                // The scope was never written.
                _ => return Ok(rows),
            }
        }
    }

    /// Finds out once whether the bus reports changes: from its list of trigger types, or by a write where
    /// it has no such list.
    async fn probe_changes(&self, bus: &dyn Bus) {
        if self.probed.load(Ordering::Relaxed) || self.is_unfollowed() {
            return;
        }
        let known = match self.lists_state_trigger(bus).await {
            Some(is_listed) => {
                self.reports_changes.store(is_listed, Ordering::Relaxed);
                true
            }
            None => self.probe_by_write(bus).await,
        };
        self.probed.store(known, Ordering::Relaxed);
        if known && !self.reports_changes.load(Ordering::Relaxed) {
            tracing::warn!(
                "this bus does not report changes of its state: the state is read again before every \
                 listing"
            );
        }
    }

    /// Whether the bus lists the trigger type `state`; `None` if it does not list trigger types.
    async fn lists_state_trigger(&self, bus: &dyn Bus) -> Option<bool> {
        let listed = bus.call_function("engine::triggers::list", json!({}), self.deadline);
        let listed: Value = repertoire_core::json::from_str(&listed.await.ok()?).ok()?;
        let types = listed["triggers"].as_array()?;
        // Older buses list subscriptions under this name.
        let is_type = |row: &&Value| row["id"].is_string() && row["trigger_type"].is_null();
        let mut types = types.iter().filter(is_type).peekable();
        types.peek()?;
        Some(types.any(|row| row["id"] == "state"))
    }

    /// Writes a value and sees whether its event arrives; returns whether that could be tried.
    async fn probe_by_write(&self, bus: &dyn Bus) -> bool {
        let row = json!({"scope": PROBE_SCOPE, "key": uuid::Uuid::new_v4()});
        let mut set = row.clone();
        set["value"] = json!(true);
        let set = bus.call_function("state::set", set, self.deadline).await;
        let start = Instant::now();
        while set.is_ok()
            && !self.reports_changes.load(Ordering::Relaxed)
            && start.elapsed() < PROBE_TIMEOUT
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = bus.call_function("state::delete", row, self.deadline).await;
        set.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker_with_write(value: &Value) -> (KeyTracker, FeedKey) {
        let mut known = KeyTracker::default();
        let key = (RegisteredScope::Skills, "demo".to_owned());
        let write = UnacknowledgedWrite {
            count: 1,
            fingerprint: known.fingerprint(Some(value)),
            is_echoed: false,
            is_contested: false,
        };
        known.own_writes.insert(key.clone(), write);
        (known, key)
    }

    #[test]
    fn the_event_of_an_own_write_is_skipped_once() {
        let value = json!({"id": "demo", "skill": "# Demo"});
        let reordered = json!({"skill": "# Demo", "id": "demo"});
        // Before the write is acknowledged.
        let (mut known, key) = tracker_with_write(&value);
        assert!(known.is_own_echo(&key, &reordered));
        assert!(!known.is_own_echo(&key, &reordered));
        assert!(known.own_writes[&key].is_contested);
        // And after it.
        let mut known = KeyTracker::default();
        let echo = known.fingerprint(Some(&value));
        known.mark_touched(&key).echo = Some(echo);
        assert!(known.is_own_echo(&key, &reordered));
        assert!(!known.is_own_echo(&key, &reordered));
    }

    #[test]
    fn a_foreign_event_means_that_the_bus_is_asked() {
        let value = json!({"id": "demo", "skill": "# Ours"});
        let theirs = json!({"id": "demo", "skill": "# Theirs"});
        let (mut known, key) = tracker_with_write(&value);
        assert!(!known.is_own_echo(&key, &theirs));
        assert!(known.own_writes[&key].is_contested);
        // What comes later may be older than theirs.
        assert!(!known.is_own_echo(&key, &value));
        let mut known = KeyTracker::default();
        let echo = known.fingerprint(Some(&value));
        known.mark_touched(&key).echo = Some(echo);
        assert!(!known.is_own_echo(&key, &Value::Null));
        assert!(!known.is_own_echo(&key, &value));
    }
}
