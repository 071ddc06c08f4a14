//! Values that scripts store, so that a resumed run can read them.

use rusqlite::{Connection, OptionalExtension};

use super::QueryResult;

/// How long checkpoints are kept.
const RETENTION: &str = "-30 days";

pub(super) fn checkpoint(
    c: &Connection,
    session: &str,
    artifact: &str,
    name: &str,
) -> QueryResult<Option<String>> {
    let sql = "SELECT value FROM checkpoints
               WHERE session_id = ?1 AND artifact = ?2 AND name = ?3";
    let mut statement = c.prepare_cached(sql)?;
    let row = statement.query_row([session, artifact, name], |row| row.get(0));
    Ok(row.optional()?)
}

/// Stores a value: session, artifact, name, value.
pub(super) fn put_checkpoint(c: &Connection, row: [String; 4]) -> QueryResult<()> {
    c.prepare_cached(
        "INSERT OR REPLACE INTO checkpoints VALUES (?1, ?2, ?3, ?4, datetime('now'))",
    )?
    .execute(row)?;
    c.prepare_cached("DELETE FROM checkpoints WHERE at < datetime('now', ?1)")?
        .execute([RETENTION])?;
    Ok(())
}
