//! Decides who sends a request: the user of this process, or the holder of a token.
//!
//! Every user of a machine can connect to a loopback port. So without a token only programs of the
//! server's own user are served ([`PeerOwner`]); everyone else, and everyone behind a proxy, needs a
//! token (T39). Over HTTP, tokens are required from everyone as soon as one exists. The hub goes on to
//! accept its own user's programs without one, because workers are written without tokens.
//!
//! A token is 256 random bits; the store holds its digest. The store is read at most once a second,
//! so a revoked token stops working within a second.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header};
use repertoire_app::Caller;
use repertoire_core::Digest;
use repertoire_registry::store::{Account, Store, StoredToken};

use crate::{
    error::{Error, Result},
    local_token,
    peer_owner::PeerOwner,
};

/// How long tokens read from the store are cached.
const CACHE_LIFETIME: Duration = Duration::from_secs(1);

/// The server that a request is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The HTTP server.
    Http,
    /// The hub.
    Hub,
}

/// Whether programs of the server's own user need a token too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnUser {
    /// They are recognised by the owner of their connection.
    Recognised,
    /// They need a token like everyone else.
    NeedsToken,
}

/// Which callers are allowed.
#[derive(Debug)]
pub enum Auth {
    /// Every caller that can reach the port, with all permissions.
    Open,
    /// The server's own user, and holders of a token.
    Checked(CallerCheck),
}

/// How callers are recognised.
#[derive(Debug)]
pub struct CallerCheck {
    /// The store with the tokens, if there is an account.
    store: Option<Arc<dyn Store>>,
    cache: Mutex<TokenCache>,
    own_user: OwnUser,
    /// The digest of the token in the user's own file, if there is one.
    local_token: Option<Digest>,
}

#[derive(Debug, Default)]
struct TokenCache {
    loaded_at: Option<Instant>,
    /// Whether the store has had a token since the server started.
    has_had_tokens: bool,
    tokens: HashMap<Digest, StoredToken>,
}

/// Why a caller is refused, and what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthRefusal {
    /// The server requires a token from everyone.
    TokenNeeded,
    /// The connection belongs to another user of this machine.
    OtherUser,
    /// The owner of the connection is not known.
    UnknownUser,
    /// A proxy forwarded the request, so its connection says nothing about its sender.
    Forwarded,
}

impl AuthRefusal {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::TokenNeeded => "send a token as `Authorization: Bearer …`",
            Self::OtherUser => {
                "without a token only the user who runs this server is served: send one as \
                 `Authorization: Bearer …`"
            }
            Self::UnknownUser => {
                "the user of this connection is not known: send a token as `Authorization: Bearer …`"
            }
            Self::Forwarded => {
                "forwarded requests need a token: send one as `Authorization: Bearer …`"
            }
        }
    }
}

