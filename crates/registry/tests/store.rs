//! The store: content survives, history can be rolled back, hostile files are refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use bytes::Bytes;
use common::document_text;
use repertoire_core::{Package, Prompt, PromptBody, RelPath, SkillId};
use repertoire_registry::{
    Error, HistoryPolicy, Origin, QualifiedSkillId, Registry, RegistrySettings, StoreScope,
    store::{NewSkill, RetentionPolicy, SqliteStore, Store, StoreOpenMode, WriteMode},
};
use serde_json::json;

fn skill_id(text: &str) -> SkillId {
    text.parse().unwrap()
}

fn new_skill(name: &str, body: &str) -> NewSkill {
    let files: BTreeMap<RelPath, Bytes> = [(
        RelPath::document(),
        document_text(name.rsplit('/').next().unwrap(), body).into(),
    )]
    .into();
    NewSkill::from_files(skill_id(name), files).unwrap()
}

fn open_registry(folder: &Path) -> Arc<Registry> {
    Registry::open(RegistrySettings {
        account: Some(folder.to_owned()),
        ..RegistrySettings::default()
    })
    .unwrap()
}

#[test]
fn skills_survive_reopening_and_can_be_rolled_back() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    let add = |body: &str| {
        registry
            .add_skills(StoreScope::Account, vec![new_skill("acme/refunds", body)])
            .unwrap()
    };
    assert_eq!(add("one"), [Some(1)]);
    assert_eq!(add("one"), [None]);
    assert_eq!(add("two"), [Some(2)]);
    assert!(
        registry
            .remove_skill(
                StoreScope::Account,
                &skill_id("acme/refunds"),
                HistoryPolicy::Keep
            )
            .unwrap()
    );
    assert!(registry.snapshot().is_empty());
    assert_eq!(
        registry
            .rollback_skill(StoreScope::Account, &skill_id("acme/refunds"), 1)
            .unwrap(),
        4
    );
    drop(registry);

    let registry = open_registry(home.path());
    let content = registry
        .read_uri(&"skill://acme/refunds/SKILL.md".parse().unwrap())
        .unwrap();
    assert_eq!(content.bytes, document_text("refunds", "one"));
    let ops: Vec<_> = registry
        .history(StoreScope::Account, &skill_id("acme/refunds"))
        .unwrap()
        .into_iter()
        .map(|r| (r.revision, r.op))
        .collect();
    let want = [(4, "rollback"), (3, "remove"), (2, "put"), (1, "put")];
    assert_eq!(ops, want.map(|(n, op)| (n, op.to_owned())));
    let error = registry
        .rollback_skill(StoreScope::Account, &skill_id("acme/refunds"), 3)
        .unwrap_err();
    assert_eq!(error.code(), "not_found");

    assert!(
        registry
            .remove_skill(
                StoreScope::Account,
                &skill_id("acme/refunds"),
                HistoryPolicy::Purge
            )
            .unwrap()
    );
    assert!(
        registry
            .history(StoreScope::Account, &skill_id("acme/refunds"))
            .unwrap()
            .is_empty()
    );
    let file = rusqlite::Connection::open(home.path().join("agents.db")).unwrap();
    let blobs: i64 = file
        .query_row("SELECT count(*) FROM blobs", [], |r| r.get(0))
        .unwrap();
    assert_eq!(blobs, 0);
}

