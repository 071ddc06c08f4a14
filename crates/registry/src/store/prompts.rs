//! Prompts in the store.

use repertoire_core::{Prompt, PromptName};
use rusqlite::{OptionalExtension, params};

use super::{Store, events, now};
use crate::error::{Error, Result};

/// A prompt as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPrompt {
    /// The definition.
    pub prompt: Prompt,
    /// The text of a static prompt.
    pub body: Option<String>,
}

impl Store {
    /// Stores a prompt in place of any of its name.
    pub fn put_prompt(&self, prompt: &Prompt, body: Option<&str>) -> Result<()> {
        prompt.check()?;
        let name = prompt.name.clone();
        let definition = serde_json::json!(prompt).to_string();
        let body = body.map(str::to_owned);
        self.write(move |c| {
            c.execute(
                "INSERT INTO prompts VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT DO UPDATE SET definition = ?2, body = ?3, registered_at = ?4",
                params![name.as_str(), definition, body, now()],
            )?;
            events::record(c, "put", "prompt", name.as_str())
        })
    }

    /// Removes a prompt.
    pub fn remove_prompt(&self, name: &PromptName) -> Result<bool> {
        let name = name.clone();
        self.write(move |c| {
            let removed = c.execute("DELETE FROM prompts WHERE name = ?1", [name.as_str()])? > 0;
            if removed {
                events::record(c, "remove", "prompt", name.as_str())?;
            }
            Ok(removed)
        })
    }

    /// Every prompt, sorted by name.
    pub fn prompts(&self) -> Result<Vec<StoredPrompt>> {
        let names: Vec<String> = self.read(|c| {
            let mut statement = c.prepare_cached("SELECT name FROM prompts ORDER BY name")?;
            let rows = statement.query_map([], |row| row.get(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })?;
        names
            .iter()
            .filter_map(|name| self.prompt(name).transpose())
            .collect()
    }

    /// One prompt.
    pub fn prompt(&self, name: &str) -> Result<Option<StoredPrompt>> {
        self.read(|c| {
            let row: Option<(String, Option<String>)> = c
                .prepare_cached("SELECT definition, body FROM prompts WHERE name = ?1")?
                .query_row([name], |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()?;
            row.map(|(definition, body)| {
                let prompt = serde_json::from_str(&definition).map_err(|error| Error::Corrupt {
                    path: self.path.clone(),
                    reason: format!("unreadable prompt {name:?}: {error}"),
                })?;
                Ok(StoredPrompt { prompt, body })
            })
            .transpose()
        })
    }
}
