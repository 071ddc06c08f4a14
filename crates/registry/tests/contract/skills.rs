//! Skills: files, history, batches, compare-and-swap.

use bytes::Bytes;
use repertoire_core::{Digest, Package, RelPath, SkillId};
use repertoire_registry::{
    Error, HistoryPolicy,
    store::{CurrentSkill, NewSkill, RevisionKind, SkillKey, SkillWrite, WriteMode},
};
use serde_json::json;

use super::StoreFactory;
use crate::common::document_text;

fn skill_id(text: &str) -> SkillId {
    text.parse().unwrap()
}

pub(super) fn new_skill(id: &str, body: &str) -> NewSkill {
    let name = id.rsplit('/').next().unwrap();
    let files = [(RelPath::document(), document_text(name, body).into())].into();
    NewSkill::from_files(skill_id(id), files).unwrap()
}

fn package(name: &str, uuid: &str, artifact: &str) -> NewSkill {
    let json = json!({
        "id": uuid, "name": name, "description": "d",
        "artifacts": [{"id": artifact, "kind": "description", "name": "A", "content": "x"}],
    });
    NewSkill::from_package(&Package::from_json(json.to_string().as_bytes()).unwrap()).unwrap()
}

const A: &str = "11111111-1111-4111-8111-111111111111";
const B: &str = "22222222-2222-4222-8222-222222222222";
const C: &str = "33333333-3333-4333-8333-333333333333";

pub(super) fn skills_are_kept_and_listed_by_id(factory: &dyn StoreFactory) {
    let store = factory.open();
    assert!(store.is_writable());
    store
        .put_skills(vec![new_skill("b/two", "2"), new_skill("a/one", "1")])
        .unwrap();
    drop(store);
    let store = factory.open();
    store.check_integrity().unwrap();
    let ids: Vec<String> = store
        .all_metadata()
        .unwrap()
        .into_iter()
        .map(|(id, _)| id.to_string())
        .collect();
    assert_eq!(ids, ["a/one", "b/two"]);
    let metadata = store.skill_metadata(&skill_id("a/one")).unwrap().unwrap();
    assert_eq!(&metadata, new_skill("a/one", "1").metadata());
    assert_eq!(store.skill_metadata(&skill_id("c")).unwrap(), None);
    let text = document_text("one", "1");
    let document = RelPath::document();
    assert_eq!(
        store.read_file(&skill_id("a/one"), &document).unwrap(),
        text
    );
    let digest = Digest::hash_bytes(text.as_bytes());
    assert_eq!(store.read_blob(&digest).unwrap(), Some(Bytes::from(text)));
    assert_eq!(
        store.read_blob(&Digest::hash_bytes(b"other")).unwrap(),
        None
    );
    for (id, file) in [("a/one", "other.md"), ("c", "SKILL.md")] {
        let missing = store.read_file(&skill_id(id), &file.parse().unwrap());
        assert_eq!(missing.unwrap_err().code(), "not_found");
    }
    let found = store.find_skill(SkillKey::Id(&skill_id("b/two"))).unwrap();
    assert_eq!(found.unwrap().path.as_str(), "b/two");
}

pub(super) fn a_write_with_unchanged_content_leaves_no_revision(factory: &dyn StoreFactory) {
    let store = factory.open();
    let put = |body: &str| store.put_skills(vec![new_skill("a", body)]).unwrap();
    assert_eq!(put("one"), [Some(1)]);
    assert_eq!(put("one"), [None]);
    assert_eq!(put("two"), [Some(2)]);
}

pub(super) fn every_revision_can_be_read_and_restored(factory: &dyn StoreFactory) {
    let store = factory.open();
    let id = skill_id("a");
    store.put_skills(vec![new_skill("a", "one")]).unwrap();
    store.put_skills(vec![new_skill("a", "two")]).unwrap();
    assert!(store.remove_skill(&id, HistoryPolicy::Keep).unwrap());
    assert!(!store.remove_skill(&id, HistoryPolicy::Keep).unwrap());
    assert_eq!(store.skill_metadata(&id).unwrap(), None);
    assert_eq!(store.rollback_skill(&id, 1).unwrap(), 4);
    // A rollback to the current content is a revision too.
    assert_eq!(store.rollback_skill(&id, 1).unwrap(), 5);
    let ops: Vec<(i64, String)> = store
        .history(&id)
        .unwrap()
        .into_iter()
        .map(|one| (one.revision, one.op))
        .collect();
    let want = [
        (5, RevisionKind::Rollback),
        (4, RevisionKind::Rollback),
        (3, RevisionKind::Remove),
        (2, RevisionKind::Put),
        (1, RevisionKind::Put),
    ];
    assert_eq!(ops, want.map(|(n, kind)| (n, kind.as_str().to_owned())));
    let text = |revision| store.files_at(&id, revision).unwrap()[&RelPath::document()].clone();
    assert_eq!(text(2), document_text("a", "two"));
    assert_eq!(text(5), document_text("a", "one"));
    for missing in [3, 6] {
        assert_eq!(
            store.files_at(&id, missing).unwrap_err().code(),
            "not_found"
        );
        assert_eq!(
            store.rollback_skill(&id, missing).unwrap_err().code(),
            "not_found"
        );
    }
}

