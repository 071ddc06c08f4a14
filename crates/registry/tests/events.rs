//! The listing is always the fold of the events, also under concurrent changes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use common::{document_text, write_skill};
use proptest::prelude::*;
use repertoire_core::RelPath;
use repertoire_registry::{
    CatalogueEvent, EventOp, HistoryPolicy, Registry, RegistrySettings, Snapshot, StoreScope,
    store::NewSkill,
};

type ListingKeys = BTreeSet<(String, String)>;

fn fold_events(listing: &mut ListingKeys, events: &[CatalogueEvent]) {
    for event in events {
        let key = (event.origin.to_string(), event.id.clone());
        match event.op {
            EventOp::Add => assert!(listing.insert(key), "added twice: {event:?}"),
            EventOp::Update => assert!(listing.contains(&key), "updated, never added: {event:?}"),
            EventOp::Remove => assert!(listing.remove(&key), "removed, never added: {event:?}"),
        }
    }
}

fn snapshot_listing(snapshot: &Snapshot) -> ListingKeys {
    snapshot
        .all_skills()
        .map(|(entry, _)| (entry.origin.to_string(), entry.id.to_string()))
        .collect()
}

#[derive(Debug, Clone)]
enum TestStep {
    Register(u8),
    Unregister(u8),
    Add(u8),
    Remove(u8),
    Write(u8),
    Delete(u8),
}

fn any_step() -> impl Strategy<Value = TestStep> {
    (0u8..6, 0u8..5).prop_map(|(what, id)| match what {
        0 => TestStep::Register(id),
        1 => TestStep::Unregister(id),
        2 => TestStep::Add(id),
        3 => TestStep::Remove(id),
        4 => TestStep::Write(id),
        _ => TestStep::Delete(id),
    })
}

fn run_steps(registry: &Registry, root: &std::path::Path, steps: &[TestStep], salt: usize) {
    for (n, step) in steps.iter().enumerate() {
        let name = |id: &u8| format!("s{id}");
        match step {
            TestStep::Register(id) => registry
                .register_skill(&name(id).parse().unwrap(), &format!("# {n}\n"))
                .unwrap(),
            TestStep::Unregister(id) => drop(
                registry
                    .unregister_skill(&name(id).parse().unwrap())
                    .unwrap(),
            ),
            TestStep::Add(id) => {
                let document = document_text(&name(id), &format!("{salt} {n}"));
                let files = [(RelPath::document(), document.into())].into();
                let skill = NewSkill::from_files(name(id).parse().unwrap(), files).unwrap();
                registry
                    .add_skills(StoreScope::Account, vec![skill])
                    .unwrap();
            }
            TestStep::Remove(id) => {
                let id = name(id).parse().unwrap();
                registry
                    .remove_skill(StoreScope::Account, &id, HistoryPolicy::Keep)
                    .unwrap();
            }
            TestStep::Write(id) => {
                write_skill(root, &format!("{salt}/{}", name(id)), &format!("{n}"));
                registry.reconcile_paths(&[root.join(format!("{salt}/{}", name(id)))]);
            }
            TestStep::Delete(id) => {
                let _ = std::fs::remove_dir_all(root.join(format!("{salt}/{}", name(id))));
                registry.reconcile_paths(&[root.join(format!("{salt}/{}", name(id)))]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_listing_is_the_fold_of_the_events(
        plans in prop::collection::vec(prop::collection::vec(any_step(), 1..12), 3),
    ) {
        let home = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let registry = Registry::open(RegistrySettings {
            account: Some(home.path().to_owned()),
            ..RegistrySettings::from_folders([root.clone()])
        })
        .unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let mut folded = ListingKeys::new();
                let mut seen = 0;
                loop {
                    let finished = done.load(Ordering::SeqCst);
                    let snapshot = registry.snapshot();
                    let events = registry.wait_events(seen, Duration::from_millis(1)).unwrap();
                    let upto = events.iter().take_while(|e| e.seq <= snapshot.seq()).count();
                    if snapshot.seq() >= seen {
                        fold_events(&mut folded, &events[..upto]);
                        assert_eq!(folded, snapshot_listing(&snapshot), "at {}", snapshot.seq());
                        seen = snapshot.seq();
                    }
                    if finished && seen == registry.snapshot().seq() {
                        return;
                    }
                }
            });
            let writers: Vec<_> = plans
                .iter()
                .enumerate()
                .map(|(salt, plan)| {
                    let (registry, root) = (&registry, &root);
                    scope.spawn(move || run_steps(registry, root, plan, salt))
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::SeqCst);
            follower.join().unwrap();
        });
        // A newly opened registry has the same listing.
        let again = Registry::open(RegistrySettings {
            account: Some(home.path().to_owned()),
            ..RegistrySettings::from_folders([root])
        })
        .unwrap();
        prop_assert_eq!(snapshot_listing(&again.snapshot()), snapshot_listing(&registry.snapshot()));
    }
}

#[test]
fn a_follower_that_fell_behind_gets_lagged() {
    let home = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings).unwrap();
    registry
        .register_skill(&"a".parse().unwrap(), "# A\n")
        .unwrap();
    registry
        .register_skill(&"a".parse().unwrap(), "# A\n")
        .unwrap();
    let ops: Vec<_> = registry
        .wait_events(0, Duration::ZERO)
        .unwrap()
        .iter()
        .map(|e| e.op)
        .collect();
    // Registering the same body again causes an event, because clients rely on it.
    assert_eq!(ops, [EventOp::Add, EventOp::Update]);
    assert!(registry.wait_events(2, Duration::ZERO).unwrap().is_empty());
}
