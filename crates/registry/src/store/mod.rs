//! The SQLite store: one file per scope.
//!
//! Only this module knows SQL. Reads come from a small pool of connections and never wait for a
//! writer; writes go through one thread with group commit and are durable when they
//! return. Every change records an event, so that other processes on the same file can follow.

mod approvals;
mod checkpoints;
mod connection;
mod events;
mod history;
mod packages;
mod remotes;
mod schema;
mod skills;
mod state;
mod system;
mod tokens;
mod traces;
mod vectors;
mod writer;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::Connection;

pub use approvals::Approval;
pub use connection::StoreTrust;
pub use events::StoreEvent;
pub use history::SkillRevision;
pub use packages::{OptimizedModule, SkillRepository, SkillSummary};
pub use remotes::StoredRemote;
pub use skills::NewSkill;
pub use state::{StateRow, StateValue};
pub use tokens::{StoredToken, TokenAccess};
pub use traces::{TraceFilter, TraceRecord};

use crate::error::{Error, Result};

/// The most idle read connections that are kept.
const MAX_POOLED: usize = 4;

/// A store in one file.
///
/// ```
/// use repertoire_registry::store::{NewSkill, Store, StoreTrust};
///
/// let folder = tempfile::tempdir()?;
/// let store = Store::open(&folder.path().join("agents.db"), StoreTrust::Own)?;
/// let document = "---\nname: hello\ndescription: Greets. Use when greeted.\n---\n# Hello\n";
/// let skill = NewSkill::from_files("hello".parse()?, [("SKILL.md".parse()?, document.into())].into())?;
/// store.put_skills(vec![skill])?;
/// assert_eq!(store.all_metadata()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    trust: StoreTrust,
    pool: Mutex<Vec<Connection>>,
    writer: Option<writer::StoreWriter>,
}

impl Store {
    /// Opens a store, creating it if it is the user's own and does not exist yet.
    pub fn open(path: &Path, trust: StoreTrust) -> Result<Arc<Self>> {
        if trust == StoreTrust::Own
            && let Some(parent) = path.parent()
        {
            create_private_dir(parent)?;
        }
        let connection = connection::prepare_store(path, trust)?;
        let writer = match trust {
            StoreTrust::Own => Some(writer::StoreWriter::start(
                connection::open_connection(path, trust)?,
                path.to_owned(),
            )?),
            StoreTrust::ReadOnly | StoreTrust::Untrusted => None,
        };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            trust,
            pool: Mutex::new(vec![connection]),
            writer,
        }))
    }

    /// Returns the path of the store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be written to.
    pub(crate) fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns the id that the store got at its creation.
    pub fn store_id(&self) -> Result<String> {
        self.with_reader(|c| {
            Ok(
                c.query_row("SELECT value FROM meta WHERE key = 'store_id'", [], |row| {
                    row.get(0)
                })?,
            )
        })
    }

    /// Checks every page of the file.
    pub fn check_integrity(&self) -> Result<()> {
        let path = self.path.clone();
        self.with_reader(|c| connection::check_pages(c, &path))
    }

    /// Limits the file to a number of pages, to simulate a full disk.
    #[doc(hidden)]
    pub fn limit_pages_for_test(&self, pages: i64) -> Result<()> {
        let writer = self
            .writer
            .as_ref()
            .ok_or_else(|| Error::Untrusted(self.path.clone()))?;
        writer.write_durable(move |c| Ok(c.pragma_update(None, "max_page_count", pages)?))
    }

    /// Runs a read on a pooled connection.
    fn with_reader<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let pooled = self.lock_pool().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => connection::open_connection(&self.path, self.trust)?,
        };
        let result = work(&connection).map_err(|error| match error {
            Error::Sqlite(error) => connection::map_sqlite_error(&self.path, error),
            other => other,
        });
        let mut pool = self.lock_pool();
        if pool.len() < MAX_POOLED {
            pool.push(connection);
        }
        result
    }

    fn lock_pool(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // The list of connections stays valid even if a reader panicked.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a write and waits until it is durable.
    fn write_durable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write_durable(work)
    }

    fn writer(&self) -> Result<&writer::StoreWriter> {
        self.writer.as_ref().ok_or_else(|| match self.trust {
            StoreTrust::Untrusted => Error::Untrusted(self.path.clone()),
            StoreTrust::Own | StoreTrust::ReadOnly => Error::ReadOnly(self.path.clone()),
        })
    }
}

/// Returns the current time, RFC 3339 in UTC.
pub(crate) fn now_rfc3339() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Creates a folder that only this user can read; an existing folder keeps its mode.
pub(crate) fn create_private_dir(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path).map_err(|e| Error::from_io(path, e))
}