pub(super) fn purging_removes_history_and_unreferenced_files(factory: &dyn StoreFactory) {
    let store = factory.open();
    let id = skill_id("a");
    store.put_skills(vec![new_skill("a", "one")]).unwrap();
    store
        .put_skills(vec![new_skill("a", "two"), new_skill("b", "other")])
        .unwrap();
    assert!(store.remove_skill(&id, HistoryPolicy::Purge).unwrap());
    assert!(!store.remove_skill(&id, HistoryPolicy::Purge).unwrap());
    assert!(store.history(&id).unwrap().is_empty());
    let kept = |name: &str, body: &str| {
        let digest = Digest::hash_bytes(document_text(name, body).as_bytes());
        store.read_blob(&digest).unwrap().is_some()
    };
    assert!(!kept("a", "one") && !kept("a", "two"));
    assert!(kept("b", "other"));
    assert_eq!(
        store.put_skills(vec![new_skill("a", "new")]).unwrap(),
        [Some(1)]
    );
}

pub(super) fn a_batch_is_written_whole_or_not_at_all(factory: &dyn StoreFactory) {
    let store = factory.open();
    store.put_skills(vec![package("One", A, B)]).unwrap();
    // The last skill of each batch is refused; the first must not be stored.
    for batch in [
        vec![new_skill("fine", ""), package("Other", A, C)],
        vec![new_skill("fine", ""), package("Other", C, B)],
        vec![
            new_skill("fine", ""),
            package("Two", B, C),
            package("two", C, A),
        ],
        vec![new_skill("fine", ""), new_skill("fine", "again")],
    ] {
        let error = store.put_skills(batch).unwrap_err();
        assert_eq!(error.code(), "conflict", "{error}");
        assert_eq!(store.all_metadata().unwrap().len(), 1);
        assert!(store.history(&skill_id("fine")).unwrap().is_empty());
    }
}

pub(super) fn writes_are_checked_against_the_current_digest(factory: &dyn StoreFactory) {
    let store = factory.open();
    let write = |body: &str, current: CurrentSkill| {
        let write = SkillWrite {
            current,
            ..SkillWrite::put(new_skill("a", body))
        };
        store.write_skills(vec![write], WriteMode::Commit)
    };
    let digest = |body: &str| CurrentSkill::Digest(new_skill("a", body).metadata().digest());
    let changed = |result: repertoire_registry::Result<_>| {
        let result: Result<Vec<Option<i64>>, Error> = result;
        assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
    };
    changed(write("one", digest("one")));
    assert_eq!(write("one", CurrentSkill::Absent).unwrap(), [Some(1)]);
    let exists = write("two", CurrentSkill::Absent);
    assert!(
        matches!(exists, Err(Error::AlreadyExists { .. })),
        "{exists:?}"
    );
    changed(write("two", digest("other")));
    assert_eq!(write("two", digest("one")).unwrap(), [Some(2)]);
    changed(write("three", digest("one")));
    store
        .remove_skill(&skill_id("a"), HistoryPolicy::Keep)
        .unwrap();
    changed(write("three", digest("two")));
    // One refused write refuses the batch.
    let batch = vec![
        SkillWrite::put(new_skill("b", "1")),
        SkillWrite {
            current: digest("two"),
            ..SkillWrite::put(new_skill("a", "2"))
        },
    ];
    changed(store.write_skills(batch, WriteMode::Commit));
    assert!(store.all_metadata().unwrap().is_empty());
}

pub(super) fn a_dry_run_reports_and_changes_nothing(factory: &dyn StoreFactory) {
    let store = factory.open();
    store.put_skills(vec![new_skill("a", "one")]).unwrap();
    let cursor = store.event_cursor().unwrap();
    let dry = |skills: Vec<NewSkill>| {
        let writes = skills.into_iter().map(SkillWrite::put).collect();
        store.write_skills(writes, WriteMode::DryRun)
    };
    let batch = vec![new_skill("a", "one"), new_skill("b", "two")];
    assert_eq!(dry(batch).unwrap(), [None, Some(1)]);
    assert_eq!(dry(vec![new_skill("a", "two")]).unwrap(), [Some(2)]);
    assert!(dry(vec![new_skill("a", "1"), new_skill("a", "2")]).is_err());
    assert_eq!(store.all_metadata().unwrap().len(), 1);
    assert_eq!(store.history(&skill_id("a")).unwrap().len(), 1);
    assert!(
        store
            .events_since(&cursor)
            .unwrap()
            .unwrap()
            .events
            .is_empty()
    );
}

pub(super) fn names_and_uuids_are_unique(factory: &dyn StoreFactory) {
    let store = factory.open();
    store.put_skills(vec![package("One", A, B)]).unwrap();
    let same_uuid = store.put_skills(vec![package("Other", A, C)]).unwrap_err();
    assert!(matches!(same_uuid, Error::NameTaken { .. }), "{same_uuid}");
    let same_artifact = store.put_skills(vec![package("Other", C, B)]).unwrap_err();
    assert!(
        matches!(same_artifact, Error::ArtifactIdTaken(_)),
        "{same_artifact}"
    );
    let found = store
        .find_skill(SkillKey::Artifact(B.parse().unwrap()))
        .unwrap();
    assert_eq!(found.unwrap().name, "One");
    assert_eq!(store.find_skill(SkillKey::Name("Other")).unwrap(), None);
}
