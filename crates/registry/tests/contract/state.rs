//! Key-value state.

use std::sync::{Barrier, mpsc};

use repertoire_registry::{
    Error,
    store::{StateChange, StateValue},
};

use super::StoreFactory;

pub(super) fn state_value(text: &str) -> StateValue {
    StateValue {
        value: text.to_owned(),
        metadata: None,
    }
}

pub(super) fn values_are_put_kept_and_deleted(factory: &dyn StoreFactory) {
    let store = factory.open();
    let with_metadata = StateValue {
        value: r#"{"a":1}"#.to_owned(),
        metadata: Some("about".to_owned()),
    };
    assert_eq!(store.state_set("s", "k", with_metadata).unwrap(), None);
    let row = store.state_row("s", "k").unwrap().unwrap();
    assert_eq!((&*row.key, row.metadata.as_deref()), ("k", Some("about")));
    let previous = store.state_set("s", "k", state_value("2")).unwrap();
    assert_eq!(previous.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!(store.state_row("s", "k").unwrap().unwrap().metadata, None);
    let kept = store.state_change_wait("s", "k", |old| {
        assert_eq!(old.as_deref(), Some("2"));
        Ok(StateChange::Keep)
    });
    let kept = kept.unwrap();
    assert_eq!((kept.previous.as_deref(), kept.event), (Some("2"), None));
    store.state_set("other", "k", state_value("3")).unwrap();
    drop(store);
    let store = factory.open();
    assert_eq!(store.state_get("s", "k").unwrap().as_deref(), Some("2"));
    assert_eq!(store.state_scopes().unwrap(), ["other", "s"]);
    assert_eq!(store.state_delete("s", "k").unwrap().as_deref(), Some("2"));
    assert_eq!(store.state_delete("s", "k").unwrap(), None);
    assert_eq!(store.state_get("s", "k").unwrap(), None);
    assert_eq!(store.state_scopes().unwrap(), ["other"]);
}

pub(super) fn earlier_values_of_registered_content_are_kept(factory: &dyn StoreFactory) {
    let store = factory.open();
    let row = |body: &str, at: &str| {
        state_value(&format!(
            r#"{{"id":"k","skill":"{body}","registered_at":"{at}"}}"#
        ))
    };
    let bodies = || -> Vec<(i64, Option<String>)> {
        let revisions = store.state_history("skills", "k").unwrap();
        let body = |value: &String| repertoire_registry::registered::row_body(value).unwrap();
        let rows = revisions.iter();
        rows.map(|one| (one.revision, one.value.as_ref().map(body)))
            .collect()
    };
    assert_eq!(bodies(), []);
    store.state_set("skills", "k", row("one", "1")).unwrap();
    // The same content at another time is no revision.
    store.state_set("skills", "k", row("one", "2")).unwrap();
    store.state_set("skills", "k", row("two", "3")).unwrap();
    store.state_delete("skills", "k").unwrap();
    store.state_set("skills", "k", row("three", "4")).unwrap();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        (4, text("three")),
        (3, None),
        (2, text("two")),
        (1, text("one")),
    ];
    assert_eq!(bodies(), expected);
    store.purge_state_history("skills", "k").unwrap();
    assert_eq!(bodies(), [(1, text("three"))]);
    // Values of other scopes have no history.
    store.state_set("other", "k", state_value("1")).unwrap();
    store.state_set("other", "k", state_value("2")).unwrap();
    assert_eq!(store.state_history("other", "k").unwrap().len(), 1);
}

pub(super) fn refused_changes_leave_the_value(factory: &dyn StoreFactory) {
    let store = factory.open();
    store.state_set("s", "k", state_value("1")).unwrap();
    let cursor = store.event_cursor().unwrap();
    let refused = store.state_change_wait("s", "k", |_| {
        Err(Error::InvalidStateChange("no".to_owned()))
    });
    assert!(
        matches!(refused, Err(Error::InvalidStateChange(_))),
        "{refused:?}"
    );
    assert_eq!(store.state_get("s", "k").unwrap().as_deref(), Some("1"));
    assert!(
        store
            .events_since(&cursor)
            .unwrap()
            .unwrap()
            .events
            .is_empty()
    );
}

pub(super) fn changes_of_one_key_are_atomic_across_handles(factory: &dyn StoreFactory) {
    const CHANGES: usize = 50;
    let store = factory.open();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (store, start) = (factory.open(), &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..CHANGES {
                    let count = |old: Option<String>| {
                        let old: usize = old.map_or(0, |old| old.parse().unwrap());
                        Ok(StateChange::Put(state_value(&(old + 1).to_string())))
                    };
                    store.state_change_wait("s", "count", count).unwrap();
                }
            });
        }
    });
    let count = store.state_get("s", "count").unwrap().unwrap();
    assert_eq!(count, (2 * CHANGES).to_string());
}

pub(super) fn callbacks_come_in_the_order_of_the_calls(factory: &dyn StoreFactory) {
    let store = factory.open();
    let (sender, order) = mpsc::channel();
    for n in 0..100 {
        let sender = sender.clone();
        let key = format!("k{}", n % 3);
        let work = Box::new(move |_| Ok(StateChange::Put(state_value(&n.to_string()))));
        let then = Box::new(move |done: repertoire_registry::Result<_>| {
            done.unwrap();
            sender.send(n).unwrap();
        });
        store.state_change("s", &key, work, then).unwrap();
    }
    drop(sender);
    let order: Vec<i32> = order.iter().collect();
    assert_eq!(order, (0..100).collect::<Vec<i32>>());
    assert_eq!(store.state_get("s", "k0").unwrap().as_deref(), Some("99"));
}

pub(super) fn pages_are_sorted_and_bounded(factory: &dyn StoreFactory) {
    let store = factory.open();
    for key in ["c", "a", "b", "d"] {
        store.state_set("s", key, state_value("12345")).unwrap();
    }
    let page = |after: Option<&str>, limit: usize, bytes: usize| -> String {
        let rows = store.state_page("s", after, limit, bytes).unwrap();
        rows.into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!(page(None, 10, 1000), "abcd");
    assert_eq!(page(None, 2, 1000), "ab");
    assert_eq!(page(Some("b"), 10, 1000), "cd");
    assert_eq!(page(Some("d"), 10, 1000), "");
    // A value over the limit is returned alone, so that a reader always gets further.
    assert_eq!(page(None, 10, 1), "a");
    assert_eq!(page(None, 10, 13), "ab");
    // By bytes, not by the rules of a language.
    for key in ["ä", "a/b", "B", "a", "a-b"] {
        store.state_set("odd", key, state_value("1")).unwrap();
    }
    let odd = store.state_page("odd", None, 10, 1000).unwrap();
    let odd: Vec<String> = odd.into_iter().map(|(key, _)| key).collect();
    assert_eq!(odd, ["B", "a", "a-b", "a/b", "ä"]);
    let rows: String = store
        .state_rows("s")
        .unwrap()
        .into_iter()
        .map(|row| row.key)
        .collect();
    assert_eq!(rows, "abcd");
}
