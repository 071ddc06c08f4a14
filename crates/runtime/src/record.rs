//! The record of one execution, stored as one trace row.

use std::collections::BTreeMap;

use jiff::Timestamp;
use repertoire_core::{ArtifactKind, markdown::truncate_text};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{assertion::Verdict, model::ModelUsage, redact::Redactor};

/// The maximum number of characters of an input or output that a record keeps.
pub const MAX_RECORD_CHARS: usize = 64 * 1024;

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

/// Returns the current time, RFC 3339 in UTC.
pub(crate) fn now_rfc3339() -> String {
    format!("{:.3}", Timestamp::now())
}

impl ExecutionRecord {
    /// Removes secrets, and truncates long texts.
    pub(crate) fn redact_and_truncate(&mut self, redactor: &Redactor) {
        let texts = [
            &mut self.rendered_input,
            &mut self.raw_output,
            &mut self.error,
            &mut self.details.printed,
        ];
        for text in texts.into_iter().flatten() {
            *text = truncate_text(&redactor.redact(text), MAX_RECORD_CHARS);
        }
        for verdict in &mut self.details.assertions {
            verdict.explanation = verdict
                .explanation
                .as_deref()
                .map(|why| redactor.redact(why));
        }
    }

    /// The usage, including nested skills.
    pub fn usage(&self) -> ModelUsage {
        let mut all = self.own_usage();
        all.add_usage(self.details.others.unwrap_or_default());
        all
    }

    fn own_usage(&self) -> ModelUsage {
        ModelUsage {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cost: self.estimated_cost,
        }
    }

    pub(crate) fn add_usage(&mut self, usage: ModelUsage) {
        let mut all = self.own_usage();
        all.add_usage(usage);
        self.input_tokens = all.input_tokens;
        self.output_tokens = all.output_tokens;
        self.estimated_cost = all.cost;
    }
}
