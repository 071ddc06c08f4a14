//! Creates access tokens.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use repertoire_core::{
    Digest,
    permission::{IdPrefix, PermissionSet},
};
use repertoire_registry::store::{Store, StoredToken};
use uuid::Uuid;

use crate::error::{Error, Result};

/// What a new token allows.
#[derive(Debug, Clone, Default)]
pub struct TokenGrant {
    /// What its holder may do.
    pub permissions: PermissionSet,
    /// The only skills it is for; all if empty.
    pub prefixes: Vec<IdPrefix>,
    /// The only tools it may call; all if empty.
    pub tools: Vec<String>,
}

/// Creates a token and returns it with its secret, which is not stored and cannot be shown again.
pub fn create_token(
    store: &dyn Store,
    name: &str,
    grant: TokenGrant,
    expires: Option<Duration>,
) -> Result<(StoredToken, String)> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
        return Err(Error::InvalidTokenName);
    }
    let is_tool = |name: &String| {
        !name.is_empty() && name.len() <= 128 && !name.chars().any(char::is_whitespace)
    };
    if grant.permissions.is_empty() || !grant.tools.iter().all(is_tool) {
        return Err(Error::InvalidTokenGrant);
    }
    let random = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    let secret = format!("rpt_{}", URL_SAFE_NO_PAD.encode(random.concat()));
    let token = StoredToken {
        name: name.to_owned(),
        hash: Digest::hash_bytes(secret.as_bytes()),
        permissions: grant.permissions,
        prefixes: grant.prefixes,
        tools: grant.tools,
        lost_run: false,
        created_at: format!("{:.3}", Timestamp::now()),
        expires_at: expires.map(expiry_time).transpose()?,
    };
    store.add_token(&token)?;
    Ok((token, secret))
}

fn expiry_time(after: Duration) -> Result<String> {
    let too_late = |_| {
        repertoire_registry::Error::Invalid(repertoire_core::Error::Field {
            field: "expires".to_owned(),
            rule: "too far in the future".to_owned(),
        })
    };
    let after = SignedDuration::try_from(after).map_err(too_late)?;
    let at = Timestamp::now().checked_add(after).map_err(too_late)?;
    Ok(format!("{at:.3}"))
}
