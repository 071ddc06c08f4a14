//! Errors of this crate, and the JSON-RPC errors that peers receive for them.
//!
//! The stable code of an error decides its JSON-RPC code. Internal errors are reported to peers
//! by URI only; paths, SQL and causes stay in the log.

use std::sync::Arc;

use repertoire_registry as registry;
use rmcp::{ErrorData, model::ErrorCode};
use serde_json::json;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The registry could not be opened.
    #[error(transparent)]
    Open(Arc<registry::Error>),
    /// A skill, a path or a URI broke a rule.
    #[error(transparent)]
    Invalid(#[from] repertoire_core::Error),
    /// An address to listen on cannot be used.
    #[error("{address} {reason}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// Why it cannot be used.
        reason: ListenProblem,
    },
    /// A host name, an origin or a selection of skills that no server can use.
    #[error("{what} {value:?}: {rule}")]
    InvalidOption {
        /// The kind of option.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is expected instead.
        rule: String,
    },
    /// An address that others can reach, without a token to let them in.
    #[error("{0} can be reached by others, and there is no token")]
    TokenNeeded(std::net::IpAddr),
    /// A function of the bus failed or returned an invalid result.
    #[error(transparent)]
    Call(#[from] crate::iii::CallError),
    /// The transport failed.
    #[error("{0}")]
    Transport(String),
}

/// Why an address to listen on cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListenProblem {
    /// Another program uses the port of the HTTP server.
    #[error("is in use")]
    InUse,
    /// Another program uses the port of the hub.
    #[error("is in use, so the hub cannot listen there")]
    HubPortInUse,
    /// An iii engine or another hub uses the port of the hub.
    #[error("is in use by an iii engine or another hub")]
    UsedByBus,
    /// This user may not use the port.
    #[error("may not be used by this user")]
    NotPermitted,
    /// Any other reason.
    #[error("cannot be used: {0}")]
    Other(String),
}

impl From<registry::Error> for Error {
    fn from(error: registry::Error) -> Self {
        Self::Open(Arc::new(error))
    }
}

impl Error {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Open(error) => error.code(),
            Self::Invalid(error) => error.code(),
            Self::Listen { .. } => "listen",
            Self::InvalidOption { .. } => "invalid_option",
            Self::TokenNeeded(_) => "token_needed",
            Self::Call(_) => "call_failed",
            Self::Transport(_) => "transport",
        }
    }
}

/// The JSON-RPC code of a request that needs a permission which the caller does not have.
const FORBIDDEN: ErrorCode = ErrorCode(-32003);

/// How an unknown URI is reported, depending on the method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotFoundKind {
    /// A resource; revisions before 2026-07-28 have a code of their own for it.
    Resource,
    /// A parameter.
    Params,
}

/// Returns the JSON-RPC error for a failed operation on a URI.
pub(crate) fn error_for_uri(uri: &str, error: &Error, unknown: NotFoundKind) -> ErrorData {
    let shown = shorten_text(uri);
    let data = Some(json!({"uri": shown, "code": error.code()}));
    if let Error::Call(error) = error {
        let data = Some(json!({"uri": shown, "code": error.code}));
        return match error.code.as_str() {
            "function_not_found" if unknown == NotFoundKind::Params => invalid_params(format!(
                "{shown}: {}: is its worker connected?",
                shorten_text(&error.message)
            )),
            "function_not_found" | "no_bus" => not_found_error(uri, unknown),
            _ => ErrorData::internal_error(
                format!("{shown}: {}", shorten_text(&error.message)),
                data,
            ),
        };
    }
    match error.code() {
        "not_found" | "invalid_uri" | "invalid_path" | "invalid_id" | "reserved_id" => {
            not_found_error(uri, unknown)
        }
        "internal_namespace" => ErrorData::invalid_params(error.to_string(), data),
        // The other server caused the failure, so the reader gets the reason.
        "tampered" => ErrorData::internal_error(error.to_string(), data),
        code => {
            tracing::error!(uri = %shown, %error, "resource could not be read");
            ErrorData::internal_error(format!("{shown}: could not be read ({code})"), data)
        }
    }
}

/// Returns the JSON-RPC error for a URI that does not exist.
pub(crate) fn not_found_error(uri: &str, unknown: NotFoundKind) -> ErrorData {
    let shown = shorten_text(uri);
    let code = match unknown {
        NotFoundKind::Resource => ErrorCode::RESOURCE_NOT_FOUND,
        NotFoundKind::Params => ErrorCode::INVALID_PARAMS,
    };
    let data = Some(json!({"uri": shown}));
    ErrorData::new(code, format!("{shown}: not found"), data)
}

/// Returns the JSON-RPC error for a registry that could not be opened.
pub(crate) fn registry_error(error: &Error) -> ErrorData {
    let data = Some(json!({"code": error.code()}));
    ErrorData::internal_error("the registry could not be opened", data)
}

/// Returns the JSON-RPC error for a caller without a permission.
pub(crate) fn forbidden_error(error: &repertoire_app::Error) -> ErrorData {
    let data = Some(json!({"code": error.code()}));
    ErrorData::new(FORBIDDEN, error.to_string(), data)
}

/// Returns the JSON-RPC error for invalid parameters.
pub(crate) fn invalid_params(message: impl Into<String>) -> ErrorData {
    ErrorData::invalid_params(message.into(), None)
}

/// Shortens text from a peer so that it can be quoted in an answer.
pub(crate) fn shorten_text(text: &str) -> String {
    repertoire_core::markdown::truncate_text(text, 512)
}

/// Returns the public text of an error; paths and SQL are only logged.
pub(crate) fn public_message(error: &registry::Error) -> String {
    match error {
        registry::Error::Invalid(_) | registry::Error::UntrustedSkill(_) => error.to_string(),
        _ => match error.code() {
            // These name items, not places.
            "not_found" | "conflict" | "remote_error" | "tampered" => error.to_string(),
            code => {
                tracing::error!(%error, "the registry failed");
                format!("the registry failed ({code})")
            }
        },
    }
}
