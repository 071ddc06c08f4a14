//! Creates workspaces.

use std::{io::Write, path::Path};

use repertoire_registry::{store::Account, trust};

use crate::error::{Error, Result, io_error_at};

/// The file with the settings of a workspace or an account.
pub const CONFIG_FILE: &str = "config.toml";

/// Where other tools keep their skills in a project.
const KNOWN_FOLDERS: [&str; 4] = [
    ".claude/skills",
    ".agents/skills",
    ".github/skills",
    "skills",
];

const CONFIG_HEADER: &str = "\
# Settings of this workspace. Paths are relative to the workspace.

# Folders of skills: every folder beneath with a SKILL.md is one.
";

const CONFIG_FOOTER: &str = "
# Loose markdown files as skills, and prompts with frontmatter.
# skills = [\"docs/**/*.md\"]
# prompts = [\"prompts/**/*.md\"]

# The store that changes go to: \"workspace\" or \"account\".
# scope = \"workspace\"
";

/// What happens to skills that a folder already has when it becomes a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingSkills {
    /// They become part of the workspace, and so trusted.
    Trust,
    /// They stay outside, until the user names their folders in the settings.
    LeaveOut,
}

/// Returns the folders in which other tools keep skills and that have some.
pub fn existing_skill_folders(path: &Path) -> Vec<&'static str> {
    KNOWN_FOLDERS
        .into_iter()
        .filter(|folder| path.join(folder).is_dir())
        .collect()
}

/// Makes a folder a trusted workspace.
///
/// A folder that brought settings, skills or a store of its own is refused: the user has to look at
/// them and trust them first.
pub fn create_workspace(path: &Path, account: &Path, existing: ExistingSkills) -> Result<()> {
    let own = path.join(trust::WORKSPACE_FOLDER);
    // Open the account first: if it fails nothing is left behind, and the folders can be compared.
    let local = Account::open(account)?.local;
    let is_account = own
        .canonicalize()
        .is_ok_and(|own| account.canonicalize().is_ok_and(|a| a == own));
    if is_account {
        return Err(Error::AccountFolder(own));
    }
    if trust::workspace_store_path(path).exists() {
        return Err(Error::WorkspaceExists(path.to_owned()));
    }
    // A shared workspace comes without its store and looks new, but it may be untrusted.
    let config = own.join(CONFIG_FILE);
    let brought = std::fs::read_dir(own.join("skills")).is_ok_and(|mut all| all.next().is_some());
    if brought || config.symlink_metadata().is_ok() || own.is_symlink() {
        return Err(Error::WorkspaceNotNew(path.to_owned()));
    }
    let skills = own.join("skills");
    std::fs::create_dir_all(&skills).map_err(io_error_at(&skills))?;
    let found = existing_skill_folders(path);
    let folders = match (found.as_slice(), existing) {
        ([], _) => "# folders = [\"skills\"]\n".to_owned(),
        (found, ExistingSkills::Trust) => format!("folders = {}\n", serde_json::json!(found)),
        (found, ExistingSkills::LeaveOut) => format!(
            "# Not part of the workspace until you remove the #: look at them first.\n\
             # folders = {}\n",
            serde_json::json!(found)
        ),
    };
    write_new(&config, &format!("{CONFIG_HEADER}{folders}{CONFIG_FOOTER}"))?;
    // Stores are not meant to be shared; folders and exports are.
    write_new(&own.join(".gitignore"), "agents.db*\n")?;
    local.trust_workspace(path)?;
    Ok(())
}

/// Keeps the store of a workspace that came with a `.repertoire` folder out of version control.
pub fn ignore_store(workspace: &Path) -> Result<()> {
    let own = workspace.join(trust::WORKSPACE_FOLDER);
    write_new(&own.join(".gitignore"), "agents.db*\n")
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
    written.map_err(io_error_at(path))
}
