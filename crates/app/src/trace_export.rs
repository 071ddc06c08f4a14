//! Statistics of traces, and exports as lines of JSON.

use std::collections::BTreeMap;

use repertoire_core::{CallGroup, ExecutionRecord, Span};
use serde_json::{Value, json};

/// Statistics of one artifact over all its executions.
#[derive(Debug, Default)]
pub struct ArtifactStats {
    /// How often it was executed.
    pub runs: usize,
    /// How often it failed.
    pub errors: usize,
    times: Vec<u64>,
    /// The tokens of all executions.
    pub tokens: u64,
    /// The cost of all executions in US dollars, where known.
    pub cost: Option<f64>,
    /// How many assertions were checked.
    pub checked: u64,
    /// How many of them passed.
    pub passed: u64,
}

impl ArtifactStats {
    /// Returns a percentile of the durations in milliseconds.
    pub fn duration_percentile(&self, part: usize) -> u64 {
        let at = (self.times.len() * part).div_ceil(100).saturating_sub(1);
        self.times.get(at).copied().unwrap_or(0)
    }
}

/// Sums up traces by the names of their skill and artifact, and model calls that belong to no artifact
/// by command and purpose.
pub fn artifact_stats(
    traces: &[ExecutionRecord],
    calls: &[CallGroup],
) -> BTreeMap<(String, String), ArtifactStats> {
    let mut all: BTreeMap<(String, String), ArtifactStats> = BTreeMap::new();
    for trace in traces {
        let key = (trace.details.skill.clone(), trace.details.artifact.clone());
        let sums = all.entry(key).or_default();
        sums.runs += 1;
        sums.errors += usize::from(trace.error.is_some());
        sums.times.extend(trace.duration_ms);
        let tokens = [trace.input_tokens, trace.output_tokens];
        for tokens in tokens.into_iter().flatten() {
            sums.tokens = sums.tokens.saturating_add(tokens);
        }
        if let Some(cost) = trace.estimated_cost {
            sums.cost = Some(sums.cost.unwrap_or(0.0) + cost);
        }
        sums.checked = sums.checked.saturating_add(trace.assertions_run);
        sums.passed = sums.passed.saturating_add(trace.assertions_passed);
    }
    for group in calls {
        let key = (group.run.clone(), group.purpose.clone());
        let sums = all.entry(key).or_default();
        sums.runs += group.durations.len();
        sums.errors += group.errors;
        sums.times.extend(&group.durations);
        sums.tokens = sums.tokens.saturating_add(group.usage.total_tokens());
        if let Some(cost) = group.usage.cost {
            sums.cost = Some(sums.cost.unwrap_or(0.0) + cost);
        }
    }
    for sums in all.values_mut() {
        sums.times.sort_unstable();
    }
    all
}

/// Writes traces and spans as one JSON object in each line.
pub fn export_lines(traces: &[ExecutionRecord], spans: &[Span]) -> String {
    let traces = traces.iter().map(|trace| json!(trace));
    join_lines(traces.chain(spans.iter().map(|span| json!(span))))
}

/// Writes the executions that have an answer as training examples for DSPy, one in each line.
pub fn export_examples(traces: &[ExecutionRecord]) -> String {
    join_lines(traces.iter().filter_map(|trace| {
        // An execution without an answer is not an example.
        let (input, answer) = (trace.rendered_input.as_ref()?, trace.raw_output.as_ref()?);
        trace.model_id.as_ref()?;
        Some(json!({
            "input": input, "output": answer,
            "passed": trace.error.is_none() && trace.assertions_passed == trace.assertions_run,
            "skill": trace.details.skill, "artifact": trace.details.artifact,
            "model": trace.model_id, "assertions": trace.details.assertions,
        }))
    }))
}

fn join_lines(rows: impl Iterator<Item = Value>) -> String {
    rows.fold(String::new(), |mut text, row| {
        text.push_str(&row.to_string());
        text.push('\n');
        text
    })
}
