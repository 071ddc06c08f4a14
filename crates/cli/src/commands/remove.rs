//! `remove`: skills out of a store.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::SkillId;
use repertoire_registry::{Error, History, Origin, Reference, Registry, Scope};
use serde_json::json;

use super::{named_scope, open, scope};
use crate::{args::ScopeArg, failure::Usage, output::Output, settings::Settings};

pub(crate) fn run(
    skills: &[Reference],
    purge: bool,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let history = if purge { History::Purge } else { History::Keep };
    // Look before the first removal, so that a typo in the last name removes nothing.
    let mut found = Vec::new();
    for reference in skills {
        let scope = scope(&registry, named_scope(reference, asked)?, settings)?;
        let id = &reference.id;
        let known = purge && !registry.history(scope, id)?.is_empty();
        if !known {
            in_scope(&registry, scope, id)?;
        }
        found.push((scope, id));
    }
    for (scope, id) in &found {
        registry.remove(*scope, id, history)?;
        output.note(format!("removed {id} from the {} store", scope.as_str()));
    }
    if output.json {
        let removed: Vec<_> = found
            .iter()
            .map(|(scope, id)| json!({"scope": scope.as_str(), "id": id}))
            .collect();
        output.print_json(&json!({"removed": removed}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says where a skill is, if it is not where it was looked for.
fn in_scope(registry: &Registry, scope: Scope, id: &SkillId) -> Result<()> {
    let snapshot = registry.snapshot();
    let wanted = Reference {
        origin: Some(Origin::of_scope(scope)),
        id: id.clone(),
    };
    if snapshot.skill(&wanted).is_some() {
        return Ok(());
    }
    match snapshot.get(id).map(|entry| &entry.origin) {
        Some(Origin::Files(_)) => anyhow::bail!(Usage(format!(
            "skill {id} is a file on disk: delete its folder (`repertoire show {id}` says where it is from)"
        ))),
        Some(other) => anyhow::bail!(Usage(format!(
            "skill {id} is not in the {} store but in {other}: use --scope",
            scope.as_str()
        ))),
        None => Err(Error::NotFound {
            what: "skill",
            name: id.to_string(),
        }
        .into()),
    }
}