#[test]
fn t37_packages_are_written_whole_or_not_at_all() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    let package = |name: &str, uuid: &str, artifact: &str| {
        let json = json!({
            "id": uuid, "name": name, "description": "d",
            "artifacts": [{"id": artifact, "kind": "description", "name": "A", "content": "x"}],
        });
        NewSkill::from_package(&Package::from_json(json.to_string().as_bytes()).unwrap()).unwrap()
    };
    let (a, b, c) = (
        "11111111-1111-4111-8111-111111111111",
        "22222222-2222-4222-8222-222222222222",
        "33333333-3333-4333-8333-333333333333",
    );
    registry
        .add_skills(StoreScope::Account, vec![package("One", a, b)])
        .unwrap();
    // The second skill of each batch is invalid; the first must not be stored.
    for (code, batch) in [
        (
            "conflict",
            vec![new_skill("fine", ""), package("Other", a, c)],
        ),
        (
            "conflict",
            vec![new_skill("fine", ""), package("Other", c, b)],
        ),
        (
            "conflict",
            vec![
                new_skill("fine", ""),
                package("Two", b, c),
                package("two", c, a),
            ],
        ),
    ] {
        let error = registry.add_skills(StoreScope::Account, batch).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        let ids: Vec<_> = registry
            .snapshot()
            .skills()
            .map(|e| e.id.to_string())
            .collect();
        assert_eq!(ids, ["one"]);
    }
    assert!(
        registry
            .history(StoreScope::Account, &skill_id("fine"))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn variants_without_a_model_are_unique() {
    let home = tempfile::tempdir().unwrap();
    drop(open_registry(home.path()));
    let file = rusqlite::Connection::open(home.path().join("agents.db")).unwrap();
    file.execute_batch(
        "INSERT INTO skills (id, name, description, path, head) VALUES ('s', 'n', 'd', 'p', '{}');
         INSERT INTO skill_artifacts (id, skill_id, kind, name, content)
             VALUES ('1', 's', 'description', 'A', 'x');",
    )
    .unwrap();
    let twice = "INSERT INTO skill_artifacts (id, skill_id, kind, name, content)
                 VALUES ('2', 's', 'description', 'A', 'y')";
    assert!(file.execute(twice, []).is_err());
}

#[test]
fn t16_the_same_id_from_two_origins_is_shown_and_both_are_readable() {
    let home = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    common::write_skill(folder.path(), "pdf", "from a file");
    let registry = Registry::open(RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::from_folders([folder.path().to_owned()])
    })
    .unwrap();
    registry
        .add_skills(
            StoreScope::Account,
            vec![new_skill("pdf", "from the account")],
        )
        .unwrap();
    registry
        .register_skill(&skill_id("pdf"), "# registered\n")
        .unwrap();
    let snapshot = registry.snapshot();
    let all: Vec<_> = snapshot
        .all_skills()
        .map(|(e, by)| (e.origin.clone(), by.map(|by| by.origin.clone())))
        .collect();
    assert_eq!(
        all,
        [
            (Origin::State, None),
            (Origin::Files(1), Some(Origin::State)),
            (Origin::Account, Some(Origin::State)),
        ]
    );
    for (reference, text) in [
        ("pdf", "# registered\n".to_owned()),
        ("files:pdf", document_text("pdf", "from a file")),
        ("account:pdf", document_text("pdf", "from the account")),
    ] {
        let entry = snapshot
            .find_skill(&reference.parse::<QualifiedSkillId>().unwrap())
            .unwrap();
        assert_eq!(registry.read_body(entry).unwrap(), text, "{reference}");
    }
    // The hidden entry becomes visible when the winner is removed.
    assert!(registry.unregister_skill(&skill_id("pdf")).unwrap());
    assert!(!registry.unregister_skill(&skill_id("pdf")).unwrap());
    assert_eq!(
        registry.snapshot().get(&skill_id("pdf")).unwrap().origin,
        Origin::Files(1)
    );
}

#[test]
fn registered_bodies_are_validated_and_served() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    let refuse = |body: &str| {
        registry
            .register_skill(&skill_id("a"), body)
            .unwrap_err()
            .to_string()
    };
    assert!(refuse(" \n").contains("must be non-empty"));
    assert!(refuse(&"x".repeat(256 * 1024 + 1)).contains("too large"));
    registry
        .register_skill(&skill_id("a"), &"x".repeat(256 * 1024))
        .unwrap();
    registry
        .register_skill(&skill_id("my_worker"), "# W\n")
        .unwrap();
    registry
        .register_skill(&skill_id("worker/guide"), "# Guide\n\nHow it goes.\n")
        .unwrap();
    let guide = registry
        .read_uri(&"skill://worker/guide/SKILL.md".parse().unwrap())
        .unwrap();
    assert_eq!(
        guide.bytes,
        "---\nname: guide\ndescription: \"How it goes.\"\n---\n# Guide\n\nHow it goes.\n"
    );
    let only_iii = registry.read_uri(&"skill://my_worker/SKILL.md".parse().unwrap());
    assert_eq!(only_iii.unwrap_err().code(), "not_found");
    assert_eq!(
        registry
            .read_uri(&"iii://my_worker".parse().unwrap())
            .unwrap()
            .bytes,
        "# W\n"
    );
}

