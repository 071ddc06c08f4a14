//! Example messages of skills: derived data, written by a model from a skill's text.
//!
//! They are kept by the digest of that text, so that a changed skill has none, and a skill that moves
//! keeps them. They never become part of a skill.

use repertoire_core::Digest;
use rusqlite::{OptionalExtension, params};

use super::LocalStore;
use crate::{
    error::Result,
    store::sqlite::{QueryResult, now_rfc3339},
};

/// The number of changes of the example messages, in the table of settings.
const CHANGES: &str = "example_message_changes";

/// The example messages of one skill.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ExampleMessages {
    /// The skill, when they were written.
    pub skill: String,
    /// The model that wrote them.
    pub model: String,
    /// What people might say.
    pub messages: Vec<String>,
    /// When they were written.
    pub written_at: String,
}

impl LocalStore {
    /// Whether there are any example messages.
    pub fn has_example_messages(&self) -> Result<bool> {
        self.with_reader(|c| {
            let sql = "SELECT EXISTS (SELECT 1 FROM example_messages WHERE is_ready)";
            Ok(c.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
        })
    }

    /// Returns a number that changes with the example messages.
    pub fn example_message_changes(&self) -> Result<i64> {
        self.with_reader(changes)
    }

    /// Returns the example messages of each digest of a text.
    pub fn example_messages(&self, digests: &[Digest]) -> Result<Vec<Option<ExampleMessages>>> {
        self.select_examples(digests, "AND is_ready")
    }

    /// The same, also of collections that are not complete, so that they can be completed.
    pub fn written_examples(&self, digests: &[Digest]) -> Result<Vec<Option<ExampleMessages>>> {
        self.select_examples(digests, "")
    }

    fn select_examples(
        &self,
        digests: &[Digest],
        condition: &'static str,
    ) -> Result<Vec<Option<ExampleMessages>>> {
        self.with_reader(|c| {
            let sql = format!(
                "SELECT skill, model, messages, written_at FROM example_messages
                     WHERE digest = ?1 {condition}"
            );
            let mut statement = c.prepare_cached(&sql)?;
            let rows = digests.iter().map(|digest| {
                let row = statement.query_row([digest.as_bytes()], read_row);
                Ok(row.optional()?)
            });
            rows.collect()
        })
    }

    /// Returns all example messages that are used, by skill.
    pub fn list_example_messages(&self) -> Result<Vec<ExampleMessages>> {
        self.with_reader(|c| {
            let sql = "SELECT skill, model, messages, written_at FROM example_messages
                           WHERE is_ready ORDER BY skill, written_at";
            let mut statement = c.prepare_cached(sql)?;
            let rows = statement.query_map([], read_row)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Stores the example messages of skills, all or none. They are used from now on.
    pub fn put_example_messages(&self, all: Vec<(Digest, ExampleMessages)>) -> Result<()> {
        self.write_durable(move |c| {
            insert_examples(c, &all, true)?;
            record_change(c)
        })
    }

    /// Keeps the example messages of one skill until those of its collection are complete.
    pub fn put_unfinished_examples(&self, digest: Digest, one: ExampleMessages) -> Result<()> {
        self.write_durable(move |c| insert_examples(c, &[(digest, one)], false))
    }

    /// Removes the example messages of one skill, or of all; returns of how many.
    pub fn remove_example_messages(&self, skill: Option<&str>) -> Result<usize> {
        let skill = skill.map(str::to_owned);
        self.write_durable(move |c| {
            let removed = match &skill {
                Some(skill) => {
                    c.execute("DELETE FROM example_messages WHERE skill = ?1", [skill])?
                }
                None => c.execute("DELETE FROM example_messages", [])?,
            };
            record_change(c)?;
            Ok(removed)
        })
    }
}

fn insert_examples(
    c: &rusqlite::Connection,
    all: &[(Digest, ExampleMessages)],
    is_ready: bool,
) -> QueryResult<()> {
    let sql = "INSERT OR REPLACE INTO example_messages VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut statement = c.prepare_cached(sql)?;
    for (digest, one) in all {
        let messages = serde_json::to_string(&one.messages).unwrap_or_default();
        let at = if one.written_at.is_empty() {
            now_rfc3339()
        } else {
            one.written_at.clone()
        };
        statement.execute(params![
            digest.as_bytes(),
            one.skill,
            one.model,
            messages,
            at,
            is_ready
        ])?;
    }
    Ok(())
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<ExampleMessages> {
    let messages: String = row.get(2)?;
    Ok(ExampleMessages {
        skill: row.get(0)?,
        model: row.get(1)?,
        messages: repertoire_core::json::from_str(&messages).unwrap_or_default(),
        written_at: row.get(3)?,
    })
}

fn changes(c: &rusqlite::Connection) -> QueryResult<i64> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?1";
    let found = c
        .prepare_cached(sql)?
        .query_row([CHANGES], |row| row.get(0));
    Ok(found.optional()?.unwrap_or(0))
}

fn record_change(c: &rusqlite::Connection) -> QueryResult<()> {
    let next = changes(c)? + 1;
    c.execute(
        "INSERT OR REPLACE INTO meta VALUES (?1, ?2)",
        params![CHANGES, next.to_string()],
    )?;
    Ok(())
}
