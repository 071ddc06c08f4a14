//! Key-value state by scope: registrations of workers, and other state of the bus.
//!
//! Values are JSON texts that are stored unchanged; only their consumers interpret them.

use rusqlite::{Connection, OptionalExtension, params};

use super::{Store, events, now_rfc3339};
use crate::error::Result;

/// The metadata of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    /// The key within its scope.
    pub key: String,
    /// Its listing metadata, if known.
    pub metadata: Option<String>,
}

/// A value to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateValue {
    /// The value as JSON.
    pub value: String,
    /// Its listing metadata.
    pub metadata: Option<String>,
}

impl Store {
    /// Sets a value and returns the previous one.
    pub fn state_set(&self, scope: &str, key: &str, value: StateValue) -> Result<Option<String>> {
        self.state_update(scope, key, move |old| Ok((value, old)))
    }

    /// Computes a new value from the current one, atomically.
    pub fn state_update<T: Send + 'static>(
        &self,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(StateValue, T)> + Send + 'static,
    ) -> Result<T> {
        Ok(self.write_durable(update_job(scope, key, work))?.0)
    }

    /// The same, without waiting: `then` is called with the event number when the write is
    /// durable, on the writer's thread, in the order of the writes.
    pub fn state_update_then<T: Send + 'static>(
        &self,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(StateValue, T)> + Send + 'static,
        then: impl FnOnce(Result<(T, i64)>) + Send + 'static,
    ) -> Result<()> {
        self.writer()?.enqueue(update_job(scope, key, work), then)
    }

    /// Deletes a value; `then` is called with it on the writer's thread, in write order.
    pub fn state_delete_then(
        &self,
        scope: &str,
        key: &str,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        self.writer()?.enqueue(delete_job(scope, key), then)
    }

    /// Deletes a value and returns it.
    pub fn state_delete(&self, scope: &str, key: &str) -> Result<Option<String>> {
        self.write_durable(delete_job(scope, key))
    }

    /// Returns one value.
    pub fn state_get(&self, scope: &str, key: &str) -> Result<Option<String>> {
        self.with_reader(|c| {
            Ok(
                c.prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
                    .query_row([scope, key], |row| row.get(0))
                    .optional()?,
            )
        })
    }

    /// Returns the values of a scope after a key, sorted by key, within the limits; at least one,
    /// if there is one.
    pub fn state_page(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<(String, String)>> {
        self.with_reader(|c| {
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
        })
    }

    /// Returns the scopes that have a value.
    pub fn state_scopes(&self) -> Result<Vec<String>> {
        self.with_reader(|c| {
            let mut statement =
                c.prepare_cached("SELECT DISTINCT scope FROM state ORDER BY scope")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns the metadata of every row of a scope, sorted by key; no value is read.
    pub fn state_rows(&self, scope: &str) -> Result<Vec<StateRow>> {
        self.state_query(
            "SELECT key, head FROM state WHERE scope = ?1 ORDER BY key",
            &[scope],
        )
    }

    /// Returns the metadata of one row.
    pub fn state_row(&self, scope: &str, key: &str) -> Result<Option<StateRow>> {
        let sql = "SELECT key, head FROM state WHERE scope = ?1 AND key = ?2";
        Ok(self.state_query(sql, &[scope, key])?.pop())
    }

    fn state_query(&self, sql: &str, values: &[&str]) -> Result<Vec<StateRow>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached(sql)?;
            let rows = statement.query_map(rusqlite::params_from_iter(values), |row| {
                Ok(StateRow {
                    key: row.get(0)?,
                    metadata: row.get(1)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

fn update_job<T>(
    scope: &str,
    key: &str,
    work: impl FnOnce(Option<String>) -> Result<(StateValue, T)> + Send + 'static,
) -> impl FnOnce(&Connection) -> Result<(T, i64)> + Send + 'static {
    let (scope, key) = (scope.to_owned(), key.to_owned());
    move |c| {
        let old: Option<String> = c
            .prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
            .query_row([&scope, &key], |row| row.get(0))
            .optional()?;
        let (new, answer) = work(old)?;
        c.prepare_cached(
            "INSERT INTO state (scope, key, updated_at, head, value)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET updated_at = ?3, head = ?4, value = ?5",
        )?
        .execute(params![scope, key, now_rfc3339(), new.metadata, new.value])?;
        let seq = events::record_event(c, "put", &event_kind(&scope), &key)?;
        Ok((answer, seq))
    }
}

fn delete_job(
    scope: &str,
    key: &str,
) -> impl FnOnce(&Connection) -> Result<Option<String>> + Send + 'static {
    let (scope, key) = (scope.to_owned(), key.to_owned());
    move |c| {
        let old: Option<String> = c
            .prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2 RETURNING value")?
            .query_row([&scope, &key], |row| row.get(0))
            .optional()?;
        if old.is_some() {
            events::record_event(c, "remove", &event_kind(&scope), &key)?;
        }
        Ok(old)
    }
}

fn event_kind(scope: &str) -> String {
    format!("state:{scope}")
}
