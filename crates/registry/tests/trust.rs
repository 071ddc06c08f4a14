//! An untrusted workspace is listed but overrides nothing until it is trusted.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{fs, path::Path, sync::Arc};

use common::{document_text, write_skill};
use repertoire_core::RelPath;
use repertoire_registry::{
    HistoryPolicy, Origin, Registry, RegistrySettings, RequestedBy, SourceLocation, StoreScope,
    Trusted,
    store::{
        Account, InstalledFrom, LocalStore, NewSkill, OriginChange, SkillWrite, SqliteStore, Store,
        StoreOpenMode, WriteMode,
    },
    trust,
};

fn new_skill(name: &str, body: &str) -> NewSkill {
    let files = [(RelPath::document(), document_text(name, body).into())].into();
    NewSkill::from_files(name.parse().unwrap(), files).unwrap()
}

fn open_registry(home: &Path, workspace: &Path) -> Arc<Registry> {
    Registry::open(RegistrySettings {
        account: Some(home.to_owned()),
        workspace: Some(workspace.to_owned()),
        folders: vec![SourceLocation {
            path: workspace.join("skills"),
            pattern: None,
            requested_by: RequestedBy::Workspace,
        }],
        ..RegistrySettings::default()
    })
    .unwrap()
}

fn winning_origin(registry: &Registry, id: &str) -> Origin {
    registry
        .snapshot()
        .get(&id.parse().unwrap())
        .unwrap()
        .origin
        .clone()
}

fn account_store(home: &Path) -> Arc<dyn Store> {
    Account::open(home).unwrap().store
}

fn local_store(home: &Path) -> Arc<LocalStore> {
    Account::open(home).unwrap().local
}

#[test]
fn t17_a_planted_store_and_folder_override_nothing_until_trusted() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let planted = SqliteStore::open(
        &trust::workspace_store_path(workspace.path()),
        StoreOpenMode::Own,
    )
    .unwrap();
    planted
        .put_skills(vec![
            new_skill("deploy", "evil"),
            new_skill("extra", "evil"),
        ])
        .unwrap();
    drop(planted);
    write_skill(workspace.path(), "skills/deploy", "evil too");
    account_store(home.path())
        .put_skills(vec![new_skill("deploy", "good")])
        .unwrap();

    let registry = open_registry(home.path(), workspace.path());
    assert_eq!(registry.workspace().unwrap().1, Trusted::No);
    assert_eq!(winning_origin(&registry, "deploy"), Origin::Account);
    assert_eq!(winning_origin(&registry, "extra"), Origin::Workspace);
    let extra = registry
        .snapshot()
        .get(&"extra".parse().unwrap())
        .unwrap()
        .clone();
    assert_eq!(extra.trusted, Trusted::No);
    assert_eq!(
        registry.read_body(&extra).unwrap(),
        document_text("extra", "evil")
    );
    let error = registry
        .add_skills(StoreScope::Workspace, vec![new_skill("x", "")])
        .unwrap_err();
    assert_eq!(error.code(), "untrusted");
    // Its content is not used automatically either.
    let acted_upon: Vec<_> = registry
        .trusted_stores()
        .map(|store| std::path::PathBuf::from(store.location()))
        .collect();
    assert_eq!(acted_upon, [home.path().join(trust::STORE_FILE_NAME)]);
    registry
        .register_skill(&"note".parse().unwrap(), "# Note\n")
        .unwrap();
    drop(registry);

    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    assert_eq!(registry.workspace().unwrap().1, Trusted::Yes);
    assert_eq!(winning_origin(&registry, "deploy"), Origin::Workspace);
    drop(registry);

    assert!(
        local_store(home.path())
            .distrust_workspace(workspace.path())
            .unwrap()
    );
    assert_eq!(
        winning_origin(&open_registry(home.path(), workspace.path()), "deploy"),
        Origin::Account
    );
}

