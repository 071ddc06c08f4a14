//! Who may ask.
//!
//! A token is 256 random bits; its digest is looked up among those of the store. The store is
//! asked at most once a second, so a token that is revoked is worthless within a second. A server
//! that has once known a token never goes back to answering everybody.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use repertoire_core::Digest;
use repertoire_registry::store::{Access, Store, Token};

/// How long what the store said is believed.
const FRESH: Duration = Duration::from_secs(1);

/// Who may ask.
#[derive(Debug)]
pub enum Auth {
    /// Everybody who can reach the port.
    Open,
    /// Whoever has a token of this store.
    Tokens(Tokens),
}

impl Auth {
    /// Asks for the tokens of a store; everybody may ask as long as it never had one, unless
    /// they are required from the start.
    pub fn tokens(store: Arc<Store>, required: bool) -> Self {
        Self::Tokens(Tokens {
            store,
            known: Mutex::new(Known {
                asked: None,
                required,
                tokens: HashMap::new(),
            }),
        })
    }
}

/// The tokens of a store, as of a moment ago.
#[derive(Debug)]
pub struct Tokens {
    store: Arc<Store>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    asked: Option<Instant>,
    required: bool,
    tokens: HashMap<Digest, Token>,
}

/// Somebody who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the token, if one was needed.
    pub(crate) token: Option<String>,
    /// What it allows.
    pub(crate) access: Access,
}

impl Tokens {
    /// Whether a token is needed by now.
    pub fn are_required(&self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.required || self.store.tokens().is_ok_and(|tokens| !tokens.is_empty())
    }
}

impl Auth {
    /// Who sends this, if it is somebody who may ask.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let anybody = Caller {
            token: None,
            access: Access::Write,
        };
        let Self::Tokens(tokens) = self else {
            return Some(anybody);
        };
        let mut known = tokens.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.asked.is_none_or(|asked| asked.elapsed() > FRESH) {
            match tokens.store.tokens() {
                Ok(all) => {
                    known.required |= !all.is_empty();
                    known.tokens = all.into_iter().map(|t| (t.hash, t)).collect();
                    known.asked = Some(Instant::now());
                }
                Err(error) => {
                    // What cannot be looked up grants nothing.
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
        let token = known.tokens.get(&Digest::of(secret.trim().as_bytes()))?;
        (!token.is_expired()).then(|| Caller {
            token: Some(token.name.clone()),
            access: token.access,
        })
    }
}
