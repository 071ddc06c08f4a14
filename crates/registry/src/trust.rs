//! Trust in workspaces: which ones may override other skills and run code.
//!
//! A workspace from another source has its own store and folders. Until the user trusts it, its
//! skills can only be listed and read. The approval is kept in the account's store and is bound to
//! the workspace's path, to the id of its store and to the identity of the store's file: a copy in
//! another folder, a different store or a replaced file (as after a checkout) is untrusted again.
//! Journals beside the store decide its content too: one that this account did not write is set aside.

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
const JOURNAL_APPROVAL_KIND: &str = "journal";

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
        // Between looking at the journal and recording it, no other process may do the same.
        // An account that cannot be written is only read, and records nothing.
        let lock = self.lock_journals().ok();
        self.set_foreign_journals_aside(&subject, &file)?;
        let store = SqliteStore::open(&file, StoreOpenMode::Own)?;
        if approval.binding != approval_binding(&store)? {
            return Ok(None);
        }
        if lock.is_some() {
            self.record_journal(&subject, &file)?;
        }
        Ok(Some(store))
    }

    /// Waits for other processes that open a trusted store of this account.
    fn lock_journals(&self) -> Result<std::fs::File> {
        let path = self.store_path().with_file_name("journals.lock");
        let io = |error| Error::from_io(&path, error);
        let lock = std::fs::File::create(&path).map_err(io)?;
        lock.lock().map_err(io)?;
        Ok(lock)
    }

    /// Moves a journal away that this account did not write: SQLite would apply it to the store, and
    /// a checkout can bring one (T43). After a crash our own journal holds acknowledged writes; it is
    /// recognised by the identity that was recorded before the first of them.
    fn set_foreign_journals_aside(&self, subject: &str, file: &Path) -> Result<()> {
        let known = self.find_approval(JOURNAL_APPROVAL_KIND, subject)?;
        // A store of an earlier version has no record yet.
        let Some(known) = known else {
            return Ok(());
        };
        for suffix in ["-wal", "-journal"] {
            let journal = side_file(file, suffix);
            if journal.symlink_metadata().is_err() || file_identity(&journal)? == known.binding {
                continue;
            }
            let aside = side_file(
                file,
                &format!("{suffix}.set-aside-{}", uuid::Uuid::new_v4()),
            );
            std::fs::rename(&journal, &aside).map_err(|e| Error::from_io(&journal, e))?;
            // It describes the journal that was moved; SQLite makes another one.
            let _ = std::fs::remove_file(side_file(file, "-shm"));
            tracing::warn!(
                journal = %journal.display(), aside = %aside.display(),
                "a journal that this account did not write was set aside"
            );
        }
        Ok(())
    }

    /// Records the journal that the open store writes to.
    fn record_journal(&self, subject: &str, file: &Path) -> Result<()> {
        let journal = side_file(file, "-wal");
        if journal.symlink_metadata().is_err() {
            return Ok(());
        }
        let identity = file_identity(&journal)?;
        let known = self.find_approval(JOURNAL_APPROVAL_KIND, subject)?;
        if known.is_some_and(|known| known.binding == identity) {
            return Ok(());
        }
        self.grant_approval(JOURNAL_APPROVAL_KIND, subject, &identity)
    }

    /// Trusts a workspace in its current state, creating its store if it has none.
    pub fn trust_workspace(&self, workspace: &Path) -> Result<()> {
        let file = workspace_store_path(workspace);
        let store = SqliteStore::open(&file, StoreOpenMode::Own)?;
        let subject = approval_subject(workspace)?;
        let _lock = self.lock_journals()?;
        self.record_journal(&subject, &file)?;
        self.grant_approval(
            WORKSPACE_APPROVAL_KIND,
            &subject,
            &approval_binding(&store)?,
        )
    }

    /// Revokes the trust; returns whether the workspace was trusted.
    pub fn distrust_workspace(&self, workspace: &Path) -> Result<bool> {
        self.revoke_approval(WORKSPACE_APPROVAL_KIND, &approval_subject(workspace)?)
    }
}

/// Returns the path of a file that SQLite keeps beside a store.
fn side_file(store: &Path, suffix: &str) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(suffix);
    name.into()
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
