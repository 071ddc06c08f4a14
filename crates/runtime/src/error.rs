//! Why a run could not go on.

use std::time::Duration;

use repertoire_core::ArtifactKind;

/// A result of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, with a stable [`code`](Error::code).
///
/// No message holds a key: whatever comes from a provider is redacted where it enters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A template that cannot be read or rendered.
    #[error("template{}: {reason}", at(*line))]
    Template {
        /// The line, where it is known.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// A template that names something nobody gave.
    #[error("template{}: `{name}` is not defined: give it with {}", at(*line), way(name))]
    Undefined {
        /// The line, where it is known.
        line: Option<usize>,
        /// What is missing.
        name: String,
    },
    /// A template that wants more than it may have.
    #[error("template: {0}")]
    TemplateLimit(String),
    /// An artifact whose content or settings cannot be used.
    #[error("artifact {artifact:?}: {reason}")]
    Artifact {
        /// Its name.
        artifact: String,
        /// What is wrong.
        reason: String,
    },
    /// Nobody runs artifacts of that kind here.
    #[error("nothing here runs a {}", .0.as_str())]
    NoHandler(ArtifactKind),
    /// An artifact that needs the sidecar, which is not there, and names no fallback.
    #[error(
        "artifact {0:?} requires the Python sidecar, which is not available, and names no \
         fallback_artifact"
    )]
    NeedsSidecar(String),
    /// An artifact that needs the sandbox, which is not there.
    #[error("the Python sandbox is {0}")]
    NeedsSandbox(String),
    /// A script that failed by itself.
    #[error("script{}: {kind}{}", at(*line), told(message))]
    Script {
        /// The line, where it is known.
        line: Option<usize>,
        /// What Python calls it.
        kind: String,
        /// What was said about it.
        message: String,
    },
    /// A script that wanted more than it may have.
    #[error("the script was stopped: {0}")]
    ScriptLimit(String),
    /// A call of a script or a sidecar that makes no sense.
    #[error("{call}: {reason}")]
    Call {
        /// What was called.
        call: String,
        /// What is wrong about it.
        reason: String,
    },
    /// The sandbox itself did not work.
    #[error("sandbox: {0}")]
    Sandbox(String),
    /// The sidecar did not do what it should.
    #[error("sidecar: {0}")]
    Sidecar(String),
    /// A program of the sidecar that could not go on.
    #[error("program: {message}")]
    Program {
        /// What the sidecar calls it.
        code: String,
        /// What it says.
        message: String,
    },
    /// An assertion that has to hold and does not.
    #[error("artifact {artifact:?}: {explanation} (assertion: {description})")]
    Assertion {
        /// The artifact.
        artifact: String,
        /// What was checked.
        description: String,
        /// What was found.
        explanation: String,
    },
    /// No model was named, or none of that name is known.
    #[error("{0}")]
    Model(String),
    /// A provider whose key is not there.
    #[error("{0}")]
    Key(String),
    /// A cost limit for a model whose price nobody knows.
    #[error("no price is known for {0}, so that no cost limit can be kept")]
    NoPrice(String),
    /// A provider that did not answer as it should.
    #[error("{provider}: {reason}")]
    Provider {
        /// The provider.
        provider: String,
        /// The status of its answer, where there was one.
        status: Option<u16>,
        /// Whether it may have answered all the same, and charge for it.
        charged: bool,
        /// What it said, shortened and redacted.
        reason: String,
    },
    /// A provider that did not answer in time.
    #[error("{provider}: no answer within {} s", after.as_secs_f64())]
    Timeout {
        /// The provider.
        provider: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A run that would cost more than it may.
    #[error("the budget of this run does not allow more: {0}")]
    Budget(String),
    /// A model that could not decide what to do.
    #[error("the model made no decision that can be carried out: {0}")]
    Decision(String),
    /// The workspace could not be asked.
    #[error("workspace: {0}")]
    Workspace(String),
    /// Whoever asked has stopped waiting.
    #[error("interrupted")]
    Interrupted,
}

fn at(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}"))
        .unwrap_or_default()
}

fn told(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

/// How a value is given.
pub(crate) fn way(name: &str) -> String {
    match name {
        "message" | "query" => "--message".to_owned(),
        _ => format!("--param {name}=…"),
    }
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Template { .. } => "template_error",
            Self::Undefined { .. } => "undefined_variable",
            Self::TemplateLimit(_) => "template_limit",
            Self::Artifact { .. } => "invalid_artifact",
            Self::NoHandler(_) => "no_handler",
            Self::NeedsSidecar(_) => "needs_sidecar",
            Self::NeedsSandbox(_) => "needs_sandbox",
            Self::Script { .. } => "script_error",
            Self::ScriptLimit(_) => "script_limit",
            Self::Call { .. } => "invalid_call",
            Self::Sandbox(_) => "sandbox_error",
            Self::Sidecar(_) => "sidecar_error",
            Self::Program { .. } => "program_error",
            Self::Assertion { .. } => "assertion_failed",
            Self::Model(_) => "unknown_model",
            Self::Key(_) => "provider_key",
            Self::NoPrice(_) => "unknown_price",
            Self::Provider { status, .. } => match status {
                Some(401 | 403) => "provider_auth",
                Some(429) => "provider_rate_limited",
                _ => "provider_error",
            },
            Self::Timeout { .. } => "provider_timeout",
            Self::Budget(_) => "budget_exceeded",
            Self::Decision(_) => "no_decision",
            Self::Workspace(_) => "workspace_error",
            Self::Interrupted => "interrupted",
        }
    }

    /// The same, of one of several prompts.
    #[cfg(feature = "sandbox")]
    pub(crate) fn of_prompt(mut self, number: usize, many: usize) -> Self {
        if let Self::Provider { provider, .. } | Self::Timeout { provider, .. } = &mut self {
            *provider = format!("{provider}, prompt {number} of {many}");
        }
        self
    }

    /// Whether a model that failed with this has charged for nothing: one that was given up may
    /// have answered all the same.
    pub(crate) fn is_free(&self) -> bool {
        !matches!(
            self,
            Self::Timeout { .. } | Self::Interrupted | Self::Provider { charged: true, .. }
        )
    }

    /// A way out, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoHandler(ArtifactKind::CodeTemplate) => {
                Some("this build is without the feature `sandbox`")
            }
            Self::NeedsSandbox(_) => Some("`repertoire setup sandbox` builds it, in a minute"),
            Self::NeedsSidecar(_) => Some("`repertoire setup sidecar` installs it"),
            Self::ScriptLimit(_) => Some(
                "limits are those of [sandbox] in config.toml, or lower where the artifact's \
                 metadata say so: docs/run.md, Code",
            ),
            Self::Model(_) => Some(
                "name one with --model PROVIDER/MODEL, such as ollama/llama3.2, or set `model` in \
                 config.toml",
            ),
            Self::Provider {
                status: Some(401 | 403),
                ..
            } => Some(
                "check the provider's key: its environment variable, or key_file in config.toml",
            ),
            Self::NoPrice(_) => Some("add it under [prices] in config.toml: docs/run.md, Models"),
            Self::Provider { status: None, .. } => {
                Some("is its server running, and is base_url in config.toml right?")
            }
            Self::Sandbox(_) => Some("`repertoire setup sandbox --again` builds it anew"),
            Self::Decision(_) => Some(
                "a larger model decides better; `repertoire search` and `repertoire run SKILL` \
                 need no decision",
            ),
            Self::Budget(_) => Some("allow more with --max-tokens or --max-cost"),
            _ => None,
        }
    }
}
