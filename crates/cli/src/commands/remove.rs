//! `remove`: skills out of a store.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::SkillId;
use repertoire_registry::{Error, History, Origin, Reference, Registry, Scope};
use serde_json::json;

use super::{open, scope};
use crate::{args::ScopeArg, failure::Usage, output::Output, settings::Settings};

pub(crate) fn run(
    skills: &[SkillId],
    purge: bool,
    asked: Option<ScopeArg>,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let scope = scope(&registry, asked, settings)?;
    let history = if purge { History::Purge } else { History::Keep };
    // Look before the first removal, so that a typo in the last name removes nothing.
    for id in skills {
        let known = purge && !registry.history(scope, id)?.is_empty();
        if !known {
            in_scope(&registry, scope, id)?;
        }
    }
    for id in skills {
        registry.remove(scope, id, history)?;
        output.note(format!("removed {id} from the {} store", scope.as_str()));
    }
    if output.json {
        output.print_json(&json!({"scope": scope.as_str(), "removed": skills}))?;
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
