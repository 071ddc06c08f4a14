//! `init`: creates a workspace with its own store, skills folder and settings.

use std::{
    io::{BufRead, IsTerminal},
    path::Path,
    process::ExitCode,
};

use anyhow::{Result, bail};
use repertoire_app::{
    ExistingSkills, create_workspace, existing_skill_folders, outermost_skills, require_folder,
};
use repertoire_registry::trust;
use serde_json::json;

use super::quote_path;
use crate::{
    output::{Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(
    path: &Path,
    trust_existing: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    require_folder(path)?;
    if trust::workspace_store_path(path).exists() {
        bail!(repertoire_app::Error::WorkspaceExists(path.to_owned()));
    }
    let found = existing_skill_folders(path);
    for folder in &found {
        let skills = outermost_skills(&path.join(folder)).map_or(0, |(skills, _)| skills.len());
        output.print_note(format!(
            "found {} in {folder}",
            format_count(skills, "skill")
        ));
    }
    let existing = if trust_existing || (!found.is_empty() && ask_for_trust(output)?) {
        ExistingSkills::Trust
    } else {
        ExistingSkills::LeaveOut
    };
    create_workspace(path, &settings.account, existing)?;
    let included = match existing {
        ExistingSkills::Trust => found.clone(),
        ExistingSkills::LeaveOut => Vec::new(),
    };
    if output.json {
        let left_out: Vec<_> = found.iter().filter(|f| !included.contains(f)).collect();
        output.print_json(&json!({
            "workspace": path, "folders": included, "left_out": left_out,
        }))?;
    }
    output.print_note(format!("workspace {} is ready", path.display()));
    for folder in &found {
        output.print_note(if included.contains(folder) {
            format!("  skills in {folder} are part of it")
        } else {
            format!(
                "  skills in {folder} are not part of it: look at them with `repertoire lint {}`, \
                 then name the folder in {}",
                quote_path(&path.join(folder)),
                path.join(trust::WORKSPACE_FOLDER)
                    .join("config.toml")
                    .display()
            )
        });
    }
    output.print_note(format!(
        "  put skills into {}/skills, or `repertoire add` them",
        trust::WORKSPACE_FOLDER
    ));
    Ok(ExitCode::SUCCESS)
}

/// Asks on a terminal whether the skills that were found are trusted; elsewhere they are not.
fn ask_for_trust(output: &Output) -> Result<bool> {
    if output.json || !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    output.write_stderr("trust them, so that they can override others and run? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
