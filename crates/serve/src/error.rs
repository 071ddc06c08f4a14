//! Why something could not be served, and what a peer is told of it.
//!
//! One table: the stable code of an error decides its JSON-RPC code. Faults of ours are told by
//! their URI alone; paths, SQL and causes stay in the log.

use std::sync::Arc;

use repertoire_registry as registry;
use rmcp::{ErrorData, model::ErrorCode};
use serde_json::json;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The registry could not be opened.
    #[error(transparent)]
    Open(Arc<registry::Error>),
    /// A skill, a path or a URI broke a rule.
    #[error(transparent)]
    Invalid(#[from] repertoire_core::Error),
    /// An address to listen on, or what is asked of it, cannot be used.
    #[error("{0}")]
    Listen(String),
    /// Another server is not one that is asked.
    #[error("{0}")]
    Target(String),
    /// A function of the bus did not answer as it should.
    #[error(transparent)]
    Call(#[from] crate::iii::CallError),
    /// The transport failed.
    #[error("{0}")]
    Transport(String),
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
            Self::Listen(_) => "listen",
            Self::Target(_) => "invalid_target",
            Self::Call(_) => "call_failed",
            Self::Transport(_) => "transport",
        }
    }

    /// What to do about it, where that is not plain from the message.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Open(error) => error.hint(),
            Self::Invalid(error) => error.hint(),
            Self::Listen(_) | Self::Target(_) | Self::Call(_) | Self::Transport(_) => None,
        }
    }
}

/// What an unknown thing is to the method that was asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// A resource; revisions before 2026-07-28 have a code of their own for it.
    Resource,
    /// A parameter.
    Params,
}

/// What a peer is told of an error about a URI.
pub(crate) fn about(uri: &str, error: &Error, unknown: Unknown) -> ErrorData {
    let shown = shorten(uri);
    let data = Some(json!({"uri": shown, "code": error.code()}));
    if let Error::Call(error) = error {
        let data = Some(json!({"uri": shown, "code": error.code}));
        return match error.code.as_str() {
            "function_not_found" if unknown == Unknown::Params => params(format!(
                "{shown}: {}: is its worker connected?",
                shorten(&error.message)
            )),
            "function_not_found" | "no_bus" => missing(uri, unknown),
            _ => ErrorData::internal_error(format!("{shown}: {}", shorten(&error.message)), data),
        };
    }
    match error.code() {
        "not_found" | "invalid_uri" | "invalid_path" | "invalid_id" | "reserved_id" => {
            missing(uri, unknown)
        }
        "internal_namespace" => ErrorData::invalid_params(error.to_string(), data),
        // The reason is the other server's fault, and a reader should know it.
        "tampered" => ErrorData::internal_error(error.to_string(), data),
        code => {
            tracing::error!(uri = %shown, %error, "could not be read");
            ErrorData::internal_error(format!("{shown}: could not be read ({code})"), data)
        }
    }
}

/// What a peer is told of a URI that names nothing.
pub(crate) fn missing(uri: &str, unknown: Unknown) -> ErrorData {
    let shown = shorten(uri);
    let code = match unknown {
        Unknown::Resource => ErrorCode::RESOURCE_NOT_FOUND,
        Unknown::Params => ErrorCode::INVALID_PARAMS,
    };
    let data = Some(json!({"uri": shown}));
    ErrorData::new(code, format!("{shown}: not found"), data)
}

/// What a peer is told when the registry is not to be had.
pub(crate) fn closed(error: &Error) -> ErrorData {
    let data = Some(json!({"code": error.code()}));
    ErrorData::internal_error("the registry could not be opened", data)
}

/// What a peer is told of parameters that cannot be used.
pub(crate) fn params(message: impl Into<String>) -> ErrorData {
    ErrorData::invalid_params(message.into(), None)
}

/// A peer's own text, short enough to send back.
pub(crate) fn shorten(text: &str) -> String {
    repertoire_core::markdown::cut(text, 512)
}
