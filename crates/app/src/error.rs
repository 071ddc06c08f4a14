//! The errors of this crate.

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
    #[error("skill {skill} is not in the {} store", scope.as_str())]
    NotInStore {
        /// The skill.
        skill: String,
        /// Where it comes from instead.
        origin: Origin,
        /// The requested scope.
        scope: StoreScope,
    },
    /// Training examples of the caller that cannot be used.
    #[error("{0}")]
    Examples(String),
    /// A token name with characters that are not allowed.
    #[error("a token's name is 1 to 64 letters, digits and `-`, `_`, `.`, `@`")]
    InvalidTokenName,
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
            Self::AmbiguousSkill { .. } => "ambiguous_skill",
            Self::UnknownSession { .. } => "unknown_session",
            Self::NoModule { .. } => "no_module",
            Self::AmbiguousModule { .. } => "ambiguous_module",
            Self::NoTrainingTraces { .. } => "no_training_traces",
            Self::UnusedScope { .. } => "unused_scope",
            Self::NotInStore { .. } => "not_in_store",
            Self::Examples(_) => "invalid_examples",
            Self::InvalidTokenName => "invalid_token_name",
        }
    }
}

impl From<repertoire_core::Error> for Error {
    fn from(error: repertoire_core::Error) -> Self {
        Self::Registry(error.into())
    }
}
