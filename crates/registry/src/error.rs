//! The error type of the registry.

use std::path::{Path, PathBuf};

use repertoire_core::{SkillId, text::terminal_safe};

use crate::origin::Origin;

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
    /// A link to a folder that is not at the top of a source.
    #[error(
        "{}: a link to a folder, which is followed only at the top of a folder that is named itself",
        display_path(.0)
    )]
    NestedLink(PathBuf),
    /// The file system returned an error.
    #[error("{}: {error}", display_path(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        error: std::io::Error,
    },
    /// An item with that name already exists.
    #[error("{what} {name:?} already exists")]
    AlreadyExists {
        /// The kind of item, such as `token`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Another writer changed the item since it was read.
    #[error("{what} {name:?} was changed by another writer at the same time")]
    Changed {
        /// The kind of item, such as `skill`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Another skill of the scope has the same name or UUID.
    #[error("skill {other:?} already has the UUID or the name of {name:?}")]
    NameTaken {
        /// The name of the new skill.
        name: String,
        /// The id of the other skill.
        other: String,
    },
    /// Another skill of the scope has an artifact with the same UUID.
    #[error("artifact {0:?}: another skill already has its UUID")]
    ArtifactIdTaken(String),
    /// One skill is written twice in one batch.
    #[error("skill {0} occurs twice in one batch")]
    DuplicateInBatch(SkillId),
    /// A changed package would get another id.
    #[error("skill {from} would be renamed to {to}: add it under the new name and remove this one")]
    WouldRename {
        /// Its id.
        from: SkillId,
        /// The id it would get.
        to: SkillId,
    },
    /// The description of a package is part of its document.
    #[error("skill {0:?} has its own SKILL.md: change its description there")]
    DescribedByDocument(String),
    /// A learned state belongs to an earlier content of the artifact.
    #[error("{0:?} changed during learning, so the learned state was discarded")]
    LearnedForOther(String),
    /// More than one trace has this prefix.
    #[error("trace {0:?}: more than one id has this prefix")]
    AmbiguousTrace(String),
    /// The skill is already in the workspace.
    #[error("skill {0} is already in the workspace")]
    AlreadyInWorkspace(SkillId),
    /// There is no workspace that could be written to.
    #[error("there is no workspace")]
    NoWorkspace,
    /// Registered content is kept on the bus and cannot be changed here.
    #[error("registered content is kept on the bus, not here")]
    KeptOnBus,
    /// An untrusted skill cannot be run.
    #[error("skill {0} is untrusted and can be read, not run")]
    UntrustedSkill(SkillId),
    /// A skill whose content is generated at each read cannot be approved.
    #[error("{0}: its content is generated at each read, so it cannot be approved")]
    DynamicSkill(SkillId),
    /// A workspace within a folder of skills has a trust of its own.
    #[error("{}: a workspace of its own: name it itself to use its skills", .0.display())]
    NestedWorkspace(PathBuf),
    /// A skill whose frontmatter its server does not list cannot be approved.
    #[error(
        "{0}: its server lists skills in an older form, without what their documents say, so it \
             cannot be approved"
    )]
    PartialSkill(SkillId),
    /// Only installed skills and those of other servers are approved one by one.
    #[error(
        "{id} comes from {origin}: only installed skills and those of other servers are approved one \
         by one"
    )]
    NotRemote {
        /// The skill.
        id: SkillId,
        /// Where it comes from.
        origin: Origin,
    },
    /// A journal beside the store of a workspace that this account did not write.
    #[error(
        "{}: this account did not write this journal, which changes what the store beside it holds",
        display_path(.0)
    )]
    ForeignJournal(PathBuf),
    /// The store of an untrusted workspace is too large to be read.
    #[error(
        "{}: larger than {limit}, the most that is read of an untrusted workspace",
        display_path(path)
    )]
    TooLargeForUntrusted {
        /// The store.
        path: PathBuf,
        /// The limit in words.
        limit: String,
    },
    /// The store of a workspace was replaced while it was open.
    #[error("{}: was replaced while it was open, as a pull does", display_path(.0))]
    ReplacedStore(PathBuf),
    /// A file is not a complete backup.
    #[error("{}: not a backup of a store: {reason}", display_path(path))]
    NotABackup {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A quota is used up.
    #[error("{what} holds at most {limit}: delete what is no longer needed")]
    QuotaExceeded {
        /// What has the quota.
        what: String,
        /// The quota in words.
        limit: String,
    },
    /// A change of a state value was refused.
    #[error("{0}")]
    InvalidStateChange(String),
    /// The embedding model cannot be used.
    #[error("{0}")]
    Embeddings(String),
    /// The store's writer has stopped.
    #[error("the store's writer has stopped")]
    WriterStopped,
    /// A write was lost together with others of its group.
    #[error("not saved: {0}")]
    NotSaved(String),
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
    #[error("workspace {} is not trusted: it can be read, not changed or run", display_path(.0))]
    Untrusted(PathBuf),
    /// The settings of an untrusted workspace name a location outside the workspace.
    #[error("{}: outside its workspace, which is not trusted: skipped", display_path(.0))]
    OutsideWorkspace(PathBuf),
    /// A write to a store for which this user has no write permission.
    #[error("store {}: is read-only", display_path(.0))]
    ReadOnly(PathBuf),
    /// Any other failure of the database.
    #[error("store: {0}")]
    Backend(Box<dyn std::error::Error + Send + Sync>),
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
            Self::NotRegular(_) | Self::NestedLink(_) => "not_regular",
            Self::Io { .. } | Self::ReadOnly(_) => "io_error",
            Self::AlreadyExists { .. }
            | Self::Changed { .. }
            | Self::NameTaken { .. }
            | Self::ArtifactIdTaken(_)
            | Self::DuplicateInBatch(_)
            | Self::WouldRename { .. }
            | Self::DescribedByDocument(_)
            | Self::LearnedForOther(_)
            | Self::AmbiguousTrace(_)
            | Self::AlreadyInWorkspace(_)
            | Self::KeptOnBus
            | Self::DynamicSkill(_)
            | Self::PartialSkill(_)
            | Self::NestedWorkspace(_)
            | Self::NotRemote { .. }
            | Self::InvalidStateChange(_)
            | Self::Embeddings(_) => "conflict",
            Self::QuotaExceeded { .. } => "quota_exceeded",
            Self::NotABackup { .. } => "not_a_backup",
            Self::ForeignJournal(_) => "foreign_journal",
            Self::NoWorkspace => "no_workspace",
            Self::Corrupt { .. } => "store_corrupt",
            Self::NewerSchema { .. } => "store_newer",
            Self::Busy(_) => "store_busy",
            Self::Untrusted(_)
            | Self::UntrustedSkill(_)
            | Self::OutsideWorkspace(_)
            | Self::ReplacedStore(_)
            | Self::TooLargeForUntrusted { .. } => "untrusted",
            Self::Backend(_) | Self::WriterStopped | Self::NotSaved(_) => "store_error",
            Self::InvalidPattern { .. } => "invalid_pattern",
            Self::Skipped { code, .. } => code,
            Self::Remote { .. } => "remote_error",
            Self::Tampered { .. } => "tampered",
            Self::Interrupted => "interrupted",
        }
    }
}

impl From<crate::source::Notice> for Error {
    fn from(notice: crate::source::Notice) -> Self {
        Self::Skipped {
            code: notice.code,
            message: notice.message,
        }
    }
}

/// Escapes a path for display: a path from an untrusted source may hold control characters.
pub(crate) fn display_path(path: &Path) -> String {
    terminal_safe(&path.to_string_lossy()).into_owned()
}
