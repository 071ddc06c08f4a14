//! Why the registry could not do it.

use std::path::{Path, PathBuf};

use repertoire_core::{SkillId, text::terminal_safe};

/// A result of the registry.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with a stable [`code`](Error::code).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value that broke a rule of the core.
    #[error(transparent)]
    Invalid(#[from] repertoire_core::Error),
    /// A file or a folder whose content broke a rule of the core.
    #[error("{}: {error}", show(path))]
    InvalidAt {
        /// The file or folder.
        path: PathBuf,
        /// The rule.
        error: repertoire_core::Error,
    },
    /// Nothing of that name.
    #[error("{what} {name:?} not found")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// No such origin.
    #[error(
        "no origin {0:?}: use state, workspace, embedded, files, files-2 …, account, or mcp-LABEL"
    )]
    Origin(String),
    /// A path that leads out of its root.
    #[error("{}: leads out of its folder", show(.0))]
    EscapesRoot(PathBuf),
    /// A FIFO, a device, a socket or a linked folder.
    #[error("{}: not a regular file (a link to a folder, a pipe or a device)", show(.0))]
    NotRegular(PathBuf),
    /// The file system said no.
    #[error("{}: {error}", show(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its answer.
        error: std::io::Error,
    },
    /// A skill whose name is not that of its folder.
    #[error(
        "{}: `name: {name}` differs from the folder's name {folder:?}",
        show(path)
    )]
    NameMismatch {
        /// The document.
        path: PathBuf,
        /// The name in the frontmatter.
        name: String,
        /// The name of the folder.
        folder: String,
    },
    /// A scope already has something of that name.
    #[error("{0}")]
    Conflict(String),
    /// The store's file is damaged or is no store.
    #[error("store {}: {reason}", show(path))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The store was written by a newer version.
    #[error(
        "store {}: schema {found} is newer than this version knows ({known})",
        show(path)
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// Another process held the store for too long.
    #[error("store {}: another process is writing to it", show(.0))]
    Busy(PathBuf),
    /// A write to a store that may only be read.
    #[error("workspace {} is not trusted: it can be read, not changed", show(.0))]
    Untrusted(PathBuf),
    /// An untrusted workspace asked for a place outside of itself.
    #[error("{}: outside of its workspace, which is not trusted: not looked at", show(.0))]
    OutsideWorkspace(PathBuf),
    /// A store that this user may only read.
    #[error("store {}: may only be read", show(.0))]
    ReadOnly(PathBuf),
    /// SQLite failed in another way.
    #[error("store: {0}")]
    Sqlite(rusqlite::Error),
    /// A pattern that is no glob.
    #[error("pattern {pattern:?}: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that was found unusable earlier.
    #[error("{message}")]
    Skipped {
        /// The code it had then.
        code: &'static str,
        /// The message it had then.
        message: String,
    },
    /// Another server could not be asked, or its answer could not be used.
    #[error("server {label:?}: {reason}")]
    Remote {
        /// The label the user gave it.
        label: String,
        /// What went wrong.
        reason: String,
    },
    /// Another server sent something else than it had listed.
    #[error("{uri} from server {label:?}: {reason}: refused")]
    Tampered {
        /// The label the user gave the server.
        label: String,
        /// What was read.
        uri: String,
        /// How it differs.
        reason: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
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
            Self::NotFound { .. } | Self::Origin(_) => "not_found",
            Self::EscapesRoot(_) => "escapes_root",
            Self::NotRegular(_) => "not_regular",
            Self::Io { .. } | Self::ReadOnly(_) => "io_error",
            Self::NameMismatch { .. } => "name_mismatch",
            Self::Conflict(_) => "conflict",
            Self::Corrupt { .. } => "store_corrupt",
            Self::Newer { .. } => "store_newer",
            Self::Busy(_) => "store_busy",
            Self::Untrusted(_) | Self::OutsideWorkspace(_) => "untrusted",
            Self::Sqlite(_) => "store_error",
            Self::Pattern { .. } => "invalid_pattern",
            Self::Skipped { code, .. } => code,
            Self::Remote { .. } => "remote_error",
            Self::Tampered { .. } => "tampered",
            Self::Interrupted => "interrupted",
        }
    }

    /// What to do about it, where that is not plain from the message.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Invalid(error) | Self::InvalidAt { error, .. } => return error.hint(),
            Self::NotFound { what, .. } => match *what {
                "skill" => "`repertoire list --all` shows every skill",
                "revision" => "`repertoire history` shows every revision",
                "folder to pack" => "`repertoire export` prints a skill of a store",
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
                "list it again with `repertoire remote refresh`; if it stays, ask who runs the server"
            }
            Self::Corrupt { .. } => "move the file away, then import from an export or a backup",
            Self::Newer { .. } => "install a newer version of repertoire",
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

/// Paths come from strangers too.
pub(crate) fn show(path: &Path) -> String {
    terminal_safe(&path.to_string_lossy()).into_owned()
}
