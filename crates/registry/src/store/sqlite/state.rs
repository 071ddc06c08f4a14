//! Key-value state by scope.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    QueryResult, StateRow, StateWork,
    events::{EventKind, EventOp, record_event},
    now_rfc3339,
};
use crate::store::{StateChange, StateOutcome};

pub(super) fn get_value(c: &Connection, scope: &str, key: &str) -> QueryResult<Option<String>> {
    let value = c
        .prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
        .query_row([scope, key], |row| row.get(0));
    Ok(value.optional()?)
}

pub(super) fn page(
    c: &Connection,
    scope: &str,
    after: Option<&str>,
    limit: usize,
    max_bytes: usize,
) -> QueryResult<Vec<(String, String)>> {
    let mut statement = c.prepare_cached(
        "SELECT key, value FROM state WHERE scope = ?1 AND key > ?2 ORDER BY key",
    )?;
    // No key is empty, so every key sorts after the empty string.
    let mut rows = statement.query([scope, after.unwrap_or_default()])?;
    let mut page: Vec<(String, String)> = Vec::new();
    let mut bytes = 0usize;
    while let Some(row) = rows.next()? {
        let (key, value): (String, String) = (row.get(0)?, row.get(1)?);
        bytes = bytes.saturating_add(key.len() + value.len());
        if page.len() == limit || (bytes > max_bytes && !page.is_empty()) {
            break;
        }
        page.push((key, value));
    }
    Ok(page)
}

pub(super) fn scopes(c: &Connection) -> QueryResult<Vec<String>> {
    let mut statement = c.prepare_cached("SELECT DISTINCT scope FROM state ORDER BY scope")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn rows(c: &Connection, scope: &str) -> QueryResult<Vec<StateRow>> {
    let sql = "SELECT key, head FROM state WHERE scope = ?1 ORDER BY key";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map([scope], state_row)?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

pub(super) fn row(c: &Connection, scope: &str, key: &str) -> QueryResult<Option<StateRow>> {
    let sql = "SELECT key, head FROM state WHERE scope = ?1 AND key = ?2";
    let row = c.prepare_cached(sql)?.query_row([scope, key], state_row);
    Ok(row.optional()?)
}

fn state_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<StateRow> {
    Ok(StateRow {
        key: row.get(0)?,
        metadata: row.get(1)?,
    })
}

/// Reads a value, asks what to do with it, and does that.
pub(super) fn change(
    c: &Connection,
    scope: &str,
    key: &str,
    work: StateWork,
) -> QueryResult<StateOutcome> {
    let previous = get_value(c, scope, key)?;
    let op = match work(previous.clone())? {
        StateChange::Put(new) => {
            c.prepare_cached(
                "INSERT INTO state (scope, key, updated_at, head, value)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET updated_at = ?3, head = ?4, value = ?5",
            )?
            .execute(params![scope, key, now_rfc3339(), new.metadata, new.value])?;
            Some(EventOp::Put)
        }
        StateChange::Delete if previous.is_some() => {
            c.prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2")?
                .execute([scope, key])?;
            Some(EventOp::Remove)
        }
        StateChange::Delete | StateChange::Keep => None,
    };
    let event = op.map(|op| record_event(c, op, EventKind::State(scope), key));
    Ok(StateOutcome {
        previous,
        event: event.transpose()?,
    })
}
