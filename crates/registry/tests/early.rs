//! A file that is read before the whole catalogue is the file that the catalogue would find.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{fs, path::Path};

use repertoire_core::{SkillUri, Uri};
use repertoire_registry::{Origin, Registry, RegistrySettings, RequestedBy, SourceLocation};

fn write_skill(root: &Path, folder: &str, name: &str) {
    let folder = root.join(folder);
    fs::create_dir_all(folder.join("references")).unwrap();
    let document = format!("---\nname: {name}\ndescription: A thing for tests.\n---\n# {name}\n");
    fs::write(folder.join("SKILL.md"), document).unwrap();
    fs::write(folder.join("references/more.md"), "More.\n").unwrap();
}

fn skill_uri(text: &str) -> (SkillUri, Uri) {
    let uri: Uri = text.parse().unwrap();
    let Uri::Skill(path) = &uri else {
        panic!("{text} is not a file of a skill")
    };
    (path.clone(), uri.clone())
}

/// Reads a file early, if that is certain; it must be what the catalogue has.
fn read_early(settings: &RegistrySettings, text: &str) -> bool {
    let (path, uri) = skill_uri(text);
    let whole = Registry::open(settings.clone()).unwrap();
    let Some(early) = Registry::open_for_file(settings, &path) else {
        return false;
    };
    let snapshot = early.snapshot();
    let in_files = snapshot.skills().filter(|s| s.origin == Origin::Files(1));
    assert_eq!(in_files.count(), 1, "only this folder was read");
    let read = |registry: &Registry| {
        let content = registry.read_uri_in(&registry.snapshot(), &uri).unwrap();
        (content.mime, content.bytes)
    };
    assert_eq!(read(&early), read(&whole), "{text}");
    let find = |registry: &Registry| {
        let (entry, path) = registry.snapshot().locate_file(&path).unwrap();
        (entry.id.clone(), entry.origin.clone(), entry.trusted, path)
    };
    assert_eq!(find(&early), find(&whole), "{text}");
    true
}

#[test]
fn plain_skills_are_read_early() {
    let root = tempfile::tempdir().unwrap();
    write_skill(root.path(), "pdf", "pdf");
    write_skill(root.path(), "acme/billing/refunds", "refunds");
    let settings = RegistrySettings::from_folders([root.path().to_owned()]);
    for uri in [
        "skill://pdf/SKILL.md",
        "skill://pdf/references/more.md",
        "skill://acme/billing/refunds/SKILL.md",
        "skill://acme/billing/refunds/references/more.md",
    ] {
        assert!(read_early(&settings, uri), "{uri}");
    }
    for uri in [
        "skill://none/SKILL.md",
        "skill://pdf/none.md",
        "skill://acme/SKILL.md",
    ] {
        assert!(!read_early(&settings, uri), "{uri}");
    }
}

#[test]
fn what_other_folders_could_decide_waits_for_them() {
    let root = tempfile::tempdir().unwrap();
    let (first, second) = (root.path().join("first"), root.path().join("second"));
    // Its document claims another name, which a folder beside it may have.
    write_skill(&first, "pdf", "portable");
    write_skill(&first, "portable", "portable");
    // A skill within a skill.
    write_skill(&first, "outer", "outer");
    write_skill(&first, "outer/inner", "inner");
    write_skill(&first, "plain", "plain");
    write_skill(&second, "later", "later");
    #[cfg(unix)]
    std::os::unix::fs::symlink("plain", first.join("linked")).unwrap();
    let settings = RegistrySettings::from_folders([first.clone(), second]);
    assert!(!read_early(&settings, "skill://pdf/SKILL.md"));
    assert!(!read_early(&settings, "skill://outer/inner/SKILL.md"));
    assert!(!read_early(&settings, "skill://linked/SKILL.md"));
    assert!(!read_early(&settings, "skill://later/SKILL.md"));
    assert!(read_early(&settings, "skill://plain/SKILL.md"));
    // The other folder could have a skill `plain/references`.
    assert!(!read_early(&settings, "skill://plain/references/more.md"));
    // Copies that `link` made are not read back.
    fs::write(
        first.join(".repertoire-copies.json"),
        r#"{"skills": {"plain": {}}}"#,
    )
    .unwrap();
    assert!(!read_early(&settings, "skill://plain/SKILL.md"));
}

/// A clone's folders come first in the settings, and its skills last in the catalogue.
#[test]
fn t17_a_folder_of_an_untrusted_workspace_does_not_decide_early() {
    let root = tempfile::tempdir().unwrap();
    let (clone, own) = (root.path().join("clone"), root.path().join("own"));
    write_skill(&clone, "deploy", "deploy");
    write_skill(&own, "deploy", "deploy");
    let location = |path: &Path, requested_by| SourceLocation {
        path: path.to_owned(),
        pattern: None,
        requested_by,
    };
    let settings = RegistrySettings {
        account: Some(root.path().join("home")),
        workspace: Some(root.path().join("clone")),
        folders: vec![
            location(&clone, RequestedBy::Workspace),
            location(&own, RequestedBy::User),
        ],
        ..RegistrySettings::default()
    };
    let whole = Registry::open(settings.clone()).unwrap();
    let deploy = whole.snapshot().get(&"deploy".parse().unwrap()).cloned();
    assert_eq!(deploy.unwrap().origin, Origin::Files(2));
    assert!(!read_early(&settings, "skill://deploy/SKILL.md"));
}

#[test]
fn stores_and_settings_decide_early_too() {
    let root = tempfile::tempdir().unwrap();
    let (skills, account) = (root.path().join("skills"), root.path().join("home"));
    write_skill(&skills, "pdf", "pdf");
    write_skill(&skills, "csv", "csv");
    let location = |path: &Path| SourceLocation {
        path: path.to_owned(),
        pattern: None,
        requested_by: RequestedBy::User,
    };
    let mut settings = RegistrySettings {
        account: Some(account),
        folders: vec![location(&skills)],
        ..RegistrySettings::default()
    };
    assert!(read_early(&settings, "skill://pdf/SKILL.md"));
    // Registered content takes precedence over files.
    let registry = Registry::open(settings.clone()).unwrap();
    let id = "pdf".parse().unwrap();
    registry
        .register_skill(&id, "# Registered\n\nA body.\n")
        .unwrap();
    drop(registry);
    assert!(!read_early(&settings, "skill://pdf/SKILL.md"));
    assert!(read_early(&settings, "skill://csv/SKILL.md"));
    settings.only = vec!["pdf".parse().unwrap()];
    assert!(!read_early(&settings, "skill://csv/SKILL.md"));
}
