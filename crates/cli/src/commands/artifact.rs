//! `artifact` and `fork`: lists, shows and changes the artifacts of a package.

use std::process::ExitCode;

use anyhow::{Context, Result};
use repertoire_app::{ArtifactChange, ArtifactName, ArtifactOutcome, SkillQuery, remove_artifact};
use repertoire_core::{Artifact, package::MAX_JSON, text::terminal_safe};
use repertoire_registry::{Error, QualifiedSkillId, Registry, StoreScope};
use serde_json::json;

use super::{find_entry, open_skill, open_skill_to_read, read_input};
use crate::{
    args::{ArtifactCommand, NewArtifact},
    failure::UsageError,
    output::{DIM, ID, Output, format_size},
    settings::CliSettings,
};

pub(crate) fn fork_skill(
    skill: &SkillQuery,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, skill) = open_skill(skill, settings, output)?;
    let entry = find_entry(&registry, &skill)?;
    let revision = registry.fork_skill(&entry)?;
    if output.json {
        output.print_json(&json!({
            "id": entry.id, "from": entry.origin.to_string(), "scope": "workspace",
            "revision": revision,
        }))?;
    } else {
        output.print_text(&format!(
            "{ID}{}{ID:#}  {DIM}copied from {} into the workspace, where it has priority{DIM:#}\n",
            entry.id, entry.origin
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(
    command: &ArtifactCommand,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, reference) = match command {
        ArtifactCommand::List { skill } | ArtifactCommand::Show { skill, .. } => {
            open_skill_to_read(skill, settings, output)?
        }
        ArtifactCommand::Put(_) | ArtifactCommand::Remove { .. } => {
            open_skill(command.skill(), settings, output)?
        }
    };
    let skill = &reference;
    match command {
        ArtifactCommand::List { .. } => list_artifacts(&registry, skill, output),
        ArtifactCommand::Show { name, variant, .. } => {
            show_artifact(&registry, skill, name, variant.as_deref(), output)
        }
        ArtifactCommand::Put(new) => put_artifact(&registry, skill, new, settings, output),
        ArtifactCommand::Remove {
            name,
            variant,
            scope: asked,
            ..
        } => {
            let scope = settings.scope_preference().resolve_for_skill(
                &registry,
                skill,
                asked.map(Into::into),
            )?;
            let variant = variant.as_deref();
            let name = ArtifactName { name, variant };
            let entry = find_entry(&registry, skill)?;
            let outcome = remove_artifact(&registry, scope, &entry, name)?;
            print_outcome("removed", &outcome, scope, output)
        }
    }
}

fn list_artifacts(
    registry: &Registry,
    skill: &QualifiedSkillId,
    output: &Output,
) -> Result<ExitCode> {
    let entry = find_entry(registry, skill)?;
    let parts = registry.skill_artifacts(&entry)?;
    if output.json {
        let rows: Vec<_> = parts
            .artifacts
            .iter()
            .map(|(id, artifact)| {
                json!({
                    "id": id, "kind": artifact.kind, "name": artifact.name,
                    "ordinal": artifact.ordinal, "model_variant": artifact.model_variant,
                    "metadata": artifact.metadata,
                })
            })
            .collect();
        output.print_json(&json!({"skill": entry.id, "artifacts": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if parts.artifacts.is_empty() {
        output.print_note(format!("{} has a document and no artifacts", entry.id));
    }
    for (_, artifact) in &parts.artifacts {
        let variant = artifact.model_variant.as_deref();
        let variant = variant.map(|v| format!(" for {v}")).unwrap_or_default();
        let bytes = registry.artifact_content(&entry, artifact)?.len();
        output.print_text(&format!(
            "{:>3}  {:<16} {ID}{}{ID:#}{variant}  {DIM}{}{DIM:#}\n",
            artifact.ordinal,
            artifact.kind.as_str(),
            terminal_safe(&artifact.name),
            format_size(bytes as u64)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show_artifact(
    registry: &Registry,
    skill: &QualifiedSkillId,
    name: &str,
    variant: Option<&str>,
    output: &Output,
) -> Result<ExitCode> {
    let entry = find_entry(registry, skill)?;
    let parts = registry.skill_artifacts(&entry)?;
    let mut all = parts.artifacts.into_iter();
    let found = all.find(|(_, artifact)| ArtifactName { name, variant }.matches(artifact));
    let (id, artifact) = found.ok_or_else(|| Error::NotFound {
        what: "artifact",
        name: format!("{}/{name}", entry.id),
    })?;
    let content = registry.artifact_content(&entry, &artifact)?;
    if output.json {
        let whole = Artifact {
            id: id.parse().ok(),
            content,
            file: None,
            ..artifact
        };
        output.print_json(&whole)?;
    } else {
        output.print_bytes(content.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn put_artifact(
    registry: &Registry,
    skill: &QualifiedSkillId,
    new: &NewArtifact,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let scope = settings.scope_preference().resolve_for_skill(
        registry,
        skill,
        new.scope.map(Into::into),
    )?;
    let entry = find_entry(registry, skill)?;
    // Before the file is read, which may be stdin.
    repertoire_app::find_stored_skill(registry, scope, &entry)?;
    let content = String::from_utf8(read_input(&new.file, MAX_JSON)?)
        .map_err(|_| UsageError(format!("{} is not UTF-8 text", new.file.display())))?;
    let metadata = match &new.metadata {
        None => None,
        Some(file) => {
            let text = read_input(file, MAX_JSON)?;
            let read = repertoire_core::json::from_slice(&text);
            Some(read.with_context(|| format!("{}: not a JSON object", file.display()))?)
        }
    };
    let change = ArtifactChange {
        artifact: ArtifactName {
            name: &new.name,
            variant: new.variant.as_deref(),
        },
        kind: new.kind,
        content,
        ordinal: new.ordinal,
        metadata,
    };
    let outcome = repertoire_app::put_artifact(registry, scope, &entry, change)?;
    let word = if outcome.existed { "changed" } else { "added" };
    print_outcome(word, &outcome, scope, output)
}

fn print_outcome(
    word: &str,
    outcome: &ArtifactOutcome,
    scope: StoreScope,
    output: &Output,
) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({
            "skill": outcome.skill, "artifact": outcome.artifact, "scope": scope.as_str(),
            "done": word,
        }))?;
    } else {
        output.print_text(&format!(
            "{ID}{}{ID:#}  {DIM}{word} {}{DIM:#}\n",
            outcome.skill,
            terminal_safe(&outcome.artifact)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
