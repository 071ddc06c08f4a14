//! Events and cursors.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use repertoire_core::SkillId;
use repertoire_registry::{
    HistoryPolicy,
    store::{EventBatch, EventCursor, StateChange, Store, StoreItem},
};

use super::{StoreFactory, skills::new_skill, state::state_value};

fn events_since(store: &dyn Store, cursor: &EventCursor) -> EventBatch {
    store.events_since(cursor).unwrap().unwrap()
}

/// Returns the events as words, sorted: there is no order between different items.
fn event_words(batch: &EventBatch) -> Vec<String> {
    let mut words: Vec<String> = batch
        .events
        .iter()
        .map(|event| {
            let sign = if event.removed { '-' } else { '+' };
            match &event.item {
                StoreItem::Skill(id) => format!("{sign}{id}"),
                StoreItem::State { scope, key } => format!("{sign}{scope}/{key}"),
            }
        })
        .collect();
    words.sort();
    words
}

pub(super) fn every_change_has_one_event(factory: &dyn StoreFactory) {
    let store = factory.open();
    let start = store.event_cursor().unwrap();
    store
        .put_skills(vec![new_skill("a", "1"), new_skill("b", "1")])
        .unwrap();
    store.put_skills(vec![new_skill("a", "1")]).unwrap();
    store.state_set("s", "k", state_value("1")).unwrap();
    store.state_delete("s", "missing").unwrap();
    let id: SkillId = "b".parse().unwrap();
    store.remove_skill(&id, HistoryPolicy::Keep).unwrap();
    store.remove_skill(&id, HistoryPolicy::Keep).unwrap();
    store.put_note("n", "1").unwrap();
    let batch = events_since(&*store, &start);
    assert_eq!(event_words(&batch), ["+a", "+b", "+s/k", "-b"]);
    let ids: HashSet<_> = batch.events.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), batch.events.len());
    let outcome = store.state_change_wait("s", "k", |_| Ok(StateChange::Delete));
    let next = events_since(&*store, &batch.cursor);
    assert_eq!(event_words(&next), ["-s/k"]);
    assert_eq!(Some(next.events[0].id), outcome.unwrap().event);
    assert!(events_since(&*store, &next.cursor).events.is_empty());
}

pub(super) fn a_follower_on_another_handle_sees_every_change(factory: &dyn StoreFactory) {
    const WRITES: usize = 50;
    let reader = factory.open();
    let mut cursor = reader.event_cursor().unwrap();
    let mut seen = HashSet::new();
    std::thread::scope(|scope| {
        let writers: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|writer| {
                let store = factory.open();
                scope.spawn(move || {
                    for n in 0..WRITES {
                        let key = format!("{writer}{n}");
                        store.state_set("s", &key, state_value("1")).unwrap();
                    }
                })
            })
            .collect();
        let mut follow = || {
            let batch = events_since(&*reader, &cursor);
            for event in batch.events {
                let StoreItem::State { key, .. } = event.item else {
                    panic!("only state was changed")
                };
                assert!(seen.insert(key), "an event came twice");
            }
            cursor = batch.cursor;
        };
        while writers.iter().any(|writer| !writer.is_finished()) {
            follow();
        }
        follow();
    });
    assert_eq!(seen.len(), 2 * WRITES);
}

/// Two handles put and delete one value; what they did, in the order of the commits, is what a
/// follower sees.
pub(super) fn events_of_one_item_come_in_commit_order(factory: &dyn StoreFactory) {
    const CHANGES: usize = 40;
    let store = factory.open();
    let start = store.event_cursor().unwrap();
    let done: Arc<Mutex<Vec<bool>>> = Arc::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (store, done) = (factory.open(), done.clone());
            scope.spawn(move || {
                for _ in 0..CHANGES {
                    let done = done.clone();
                    // Called while no other change of the key can happen.
                    let flip = move |old: Option<String>| {
                        done.lock().unwrap().push(old.is_some());
                        Ok(match old {
                            Some(_) => StateChange::Delete,
                            None => StateChange::Put(state_value("1")),
                        })
                    };
                    store.state_change_wait("s", "k", flip).unwrap();
                }
            });
        }
    });
    let batch = events_since(&*store, &start);
    let removed: Vec<bool> = batch.events.iter().map(|event| event.removed).collect();
    assert_eq!(removed, *done.lock().unwrap());
    assert_eq!(removed.len(), 2 * CHANGES);
}

pub(super) fn an_unreadable_cursor_means_reading_everything(factory: &dyn StoreFactory) {
    let store = factory.open();
    let odd = EventCursor::new("of another store");
    assert_eq!(store.events_since(&odd).unwrap(), None);
}
