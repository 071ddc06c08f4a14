//! `trace`: lists, shows, summarises, exports and deletes traces of executions.

use std::{collections::HashSet, fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use repertoire_app::{artifact_stats, export_examples, export_lines, resolve_skill, span_trees};
use repertoire_core::{
    CallGroup, ExecutionRecord, ModelUsage, Span, markdown::to_single_line, text::terminal_safe,
};
use repertoire_registry::{Error, Registry, store::TraceFilter};
use repertoire_serve::otlp;
use serde_json::{Value, json};

mod waterfall;

use super::open_registry;
use crate::{
    args::{TraceCommand, TraceFilterArgs, TraceFormat},
    output::{BOLD, DIM, Output, format_count, terminal_width, truncate_to_width},
    settings::CliSettings,
};

pub(crate) fn run(
    command: TraceCommand,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    match command {
        TraceCommand::List { which, limit } => {
            let filter = build_filter(&registry, &which, Some(limit))?;
            let traces = registry.traces(&filter)?;
            let calls = registry.model_calls(&filter)?;
            list_traces(&traces, &calls, limit, &which, output)
        }
        TraceCommand::Show { id } => show_any(&registry, &id, output),
        TraceCommand::Stats { which } => {
            let filter = build_filter(&registry, &which, None)?;
            let traces = registry.traces(&filter)?;
            let calls = registry.model_calls(&filter)?;
            print_stats(&traces, &calls, output)
        }
        TraceCommand::Export {
            which,
            format,
            output: to,
        } => {
            let filter = build_filter(&registry, &which, None)?;
            let mut traces = registry.traces(&filter)?;
            let mut spans = read_spans(&registry, filter)?;
            // Oldest first.
            traces.reverse();
            spans.reverse();
            let text = match format {
                TraceFormat::Jsonl => export_lines(&traces, &spans),
                TraceFormat::Dspy => export_examples(&traces),
                TraceFormat::Otel => format!("{}\n", otlp::export_json(&traces, &spans)?),
            };
            match to {
                None => output.print_bytes(text.as_bytes())?,
                Some(path) => {
                    let written = std::fs::write(&path, text);
                    written.with_context(|| path.display().to_string())?;
                    output.print_note(format!(
                        "{} in {}",
                        format_count(traces.len(), "trace"),
                        path.display()
                    ));
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        TraceCommand::Forget { older_than } => {
            let before = time_before(older_than)?;
            let number = registry.delete_traces(&before)?;
            if output.json {
                output.print_json(&json!({"forgotten": number, "before": before}))?;
            }
            output.print_note(format!("{} forgotten", format_count(number, "trace")));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn time_before(age: Duration) -> Result<String> {
    Ok(format!("{:.3}", Timestamp::now().checked_sub(age)?))
}

fn build_filter(
    registry: &Registry,
    which: &TraceFilterArgs,
    limit: Option<usize>,
) -> Result<TraceFilter> {
    // A removed skill is still known by the id in its traces.
    let skill = which.skill.as_ref();
    let skill = skill
        .map(|skill| resolve_skill(registry, skill))
        .transpose()?;
    Ok(TraceFilter {
        skill: skill.map(|skill| skill.id.to_string()),
        session: which.session.clone(),
        since: which.since.map(time_before).transpose()?,
        limit,
    })
}

/// Returns the spans of the sessions that a filter selects.
fn read_spans(registry: &Registry, filter: TraceFilter) -> Result<Vec<Span>> {
    // Only runs name a skill; their model calls do not. The limit is for rows, not for spans.
    let skill = filter.skill.clone();
    let mut spans = registry.spans(&TraceFilter {
        skill: None,
        limit: None,
        ..filter
    })?;
    if let Some(skill) = skill {
        let sessions: HashSet<String> = spans
            .iter()
            .filter(|span| span.skill.as_ref() == Some(&skill))
            .map(|span| span.session_id.clone())
            .collect();
        spans.retain(|span| sessions.contains(&span.session_id));
    }
    Ok(spans)
}

/// Shows an execution, another span, or a whole session, with the tree it belongs to.
fn show_any(registry: &Registry, id: &str, output: &Output) -> Result<ExitCode> {
    let missing = || Error::NotFound {
        what: "trace",
        name: id.to_owned(),
    };
    let session = registry.find_session(id)?.ok_or_else(missing)?;
    let filter = TraceFilter {
        session: Some(session.clone()),
        ..TraceFilter::default()
    };
    let (spans, records) = (registry.spans(&filter)?, registry.traces(&filter)?);
    let is_session = session.starts_with(id);
    let record = records.iter().find(|r| r.id.to_string().starts_with(id));
    let record = record.filter(|_| !is_session);
    let span = spans.iter().find(|s| s.id.to_string().starts_with(id));
    let span = span.filter(|_| !is_session).cloned();
    let chosen = record.map(|r| r.id).or(span.as_ref().map(|s| s.id));
    let mut trees = span_trees(spans, &records);
    if let Some(chosen) = chosen {
        trees.retain(|tree| tree.contains(chosen));
    }
    if output.json {
        match (record, &span) {
            (Some(record), _) => output.print_json(record)?,
            (None, Some(span)) => output.print_json(span)?,
            (None, None) => output.print_json(&json!({"session_id": session, "spans": trees}))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    for tree in &trees {
        output.print_text(&waterfall::draw(tree, chosen, terminal_width()))?;
    }
    match (record, &span) {
        (Some(record), _) => show_trace(record, output),
        (None, Some(span)) => show_span(span, output),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

fn show_span(span: &Span, output: &Output) -> Result<ExitCode> {
    let mut text = String::from("\n");
    let cost = span.usage.cost.map(|cost| format!("${cost:.6}"));
    let revision = span.version.revision.map(|number| number.to_string());
    for (name, value) in [
        ("span", &*span.id.to_string()),
        ("run", &*span.session_id),
        ("kind", span.kind.as_str()),
        ("name", &*span.name),
        ("skill", span.skill.as_deref().unwrap_or_default()),
        ("digest", span.version.digest.as_deref().unwrap_or_default()),
        ("revision", revision.as_deref().unwrap_or_default()),
        ("model", span.model_id.as_deref().unwrap_or_default()),
        ("began", &*span.started_at),
        ("took", &*format!("{} ms", span.duration_ms)),
        ("tokens", &*token_text(span.usage)),
        ("cost", cost.as_deref().unwrap_or_default()),
        ("error", span.error.as_deref().unwrap_or_default()),
    ] {
        if !value.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{BOLD}{name:<12}{BOLD:#} {}", terminal_safe(value));
        }
    }
    for (name, value) in [("input", &span.input), ("output", &span.output)] {
        if let Some(value) = value {
            let value = terminal_safe(value.trim_end());
            let _ = write!(text, "\n{BOLD}{name}{BOLD:#}\n{value}\n");
        }
    }
    output.print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Describes tokens, if they are known.
fn token_text(usage: ModelUsage) -> String {
    match (usage.input_tokens, usage.output_tokens) {
        (Some(input), Some(written)) => format!("{input} read, {written} written"),
        _ => String::new(),
    }
}

/// A row of the list, with the time by which it is ordered.
struct ListRow {
    began: String,
    line: String,
}

fn record_row(trace: &ExecutionRecord) -> ListRow {
    let found = match (&trace.error, trace.assertions_run) {
        (Some(error), _) => format!("error: {}", to_single_line(error)),
        (None, 0) => "ok".to_owned(),
        (None, all) => format!("ok, {}/{all} assertions", trace.assertions_passed),
    };
    list_row(
        &trace.id.to_string(),
        &trace.started_at,
        &format!("{} / {}", trace.details.skill, trace.details.artifact),
        trace.model_id.as_deref(),
        trace.duration_ms.unwrap_or(0),
        ModelUsage {
            input_tokens: trace.input_tokens,
            output_tokens: trace.output_tokens,
            cost: trace.estimated_cost,
        },
        &found,
    )
}

fn call_row(group: &CallGroup) -> ListRow {
    let parent = group.parent.map(|id| id.to_string());
    let found = match (group.errors, group.durations.len()) {
        (0, 1) => "ok".to_owned(),
        (0, calls) => format!("ok, {calls} calls"),
        (errors, calls) => format!("{errors} of {calls} calls failed"),
    };
    list_row(
        parent.as_deref().unwrap_or(&group.session_id),
        &group.started_at,
        &format!("{} / {}", group.run, group.purpose),
        group.model_id.as_deref(),
        group.durations.iter().sum(),
        group.usage,
        &found,
    )
}

fn list_row(
    id: &str,
    began: &str,
    name: &str,
    model: Option<&str>,
    duration_ms: u64,
    usage: ModelUsage,
    found: &str,
) -> ListRow {
    let cost = usage.cost.map(|cost| format!("  ${cost:.6}"));
    let line = format!(
        "{}  {}  {}  {}  {duration_ms} ms  {} tokens{}  {}",
        id.get(..8).unwrap_or(id),
        began.get(..19).unwrap_or(began),
        terminal_safe(name),
        terminal_safe(model.unwrap_or("-")),
        usage.total_tokens(),
        cost.unwrap_or_default(),
        terminal_safe(found),
    );
    ListRow {
        began: began.to_owned(),
        line,
    }
}

fn list_traces(
    traces: &[ExecutionRecord],
    calls: &[CallGroup],
    limit: usize,
    which: &TraceFilterArgs,
    output: &Output,
) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({"traces": traces, "calls": calls}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if traces.is_empty() && calls.is_empty() {
        output.print_note(if which.is_unfiltered() {
            "nothing has been run yet: repertoire run SKILL --model PROVIDER/MODEL"
        } else {
            "no execution matches"
        });
    }
    let mut rows: Vec<ListRow> = traces.iter().map(record_row).collect();
    rows.extend(calls.iter().map(call_row));
    rows.sort_by(|a, b| b.began.cmp(&a.began));
    for ListRow { line, .. } in rows.into_iter().take(limit) {
        let line =
            terminal_width().map_or(line.clone(), |columns| truncate_to_width(&line, columns));
        output.print_text(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show_trace(trace: &ExecutionRecord, output: &Output) -> Result<ExitCode> {
    let mut text = String::from("\n");
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{BOLD}{name:<12}{BOLD:#} {}", terminal_safe(value));
        }
    };
    line("trace", &trace.id.to_string());
    line("run", &trace.session_id);
    line("skill", &trace.details.skill);
    line(
        "artifact",
        &format!(
            "{} ({})",
            trace.details.artifact,
            trace.artifact_kind.as_str()
        ),
    );
    line(
        "variant",
        trace.details.variant.as_deref().unwrap_or_default(),
    );
    line(
        "stood in for",
        trace.details.fallback_for.as_deref().unwrap_or_default(),
    );
    let version = &trace.details.version;
    line("digest", version.digest.as_deref().unwrap_or_default());
    let revision = version.revision.map(|number| number.to_string());
    line("revision", revision.as_deref().unwrap_or_default());
    line("model", trace.model_id.as_deref().unwrap_or_default());
    line("began", &trace.started_at);
    line("took", &format!("{} ms", trace.duration_ms.unwrap_or(0)));
    let usage = ModelUsage {
        input_tokens: trace.input_tokens,
        output_tokens: trace.output_tokens,
        cost: None,
    };
    line("tokens", &token_text(usage));
    line(
        "cost",
        &trace
            .estimated_cost
            .map(|cost| format!("${cost:.6}"))
            .unwrap_or_default(),
    );
    for (name, used) in &trace.details.used {
        let limit = used.limit.map(|limit| format!(" of {limit}"));
        let used = used.used;
        line(
            "used",
            &format!("{name}: {used}{}", limit.unwrap_or_default()),
        );
    }
    line("error", trace.error.as_deref().unwrap_or_default());
    for verdict in &trace.details.assertions {
        let mark = if verdict.passed { "✓" } else { "✗" };
        let why = verdict.explanation.as_ref().map(|why| format!(": {why}"));
        let about = &verdict.description;
        line(
            "assertion",
            &format!("{mark} {about}{}", why.unwrap_or_default()),
        );
    }
    for (name, value) in [
        ("input", trace.rendered_input.as_deref()),
        ("printed", trace.details.printed.as_deref()),
        ("output", trace.raw_output.as_deref()),
    ] {
        if let Some(value) = value {
            let _ = write!(
                text,
                "\n{BOLD}{name}{BOLD:#}\n{}\n",
                terminal_safe(value.trim_end())
            );
        }
    }
    output.print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn print_stats(
    traces: &[ExecutionRecord],
    calls: &[CallGroup],
    output: &Output,
) -> Result<ExitCode> {
    let all = artifact_stats(traces, calls);
    if output.json {
        let rows: Vec<Value> = all
            .iter()
            .map(|((skill, artifact), sums)| {
                json!({
                    "skill": skill, "artifact": artifact, "runs": sums.runs,
                    "errors": sums.errors, "p50_ms": sums.duration_percentile(50),
                    "p95_ms": sums.duration_percentile(95), "p99_ms": sums.duration_percentile(99),
                    "tokens": sums.tokens, "cost": sums.cost,
                    "assertions_run": sums.checked, "assertions_passed": sums.passed,
                })
            })
            .collect();
        output.print_json(&json!({"artifacts": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let slowest = all
        .values()
        .map(|sums| sums.duration_percentile(95))
        .max()
        .unwrap_or(0)
        .max(1);
    let names = all
        .keys()
        .map(|(skill, artifact)| format!("{skill} / {artifact}"));
    let names: Vec<String> = names
        .map(|name| terminal_safe(&name).into_owned())
        .collect();
    let wide = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .min(48);
    output.print_text(&format!(
        "{DIM}{:<wide$}  runs  fail  {:>7} {:>7}  {:>8}  {:>10}  pass{DIM:#}\n",
        "artifact", "p50 ms", "p95 ms", "tokens", "cost"
    ))?;
    for (name, sums) in names.iter().zip(all.values()) {
        let rate = match sums.checked {
            0 => "   -".to_owned(),
            checked => format!("{:>3}%", sums.passed.saturating_mul(100) / checked),
        };
        let bar = latency_bar(
            sums.duration_percentile(50),
            sums.duration_percentile(95),
            slowest,
        );
        output.print_text(&format!(
            "{:<wide$}  {:>4}  {:>4}  {:>7} {:>7}  {:>8}  {:>10}  {rate}  {bar}\n",
            truncate_to_width(name, wide),
            sums.runs,
            sums.errors,
            sums.duration_percentile(50),
            sums.duration_percentile(95),
            sums.tokens,
            sums.cost
                .map_or("-".to_owned(), |cost| format!("${cost:.4}")),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Draws the median and the p95 latency as a bar.
fn latency_bar(middle: u64, slow: u64, slowest: u64) -> String {
    const COLUMNS: u64 = 20;
    let columns = |time: u64| usize::try_from(time.saturating_mul(COLUMNS) / slowest).unwrap_or(0);
    let full = columns(middle);
    format!(
        "{}{}",
        "█".repeat(full),
        "░".repeat(columns(slow).saturating_sub(full))
    )
}
