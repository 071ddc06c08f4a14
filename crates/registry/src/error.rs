//! The error type of the registry.

use std::path::{Path, PathBuf};

use repertoire_core::{SkillId, text::terminal_safe};

/// A result of the registry.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A registry error with a stable [`code`](Error::code).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that violates a rule of the core crate.
    #[error(transparent)]
    Invalid(#[from] repertoire_core::Error),
    /// A file or a folder whose content violates a rule of the core crate.
    #[error("{}: {error}", display_path(path))]
    InvalidAt {
        /// The file or folder.
        path: PathBuf,
        /// The violated rule.
        error: repertoire_core::Error,
    },
    /// No item with that name exists.
    #[error("{what} {name:?} not found")]
    NotFound {
        /// The kind of item, such as `skill`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An origin that does not exist.
    #[error(
        "no origin {0:?}: use state, workspace, embedded, files, files-2 …, account, or mcp-LABEL"
    )]
    UnknownOrigin(String),
    /// A path that resolves outside its root.
    #[error("{}: leads out of its folder", display_path(.0))]
    EscapesRoot(PathBuf),
    /// A FIFO, a device, a socket or a linked folder.
    #[error("{}: not a regular file (a link to a folder, a pipe or a device)", display_path(.0))]
    NotRegular(PathBuf),
    /// The file system returned an error.
    #[error("{}: {error}", display_path(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        error: std::io::Error,
    },
    /// A skill whose name differs from the name of its folder.
    #[error(
        "{}: `name: {name}` differs from the folder's name {folder:?}",
        display_path(path)
    )]
    NameMismatch {
        /// The document.
        path: PathBuf,
        /// The name in the frontmatter.
        name: String,
        /// The name of the folder.
        folder: String,
    },
    /// An item with that name already exists in the scope.
    #[error("{0}")]
    Conflict(String),
    /// The store's file is damaged or is not a store.
    #[error("store {}: {reason}", display_path(path))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The store was written by a newer version.
    #[error(
        "store {}: schema {found} is newer than this version knows ({known})",
        display_path(path)
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// Another process held the store's write lock for too long.
    #[error("store {}: another process is writing to it", display_path(.0))]
    Busy(PathBuf),
    /// A write to the store of an untrusted workspace.
    #[error("workspace {} is not trusted: it can be read, not changed", display_path(.0))]
    Untrusted(PathBuf),
    /// The settings of an untrusted workspace name a location outside the workspace.
    #[error("{}: outside its workspace, which is not trusted: skipped", display_path(.0))]
    OutsideWorkspace(PathBuf),
    /// A write to a store for which this user has no write permission.
    #[error("store {}: is read-only", display_path(.0))]
    ReadOnly(PathBuf),
    /// Any other SQLite failure.
    #[error("store: {0}")]
    Sqlite(rusqlite::Error),
    /// A pattern that is not a valid glob.
    #[error("pattern {pattern:?}: {reason}")]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An item that an earlier scan refused.
    #[error("{message}")]
    Skipped {
        /// The code of the original error.
        code: &'static str,
        /// The message of the original error.
        message: String,
    },
    /// A request to another server failed, or its response could not be used.
    #[error("server {label:?}: {reason}")]
    Remote {
        /// The label the user gave it.
        label: String,
        /// What went wrong.
        reason: String,
    },
    /// Another server sent content that differs from its listing.
    #[error("{uri} from server {label:?}: {reason}: refused")]
    Tampered {
        /// The label the user gave the server.
        label: String,
        /// The URI that was read.
        uri: String,
        /// How it differs.
        reason: String,
    },
    /// The caller cancelled the operation.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn from_io(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            error,
        }
    }

    pub(crate) fn no_skill(id: &SkillId) -> Self {
        Self::NotFound {
            what: "skill",
            name: id.to_string(),
        }
    }

    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid(error) | Self::InvalidAt { error, .. } => error.code(),
            Self::NotFound { .. } | Self::UnknownOrigin(_) => "not_found",
            Self::EscapesRoot(_) => "escapes_root",
            Self::NotRegular(_) => "not_regular",
            Self::Io { .. } | Self::ReadOnly(_) => "io_error",
            Self::NameMismatch { .. } => "name_mismatch",
            Self::Conflict(_) => "conflict",
            Self::Corrupt { .. } => "store_corrupt",
            Self::NewerSchema { .. } => "store_newer",
            Self::Busy(_) => "store_busy",
            Self::Untrusted(_) | Self::OutsideWorkspace(_) => "untrusted",
            Self::Sqlite(_) => "store_error",
            Self::InvalidPattern { .. } => "invalid_pattern",
            Self::Skipped { code, .. } => code,
            Self::Remote { .. } => "remote_error",
            Self::Tampered { .. } => "tampered",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns what to do about the error, where the message does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Invalid(error) | Self::InvalidAt { error, .. } => return error.hint(),
            Self::NotFound { what, .. } => match *what {
                "skill" => "`repertoire list --all` shows every skill",
                "revision" => "`repertoire history` shows every revision",
                "folder to pack" => "`repertoire package export` prints a skill of a store",
                "server" => "`repertoire remote list` shows every server",
                "token" => "`repertoire token list` shows every token",
                "prompt" => "`repertoire list --prompts` shows every prompt",
                _ => return None,
            },
            Self::EscapesRoot(_) => "copy the file into the skill instead of linking to it",
            Self::NotRegular(_) => "a skill holds regular files only: remove it or replace it",
            Self::NameMismatch { .. } => "rename the folder or change `name:`",
            Self::Remote { .. } => "check that it runs, and where: `repertoire remote list`",
            Self::Tampered { .. } => {
                "list it again with `repertoire remote refresh`; if it persists, contact its operator"
            }
            Self::Corrupt { .. } => "move the file away, then import from an export or a backup",
            Self::NewerSchema { .. } => "install a newer version of repertoire",
            Self::Busy(_) => "try again, or end the other process",
            Self::OutsideWorkspace(_) => "run `repertoire trust` if you know the workspace",
            Self::ReadOnly(_) => "give this user write permission, or use another --home",
            Self::Untrusted(_) => "look at it with `repertoire list`, then run `repertoire trust`",
            _ => return None,
        })
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Escapes a path for display: a path from an untrusted source may hold control characters.
pub(crate) fn display_path(path: &Path) -> String {
    terminal_safe(&path.to_string_lossy()).into_owned()
}
