//! Packages in both scopes, and system skills.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use repertoire_registry::{
    Origin, Registry, RegistrySettings, StoreScope,
    store::{Account, SkillKey},
    trust,
};

#[test]
fn a_workspace_fork_wins_and_leaves_the_account_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let desk = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        account: Some(home.path().into()),
        workspace: Some(desk.path().into()),
        system_skills: true,
        ..RegistrySettings::default()
    };
    std::fs::create_dir_all(desk.path().join(trust::WORKSPACE_FOLDER)).unwrap();
    let account = Account::open(home.path()).unwrap();
    account.local.trust_workspace(desk.path()).unwrap();
    drop(account);
    let registry = Registry::open(settings.clone()).unwrap();
    let id = "consistency-checker".parse().unwrap();
    let entry = registry.snapshot().get(&id).unwrap().clone();
    assert_eq!(entry.origin, Origin::from_scope(StoreScope::Account));

    let revision = registry.fork_skill(&entry).unwrap();
    assert_eq!(revision, Some(1));
    let forked = registry.snapshot().get(&id).unwrap().clone();
    assert_eq!(forked.origin, Origin::from_scope(StoreScope::Workspace));
    let of = |scope: StoreScope| {
        let store = registry.store(scope).unwrap();
        store
            .get_package(SkillKey::Name("Consistency Checker"))
            .unwrap()
            .unwrap()
    };
    let (mine, shipped) = (of(StoreScope::Workspace), of(StoreScope::Account));
    assert_eq!(
        (mine.source.as_str(), shipped.source.as_str()),
        ("user", "system")
    );
    // Customised only in the workspace.
    let overview = mine.artifacts[0].clone();
    let mut changed = overview.clone();
    changed.content = "Ours.\n".to_owned();
    let store = registry.store(StoreScope::Workspace).unwrap();
    store
        .update_artifact(overview.id.unwrap(), &changed)
        .unwrap();
    registry.sync_stores().unwrap();
    let now = registry.snapshot().get(&id).unwrap().clone();
    let parts = registry.skill_artifacts(&now).unwrap();
    let first = registry
        .artifact_content(&now, &parts.artifacts[0].1)
        .unwrap();
    assert_eq!(first, "Ours.\n");
    assert_eq!(of(StoreScope::Account), shipped);
    // A second fork would overwrite the customisation.
    let again = registry.fork_skill(&entry).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    // System skills are refreshed only in the account.
    drop(registry);
    let again = Registry::open(settings).unwrap();
    let entry = again.snapshot().get(&id).unwrap().clone();
    assert_eq!(entry.origin, Origin::from_scope(StoreScope::Workspace));
}
