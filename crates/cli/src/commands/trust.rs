//! `trust`: lets the skills of a workspace override others and run.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use repertoire_app::install::{PROJECT_FILE, find_project};
use repertoire_registry::{
    store::Account,
    trust::{self, ForeignJournals},
};
use serde_json::json;

use crate::{failure::UsageError, output::Output, settings::CliSettings};

/// Confirms the target of a link, or revokes that.
pub(crate) fn confirm_link(
    link: &std::path::Path,
    revoke: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let exists = link.symlink_metadata().is_ok();
    if !exists && !revoke {
        anyhow::bail!(UsageError(format!("{} does not exist", link.display())));
    }
    let local = Account::open(&settings.account)?.local;
    let word = if revoke {
        local.revoke_link(link)?;
        "no longer followed".to_owned()
    } else {
        let target = local.confirm_link(link)?;
        format!("followed to {}", target.display())
    };
    settings.clear_instructions_cache();
    if output.json {
        output.print_json(&json!({"link": link, "trusted": !revoke}))?;
    }
    output.print_note(format!("{} is {word}", link.display()));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(
    path: Option<PathBuf>,
    revoke: bool,
    journals: ForeignJournals,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let nearest = || {
        let here = std::env::current_dir().ok()?;
        settings.workspace.clone().or_else(|| find_project(&here))
    };
    let Some(workspace) = path.or_else(nearest) else {
        anyhow::bail!(UsageError(
            "this folder is in no workspace: name one, or run `repertoire init`".to_owned()
        ));
    };
    repertoire_app::require_folder(&workspace)?;
    let has_project_file = workspace.join(PROJECT_FILE).is_file();
    if has_project_file && !revoke {
        let own = workspace.join(trust::WORKSPACE_FOLDER);
        std::fs::create_dir_all(own)?;
    }
    if !workspace.join(trust::WORKSPACE_FOLDER).is_dir() {
        anyhow::bail!(UsageError(format!(
            "{} is not a workspace: it has no {} folder",
            workspace.display(),
            trust::WORKSPACE_FOLDER
        )));
    }
    let local = Account::open(&settings.account)?.local;
    if revoke {
        local.distrust_workspace(&workspace)?;
    } else {
        local.trust_workspace_as(&workspace, journals)?;
        // It may have come without: its store would be committed with all that was run.
        repertoire_app::ignore_store(&workspace)?;
    }
    settings.clear_instructions_cache();
    if output.json {
        output.print_json(&json!({"workspace": workspace, "trusted": !revoke}))?;
    }
    let word = if revoke {
        "no longer trusted"
    } else {
        "trusted"
    };
    output.print_note(format!("workspace {} is {word}", workspace.display()));
    Ok(ExitCode::SUCCESS)
}
