//! Trust in workspaces: which ones may override other skills and run code.
//!
//! A workspace from another source has its own store and folders. Until the user trusts it, its
//! skills can only be listed and read. The approval is kept in the account's store and is bound to
//! the workspace's path, to the id of its store and to the identity of the store's file: a copy in
//! another folder, a different store or a replaced file (as after a checkout) is untrusted again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::{Error, Result},
    origin::Trusted,
    store::{LocalStore, SqliteStore, Store, StoreOpenMode},
};

const WORKSPACE_APPROVAL_KIND: &str = "workspace";

/// The folder in a workspace that holds Repertoire's files.
pub const WORKSPACE_FOLDER: &str = ".repertoire";
/// The file name of a store.
pub const STORE_FILE_NAME: &str = "agents.db";

/// Returns the path of a workspace's store.
pub fn workspace_store_path(workspace: &Path) -> PathBuf {
    workspace.join(WORKSPACE_FOLDER).join(STORE_FILE_NAME)
}

/// Finds the workspace of a folder: the folder itself or the nearest one above with `.repertoire` in
/// it that is not the account's.
pub fn find_workspace(here: &Path, account: &Path) -> Option<PathBuf> {
    let account = account
        .canonicalize()
        .unwrap_or_else(|_| account.to_owned());
    let found = here.ancestors().find(|folder| {
        let own = folder.join(WORKSPACE_FOLDER);
        own.is_dir() && own.canonicalize().is_ok_and(|own| own != account)
    });
    found.map(Path::to_owned)
}

impl LocalStore {
    /// Returns whether a workspace is trusted in its current state.
    pub fn workspace_trust(&self, workspace: &Path) -> Result<Trusted> {
        Ok(match self.open_trusted_store(workspace)? {
            Some(_) => Trusted::Yes,
            None => Trusted::No,
        })
    }

    /// Opens the store of a workspace if the workspace is trusted in its current state.
    pub(crate) fn open_trusted_store(&self, workspace: &Path) -> Result<Option<Arc<SqliteStore>>> {
        let file = workspace_store_path(workspace);
        if file.symlink_metadata().is_err() {
            return Ok(None);
        }
        let subject = approval_subject(workspace)?;
        let Some(approval) = self.find_approval(WORKSPACE_APPROVAL_KIND, &subject)? else {
            return Ok(None);
        };
        // Only the file that was approved is opened as the user's own.
        if !approval.binding.ends_with(&file_identity(&file)?) {
            return Ok(None);
        }
        let store = SqliteStore::open(&file, StoreOpenMode::Own)?;
        Ok((approval.binding == approval_binding(&store)?).then_some(store))
    }

    /// Trusts a workspace in its current state, creating its store if it has none.
    pub fn trust_workspace(&self, workspace: &Path) -> Result<()> {
        let store = SqliteStore::open(&workspace_store_path(workspace), StoreOpenMode::Own)?;
        self.grant_approval(
            WORKSPACE_APPROVAL_KIND,
            &approval_subject(workspace)?,
            &approval_binding(&store)?,
        )
    }

    /// Revokes the trust; returns whether the workspace was trusted.
    pub fn distrust_workspace(&self, workspace: &Path) -> Result<bool> {
        self.revoke_approval(WORKSPACE_APPROVAL_KIND, &approval_subject(workspace)?)
    }
}

fn approval_subject(workspace: &Path) -> Result<String> {
    let real = workspace
        .canonicalize()
        .map_err(|e| Error::from_io(workspace, e))?;
    Ok(real.to_string_lossy().into_owned())
}

/// Returns an identifier of this store and of its file; a replaced file gets another one.
fn approval_binding(store: &SqliteStore) -> Result<String> {
    Ok(format!(
        "{}{}",
        store.store_id()?,
        file_identity(store.path())?
    ))
}

/// Returns the identity of a file: its inode and creation time.
fn file_identity(path: &Path) -> Result<String> {
    let metadata = path
        .symlink_metadata()
        .map_err(|e| Error::from_io(path, e))?;
    // Some file systems do not record creation times.
    let born = metadata
        .created()
        .ok()
        .and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_nanos());
    #[cfg(unix)]
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let inode = 0;
    Ok(format!(":{inode}:{born}"))
}
