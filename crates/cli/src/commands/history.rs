//! `history` and `rollback`: every state a stored skill had, and the way back.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::SkillId;
use repertoire_registry::Error;
use serde_json::json;

use super::{open, scope};
use crate::{
    args::ScopeArg,
    output::{BOLD, Output, count, size},
    settings::Settings,
};

pub(crate) fn run(
    skill: &SkillId,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let scope = scope(&registry, asked, settings)?;
    let revisions = registry.history(scope, skill)?;
    if revisions.is_empty() {
        return Err(Error::NotFound {
            what: "skill",
            name: format!("{}:{skill}", scope.as_str()),
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
            revision.at,
            revision.op,
            revision.version.as_deref().unwrap_or("-"),
        );
        output.print(&format!("{}\n", line.trim_end()))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn rollback(
    skill: &SkillId,
    revision: i64,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let scope = scope(&registry, asked, settings)?;
    let new = registry.rollback(scope, skill, revision)?;
    if output.json {
        output.print_json(&json!({"skill": skill, "from": revision, "revision": new}))?;
    }
    output.note(format!(
        "{skill} is as in revision {revision} again (now revision {new})"
    ));
    Ok(ExitCode::SUCCESS)
}
