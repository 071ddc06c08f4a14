//! Other servers whose skills are read: their addresses and their latest listings.

use rusqlite::params;
use serde_json::Value;

use super::{
    LocalStore,
    events::{EventKind, EventOp, record_event},
    now_rfc3339,
};
use crate::error::Result;

/// A stored server.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRemote {
    /// The label the user gave it.
    pub label: String,
    /// How to reach it.
    pub target: Value,
    /// When it was added, RFC 3339 in UTC.
    pub added_at: String,
    /// When its listing was last fetched.
    pub listed_at: Option<String>,
    /// Its latest listing, entry by entry as the server sent them.
    pub listing: Option<Value>,
}

impl LocalStore {
    /// Adds a server, or changes how it is reached; its stored listing is deleted.
    pub fn put_remote(&self, label: &str, target: &Value) -> Result<()> {
        let (label, target) = (label.to_owned(), target.to_string());
        self.write_durable(move |c| {
            c.execute(
                "INSERT INTO remotes (label, target, added_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT DO UPDATE SET target = ?2, listing = NULL, listed_at = NULL",
                params![label, target, now_rfc3339()],
            )?;
            record_event(c, EventOp::Put, EventKind::Remote, &label)?;
            Ok(())
        })
    }

    /// Stores the listing of a server; returns whether the server is still configured.
    pub fn put_listing(&self, label: &str, listing: &Value) -> Result<bool> {
        let (label, listing) = (label.to_owned(), listing.to_string());
        self.write_durable(move |c| {
            // An unchanged listing updates only the date and causes no event.
            let same = c.execute(
                "UPDATE remotes SET listed_at = ?3 WHERE label = ?1 AND listing = ?2",
                params![label, listing, now_rfc3339()],
            )?;
            if same > 0 {
                return Ok(true);
            }
            let changed = c.execute(
                "UPDATE remotes SET listing = ?2, listed_at = ?3 WHERE label = ?1",
                params![label, listing, now_rfc3339()],
            )?;
            if changed > 0 {
                record_event(c, EventOp::Put, EventKind::Remote, &label)?;
            }
            Ok(changed > 0)
        })
    }

    /// Removes a server; returns whether there was one.
    pub fn remove_remote(&self, label: &str) -> Result<bool> {
        let label = label.to_owned();
        self.write_durable(move |c| {
            let removed = c.execute("DELETE FROM remotes WHERE label = ?1", [&label])? > 0;
            if removed {
                // The approvals must not apply to another server with the same label.
                c.execute(
                    "DELETE FROM approvals WHERE kind = 'remote-skill'
                     AND substr(subject, 1, length(?1) + 1) = ?1 || ' '",
                    [&label],
                )?;
                record_event(c, EventOp::Remove, EventKind::Remote, &label)?;
            }
            Ok(removed)
        })
    }

    /// Returns how every server is reached, sorted by label; no listing is read.
    pub fn remote_targets(&self) -> Result<Vec<(String, Value)>> {
        self.with_reader(|c| {
            let sql = "SELECT label, target FROM remotes ORDER BY label";
            let mut statement = c.prepare_cached(sql)?;
            let rows = statement.query_map([], |row| {
                let target: String = row.get(1)?;
                Ok((
                    row.get(0)?,
                    repertoire_core::json::from_str(&target).unwrap_or(Value::Null),
                ))
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns every server, sorted by label.
    pub fn remotes(&self) -> Result<Vec<StoredRemote>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached(
                "SELECT label, target, added_at, listed_at, listing FROM remotes ORDER BY label",
            )?;
            let rows = statement.query_map([], |row| {
                let parse =
                    |text: String| repertoire_core::json::from_str(&text).unwrap_or(Value::Null);
                Ok(StoredRemote {
                    label: row.get(0)?,
                    target: parse(row.get(1)?),
                    added_at: row.get(2)?,
                    listed_at: row.get(3)?,
                    listing: row.get::<_, Option<String>>(4)?.map(parse),
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}
