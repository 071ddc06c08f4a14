//! `lint --fix`: fixes findings that have a safe fix, in place.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::Result;
use bytes::Bytes;
use repertoire_app::SkillQuery;
use repertoire_core::{RelPath, lint, text::terminal_safe};
use repertoire_registry::{Origin, Registry, SkillEntry, StoreScope, folder, store::NewSkill};

use super::{lint::skill_folders, open_registry, parse_target, write_output};
use crate::{
    output::{Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(targets: &[String], settings: &CliSettings, output: &Output) -> Result<()> {
    let mut skills = Vec::new();
    let mut fixed = 0;
    for text in targets {
        match parse_target(text, || open_registry(&[], settings, output))? {
            SkillQuery::Folder(path) => {
                for skill in skill_folders(&path, output)? {
                    fixed += fix_folder(&skill, output)?;
                }
            }
            skill => skills.push(skill),
        }
    }
    if targets.is_empty() || !skills.is_empty() {
        let registry = open_registry(&[], settings, output)?;
        let mut entries: Vec<Arc<SkillEntry>> = Vec::new();
        for skill in &skills {
            entries.push(repertoire_app::find_skill(&registry, skill)?);
        }
        if skills.is_empty() {
            entries.extend(registry.snapshot().skills().cloned());
        }
        for entry in entries {
            fixed += fix_entry(&registry, &entry, output)?;
        }
    }
    output.print_note(format!("fixed: {}", format_count(fixed, "file")));
    Ok(())
}

/// Returns the files that a fix changes, with their new text.
fn fixed_files<B: AsRef<[u8]>>(files: &BTreeMap<RelPath, B>) -> Vec<(RelPath, String)> {
    let texts = files.iter().filter_map(|(path, bytes)| {
        let text = std::str::from_utf8(bytes.as_ref()).ok()?;
        Some((path.clone(), lint::apply_fixes(text)?))
    });
    texts.collect()
}

fn fix_folder(folder: &Path, output: &Output) -> Result<usize> {
    let changed = fixed_files(&folder::read_folder(folder)?);
    for (path, text) in &changed {
        let file = folder.join(path.as_str());
        write_output(&file, text.as_bytes())?;
        report_rewrite(&file.display().to_string(), output);
    }
    Ok(changed.len())
}

fn report_rewrite(what: &str, output: &Output) {
    output.print_note(format!("rewrote {}", terminal_safe(what)));
}

fn fix_entry(registry: &Registry, entry: &SkillEntry, output: &Output) -> Result<usize> {
    let scope = match entry.origin {
        Origin::State => {
            let body = registry.read_body(entry)?;
            let body = String::from_utf8_lossy(&body);
            let Some(fixed) = lint::apply_fixes(&body) else {
                return Ok(0);
            };
            registry.register_skill(&entry.id, &fixed)?;
            report_rewrite(entry.id.as_str(), output);
            return Ok(1);
        }
        Origin::Files(_) => {
            return match entry.path() {
                Some(path) if path.is_dir() => fix_folder(&path, output),
                Some(path) => fix_file(&path, output),
                None => Ok(0),
            };
        }
        Origin::Workspace => StoreScope::Workspace,
        Origin::Account => StoreScope::Account,
        Origin::Embedded | Origin::Remote(_) => {
            let read = registry.read_file(entry, &RelPath::document());
            let text = read
                .ok()
                .and_then(|bytes| String::from_utf8(bytes.into()).ok());
            if text.is_some_and(|text| lint::apply_fixes(&text).is_some()) {
                output.print_warning(format!("{} is read-only and was not fixed", entry.id));
            }
            return Ok(0);
        }
    };
    let mut files: BTreeMap<RelPath, Bytes> = BTreeMap::new();
    for file in &entry.metadata.files {
        files.insert(file.path.clone(), registry.read_file(entry, &file.path)?);
    }
    let changed = fixed_files(&files);
    if changed.is_empty() {
        return Ok(0);
    }
    let number = changed.len();
    files.extend(changed.into_iter().map(|(path, text)| (path, text.into())));
    registry.add_skills(scope, vec![NewSkill::from_files(entry.id.clone(), files)?])?;
    report_rewrite(entry.id.as_str(), output);
    Ok(number)
}

fn fix_file(path: &Path, output: &Output) -> Result<usize> {
    let text = std::fs::read_to_string(path)?;
    let Some(fixed) = lint::apply_fixes(&text) else {
        return Ok(0);
    };
    write_output(path, fixed.as_bytes())?;
    report_rewrite(&path.display().to_string(), output);
    Ok(1)
}
