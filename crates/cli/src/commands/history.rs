//! `history` and `rollback`: every state a stored skill had, and the way back.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::{markdown::one_line, text::terminal_safe};
use repertoire_registry::{Error, Reference, Registry, Scope};
use serde_json::json;

use super::{named_scope, open, scope};
use crate::{
    args::ScopeArg,
    output::{BOLD, Output, count, size},
    settings::Settings,
};

pub(crate) fn run(
    reference: &Reference,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let skill = &reference.id;
    let scope = scope_of(&registry, reference, asked, settings)?;
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
    output.note(format!("{skill} in the {} store", scope.as_str()));
    for revision in &revisions {
        let bytes = revision.files.iter().map(|f| f.size).sum();
        let files = match revision.op.as_str() {
            "remove" => String::new(),
            _ => format!("{}, {}", count(revision.files.len(), "file"), size(bytes)),
        };
        let line = format!(
            "{BOLD}{:>4}{BOLD:#}  {}  {:<8}  {}  {files}",
            revision.revision,
            terminal_safe(&revision.at),
            terminal_safe(&revision.op),
            terminal_safe(&one_line(revision.version.as_deref().unwrap_or("-"))),
        );
        output.print(&format!("{}\n", line.trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn rollback(
    reference: &Reference,
    revision: i64,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let skill = &reference.id;
    let found = scope_of(&registry, reference, asked, settings)?;
    let found = match found {
        Scope::Workspace => ScopeArg::Workspace,
        Scope::Account => ScopeArg::Account,
    };
    // The same store as `history` shows, if it may be written.
    let scope = scope(&registry, Some(found), settings)?;
    let new = registry.rollback(scope, skill, revision)?;
    if output.json {
        output.print_json(&json!({"skill": skill, "from": revision, "revision": new}))?;
    }
    output.note(format!(
        "{skill} is as in revision {revision} again (now revision {new})"
    ));
    Ok(ExitCode::SUCCESS)
}

/// The store whose history is meant: the one that was named, or the first that knows the skill,
/// a stranger's last.
pub(super) fn scope_of(
    registry: &Registry,
    reference: &Reference,
    asked: Option<ScopeArg>,
    settings: &Settings,
) -> Result<Scope> {
    match named_scope(reference, asked)? {
        Some(ScopeArg::Workspace) => return Ok(Scope::Workspace),
        Some(ScopeArg::Account) => return Ok(Scope::Account),
        None => {}
    }
    let first = scope(registry, None, settings)?;
    for scope in [first, Scope::Account, Scope::Workspace] {
        let known = registry.store(scope).is_ok();
        if known && !registry.history(scope, &reference.id)?.is_empty() {
            return Ok(scope);
        }
    }
    Ok(first)
}
