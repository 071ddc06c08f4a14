//! Which workspaces may override and run.
//!
//! A workspace that came from elsewhere brings its own store and its own folders. Until the user
//! trusts it, they can be listed and read and do nothing else. The approval is kept in the
//! account's store and bound to the workspace's path, to the id of its store and to the identity
//! of the store's file: a copy elsewhere, another store in its place or a file that was replaced
//! (as a checkout does) is untrusted again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::{Error, Result},
    origin::Trusted,
    store::{Store, Trust},
};

const KIND: &str = "workspace";

/// The folder of a workspace that holds what is Repertoire's.
pub const FOLDER: &str = ".repertoire";
/// The name of a store's file.
pub const STORE: &str = "agents.db";

/// The store's file of a workspace.
pub fn workspace_store(workspace: &Path) -> PathBuf {
    workspace.join(FOLDER).join(STORE)
}

/// Whether a workspace is trusted as it is now.
pub fn is_trusted(account: &Store, workspace: &Path) -> Result<Trusted> {
    Ok(match open_trusted(account, workspace)? {
        Some(_) => Trusted::Yes,
        None => Trusted::No,
    })
}

/// The store of a workspace, if it is trusted as it is now.
pub(crate) fn open_trusted(account: &Store, workspace: &Path) -> Result<Option<Arc<Store>>> {
    let file = workspace_store(workspace);
    if file.symlink_metadata().is_err() {
        return Ok(None);
    }
    let Some(approval) = account.approval(KIND, &subject(workspace)?)? else {
        return Ok(None);
    };
    // Only the very file that was approved is opened as the user's own.
    if !approval.binding.ends_with(&identity(&file)?) {
        return Ok(None);
    }
    let store = Store::open(&file, Trust::Own)?;
    Ok((approval.binding == binding(&store)?).then_some(store))
}

/// Trusts a workspace as it is now, creating its store if it has none.
pub fn trust(account: &Store, workspace: &Path) -> Result<()> {
    let store = Store::open(&workspace_store(workspace), Trust::Own)?;
    account.approve(KIND, &subject(workspace)?, &binding(&store)?)
}

/// Takes the trust back.
pub fn distrust(account: &Store, workspace: &Path) -> Result<bool> {
    account.revoke(KIND, &subject(workspace)?)
}

fn subject(workspace: &Path) -> Result<String> {
    let real = workspace
        .canonicalize()
        .map_err(|e| Error::io(workspace, e))?;
    Ok(real.to_string_lossy().into_owned())
}

/// What tells this store from any other, and its file from one put in its place.
fn binding(store: &Store) -> Result<String> {
    Ok(format!("{}{}", store.store_id()?, identity(store.path())?))
}

/// The identity of a file: which one it is, and since when.
fn identity(path: &Path) -> Result<String> {
    let metadata = path.symlink_metadata().map_err(|e| Error::io(path, e))?;
    // Not every file system knows when a file was born.
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
