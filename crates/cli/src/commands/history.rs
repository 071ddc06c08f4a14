//! `history` and `rollback`: every state a stored skill had, and the way back.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::{markdown::one_line, text::terminal_safe};
use repertoire_registry::{Error, Reference, Scope};
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
    // Looking is allowed everywhere: the store that was named, or the first that knows the skill.
    let scopes = match named_scope(reference, asked)? {
        Some(ScopeArg::Workspace) => vec![Scope::Workspace],
        Some(ScopeArg::Account) => vec![Scope::Account],
        None => vec![Scope::Workspace, Scope::Account],
    };
    let mut revisions = Vec::new();
    for scope in scopes {
        if revisions.is_empty() && registry.store(scope).is_ok() {
            revisions = registry.history(scope, skill)?;
        }
    }
    if revisions.is_empty() {
        return Err(Error::NotFound {
            what: "skill",
            name: reference.to_string(),
        }
        .into());
    }
    if output.json {
        output.print_json(&json!({"skill": skill, "revisions": revisions}))?;
        return Ok(ExitCode::SUCCESS);
    }
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
    let scope = scope(&registry, named_scope(reference, asked)?, settings)?;
    let new = registry.rollback(scope, skill, revision)?;
    if output.json {
        output.print_json(&json!({"skill": skill, "from": revision, "revision": new}))?;
    }
    output.note(format!(
        "{skill} is as in revision {revision} again (now revision {new})"
    ));
    Ok(ExitCode::SUCCESS)
}
