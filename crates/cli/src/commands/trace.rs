//! `trace`: lists, shows, summarises, exports and deletes traces of executions.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use repertoire_app::{TraceExport, artifact_stats, export_traces, resolve_skill};
use repertoire_core::{ExecutionRecord, markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{Error, Registry, store::TraceFilter};
use serde_json::{Value, json};

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
            let traces = registry.traces(&build_filter(&registry, &which, Some(limit))?)?;
            list_traces(&traces, &which, output)
        }
        TraceCommand::Show { id } => {
            let trace = registry.find_trace(&id)?.ok_or(Error::NotFound {
                what: "trace",
                name: id,
            })?;
            show_trace(&trace, output)
        }
        TraceCommand::Stats { which } => print_stats(
            &registry.traces(&build_filter(&registry, &which, None)?)?,
            output,
        ),
        TraceCommand::Export {
            which,
            format,
            output: to,
        } => {
            let mut traces = registry.traces(&build_filter(&registry, &which, None)?)?;
            // Oldest first.
            traces.reverse();
            let format = match format {
                TraceFormat::Jsonl => TraceExport::Jsonl,
                TraceFormat::Dspy => TraceExport::Dspy,
                TraceFormat::Otel => TraceExport::Otel,
            };
            let text = export_traces(&traces, format);
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

fn list_traces(
    traces: &[ExecutionRecord],
    which: &TraceFilterArgs,
    output: &Output,
) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({"traces": traces}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if traces.is_empty() {
        output.print_note(if which.is_unfiltered() {
            "nothing has been run yet: repertoire run SKILL --model PROVIDER/MODEL"
        } else {
            "no execution matches"
        });
    }
    for trace in traces {
        let name = format!("{} / {}", trace.details.skill, trace.details.artifact);
        let model = trace.model_id.as_deref().unwrap_or("-");
        let found = match (&trace.error, trace.assertions_run) {
            (Some(error), _) => format!("error: {}", to_single_line(error)),
            (None, 0) => "ok".to_owned(),
            (None, all) => format!("ok, {}/{all} assertions", trace.assertions_passed),
        };
        let tokens = trace.input_tokens.unwrap_or(0) + trace.output_tokens.unwrap_or(0);
        let id = trace.id.to_string();
        let line = format!(
            "{}  {}  {}  {}  {} ms  {tokens} tokens{}  {}",
            id.get(..8).unwrap_or(&id),
            trace.started_at.get(..19).unwrap_or(&trace.started_at),
            terminal_safe(&name),
            terminal_safe(model),
            trace.duration_ms.unwrap_or(0),
            trace
                .estimated_cost
                .map(|cost| format!("  ${cost:.6}"))
                .unwrap_or_default(),
            terminal_safe(&found),
        );
        let line =
            terminal_width().map_or(line.clone(), |columns| truncate_to_width(&line, columns));
        output.print_text(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show_trace(trace: &ExecutionRecord, output: &Output) -> Result<ExitCode> {
    if output.json {
        output.print_json(trace)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
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
    line("model", trace.model_id.as_deref().unwrap_or_default());
    line("began", &trace.started_at);
    line("took", &format!("{} ms", trace.duration_ms.unwrap_or(0)));
    if let (Some(input), Some(written)) = (trace.input_tokens, trace.output_tokens) {
        line("tokens", &format!("{input} read, {written} written"));
    }
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

fn print_stats(traces: &[ExecutionRecord], output: &Output) -> Result<ExitCode> {
    let all = artifact_stats(traces);
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
            checked => format!("{:>3}%", sums.passed * 100 / checked),
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
    let columns = |time: u64| usize::try_from(time * COLUMNS / slowest).unwrap_or(0);
    let full = columns(middle);
    format!(
        "{}{}",
        "█".repeat(full),
        "░".repeat(columns(slow).saturating_sub(full))
    )
}
