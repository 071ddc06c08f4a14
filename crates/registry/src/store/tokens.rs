//! Bearer tokens of HTTP clients. Only hashes are stored.

use repertoire_core::Digest;
use rusqlite::params;
use serde::Serialize;

use super::{Store, now_rfc3339};
use crate::error::{Error, Result};

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenAccess {
    /// List and read.
    Read,
    /// List, read and change.
    Write,
}

impl TokenAccess {
    /// Returns the name shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// A stored token: everything except the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredToken {
    /// The name the user gave it.
    pub name: String,
    /// The digest of the secret.
    #[serde(skip)]
    pub hash: Digest,
    /// What it allows.
    pub access: TokenAccess,
    /// When it was made, RFC 3339 in UTC.
    pub created_at: String,
    /// When it expires, RFC 3339 in UTC.
    pub expires_at: Option<String>,
}

impl StoredToken {
    /// Whether it has expired.
    pub fn is_expired(&self) -> bool {
        self.expires_at.as_ref().is_some_and(|at| {
            // A time that cannot be parsed counts as expired.
            at.parse::<jiff::Timestamp>()
                .map_or(true, |at| at <= jiff::Timestamp::now())
        })
    }
}

impl Store {
    /// Stores the hash of a secret under an unused name.
    pub fn add_token(
        &self,
        name: &str,
        secret: &str,
        access: TokenAccess,
        expires_in: Option<std::time::Duration>,
    ) -> Result<StoredToken> {
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
        let token = StoredToken {
            name: name.to_owned(),
            hash: Digest::hash_bytes(secret.as_bytes()),
            access,
            created_at: now_rfc3339(),
            expires_at,
        };
        let row = token.clone();
        let added = self.write_durable(move |c| {
            // The name of an expired token can be reused.
            c.execute(
                "DELETE FROM tokens WHERE name = ?1 AND expires_at <= ?2",
                params![row.name, now_rfc3339()],
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
                "a token named {name:?} already exists: revoke it or choose another name"
            )));
        }
        Ok(token)
    }

    /// Every token, sorted by name.
    pub fn tokens(&self) -> Result<Vec<StoredToken>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached(
                "SELECT name, hash, access, created_at, expires_at FROM tokens ORDER BY name",
            )?;
            let rows = statement.query_map([], |row| {
                let hash: [u8; 32] = row.get(1)?;
                let access: String = row.get(2)?;
                Ok(StoredToken {
                    name: row.get(0)?,
                    hash: Digest::from_bytes(hash),
                    // Any value other than `write` grants read access only.
                    access: match access.as_str() {
                        "write" => TokenAccess::Write,
                        _ => TokenAccess::Read,
                    },
                    created_at: row.get(3)?,
                    expires_at: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Deletes a token; returns whether there was one.
    pub fn revoke_token(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.write_durable(
            move |c| Ok(c.execute("DELETE FROM tokens WHERE name = ?1", [name])? > 0),
        )
    }
}
