//! Creates access tokens.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use repertoire_registry::store::{Store, StoredToken, TokenAccess};
use uuid::Uuid;

use crate::error::{Error, Result};

/// Creates a token and returns it with its secret, which is not stored and cannot be shown again.
pub fn create_token(
    store: &Store,
    name: &str,
    access: TokenAccess,
    expires: Option<Duration>,
) -> Result<(StoredToken, String)> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
        return Err(Error::InvalidTokenName);
    }
    let random = [Uuid::new_v4(), Uuid::new_v4()].map(Uuid::into_bytes);
    let secret = format!("rpt_{}", URL_SAFE_NO_PAD.encode(random.concat()));
    let token = store.add_token(name, &secret, access, expires)?;
    Ok((token, secret))
}
