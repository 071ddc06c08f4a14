//! The listing is always the fold of the events, whatever happens at once.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use common::{document, skill};
use proptest::prelude::*;
use repertoire_core::RelPath;
use repertoire_registry::{
    Event, History, Op, Registry, Scope, Settings, Snapshot, store::NewSkill,
};

type Listing = BTreeSet<(String, String)>;

fn fold(listing: &mut Listing, events: &[Event]) {
    for event in events {
        let key = (event.origin.to_string(), event.id.clone());
        match event.op {
            Op::Add => assert!(listing.insert(key), "added twice: {event:?}"),
            Op::Update => assert!(listing.contains(&key), "updated, never added: {event:?}"),
            Op::Remove => assert!(listing.remove(&key), "removed, never added: {event:?}"),
        }
    }
}

fn listing(snapshot: &Snapshot) -> Listing {
    snapshot
        .all_skills()
        .map(|(entry, _)| (entry.origin.to_string(), entry.id.to_string()))
        .collect()
}

#[derive(Debug, Clone)]
enum Step {
    Register(u8),
    Unregister(u8),
    Add(u8),
    Remove(u8),
    Write(u8),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    (0u8..6, 0u8..5).prop_map(|(what, id)| match what {
        0 => Step::Register(id),
        1 => Step::Unregister(id),
        2 => Step::Add(id),
        3 => Step::Remove(id),
        4 => Step::Write(id),
        _ => Step::Delete(id),
    })
}

fn run(registry: &Registry, root: &std::path::Path, steps: &[Step], salt: usize) {
    for (n, step) in steps.iter().enumerate() {
        let name = |id: &u8| format!("s{id}");
        match step {
            Step::Register(id) => registry
                .register(&name(id).parse().unwrap(), &format!("# {n}\n"))
                .unwrap(),
            Step::Unregister(id) => drop(registry.unregister(&name(id).parse().unwrap()).unwrap()),
            Step::Add(id) => {
                let document = document(&name(id), &format!("{salt} {n}"));
                let files = [(RelPath::document(), document.into())].into();
                let skill = NewSkill::from_files(name(id).parse().unwrap(), files).unwrap();
                registry.add(Scope::Account, vec![skill]).unwrap();
            }
            Step::Remove(id) => {
                let id = name(id).parse().unwrap();
                registry.remove(Scope::Account, &id, History::Keep).unwrap();
            }
            Step::Write(id) => {
                skill(root, &format!("{salt}/{}", name(id)), &format!("{n}"));
                registry.reconcile(&[root.join(format!("{salt}/{}", name(id)))]);
            }
            Step::Delete(id) => {
                let _ = std::fs::remove_dir_all(root.join(format!("{salt}/{}", name(id))));
                registry.reconcile(&[root.join(format!("{salt}/{}", name(id)))]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn the_listing_is_the_fold_of_the_events(
        plans in prop::collection::vec(prop::collection::vec(step(), 1..12), 3),
    ) {
        let home = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let registry = Registry::open(Settings {
            account: Some(home.path().to_owned()),
            ..Settings::of_folders([root.clone()])
        })
        .unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let mut folded = Listing::new();
                let mut seen = 0;
                loop {
                    let finished = done.load(Ordering::SeqCst);
                    let snapshot = registry.snapshot();
                    let events = registry.wait_events(seen, Duration::from_millis(1)).unwrap();
                    let upto = events.iter().take_while(|e| e.seq <= snapshot.seq()).count();
                    if snapshot.seq() >= seen {
                        fold(&mut folded, &events[..upto]);
                        assert_eq!(folded, listing(&snapshot), "at {}", snapshot.seq());
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
                    scope.spawn(move || run(registry, root, plan, salt))
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            done.store(true, Ordering::SeqCst);
            follower.join().unwrap();
        });
        // A registry opened anew finds the same.
        let again = Registry::open(Settings {
            account: Some(home.path().to_owned()),
            ..Settings::of_folders([root])
        })
        .unwrap();
        prop_assert_eq!(listing(&again.snapshot()), listing(&registry.snapshot()));
    }
}

#[test]
fn a_follower_that_fell_behind_is_told() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings {
        account: Some(home.path().to_owned()),
        ..Settings::default()
    };
    let registry = Registry::open(settings).unwrap();
    registry.register(&"a".parse().unwrap(), "# A\n").unwrap();
    registry.register(&"a".parse().unwrap(), "# A\n").unwrap();
    let ops: Vec<_> = registry
        .wait_events(0, Duration::ZERO)
        .unwrap()
        .iter()
        .map(|e| e.op)
        .collect();
    // The same body again is told again: clients rely on it.
    assert_eq!(ops, [Op::Add, Op::Update]);
    assert!(registry.wait_events(2, Duration::ZERO).unwrap().is_empty());
}
