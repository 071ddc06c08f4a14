//! The event log, by which several processes on one file follow each other's changes.

use rusqlite::{Connection, params};

use super::{Store, now_rfc3339};
use crate::error::Result;

/// How many events are kept. A follower that is further behind reads everything again.
const MAX_EVENTS: i64 = 100_000;

/// One change of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreEvent {
    /// Its sequence number; later changes have larger ones.
    pub seq: i64,
    /// Whether the item was removed; otherwise it was added or changed.
    pub removed: bool,
    /// `skill`, `state:<scope>`, `remote` or `approval`.
    pub kind: String,
    /// The id, name or key.
    pub id: String,
}

/// Records a change in the same transaction that makes it.
///
/// Returns the sequence number of the event.
pub(super) fn record_event(connection: &Connection, op: &str, kind: &str, id: &str) -> Result<i64> {
    connection
        .prepare_cached("INSERT INTO events (op, kind, id, at) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![op, kind, id, now_rfc3339()])?;
    let seq = connection.last_insert_rowid();
    // Pruning only every 1024 events keeps its cost out of most writes.
    if seq % 1024 == 0 {
        connection
            .prepare_cached("DELETE FROM events WHERE seq <= ?1")?
            .execute([seq - MAX_EVENTS])?;
    }
    Ok(seq)
}

impl Store {
    /// Returns the number of the newest event, 0 if there is none.
    pub fn last_seq(&self) -> Result<i64> {
        self.with_reader(|c| {
            Ok(
                c.prepare_cached("SELECT coalesce(max(seq), 0) FROM events")?
                    .query_row([], |row| row.get(0))?,
            )
        })
    }

    /// Returns the events after a number, oldest first; `None` if some are no longer kept.
    pub fn events_since(&self, seq: i64) -> Result<Option<Vec<StoreEvent>>> {
        self.with_reader(|c| {
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
