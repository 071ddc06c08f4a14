//! The log of changes, by which processes on one file follow each other.

use rusqlite::{Connection, params};

use super::{Store, now};
use crate::error::Result;

/// How many events are kept. A follower that fell further behind reads everything again.
const KEEP: i64 = 100_000;

/// One change of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// Its number; later changes have larger ones.
    pub seq: i64,
    /// Whether something went; else it came, or changed.
    pub removed: bool,
    /// `skill`, `state:<scope>`, `remote` or `approval`.
    pub kind: String,
    /// The id, name or key.
    pub id: String,
}

/// Writes down a change, in the transaction that makes it.
///
/// Gives its number.
pub(super) fn record(connection: &Connection, op: &str, kind: &str, id: &str) -> Result<i64> {
    connection
        .prepare_cached("INSERT INTO events (op, kind, id, at) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![op, kind, id, now()])?;
    let seq = connection.last_insert_rowid();
    // Pruning in strides keeps its cost out of nearly every write.
    if seq % 1024 == 0 {
        connection
            .prepare_cached("DELETE FROM events WHERE seq <= ?1")?
            .execute([seq - KEEP])?;
    }
    Ok(seq)
}

impl Store {
    /// The number of the newest event, 0 for none.
    pub fn last_seq(&self) -> Result<i64> {
        self.read(|c| {
            Ok(
                c.prepare_cached("SELECT coalesce(max(seq), 0) FROM events")?
                    .query_row([], |row| row.get(0))?,
            )
        })
    }

    /// The events after a number, oldest first; `None` if some of them are no longer kept.
    pub fn events_since(&self, seq: i64) -> Result<Option<Vec<StoreEvent>>> {
        self.read(|c| {
            let oldest: Option<i64> = c
                .prepare_cached("SELECT min(seq) FROM events")?
                .query_row([], |row| row.get(0))?;
            if oldest.is_some_and(|oldest| oldest > seq.saturating_add(1)) {
                return Ok(None);
            }
            let mut statement = c.prepare_cached(
                "SELECT seq, kind, id, op FROM events WHERE seq > ?1 ORDER BY seq",
            )?;
            let rows = statement.query_map([seq], |row| {
                Ok(StoreEvent {
                    seq: row.get(0)?,
                    kind: row.get(1)?,
                    id: row.get(2)?,
                    removed: row.get_ref(3)?.as_str()? == "remove",
                })
            })?;
            Ok(Some(rows.collect::<rusqlite::Result<_>>()?))
        })
    }
}
