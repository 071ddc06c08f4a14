//! Skills are found by id, by package name, and never by a name that several have.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{path::Path, sync::Arc};

use repertoire_app::{Error, SkillQuery, find_skill};
use repertoire_core::Package;
use repertoire_registry::{
    Registry, RegistrySettings, RequestedBy, SourceLocation, StoreScope, folder,
    store::{Account, NewSkill},
};
use serde_json::json;

fn package(name: &str, text: &str) -> Package {
    let json = json!({
        "name": name, "description": "Checks the tone.", "artifacts": [
            {"kind": "description", "name": "Overview", "content": text},
        ],
    });
    Package::from_json(json.to_string().as_bytes()).unwrap()
}

fn write_package(folder: &Path, package: &Package) {
    let files = package.to_folder().unwrap();
    folder::write_folder(folder, &files, &|| false).unwrap();
}

fn location(path: &Path, requested_by: RequestedBy) -> SourceLocation {
    SourceLocation {
        path: path.to_owned(),
        pattern: None,
        requested_by,
    }
}

fn find(registry: &Registry, text: &str) -> Result<String, Error> {
    let query: SkillQuery = text.parse()?;
    let entry = find_skill(registry, &query)?;
    Ok(format!("{}:{}", entry.origin, entry.id))
}

#[test]
fn ids_come_before_names_and_ambiguous_names_list_the_candidates() {
    let home = tempfile::tempdir().unwrap();
    let desk = tempfile::tempdir().unwrap();
    write_package(
        &desk.path().join("acme/tone-check"),
        &package("Tone Check", "Other.\n"),
    );
    let settings = RegistrySettings {
        account: Some(home.path().into()),
        folders: vec![location(desk.path(), RequestedBy::User)],
        ..RegistrySettings::default()
    };
    let registry: Arc<Registry> = Registry::open(settings).unwrap();
    assert_eq!(
        find(&registry, "tone check").unwrap(),
        "files:acme/tone-check"
    );
    let new = NewSkill::from_package(&package("Tone Check", "Ours.\n")).unwrap();
    registry.add_skills(StoreScope::Account, vec![new]).unwrap();
    assert_eq!(find(&registry, "tone-check").unwrap(), "account:tone-check");
    assert_eq!(
        find(&registry, "acme/tone-check").unwrap(),
        "files:acme/tone-check"
    );
    let several = find(&registry, "Tone Check").unwrap_err();
    assert_eq!(several.code(), "ambiguous_skill");
    for candidate in ["account:tone-check", "files:acme/tone-check"] {
        assert!(several.to_string().contains(candidate), "{several}");
    }
    assert_eq!(
        find(&registry, "account:Tone Check").unwrap(),
        "account:tone-check"
    );
    assert_eq!(
        find(&registry, "files:tone check").unwrap(),
        "files:acme/tone-check"
    );
    for missing in [
        "Other Name",
        "workspace:Tone Check",
        "other-name",
        "account:acme/tone-check",
    ] {
        assert_eq!(
            find(&registry, missing).unwrap_err().code(),
            "not_found",
            "{missing}"
        );
    }
    let path: SkillQuery = "Desk/My Skill".parse().unwrap();
    assert_eq!(path, SkillQuery::Folder("Desk/My Skill".into()));
    for wrong in ["mars:rover", "", "\u{1b}[0m"] {
        assert!(wrong.parse::<SkillQuery>().is_err(), "{wrong:?}");
    }
}

#[test]
fn an_untrusted_workspace_cannot_take_over_the_name_of_a_package() {
    let home = tempfile::tempdir().unwrap();
    let clone = tempfile::tempdir().unwrap();
    std::fs::create_dir(clone.path().join(".repertoire")).unwrap();
    write_package(
        &clone.path().join("a/tone-check"),
        &package("Tone Check", "Evil.\n"),
    );
    let settings = RegistrySettings {
        account: Some(home.path().into()),
        workspace: Some(clone.path().into()),
        folders: vec![location(clone.path(), RequestedBy::Workspace)],
        ..RegistrySettings::default()
    };
    // Alone it is found, as untrusted.
    let registry = Registry::open(settings.clone()).unwrap();
    assert_eq!(find(&registry, "Tone Check").unwrap(), "files:a/tone-check");
    drop(registry);
    let account = Account::open(home.path()).unwrap();
    account
        .store
        .create_package(&package("Tone Check", "Ours.\n"))
        .unwrap();
    drop(account);
    let registry = Registry::open(settings).unwrap();
    assert_eq!(find(&registry, "Tone Check").unwrap(), "account:tone-check");
}
