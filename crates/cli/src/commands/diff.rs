//! `diff`: what differs between revisions, origins, or a folder and the registry.

use std::process::ExitCode;

use anyhow::{Context, Result};
use repertoire_app::{FileChange, SkillFiles, SkillQuery, diff_files, read_entry};
use repertoire_core::{SkillId, text::terminal_safe};
use repertoire_registry::Error as RegistryError;
use serde_json::json;

use super::{find_entry, open_registry, open_skill, open_skill_to_read, resolve_target};
use crate::{
    failure::UsageError,
    output::{BOLD, DIM, Output},
    settings::CliSettings,
};

/// One side of a comparison.
struct Side {
    name: String,
    files: SkillFiles,
}

pub(crate) fn run(
    old: &str,
    new: Option<&str>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (old, new) = match new {
        Some(new) => (
            read_side(old, settings, output)?,
            read_side(new, settings, output)?,
        ),
        None => read_sides(old, settings, output)?,
    };
    let differences = diff_files(&old.files, &new.files);
    if output.json {
        output.print_json(&json!({
            "old": old.name, "new": new.name, "equal": differences.is_empty(),
            "files": differences,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if differences.is_empty() {
        output.print_note(format!("{} and {} are equal", old.name, new.name));
    } else {
        output.print_note(format!("{DIM}from {} to {}{DIM:#}", old.name, new.name));
    }
    for file in &differences {
        let path = terminal_safe(file.path.as_str());
        if let Some(text) = &file.text {
            output.print_text(&terminal_safe(text))?;
            continue;
        }
        let word = match file.change {
            FileChange::Added => "added",
            FileChange::Removed => "removed",
            FileChange::Changed => "changed",
        };
        output.print_text(&format!("{BOLD}{path}{BOLD:#} {word}, no text\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Splits `SKILL@NUMBER`.
fn split_revision(text: &str) -> (&str, Option<i64>) {
    match text.rsplit_once('@') {
        Some((skill, number)) => match number.parse() {
            Ok(number) => (skill, Some(number)),
            Err(_) => (text, None),
        },
        None => (text, None),
    }
}

fn read_side(text: &str, settings: &CliSettings, output: &Output) -> Result<Side> {
    let (skill, revision) = split_revision(text);
    let query: SkillQuery = skill.parse()?;
    if let Some(revision) = revision {
        let (id, _, files) = read_revision(&query, |_| Ok(revision), settings, output)?;
        let name = format!("{id}@{revision}");
        return Ok(Side { name, files });
    }
    let target = resolve_target(&query, settings, output)?;
    let (registry, reference) = open_skill_to_read(&target, settings, output)?;
    let entry = find_entry(&registry, &reference)?;
    Ok(Side {
        name: match entry.path() {
            Some(path) => path.display().to_string(),
            None => format!("{}:{}", entry.origin, entry.id),
        },
        files: read_entry(&registry, &entry)?,
    })
}

/// Both sides for one argument.
fn read_sides(text: &str, settings: &CliSettings, output: &Output) -> Result<(Side, Side)> {
    let (skill, revision) = split_revision(text);
    let query: SkillQuery = skill.parse()?;
    let target = resolve_target(&query, settings, output)?;
    if let SkillQuery::Folder(_) = target {
        let new = read_side(skill, settings, output)?;
        let (folder, reference) = open_skill_to_read(&target, settings, output)?;
        let id = find_entry(&folder, &reference)?.id.clone();
        let registry = open_registry(&[], settings, output)?;
        let snapshot = registry.snapshot();
        let entry = snapshot.get(&id).ok_or_else(|| RegistryError::NotFound {
            what: "skill",
            name: id.to_string(),
        })?;
        let old = Side {
            name: format!("{}:{id}", entry.origin),
            files: read_entry(&registry, entry)?,
        };
        return Ok((old, new));
    }
    let (id, revision, files) = read_revision(
        &query,
        |numbers| match (revision, numbers) {
            (Some(revision), _) => Ok(revision),
            (None, [_, previous, ..]) => Ok(*previous),
            (None, _) => Err(UsageError(format!(
                "{skill} has one revision only: name what to compare it with"
            ))
            .into()),
        },
        settings,
        output,
    )?;
    let old = Side {
        name: format!("{id}@{revision}"),
        files,
    };
    let (_, revision, files) = read_revision(
        &query,
        |numbers| numbers.first().copied().context("no revision"),
        settings,
        output,
    )?;
    let new = Side {
        name: format!("{id}@{revision}"),
        files,
    };
    Ok((old, new))
}

/// Reads the files of a revision, which is chosen from all with content, the newest first.
fn read_revision(
    query: &SkillQuery,
    choose: impl Fn(&[i64]) -> Result<i64>,
    settings: &CliSettings,
    output: &Output,
) -> Result<(SkillId, i64, SkillFiles)> {
    let (registry, reference) = open_skill(query, settings, output)?;
    let scope = settings
        .scope_preference()
        .resolve_history(&registry, &reference, None)?;
    let history = registry.history(scope, &reference.id)?;
    let numbers = history.iter().filter(|one| one.op != "remove");
    let mut numbers: Vec<i64> = numbers.map(|one| one.revision).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    if numbers.is_empty() {
        return Err(RegistryError::NotFound {
            what: "stored skill",
            name: reference.to_string(),
        }
        .into());
    }
    let revision = choose(&numbers)?;
    let files = registry.store(scope)?.files_at(&reference.id, revision)?;
    Ok((reference.id, revision, files))
}
