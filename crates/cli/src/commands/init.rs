//! `init`: a workspace with its own store, its own folder of skills and its own settings.

use std::{io::Write, path::Path, process::ExitCode};

use anyhow::{Context, Result};
use repertoire_registry::{store, trust};
use serde_json::json;

use crate::{
    failure::Usage,
    output::Output,
    settings::{CONFIG, Settings, need_folder},
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
    need_folder(path)?;
    let own = path.join(trust::FOLDER);
    // The account first: without it nothing is left behind, and its folder can be compared.
    let account = store::Store::open(&settings.account.join(trust::STORE), store::Trust::Own)?;
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
    // A workspace that is shared comes without its store, and looks new; it is not.
    let config = own.join(CONFIG);
    let brought = std::fs::read_dir(own.join("skills")).is_ok_and(|mut all| all.next().is_some());
    if brought || config.symlink_metadata().is_ok() || own.is_symlink() {
        anyhow::bail!(Usage(format!(
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
    // Stores are no files to share: folders and exports are.
    write_new(&own.join(".gitignore"), "agents.db*\n")?;
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

/// Writes a file that is not there yet, never through a link; one that is there stays.
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
