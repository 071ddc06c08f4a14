//! The errors of this crate.

use std::path::PathBuf;

use repertoire_core::text::terminal_safe;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with a stable [`code`](Error::code).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that violates a rule of the core crate.
    #[error(transparent)]
    Invalid(#[from] repertoire_core::Error),
    /// The configured target of another server is invalid.
    #[error("{0}")]
    Target(String),
    /// A source that cannot be used, whatever is there.
    #[error("{}: {reason}", terminal_safe(text))]
    Source {
        /// The source as it was given.
        text: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// A place that cannot be reached, or does not answer in time.
    #[error("{}: {}", terminal_safe(address), terminal_safe(reason))]
    Unreachable {
        /// The address that was asked.
        address: String,
        /// Why there was no answer.
        reason: String,
    },
    /// A place that wants a login, or refuses the one it got.
    #[error("{}: {}", terminal_safe(address), terminal_safe(reason))]
    Unauthorized {
        /// The address that was asked.
        address: String,
        /// What it said.
        reason: String,
    },
    /// An answer that breaks a rule; nothing of it is used.
    #[error("{}: {}: refused", terminal_safe(address), terminal_safe(reason))]
    Refused {
        /// The address or file that the answer came from.
        address: String,
        /// The rule.
        reason: String,
    },
    /// Content whose digest is not the promised one.
    #[error(
        "{}: its digest is {found}, and {expected} was promised: refused",
        terminal_safe(address)
    )]
    DigestMismatch {
        /// The address or file that the content came from.
        address: String,
        /// The promised digest.
        expected: String,
        /// The digest of what came.
        found: String,
    },
    /// A signature that does not hold.
    #[error(
        "{}: its signature does not hold: {}: refused",
        terminal_safe(address),
        terminal_safe(reason)
    )]
    Signature {
        /// What was signed.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// Something that is not there.
    #[error("{what} {} not found", terminal_safe(&format!("{name:?}")))]
    NotFound {
        /// The kind of thing, such as `skill`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A program that is needed could not be started.
    #[error("{program} could not be started: {reason}")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// Why not.
        reason: std::io::Error,
    },
    /// The file system returned an error.
    #[error("{}: {error}", terminal_safe(&path.to_string_lossy()))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        error: std::io::Error,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(error) => error.code(),
            Self::Target(_) => "invalid_target",
            Self::Source { .. } => "invalid_source",
            Self::Unreachable { .. } => "unreachable",
            Self::Unauthorized { .. } => "unauthorized",
            Self::Refused { .. } => "refused_content",
            Self::DigestMismatch { .. } => "digest_mismatch",
            Self::Signature { .. } => "invalid_signature",
            Self::NotFound { .. } => "not_found",
            Self::NoProgram { .. } | Self::Io { .. } => "io_error",
        }
    }

    /// Whether a copy that was kept may be used instead.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    pub(crate) fn refused(address: &str, reason: impl Into<String>) -> Self {
        Self::Refused {
            address: address.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unreachable(address: &str, reason: impl Into<String>) -> Self {
        Self::Unreachable {
            address: address.to_owned(),
            reason: reason.into(),
        }
    }
}
