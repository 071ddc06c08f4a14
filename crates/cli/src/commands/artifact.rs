//! `artifact` and `fork`: the pieces of a package, one at a time.

use std::process::ExitCode;

use anyhow::{Context, Result};
use repertoire_core::{Artifact, ArtifactKind, package::MAX_JSON, text::terminal_safe};
use repertoire_registry::{
    Error, Origin, Reference, Registry, Scope,
    store::{SkillRepository, SkillSummary},
};
use repertoire_runtime::{Limits, PromptEngine, assertion, dispatch, sidecar::Module};
use serde_json::json;

use super::{open, read_input, run::find, scope};
use crate::{
    args::{ArtifactCommand, NewArtifact},
    failure::Usage,
    output::{DIM, ID, Output, size},
    settings::Settings,
};

pub(crate) fn fork(skill: &Reference, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let entry = find(&registry, skill)?;
    let revision = registry.fork(&entry)?;
    if output.json {
        output.print_json(&json!({
            "id": entry.id, "from": entry.origin.to_string(), "scope": "workspace",
            "revision": revision,
        }))?;
    } else {
        output.print(&format!(
            "{ID}{}{ID:#}  {DIM}copied from {} into the workspace, where it wins{DIM:#}\n",
            entry.id, entry.origin
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(
    command: &ArtifactCommand,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    match command {
        ArtifactCommand::List { skill } => list(&registry, skill, output),
        ArtifactCommand::Show {
            skill,
            name,
            variant,
        } => show(&registry, skill, name, variant.as_deref(), output),
        ArtifactCommand::Put(new) => put(&registry, new, settings, output),
        ArtifactCommand::Remove {
            skill,
            name,
            variant,
            scope: asked,
        } => {
            let scope = scope(&registry, *asked, settings)?;
            let (repository, summary) = stored(&registry, scope, skill)?;
            let known = one(repository, &summary, name, variant.as_deref())?;
            let id = known.and_then(|artifact| artifact.id);
            let id = id.ok_or_else(|| missing(&summary, name, variant.as_deref()))?;
            repository.delete_artifact(id)?;
            done("removed", &summary, name, scope, output)
        }
    }
}

fn list(registry: &Registry, skill: &Reference, output: &Output) -> Result<ExitCode> {
    let entry = find(registry, skill)?;
    let parts = registry.parts(&entry)?;
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
        output.note(format!("{} is a document and nothing else", entry.id));
    }
    for (_, artifact) in &parts.artifacts {
        let variant = artifact.model_variant.as_deref();
        let variant = variant.map(|v| format!(" for {v}")).unwrap_or_default();
        let bytes = registry.artifact_content(&entry, artifact)?.len();
        output.print(&format!(
            "{:>3}  {:<16} {ID}{}{ID:#}{variant}  {DIM}{}{DIM:#}\n",
            artifact.ordinal,
            artifact.kind.as_str(),
            terminal_safe(&artifact.name),
            size(bytes as u64)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(
    registry: &Registry,
    skill: &Reference,
    name: &str,
    variant: Option<&str>,
    output: &Output,
) -> Result<ExitCode> {
    let entry = find(registry, skill)?;
    let parts = registry.parts(&entry)?;
    let mut all = parts.artifacts.into_iter();
    let found = all.find(|(_, artifact)| is(artifact, name, variant));
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

fn is(artifact: &Artifact, name: &str, variant: Option<&str>) -> bool {
    artifact.name.eq_ignore_ascii_case(name) && artifact.model_variant.as_deref() == variant
}

/// A skill that is kept in a store, and so can be changed.
pub(super) fn stored<'a>(
    registry: &'a Registry,
    scope: Scope,
    skill: &Reference,
) -> Result<(&'a dyn SkillRepository, SkillSummary)> {
    let entry = find(registry, skill)?;
    let store = registry.store(scope)?;
    let found = store.list_skills()?;
    let found = found.into_iter().find(|one| one.path == entry.id);
    let Some(summary) = found else {
        let way_out = match (&entry.origin, scope) {
            (origin, Scope::Workspace) if *origin == Origin::of_scope(Scope::Account) => {
                format!("copy it with `repertoire fork {}` first", entry.id)
            }
            (Origin::Files(_), _) => "change its files".to_owned(),
            _ => "name its store with --scope".to_owned(),
        };
        return Err(Usage(format!(
            "skill {} is not in the {} store: {way_out}",
            entry.id,
            scope.as_str()
        ))
        .into());
    };
    Ok((&**store, summary))
}

fn one(
    repository: &dyn SkillRepository,
    summary: &SkillSummary,
    name: &str,
    variant: Option<&str>,
) -> Result<Option<Artifact>> {
    let all = repository.get_artifacts(summary.id, &[])?;
    Ok(all.into_iter().find(|artifact| is(artifact, name, variant)))
}

fn missing(summary: &SkillSummary, name: &str, variant: Option<&str>) -> Error {
    let variant = variant.map(|v| format!(" for {v}")).unwrap_or_default();
    Error::NotFound {
        what: "artifact",
        name: format!("{}/{name}{variant}", summary.path),
    }
}

fn put(
    registry: &Registry,
    new: &NewArtifact,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let scope = scope(registry, new.scope, settings)?;
    let (repository, summary) = stored(registry, scope, &new.skill)?;
    let content = String::from_utf8(read_input(&new.file, MAX_JSON)?)
        .map_err(|_| Usage(format!("{} is no text", new.file.display())))?;
    let metadata = match &new.metadata {
        None => None,
        Some(file) => {
            let text = read_input(file, MAX_JSON)?;
            let read = repertoire_core::json::from_slice(&text);
            Some(read.with_context(|| format!("{}: no JSON object", file.display()))?)
        }
    };
    let known = one(repository, &summary, &new.name, new.variant.as_deref())?;
    let (kind, word) = match (&known, new.kind) {
        (_, Some(kind)) => (kind, if known.is_some() { "changed" } else { "added" }),
        (Some(known), None) => (known.kind, "changed"),
        (None, None) => {
            return Err(Usage(format!("{:?} is new: say what it is with --kind", new.name)).into());
        }
    };
    let known_metadata = known.as_ref().and_then(|known| known.metadata.clone());
    let last = repository.get_artifacts(summary.id, &[])?;
    let last = last.iter().map(|one| one.ordinal).max().unwrap_or(0);
    let ordinal = known.as_ref().map(|known| known.ordinal);
    let artifact = Artifact {
        id: None,
        kind,
        name: known
            .as_ref()
            .map_or(&new.name, |known| &known.name)
            .clone(),
        ordinal: new.ordinal.or(ordinal).unwrap_or(last + 1),
        content,
        file: None,
        model_variant: new.variant.clone(),
        metadata: metadata.or(known_metadata),
        state_blob: known.as_ref().and_then(|known| known.state_blob.clone()),
        created_at: None,
        updated_at: None,
    };
    check(&artifact)?;
    match known.and_then(|known| known.id) {
        Some(id) => repository.update_artifact(id, &artifact)?,
        None => drop(repository.add_artifact(summary.id, &artifact)?),
    }
    done(word, &summary, &artifact.name, scope, output)
}

/// Refuses what would only fail when it is run.
pub(crate) fn check(artifact: &Artifact) -> Result<()> {
    match artifact.kind {
        // A script is a template too.
        ArtifactKind::PromptTemplate | ArtifactKind::CodeTemplate => {
            PromptEngine::new().check_str(&artifact.content)?;
        }
        ArtifactKind::Example => drop(dispatch::examples_of(artifact)?),
        ArtifactKind::DspyModule => {
            let module = Module::read(artifact)?;
            module.state(artifact)?;
        }
        _ => {}
    }
    assertion::of(artifact)?;
    Limits::default().of(artifact)?;
    Ok(())
}

fn done(
    word: &str,
    summary: &SkillSummary,
    name: &str,
    scope: Scope,
    output: &Output,
) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({
            "skill": summary.path, "artifact": name, "scope": scope.as_str(), "done": word,
        }))?;
    } else {
        output.print(&format!(
            "{ID}{}{ID:#}  {DIM}{word} {}{DIM:#}\n",
            summary.path,
            terminal_safe(name)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
