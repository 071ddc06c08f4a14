//! The repository of packages: every function, both scopes, and what ships.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use repertoire_core::{Artifact, ArtifactKind, Package};
use repertoire_registry::{
    Origin, Registry, Scope, Settings,
    store::{SkillRepository, Store, Trust},
    trust,
};
use serde_json::{Value, json};
use uuid::Uuid;

fn package(name: &str, text: &str) -> Package {
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

fn artifact(json: Value) -> Artifact {
    serde_json::from_value(json).unwrap()
}

fn store() -> (tempfile::TempDir, std::sync::Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("agents.db"), Trust::Own).unwrap();
    (folder, store)
}

#[test]
fn what_was_learned_is_kept_for_what_it_was_learned_for() {
    let (_folder, store) = store();
    let repository: &dyn SkillRepository = &*store;
    let id = repository.create_skill(&package("Tone", "x\n")).unwrap();
    let module = || {
        let modules = repository.get_artifacts(id, &[ArtifactKind::DspyModule]);
        modules.unwrap().remove(0)
    };
    let before = module();
    let learn = |state: &str| {
        repository.learn_artifact(before.id.unwrap(), &before, state.as_bytes().to_vec())
    };
    learn("{\"a\": 1}").unwrap();
    assert_eq!(module().state_blob.as_deref(), Some(&b"{\"a\": 1}"[..]));
    let path = &repository.list_skills().unwrap()[0].path;
    let newest = &store.history(path).unwrap()[0];
    assert_eq!((newest.revision, &*newest.op), (2, "optimize"));
    // By now it is another one, which nothing was learned for.
    let refused = learn("{\"b\": 2}").unwrap_err();
    assert!(
        refused.to_string().contains("changed meanwhile"),
        "{refused}"
    );
    assert_eq!(module().state_blob.as_deref(), Some(&b"{\"a\": 1}"[..]));
    assert_eq!(store.history(path).unwrap().len(), 2);
}

#[test]
fn skills_and_artifacts_are_kept_changed_and_removed() {
    let (_folder, store) = store();
    let repository: &dyn SkillRepository = &*store;
    let id = repository
        .create_skill(&package("Tone Check", "Looks.\n"))
        .unwrap();
    let again = repository.create_skill(&package("Tone Check", "Other.\n"));
    assert!(again.unwrap_err().to_string().contains("there already"));
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
        (module.state_blob.as_deref(), module.fallback()),
        (Some(&b"{}"[..]), Some("Ask"))
    );
    let first = prompts[0].id.unwrap();
    assert_eq!(
        repository.get_artifact(first).unwrap().as_ref(),
        Some(&prompts[0])
    );

    // Added, changed, removed: each a revision, and the files say the same.
    let approach = artifact(json!({"kind": "approach", "name": "Manner", "ordinal": 9,
                                   "content": "Kindly."}));
    let added = repository.add_artifact(id, &approach).unwrap();
    let twice = repository.add_artifact(id, &approach).unwrap_err();
    assert!(twice.to_string().contains("there already"), "{twice}");
    let mut changed = prompts[0].clone();
    changed.content = "Again: {{ message }}".to_owned();
    repository.update_artifact(first, &changed).unwrap();
    let path = &listed[0].path;
    let made = |id: Uuid| repository.get_artifact(id).unwrap().unwrap().created_at;
    assert_eq!(
        made(first),
        prompts[0].created_at,
        "a change makes nothing anew"
    );
    let files = store.files(path).unwrap();
    assert!(files.values().any(|bytes| bytes == "Again: {{ message }}"));
    assert!(files.values().any(|bytes| bytes == "Kindly."));
    assert!(repository.delete_artifact(added).unwrap());
    assert!(!repository.delete_artifact(added).unwrap());
    assert_eq!(store.history(path).unwrap().len(), 4);

    // What would be no package is refused, and nothing changes.
    assert!(repository.delete_artifact(first).unwrap());
    let before = store.files(path).unwrap();
    let removed = repository.delete_artifact(prompts[1].id.unwrap());
    assert!(removed.is_err(), "a module's fallback has to be there");
    assert_eq!(store.files(path).unwrap(), before);
    let missing = repository
        .update_artifact(Uuid::nil(), &changed)
        .unwrap_err();
    assert_eq!(missing.code(), "not_found");

    let mut told = repository.get_skill(id).unwrap().unwrap();
    told.description = "Says it better.".to_owned();
    told.artifacts.clear();
    repository.update_skill(id, &told).unwrap();
    let now = repository.get_skill(id).unwrap().unwrap();
    assert_eq!(now.description, "Says it better.");
    assert!(!now.artifacts.is_empty(), "artifacts stay as they are");
    told.name = "Another".to_owned();
    assert!(
        repository.update_skill(id, &told).is_err(),
        "a name is for life"
    );
    assert!(repository.delete_skill(id).unwrap());
    assert_eq!(repository.get_artifacts(id, &[]).unwrap(), []);
    assert!(!repository.delete_skill(id).unwrap());
}

#[test]
fn the_workspace_wins_and_a_fork_leaves_the_account_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let desk = tempfile::tempdir().unwrap();
    let settings = Settings {
        account: Some(home.path().into()),
        workspace: Some(desk.path().into()),
        system: true,
        ..Settings::default()
    };
    std::fs::create_dir_all(desk.path().join(trust::FOLDER)).unwrap();
    let account = Store::open(&home.path().join(trust::STORE), Trust::Own).unwrap();
    trust::trust(&account, desk.path()).unwrap();
    drop(account);
    let registry = Registry::open(settings.clone()).unwrap();
    let id = "consistency-checker".parse().unwrap();
    let entry = registry.snapshot().get(&id).unwrap().clone();
    assert_eq!(entry.origin, Origin::of_scope(Scope::Account));

    let revision = registry.fork(&entry).unwrap();
    assert_eq!(revision, Some(1));
    let forked = registry.snapshot().get(&id).unwrap().clone();
    assert_eq!(forked.origin, Origin::of_scope(Scope::Workspace));
    let of = |scope: Scope| {
        let store = registry.store(scope).unwrap();
        store
            .get_skill_by_name("Consistency Checker")
            .unwrap()
            .unwrap()
    };
    let (mine, shipped) = (of(Scope::Workspace), of(Scope::Account));
    assert_eq!(
        (mine.source.as_str(), shipped.source.as_str()),
        ("user", "system")
    );
    // Customised here, and only here.
    let overview = mine.artifacts[0].clone();
    let mut changed = overview.clone();
    changed.content = "Ours.\n".to_owned();
    let store = registry.store(Scope::Workspace).unwrap();
    store
        .update_artifact(overview.id.unwrap(), &changed)
        .unwrap();
    registry.sync().unwrap();
    let now = registry.snapshot().get(&id).unwrap().clone();
    let parts = registry.parts(&now).unwrap();
    let first = registry
        .artifact_content(&now, &parts.artifacts[0].1)
        .unwrap();
    assert_eq!(first, "Ours.\n");
    assert_eq!(of(Scope::Account), shipped);
    // A second fork would lose that.
    let again = registry.fork(&entry).unwrap_err();
    assert!(again.to_string().contains("already"), "{again}");
    // What ships is refreshed in the account alone.
    drop(registry);
    let again = Registry::open(settings).unwrap();
    let entry = again.snapshot().get(&id).unwrap().clone();
    assert_eq!(entry.origin, Origin::of_scope(Scope::Workspace));
}
