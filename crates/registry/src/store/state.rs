//! Key-value state by scope: what workers register, and what the bus keeps.

use rusqlite::{OptionalExtension, params};
use serde_json::Value;

use super::{Store, events, now};
use crate::{error::Result, head::Head};

/// The metadata of one row.
#[derive(Debug, Clone)]
pub struct StateRow {
    /// The key within its scope.
    pub key: String,
    /// When it was last set, RFC 3339 in UTC.
    pub updated_at: String,
    /// What a listing shows of it, where it is a skill.
    pub head: Option<Head>,
}

impl Store {
    /// Sets a value, gives back the one that was there.
    pub fn state_set(
        &self,
        scope: &str,
        key: &str,
        value: &Value,
        head: Option<&Head>,
    ) -> Result<Option<Value>> {
        let (scope, key, value) = (scope.to_owned(), key.to_owned(), value.to_string());
        let head = head.map(|h| serde_json::json!(h).to_string());
        self.write(move |c| {
            let old: Option<String> = c
                .prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
                .query_row([&scope, &key], |row| row.get(0))
                .optional()?;
            c.prepare_cached(
                "INSERT INTO state (scope, key, updated_at, head, value)
                 VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET updated_at = ?3, head = ?4, value = ?5",
            )?
            .execute(params![scope, key, now(), head, value])?;
            events::record(c, "put", &kind(&scope), &key)?;
            Ok(old)
        })
        .map(parse)
    }

    /// Deletes a value, gives back the one that was there.
    pub fn state_delete(&self, scope: &str, key: &str) -> Result<Option<Value>> {
        let (scope, key) = (scope.to_owned(), key.to_owned());
        self.write(move |c| {
            let old: Option<String> = c
                .prepare_cached("DELETE FROM state WHERE scope = ?1 AND key = ?2 RETURNING value")?
                .query_row([&scope, &key], |row| row.get(0))
                .optional()?;
            if old.is_some() {
                events::record(c, "remove", &kind(&scope), &key)?;
            }
            Ok(old)
        })
        .map(parse)
    }

    /// One value.
    pub fn state_get(&self, scope: &str, key: &str) -> Result<Option<Value>> {
        self.state_text(scope, key).map(parse)
    }

    /// One value as the JSON text it is kept as.
    pub fn state_text(&self, scope: &str, key: &str) -> Result<Option<String>> {
        self.read(|c| {
            Ok(
                c.prepare_cached("SELECT value FROM state WHERE scope = ?1 AND key = ?2")?
                    .query_row([scope, key], |row| row.get(0))
                    .optional()?,
            )
        })
    }

    /// The metadata of every row of a scope, sorted by key; no value is read.
    pub fn state_rows(&self, scope: &str) -> Result<Vec<StateRow>> {
        self.state_query(
            "SELECT key, updated_at, head FROM state WHERE scope = ?1 ORDER BY key",
            &[scope],
        )
    }

    /// The metadata of one row.
    pub fn state_row(&self, scope: &str, key: &str) -> Result<Option<StateRow>> {
        let sql = "SELECT key, updated_at, head FROM state WHERE scope = ?1 AND key = ?2";
        Ok(self.state_query(sql, &[scope, key])?.pop())
    }

    fn state_query(&self, sql: &str, values: &[&str]) -> Result<Vec<StateRow>> {
        self.read(|c| {
            let mut statement = c.prepare_cached(sql)?;
            let rows = statement.query_map(rusqlite::params_from_iter(values), |row| {
                Ok((row.get(0)?, row.get(1)?, row.get::<_, Option<String>>(2)?))
            })?;
            rows.map(|row| {
                let (key, updated_at, head) = row?;
                Ok(StateRow {
                    key,
                    updated_at,
                    head: head.map(|h| self.parse_head(&h)).transpose()?,
                })
            })
            .collect()
        })
    }
}

fn kind(scope: &str) -> String {
    format!("state:{scope}")
}

fn parse(text: Option<String>) -> Option<Value> {
    // The store writes nothing but JSON here.
    text.and_then(|text| serde_json::from_str(&text).ok())
}