#[test]
fn prompts_and_state_are_durable() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    let prompt = Prompt {
        name: "greet".parse().unwrap(),
        description: "Greets.".into(),
        arguments: vec![],
        body: PromptBody::Function("demo::greet".into()),
    };
    registry.put_prompt(&prompt, None).unwrap();
    let set = |value: &str| registry.state_set("s", "k", value.to_owned()).unwrap();
    assert_eq!(set(r#"{"a":1}"#), None);
    assert_eq!(set("2").as_deref(), Some(r#"{"a":1}"#));
    drop(registry);
    let registry = open_registry(home.path());
    assert_eq!(
        *registry.snapshot().prompts().next().unwrap().prompt,
        prompt
    );
    let text = Some("2".to_owned());
    assert_eq!(registry.state_get("s", "k").unwrap(), text);
    assert_eq!(registry.state_scopes().unwrap(), ["prompts", "s"]);
    assert_eq!(registry.state_delete("s", "k").unwrap(), text);
    assert_eq!(registry.state_delete("s", "k").unwrap(), None);
    assert!(registry.remove_prompt(&prompt.name).unwrap());
    assert_eq!(registry.snapshot().prompts().count(), 0);
}

#[test]
fn two_registries_on_one_file_see_each_others_changes() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (open_registry(home.path()), open_registry(home.path()));
    one.add_skills(StoreScope::Account, vec![new_skill("a", "1")])
        .unwrap();
    two.register_skill(&skill_id("b"), "# B\n").unwrap();
    one.sync_stores().unwrap();
    two.sync_stores().unwrap();
    for registry in [&one, &two] {
        let ids: Vec<_> = registry
            .snapshot()
            .skills()
            .map(|e| e.id.to_string())
            .collect();
        assert_eq!(ids, ["a", "b"]);
    }
    one.remove_skill(StoreScope::Account, &skill_id("a"), HistoryPolicy::Keep)
        .unwrap();
    two.sync_stores().unwrap();
    assert!(two.snapshot().get(&skill_id("a")).is_none());
}

/// Opens a file that was tampered with; it must be refused and left unchanged.
fn open_refused(path: &Path, trust: StoreOpenMode) -> Error {
    let before = fs::read(path).unwrap();
    let error = SqliteStore::open(path, trust).unwrap_err();
    assert_eq!(fs::read(path).unwrap(), before, "the file was changed");
    error
}

#[test]
fn t18_hostile_files_are_refused() {
    for trust in [StoreOpenMode::Own, StoreOpenMode::Untrusted] {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("agents.db");
        let fresh = || {
            for end in ["", "-wal", "-shm"] {
                let _ = fs::remove_file(home.path().join(format!("agents.db{end}")));
            }
            let registry = open_registry(home.path());
            registry
                .add_skills(
                    StoreScope::Account,
                    vec![new_skill("a", &"x".repeat(40_000))],
                )
                .unwrap();
            drop(registry);
            let file = rusqlite::Connection::open(&path).unwrap();
            file.pragma_update(None, "journal_mode", "DELETE").unwrap();
            file
        };
        for sql in [
            "CREATE VIEW v AS SELECT * FROM skills",
            "CREATE TRIGGER t AFTER INSERT ON skills BEGIN DELETE FROM skills; END",
            "CREATE TABLE extra (x)",
            "DROP TABLE approvals",
            "ALTER TABLE skills ADD COLUMN more TEXT",
        ] {
            fresh().execute_batch(sql).unwrap();
            let error = open_refused(&path, trust);
            assert_eq!(error.code(), "store_corrupt", "{sql}");
            assert!(error.to_string().contains("schema"), "{error}");
        }
        fresh().pragma_update(None, "user_version", 99).unwrap();
        assert_eq!(open_refused(&path, trust).code(), "store_newer");
        fresh().pragma_update(None, "application_id", 7).unwrap();
        assert_eq!(open_refused(&path, trust).code(), "store_corrupt");

        drop(fresh());
        let mut bytes = fs::read(&path).unwrap();
        for page in bytes.chunks_mut(4096).skip(2) {
            page[..64].fill(0xff);
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open_refused(&path, trust).code(), "store_corrupt");
        bytes.truncate(5000);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(open_refused(&path, trust).code(), "store_corrupt");
        fs::write(
            &path,
            b"not a database at all, but long enough to look like one".repeat(100),
        )
        .unwrap();
        assert_eq!(open_refused(&path, trust).code(), "store_corrupt");
    }
}

#[test]
fn t18_a_stored_file_that_differs_from_its_digest_is_not_served() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    registry
        .add_skills(StoreScope::Account, vec![new_skill("a", "1")])
        .unwrap();
    drop(registry);
    let file = rusqlite::Connection::open(home.path().join("agents.db")).unwrap();
    file.execute("UPDATE blobs SET content = 'forged'", [])
        .unwrap();
    drop(file);
    let error = open_registry(home.path())
        .read_uri(&"iii://a".parse().unwrap())
        .unwrap_err();
    assert_eq!(error.code(), "store_corrupt");
}

#[test]
fn t35_a_full_disk_loses_nothing_that_was_acknowledged() {
    let home = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&home.path().join("agents.db"), StoreOpenMode::Own).unwrap();
    store.put_skills(vec![new_skill("kept", "1")]).unwrap();
    let pages: i64 = {
        let file = rusqlite::Connection::open(home.path().join("agents.db")).unwrap();
        file.pragma_query_value(None, "page_count", |r| r.get(0))
            .unwrap()
    };
    store.limit_pages_for_test(pages + 4).unwrap();
    let big = new_skill("big", &"x".repeat(1 << 20));
    let error = store
        .put_skills(vec![new_skill("small", "1"), big])
        .unwrap_err();
    assert_eq!(error.code(), "io_error", "{error}");
    store.limit_pages_for_test(1 << 20).unwrap();
    store.put_skills(vec![new_skill("later", "1")]).unwrap();
    drop(store);
    let ids: Vec<_> = open_registry(home.path())
        .snapshot()
        .skills()
        .map(|e| e.id.to_string())
        .collect();
    assert_eq!(ids, ["kept", "later"]);
}

