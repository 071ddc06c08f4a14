//! The SQLite store: one file a scope.
//!
//! Only this module knows SQL. Reads come from a small pool of connections and never wait for a
//! writer; writes go through one thread with group commit and are durable when they
//! return. Every change leaves an event, so that other processes on the same file can follow.

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
pub use connection::Trust;
pub use events::StoreEvent;
pub use history::Revision;
pub use packages::{Learned, SkillRepository, SkillSummary};
pub use remotes::StoredRemote;
pub use skills::NewSkill;
pub use state::{StateRow, StateValue};
pub use tokens::{Access, Token};
pub use traces::{Trace, TraceFilter};

use crate::error::{Error, Result};

/// Connections kept for the next reader.
const POOL: usize = 4;

/// A store in one file.
///
/// ```
/// use repertoire_registry::store::{NewSkill, Store, Trust};
///
/// let folder = tempfile::tempdir()?;
/// let store = Store::open(&folder.path().join("agents.db"), Trust::Own)?;
/// let document = "---\nname: hello\ndescription: Greets. Use when greeted.\n---\n# Hello\n";
/// let skill = NewSkill::from_files("hello".parse()?, [("SKILL.md".parse()?, document.into())].into())?;
/// store.put_skills(vec![skill])?;
/// assert_eq!(store.heads()?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    trust: Trust,
    pool: Mutex<Vec<Connection>>,
    writer: Option<writer::Writer>,
}

impl Store {
    /// Opens a store, creating it if it is the user's own and does not exist yet.
    pub fn open(path: &Path, trust: Trust) -> Result<Arc<Self>> {
        if trust == Trust::Own
            && let Some(parent) = path.parent()
        {
            create_private_dir(parent)?;
        }
        let connection = connection::prepare(path, trust)?;
        let writer = match trust {
            Trust::Own => Some(writer::Writer::start(
                connection::connect(path, trust)?,
                path.to_owned(),
            )?),
            Trust::ReadOnly | Trust::Foreign => None,
        };
        Ok(Arc::new(Self {
            path: path.to_owned(),
            trust,
            pool: Mutex::new(vec![connection]),
            writer,
        }))
    }

    /// The store's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be written to.
    pub(crate) fn is_own(&self) -> bool {
        self.writer.is_some()
    }

    /// The id the store was given when it was created.
    pub fn store_id(&self) -> Result<String> {
        self.read(|c| {
            Ok(
                c.query_row("SELECT value FROM meta WHERE key = 'store_id'", [], |row| {
                    row.get(0)
                })?,
            )
        })
    }

    /// Checks every page of the file.
    pub fn check(&self) -> Result<()> {
        let path = self.path.clone();
        self.read(|c| connection::check_pages(c, &path))
    }

    /// Lets the file grow to so many pages and no further, as a full disk would.
    #[doc(hidden)]
    pub fn limit_pages_for_test(&self, pages: i64) -> Result<()> {
        let writer = self
            .writer
            .as_ref()
            .ok_or_else(|| Error::Untrusted(self.path.clone()))?;
        writer.write(move |c| Ok(c.pragma_update(None, "max_page_count", pages)?))
    }

    /// Runs a read on a pooled connection.
    fn read<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let pooled = self.lock_pool().pop();
        let connection = match pooled {
            Some(connection) => connection,
            None => connection::connect(&self.path, self.trust)?,
        };
        let result = work(&connection).map_err(|error| match error {
            Error::Sqlite(error) => connection::describe(&self.path, error),
            other => other,
        });
        let mut pool = self.lock_pool();
        if pool.len() < POOL {
            pool.push(connection);
        }
        result
    }

    fn lock_pool(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A vector of connections is whole whatever a panicking reader did.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a write and waits until it is durable.
    fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.writer()?.write(work)
    }

    fn writer(&self) -> Result<&writer::Writer> {
        self.writer.as_ref().ok_or_else(|| match self.trust {
            Trust::Foreign => Error::Untrusted(self.path.clone()),
            Trust::Own | Trust::ReadOnly => Error::ReadOnly(self.path.clone()),
        })
    }
}

/// The time now, RFC 3339 in UTC.
pub(crate) fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}

/// Creates a folder that only this user can look into; one that exists keeps its mode.
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
    builder.create(path).map_err(|e| Error::io(path, e))
}
