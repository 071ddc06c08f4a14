//! `trust`: a workspace from elsewhere may override and run from now on.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use repertoire_registry::{store, trust};
use serde_json::json;

use crate::{failure::Usage, output::Output, settings::Settings};

pub(crate) fn run(
    path: Option<PathBuf>,
    revoke: bool,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let Some(workspace) = path.or_else(|| settings.workspace.clone()) else {
        anyhow::bail!(Usage(
            "this folder is in no workspace: name one, or run `repertoire init`".to_owned()
        ));
    };
    if !workspace.join(trust::FOLDER).is_dir() {
        anyhow::bail!(Usage(format!(
            "{} is no workspace: it has no {} folder",
            workspace.display(),
            trust::FOLDER
        )));
    }
    let account = store::Store::open(&settings.account.join(trust::STORE), store::Trust::Own)?;
    if revoke {
        trust::distrust(&account, &workspace)?;
    } else {
        trust::trust(&account, &workspace)?;
    }
    settings.forget_instructions();
    if output.json {
        output.print_json(&json!({"workspace": workspace, "trusted": !revoke}))?;
    }
    let word = if revoke {
        "no longer trusted"
    } else {
        "trusted"
    };
    output.note(format!("workspace {} is {word}", workspace.display()));
    Ok(ExitCode::SUCCESS)
}