#[test]
fn t17_trust_falls_when_the_store_is_replaced_or_copied() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let file = trust::workspace_store_path(workspace.path());
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let trusted = |path: &Path| local_store(home.path()).workspace_trust(path).unwrap();
    assert_eq!(trusted(workspace.path()), Trusted::Yes);

    // The user's own writes do not change the trust.
    let store = SqliteStore::open(&file, StoreOpenMode::Own).unwrap();
    store.put_skills(vec![new_skill("a", "1")]).unwrap();
    drop(store);
    assert_eq!(trusted(workspace.path()), Trusted::Yes);

    // The file is replaced by an identical copy, as a checkout does.
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    assert_eq!(trusted(workspace.path()), Trusted::No);

    // The workspace is copied to another folder.
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join(trust::WORKSPACE_FOLDER)).unwrap();
    fs::copy(&file, trust::workspace_store_path(copy.path())).unwrap();
    assert_eq!(trusted(copy.path()), Trusted::No);
}

#[test]
fn t17_an_untrusted_workspace_cannot_point_outside_of_itself() {
    let home = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    write_skill(outside.path(), "private", "secret");
    let workspace = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), workspace.path().join("skills")).unwrap();
    let registry = open_registry(home.path(), workspace.path());
    assert!(registry.snapshot().is_empty());
    assert_eq!(registry.notices()[0].code, "untrusted");
}

#[test]
fn t17_a_damaged_untrusted_store_does_not_lock_the_user_out() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    account_store(home.path())
        .put_skills(vec![new_skill("mine", "1")])
        .unwrap();
    let file = trust::workspace_store_path(workspace.path());
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "garbage".repeat(1000)).unwrap();
    let registry = open_registry(home.path(), workspace.path());
    assert_eq!(winning_origin(&registry, "mine"), Origin::Account);
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
            document_text("code-mode", "# Mine\n").into(),
        ),
        ("references/policies.md".parse().unwrap(), "mine".into()),
    ];
    let mine = NewSkill::from_files("code-mode".parse().unwrap(), files.into()).unwrap();
    account_store(home.path()).put_skills(vec![mine]).unwrap();
    write_skill(workspace.path(), "skills/code-mode/references", "");
    common::write_file(
        workspace.path(),
        "skills/code-mode/references/policies.md",
        "planted",
    );
    fs::create_dir_all(workspace.path().join(trust::WORKSPACE_FOLDER)).unwrap();
    let registry = open_registry(home.path(), workspace.path());
    let uri = "skill://code-mode/references/policies.md".parse().unwrap();
    assert_eq!(registry.read_uri(&uri).unwrap().bytes, "mine");
}

#[test]
fn t18_a_planted_store_with_a_forged_listing_affects_no_other_skill() {
    let home = tempfile::tempdir().unwrap();
    account_store(home.path())
        .put_skills(vec![new_skill("mine", "1")])
        .unwrap();
    for sql in [
        "UPDATE skills SET head = 'x'",
        "UPDATE skills SET path = '../x'",
        "UPDATE skills SET head = json_set(head, '$.files[0].size', -1)",
        // Text that would end the JSON response around it and start another one.
        "UPDATE skills SET head = json_set(head, '$.frontmatter', '{}},\"id\":9}' || char(10) || '{')",
        "UPDATE skills SET head = json_set(head, '$.frontmatter', '[]')",
    ] {
        let workspace = tempfile::tempdir().unwrap();
        let file = trust::workspace_store_path(workspace.path());
        SqliteStore::open(&file, StoreOpenMode::Own)
            .unwrap()
            .put_skills(vec![new_skill("a", "1")])
            .unwrap();
        rusqlite::Connection::open(&file)
            .unwrap()
            .execute_batch(sql)
            .unwrap();
        let registry = open_registry(home.path(), workspace.path());
        assert_eq!(winning_origin(&registry, "mine"), Origin::Account, "{sql}");
        assert!(!registry.notices().is_empty(), "{sql}");
        // Changes in the user's own store are still applied.
        let later = format!("later-{}", sql.len());
        account_store(home.path())
            .put_skills(vec![new_skill(&later, "1")])
            .unwrap();
        registry.sync_stores().unwrap();
        assert_eq!(winning_origin(&registry, &later), Origin::Account, "{sql}");
    }
}

