//! `remove`: removes skills from a store.

use std::{collections::BTreeSet, process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_app::{
    SkillQuery,
    install::{FetchOptions, Installer},
    require_folder, require_in_scope, resolve_skill,
};
use repertoire_core::SkillId;
use repertoire_registry::{HistoryPolicy, Origin, Registry, StoreScope};
use serde_json::json;

use super::{find_entry, open_registry, warn_shadowed};
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
    let (preference, asked) = (settings.scope_preference(), asked.map(Into::into));
    // Check all names first, so that a typo in the last name removes nothing.
    let (mut found, mut registered) = (Vec::new(), Vec::new());
    for skill in skills {
        if let SkillQuery::Folder(path) = skill {
            require_folder(path)?;
            anyhow::bail!(UsageError(format!(
                "{} is a folder on disk: delete it there",
                path.display()
            )));
        }
        let reference = resolve_skill(&registry, skill)?;
        if reference.origin == Some(Origin::State) {
            let known = purge && registry.registered_history(&reference.id)?.is_some();
            if !known {
                find_entry(&registry, &reference)?;
            }
            registered.push(reference.id);
            continue;
        }
        let scope = preference.resolve_for_skill(&registry, &reference, asked)?;
        let known = purge && !registry.history(scope, &reference.id)?.is_empty();
        if !known && !is_only_recorded(&registry, scope, &reference.id, settings) {
            require_in_scope(&registry, scope, &reference)?;
        }
        found.push((scope, reference.id));
    }
    // Nobody else installs until everything is removed.
    let _turns = forget_installed(&registry, &found, settings)?;
    for (scope, id) in &found {
        registry.remove_skill(*scope, id, history)?;
        registry.revoke_installed(*scope, id)?;
        let history = if purge { " with its history" } else { "" };
        output.print_note(format!(
            "removed {id} from the {} store{history}",
            scope.as_str()
        ));
        warn_shadowed(&registry, id, scope.as_str(), output);
    }
    for id in &registered {
        let known = registry.registered_history(id)?;
        registry.unregister_skill(id)?;
        if let (true, Some((scope, _))) = (purge, known) {
            registry.purge_registered_history(scope, id)?;
        }
        output.print_note(format!("removed {id}, which a program had registered"));
    }
    if output.json {
        let removed: Vec<_> = found
            .iter()
            .map(|(scope, id)| json!({"scope": scope.as_str(), "id": id}))
            .chain(
                registered
                    .iter()
                    .map(|id| json!({"scope": "state", "id": id})),
            )
            .collect();
        output.print_json(&json!({"removed": removed}))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes installed skills out of the project's files first, so that an `install` does not bring them
/// back.
fn forget_installed(
    registry: &Arc<Registry>,
    found: &[(StoreScope, SkillId)],
    settings: &CliSettings,
) -> Result<Vec<Installer>> {
    let mut turns = Vec::new();
    for scope in [StoreScope::Workspace, StoreScope::Account] {
        let ids = found.iter().filter(|(one, _)| *one == scope);
        let ids: BTreeSet<SkillId> = ids.map(|(_, id)| id.clone()).collect();
        if ids.is_empty() {
            continue;
        }
        let options = FetchOptions::default();
        let mut installer = Installer::open(registry.clone(), scope, &settings.account, options)?;
        let is_recorded = |id: &SkillId| {
            installer.project().get(id).is_some() || installer.lock().get(id).is_some()
        };
        if ids.iter().any(is_recorded) {
            installer.forget(&ids)?;
            turns.push(installer);
        }
    }
    Ok(turns)
}

/// Whether the files of a scope name a skill that its store does not have.
fn is_only_recorded(
    registry: &Arc<Registry>,
    scope: StoreScope,
    id: &SkillId,
    settings: &CliSettings,
) -> bool {
    let options = FetchOptions::default();
    let opened = Installer::open(registry.clone(), scope, &settings.account, options);
    opened.is_ok_and(|one| one.project().get(id).is_some() || one.lock().get(id).is_some())
}
