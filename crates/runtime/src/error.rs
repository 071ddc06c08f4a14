//! The errors of this crate.

use std::time::Duration;

use repertoire_core::ArtifactKind;

/// A result of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the runtime, with a stable [`code`](Error::code).
///
/// No message holds a key: provider text is redacted where it enters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A template that cannot be parsed or rendered.
    #[error("template{}: {reason}", line_suffix(*line))]
    Template {
        /// The line, if known.
        line: Option<usize>,
        /// The reason.
        reason: String,
    },
    /// A template that uses a variable without a value.
    #[error("template{}: `{name}` is not defined", line_suffix(*line))]
    UndefinedVariable {
        /// The line, if known.
        line: Option<usize>,
        /// The missing variable.
        name: String,
    },
    /// A template that exceeds a limit.
    #[error("template: {0}")]
    TemplateLimit(String),
    /// An artifact whose content or settings cannot be used.
    #[error("artifact {artifact:?}: {reason}")]
    Artifact {
        /// Its name.
        artifact: String,
        /// The reason.
        reason: String,
    },
    /// A name that no artifact of the skill has.
    #[error("artifact {name:?} not found: it has {known}")]
    NoArtifact {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// No handler is registered for this artifact kind.
    #[error("no handler is available for a {}", .0.as_str())]
    NoHandler(ArtifactKind),
    /// An artifact that needs the sidecar, which is not available, and names no fallback.
    #[error(
        "artifact {0:?} requires the Python sidecar, which is not available, and names no \
         fallback_artifact"
    )]
    NeedsSidecar(String),
    /// An artifact that needs the sandbox, which is not available.
    #[error("the Python sandbox is {0}")]
    NeedsSandbox(String),
    /// A script that raised an exception.
    #[error("script{}: {kind}{}", line_suffix(*line), message_suffix(message))]
    Script {
        /// The line, if known.
        line: Option<usize>,
        /// The name of the Python exception.
        kind: String,
        /// The message of the exception.
        message: String,
    },
    /// A script that exceeded a limit.
    #[error("the script was stopped: {0}")]
    ScriptLimit(String),
    /// An invalid call made by a script or the sidecar.
    #[error("{call}: {reason}")]
    InvalidCall {
        /// The name of the call.
        call: String,
        /// The reason.
        reason: String,
    },
    /// A failure of the sandbox itself.
    #[error("sandbox: {0}")]
    Sandbox(String),
    /// A failure of the sidecar process or its protocol.
    #[error("sidecar: {0}")]
    Sidecar(String),
    /// A sidecar program that failed.
    #[error("program: {message}")]
    Program {
        /// The error code sent by the sidecar.
        code: String,
        /// The message sent by the sidecar.
        message: String,
    },
    /// A hard assertion that failed.
    #[error("artifact {artifact:?}: {explanation} (assertion: {description})")]
    Assertion {
        /// The artifact.
        artifact: String,
        /// The description of the check.
        description: String,
        /// Why it failed.
        explanation: String,
    },
    /// No model was configured, or its name is unknown.
    #[error("{0}")]
    Model(String),
    /// A provider without a usable key.
    #[error("{0}")]
    Key(String),
    /// A cost limit for a model without a known price.
    #[error("no price is known for {0}, so the cost limit cannot be enforced")]
    NoPrice(String),
    /// A provider that returned an error or an invalid response.
    #[error("{provider}: {reason}")]
    Provider {
        /// The provider.
        provider: String,
        /// The HTTP status, if there was a response.
        status: Option<u16>,
        /// Whether the provider may have processed the request and may charge for it.
        charged: bool,
        /// The provider's error message, shortened and redacted.
        reason: String,
    },
    /// A provider that did not respond in time.
    #[error("{provider}: no answer within {} s", after.as_secs_f64())]
    Timeout {
        /// The provider.
        provider: String,
        /// The deadline that passed.
        after: Duration,
    },
    /// A run that would exceed its budget.
    #[error("the budget of this run does not allow more: {0}")]
    Budget(String),
    /// A model that returned no valid decision.
    #[error("the model made no decision that can be carried out: {0}")]
    Decision(String),
    /// The workspace could not be read.
    #[error("workspace: {0}")]
    Workspace(String),
    /// The caller cancelled the run.
    #[error("interrupted")]
    Interrupted,
}

fn line_suffix(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}"))
        .unwrap_or_default()
}

fn message_suffix(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

/// Said when a template or a script queries pages and the run has none.
pub const NO_PAGES: &str = "there is no folder of pages to query";

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Template { .. } => "template_error",
            Self::UndefinedVariable { .. } => "undefined_variable",
            Self::TemplateLimit(_) => "template_limit",
            Self::Artifact { .. } => "invalid_artifact",
            Self::NoArtifact { .. } => "not_found",
            Self::NoHandler(_) => "no_handler",
            Self::NeedsSidecar(_) => "needs_sidecar",
            Self::NeedsSandbox(_) => "needs_sandbox",
            Self::Script { .. } => "script_error",
            Self::ScriptLimit(_) => "script_limit",
            Self::InvalidCall { .. } => "invalid_call",
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

    /// Adds the number of the failed prompt to an error from a batch.
    #[cfg(feature = "sandbox")]
    pub(crate) fn with_prompt_number(mut self, number: usize, many: usize) -> Self {
        if let Self::Provider { provider, .. } | Self::Timeout { provider, .. } = &mut self {
            *provider = format!("{provider}, prompt {number} of {many}");
        }
        self
    }

    /// Whether a model call that failed with this error is certainly free. A timed-out or cancelled
    /// call may still have been answered and charged.
    pub(crate) fn is_free(&self) -> bool {
        !matches!(
            self,
            Self::Timeout { .. } | Self::Interrupted | Self::Provider { charged: true, .. }
        )
    }
}