#[test]
fn t19_stored_bytes_that_differ_from_the_listing_are_not_served() {
    let home = tempfile::tempdir().unwrap();
    let store = account_store(home.path());
    store
        .put_skills(vec![new_skill("a", "one"), new_skill("b", "two")])
        .unwrap();
    drop(store);
    let file = rusqlite::Connection::open(home.path().join(trust::STORE_FILE_NAME)).unwrap();
    // The row of `a` now references the bytes of `b`, which match their own digest.
    file.execute_batch(
        "UPDATE skill_files SET digest = (SELECT f.digest FROM skill_files f JOIN skills s ON
             f.skill_id = s.id WHERE s.path = 'b')
         WHERE skill_id = (SELECT id FROM skills WHERE path = 'a')",
    )
    .unwrap();
    drop(file);
    let settings = RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings).unwrap();
    let error = registry.read_uri(&"iii://a".parse().unwrap()).unwrap_err();
    assert_eq!(error.code(), "store_corrupt");
}

#[test]
fn account_registrations_stay_visible_in_a_trusted_workspace() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let plain = Registry::open(RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::default()
    })
    .unwrap();
    plain
        .register_skill(&"note".parse().unwrap(), "# Account\n")
        .unwrap();
    plain
        .register_skill(&"both".parse().unwrap(), "# Account\n")
        .unwrap();
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    registry
        .register_skill(&"both".parse().unwrap(), "# Workspace\n")
        .unwrap();
    let text = |id: &str| {
        registry
            .read_uri(&format!("iii://{id}").parse().unwrap())
            .unwrap()
            .bytes
    };
    assert_eq!(
        (text("note"), text("both")),
        ("# Account\n".into(), "# Workspace\n".into())
    );
    assert!(registry.unregister_skill(&"both".parse().unwrap()).unwrap());
    assert_eq!(text("both"), "# Account\n");
}

#[test]
fn t43_the_journal_of_another_account_is_neither_moved_nor_applied() {
    let workspace = tempfile::tempdir().unwrap();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for home in [&first, &second] {
        local_store(home.path())
            .trust_workspace(workspace.path())
            .unwrap();
    }
    let id = "kept".parse().unwrap();
    let writing = open_registry(first.path(), workspace.path());
    writing.register_skill(&id, "# Kept\n").unwrap();
    // The second account cannot know whose journal it is, so it only reads.
    let reading = open_registry(second.path(), workspace.path());
    assert_eq!(reading.workspace().unwrap().1, Trusted::No);
    assert!(reading.workspace_problem().is_some());
    drop(reading);
    // The first one goes on, and what it acknowledged stays.
    writing
        .register_skill(&"more".parse().unwrap(), "# More\n")
        .unwrap();
    drop(writing);
    for home in [&first, &second] {
        let registry = open_registry(home.path(), workspace.path());
        assert_eq!(registry.workspace().unwrap().1, Trusted::Yes);
        assert_eq!(winning_origin(&registry, "kept"), Origin::State);
        assert_eq!(winning_origin(&registry, "more"), Origin::State);
    }
}

