//! What is kept of one execution: the row of a trace.

use std::collections::BTreeMap;

use jiff::Timestamp;
use repertoire_core::{ArtifactKind, markdown::cut};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{assertion::Verdict, model::Usage, redact::Redactor};

/// The most characters of an input or an output that are kept.
pub const MAX_KEPT: usize = 64 * 1024;

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
    /// What it is.
    pub artifact_kind: ArtifactKind,
    /// What went in, after the values had been put in place.
    pub rendered_input: Option<String>,
    /// What came out.
    pub raw_output: Option<String>,
    /// Why nothing did.
    pub error: Option<String>,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// When it ended, RFC 3339.
    pub completed_at: Option<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// Tokens that were read.
    pub input_tokens: Option<u64>,
    /// Tokens that were written.
    pub output_tokens: Option<u64>,
    /// The model that was asked.
    pub model_id: Option<String>,
    /// US dollars, where the price is known.
    pub estimated_cost: Option<f64>,
    /// How many assertions were checked.
    pub assertions_run: u64,
    /// How many of them hold.
    pub assertions_passed: u64,
    /// What has no column of its own.
    pub details: Details,
}

/// What has no column of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    /// The skill's id in the catalogue.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub skill: String,
    /// The artifact's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub artifact: String,
    /// What tells the values it was run with from others: the beginning of their digest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub values: String,
    /// The variant that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The artifact this one stood in for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_for: Option<String>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// What was used of what there was, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub used: BTreeMap<String, Used>,
    /// What the skills it ran cost, which have rows of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<Usage>,
    /// What a script printed besides its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub printed: Option<String>,
    /// What was found of each assertion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub assertions: Vec<Verdict>,
}

/// How much of something was used, and how much there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// How much was used.
    pub used: u64,
    /// How much there was, where that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// Now, RFC 3339 in UTC.
pub(crate) fn now() -> String {
    format!("{:.3}", Timestamp::now())
}

impl ExecutionRecord {
    /// Takes out secrets, and cuts what is too long to keep.
    pub(crate) fn tidy(&mut self, redactor: &Redactor) {
        let texts = [
            &mut self.rendered_input,
            &mut self.raw_output,
            &mut self.error,
            &mut self.details.printed,
        ];
        for text in texts.into_iter().flatten() {
            *text = cut(&redactor.redact(text), MAX_KEPT);
        }
        for verdict in &mut self.details.assertions {
            verdict.explanation = verdict
                .explanation
                .as_deref()
                .map(|why| redactor.redact(why));
        }
    }

    /// What it cost, with the skills it ran.
    pub fn usage(&self) -> Usage {
        let mut all = self.own_usage();
        all.add(self.details.others.unwrap_or_default());
        all
    }

    fn own_usage(&self) -> Usage {
        Usage {
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cost: self.estimated_cost,
        }
    }

    pub(crate) fn charge(&mut self, usage: Usage) {
        let mut all = self.own_usage();
        all.add(usage);
        self.input_tokens = all.input_tokens;
        self.output_tokens = all.output_tokens;
        self.estimated_cost = all.cost;
    }
}
