//! Spans: the parts of a run as a tree.
//!
//! A run has artifacts, model calls, calls of scripts to the host and nested runs below it. The span of
//! an artifact is its [`ExecutionRecord`]; the other kinds are stored as spans.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    ExecutionRecord, ModelUsage,
    error::{Error, input_excerpt},
};

/// What a span stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A run of a skill, or a command that calls models: `ask`, `eval`, `optimize`.
    Run,
    /// The execution of an artifact.
    Artifact,
    /// A call of a model.
    ModelCall,
    /// A call of a script or program to the host.
    HostCall,
}

impl SpanKind {
    /// Its name in stores and exports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Artifact => "artifact",
            Self::ModelCall => "model_call",
            Self::HostCall => "host_call",
        }
    }
}

impl std::str::FromStr for SpanKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Run, Self::Artifact, Self::ModelCall, Self::HostCall]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| Error::UnknownSpanKind(input_excerpt(text)))
    }
}

/// One part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Its own id.
    pub id: Uuid,
    /// The session it belongs to.
    pub session_id: String,
    /// The span it is part of; none for the root of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// What it stands for.
    pub kind: SpanKind,
    /// The skill or command of a run, the name of an artifact or host call, the purpose of a model call.
    pub name: String,
    /// The skill's id in the catalogue, if the span belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// The version of the skill.
    #[serde(default, flatten)]
    pub version: SkillVersion,
    /// When it began, RFC 3339 in UTC.
    pub started_at: String,
    /// When it ended, RFC 3339 in UTC.
    pub completed_at: String,
    /// How long it took.
    pub duration_ms: u64,
    /// The prompt, or the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The completion, or the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The error, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The model that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Tokens and cost.
    #[serde(flatten)]
    pub usage: ModelUsage,
}

/// Model calls of one purpose within one run that belong to no stored artifact: decisions, answers
/// without a skill, programs that are optimized, and what a killed process had called.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallGroup {
    /// The session.
    pub session_id: String,
    /// The span the calls are part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// The command (`ask`, `eval`, `optimize`) or the skill; `unfinished` without a span of the run.
    pub run: String,
    /// Why the model was called.
    pub purpose: String,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// When the first call began.
    pub started_at: String,
    /// How many of the calls failed.
    pub errors: usize,
    /// The duration of each call in milliseconds.
    #[serde(rename = "durations_ms")]
    pub durations: Vec<u64>,
    /// The sum of tokens and cost.
    #[serde(flatten)]
    pub usage: ModelUsage,
}

/// Which version of a skill was run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillVersion {
    /// The digest over all files of the skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Its revision in the store it came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

impl From<&ExecutionRecord> for Span {
    /// The span of an artifact.
    fn from(record: &ExecutionRecord) -> Self {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Self {
            id: record.id,
            session_id: record.session_id.clone(),
            parent: record.details.parent,
            kind: SpanKind::Artifact,
            name: record.details.artifact.clone(),
            skill: text(&record.details.skill),
            version: record.details.version.clone(),
            started_at: record.started_at.clone(),
            completed_at: record
                .completed_at
                .clone()
                .unwrap_or_else(|| record.started_at.clone()),
            duration_ms: record.duration_ms.unwrap_or(0),
            input: record.rendered_input.clone(),
            output: record.raw_output.clone(),
            error: record.error.clone(),
            code: record.details.code.clone(),
            model_id: record.model_id.clone(),
            usage: ModelUsage {
                input_tokens: record.input_tokens,
                output_tokens: record.output_tokens,
                cost: record.estimated_cost,
            },
        }
    }
}
