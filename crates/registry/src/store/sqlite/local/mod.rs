//! What belongs to one user on one machine: approvals, trust in workspaces, other servers with
//! their listings, cached vectors, example messages of skills, and what was chosen in searches. It is always kept in the SQLite file of the account,
//! wherever the scopes are.

mod approvals;
mod example_messages;
mod remotes;
mod skill_uses;
mod vectors;

use std::sync::Arc;

pub use approvals::Approval;
pub use example_messages::ExampleMessages;
pub use remotes::StoredRemote;
pub use skill_uses::{NewSkillUse, StoredSkillUse};

use super::{EventCursor, QueryResult, SqliteStore, Store, events, now_rfc3339};
use crate::error::Result;

/// The user's own data on this machine.
#[derive(Debug, Clone)]
pub struct LocalStore {
    sqlite: Arc<SqliteStore>,
}

/// What happened to the local data after a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalEvents {
    /// Whether servers, listings or approvals changed.
    pub changed: bool,
    /// Where to go on.
    pub cursor: EventCursor,
}

impl LocalStore {
    /// Uses the SQLite file of the account.
    pub(crate) fn new(sqlite: Arc<SqliteStore>) -> Self {
        Self { sqlite }
    }

    /// Whether it can be written to.
    pub fn is_writable(&self) -> bool {
        self.sqlite.is_writable()
    }

    /// Returns the cursor after all events so far.
    pub fn event_cursor(&self) -> Result<EventCursor> {
        self.sqlite.event_cursor()
    }

    /// Returns what changed after a cursor. Events that are no longer kept count as changes.
    pub fn events_since(&self, cursor: &EventCursor) -> Result<LocalEvents> {
        self.sqlite.with_reader(|c| {
            let found = events::local_events_since(c, cursor)?;
            Ok(match found {
                Some((changed, cursor)) => LocalEvents { changed, cursor },
                None => LocalEvents {
                    changed: true,
                    cursor: events::cursor(c)?,
                },
            })
        })
    }

    fn with_reader<T>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> QueryResult<T>,
    ) -> Result<T> {
        self.sqlite.with_reader(work)
    }

    fn write_durable<T: Send + 'static>(
        &self,
        work: impl FnOnce(&rusqlite::Connection) -> QueryResult<T> + Send + 'static,
    ) -> Result<T> {
        self.sqlite.write_durable(work)
    }
}
