//! `history` and `rollback`: lists the revisions of a stored skill and restores one.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::SkillQuery;
use repertoire_core::{markdown::to_single_line, text::terminal_safe};
use repertoire_registry::Error;
use serde_json::json;

use super::open_skill;
use crate::{
    args::ScopeArg,
    output::{BOLD, Output, format_count, format_size},
    settings::CliSettings,
};

pub(crate) fn run(
    skill: &SkillQuery,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, reference) = open_skill(skill, settings, output)?;
    let skill = &reference.id;
    let preference = settings.scope_preference();
    let scope = preference.resolve_history(&registry, &reference, asked.map(Into::into))?;
    let revisions = registry.history(scope, skill)?;
    if revisions.is_empty() {
        return Err(Error::NotFound {
            what: "skill",
            name: reference.to_string(),
        }
        .into());
    }
    if output.json {
        output.print_json(&json!({
            "skill": skill, "scope": scope.as_str(), "revisions": revisions,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_note(format!("{skill} in the {} store", scope.as_str()));
    for revision in &revisions {
        let bytes = revision.files.iter().map(|f| f.size).sum();
        let files = match revision.op.as_str() {
            "remove" => String::new(),
            _ => format!(
                "{}, {}",
                format_count(revision.files.len(), "file"),
                format_size(bytes)
            ),
        };
        let line = format!(
            "{BOLD}{:>4}{BOLD:#}  {}  {:<8}  {}  {files}",
            revision.revision,
            terminal_safe(&revision.at),
            terminal_safe(&revision.op),
            terminal_safe(&to_single_line(revision.version.as_deref().unwrap_or("-"))),
        );
        output.print_text(&format!("{}\n", line.trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn rollback_skill(
    skill: &SkillQuery,
    revision: i64,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, reference) = open_skill(skill, settings, output)?;
    let skill = &reference.id;
    let preference = settings.scope_preference();
    let found = preference.resolve_history(&registry, &reference, asked.map(Into::into))?;
    if registry.history(found, skill)?.is_empty() {
        return Err(Error::NotFound {
            what: "skill",
            name: reference.to_string(),
        }
        .into());
    }
    // The same store as `history` shows, if it may be written.
    let scope = preference.resolve(&registry, Some(found))?;
    let new = registry.rollback_skill(scope, skill, revision)?;
    if output.json {
        output.print_json(&json!({"skill": skill, "from": revision, "revision": new}))?;
    }
    output.print_note(format!(
        "restored {skill} to revision {revision} (now revision {new})"
    ));
    Ok(ExitCode::SUCCESS)
}
