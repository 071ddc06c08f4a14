//! Publishes changes of the catalogue to the subscribers of the two trigger types.
//!
//! Every registration is published, even if nothing in it is new, because subscribers rely on it.
//! Changes in files are published when they change a visible entry.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use repertoire_registry::{
    AccountSkills, CatalogueEvent, EventOp, ItemKind, Origin, Registry, Snapshot, Trusted,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::functions::bus_snapshot;
use crate::service::SkillService;

const SKILLS_TRIGGER: &str = "skills::on-change";
const PROMPTS_TRIGGER: &str = "prompts::on-change";

/// Passes every change to the callback, by trigger type, until the service shuts down or is dropped.
pub(crate) fn publish_changes<F: Fn(&'static str, &Value)>(
    service: &Arc<SkillService>,
    account: AccountSkills,
    notify: F,
) -> impl Future<Output = ()> + use<F> {
    let (changes, stop) = (service.subscribe_changes(), service.stop.clone());
    let published = service.published.clone();
    let live = service.live_registry().clone();
    async move {
        let registry = match live.registry().await {
            Ok(registry) => Arc::downgrade(registry),
            Err(_) => return,
        };
        drop(live);
        tokio::select! {
            () = follow_catalogue(changes, registry, account, &published, &notify) => {}
            () = stop.cancelled() => {}
        }
    }
}

async fn follow_catalogue(
    mut changes: watch::Receiver<u64>,
    registry: Weak<Registry>,
    account: AccountSkills,
    published: &watch::Sender<u64>,
    notify: &impl Fn(&'static str, &Value),
) {
    let first = registry.upgrade();
    let Some(mut known) = first.map(|registry| bus_snapshot(&registry, account)) else {
        return;
    };
    let mut seen = known.seq();
    published.send_replace(seen);
    while changes.changed().await.is_ok() {
        let Some(registry) = registry.upgrade() else {
            return;
        };
        // Events first: a snapshot taken later contains all of them.
        let events = registry.wait_events(seen, Duration::ZERO);
        let snapshot = bus_snapshot(&registry, account);
        let Ok(events) = events else {
            // Events were dropped: publish the difference between the two snapshots.
            publish_difference(&known, &snapshot, notify);
            seen = snapshot.seq();
            published.send_replace(seen);
            known = snapshot;
            continue;
        };
        for event in events {
            seen = event.seq;
            if event.origin == Origin::Account && account == AccountSkills::Hidden {
                continue;
            }
            if let Some((kind, payload)) = trigger_payload(&snapshot, &event) {
                notify(kind, &payload);
            }
        }
        published.send_replace(seen);
        known = snapshot;
    }
}

/// Publishes the difference between two snapshots.
fn publish_difference(old: &Snapshot, new: &Snapshot, notify: &impl Fn(&'static str, &Value)) {
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
