//! Which skills each client chose for its messages.

use std::collections::HashMap;

use rusqlite::params;

use super::LocalStore;
use crate::{
    error::Result,
    store::sqlite::maintenance::{delete_old_uses, oldest_use_day, today},
};

/// How many uses of one client are kept; older ones are deleted.
const MAX_USES_PER_OWNER: u32 = 500;
/// How many uses are kept in all.
const MAX_USES: u32 = 20_000;
/// The most bytes of a message that are kept.
const MAX_MESSAGE_BYTES: usize = 2_000;

/// A skill that a client chose, to be stored.
#[derive(Debug, Clone)]
pub struct NewSkillUse {
    /// The client: the id of a token, or the user of the machine.
    pub owner: String,
    /// The skill.
    pub skill: String,
    /// The model of the embedding.
    pub model: String,
    /// The embedding of the message.
    pub vector: Vec<u8>,
    /// The message, if its text may be kept.
    pub message: Option<String>,
}

/// A stored use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSkillUse {
    /// The skill.
    pub skill: String,
    /// The embedding of the message.
    pub vector: Vec<u8>,
    /// The message, if its text was kept.
    pub message: Option<String>,
    /// The day, counted since 1970.
    pub used_day: i64,
}

impl LocalStore {
    /// Returns the uses of one client with vectors of one model, newest first.
    pub fn skill_uses(&self, owner: &str, model: &str) -> Result<Vec<StoredSkillUse>> {
        self.with_reader(|c| {
            let sql = "SELECT skill, vector, message, used_day FROM skill_uses
                           WHERE owner = ?1 AND model = ?2 AND used_day >= ?4
                           ORDER BY seq DESC LIMIT ?3";
            let mut statement = c.prepare_cached(sql)?;
            let oldest = oldest_use_day();
            let values = params![owner, model, MAX_USES_PER_OWNER, oldest];
            let rows = statement.query_map(values, |row| {
                Ok(StoredSkillUse {
                    skill: row.get(0)?,
                    vector: row.get(1)?,
                    message: row.get(2)?,
                    used_day: row.get(3)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// How often one client chose each skill.
    pub fn use_counts(&self, owner: &str) -> Result<HashMap<String, u64>> {
        self.with_reader(|c| {
            let sql = "SELECT skill, count(*) FROM skill_uses WHERE owner = ?1
                           AND used_day >= ?2 GROUP BY skill";
            let mut statement = c.prepare_cached(sql)?;
            let rows = statement.query_map(params![owner, oldest_use_day()], |row| {
                let count: i64 = row.get(1)?;
                Ok((row.get(0)?, u64::try_from(count).unwrap_or(0)))
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Stores a use, and deletes the oldest ones beyond the limits.
    pub fn put_skill_use(&self, new: NewSkillUse) -> Result<()> {
        self.write_durable(move |c| {
            let message = new.message.as_deref().map(|text| {
                let mut end = text.len().min(MAX_MESSAGE_BYTES);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                &text[..end]
            });
            c.prepare_cached(
                "INSERT INTO skill_uses (owner, skill, model, vector, message, used_day)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                new.owner,
                new.skill,
                new.model,
                new.vector,
                message,
                today()
            ])?;
            delete_old_uses(c)?;
            c.prepare_cached(
                "DELETE FROM skill_uses WHERE owner = ?1 AND seq <= (SELECT seq FROM skill_uses
                     WHERE owner = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
            )?
            .execute(params![new.owner, MAX_USES_PER_OWNER])?;
            c.prepare_cached(
                "DELETE FROM skill_uses WHERE seq <= (SELECT seq FROM skill_uses
                     ORDER BY seq DESC LIMIT 1 OFFSET ?1)",
            )?
            .execute([MAX_USES])?;
            Ok(())
        })
    }

    /// Deletes the uses of one client, or of all; returns how many.
    pub fn forget_skill_uses(&self, owner: Option<&str>) -> Result<usize> {
        let owner = owner.map(str::to_owned);
        self.write_durable(move |c| {
            Ok(match &owner {
                Some(owner) => c.execute("DELETE FROM skill_uses WHERE owner = ?1", [owner])?,
                None => c.execute("DELETE FROM skill_uses", [])?,
            })
        })
    }
}