#[test]
fn t43_a_crash_between_the_record_and_the_write_loses_nothing() {
    let (home, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let local = local_store(home.path());
    local.trust_workspace(workspace.path()).unwrap();
    let store = trust::workspace_store_path(workspace.path());
    let wal = store.with_file_name("agents.db-wal");
    let registry = open_registry(home.path(), workspace.path());
    registry
        .register_skill(&"kept".parse().unwrap(), "# Kept\n")
        .unwrap();
    drop(registry);
    // A process that ended after it recorded its journal and before it wrote: the record is of a file
    // that is empty, or that is gone.
    fs::write(&wal, b"").unwrap();
    for _ in 0..2 {
        let registry = open_registry(home.path(), workspace.path());
        assert_eq!(registry.workspace().unwrap().1, Trusted::Yes);
        let id = "kept".parse().unwrap();
        registry.register_skill(&id, "# Kept again\n").unwrap();
        drop(registry);
        let _ = fs::remove_file(&wal);
    }
}

#[test]
fn t43_a_store_that_is_replaced_while_it_is_open_is_not_read() {
    let (home, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    let id = "good".parse().unwrap();
    registry.register_skill(&id, "# Original\n").unwrap();
    // What a pull does: the files get other ones in their place.
    let path = trust::workspace_store_path(workspace.path());
    let other = tempfile::tempdir().unwrap();
    let planted = SqliteStore::open(&other.path().join("agents.db"), StoreOpenMode::Own).unwrap();
    drop(planted);
    for suffix in ["-wal", "-shm", ""] {
        let _ = fs::remove_file(path.with_file_name(format!("agents.db{suffix}")));
    }
    fs::copy(other.path().join("agents.db"), &path).unwrap();
    // Many readers at once need connections that were not open before.
    let registry = &registry;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    (0..50)
                        .map(|_| registry.read_uri(&"iii://good".parse().unwrap()))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let all = readers
            .into_iter()
            .flat_map(|reader| reader.join().unwrap());
        all.collect()
    });
    for answer in answers {
        match answer {
            Ok(content) => assert_eq!(content.bytes, "# Original\n"),
            Err(error) => assert_eq!(error.code(), "untrusted", "{error}"),
        }
    }
}

#[test]
fn history_of_registered_skills_is_that_of_the_store_that_serves_them() {
    let (home, workspace) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let id: repertoire_core::SkillId = "both".parse().unwrap();
    {
        let account = Registry::open(RegistrySettings {
            account: Some(home.path().to_owned()),
            ..RegistrySettings::default()
        });
        let account = account.unwrap();
        account.register_skill(&id, "# Account, first\n").unwrap();
        account.register_skill(&id, "# Account\n").unwrap();
    }
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    registry.register_skill(&id, "# Workspace\n").unwrap();
    let scope = || registry.registered_history(&id).unwrap().unwrap().0;
    assert_eq!(scope(), StoreScope::Workspace);
    registry.unregister_skill(&id).unwrap();
    assert_eq!(scope(), StoreScope::Account, "its body is served now");
    registry
        .purge_registered_history(StoreScope::Workspace, &id)
        .unwrap();
    let (_, kept) = registry.registered_history(&id).unwrap().unwrap();
    assert_eq!(kept.len(), 2, "the account's history stays");
}

fn installed(name: &str, body: &str) -> SkillWrite {
    let skill = new_skill(name, body);
    let from = InstalledFrom {
        source: "acme/skills".to_owned(),
        skill: None,
        resolved: "https://github.com/acme/skills.git".to_owned(),
        pin: body.to_owned(),
        version: None,
        signer: None,
        files: skill.metadata().files.to_vec(),
    };
    SkillWrite {
        origin: OriginChange::Set(Box::new(from)),
        ..SkillWrite::put(skill)
    }
}

