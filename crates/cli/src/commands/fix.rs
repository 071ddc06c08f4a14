//! `lint --fix`: what can be put right without asking, where it is.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::Result;
use bytes::Bytes;
use repertoire_core::{RelPath, lint, text::terminal_safe};
use repertoire_registry::{Entry, Error, Origin, Registry, Scope, folder, store::NewSkill};

use super::{Target, lint::skill_folders, open, target, write_output};
use crate::{
    output::{Output, count},
    settings::Settings,
};

pub(crate) fn run(targets: &[String], settings: &Settings, output: &Output) -> Result<()> {
    let mut references = Vec::new();
    let mut fixed = 0;
    for text in targets {
        match target(text, || open(&[], settings, output))? {
            Target::Skill(reference) => references.push(reference),
            Target::Folder(path) => {
                for skill in skill_folders(&path, output)? {
                    fixed += fix_folder(&skill, output)?;
                }
            }
        }
    }
    if targets.is_empty() || !references.is_empty() {
        let registry = open(&[], settings, output)?;
        let snapshot = registry.snapshot();
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for reference in &references {
            let entry = snapshot.skill(reference).ok_or(Error::NotFound {
                what: "skill",
                name: reference.to_string(),
            })?;
            entries.push(entry.clone());
        }
        if references.is_empty() {
            entries.extend(snapshot.skills().cloned());
        }
        for entry in entries {
            fixed += fix_entry(&registry, &entry, output)?;
        }
    }
    output.note(format!("put right: {}", count(fixed, "file")));
    Ok(())
}

/// The files of a set that are others once they are put right.
fn changed<B: AsRef<[u8]>>(files: &BTreeMap<RelPath, B>) -> Vec<(RelPath, String)> {
    let texts = files.iter().filter_map(|(path, bytes)| {
        let text = std::str::from_utf8(bytes.as_ref()).ok()?;
        Some((path.clone(), lint::fix(text)?))
    });
    texts.collect()
}

fn fix_folder(folder: &Path, output: &Output) -> Result<usize> {
    let changed = changed(&folder::read(folder)?);
    for (path, text) in &changed {
        let file = folder.join(path.as_str());
        write_output(&file, text.as_bytes())?;
        tell(&file.display().to_string(), output);
    }
    Ok(changed.len())
}

fn tell(what: &str, output: &Output) {
    output.note(format!("rewrote {}", terminal_safe(what)));
}

fn fix_entry(registry: &Registry, entry: &Entry, output: &Output) -> Result<usize> {
    let scope = match entry.origin {
        Origin::State => {
            let body = registry.body(entry)?;
            let body = String::from_utf8_lossy(&body);
            let Some(fixed) = lint::fix(&body) else {
                return Ok(0);
            };
            registry.register(&entry.id, &fixed)?;
            tell(entry.id.as_str(), output);
            return Ok(1);
        }
        Origin::Files(_) => {
            return match entry.path() {
                Some(path) if path.is_dir() => fix_folder(&path, output),
                Some(path) => fix_file(&path, output),
                None => Ok(0),
            };
        }
        Origin::Workspace => Scope::Workspace,
        Origin::Account => Scope::Account,
        Origin::Embedded | Origin::Remote(_) => {
            let read = registry.file(entry, &RelPath::document());
            let text = read
                .ok()
                .and_then(|bytes| String::from_utf8(bytes.into()).ok());
            if text.is_some_and(|text| lint::fix(&text).is_some()) {
                output.warn(format!("{} is not ours to change", entry.id));
            }
            return Ok(0);
        }
    };
    let mut files: BTreeMap<RelPath, Bytes> = BTreeMap::new();
    for file in &entry.head.files {
        files.insert(file.path.clone(), registry.file(entry, &file.path)?);
    }
    let changed = changed(&files);
    if changed.is_empty() {
        return Ok(0);
    }
    let number = changed.len();
    files.extend(changed.into_iter().map(|(path, text)| (path, text.into())));
    registry.add(scope, vec![NewSkill::from_files(entry.id.clone(), files)?])?;
    tell(entry.id.as_str(), output);
    Ok(number)
}

fn fix_file(path: &Path, output: &Output) -> Result<usize> {
    let text = std::fs::read_to_string(path)?;
    let Some(fixed) = lint::fix(&text) else {
        return Ok(0);
    };
    write_output(path, fixed.as_bytes())?;
    tell(&path.display().to_string(), output);
    Ok(1)
}
