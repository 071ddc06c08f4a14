//! Links at the top of a folder to skills beside it.
//!
//! Tools keep one copy of a skill in `.agents/skills` and link to it from the folders of hosts. Such
//! a link is a root of its own: nothing beneath it can lead out of its target. A link to another
//! place could have come with a pull and would expose what is there, so the user confirms it first.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{record::RefusalReason, root::RootDir};
use crate::{
    error::{Result, display_path},
    store::LocalStore,
};

/// The kind of a confirmation of a link.
const LINK_APPROVAL_KIND: &str = "skill-link";

/// Folders of hosts that have `skills` beneath them.
const HOST_FOLDERS: [&str; 14] = [
    ".agents",
    ".claude",
    ".codex",
    ".copilot",
    ".cursor",
    ".factory",
    ".gemini",
    ".github",
    ".goose",
    ".grok",
    ".kilo",
    ".kiro",
    ".opencode",
    ".windsurf",
];

/// Which targets of links are served.
#[derive(Debug)]
pub(crate) struct LinkPolicy {
    /// Folders of the same project.
    project: Vec<PathBuf>,
    confirmed: Option<Arc<LocalStore>>,
}

impl LinkPolicy {
    /// Returns the policy for the links of a folder.
    pub(crate) fn new(
        folder: &Path,
        workspace: Option<&Path>,
        confirmed: Option<Arc<LocalStore>>,
    ) -> Self {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let workspace = workspace.and_then(|path| path.canonicalize().ok());
        let workspace = workspace.filter(|workspace| folder.starts_with(workspace));
        let mut project: Vec<PathBuf> = workspace.into_iter().collect();
        // A home folder under version control is no project.
        let home = std::env::home_dir().and_then(|home| home.canonicalize().ok());
        let is_home = |path: &Path| home.as_ref().is_some_and(|home| home.starts_with(path));
        let repository = folder.ancestors().find(|path| path.join(".git").exists());
        let repository = repository.filter(|path| !is_home(path));
        project.extend(repository.map(Path::to_owned));
        if let Some(base) = host_folder_base(&folder) {
            let beside = HOST_FOLDERS.iter().map(|host| base.join(host));
            project.extend(beside.map(|host| host.join("skills")));
        }
        Self { project, confirmed }
    }

    /// Opens the skill that a name at the top of a folder links to, or says why it is not served.
    /// `None` if it is no link to a skill elsewhere.
    pub(crate) fn open_target(
        &self,
        root: &RootDir,
        name: &str,
    ) -> Option<Result<RootDir, RefusalReason>> {
        let link = root.full_path(name);
        let is_link = link.symlink_metadata().is_ok_and(|m| m.is_symlink());
        let target = is_link.then(|| RootDir::open(&link).ok()).flatten()?;
        // What is beneath this root is found there, and a target around it would have it twice.
        let is_elsewhere =
            !target.path().starts_with(root.path()) && !root.path().starts_with(target.path());
        let is_skill = is_elsewhere && target.has_file(repertoire_core::DOCUMENT);
        let checked = is_skill.then(|| self.check_target(&link, target.path()))?;
        Some(checked.map(|()| target))
    }

    /// Returns why the target of a link is not served.
    fn check_target(&self, link: &Path, target: &Path) -> Result<(), RefusalReason> {
        if self.project.iter().any(|folder| target.starts_with(folder)) {
            return Ok(());
        }
        let confirmed = self.confirmed.as_ref();
        if confirmed.is_some_and(|local| local.is_link_confirmed(link, target).unwrap_or(false)) {
            return Ok(());
        }
        Err(RefusalReason {
            code: "link_outside",
            message: format!(
                "{}: leads out of this project, to {}",
                display_path(link),
                display_path(target)
            ),
        })
    }
}

/// Returns the folder that has a host's folder, for `BASE/.claude/skills`.
fn host_folder_base(folder: &Path) -> Option<&Path> {
    let host = folder.parent()?;
    let is_host = HOST_FOLDERS
        .iter()
        .any(|name| host.file_name().is_some_and(|host| host == *name));
    let is_skills = folder.file_name().is_some_and(|name| name == "skills");
    (is_host && is_skills).then(|| host.parent())?
}

impl LocalStore {
    /// Confirms that what a link or a folder of a workspace leads to is served, as long as it leads
    /// there. Returns the target.
    pub fn confirm_link(&self, link: &Path) -> Result<PathBuf> {
        let (link, target) = resolve_link(link)?;
        let target_text = target.to_string_lossy();
        self.grant_approval(LINK_APPROVAL_KIND, &link.to_string_lossy(), &target_text)?;
        Ok(target)
    }

    /// Revokes the confirmation of a link; returns whether there was one.
    pub fn revoke_link(&self, link: &Path) -> Result<bool> {
        let link = link_path(link)?;
        self.revoke_approval(LINK_APPROVAL_KIND, &link.to_string_lossy())
    }

    /// Whether the user confirmed where a folder leads to.
    pub(crate) fn is_folder_confirmed(&self, folder: &Path) -> Result<bool> {
        let (link, target) = resolve_link(folder)?;
        self.is_link_confirmed(&link, &target)
    }

    fn is_link_confirmed(&self, link: &Path, target: &Path) -> Result<bool> {
        let found = self.find_approval(LINK_APPROVAL_KIND, &link.to_string_lossy())?;
        Ok(found.is_some_and(|approval| approval.binding == target.to_string_lossy()))
    }
}

/// Returns the real path of a link itself, and of its target.
fn resolve_link(link: &Path) -> Result<(PathBuf, PathBuf)> {
    let target = link.canonicalize();
    let target = target.map_err(|error| crate::Error::from_io(link, error))?;
    Ok((link_path(link)?, target))
}

/// Returns the real path of a link itself.
fn link_path(link: &Path) -> Result<PathBuf> {
    let name = link.file_name().unwrap_or_default();
    let parent = match link.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize();
    let parent = parent.map_err(|error| crate::Error::from_io(link, error))?;
    Ok(parent.join(name))
}
