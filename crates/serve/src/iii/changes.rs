//! Changes of the catalogue as the two trigger types tell them.
//!
//! A registration is told each time, even if nothing in it is new: subscribers rely on it. What
//! changes in files is told as far as it can be seen.

use std::{sync::Arc, time::Duration};

use repertoire_registry::{Event, Kind, Op, Origin, Snapshot};
use serde_json::{Value, json};

use crate::engine::Engine;

/// Tells every change to `tell`, by trigger type, until the engine shuts down.
pub(crate) async fn follow(engine: Arc<Engine>, tell: impl Fn(&'static str, &Value)) {
    let mut changes = engine.changes();
    let Ok(registry) = engine.registry().await else {
        return;
    };
    let mut seen = registry.snapshot().seq();
    loop {
        tokio::select! {
            alive = changes.changed() => if alive.is_err() { return },
            () = engine.stop.cancelled() => return,
        }
        let Ok(events) = registry.wait_events(seen, Duration::ZERO) else {
            tracing::warn!("changes came faster than they could be told: some were not");
            seen = registry.snapshot().seq();
            continue;
        };
        let snapshot = registry.snapshot();
        for event in events {
            seen = event.seq;
            if let Some((kind, payload)) = told(&snapshot, &event) {
                tell(kind, &payload);
            }
        }
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
        Kind::Skill => ("skills::on-change", json!({"op": op, "id": event.id})),
        Kind::Prompt => ("prompts::on-change", json!({"op": op, "name": event.id})),
    })
}
