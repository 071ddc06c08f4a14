//! Bearer tokens: who may ask over HTTP. Only hashes are kept.

use repertoire_core::Digest;
use rusqlite::params;
use serde::Serialize;

use super::{Store, now};
use crate::error::{Error, Result};

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// To list and read.
    Read,
    /// To change as well.
    Write,
}

impl Access {
    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A token as it is kept: everything but the token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Token {
    /// The name the user gave it.
    pub name: String,
    /// The digest of the secret.
    #[serde(skip)]
    pub hash: Digest,
    /// What it allows.
    pub access: Access,
    /// When it was made, RFC 3339 in UTC.
    pub created_at: String,
    /// When it stops to count, RFC 3339 in UTC.
    pub expires_at: Option<String>,
}

impl Token {
    /// Whether it no longer counts.
    pub fn is_expired(&self) -> bool {
        self.expires_at.as_ref().is_some_and(|at| {
            // What cannot be read as a time grants nothing.
            at.parse::<jiff::Timestamp>()
                .map_or(true, |at| at <= jiff::Timestamp::now())
        })
    }
}

impl Store {
    /// Keeps the hash of a secret under a name that is not taken.
    pub fn add_token(
        &self,
        name: &str,
        secret: &str,
        access: Access,
        expires_in: Option<std::time::Duration>,
    ) -> Result<Token> {
        let expires_at = match expires_in {
            None => None,
            Some(time) => {
                let too_late = |_| repertoire_core::Error::Field {
                    field: "expires".to_owned(),
                    rule: "too far in the future".to_owned(),
                };
                let at = jiff::SignedDuration::try_from(time).map_err(too_late)?;
                let at = jiff::Timestamp::now().checked_add(at).map_err(too_late)?;
                Some(format!("{at:.3}"))
            }
        };
        let token = Token {
            name: name.to_owned(),
            hash: Digest::of(secret.as_bytes()),
            access,
            created_at: now(),
            expires_at,
        };
        let row = token.clone();
        let added = self.write(move |c| {
            // A name is free again once its token counts no more.
            c.execute(
                "DELETE FROM tokens WHERE name = ?1 AND expires_at <= ?2",
                params![row.name, now()],
            )?;
            Ok(c.execute(
                "INSERT OR IGNORE INTO tokens VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    row.name,
                    row.hash.as_bytes(),
                    row.access.as_str(),
                    row.created_at,
                    row.expires_at
                ],
            )?)
        })?;
        if added == 0 {
            return Err(Error::Conflict(format!(
                "a token named {name:?} is already there: revoke it or choose another name"
            )));
        }
        Ok(token)
    }

    /// Every token, sorted by name.
    pub fn tokens(&self) -> Result<Vec<Token>> {
        self.read(|c| {
            let mut statement = c.prepare_cached(
                "SELECT name, hash, access, created_at, expires_at FROM tokens ORDER BY name",
            )?;
            let rows = statement.query_map([], |row| {
                let hash: [u8; 32] = row.get(1)?;
                let access: String = row.get(2)?;
                Ok(Token {
                    name: row.get(0)?,
                    hash: Digest::from_bytes(hash),
                    // Whatever is not clearly the right to write is not.
                    access: match access.as_str() {
                        "write" => Access::Write,
                        _ => Access::Read,
                    },
                    created_at: row.get(3)?,
                    expires_at: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Makes a token worthless; says whether there was one.
    pub fn revoke_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.write(move |c| Ok(c.execute("DELETE FROM tokens WHERE name = ?1", [name])? > 0))
    }
}
