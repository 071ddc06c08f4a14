//! A workspace from elsewhere is shown and overrides nothing until it is trusted.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{fs, path::Path, sync::Arc};

use common::{document, skill};
use repertoire_core::RelPath;
use repertoire_registry::{
    AskedBy, Origin, Place, Registry, Scope, Settings, Trusted,
    store::{NewSkill, Store, Trust},
    trust,
};

fn new(name: &str, body: &str) -> NewSkill {
    let files = [(RelPath::document(), document(name, body).into())].into();
    NewSkill::from_files(name.parse().unwrap(), files).unwrap()
}

fn open(home: &Path, workspace: &Path) -> Arc<Registry> {
    Registry::open(Settings {
        account: Some(home.to_owned()),
        workspace: Some(workspace.to_owned()),
        folders: vec![Place {
            path: workspace.join("skills"),
            pattern: None,
            asked_by: AskedBy::Workspace,
        }],
        ..Settings::default()
    })
    .unwrap()
}

fn winner(registry: &Registry, id: &str) -> Origin {
    registry
        .snapshot()
        .get(&id.parse().unwrap())
        .unwrap()
        .origin
        .clone()
}

fn account(home: &Path) -> Arc<Store> {
    Store::open(&home.join(trust::STORE), Trust::Own).unwrap()
}

#[test]
fn t17_a_planted_store_and_folder_override_nothing_until_trusted() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let planted = Store::open(&trust::workspace_store(workspace.path()), Trust::Own).unwrap();
    planted
        .put_skills(vec![new("deploy", "evil"), new("extra", "evil")])
        .unwrap();
    drop(planted);
    skill(workspace.path(), "skills/deploy", "evil too");
    account(home.path())
        .put_skills(vec![new("deploy", "good")])
        .unwrap();

    let registry = open(home.path(), workspace.path());
    assert_eq!(registry.workspace().unwrap().1, Trusted::No);
    assert_eq!(winner(&registry, "deploy"), Origin::Account);
    assert_eq!(winner(&registry, "extra"), Origin::Workspace);
    let extra = registry
        .snapshot()
        .get(&"extra".parse().unwrap())
        .unwrap()
        .clone();
    assert_eq!(extra.trusted, Trusted::No);
    assert_eq!(registry.body(&extra).unwrap(), document("extra", "evil"));
    let error = registry
        .add(Scope::Workspace, vec![new("x", "")])
        .unwrap_err();
    assert_eq!(error.code(), "untrusted");
    registry
        .register(&"note".parse().unwrap(), "# Note\n")
        .unwrap();
    drop(registry);

    trust::trust(&account(home.path()), workspace.path()).unwrap();
    let registry = open(home.path(), workspace.path());
    assert_eq!(registry.workspace().unwrap().1, Trusted::Yes);
    assert_eq!(winner(&registry, "deploy"), Origin::Workspace);
    drop(registry);

    assert!(trust::distrust(&account(home.path()), workspace.path()).unwrap());
    assert_eq!(
        winner(&open(home.path(), workspace.path()), "deploy"),
        Origin::Account
    );
}

#[test]
fn t17_trust_falls_when_the_store_is_replaced_or_copied() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let file = trust::workspace_store(workspace.path());
    trust::trust(&account(home.path()), workspace.path()).unwrap();
    let trusted = |path: &Path| trust::is_trusted(&account(home.path()), path).unwrap();
    assert_eq!(trusted(workspace.path()), Trusted::Yes);

    // Own writes do not disturb it.
    let store = Store::open(&file, Trust::Own).unwrap();
    store.put_skills(vec![new("a", "1")]).unwrap();
    drop(store);
    assert_eq!(trusted(workspace.path()), Trusted::Yes);

    // The same bytes put in place of the file, as a checkout does.
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    assert_eq!(trusted(workspace.path()), Trusted::No);

    // A copy of the workspace elsewhere.
    trust::trust(&account(home.path()), workspace.path()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join(trust::FOLDER)).unwrap();
    fs::copy(&file, trust::workspace_store(copy.path())).unwrap();
    assert_eq!(trusted(copy.path()), Trusted::No);
}

#[test]
fn t17_an_untrusted_workspace_cannot_point_outside_of_itself() {
    let home = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    skill(outside.path(), "private", "secret");
    let workspace = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), workspace.path().join("skills")).unwrap();
    let registry = open(home.path(), workspace.path());
    assert!(registry.snapshot().is_empty());
    assert_eq!(registry.notices()[0].code, "untrusted");
}

#[test]
fn t17_a_damaged_store_of_a_stranger_does_not_lock_the_user_out() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    account(home.path())
        .put_skills(vec![new("mine", "1")])
        .unwrap();
    let file = trust::workspace_store(workspace.path());
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "garbage".repeat(1000)).unwrap();
    let registry = open(home.path(), workspace.path());
    assert_eq!(winner(&registry, "mine"), Origin::Account);
    let codes: Vec<_> = registry.notices().iter().map(|n| n.code).collect();
    assert!(codes.contains(&"store_corrupt"), "{codes:?}");
}
