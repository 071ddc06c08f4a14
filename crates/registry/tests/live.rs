//! Changes on disk reach the catalogue by themselves, a burst in one step.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{collections::BTreeSet, fs, time::Duration};

use common::{document, skill, until};
use repertoire_registry::{Op, Registry, Settings};

fn has(registry: &Registry, id: &str) -> bool {
    registry.snapshot().get(&id.parse().unwrap()).is_some()
}

fn title(registry: &Registry, id: &str) -> Option<String> {
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&id.parse().unwrap())?;
    entry.head.title.as_deref().map(str::to_owned)
}

#[test]
fn edits_appear_and_vanish_without_a_restart() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "a", "# One\n");
    skill(root.path(), "outer", "# Outer\n");
    let registry = Registry::open(Settings::of_folders([root.path().to_owned()])).unwrap();
    let _watch = registry.watch().unwrap();

    fs::write(root.path().join("a/SKILL.md"), document("a", "# Two\n")).unwrap();
    until("an edit", || {
        title(&registry, "a").as_deref() == Some("Two")
    });

    skill(root.path(), "team/new", "# New\n");
    until("a new folder", || has(&registry, "team/new"));

    fs::rename(root.path().join("team"), root.path().join("crew")).unwrap();
    until("a move", || {
        has(&registry, "crew/new") && !has(&registry, "team/new")
    });

    skill(root.path(), "outer/inner", "# Inner\n");
    let files = || {
        let snapshot = registry.snapshot();
        snapshot
            .get(&"outer".parse().unwrap())
            .map(|e| e.head.files.len())
    };
    until("a nested skill", || {
        has(&registry, "outer/inner") && files() == Some(2)
    });

    fs::remove_file(root.path().join("a/SKILL.md")).unwrap();
    until("a removal", || !has(&registry, "a"));

    fs::remove_dir_all(root.path().join("crew")).unwrap();
    until("a removed tree", || !has(&registry, "crew/new"));

    skill(root.path(), "a", "# Back\n");
    until("a return", || {
        title(&registry, "a").as_deref() == Some("Back")
    });
}

#[test]
fn a_burst_is_one_step() {
    let root = tempfile::tempdir().unwrap();
    let staging = tempfile::tempdir_in(root.path().parent().unwrap()).unwrap();
    for n in 0..50 {
        skill(staging.path(), &format!("all/s{n}"), "# S\n");
    }
    let registry = Registry::open(Settings::of_folders([root.path().to_owned()])).unwrap();
    let _watch = registry.watch().unwrap();
    fs::rename(staging.path().join("all"), root.path().join("all")).unwrap();
    let mut sizes = BTreeSet::new();
    until("fifty skills", || {
        let size = registry.snapshot().len();
        sizes.insert(size);
        size == 50
    });
    assert_eq!(sizes, BTreeSet::from([0, 50]));
}

#[test]
fn a_read_of_edited_bytes_brings_the_listing_along() {
    let root = tempfile::tempdir().unwrap();
    skill(root.path(), "a", "# One\n");
    let registry = Registry::open(Settings::of_folders([root.path().to_owned()])).unwrap();
    let seq = registry.snapshot().seq();
    fs::write(
        root.path().join("a/SKILL.md"),
        document("a", "# Longer than before\n"),
    )
    .unwrap();
    let content = registry.read(&"iii://a".parse().unwrap()).unwrap();
    assert_eq!(content.bytes, document("a", "# Longer than before\n"));
    assert_eq!(title(&registry, "a").as_deref(), Some("Longer than before"));
    let events = registry.wait_events(seq, Duration::ZERO).unwrap();
    assert_eq!(
        events.iter().map(|e| e.op).collect::<Vec<_>>(),
        [Op::Update]
    );
}

#[test]
fn a_root_made_again_is_followed() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("skills");
    skill(&root, "a", "# A\n");
    let registry = Registry::open(Settings::of_folders([root.clone()])).unwrap();
    let _watch = registry.watch().unwrap();
    fs::remove_dir_all(&root).unwrap();
    until("everything is gone", || registry.snapshot().is_empty());
    skill(&root, "b", "# B\n");
    until("the new folder is seen", || has(&registry, "b"));
    skill(&root, "c", "# C\n");
    until("and watched", || has(&registry, "c"));
}
