//! The errors of this crate.

use std::path::{Path, PathBuf};

use repertoire_core::{Digest, SkillId, permission::Permission};
use repertoire_registry::{Origin, StoreScope};

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error with a stable [`code`](Error::code).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the registry.
    #[error(transparent)]
    Registry(#[from] repertoire_registry::Error),
    /// An error about a place that skills come from.
    #[error(transparent)]
    Remote(#[from] repertoire_remote::Error),
    /// A project's file that cannot be used.
    #[error("{}: {reason}", path.display())]
    ProjectFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A lock that does not say everything, where it must.
    #[error("{}: {reason}; with --frozen nothing is resolved", path.display())]
    FrozenLock {
        /// The lock.
        path: PathBuf,
        /// What is missing or too much.
        reason: String,
    },
    /// A source with several skills, of which none was named.
    #[error("{location} has {} skills: {}", names.len(), short_list(names))]
    SeveralOffers {
        /// The source.
        location: String,
        /// Their names.
        names: Vec<String>,
    },
    /// A skill that a source does not have.
    #[error("{location} has no skill {wanted:?}; it has {}", short_text(names))]
    NoSuchOffer {
        /// The skill.
        wanted: String,
        /// The source.
        location: String,
        /// The names of its skills.
        names: String,
    },
    /// Something that is not in the cache, without a network.
    #[error("{0} was not fetched before, and with --offline nothing is asked")]
    Offline(String),
    /// An id that a skill of the user has.
    #[error("{id} is a skill of your own, so {wanted} is not installed over it")]
    OwnSkill {
        /// The id.
        id: SkillId,
        /// The source that was asked for.
        wanted: String,
    },
    /// An id that a skill of another source has.
    #[error("{id} is installed from {installed}, not from {wanted}")]
    OtherSource {
        /// The id.
        id: SkillId,
        /// The source that it has.
        installed: String,
        /// The source that was asked for.
        wanted: String,
    },
    /// A version that has other content than before.
    #[error(
        "{id}: {version} has other content than when it was installed (sha256 {} before, {} now): \
         refused", known.hex_digits(), found.hex_digits()
    )]
    MovedVersion {
        /// The skill.
        id: SkillId,
        /// The version or tag.
        version: String,
        /// The digest that was installed.
        known: Digest,
        /// The digest that it has now.
        found: Digest,
    },
    /// A skill that another one signed than before.
    #[error(
        "{id} was signed by {known}, and is now {}: refused",
        found.as_ref().map_or("unsigned".to_owned(), |found| format!("signed by {found}"))
    )]
    SignerChanged {
        /// The skill.
        id: SkillId,
        /// The recorded signer.
        known: String,
        /// The new signer; none if it is unsigned.
        found: Option<String>,
    },
    /// Changes that have to be decided first.
    #[error("{skill} was changed by you and by its source in ways that do not go together")]
    UpdateConflict {
        /// The skill.
        skill: String,
    },
    /// A decision without an update that waits for it.
    #[error("no update waits for decisions")]
    NoPausedUpdate,
    /// A decision about something that is in no conflict.
    #[error("{0} is in no conflict")]
    NotInConflict(String),
    /// A skill that was not installed from a source.
    #[error("{0} was not installed from a source")]
    NotInstalled(SkillId),
    /// A skill that a project wants already.
    #[error("{0} is in repertoire.toml already")]
    AlreadyWanted(SkillId),
    /// A skill that another tool's lock names, whose files are not there.
    #[error("the files of {0} are not there")]
    NotOnDisk(String),
    /// The same error as that of another skill of the same source.
    #[error("{message}")]
    SameSource {
        /// Its code.
        code: &'static str,
        /// Its text.
        message: String,
    },
    /// An error of the runtime.
    #[error(transparent)]
    Run(#[from] repertoire_runtime::Error),
    /// A name that several skills have.
    #[error("several skills are named {name:?}: {}", candidates.join(", "))]
    AmbiguousSkill {
        /// The name.
        name: String,
        /// The skills, as `origin:id`.
        candidates: Vec<String>,
    },
    /// The settings of a host cannot be edited.
    #[error("{}: {reason}", path.display())]
    HostConfig {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A host has no settings for servers in that scope.
    #[error("{host} has no file for MCP servers of a {scope}")]
    NoHostConfig {
        /// The host.
        host: &'static str,
        /// The scope.
        scope: &'static str,
    },
    /// A session that is not known for a skill.
    #[error("{skill} was not run in a session {session:?}")]
    UnknownSession {
        /// The skill.
        skill: String,
        /// The session.
        session: String,
    },
    /// A skill without a DSPy module of the requested name, or without any.
    #[error("skill {skill} has no dspy_module{}", quoted(name.as_deref()))]
    NoModule {
        /// The skill.
        skill: String,
        /// The requested name.
        name: Option<String>,
    },
    /// A skill with several DSPy modules, of which none was named.
    #[error("the skill has several modules: {}", names.join(", "))]
    AmbiguousModule {
        /// Their names.
        names: Vec<String>,
    },
    /// No trace of a module can be used for training.
    #[error(
        "no trace of {module:?} can be learned from: {}",
        if *has_assertions {
            "run it until its assertions have held"
        } else {
            "give it assertions in its metadata, which define a good answer, and run it"
        }
    )]
    NoTrainingTraces {
        /// The module.
        module: String,
        /// Whether the module has assertions at all.
        has_assertions: bool,
    },
    /// A copy of the skill in another scope would run instead of the optimized one.
    #[error(
        "the {} copy of {skill} is the one that runs, so an optimized {} copy would not be used",
        used.as_str(), scope.as_str()
    )]
    UnusedScope {
        /// The skill.
        skill: String,
        /// The scope whose copy runs.
        used: StoreScope,
        /// The requested scope.
        scope: StoreScope,
    },
    /// A skill that is not kept in the store of a scope, and so cannot be changed there.
    #[error("skill {skill} is not in the {} store but in {origin}", scope.as_str())]
    NotInStore {
        /// The skill.
        skill: String,
        /// Where it comes from instead.
        origin: Origin,
        /// The requested scope.
        scope: StoreScope,
    },
    /// A new artifact without a kind.
    #[error("artifact {0:?} is new, and its kind is not known")]
    KindNeeded(String),
    /// Training examples of the caller that cannot be used.
    #[error("{0}")]
    Examples(String),
    /// A token name with characters that are not allowed.
    #[error("a token's name is 1 to 64 letters, digits and `-`, `_`, `.`, `@`")]
    InvalidTokenName,
    /// A token that would allow nothing, or names an impossible tool.
    #[error("a token needs a permission, and names of tools have no spaces")]
    InvalidTokenGrant,
    /// A caller without the permission that a request needs.
    #[error("this needs the permission `{0}`, which your token does not have")]
    PermissionDenied(Permission),
    /// A token for some skills, used for something that concerns all of them.
    #[error("your token is for some skills only, and this concerns all of them")]
    RestrictedToken,
    /// A token that is restricted to some tools.
    #[error("your token is for some tools only")]
    RestrictedToTools,
    /// A token that is restricted to other tools.
    #[error("your token may not call the tool {0:?}")]
    ToolNotAllowed(String),
    /// An evaluation file with an error in it.
    #[error("{0}")]
    InvalidEvaluation(String),
    /// A skill of an origin that has no store, and so no history.
    #[error(
        "{0} is not in a store: only skills of workspace: and account: have a history and can be \
         changed here"
    )]
    NoStore(String),
    /// The name of a skill says one store, the request another.
    #[error("{0} and the requested scope are different stores")]
    ContradictingScope(String),
    /// A name that is that of a skill and that of a folder.
    #[error("{name} is a skill ({skill}) and a folder")]
    SkillAndFolder {
        /// The name.
        name: String,
        /// The skill, as `origin:id`.
        skill: String,
    },
    /// A path that is not a folder.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The account's own folder, which cannot be a workspace.
    #[error("{} is the account's own folder", .0.display())]
    AccountFolder(PathBuf),
    /// A folder that is a workspace already.
    #[error("{} is a workspace already", .0.display())]
    WorkspaceExists(PathBuf),
    /// A new workspace that brought settings or skills of its own.
    #[error("{} came with settings or skills of its own", .0.display())]
    WorkspaceNotNew(PathBuf),
    /// Work that was cancelled; everything is as it was before.
    #[error("cancelled")]
    Cancelled,
    /// A component that this build cannot use.
    #[error("this build is without the {0}")]
    NotInBuild(&'static str),
    /// A program that an installation needs could not be started.
    #[error("{program} could not be run: {reason}")]
    NoProgram {
        /// The program.
        program: String,
        /// Why not.
        reason: std::io::Error,
    },
    /// A program of an installation failed.
    #[error("{program} failed: {reason}")]
    ProgramFailed {
        /// The program.
        program: String,
        /// The last lines of what it printed.
        reason: String,
    },
    /// The Python of this machine is too old for a component.
    #[error(
        "this is Python {}.{}, and {}.{} is needed",
        found.0, found.1, oldest.0, oldest.1
    )]
    OldPython {
        /// Its version.
        found: (u32, u32),
        /// The oldest version that can be used.
        oldest: (u32, u32),
    },
    /// A package that could not be downloaded.
    #[error("{package} could not be downloaded: {reason}")]
    Download {
        /// The package.
        package: &'static str,
        /// Why not.
        reason: String,
        /// The folder in the package that is needed.
        folder: &'static str,
    },
    /// A file to install whose digest is not the expected one.
    #[error(
        "{} is not the file that was expected: its SHA-256 is {found}, not {expected}",
        path.display()
    )]
    UnexpectedFile {
        /// The file.
        path: PathBuf,
        /// Its digest.
        found: String,
        /// The expected digest.
        expected: &'static str,
    },
    /// A sidecar executable that is not a file.
    #[error("{} is not a file", .0.display())]
    NotABundle(PathBuf),
}

