//! Fixes lint findings that have a safe fix, where the skill is kept.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use repertoire_core::{RelPath, lint};
use repertoire_registry::{Origin, Registry, SkillEntry, StoreScope, folder, store::NewSkill};

use crate::error::Result;

/// What fixing a skill did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LintFix {
    /// There was nothing to fix.
    Nothing,
    /// The skill was stored again with this number of changed files.
    Stored(usize),
    /// These files on disk have to be replaced with these texts.
    Files(Vec<(PathBuf, String)>),
    /// The skill cannot be changed.
    ReadOnly,
}

/// Returns the files of a folder that a fix changes, with their new text.
pub fn fix_folder(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let changed = fixed_files(&folder::read_folder(folder)?, &name);
    let changed = changed.into_iter();
    Ok(changed
        .map(|(path, text)| (folder.join(path.as_str()), text))
        .collect())
}

/// Fixes a skill in its store, or returns what to write to its files.
pub fn fix_skill(registry: &Registry, entry: &SkillEntry) -> Result<LintFix> {
    let scope = match entry.origin {
        Origin::State => {
            let body = registry.read_body(entry)?;
            let body = String::from_utf8_lossy(&body);
            let Some(fixed) = lint::apply_fixes(&body) else {
                return Ok(LintFix::Nothing);
            };
            registry.register_skill(&entry.id, &fixed)?;
            return Ok(LintFix::Stored(1));
        }
        Origin::Files(_) => {
            let changed = match entry.path() {
                Some(path) if path.is_dir() => fix_folder(&path)?,
                Some(path) => {
                    let body = registry.read_body(entry)?;
                    let fixed = lint::apply_fixes(&String::from_utf8_lossy(&body));
                    fixed.map(|text| (path, text)).into_iter().collect()
                }
                None => Vec::new(),
            };
            return Ok(LintFix::Files(changed));
        }
        Origin::Workspace => StoreScope::Workspace,
        Origin::Account => StoreScope::Account,
        Origin::Embedded | Origin::Remote(_) => {
            let read = registry.read_file(entry, &RelPath::document());
            let text = read
                .ok()
                .and_then(|bytes| String::from_utf8(bytes.into()).ok());
            let has_findings = text.is_some_and(|text| lint::apply_fixes(&text).is_some());
            return Ok(if has_findings {
                LintFix::ReadOnly
            } else {
                LintFix::Nothing
            });
        }
    };
    let mut files: BTreeMap<RelPath, Bytes> = BTreeMap::new();
    for file in &entry.complete_metadata().files {
        files.insert(file.path.clone(), registry.read_file(entry, &file.path)?);
    }
    let changed = fixed_files(&files, entry.id.name());
    if changed.is_empty() {
        return Ok(LintFix::Nothing);
    }
    let number = changed.len();
    files.extend(changed.into_iter().map(|(path, text)| (path, text.into())));
    registry.add_skills(scope, vec![NewSkill::from_files(entry.id.clone(), files)?])?;
    Ok(LintFix::Stored(number))
}

fn fixed_files<B: AsRef<[u8]>>(files: &BTreeMap<RelPath, B>, name: &str) -> Vec<(RelPath, String)> {
    let texts = files.iter().filter_map(|(path, bytes)| {
        let text = std::str::from_utf8(bytes.as_ref()).ok()?;
        let repaired = path.is_document().then(|| lint::fix_document(text, name));
        let repaired = repaired.flatten();
        let links = lint::apply_fixes(repaired.as_deref().unwrap_or(text));
        Some((path.clone(), links.or(repaired)?))
    });
    texts.collect()
}
