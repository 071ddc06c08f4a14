//! Authentication of HTTP requests.
//!
//! A token is 256 random bits; the store holds its digest. The store is read at most once a
//! second, so a revoked token stops working within a second. Once a server has seen a token in
//! the store, it never accepts requests without one again.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use repertoire_core::Digest;
use repertoire_registry::store::{Account, Store, StoredToken, TokenAccess};

use crate::error::{Error, Result};

/// How long tokens read from the store are cached.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);

/// Which callers are allowed.
#[derive(Debug)]
pub enum Auth {
    /// Every caller that can reach the port.
    Open,
    /// Callers with a token of this store.
    Tokens(CachedTokens),
}

impl Auth {
    /// Requires a token of an account as soon as it has one. An address that others can reach needs
    /// one from the start.
    pub fn for_addresses(
        account: &Path,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<Self> {
        let mut addresses = addresses.into_iter();
        let reachable = addresses.find(|address| !address.ip().is_loopback());
        let store = match Account::open(account) {
            Ok(account) => account.store,
            // An account that cannot be written may still have tokens to read.
            Err(error) if error.code() == "io_error" => match Account::open_read_only(account) {
                Ok(account) => account.store,
                // Without an account no token was ever created.
                Err(_) if reachable.is_none() && Account::is_missing(account) => {
                    return Ok(Self::Open);
                }
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        let tokens = store.tokens()?;
        match reachable {
            Some(address) if tokens.is_empty() => Err(Error::TokenNeeded(address.ip())),
            reachable => Ok(Self::from_store(store, reachable.is_some())),
        }
    }

    /// Requires a token of a store. Unless `required` is set, every caller is allowed until the
    /// store has its first token.
    pub fn from_store(store: Arc<dyn Store>, required: bool) -> Self {
        Self::Tokens(CachedTokens {
            store,
            cache: Mutex::new(TokenCache {
                loaded_at: None,
                required,
                tokens: HashMap::new(),
            }),
        })
    }
}

/// The tokens of a store, cached for a moment.
#[derive(Debug)]
pub struct CachedTokens {
    store: Arc<dyn Store>,
    cache: Mutex<TokenCache>,
}

#[derive(Debug)]
struct TokenCache {
    loaded_at: Option<Instant>,
    required: bool,
    tokens: HashMap<Digest, StoredToken>,
}

/// A caller that is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuthenticatedCaller {
    /// The name of the token, if one was required.
    pub(crate) token: Option<String>,
    /// The access it grants.
    pub(crate) access: TokenAccess,
}

impl CachedTokens {
    /// Whether requests need a token now.
    pub fn is_token_required(&self) -> bool {
        let known = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        known.required || self.store.tokens().is_ok_and(|tokens| !tokens.is_empty())
    }
}

impl Auth {
    /// Returns the caller of a request, if it is allowed.
    pub(crate) fn authenticate_caller(&self, headers: &HeaderMap) -> Option<AuthenticatedCaller> {
        let anybody = AuthenticatedCaller {
            token: None,
            access: TokenAccess::Write,
        };
        let Self::Tokens(tokens) = self else {
            return Some(anybody);
        };
        let mut known = tokens.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if known
            .loaded_at
            .is_none_or(|asked| asked.elapsed() > CACHE_LIFETIME)
        {
            match tokens.store.tokens() {
                Ok(all) => {
                    known.required |= !all.is_empty();
                    known.tokens = all.into_iter().map(|t| (t.hash, t)).collect();
                    known.loaded_at = Some(Instant::now());
                }
                Err(error) => {
                    // Deny access if the tokens cannot be read.
                    tracing::error!(%error, "tokens could not be read");
                    return None;
                }
            }
        }
        if !known.required {
            return Some(anybody);
        }
        let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, secret) = given.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let token = known
            .tokens
            .get(&Digest::hash_bytes(secret.trim().as_bytes()))?;
        (!token.is_expired()).then(|| AuthenticatedCaller {
            token: Some(token.name.clone()),
            access: token.access,
        })
    }
}
