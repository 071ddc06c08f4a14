//! Changes of the catalogue as the two trigger types tell them.
//!
//! A registration is told each time, even if nothing in it is new: subscribers rely on it. What
//! changes in files is told as far as it can be seen.

use std::{sync::Arc, time::Duration};

use repertoire_registry::{Event, Kind, Op, Origin, Snapshot};
use serde_json::{Value, json};

use crate::engine::Engine;

const SKILLS: &str = "skills::on-change";
const PROMPTS: &str = "prompts::on-change";

/// Tells every change to `tell`, by trigger type, until the engine shuts down.
pub(crate) async fn follow(engine: Arc<Engine>, tell: impl Fn(&'static str, &Value)) {
    let mut changes = engine.changes();
    let Ok(registry) = engine.registry().await else {
        return;
    };
    let mut known = registry.snapshot();
    let mut seen = known.seq();
    loop {
        tokio::select! {
            alive = changes.changed() => if alive.is_err() { return },
            () = engine.stop.cancelled() => return,
        }
        let snapshot = registry.snapshot();
        let Ok(events) = registry.wait_events(seen, Duration::ZERO) else {
            // Too many to be kept one by one: what is different is told.
            tell_difference(&known, &snapshot, &tell);
            seen = snapshot.seq();
            known = snapshot;
            continue;
        };
        for event in events {
            seen = event.seq;
            if let Some((kind, payload)) = told(&snapshot, &event) {
                tell(kind, &payload);
            }
        }
        known = snapshot;
    }
}

/// Tells what is another in one snapshot than in an older one.
fn tell_difference(old: &Snapshot, new: &Snapshot, tell: &impl Fn(&'static str, &Value)) {
    for entry in new.skills() {
        if old
            .get(&entry.id)
            .is_none_or(|was| !Arc::ptr_eq(was, entry))
        {
            tell(SKILLS, &json!({"op": "register", "id": entry.id}));
        }
    }
    for entry in old.skills().filter(|entry| new.get(&entry.id).is_none()) {
        tell(SKILLS, &json!({"op": "unregister", "id": entry.id}));
    }
    for entry in new.prompts() {
        let name = &entry.prompt.name;
        if old.prompt(name).is_none_or(|was| !Arc::ptr_eq(was, entry)) {
            tell(PROMPTS, &json!({"op": "register", "name": name}));
        }
    }
    let gone = old.prompts().map(|entry| &entry.prompt.name);
    for name in gone.filter(|name| new.prompt(name).is_none()) {
        tell(PROMPTS, &json!({"op": "unregister", "name": name}));
    }
}

/// What a change is to a subscriber, if it is anything.
fn told(snapshot: &Snapshot, event: &Event) -> Option<(&'static str, Value)> {
    let winner = match event.kind {
        Kind::Skill => {
            let id = event.id.parse().ok()?;
            snapshot.get(&id).map(|entry| &entry.origin)
        }
        Kind::Prompt => {
            let name = event.id.parse().ok()?;
            snapshot.prompt(&name).map(|entry| &entry.origin)
        }
    };
    let op = match (&event.origin, event.op, winner) {
        (Origin::State, Op::Remove, _) => "unregister",
        (Origin::State, Op::Add | Op::Update, _) => "register",
        // Shadowed before and after: nobody sees a difference.
        (_, _, Some(Origin::State)) => return None,
        (_, _, Some(_)) => "register",
        (_, _, None) => "unregister",
    };
    Some(match event.kind {
        Kind::Skill => (SKILLS, json!({"op": op, "id": event.id})),
        Kind::Prompt => (PROMPTS, json!({"op": op, "name": event.id})),
    })
}