/// Lists some names.
fn short_list(names: &[String]) -> String {
    short_text(&names.join(", "))
}

fn short_text(text: &str) -> String {
    repertoire_core::markdown::truncate_text(&repertoire_core::text::terminal_safe(text), 400)
}

fn quoted(name: Option<&str>) -> String {
    name.map(|name| format!(" {name:?}")).unwrap_or_default()
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Registry(error) => error.code(),
            Self::Run(error) => error.code(),
            Self::Remote(error) => error.code(),
            Self::SameSource { code, .. } => code,
            Self::ProjectFile { .. } => "project_file",
            Self::FrozenLock { .. } => "frozen_lock",
            Self::SeveralOffers { .. } => "several_skills",
            Self::NoSuchOffer { .. } | Self::NotOnDisk(_) => "not_found",
            Self::Offline(_) => "offline",
            Self::OwnSkill { .. } | Self::OtherSource { .. } | Self::AlreadyWanted(_) => "conflict",
            Self::MovedVersion { .. } => "moved_version",
            Self::SignerChanged { .. } => "signer_changed",
            Self::UpdateConflict { .. } => "update_conflict",
            Self::NoPausedUpdate | Self::NotInConflict(_) => "no_conflict",
            Self::NotInstalled(_) => "not_installed",
            Self::AmbiguousSkill { .. } | Self::SkillAndFolder { .. } => "ambiguous_skill",
            Self::HostConfig { .. } => "host_config",
            Self::NoHostConfig { .. } => "no_host_config",
            Self::UnknownSession { .. } => "unknown_session",
            Self::NoModule { .. } => "no_module",
            Self::AmbiguousModule { .. } => "ambiguous_module",
            Self::NoTrainingTraces { .. } => "no_training_traces",
            Self::UnusedScope { .. } => "unused_scope",
            Self::NotInStore { .. } => "not_in_store",
            Self::KindNeeded(_) => "kind_needed",
            Self::Examples(_) => "invalid_examples",
            Self::InvalidTokenName => "invalid_token_name",
            Self::InvalidTokenGrant => "invalid_token_grant",
            Self::NotInBuild(_) => "not_in_build",
            Self::PermissionDenied(_)
            | Self::RestrictedToken
            | Self::RestrictedToTools
            | Self::ToolNotAllowed(_) => "forbidden",
            Self::InvalidEvaluation(_) => "invalid_evaluation",
            Self::NoStore(_) => "no_store",
            Self::ContradictingScope(_) => "contradicting_scope",
            Self::NotAFolder(_) => "not_a_folder",
            Self::AccountFolder(_) => "account_folder",
            Self::WorkspaceExists(_) => "workspace_exists",
            Self::WorkspaceNotNew(_) => "workspace_not_new",
            Self::Cancelled => "interrupted",
            Self::NoProgram { .. } => "io_error",
            Self::ProgramFailed { .. } | Self::OldPython { .. } | Self::Download { .. } => {
                "setup_failed"
            }
            Self::UnexpectedFile { .. } | Self::NotABundle(_) => "unexpected_file",
        }
    }
}

/// Names the path in an error of the file system.
pub(crate) fn io_error_at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |error| {
        Error::Registry(repertoire_registry::Error::Io {
            path: path.to_owned(),
            error,
        })
    }
}

impl From<repertoire_core::Error> for Error {
    fn from(error: repertoire_core::Error) -> Self {
        Self::Registry(error.into())
    }
}
