//! The package repository: every function, both scopes, and system skills.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use repertoire_core::{Artifact, ArtifactKind, Package};
use repertoire_registry::{
    Origin, Registry, RegistrySettings, StoreScope,
    store::{SkillRepository, Store, StoreTrust},
    trust,
};
use serde_json::{Value, json};
use uuid::Uuid;

fn sample_package(name: &str, text: &str) -> Package {
    let json = json!({
        "name": name, "description": format!("About {name}."), "tags": ["a"],
        "artifacts": [
            {"kind": "description", "name": "Overview", "content": text},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1, "content": "{{ message }}"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 2, "model_variant": "openai",
             "content": "Openly: {{ message }}"},
            {"kind": "dspy_module", "name": "Module", "ordinal": 3,
             "content": "{\"template_id\": \"predict\", \"signature\": \"q -> a\"}",
             "state_blob": "e30=", "metadata": {"fallback_artifact": "Ask"}},
        ],
    });
    Package::from_json(json.to_string().as_bytes()).unwrap()
}

fn parse_artifact(json: Value) -> Artifact {
    serde_json::from_value(json).unwrap()
}

fn open_store() -> (tempfile::TempDir, std::sync::Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("agents.db"), StoreTrust::Own).unwrap();
    (folder, store)
}

#[test]
fn learned_state_is_stored_only_if_its_artifact_is_unchanged() {
    let (_folder, store) = open_store();
    let repository: &dyn SkillRepository = &*store;
    let id = repository
        .create_skill(&sample_package("Tone", "x\n"))
        .unwrap();
    let module = || {
        let modules = repository.get_artifacts(id, &[ArtifactKind::DspyModule]);
        modules.unwrap().remove(0)
    };
    let before = module();
    let learn = |state: &str| {
        repository.put_learned_state(before.id.unwrap(), &before, state.as_bytes().to_vec())
    };
    learn("{\"a\": 1}").unwrap();
    assert_eq!(module().state_blob.as_deref(), Some(&b"{\"a\": 1}"[..]));
    let path = &repository.list_skills().unwrap()[0].path;
    let newest = &store.history(path).unwrap()[0];
    assert_eq!((newest.revision, &*newest.op), (2, "optimize"));
    // The state was replaced meanwhile, so a second result for the old state is refused.
    let refused = learn("{\"b\": 2}").unwrap_err();
    assert!(
        refused.to_string().contains("changed during learning"),
        "{refused}"
    );
    assert_eq!(module().state_blob.as_deref(), Some(&b"{\"a\": 1}"[..]));
    assert_eq!(store.history(path).unwrap().len(), 2);
}

#[test]
fn skills_and_artifacts_are_kept_changed_and_removed() {
    let (_folder, store) = open_store();
    let repository: &dyn SkillRepository = &*store;
    let id = repository
        .create_skill(&sample_package("Tone Check", "Looks.\n"))
        .unwrap();
    let again = repository.create_skill(&sample_package("Tone Check", "Other.\n"));
    assert!(again.unwrap_err().to_string().contains("already exists"));
    let listed = repository.list_skills().unwrap();
    assert_eq!(
        (listed[0].id, &*listed[0].name, &*listed[0].source),
        (id, "Tone Check", "user")
    );
    assert_eq!(listed[0].tags, ["a"]);
    let whole = repository.get_skill(id).unwrap().unwrap();
    assert_eq!(
        repository.get_skill_by_name("Tone Check").unwrap(),
        Some(whole.clone())
    );
    assert_eq!(repository.get_skill(Uuid::nil()).unwrap(), None);

    // Some kinds, or all of them.
    let prompts = repository
        .get_artifacts(id, &[ArtifactKind::PromptTemplate])
        .unwrap();
    assert_eq!(prompts.len(), 2);
    assert_eq!(repository.get_artifacts(id, &[]).unwrap().len(), 4);
    let module = &repository
        .get_artifacts(id, &[ArtifactKind::DspyModule])
        .unwrap()[0];
    assert_eq!(
        (module.state_blob.as_deref(), module.fallback_name()),
        (Some(&b"{}"[..]), Some("Ask"))
    );
    let first = prompts[0].id.unwrap();
    assert_eq!(
        repository.get_artifact(first).unwrap().as_ref(),
        Some(&prompts[0])
    );

    // Adding, changing and removing each record a revision and change the files.
    let approach = parse_artifact(json!({"kind": "approach", "name": "Manner", "ordinal": 9,
                                   "content": "Kindly."}));
    let added = repository.add_artifact(id, &approach).unwrap();
    let twice = repository.add_artifact(id, &approach).unwrap_err();
    assert!(twice.to_string().contains("already exists"), "{twice}");
    let mut changed = prompts[0].clone();
    changed.content = "Again: {{ message }}".to_owned();
    repository.update_artifact(first, &changed).unwrap();
    let path = &listed[0].path;
    let made = |id: Uuid| repository.get_artifact(id).unwrap().unwrap().created_at;
    assert_eq!(
        made(first),
        prompts[0].created_at,
        "an update keeps the creation time"
    );
    let files = store.read_files(path).unwrap();
    assert!(files.values().any(|bytes| bytes == "Again: {{ message }}"));
    assert!(files.values().any(|bytes| bytes == "Kindly."));
    assert!(repository.delete_artifact(added).unwrap());
    assert!(!repository.delete_artifact(added).unwrap());
    assert_eq!(store.history(path).unwrap().len(), 4);

    // A change that would make the package invalid is refused and changes nothing.
    assert!(repository.delete_artifact(first).unwrap());
    let before = store.read_files(path).unwrap();
    let removed = repository.delete_artifact(prompts[1].id.unwrap());
    assert!(removed.is_err(), "a module's fallback must exist");
    assert_eq!(store.read_files(path).unwrap(), before);
    let missing = repository
        .update_artifact(Uuid::nil(), &changed)
        .unwrap_err();
    assert_eq!(missing.code(), "not_found");

    let mut updated = repository.get_skill(id).unwrap().unwrap();
    updated.description = "Says it better.".to_owned();
    updated.artifacts.clear();
    repository.update_skill(id, &updated).unwrap();
    let now = repository.get_skill(id).unwrap().unwrap();
    assert_eq!(now.description, "Says it better.");
    assert!(!now.artifacts.is_empty(), "artifacts stay unchanged");
    updated.name = "Another".to_owned();
    assert!(
        repository.update_skill(id, &updated).is_err(),
        "a skill cannot be renamed"
    );
    assert!(repository.delete_skill(id).unwrap());
    assert_eq!(repository.get_artifacts(id, &[]).unwrap(), []);
    assert!(!repository.delete_skill(id).unwrap());
}

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
    let account = Store::open(&home.path().join(trust::STORE_FILE_NAME), StoreTrust::Own).unwrap();
    trust::trust_workspace(&account, desk.path()).unwrap();
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
            .get_skill_by_name("Consistency Checker")
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
