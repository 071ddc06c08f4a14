//! `init`: a workspace with its own store, its own folder of skills and its own settings.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use repertoire_registry::{store, trust};
use serde_json::json;

use crate::{
    failure::Usage,
    output::Output,
    settings::{CONFIG, Settings},
};

/// Where other tools keep their skills in a project.
const KNOWN_FOLDERS: [&str; 4] = [
    ".claude/skills",
    ".agents/skills",
    ".github/skills",
    "skills",
];

const HEADER: &str = "\
# Settings of this workspace. Paths are relative to the workspace.

# Folders of skills: every folder beneath with a SKILL.md is one.
";

const FOOTER: &str = "
# Loose markdown files as skills, and prompts with frontmatter.
# skills = [\"docs/**/*.md\"]
# prompts = [\"prompts/**/*.md\"]

# The store that `add`, `import` and `remove` use: \"workspace\" or \"account\".
# scope = \"workspace\"
";

pub(crate) fn run(path: &Path, settings: &Settings, output: &Output) -> Result<ExitCode> {
    if !path.is_dir() {
        anyhow::bail!(Usage(format!("{} is not a folder", path.display())));
    }
    let own = path.join(trust::FOLDER);
    let is_account = own
        .canonicalize()
        .is_ok_and(|own| settings.account.canonicalize().is_ok_and(|a| a == own));
    if is_account {
        anyhow::bail!(Usage(format!(
            "{} is the account's own folder",
            own.display()
        )));
    }
    if trust::workspace_store(path).exists() {
        anyhow::bail!(Usage(format!(
            "{} is a workspace already (`repertoire trust` if it came from elsewhere)",
            path.display()
        )));
    }
    let context = || own.display().to_string();
    std::fs::create_dir_all(own.join("skills")).with_context(context)?;
    let found: Vec<&str> = KNOWN_FOLDERS
        .into_iter()
        .filter(|folder| path.join(folder).is_dir())
        .collect();
    let config = own.join(CONFIG);
    if !config.exists() {
        let folders = match found.as_slice() {
            [] => "# folders = [\"skills\"]\n".to_owned(),
            found => format!("folders = {}\n", json!(found)),
        };
        std::fs::write(&config, format!("{HEADER}{folders}{FOOTER}")).with_context(context)?;
    }
    // Stores are no files to share: folders and exports are.
    std::fs::write(own.join(".gitignore"), "agents.db*\n").with_context(context)?;
    let account = store::Store::open(&settings.account.join(trust::STORE), store::Trust::Own)?;
    trust::trust(&account, path)?;
    if output.json {
        output.print_json(&json!({"workspace": path, "folders": found}))?;
    }
    output.note(format!("workspace {} is ready", path.display()));
    for folder in found {
        output.note(format!("  skills in {folder} are part of it"));
    }
    output.note(format!(
        "  put skills into {}/skills, or `repertoire add` them",
        trust::FOLDER
    ));
    Ok(ExitCode::SUCCESS)
}
