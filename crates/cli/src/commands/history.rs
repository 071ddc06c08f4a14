//! `history` and `rollback`: lists the revisions of a stored or registered skill and restores one.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::SkillQuery;
use repertoire_core::{SkillId, markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{
    Error, Origin, QualifiedSkillId, Registry, StoreScope, registered::row_body,
};
use serde_json::json;

use super::{open_skill, warn_shadowed};
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
    if is_registered(&registry, &reference, asked)? {
        return print_registered_history(&registry, skill, output);
    }
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

/// Whether the revisions of what a program registered are meant.
fn is_registered(
    registry: &Registry,
    reference: &QualifiedSkillId,
    asked: Option<ScopeArg>,
) -> Result<bool> {
    if reference.origin.is_some() || asked.is_some() {
        return Ok(reference.origin == Some(Origin::State));
    }
    for scope in [StoreScope::Workspace, StoreScope::Account] {
        if registry.store(scope).is_ok() && !registry.history(scope, &reference.id)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(registry.registered_history(&reference.id)?.is_some())
}

fn print_registered_history(
    registry: &Registry,
    skill: &SkillId,
    output: &Output,
) -> Result<ExitCode> {
    let Some((scope, revisions)) = registry.registered_history(skill)? else {
        return Err(Error::NotFound {
            what: "skill",
            name: format!("{}:{skill}", Origin::State),
        }
        .into());
    };
    let body = |value: Option<&String>| value.and_then(|value| row_body(value));
    if output.json {
        let rows: Vec<_> = revisions
            .iter()
            .map(|one| {
                json!({
                    "revision": one.revision, "at": one.at,
                    "op": if one.value.is_some() { "put" } else { "remove" },
                    "body": body(one.value.as_ref()),
                })
            })
            .collect();
        output.print_json(&json!({
            "skill": skill, "scope": scope.as_str(), "registered": true, "revisions": rows,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_note(format!(
        "{skill}, registered in the {} store; `repertoire rollback {}:{skill} REVISION` restores one",
        scope.as_str(),
        Origin::State
    ));
    for one in &revisions {
        let (op, size) = match body(one.value.as_ref()) {
            Some(body) => ("put", format_size(body.len() as u64)),
            None if one.value.is_some() => ("put", "not a skill".to_owned()),
            None => ("remove", String::new()),
        };
        let line = format!(
            "{BOLD}{:>4}{BOLD:#}  {}  {op:<8}  {size}",
            one.revision,
            terminal_safe(&one.at)
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
    if is_registered(&registry, &reference, asked)? {
        let new = registry.rollback_registered(skill, revision)?;
        return print_rollback(&registry, skill, "state", (revision, new), output);
    }
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
    print_rollback(&registry, skill, scope.as_str(), (revision, new), output)
}

fn print_rollback(
    registry: &Registry,
    skill: &SkillId,
    origin: &str,
    (revision, new): (i64, i64),
    output: &Output,
) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({
            "skill": skill, "origin": origin, "from": revision, "revision": new,
        }))?;
    }
    output.print_note(format!(
        "restored {origin}:{skill} to revision {revision} (now revision {new})"
    ));
    warn_shadowed(registry, skill, origin, output);
    Ok(ExitCode::SUCCESS)
}
