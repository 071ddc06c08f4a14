//! Values that running scripts keep, so that a run that is resumed has them.

use rusqlite::{OptionalExtension, params};

use super::Store;
use crate::error::Result;

/// How long they are kept.
const KEEP: &str = "-30 days";

impl Store {
    /// What a session's artifact kept under a name, as JSON.
    pub fn checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<String>> {
        self.read(|c| {
            let sql = "SELECT value FROM checkpoints
                       WHERE session_id = ?1 AND artifact = ?2 AND name = ?3";
            let mut statement = c.prepare_cached(sql)?;
            let row = statement.query_row([session, artifact, name], |row| row.get(0));
            Ok(row.optional()?)
        })
    }

    /// Keeps a value, in place of an older one; those of a month ago give way.
    pub fn put_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &str,
    ) -> Result<()> {
        let [session, artifact, name, value] = [session, artifact, name, value].map(str::to_owned);
        self.write(move |c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3, ?4, datetime('now'))",
            )?
            .execute(params![session, artifact, name, value])?;
            c.prepare_cached("DELETE FROM checkpoints WHERE at < datetime('now', ?1)")?
                .execute([KEEP])?;
            Ok(())
        })
    }
}
