//! Key-value state by scope.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    QueryResult, StateRevision, StateRow, StateWork,
    events::{EventKind, EventOp, record_event},
    now_rfc3339,
};
use crate::{
    error::Error,
    registered,
    store::{StateChange, StateOutcome},
};

/// How much one scope of the state holds. Values are kept until they are deleted, so a program that
/// only adds is stopped here.
const MAX_SCOPE_ROWS: i64 = 250_000;
const MAX_SCOPE_BYTES: i64 = 1024 * 1024 * 1024;
/// How much all scopes hold together.
const MAX_STATE_ROWS: i64 = 1_000_000;
const MAX_STATE_BYTES: i64 = 4 * 1024 * 1024 * 1024;
/// The most scopes.
const MAX_SCOPES: i64 = 10_000;
/// How many earlier values of one key are kept.
const MAX_KEY_REVISIONS: i64 = 20;
/// How many earlier values are kept of all keys, and how many bytes.
const MAX_REVISIONS: i64 = 20_000;
const MAX_REVISION_BYTES: i64 = 64 * 1024 * 1024;

pub(super) fn get_value(c: &Connection, scope: &str, key: &str) -> QueryResult<Option<String>> {
    let value = c
        .prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
        .query_row([scope, key], |row| row.get(0));
    Ok(value.optional()?)
}

/// Returns the length of a value; SQLite knows it without reading the value.
pub(super) fn value_size(c: &Connection, scope: &str, key: &str) -> QueryResult<Option<usize>> {
    let size = c
        .prepare_cached("SELECT octet_length(value) FROM state WHERE scope = ?1 AND key = ?2")?
        .query_row([scope, key], |row| row.get::<_, i64>(0));
    let size = size.optional()?;
    Ok(size.map(|size| usize::try_from(size).unwrap_or(usize::MAX)))
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

/// Returns the current value of a key and the earlier ones that are kept, newest first.
pub(super) fn history(c: &Connection, scope: &str, key: &str) -> QueryResult<Vec<StateRevision>> {
    let mut all = Vec::new();
    let sql = "SELECT value, updated_at FROM state WHERE scope = ?1 AND key = ?2";
    let current = c.prepare_cached(sql)?.query_row([scope, key], |row| {
        Ok(StateRevision {
            revision: 0,
            at: row.get(1)?,
            value: row.get(0)?,
        })
    });
    if let Some(current) = current.optional()? {
        let revision = last_revision(c, scope, key)? + 1;
        all.push(StateRevision {
            revision,
            ..current
        });
    }
    let sql = "SELECT revision, at, value FROM state_revisions
               WHERE scope = ?1 AND key = ?2 ORDER BY revision DESC";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map([scope, key], |row| {
        Ok(StateRevision {
            revision: row.get(0)?,
            at: row.get(1)?,
            value: row.get(2)?,
        })
    })?;
    for row in rows {
        all.push(row?);
    }
    Ok(all)
}

fn last_revision(c: &Connection, scope: &str, key: &str) -> QueryResult<i64> {
    let sql = "SELECT coalesce(max(revision), 0) FROM state_revisions
               WHERE scope = ?1 AND key = ?2";
    let row = c
        .prepare_cached(sql)?
        .query_row([scope, key], |row| row.get(0));
    Ok(row?)
}

