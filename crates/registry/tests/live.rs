//! Live reload: changes on disk reach the catalogue, a burst of them atomically.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{collections::BTreeSet, fs, time::Duration};

use common::{document_text, wait_until, write_skill};
use repertoire_registry::{EventOp, Registry, RegistrySettings};

fn has_skill(registry: &Registry, id: &str) -> bool {
    registry.snapshot().get(&id.parse().unwrap()).is_some()
}

fn skill_title(registry: &Registry, id: &str) -> Option<String> {
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&id.parse().unwrap())?;
    entry.metadata.title.as_deref().map(str::to_owned)
}

#[test]
fn edits_are_applied_without_a_restart() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "a", "# One\n");
    write_skill(root.path(), "outer", "# Outer\n");
    let registry =
        Registry::open(RegistrySettings::from_folders([root.path().to_owned()])).unwrap();
    let _watch = registry.start_watching().unwrap();

    fs::write(
        root.path().join("a/SKILL.md"),
        document_text("a", "# Two\n"),
    )
    .unwrap();
    wait_until("an edit", || {
        skill_title(&registry, "a").as_deref() == Some("Two")
    });

    write_skill(root.path(), "team/new", "# New\n");
    wait_until("a new folder", || has_skill(&registry, "team/new"));

    fs::rename(root.path().join("team"), root.path().join("crew")).unwrap();
    wait_until("a move", || {
        has_skill(&registry, "crew/new") && !has_skill(&registry, "team/new")
    });

    write_skill(root.path(), "outer/inner", "# Inner\n");
    let files = || {
        let snapshot = registry.snapshot();
        snapshot
            .get(&"outer".parse().unwrap())
            .map(|e| e.metadata.files.len())
    };
    wait_until("a nested skill", || {
        has_skill(&registry, "outer/inner") && files() == Some(2)
    });

    fs::remove_file(root.path().join("a/SKILL.md")).unwrap();
    wait_until("a removal", || !has_skill(&registry, "a"));

    fs::remove_dir_all(root.path().join("crew")).unwrap();
    wait_until("a removed tree", || !has_skill(&registry, "crew/new"));

    write_skill(root.path(), "a", "# Back\n");
    wait_until("a return", || {
        skill_title(&registry, "a").as_deref() == Some("Back")
    });
}

#[test]
fn a_burst_of_changes_is_applied_at_once() {
    let root = tempfile::tempdir().unwrap();
    let staging = tempfile::tempdir_in(root.path().parent().unwrap()).unwrap();
    for n in 0..50 {
        write_skill(staging.path(), &format!("all/s{n}"), "# S\n");
    }
    let registry =
        Registry::open(RegistrySettings::from_folders([root.path().to_owned()])).unwrap();
    let _watch = registry.start_watching().unwrap();
    fs::rename(staging.path().join("all"), root.path().join("all")).unwrap();
    let mut sizes = BTreeSet::new();
    wait_until("fifty skills", || {
        let size = registry.snapshot().len();
        sizes.insert(size);
        size == 50
    });
    assert_eq!(sizes, BTreeSet::from([0, 50]));
}

#[test]
fn reading_edited_bytes_updates_the_listing() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "a", "# One\n");
    let registry =
        Registry::open(RegistrySettings::from_folders([root.path().to_owned()])).unwrap();
    let seq = registry.snapshot().seq();
    fs::write(
        root.path().join("a/SKILL.md"),
        document_text("a", "# Longer than before\n"),
    )
    .unwrap();
    let content = registry.read_uri(&"iii://a".parse().unwrap()).unwrap();
    assert_eq!(content.bytes, document_text("a", "# Longer than before\n"));
    assert_eq!(
        skill_title(&registry, "a").as_deref(),
        Some("Longer than before")
    );
    let events = registry.wait_events(seq, Duration::ZERO).unwrap();
    assert_eq!(
        events.iter().map(|e| e.op).collect::<Vec<_>>(),
        [EventOp::Update]
    );
}

#[test]
fn a_recreated_root_is_watched() {
    let home = tempfile::tempdir().unwrap();
    let root = home.path().join("skills");
    write_skill(&root, "a", "# A\n");
    let registry = Registry::open(RegistrySettings::from_folders([root.clone()])).unwrap();
    let _watch = registry.start_watching().unwrap();
    fs::remove_dir_all(&root).unwrap();
    wait_until("everything is gone", || registry.snapshot().is_empty());
    write_skill(&root, "b", "# B\n");
    wait_until("the new folder is seen", || has_skill(&registry, "b"));
    write_skill(&root, "c", "# C\n");
    wait_until("and watched", || has_skill(&registry, "c"));
}
