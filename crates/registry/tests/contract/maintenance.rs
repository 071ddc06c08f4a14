//! Cleanup, sizes, backup and restore.

use std::time::Duration;

use repertoire_core::SkillId;
use repertoire_registry::{
    Error, HistoryPolicy,
    store::{RetentionPolicy, StateValue, StoreUsage, WriteMode},
};

use super::{StoreFactory, skills::new_skill};

/// A policy that keeps nothing of the past.
const NOTHING: RetentionPolicy = RetentionPolicy {
    traces: Duration::ZERO,
    history: Duration::ZERO,
    min_revisions: 0,
};

fn registered(body: &str) -> StateValue {
    StateValue {
        value: format!(r#"{{"skill":"{body}"}}"#),
        metadata: None,
    }
}

pub(super) fn cleanup_deletes_only_what_is_superseded_and_old(factory: &dyn StoreFactory) {
    let store = factory.open();
    let (kept, gone): (SkillId, SkillId) = ("kept".parse().unwrap(), "gone".parse().unwrap());
    for body in ["1", "2", "3"] {
        store
            .put_skills(vec![new_skill("kept", body), new_skill("gone", body)])
            .unwrap();
        store.state_set("skills", "r", registered(body)).unwrap();
    }
    store.remove_skill(&gone, HistoryPolicy::Keep).unwrap();
    for body in ["1", "2"] {
        store.state_set("skills", "gone", registered(body)).unwrap();
    }
    store.state_delete("skills", "gone").unwrap();
    store.put_note("mine", "note").unwrap();
    let usage = || StoreUsage {
        bytes: 0,
        journal_bytes: 0,
        ..store.usage().unwrap()
    };
    let before = usage();
    assert_eq!((before.skills, before.revisions), (1, 7));
    assert_eq!((before.state_values, before.registered_revisions), (1, 5));
    // Everything is young.
    let young = store.collect_garbage(&RetentionPolicy::default(), WriteMode::Commit);
    assert!(young.unwrap().is_empty());
    // The clock of a revision has milliseconds.
    std::thread::sleep(Duration::from_millis(5));
    let planned = store.collect_garbage(&NOTHING, WriteMode::DryRun).unwrap();
    assert_eq!(usage(), before, "a dry run changes nothing");
    let deleted = store.collect_garbage(&NOTHING, WriteMode::Commit).unwrap();
    assert_eq!(deleted, planned);
    assert_eq!((deleted.revisions, deleted.registered_revisions), (6, 3));
    // What is registered now keeps its earlier values and their numbers.
    let numbers = store.state_history("skills", "r").unwrap();
    let numbers: Vec<i64> = numbers.iter().map(|one| one.revision).collect();
    assert_eq!(numbers, [3, 2, 1]);
    assert_eq!(deleted.files, 5, "the current file of one skill is needed");
    let document = store.read_files(&kept).unwrap();
    assert_eq!(document.len(), 1);
    assert_eq!(store.history(&kept).unwrap().len(), 1);
    assert!(store.history(&gone).unwrap().is_empty());
    let current = store.state_get("skills", "r").unwrap().unwrap();
    assert!(current.contains('3'), "{current}");
    assert_eq!(store.note("mine").unwrap().as_deref(), Some("note"));
    let again = store.collect_garbage(&NOTHING, WriteMode::Commit);
    assert!(again.unwrap().is_empty());
    // The newest revisions stay whatever their age.
    for body in ["4", "5"] {
        store.put_skills(vec![new_skill("kept", body)]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(5));
    let two = RetentionPolicy {
        min_revisions: 2,
        ..NOTHING
    };
    let deleted = store.collect_garbage(&two, WriteMode::Commit).unwrap();
    assert_eq!(deleted.revisions, 1);
    let numbers: Vec<i64> = store
        .history(&kept)
        .unwrap()
        .iter()
        .map(|one| one.revision)
        .collect();
    assert_eq!(numbers, [5, 4]);
}

pub(super) fn a_backup_brings_back_everything_and_followers_notice(factory: &dyn StoreFactory) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy.db");
    let store = factory.open();
    store.put_skills(vec![new_skill("one", "1")]).unwrap();
    store.state_set("skills", "r", registered("1")).unwrap();
    let id = store.store_id().unwrap();
    store.back_up(&file).unwrap();
    assert!(matches!(
        store.back_up(&file),
        Err(Error::AlreadyExists { .. })
    ));
    store.put_skills(vec![new_skill("two", "2")]).unwrap();
    store.state_delete("skills", "r").unwrap();
    // Another process follows.
    let follower = factory.open();
    let cursor = follower.event_cursor().unwrap();
    let kept = store.restore(&file).unwrap();
    assert_eq!(follower.events_since(&cursor).unwrap(), None);
    for handle in [&store, &follower] {
        let ids: Vec<String> = handle
            .all_metadata()
            .unwrap()
            .iter()
            .map(|(id, _)| id.to_string())
            .collect();
        assert_eq!(ids, ["one"]);
        assert!(handle.state_get("skills", "r").unwrap().is_some());
        assert_eq!(handle.store_id().unwrap(), id);
        handle.check_integrity().unwrap();
    }
    // Both go on, and see each other.
    let cursor = follower.event_cursor().unwrap();
    store.put_skills(vec![new_skill("three", "3")]).unwrap();
    let batch = follower.events_since(&cursor).unwrap().unwrap();
    assert_eq!(batch.events.len(), 1);
    // What was replaced is kept.
    store.restore(&kept).unwrap();
    assert_eq!(store.all_metadata().unwrap().len(), 2);
    // What is not a backup changes nothing.
    let odd = folder.path().join("odd.db");
    for content in ["", "x", "not a store"] {
        std::fs::write(&odd, content).unwrap();
        assert!(store.restore(&odd).is_err(), "{content:?}");
    }
    std::fs::write(folder.path().join("copy.db-wal"), "planted").unwrap();
    assert!(store.restore(&file).is_err(), "a backup has no journal");
    assert!(store.restore(&folder.path().join("missing.db")).is_err());
    assert_eq!(store.all_metadata().unwrap().len(), 2);
}

pub(super) fn a_restore_loses_no_acknowledged_write(factory: &dyn StoreFactory) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("copy.db");
    let store = factory.open();
    store.state_set("s", "first", registered("x")).unwrap();
    store.back_up(&file).unwrap();
    let (kept, written) = std::thread::scope(|scope| {
        let writer = factory.open();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let writing = scope.spawn(move || {
            let mut n = 0;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                writer
                    .state_set("s", &format!("k{n}"), registered("x"))
                    .unwrap();
                n += 1;
            }
            n
        });
        std::thread::sleep(Duration::from_millis(50));
        let kept = store.restore(&file).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        drop(stop);
        (kept, writing.join().unwrap())
    });
    let keys = || -> Vec<String> {
        let rows = store.state_page("s", None, usize::MAX, usize::MAX).unwrap();
        rows.into_iter().map(|(key, _)| key).collect()
    };
    let after = keys();
    store.restore(&kept).unwrap();
    let before = keys();
    for n in 0..written {
        let key = format!("k{n}");
        let found = after.contains(&key) || before.contains(&key);
        assert!(found, "{key} of {written} is in neither");
    }
}

pub(super) fn a_backup_is_consistent_while_others_write(factory: &dyn StoreFactory) {
    let folder = tempfile::tempdir().unwrap();
    let store = factory.open();
    let pair = |n: usize| {
        let body = n.to_string();
        vec![new_skill("left", &body), new_skill("right", &body)]
    };
    store.put_skills(pair(0)).unwrap();
    std::thread::scope(|scope| {
        let writer = factory.open();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let mut n = 1;
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                writer.put_skills(pair(n)).unwrap();
                n += 1;
            }
        });
        for n in 0..10 {
            let file = folder.path().join(format!("{n}.db"));
            store.back_up(&file).unwrap();
        }
        drop(stop);
    });
    for n in 0..10 {
        store
            .restore(&folder.path().join(format!("{n}.db")))
            .unwrap();
        let text = |id: &str| {
            let files = store.read_files(&id.parse().unwrap()).unwrap();
            let bytes = files.into_values().next().unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let (left, right) = (text("left"), text("right"));
        assert_eq!(left.replace("left", "right"), right);
    }
}
