//! `init`: creates a workspace with its own store, skills folder and settings.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use repertoire_app::{create_workspace, require_folder};
use repertoire_registry::trust;
use serde_json::json;

use crate::{output::Output, settings::CliSettings};

pub(crate) fn run(path: &Path, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    require_folder(path)?;
    let found = create_workspace(path, &settings.account)?;
    if output.json {
        output.print_json(&json!({"workspace": path, "folders": found}))?;
    }
    output.print_note(format!("workspace {} is ready", path.display()));
    for folder in found {
        output.print_note(format!("  skills in {folder} are part of it"));
    }
    output.print_note(format!(
        "  put skills into {}/skills, or `repertoire add` them",
        trust::WORKSPACE_FOLDER
    ));
    Ok(ExitCode::SUCCESS)
}