#[test]
fn a_follower_that_lost_events_removes_deleted_skills() {
    let home = tempfile::tempdir().unwrap();
    let registry = open_registry(home.path());
    registry
        .add_skills(
            StoreScope::Account,
            vec![new_skill("gone", "1"), new_skill("kept", "1")],
        )
        .unwrap();
    let file = rusqlite::Connection::open(home.path().join("agents.db")).unwrap();
    // Simulates a log that no longer reaches back to the last seen event.
    file.execute_batch(
        "DELETE FROM skills WHERE path = 'gone'; DELETE FROM events;
         INSERT INTO events (seq, op, kind, id, at) VALUES (500000, 'put', 'other', 'x', '')",
    )
    .unwrap();
    registry.sync_stores().unwrap();
    let ids: Vec<_> = registry
        .snapshot()
        .skills()
        .map(|e| e.id.to_string())
        .collect();
    assert_eq!(ids, ["kept"]);
}

#[test]
fn t47_a_cleaned_store_gives_its_space_back() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("agents.db");
    let store = SqliteStore::open(&path, StoreOpenMode::Own).unwrap();
    let id: repertoire_core::SkillId = "large".parse().unwrap();
    for n in 0..24 {
        let body = format!("{n}{}", "x".repeat(900_000));
        let files = [(RelPath::document(), document_text("large", &body).into())].into();
        let skill = NewSkill::from_files(id.clone(), files).unwrap();
        store.put_skills(vec![skill]).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(5));
    let nothing = RetentionPolicy {
        traces: std::time::Duration::ZERO,
        history: std::time::Duration::ZERO,
        min_revisions: 1,
    };
    let report = store.collect_garbage(&nothing, WriteMode::Commit).unwrap();
    assert_eq!((report.revisions, report.files), (23, 23));
    drop(store);
    let left = std::fs::metadata(&path).unwrap().len();
    assert!(left < 4_000_000, "{left} bytes");
    let store = SqliteStore::open(&path, StoreOpenMode::Own).unwrap();
    let text = store.read_files(&id).unwrap().into_values().next().unwrap();
    assert!(text.len() > 900_000);
}