/// Keeps a value of registered content that is about to be replaced or deleted.
fn keep_revision(
    c: &Connection,
    scope: &str,
    key: &str,
    previous: &str,
    new: Option<&str>,
) -> QueryResult<()> {
    // A worker registers the same content at each start.
    if !registered::is_registered_scope(scope)
        || new.is_some_and(|new| registered::is_same_content(scope, previous, new))
    {
        return Ok(());
    }
    let revision = last_revision(c, scope, key)? + 1;
    let sql = "INSERT INTO state_revisions (scope, key, revision, at, value)
               SELECT scope, key, ?3, updated_at, value FROM state WHERE scope = ?1 AND key = ?2";
    c.prepare_cached(sql)?
        .execute(params![scope, key, revision])?;
    let mut newest = revision;
    if new.is_none() {
        newest += 1;
        let sql = "INSERT INTO state_revisions (scope, key, revision, at, value)
                   VALUES (?1, ?2, ?3, ?4, NULL)";
        c.prepare_cached(sql)?
            .execute(params![scope, key, newest, now_rfc3339()])?;
    }
    let seq = c.last_insert_rowid();
    let sql = "DELETE FROM state_revisions WHERE scope = ?1 AND key = ?2 AND revision <= ?3";
    c.prepare_cached(sql)?
        .execute(params![scope, key, newest - MAX_KEY_REVISIONS])?;
    // Seldom, which keeps its cost out of most writes.
    if seq % 64 <= 1 {
        prune_revisions(c, MAX_REVISION_BYTES)?;
    }
    Ok(())
}

/// Deletes the oldest kept values beyond the number of rows and bytes.
fn prune_revisions(c: &Connection, max_bytes: i64) -> QueryResult<()> {
    let sql = "DELETE FROM state_revisions WHERE seq <= coalesce((SELECT max(seq) FROM (
                   SELECT seq, sum(coalesce(octet_length(value), 0)) OVER newest AS bytes,
                          count(*) OVER newest AS rows
                   FROM state_revisions WINDOW newest AS (ORDER BY seq DESC))
               WHERE bytes > ?1 OR rows > ?2), 0)";
    c.prepare_cached(sql)?
        .execute(params![max_bytes, MAX_REVISIONS])?;
    Ok(())
}

