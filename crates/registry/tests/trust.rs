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
    // Nor is anything in it acted upon unasked.
    let acted_upon: Vec<_> = registry
        .trusted_stores()
        .map(|store| store.path())
        .collect();
    assert_eq!(acted_upon, [home.path().join(trust::STORE)]);
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

#[test]
fn t17_nesting_does_not_override_a_trusted_file() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let files = [
        (
            RelPath::document(),
            document("code-mode", "# Mine\n").into(),
        ),
        ("references/policies.md".parse().unwrap(), "mine".into()),
    ];
    let mine = NewSkill::from_files("code-mode".parse().unwrap(), files.into()).unwrap();
    account(home.path()).put_skills(vec![mine]).unwrap();
    skill(workspace.path(), "skills/code-mode/references", "");
    common::file(
        workspace.path(),
        "skills/code-mode/references/policies.md",
        "planted",
    );
    fs::create_dir_all(workspace.path().join(trust::FOLDER)).unwrap();
    let registry = open(home.path(), workspace.path());
    let uri = "skill://code-mode/references/policies.md".parse().unwrap();
    assert_eq!(registry.read(&uri).unwrap().bytes, "mine");
}

#[test]
fn t18_a_planted_store_with_a_forged_listing_harms_nobody() {
    let home = tempfile::tempdir().unwrap();
    account(home.path())
        .put_skills(vec![new("mine", "1")])
        .unwrap();
    for sql in [
        "UPDATE skills SET head = 'x'",
        "UPDATE skills SET path = '../x'",
        "UPDATE skills SET head = json_set(head, '$.files[0].size', -1)",
        // Text that would end the answer it stands in, and begin another.
        "UPDATE skills SET head = json_set(head, '$.frontmatter', '{}},\"id\":9}' || char(10) || '{')",
        "UPDATE skills SET head = json_set(head, '$.frontmatter', '[]')",
    ] {
        let workspace = tempfile::tempdir().unwrap();
        let file = trust::workspace_store(workspace.path());
        Store::open(&file, Trust::Own)
            .unwrap()
            .put_skills(vec![new("a", "1")])
            .unwrap();
        rusqlite::Connection::open(&file)
            .unwrap()
            .execute_batch(sql)
            .unwrap();
        let registry = open(home.path(), workspace.path());
        assert_eq!(winner(&registry, "mine"), Origin::Account, "{sql}");
        assert!(!registry.notices().is_empty(), "{sql}");
        // What happens in the user's own store is followed all the same.
        let later = format!("later-{}", sql.len());
        account(home.path())
            .put_skills(vec![new(&later, "1")])
            .unwrap();
        registry.sync().unwrap();
        assert_eq!(winner(&registry, &later), Origin::Account, "{sql}");
    }
}

#[test]
fn t19_stored_bytes_that_differ_from_the_listing_are_not_served() {
    let home = tempfile::tempdir().unwrap();
    let store = account(home.path());
    store
        .put_skills(vec![new("a", "one"), new("b", "two")])
        .unwrap();
    drop(store);
    let file = rusqlite::Connection::open(home.path().join(trust::STORE)).unwrap();
    // The row of `a` now points to the bytes of `b`, whose digest is their own.
    file.execute_batch(
        "UPDATE skill_files SET digest = (SELECT f.digest FROM skill_files f JOIN skills s ON
             f.skill_id = s.id WHERE s.path = 'b')
         WHERE skill_id = (SELECT id FROM skills WHERE path = 'a')",
    )
    .unwrap();
    drop(file);
    let settings = Settings {
        account: Some(home.path().to_owned()),
        ..Settings::default()
    };
    let registry = Registry::open(settings).unwrap();
    let error = registry.read(&"iii://a".parse().unwrap()).unwrap_err();
    assert_eq!(error.code(), "store_corrupt");
}

#[test]
fn what_was_registered_in_the_account_is_still_there_in_a_trusted_workspace() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let plain = Registry::open(Settings {
        account: Some(home.path().to_owned()),
        ..Settings::default()
    })
    .unwrap();
    plain
        .register(&"note".parse().unwrap(), "# Account\n")
        .unwrap();
    plain
        .register(&"both".parse().unwrap(), "# Account\n")
        .unwrap();
    trust::trust(&account(home.path()), workspace.path()).unwrap();
    let registry = open(home.path(), workspace.path());
    registry
        .register(&"both".parse().unwrap(), "# Workspace\n")
        .unwrap();
    let text = |id: &str| {
        registry
            .read(&format!("iii://{id}").parse().unwrap())
            .unwrap()
            .bytes
    };
    assert_eq!(
        (text("note"), text("both")),
        ("# Account\n".into(), "# Workspace\n".into())
    );
    assert!(registry.unregister(&"both".parse().unwrap()).unwrap());
    assert_eq!(text("both"), "# Account\n");
}