#[test]
fn t23_an_installed_skill_is_trusted_only_as_it_was_approved() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    write_skill(&workspace.path().join("skills"), "tool", "A file.");
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    let scope = StoreScope::Workspace;
    let id: repertoire_core::SkillId = "tool".parse().unwrap();
    let trusted = || {
        let snapshot = registry.snapshot();
        let mut entries = snapshot.all_skills().map(|(entry, _)| entry);
        let found = entries.find(|entry| entry.origin == Origin::Workspace);
        found.unwrap().trusted
    };
    let write = |write| {
        registry
            .write_skills(scope, vec![write], WriteMode::Commit)
            .unwrap()
    };
    write(installed("tool", "one"));
    // It overrides nothing, although its store comes before files.
    assert_eq!(trusted(), Trusted::No);
    assert_eq!(winning_origin(&registry, "tool"), Origin::Files(1));
    let one = registry
        .installed_from(scope, &id)
        .unwrap()
        .unwrap()
        .digest();
    registry
        .approve_installed(scope, &[(id.clone(), one)])
        .unwrap();
    assert_eq!(trusted(), Trusted::Yes);
    assert_eq!(winning_origin(&registry, "tool"), Origin::Workspace);
    // The user's own changes need no approval, an update does.
    registry
        .add_skills(scope, vec![new_skill("tool", "mine")])
        .unwrap();
    assert_eq!(trusted(), Trusted::Yes);
    write(installed("tool", "two"));
    assert_eq!(trusted(), Trusted::No);
    // An approval of what was there before does nothing for it.
    registry
        .approve_installed(scope, &[(id.clone(), one)])
        .unwrap();
    assert_eq!(trusted(), Trusted::No);
    let two = registry
        .installed_from(scope, &id)
        .unwrap()
        .unwrap()
        .digest();
    registry
        .approve_installed(scope, &[(id.clone(), two)])
        .unwrap();
    assert_eq!(trusted(), Trusted::Yes);
    // Another process sees the same.
    let other = open_registry(home.path(), workspace.path());
    assert_eq!(winning_origin(&other, "tool"), Origin::Workspace);
    assert!(registry.revoke_installed(scope, &id).unwrap());
    assert_eq!(trusted(), Trusted::No);
    other.sync_stores().unwrap();
    assert_eq!(winning_origin(&other, "tool"), Origin::Files(1));
}

#[test]
fn t21_going_back_to_a_state_that_was_never_approved_is_untrusted() {
    let home = tempfile::tempdir().unwrap();
    let registry = Registry::open(RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::default()
    })
    .unwrap();
    let id: repertoire_core::SkillId = "tool".parse().unwrap();
    let scope = StoreScope::Account;
    let write = |write| {
        registry
            .write_skills(scope, vec![write], WriteMode::Commit)
            .unwrap()
    };
    let approve = || {
        let digest = registry
            .installed_from(scope, &id)
            .unwrap()
            .unwrap()
            .digest();
        registry
            .approve_installed(scope, &[(id.clone(), digest)])
            .unwrap();
    };
    let trusted = || registry.snapshot().get(&id).unwrap().trusted;
    write(installed("tool", "never approved"));
    write(installed("tool", "two"));
    approve();
    write(installed("tool", "three"));
    approve();
    assert_eq!(trusted(), Trusted::Yes);
    // Revision 2 was approved when it was installed, revision 1 never was.
    registry.rollback_skill(scope, &id, 2).unwrap();
    assert_eq!(trusted(), Trusted::Yes);
    registry.rollback_skill(scope, &id, 1).unwrap();
    assert_eq!(trusted(), Trusted::No);
    // Not by removing it and bringing it back, and not as a copy in a workspace.
    registry
        .remove_skill(scope, &id, HistoryPolicy::Keep)
        .unwrap();
    assert!(registry.snapshot().get(&id).is_none());
    registry.rollback_skill(scope, &id, 1).unwrap();
    assert_eq!(trusted(), Trusted::No);
    let from = registry.installed_from(scope, &id).unwrap().unwrap();
    assert_eq!(from.pin, "never approved");
    let workspace = tempfile::tempdir().unwrap();
    local_store(home.path())
        .trust_workspace(workspace.path())
        .unwrap();
    let registry = open_registry(home.path(), workspace.path());
    let entry = registry.snapshot().get(&id).unwrap().clone();
    assert_eq!(registry.fork_skill(&entry).unwrap_err().code(), "untrusted");
}

#[cfg(unix)]
#[test]
fn t17_a_workspace_folder_that_is_a_link_is_not_trusted() {
    let home = tempfile::tempdir().unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let account = account_store(home.path());
    std::os::unix::fs::symlink(home.path(), workspace.path().join(".repertoire")).unwrap();
    let refused = local_store(home.path()).trust_workspace(workspace.path());
    assert!(refused.is_err());
    drop(account);
}