impl Auth {
    /// Recognises callers by their connection and by the tokens of an account. An address that
    /// others can reach needs a token from the start.
    pub fn for_addresses(
        account: &Path,
        addresses: impl IntoIterator<Item = SocketAddr>,
        own_user: OwnUser,
    ) -> Result<Self> {
        let mut addresses = addresses.into_iter();
        let reachable = addresses.find(|address| !address.ip().is_loopback());
        let store = match Account::open(account) {
            Ok(account) => Some(account.store),
            // An account that cannot be written may still have tokens to read.
            Err(error) if error.code() == "io_error" => match Account::open_read_only(account) {
                Ok(account) => Some(account.store),
                // Without an account no token was ever created.
                Err(_) if Account::is_missing(account) => None,
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        let has_tokens = match &store {
            Some(store) => !store.tokens()?.is_empty(),
            None => false,
        };
        if let Some(address) = reachable
            && !has_tokens
        {
            return Err(Error::TokenNeeded(address.ip()));
        }
        let mut check = CallerCheck::new(store, own_user);
        if own_user == OwnUser::NeedsToken || !PeerOwner::is_known_here() {
            let token = local_token::create(account)?;
            check.local_token = Some(Digest::hash_bytes(token.as_bytes()));
        }
        Ok(Self::Checked(check))
    }

    /// Recognises callers by their connection and by the tokens of a store.
    pub fn from_store(store: Arc<dyn Store>, own_user: OwnUser) -> Self {
        Self::Checked(CallerCheck::new(Some(store), own_user))
    }

    /// Whether programs of the server's own user need a token over HTTP now.
    pub fn is_token_required(&self) -> bool {
        match self {
            Self::Open => false,
            Self::Checked(check) => check.is_token_required(Surface::Http).unwrap_or(true),
        }
    }

    /// Returns the caller of a request, if it is allowed.
    pub(crate) fn authenticate(
        &self,
        surface: Surface,
        owner: PeerOwner,
        headers: &HeaderMap,
    ) -> Result<Caller, AuthRefusal> {
        match self {
            Self::Open => Ok(Caller::anonymous()),
            Self::Checked(check) => check.authenticate(surface, owner, headers),
        }
    }
}

impl CallerCheck {
    fn new(store: Option<Arc<dyn Store>>, own_user: OwnUser) -> Self {
        Self {
            store,
            cache: Mutex::default(),
            own_user,
            local_token: None,
        }
    }

    fn authenticate(
        &self,
        surface: Surface,
        owner: PeerOwner,
        headers: &HeaderMap,
    ) -> Result<Caller, AuthRefusal> {
        if let Some(secret) = bearer_token(headers) {
            let digest = Digest::hash_bytes(secret.as_bytes());
            if self.local_token == Some(digest) {
                return Ok(Caller::local_user());
            }
            let cache = self.cached_tokens().ok_or(AuthRefusal::TokenNeeded)?;
            let token = cache.tokens.get(&digest);
            if let Some(token) = token.filter(|token| !token.is_expired()) {
                return Ok(Caller::from_token(token));
            }
        }
        // Access is denied if the tokens cannot be read.
        if self.is_token_required(surface).unwrap_or(true) {
            return Err(AuthRefusal::TokenNeeded);
        }
        match owner {
            PeerOwner::SameUser if is_forwarded(headers) => Err(AuthRefusal::Forwarded),
            PeerOwner::SameUser => Ok(Caller::local_user()),
            PeerOwner::OtherUser(_) => Err(AuthRefusal::OtherUser),
            PeerOwner::Unknown => Err(AuthRefusal::UnknownUser),
        }
    }

    /// Whether every caller needs a token; `None` if the tokens cannot be read.
    fn is_token_required(&self, surface: Surface) -> Option<bool> {
        if self.own_user == OwnUser::NeedsToken {
            return Some(true);
        }
        match surface {
            Surface::Hub => Some(false),
            Surface::Http => Some(self.cached_tokens()?.has_had_tokens),
        }
    }

    /// Returns the tokens, read at most once a second.
    fn cached_tokens(&self) -> Option<MutexGuard<'_, TokenCache>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let is_stale = |at: Instant| at.elapsed() > CACHE_LIFETIME;
        if let Some(store) = &self.store
            && cache.loaded_at.is_none_or(is_stale)
        {
            match store.tokens() {
                Ok(all) => {
                    cache.has_had_tokens |= !all.is_empty();
                    cache.tokens = all.into_iter().map(|token| (token.hash, token)).collect();
                    cache.loaded_at = Some(Instant::now());
                }
                Err(error) => {
                    tracing::error!(%error, "tokens could not be read");
                    return None;
                }
            }
        }
        Some(cache)
    }
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = given.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(secret.trim())
}

/// Whether a proxy passed a request on. Its connection is then the proxy's, which may run as the same
/// user and serve anyone.
fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        match name.as_bytes().first() {
            Some(b'f') if name == "forwarded" => true,
            Some(b'v') => name == "via",
            Some(b'c') if name.starts_with("cf-connecting") || name == "cdn-loop" => true,
            Some(b'x') => {
                let prefixes = [
                    "x-forwarded",
                    "x-original-",
                    "x-envoy-",
                    "x-real-ip",
                    "x-azure-",
                    "x-appengine-",
                ];
                prefixes.iter().any(|prefix| name.starts_with(prefix)) || is_client_address(name)
            }
            _ => is_client_address(name),
        }
    })
}

/// Whether a header names the address of the client in front of a proxy.
fn is_client_address(name: &str) -> bool {
    ["client-ip", "clientip", "user-ip"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn t39_only_the_own_user_is_served_without_a_token() {
        let auth = Auth::Checked(CallerCheck::new(None, OwnUser::Recognised));
        let none = HeaderMap::new();
        for surface in [Surface::Http, Surface::Hub] {
            let ask = |owner| auth.authenticate(surface, owner, &none);
            assert_eq!(ask(PeerOwner::SameUser), Ok(Caller::local_user()));
            assert_eq!(ask(PeerOwner::OtherUser(0)), Err(AuthRefusal::OtherUser));
            assert_eq!(ask(PeerOwner::Unknown), Err(AuthRefusal::UnknownUser));
        }
    }

    #[test]
    fn t39_a_forwarded_request_is_never_local() {
        let auth = Auth::Checked(CallerCheck::new(None, OwnUser::Recognised));
        for name in ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"] {
            let mut headers = HeaderMap::new();
            let name: header::HeaderName = name.parse().unwrap();
            headers.insert(name, "for=10.0.0.1".parse().unwrap());
            let asked = auth.authenticate(Surface::Http, PeerOwner::SameUser, &headers);
            assert_eq!(asked, Err(AuthRefusal::Forwarded));
        }
    }
}
