//! `init`: creates a workspace with its own store, skills folder and settings.

use std::{io::Write, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use repertoire_registry::{store::Account, trust};
use serde_json::json;

use crate::{
    failure::UsageError,
    output::Output,
    settings::{CONFIG_FILE, CliSettings, require_folder},
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

pub(crate) fn run(path: &Path, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    require_folder(path)?;
    let own = path.join(trust::WORKSPACE_FOLDER);
    // Open the account first: if it fails nothing is left behind, and the folders can be compared.
    let local = Account::open(&settings.account)?.local;
    let is_account = own
        .canonicalize()
        .is_ok_and(|own| settings.account.canonicalize().is_ok_and(|a| a == own));
    if is_account {
        anyhow::bail!(UsageError(format!(
            "{} is the account's own folder",
            own.display()
        )));
    }
    if trust::workspace_store_path(path).exists() {
        anyhow::bail!(UsageError(format!(
            "{} is a workspace already (`repertoire trust` if it came from elsewhere)",
            path.display()
        )));
    }
    // A shared workspace comes without its store and looks new, but it may be untrusted.
    let config = own.join(CONFIG_FILE);
    let brought = std::fs::read_dir(own.join("skills")).is_ok_and(|mut all| all.next().is_some());
    if brought || config.symlink_metadata().is_ok() || own.is_symlink() {
        anyhow::bail!(UsageError(format!(
            "{} came with settings or skills of its own: look at them with `repertoire list`, then \
             run `repertoire trust`",
            path.display()
        )));
    }
    let context = || own.display().to_string();
    std::fs::create_dir_all(own.join("skills")).with_context(context)?;
    let found: Vec<&str> = KNOWN_FOLDERS
        .into_iter()
        .filter(|folder| path.join(folder).is_dir())
        .collect();
    let folders = match found.as_slice() {
        [] => "# folders = [\"skills\"]\n".to_owned(),
        found => format!("folders = {}\n", json!(found)),
    };
    write_new(&config, &format!("{HEADER}{folders}{FOOTER}"))?;
    // Stores are not meant to be shared; folders and exports are.
    write_new(&own.join(".gitignore"), "agents.db*\n")?;
    local.trust_workspace(path)?;
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

/// Writes a new file, never through a link; an existing file stays unchanged.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .open(path);
    let written = match file {
        Ok(mut file) => file.write_all(text.as_bytes()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    };
    written.with_context(|| path.display().to_string())
}
