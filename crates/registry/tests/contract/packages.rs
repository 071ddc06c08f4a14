//! Package editing.

use std::sync::Barrier;

use repertoire_core::{Artifact, ArtifactKind, Package};
use repertoire_registry::store::SkillKey;
use serde_json::{Value, json};
use uuid::Uuid;

use super::StoreFactory;

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

pub(super) fn learned_state_is_stored_only_if_its_artifact_is_unchanged(
    factory: &dyn StoreFactory,
) {
    let store = factory.open();
    let id = store
        .create_package(&sample_package("Tone", "x\n"))
        .unwrap();
    let module = || {
        let modules = store.get_artifacts(id, &[ArtifactKind::DspyModule]);
        modules.unwrap().remove(0)
    };
    let before = module();
    let learn =
        |state: &str| store.put_learned_state(before.id.unwrap(), &before, state.as_bytes());
    learn("{\"a\": 1}").unwrap();
    assert_eq!(module().state_blob.as_deref(), Some(&b"{\"a\": 1}"[..]));
    let path = &store.list_skills().unwrap()[0].path;
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

pub(super) fn skills_and_artifacts_are_kept_changed_and_removed(factory: &dyn StoreFactory) {
    let store = factory.open();
    let id = store
        .create_package(&sample_package("Tone Check", "Looks.\n"))
        .unwrap();
    let again = store.create_package(&sample_package("Tone Check", "Other.\n"));
    assert!(again.unwrap_err().to_string().contains("already exists"));
    let listed = store.list_skills().unwrap();
    assert_eq!(
        (listed[0].id, &*listed[0].name, &*listed[0].source),
        (id, "Tone Check", "user")
    );
    assert_eq!(listed[0].tags, ["a"]);
    let whole = store.get_package(SkillKey::Uuid(id)).unwrap().unwrap();
    assert_eq!(
        store.get_package(SkillKey::Name("Tone Check")).unwrap(),
        Some(whole.clone())
    );
    assert_eq!(
        store.get_package(SkillKey::Uuid(Uuid::nil())).unwrap(),
        None
    );

    // Some kinds, or all of them.
    let prompts = store
        .get_artifacts(id, &[ArtifactKind::PromptTemplate])
        .unwrap();
    assert_eq!(prompts.len(), 2);
    assert_eq!(store.get_artifacts(id, &[]).unwrap().len(), 4);
    let module = &store
        .get_artifacts(id, &[ArtifactKind::DspyModule])
        .unwrap()[0];
    assert_eq!(
        (module.state_blob.as_deref(), module.fallback_name()),
        (Some(&b"{}"[..]), Some("Ask"))
    );
    let first = prompts[0].id.unwrap();
    assert_eq!(
        store.get_artifact(first).unwrap().as_ref(),
        Some(&prompts[0])
    );

    // Adding, changing and removing each record a revision and change the files.
    let approach = parse_artifact(json!({"kind": "approach", "name": "Manner", "ordinal": 9,
                                   "content": "Kindly."}));
    let added = store.add_artifact(id, &approach).unwrap();
    let twice = store.add_artifact(id, &approach).unwrap_err();
    assert!(twice.to_string().contains("already exists"), "{twice}");
    let mut changed = prompts[0].clone();
    changed.content = "Again: {{ message }}".into();
    store.update_artifact(first, &changed).unwrap();
    let path = &listed[0].path;
    let made = |id: Uuid| store.get_artifact(id).unwrap().unwrap().created_at;
    assert_eq!(
        made(first),
        prompts[0].created_at,
        "an update keeps the creation time"
    );
    let files = store.read_files(path).unwrap();
    assert!(files.values().any(|bytes| bytes == "Again: {{ message }}"));
    assert!(files.values().any(|bytes| bytes == "Kindly."));
    assert!(store.delete_artifact(added).unwrap());
    assert!(!store.delete_artifact(added).unwrap());
    assert_eq!(store.history(path).unwrap().len(), 4);

    // A change that would make the package invalid is refused and changes nothing.
    assert!(store.delete_artifact(first).unwrap());
    let before = store.read_files(path).unwrap();
    let removed = store.delete_artifact(prompts[1].id.unwrap());
    assert!(removed.is_err(), "a module's fallback must exist");
    assert_eq!(store.read_files(path).unwrap(), before);
    let missing = store.update_artifact(Uuid::nil(), &changed).unwrap_err();
    assert_eq!(missing.code(), "not_found");

    let mut updated = store.get_package(SkillKey::Uuid(id)).unwrap().unwrap();
    updated.description = "Says it better.".into();
    updated.artifacts.clear();
    store.update_package(id, &updated).unwrap();
    let now = store.get_package(SkillKey::Uuid(id)).unwrap().unwrap();
    assert_eq!(now.description, "Says it better.");
    assert!(!now.artifacts.is_empty(), "artifacts stay unchanged");
    updated.name = "Another".into();
    assert!(
        store.update_package(id, &updated).is_err(),
        "a skill cannot be renamed"
    );
    assert!(store.delete_package(id).unwrap());
    assert_eq!(store.get_artifacts(id, &[]).unwrap(), []);
    assert!(!store.delete_package(id).unwrap());
}

/// Two writers on two handles change different artifacts of one package; both changes stay.
pub(super) fn concurrent_edits_of_one_package_are_all_kept(factory: &dyn StoreFactory) {
    const EDITS: usize = 20;
    let store = factory.open();
    let id = store
        .create_package(&sample_package("Tone", "x\n"))
        .unwrap();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for writer in ["a", "b"] {
            let (store, start) = (factory.open(), &start);
            scope.spawn(move || {
                start.wait();
                for n in 0..EDITS {
                    let new = parse_artifact(json!({
                        "kind": "approach", "name": format!("{writer}{n}"), "content": "Kindly.",
                    }));
                    store.add_artifact(id, &new).unwrap();
                }
            });
        }
    });
    let approaches = store.get_artifacts(id, &[ArtifactKind::Approach]).unwrap();
    assert_eq!(approaches.len(), 2 * EDITS);
    let path = &store.list_skills().unwrap()[0].path;
    assert_eq!(store.history(path).unwrap().len(), 1 + 2 * EDITS);
}
