//! Trust in workspaces: which ones may override other skills and run code.
//!
//! A workspace from another source has its own store and folders. Until the user trusts it, its
//! skills can only be listed and read. The approval is kept in the account's store and is bound to
//! the workspace's path, to the id of its store and to the identity of the store's file: a copy in
//! another folder, a different store or a replaced file (as after a checkout) is untrusted again.
//!
//! SQLite applies the journal beside a store to it, so the journal decides the content too. Its
//! identity is recorded in the account before the first write goes to it. With any other journal that
//! holds something, the workspace is untrusted until the user has decided; no journal is deleted.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use crate::{
    error::{Error, Result},
    origin::Trusted,
    store::{JournalGuard, LocalStore, SqliteStore, Store, StoreOpenMode, side_file},
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
        let guard = WorkspaceJournal::new(self, subject, file.clone());
        let store = SqliteStore::open_guarded(&file, Arc::new(guard))?;
        Ok((approval.binding == approval_binding(&store)?).then_some(store))
    }

    /// Trusts a workspace in its current state, creating its store if it has none. A journal beside
    /// the store that this account did not write is refused.
    pub fn trust_workspace(&self, workspace: &Path) -> Result<()> {
        self.trust_workspace_as(workspace, ForeignJournals::Refused)
    }

    /// Trusts a workspace, and applies a journal beside its store if that is allowed.
    pub fn trust_workspace_as(&self, workspace: &Path, journals: ForeignJournals) -> Result<()> {
        // A link would lead to a folder that the project does not own, such as the account's.
        let own = workspace.join(WORKSPACE_FOLDER);
        if own.is_symlink() {
            return Err(Error::EscapesRoot(own));
        }
        let subject = approval_subject(workspace)?;
        let journal = WorkspaceJournal::new(self, subject, workspace_store_path(workspace));
        if journals == ForeignJournals::Refused {
            journal.check_journal()?;
        }
        let store = SqliteStore::open(&journal.store, StoreOpenMode::Own)?;
        journal.record_journal()?;
        self.grant_approval(
            WORKSPACE_APPROVAL_KIND,
            &journal.subject,
            &approval_binding(&store)?,
        )
    }

    /// Revokes the trust; returns whether the workspace was trusted.
    pub fn distrust_workspace(&self, workspace: &Path) -> Result<bool> {
        self.revoke_approval(WORKSPACE_APPROVAL_KIND, &approval_subject(workspace)?)
    }
}

/// What happens to a journal beside a store that this account did not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignJournals {
    /// The store is not opened.
    Refused,
    /// SQLite applies it: what it holds becomes part of the store.
    Applied,
}

/// The journal beside the store of a workspace.
struct WorkspaceJournal {
    account: LocalStore,
    subject: String,
    store: PathBuf,
    /// The identities of the store and of its journal when they were opened.
    opened: OnceLock<[String; 2]>,
}

impl WorkspaceJournal {
    fn new(account: &LocalStore, subject: String, store: PathBuf) -> Self {
        Self {
            account: account.clone(),
            subject,
            store,
            opened: OnceLock::new(),
        }
    }

    fn identities(&self) -> Result<[String; 2]> {
        Ok([
            file_identity(&self.store)?,
            file_identity(&self.wal_path())?,
        ])
    }

    fn wal_path(&self) -> PathBuf {
        side_file(&self.store, "-wal")
    }

    /// Refuses a rollback journal: a store has none after its creation.
    fn check_rollback_journal(&self) -> Result<()> {
        let journal = side_file(&self.store, "-journal");
        if is_empty_or_missing(&journal)? {
            return Ok(());
        }
        Err(Error::ForeignJournal(journal))
    }
}

impl JournalGuard for WorkspaceJournal {
    fn check_journal(&self) -> Result<()> {
        self.check_rollback_journal()?;
        let wal = self.wal_path();
        if is_empty_or_missing(&wal)? {
            return Ok(());
        }
        let found = file_identity(&wal)?;
        // Read after the file: whichever process wrote to it has recorded it before.
        let known = self
            .account
            .find_approval(JOURNAL_APPROVAL_KIND, &self.subject)?;
        if known.is_some_and(|known| known.binding == found) {
            return Ok(());
        }
        Err(Error::ForeignJournal(wal))
    }

    fn remember_files(&self) -> Result<()> {
        let _ = self.opened.set(self.identities()?);
        Ok(())
    }

    fn check_files(&self) -> Result<()> {
        let Some([store, wal]) = self.opened.get() else {
            return Ok(());
        };
        let [store_now, wal_now] = self.identities()?;
        if *store != store_now {
            return Err(Error::ReplacedStore(self.store.clone()));
        }
        if *wal != wal_now {
            return Err(Error::ForeignJournal(self.wal_path()));
        }
        Ok(())
    }

    fn record_journal(&self) -> Result<()> {
        // A file that took the place of the one that is open is not ours.
        self.check_files()?;
        let found = file_identity(&self.wal_path())?;
        let known = self
            .account
            .find_approval(JOURNAL_APPROVAL_KIND, &self.subject)?;
        if known.is_some_and(|known| known.binding == found) {
            return Ok(());
        }
        self.account
            .grant_approval(JOURNAL_APPROVAL_KIND, &self.subject, &found)
    }
}

fn is_empty_or_missing(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(metadata.is_file() && metadata.len() == 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Error::from_io(path, error)),
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
