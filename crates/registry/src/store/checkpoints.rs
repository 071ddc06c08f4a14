//! Values that scripts store, so that a resumed run can read them.

use rusqlite::{OptionalExtension, params};

use super::Store;
use crate::error::Result;

/// How long checkpoints are kept.
const RETENTION: &str = "-30 days";

impl Store {
    /// Returns the JSON value that an artifact stored under a name in a session.
    pub fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>> {
        self.with_reader(|c| {
            let sql = "SELECT value FROM checkpoints
                       WHERE session_id = ?1 AND artifact = ?2 AND name = ?3";
            let mut statement = c.prepare_cached(sql)?;
            let row = statement.query_row([session, artifact, name], |row| row.get(0));
            Ok(row.optional()?)
        })
    }

    /// Stores a value, replacing an older one; deletes expired values.
    pub fn put_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &str,
    ) -> Result<()> {
        let [session, artifact, name, value] = [session, artifact, name, value].map(str::to_owned);
        self.write_durable(move |c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3, ?4, datetime('now'))",
            )?
            .execute(params![session, artifact, name, value])?;
            c.prepare_cached("DELETE FROM checkpoints WHERE at < datetime('now', ?1)")?
                .execute([RETENTION])?;
            Ok(())
        })
    }
}
