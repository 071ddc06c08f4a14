//! `remove`: removes skills from a store.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::SkillQuery;
use repertoire_core::SkillId;
use repertoire_registry::{Error, HistoryPolicy, Origin, QualifiedSkillId, Registry, StoreScope};
use serde_json::json;

use super::{named_scope, open_registry, resolve_scope, resolve_skill};
use crate::{args::ScopeArg, failure::UsageError, output::Output, settings::CliSettings};

pub(crate) fn run(
    skills: &[SkillQuery],
    purge: bool,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let history = if purge {
        HistoryPolicy::Purge
    } else {
        HistoryPolicy::Keep
    };
    // Check all names first, so that a typo in the last name removes nothing.
    let mut found = Vec::new();
    for skill in skills {
        if let SkillQuery::Folder(path) = skill {
            crate::settings::require_folder(path)?;
            anyhow::bail!(UsageError(format!(
                "{} is a folder on disk: delete it there",
                path.display()
            )));
        }
        let reference = resolve_skill(&registry, skill)?;
        let scope = resolve_scope(&registry, named_scope(&reference, asked)?, settings)?;
        let id = reference.id;
        let known = purge && !registry.history(scope, &id)?.is_empty();
        if !known {
            check_in_scope(&registry, scope, &id)?;
        }
        found.push((scope, id));
    }
    for (scope, id) in &found {
        registry.remove_skill(*scope, id, history)?;
        output.print_note(format!("removed {id} from the {} store", scope.as_str()));
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

/// Fails if a skill is not in the given store, and names the store it is in.
fn check_in_scope(registry: &Registry, scope: StoreScope, id: &SkillId) -> Result<()> {
    let snapshot = registry.snapshot();
    let wanted = QualifiedSkillId {
        origin: Some(Origin::from_scope(scope)),
        id: id.clone(),
    };
    if snapshot.find_skill(&wanted).is_some() {
        return Ok(());
    }
    match snapshot.get(id).map(|entry| &entry.origin) {
        Some(Origin::Files(_)) => anyhow::bail!(UsageError(format!(
            "skill {id} is a file on disk: delete its folder (`repertoire show {id}` shows its origin)"
        ))),
        Some(other) => anyhow::bail!(UsageError(format!(
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
