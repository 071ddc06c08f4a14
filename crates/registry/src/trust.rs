//! Which workspaces may override and run.
//!
//! A workspace that came from elsewhere brings its own store and its own folders. Until the user
//! trusts it, they can be listed and read and do nothing else. The approval is kept in the
//! account's store and bound to the workspace's path, to the id of its store and to the identity
//! of the store's file: a copy elsewhere, another store in its place or a file that was replaced
//! (as a checkout does) is untrusted again.

use std::path::{Path, PathBuf};

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
    let file = workspace_store(workspace);
    if !file.exists() {
        return Ok(Trusted::No);
    }
    let approval = account.approval(KIND, &subject(workspace)?)?;
    let Some(approval) = approval else {
        return Ok(Trusted::No);
    };
    let store = Store::open(&file, Trust::Foreign)?;
    Ok(if approval.binding == binding(&store)? {
        Trusted::Yes
    } else {
        Trusted::No
    })
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
    let path = store.path();
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
    Ok(format!("{}:{inode}:{born}", store.store_id()?))
}
