//! Bearer tokens. Only hashes are stored.

use repertoire_core::{
    Digest,
    permission::{IdPrefix, PermissionSet},
};
use serde::Serialize;

/// A stored token: everything except the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredToken {
    /// The name the user gave it.
    pub name: String,
    /// The digest of the secret.
    #[serde(skip)]
    pub hash: Digest,
    /// What it allows.
    pub permissions: PermissionSet,
    /// The only skills it is for; all if empty.
    pub prefixes: Vec<IdPrefix>,
    /// The only tools it may call; all if empty.
    pub tools: Vec<String>,
    /// Whether it was made before running became a permission of its own, which it then lacks.
    pub lost_run: bool,
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
