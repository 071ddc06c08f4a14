//! Reads, validates and lints skill folders, and lints skills of the catalogue.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use repertoire_core::{
    FileEntry, Manifest, Package, RelPath, SkillId,
    lint::{self, LintFinding, LintSubject},
    listing::ListingRule,
    validate::{ValidationLevel, ValidationProblem, validate_skill},
};
use repertoire_registry::{Error as RegistryError, Registry, RegistrySettings, SkillEntry, folder};

use crate::error::Result;

/// The files of a skill.
pub type SkillFiles = BTreeMap<RelPath, Bytes>;

/// The skills of a folder, and what cannot be used.
#[derive(Debug, Default)]
pub struct FoundSkills {
    /// The skills with their ids.
    pub skills: Vec<(SkillId, SkillFiles)>,
    /// Why others were skipped.
    pub skipped: Vec<RegistryError>,
}

/// Reads the skill at a path, or every skill beneath it with its relative path as id.
pub fn read_skill_folders(path: &Path) -> Result<FoundSkills> {
    let registry = Registry::open(RegistrySettings::from_folders([path.to_owned()]))?;
    let notices = registry.notices().into_iter();
    let mut found = FoundSkills {
        skipped: notices.map(RegistryError::from).collect(),
        ..FoundSkills::default()
    };
    let snapshot = registry.snapshot();
    let is_skill = path.join("SKILL.md").symlink_metadata().is_ok();
    let root = path.canonicalize().ok();
    for entry in snapshot.skills() {
        let Some(folder) = entry.path() else { continue };
        // What is beneath a skill belongs to it.
        if is_skill && Some(&folder) != root.as_ref() {
            continue;
        }
        match folder::read_folder(&folder) {
            Ok(files) => found.skills.push((entry.id.clone(), files)),
            Err(error) => found.skipped.push(error),
        }
    }
    if is_skill && found.skills.is_empty() {
        // Reading it whole names the file that is the reason.
        if let Err(error) = folder::read_folder(path) {
            found.skipped.insert(0, error);
        }
        found.skipped.truncate(1);
    }
    Ok(found)
}

/// Returns the skill at a folder, or every outermost skill beneath it, with what was skipped.
pub fn outermost_skills(path: &Path) -> Result<(Vec<PathBuf>, Vec<RegistryError>)> {
    let mut outer: Vec<PathBuf> = Vec::new();
    let (found, skipped) = folder::find_skills(path)?;
    for folder in found {
        if !outer.iter().any(|skill| folder.starts_with(skill)) {
            outer.push(folder);
        }
    }
    Ok((outer, skipped))
}

/// Lints a set of files.
pub fn lint_files<B: AsRef<[u8]>>(files: &BTreeMap<RelPath, B>) -> Vec<LintFinding> {
    let mut subject = LintSubject::default();
    for (path, bytes) in files {
        subject.add_file(path, bytes.as_ref());
    }
    lint::lint_skill(&subject)
}

/// Lints a skill of the catalogue.
pub fn lint_entry(registry: &Registry, entry: &SkillEntry) -> Result<Vec<LintFinding>> {
    let mut found = lint_files(&read_entry(registry, entry)?);
    found.extend(misplaced_name(entry));
    Ok(found)
}

/// Returns a finding if a skill is not in listings because of its name, which its own files do not
/// show.
fn misplaced_name(entry: &SkillEntry) -> Option<LintFinding> {
    let problem = entry.metadata.unlisted.as_deref()?;
    (problem.rule == ListingRule::NameMismatch).then(|| lint::listing_finding(problem))
}

/// Returns, for the skills beneath a folder that are not in listings because of their names, a finding
/// each.
pub fn lint_names(path: &Path) -> Result<BTreeMap<PathBuf, LintFinding>> {
    let registry = Registry::open(RegistrySettings::from_folders([path.to_owned()]))?;
    let snapshot = registry.snapshot();
    let found = snapshot.skills().filter_map(|entry| {
        let folder = entry.path()?;
        Some((folder, misplaced_name(entry)?))
    });
    Ok(found.collect())
}

/// Returns a skill of the catalogue as a package.
pub fn export_package(registry: &Registry, entry: &SkillEntry) -> Result<Package> {
    let mut package = Package::from_folder(read_entry(registry, entry)?)?;
    if package.is_plain() {
        // An ordinary skill is known by its id, which its own name is only the end of.
        package.name = entry.id.to_string();
    }
    Ok(package)
}

/// Reads every file of a skill of the catalogue.
pub fn read_entry(registry: &Registry, entry: &SkillEntry) -> Result<SkillFiles> {
    let files = entry.metadata.files.iter();
    let read = |file: &FileEntry| Ok((file.path.clone(), registry.read_file(entry, &file.path)?));
    files.map(read).collect()
}

/// Returns every problem of a skill folder.
pub fn validate_folder(folder: &Path, level: ValidationLevel) -> Vec<ValidationProblem> {
    let problem = |code, message: String| ValidationProblem {
        code,
        line: None,
        message,
    };
    if !folder.is_dir() {
        return vec![problem("not-a-folder", "not a folder".to_owned())];
    }
    let name = match folder.canonicalize() {
        Ok(real) => real
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        Err(error) => return vec![problem("unreadable", error.to_string())],
    };
    let document = match folder::read_document(folder) {
        Ok(document) => document,
        Err(error) => return vec![problem("unreadable", error.to_string())],
    };
    let given = document.as_ref().map(|(name, bytes)| (*name, &bytes[..]));
    let mut problems = validate_skill(&name, given, level);
    // The reference validator ignores the other files, but no host could be served invalid ones.
    match folder::read_folder(folder) {
        Ok(files) => {
            let entries = files
                .iter()
                .map(|(path, bytes)| FileEntry::from_bytes(path.clone(), bytes));
            match Manifest::new(entries) {
                Err(repertoire_core::Error::NoDocument) | Ok(_) => {}
                Err(error) => problems.push(problem("files", error.to_string())),
            }
        }
        Err(error) => problems.push(problem("files", error.to_string())),
    }
    problems
}
