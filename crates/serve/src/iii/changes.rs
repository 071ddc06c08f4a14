//! Publishes changes of the catalogue to the subscribers of the two trigger types.
//!
//! Every registration is published, even if nothing in it is new, because subscribers rely on it.
//! Changes in files are published when they change a visible entry.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use repertoire_registry::{
    AccountSkills, CatalogueEvent, EventOp, ItemKind, Origin, Registry, Snapshot, Trusted,
};
use serde_json::{Value, json};

use super::functions::bus_snapshot;
use crate::service::SkillService;

const SKILLS_TRIGGER: &str = "skills::on-change";
const PROMPTS_TRIGGER: &str = "prompts::on-change";

/// Called with the trigger type and the payload of a change.
type NotifyFollowers = dyn Fn(&'static str, &Value) + Send + Sync;

/// Publishes the changes of a catalogue, each once and in order, whichever task asks for it first.
pub(crate) struct ChangePublisher {
    registry: Weak<Registry>,
    account: AccountSkills,
    notify: Box<NotifyFollowers>,
    published: Mutex<PublishedState>,
}

/// What the followers know.
struct PublishedState {
    seq: u64,
    snapshot: Arc<Snapshot>,
}

impl fmt::Debug for ChangePublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangePublisher").finish_non_exhaustive()
    }
}

impl ChangePublisher {
    fn new(registry: &Arc<Registry>, account: AccountSkills, notify: Box<NotifyFollowers>) -> Self {
        let snapshot = bus_snapshot(registry, account);
        let seq = snapshot.seq();
        Self {
            registry: Arc::downgrade(registry),
            account,
            notify,
            published: Mutex::new(PublishedState { seq, snapshot }),
        }
    }

    /// Publishes every change that was made so far. Returns false if the registry is gone.
    ///
    /// A writer calls this before it answers, so that a follower that joins later does not hear of what
    /// was written before.
    pub(crate) fn publish_pending(&self) -> bool {
        let Some(registry) = self.registry.upgrade() else {
            return false;
        };
        let mut published = self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Events first: a snapshot taken later contains all of them.
        let events = registry.wait_events(published.seq, Duration::ZERO);
        let Ok(events) = events else {
            // Events were dropped: publish the difference between the two snapshots.
            let snapshot = bus_snapshot(&registry, self.account);
            publish_difference(&published.snapshot, &snapshot, &*self.notify);
            published.seq = snapshot.seq();
            published.snapshot = snapshot;
            return true;
        };
        if events.is_empty() {
            return true;
        }
        let snapshot = bus_snapshot(&registry, self.account);
        for event in events {
            published.seq = event.seq;
            if event.origin == Origin::Account && self.account == AccountSkills::Hidden {
                continue;
            }
            if let Some((kind, payload)) = trigger_payload(&snapshot, &event) {
                (self.notify)(kind, &payload);
            }
        }
        published.snapshot = snapshot;
        true
    }
}

/// Passes every change to the callback, by trigger type, until the service shuts down or is dropped.
pub(crate) fn publish_changes<F: Fn(&'static str, &Value) + Send + Sync + 'static>(
    service: &Arc<SkillService>,
    account: AccountSkills,
    notify: F,
) -> impl Future<Output = ()> + use<F> {
    let (place, stop) = (service.publisher.clone(), service.stop.clone());
    let live = service.live_registry().clone();
    let notify: Box<NotifyFollowers> = Box::new(notify);
    async move {
        let (publisher, mut changes) = match live.registry().await {
            Ok(registry) => {
                let changes = registry.subscribe_changes();
                let publisher = ChangePublisher::new(registry, account, notify);
                (Arc::new(publisher), changes)
            }
            Err(_) => return,
        };
        drop(live);
        place.store(Some(publisher.clone()));
        let follow =
            async { while publisher.publish_pending() && changes.changed().await.is_ok() {} };
        tokio::select! {
            () = follow => {}
            () = stop.cancelled() => {}
        }
        place.store(None);
    }
}

/// Publishes the difference between two snapshots.
fn publish_difference(old: &Snapshot, new: &Snapshot, notify: &NotifyFollowers) {
    for entry in new.skills() {
        if old
            .get(&entry.id)
            .is_none_or(|was| !Arc::ptr_eq(was, entry))
        {
            let mut payload = json!({"op": "register", "id": entry.id});
            if entry.trusted == Trusted::No {
                payload["trust"] = "untrusted".into();
            }
            notify(SKILLS_TRIGGER, &payload);
        }
    }
    for entry in old.skills().filter(|entry| new.get(&entry.id).is_none()) {
        notify(SKILLS_TRIGGER, &json!({"op": "unregister", "id": entry.id}));
    }
    for entry in new.prompts().filter(|entry| entry.trusted == Trusted::Yes) {
        let name = &entry.prompt.name;
        if old
            .find_prompt(name)
            .is_none_or(|was| !Arc::ptr_eq(was, entry))
        {
            notify(PROMPTS_TRIGGER, &json!({"op": "register", "name": name}));
        }
    }
    let gone = old.prompts().map(|entry| &entry.prompt.name);
    for name in gone.filter(|name| new.find_prompt(name).is_none()) {
        notify(PROMPTS_TRIGGER, &json!({"op": "unregister", "name": name}));
    }
}

/// Returns the trigger type and payload for a change, or `None` if no subscriber can see it.
fn trigger_payload(snapshot: &Snapshot, event: &CatalogueEvent) -> Option<(&'static str, Value)> {
    let (origin, trusted) = match event.kind {
        ItemKind::Skill => {
            let entry = snapshot.get(&event.id.parse().ok()?);
            entry.map(|entry| (&entry.origin, entry.trusted)).unzip()
        }
        ItemKind::Prompt => {
            let entry = snapshot.find_prompt(&event.id.parse().ok()?);
            entry.map(|entry| (&entry.origin, entry.trusted)).unzip()
        }
    };
    let is_untrusted = trusted == Some(Trusted::No);
    let op = match (&event.origin, event.op, origin) {
        (Origin::State, EventOp::Remove, _) => "unregister",
        (Origin::State, EventOp::Add | EventOp::Update, _) => "register",
        // Shadowed before and after the change: subscribers see no difference.
        (_, _, Some(Origin::State)) => return None,
        (_, _, Some(_)) => "register",
        (_, _, None) => "unregister",
    };
    let (kind, mut payload) = match event.kind {
        ItemKind::Skill => (SKILLS_TRIGGER, json!({"op": op, "id": event.id})),
        // The bus lists no untrusted prompts.
        ItemKind::Prompt if is_untrusted => return None,
        ItemKind::Prompt => (PROMPTS_TRIGGER, json!({"op": op, "name": event.id})),
    };
    if is_untrusted {
        payload["trust"] = "untrusted".into();
    }
    Some((kind, payload))
}
