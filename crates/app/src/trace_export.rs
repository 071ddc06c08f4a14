//! Statistics and exports of traces.

use std::collections::BTreeMap;

use jiff::Timestamp;
use repertoire_core::ExecutionRecord;
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

/// Sums up traces by the names of their skill and artifact.
pub fn artifact_stats(traces: &[ExecutionRecord]) -> BTreeMap<(String, String), ArtifactStats> {
    let mut all: BTreeMap<(String, String), ArtifactStats> = BTreeMap::new();
    for trace in traces {
        let key = (trace.details.skill.clone(), trace.details.artifact.clone());
        let sums = all.entry(key).or_default();
        sums.runs += 1;
        sums.errors += usize::from(trace.error.is_some());
        sums.times.extend(trace.duration_ms);
        sums.tokens += trace.input_tokens.unwrap_or(0) + trace.output_tokens.unwrap_or(0);
        if let Some(cost) = trace.estimated_cost {
            sums.cost = Some(sums.cost.unwrap_or(0.0) + cost);
        }
        sums.checked += trace.assertions_run;
        sums.passed += trace.assertions_passed;
    }
    for sums in all.values_mut() {
        sums.times.sort_unstable();
    }
    all
}

/// A format of exported traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceExport {
    /// One JSON object in each line.
    Jsonl,
    /// Training examples for DSPy, one in each line.
    Dspy,
    /// OpenTelemetry spans.
    Otel,
}

/// Writes traces in a format.
pub fn export_traces(traces: &[ExecutionRecord], format: TraceExport) -> String {
    let lines = |rows: &mut dyn Iterator<Item = Value>| {
        rows.fold(String::new(), |mut text, row| {
            text.push_str(&row.to_string());
            text.push('\n');
            text
        })
    };
    match format {
        TraceExport::Jsonl => lines(&mut traces.iter().map(|trace| json!(trace))),
        TraceExport::Dspy => lines(&mut traces.iter().filter_map(|trace| {
            // An execution without an answer is not an example.
            let (input, answer) = (trace.rendered_input.as_ref()?, trace.raw_output.as_ref()?);
            trace.model_id.as_ref()?;
            Some(json!({
                "input": input, "output": answer,
                "passed": trace.error.is_none() && trace.assertions_passed == trace.assertions_run,
                "skill": trace.details.skill, "artifact": trace.details.artifact,
                "model": trace.model_id, "assertions": trace.details.assertions,
            }))
        })),
        TraceExport::Otel => {
            let spans: Vec<Value> = traces.iter().map(otel_span).collect();
            let text =
                |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
            let value = json!({"resourceSpans": [{
                "resource": {"attributes": [
                    text("service.name", "repertoire"),
                    text("service.version", env!("CARGO_PKG_VERSION")),
                ]},
                "scopeSpans": [{"scope": {"name": "repertoire.runtime"}, "spans": spans}],
            }]});
            format!("{value}\n")
        }
    }
}

/// Converts one execution to a span; the executions of one run share a trace id.
fn otel_span(trace: &ExecutionRecord) -> Value {
    let hex = |id: &str, digits: usize| {
        let digits_only: String = id.chars().filter(char::is_ascii_hexdigit).collect();
        format!("{digits_only:0<digits$}")[..digits].to_owned()
    };
    let nanos = |time: &str| {
        let time: Option<Timestamp> = time.parse().ok();
        time.map_or_else(|| "0".to_owned(), |time| time.as_nanosecond().to_string())
    };
    let ended = trace.completed_at.as_deref().unwrap_or(&trace.started_at);
    let mut attributes =
        vec![json!({"key": "gen_ai.operation.name", "value": {"stringValue": "execute_artifact"}})];
    let texts = [
        (
            "gen_ai.request.model",
            trace.model_id.as_deref().unwrap_or_default(),
        ),
        ("repertoire.skill", &*trace.details.skill),
        ("repertoire.artifact", &*trace.details.artifact),
        ("repertoire.artifact.kind", trace.artifact_kind.as_str()),
        (
            "repertoire.fallback_for",
            trace.details.fallback_for.as_deref().unwrap_or_default(),
        ),
        (
            "error.type",
            trace.details.code.as_deref().unwrap_or_default(),
        ),
    ];
    let texts = texts.iter().filter(|(_, value)| !value.is_empty());
    attributes
        .extend(texts.map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})));
    let numbers = [
        ("gen_ai.usage.input_tokens", trace.input_tokens),
        ("gen_ai.usage.output_tokens", trace.output_tokens),
        ("repertoire.assertions.run", Some(trace.assertions_run)),
        (
            "repertoire.assertions.passed",
            Some(trace.assertions_passed),
        ),
    ];
    attributes.extend(numbers.iter().filter_map(|(key, number)| {
        let number = (*number)?.to_string();
        Some(json!({"key": key, "value": {"intValue": number}}))
    }));
    if let Some(cost) = trace.estimated_cost {
        attributes.push(json!({"key": "repertoire.cost_usd", "value": {"doubleValue": cost}}));
    }
    let status = match &trace.error {
        Some(error) => json!({"code": 2, "message": error}),
        None => json!({"code": 1}),
    };
    json!({
        "traceId": hex(&trace.session_id, 32), "spanId": hex(&trace.id.to_string(), 16),
        "name": format!("{} {}", trace.artifact_kind.as_str(), trace.details.artifact), "kind": 1,
        "startTimeUnixNano": nanos(&trace.started_at), "endTimeUnixNano": nanos(ended),
        "attributes": attributes, "status": status,
    })
}
