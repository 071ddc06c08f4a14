//! Bearer tokens of HTTP clients. Only hashes are stored.

use repertoire_core::Digest;
use serde::Serialize;

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
