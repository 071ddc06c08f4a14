//! The record of one execution, which a store keeps as one trace row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{ArtifactKind, SkillVersion};

/// One execution of one artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionRecord {
    /// Its own id.
    pub id: Uuid,
    /// The run it is part of.
    pub session_id: String,
    /// The skill.
    pub skill_id: String,
    /// The artifact that was executed.
    pub artifact_id: String,
    /// The kind of the artifact.
    pub artifact_kind: ArtifactKind,
    /// The input after template rendering.
    pub rendered_input: Option<String>,
    /// The output.
    pub raw_output: Option<String>,
    /// The error, if the execution failed.
    pub error: Option<String>,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// When it ended, RFC 3339.
    pub completed_at: Option<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// Input tokens.
    pub input_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// The model that was called.
    pub model_id: Option<String>,
    /// US dollars, if the price is known.
    pub estimated_cost: Option<f64>,
    /// How many assertions were checked.
    pub assertions_run: u64,
    /// How many assertions passed.
    pub assertions_passed: u64,
    /// Details without a column of their own.
    pub details: RecordDetails,
}

/// Details of an execution that have no column of their own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordDetails {
    /// The skill's id in the catalogue.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub skill: String,
    /// The artifact's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub artifact: String,
    /// The span of the run it is part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// The version of the skill.
    #[serde(default, flatten)]
    pub version: SkillVersion,
    /// The position of the artifact in its skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<i64>,
    /// The prefix of the digest of the input values, to compare runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub values: String,
    /// The variant that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The artifact that this one replaced as a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_for: Option<String>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Resource use by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used: BTreeMap<String, ResourceUse>,
    /// The usage of nested skills, which have records of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<ModelUsage>,
    /// The text a script printed besides its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<String>,
    /// What the author of a script should know of this run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The verdict of each assertion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<Verdict>,
}

/// The used amount of a resource, and its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUse {
    /// The used amount.
    pub used: u64,
    /// The limit, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl ExecutionRecord {
    /// The usage, including nested skills.
    pub fn usage(&self) -> ModelUsage {
        let mut all = self.own_usage();
        all.add_usage(self.details.others.unwrap_or_default());
        all
    }

    /// Adds the usage of a model call of this execution.
    pub fn add_usage(&mut self, usage: ModelUsage) {
        let mut all = self.own_usage();
        all.add_usage(usage);
        self.input_tokens = all.input_tokens;
        self.output_tokens = all.output_tokens;
        self.estimated_cost = all.cost;
    }

    fn own_usage(&self) -> ModelUsage {
        ModelUsage {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cost: self.estimated_cost,
        }
    }
}

/// Tokens and cost of model calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelUsage {
    /// Input tokens.
    pub input_tokens: Option<u64>,
    /// Output tokens.
    pub output_tokens: Option<u64>,
    /// US dollars, if the price is known.
    pub cost: Option<f64>,
}

impl ModelUsage {
    /// Adds the usage of another call.
    pub fn add_usage(&mut self, other: Self) {
        fn sum_options<T: std::ops::Add<Output = T>>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a + b),
                (a, b) => a.or(b),
            }
        }
        self.input_tokens = sum_options(self.input_tokens, other.input_tokens);
        self.output_tokens = sum_options(self.output_tokens, other.output_tokens);
        self.cost = sum_options(self.cost, other.cost);
    }

    /// The sum of input and output tokens.
    pub fn total_tokens(&self) -> u64 {
        self.input_tokens.unwrap_or(0) + self.output_tokens.unwrap_or(0)
    }
}

/// The result of one assertion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The description of the check.
    pub description: String,
    /// The consequence of a failure.
    pub severity: AssertionSeverity,
    /// Whether it passed.
    pub passed: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
}

/// The consequence of a failed assertion.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AssertionSeverity {
    /// The run ends.
    #[default]
    Hard,
    /// The run continues with a warning.
    Soft,
}