/// Adds to what a scope holds, and refuses what exceeds its quota.
fn add_usage(c: &Connection, scope: &str, rows: i64, bytes: i64) -> QueryResult<()> {
    let sql = "INSERT INTO state_usage VALUES (?1, ?2, ?3)
               ON CONFLICT DO UPDATE SET rows = rows + ?2, bytes = bytes + ?3
               RETURNING rows, bytes";
    let (rows_now, bytes_now): (i64, i64) = c
        .prepare_cached(sql)?
        .query_row(params![scope, rows, bytes], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    if rows <= 0 && bytes <= 0 {
        if rows_now <= 0 {
            c.prepare_cached("DELETE FROM state_usage WHERE scope = ?1")?
                .execute([scope])?;
        }
        return Ok(());
    }
    let refuse = |limit: String| {
        Err(Error::QuotaExceeded {
            what: format!("state scope {scope:?}"),
            limit,
        }
        .into())
    };
    if rows > 0 && rows_now > MAX_SCOPE_ROWS {
        return refuse(format!("{MAX_SCOPE_ROWS} values"));
    }
    if bytes > 0 && bytes_now > MAX_SCOPE_BYTES {
        return refuse(format!("{MAX_SCOPE_BYTES} bytes"));
    }
    let sql = "SELECT count(*), sum(rows), sum(bytes) FROM state_usage";
    let (scopes, rows, bytes): (i64, i64, i64) = c
        .prepare_cached(sql)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let refuse = |limit: String| {
        Err(Error::QuotaExceeded {
            what: "state".to_owned(),
            limit,
        }
        .into())
    };
    if scopes > MAX_SCOPES {
        return refuse(format!("{MAX_SCOPES} scopes"));
    }
    if rows > MAX_STATE_ROWS {
        return refuse(format!("{MAX_STATE_ROWS} values"));
    }
    if bytes > MAX_STATE_BYTES {
        return refuse(format!("{MAX_STATE_BYTES} bytes"));
    }
    Ok(())
}

/// Reads a value, asks what to do with it, and does that.
pub(super) fn change(
    c: &Connection,
    scope: &str,
    key: &str,
    work: StateWork,
) -> QueryResult<StateOutcome> {
    let previous = get_value(c, scope, key)?;
    let size = |value: &str| i64::try_from(key.len() + value.len()).unwrap_or(i64::MAX);
    let op = match work(previous.clone())? {
        StateChange::Put(new) => {
            let (rows, bytes) = match &previous {
                Some(old) => (0, size(&new.value) - size(old)),
                None => (1, size(&new.value)),
            };
            add_usage(c, scope, rows, bytes)?;
            if let Some(old) = &previous {
                keep_revision(c, scope, key, old, Some(&new.value))?;
            }
            c.prepare_cached(
                "INSERT INTO state (scope, key, updated_at, head, value)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET updated_at = ?3, head = ?4, value = ?5",
            )?
            .execute(params![scope, key, now_rfc3339(), new.metadata, new.value])?;
            Some(EventOp::Put)
        }
        StateChange::Delete => match &previous {
            Some(old) => {
                add_usage(c, scope, -1, -size(old))?;
                keep_revision(c, scope, key, old, None)?;
                c.prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2")?
                    .execute([scope, key])?;
                Some(EventOp::Remove)
            }
            None => None,
        },
        StateChange::Keep => None,
    };
    let event = op.map(|op| record_event(c, op, EventKind::State(scope), key));
    Ok(StateOutcome {
        previous,
        event: event.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(c: &Connection, scope: &str, key: &str, value: String) -> QueryResult<StateOutcome> {
        let new = crate::store::StateValue {
            value,
            metadata: None,
        };
        change(c, scope, key, Box::new(|_| Ok(StateChange::Put(new))))
    }

    fn open() -> Connection {
        let mut c = Connection::open_in_memory().unwrap();
        super::super::schema::migrate_schema(&mut c, 0).unwrap();
        c
    }

    #[test]
    fn t46_a_scope_has_a_quota_of_values_and_bytes() {
        let c = open();
        put(&c, "skills", "first", "{}".to_owned()).unwrap();
        c.execute("UPDATE state_usage SET rows = ?1", [MAX_SCOPE_ROWS])
            .unwrap();
        let refused = put(&c, "skills", "second", "{}".to_owned());
        let Err(super::super::QueryError::Registry(Error::QuotaExceeded { what, .. })) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(what, "state scope \"skills\"");
        // What is there can still be changed and deleted, and other scopes are not concerned.
        put(&c, "skills", "first", "[]".to_owned()).unwrap();
        put(&c, "other", "first", "[]".to_owned()).unwrap();
        c.execute(
            "UPDATE state_usage SET rows = 1, bytes = ?1",
            [MAX_SCOPE_BYTES],
        )
        .unwrap();
        assert!(put(&c, "skills", "first", "[1]".to_owned()).is_err());
        put(&c, "skills", "first", "1".to_owned()).unwrap();
    }

    #[test]
    fn t47_earlier_values_are_bounded_for_each_key_and_in_bytes() {
        let c = open();
        let count = || -> i64 {
            let sql = "SELECT count(*) FROM state_revisions";
            c.query_row(sql, [], |row| row.get(0)).unwrap()
        };
        for n in 0..40 {
            put(&c, "skills", "one", format!("{{\"skill\":\"{n}\"}}")).unwrap();
        }
        assert_eq!(count(), MAX_KEY_REVISIONS);
        // The same content again is no revision, and other scopes have none.
        put(
            &c,
            "skills",
            "one",
            "{\"skill\":\"39\",\"registered_at\":\"later\"}".into(),
        )
        .unwrap();
        put(&c, "mine", "one", "1".into()).unwrap();
        put(&c, "mine", "one", "2".into()).unwrap();
        assert_eq!(count(), MAX_KEY_REVISIONS);
        prune_revisions(&c, 100).unwrap();
        assert_eq!(count(), 100 / 14);
        let kept = history(&c, "skills", "one").unwrap();
        assert_eq!(kept[0].revision, 40);
        assert!(kept[1].value.as_deref().unwrap().contains("38"));
    }
}
