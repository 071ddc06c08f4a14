//! `run`: executes the artifacts of a skill and stores a trace of each.

use std::{
    io::{IsTerminal, Read, Write},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use repertoire_app::{
    PlannedStep, PreparedRun, RunLimits, RunRequest, Runner, RunnerSettings, TraceListener,
    require_folder,
};
use repertoire_core::{ArtifactKind, text::terminal_safe};
use repertoire_registry::Registry;
use repertoire_runtime::{
    ExecutionRecord, ModelUsage, Redactor, Vault, Workspace,
    model::ReplyListener,
    run::{RunReport, SkippedArtifact},
};
use repertoire_serve::otlp::OtlpExporter;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{open_skill, serve::build_runtime};
use crate::{
    args::{ModelArgs, ParamValue, RunArgs},
    failure,
    hint::run_hint,
    interrupt,
    output::{BOLD, DIM, DelayedSpinner, Output, format_count},
    settings::CliSettings,
};

/// Whether a command calls a model, which then has to be configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelUse {
    Calls,
    Never,
}

pub(crate) fn run(args: &RunArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let (registry, skill) = open_skill(&args.skill, settings, output)?;
    let model_use = if args.dry_run {
        ModelUse::Never
    } else {
        ModelUse::Calls
    };
    let runner = build_runner(registry, &args.model, model_use, settings)?;
    let spinner = DelayedSpinner::default();
    let listener = stream_answers(output, &spinner);
    let request = RunRequest {
        artifacts: args.artifacts.clone(),
        values: param_values(&args.params)?,
        message: args.message.as_deref().map(read_message).transpose()?,
        resume: args.resume.clone(),
        listener: listener.clone(),
        stop: CancellationToken::new(),
    };
    if args.dry_run {
        let (steps, run) = runner.dry_run(&skill, &request)?;
        return show_plan(&steps, &run, output);
    }
    let run = runner.plan(&skill, &request)?;
    run.require_model()?;
    warn_of_changed_values(&run, output);
    stop_on_signal(run.stop_token());
    let runtime = build_runtime()?;
    spinner.restart(output, &format!("running {}", skill.id));
    let report = runtime.block_on(run.execute());
    spinner.finish();
    print_report(report, listener.is_some(), output)
}

fn warn_of_changed_values(run: &PreparedRun, output: &Output) {
    if run.values_changed {
        output.print_warning(
            "the session was run with another --param or --message: the checkpoints of its \
             scripts are for those",
        );
    }
}

/// Builds a runner from the command line and the settings.
pub(super) fn build_runner(
    registry: Arc<Registry>,
    args: &ModelArgs,
    model_use: ModelUse,
    settings: &CliSettings,
) -> Result<Runner> {
    let id = args.id.as_deref().or(settings.model.as_deref());
    let id = id.filter(|_| model_use == ModelUse::Calls);
    let vault = args.vault.as_deref().or(settings.vault.as_deref());
    let limits = RunLimits {
        max_tokens: args.max_tokens,
        max_cost: args.max_cost,
        answer_tokens: args.answer_tokens,
    };
    let settings = runner_settings(id, vault, limits, settings)?;
    Ok(Runner::new(registry, settings))
}

/// Resolves how skills are run.
pub(super) fn runner_settings(
    model: Option<&str>,
    vault: Option<&Path>,
    limits: RunLimits,
    settings: &CliSettings,
) -> Result<RunnerSettings> {
    let providers = settings.resolved_providers();
    if let Some(folder) = vault {
        require_folder(folder)?;
    }
    let vault = vault.map(Vault::open).transpose()?;
    Ok(RunnerSettings {
        model: model.map(|id| providers.resolve_model(id)).transpose()?,
        workspace: vault.map(|vault| Arc::new(vault) as Arc<dyn Workspace>),
        dispatcher: settings.components().dispatcher(settings.script_limits),
        redactor: Redactor::with_environment(providers.secrets()),
        limits,
        trace_listener: otlp_exporter(),
        usage: settings.usage,
    })
}

/// Starts the exporter of traces if the environment names a collector. The variables may be meant for
/// other programs, so none of them keeps a skill from running.
fn otlp_exporter() -> Option<Arc<dyn TraceListener>> {
    match OtlpExporter::from_environment() {
        Ok(exporter) => exporter.map(|exporter| exporter as Arc<dyn TraceListener>),
        Err(error) => {
            tracing::warn!(%error, "traces are not exported");
            None
        }
    }
}

/// Returns a listener that prints answers as they are streamed, if stdout is a terminal.
///
/// The spinner is cleared before the first piece.
pub(super) fn stream_answers(output: &Output, spinner: &DelayedSpinner) -> Option<ReplyListener> {
    if output.json || !std::io::stdout().is_terminal() {
        return None;
    }
    let spinner = spinner.clone();
    Some(Arc::new(move |text: &str| {
        spinner.finish();
        let mut out = std::io::stdout().lock();
        // If stdout is closed, the run still stores its trace.
        let _ = out.write_all(terminal_safe(text).as_bytes());
        let _ = out.flush();
    }))
}

/// Makes the first Ctrl-C stop the run in an orderly way, so that its trace is kept.
pub(super) fn stop_on_signal(stop: &CancellationToken) {
    let stop = stop.clone();
    interrupt::set_shutdown_handler(move || stop.cancel());
}

/// Returns the message, read from stdin for `-`.
pub(super) fn read_message(message: &str) -> Result<String> {
    if message != "-" {
        return Ok(message.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn param_values(params: &[(String, ParamValue)]) -> Result<Map<String, Value>> {
    let mut values = Map::new();
    for (name, param) in params {
        let value = match param {
            ParamValue::Text(text) => json!(text),
            ParamValue::Json(value) => value.clone(),
            ParamValue::File(path) => {
                let text = std::fs::read_to_string(path);
                json!(text.with_context(|| format!("--param {name}: {}", path.display()))?)
            }
        };
        values.insert(name.clone(), value);
    }
    Ok(values)
}

/// Prints the rendered steps without running them.
fn show_plan(steps: &[PlannedStep], run: &PreparedRun, output: &Output) -> Result<ExitCode> {
    warn_of_changed_values(run, output);
    for step in steps {
        if let Some(name) = &step.fallback_for {
            output.print_warning(terminal_safe(&format!(
                "{name}: the sidecar is not available, so {} stands in for it",
                step.artifact.artifact.name
            )));
        }
    }
    let skipped: Vec<String> = run.plan.skipped.iter().map(skipped_text).collect();
    if output.json {
        let steps: Vec<Value> = steps
            .iter()
            .map(|step| {
                let artifact = &step.artifact.artifact;
                json!({
                    "artifact": artifact.name, "kind": artifact.kind,
                    "variant": artifact.model_variant, "text": step.text,
                })
            })
            .collect();
        output.print_json(&json!({"steps": steps, "skipped": skipped}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for step in steps {
        let name = terminal_safe(&step.artifact.artifact.name);
        let kind = step.artifact.artifact.kind.as_str();
        output.print_text(&format!(
            "{BOLD}{name}{BOLD:#} {DIM}({kind}){DIM:#}\n{}\n\n",
            terminal_safe(step.text.trim_end())
        ))?;
    }
    for skipped in &skipped {
        output.print_warning(terminal_safe(skipped));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says why an artifact is skipped, and what to do about it.
fn skipped_text(skipped: &SkippedArtifact) -> String {
    let hint = run_hint(&skipped.reason).map(|hint| format!(" ({hint})"));
    format!("{skipped}{}", hint.unwrap_or_default())
}

/// Returns everything that the user should know about a run that did not fail.
fn report_warnings(report: &RunReport) -> Vec<String> {
    let skipped = report.skipped.iter().map(skipped_text);
    skipped.chain(report.warnings.iter().cloned()).collect()
}

/// Returns the JSON form of a report.
pub(super) fn report_to_json(report: &RunReport, usage: ModelUsage) -> Value {
    let (text, value) = match &report.outcome {
        Ok(done) => (Some(&done.text), done.value.as_ref()),
        Err(_) => (None, None),
    };
    json!({
        "session": report.session_id, "output": text, "value": value,
        "error": report.outcome.as_ref().err().map(|error| json!({
            "code": error.code(), "message": error.to_string(),
        })),
        "warnings": report_warnings(report), "usage": usage, "traces": report.records,
    })
}

fn print_report(report: RunReport, live: bool, output: &Output) -> Result<ExitCode> {
    let usage = report.usage();
    if output.json {
        output.print_json(&report_to_json(&report, usage))?;
    } else {
        print_text_report(&report, usage, live, output)?;
    }
    report_exit_code(report, output)
}

/// Prints the answer on stdout and the usage on stderr.
pub(super) fn print_text_report(
    report: &RunReport,
    usage: ModelUsage,
    live: bool,
    output: &Output,
) -> Result<()> {
    if let Ok(done) = &report.outcome {
        // Only answers to prompts are streamed.
        let is_prompt =
            |record: &ExecutionRecord| record.artifact_kind == ArtifactKind::PromptTemplate;
        if live && (report.records.is_empty() || report.records.iter().any(is_prompt)) {
            output.print_text("\n")?;
        }
        if !live || report.records.last().is_some_and(|last| !is_prompt(last)) {
            output.print_bytes(format!("{}\n", done.text.trim_end()).as_bytes())?;
        }
    }
    for warning in &report_warnings(report) {
        output.print_warning(terminal_safe(warning));
    }
    let time: u64 = report
        .records
        .iter()
        .filter_map(|record| record.duration_ms)
        .sum();
    let cost = usage
        .cost
        .map(|cost| format!(", ${cost:.6}"))
        .unwrap_or_default();
    let (read, written) = (usage.input_tokens, usage.output_tokens);
    let tokens = format!("{} + {} tokens", read.unwrap_or(0), written.unwrap_or(0));
    if report.records.is_empty() {
        output.print_note(format!(
            "{DIM}{tokens}{cost}; no skill was run · session {}{DIM:#}",
            report.session_id
        ));
        return Ok(());
    }
    output.print_note(format!(
        "{DIM}{}, {time} ms, {tokens}{cost} · repertoire trace list --session {}{DIM:#}",
        format_count(report.records.len(), "artifact"),
        report.session_id,
    ));
    Ok(())
}

/// Returns the exit code of a run.
pub(super) fn report_exit_code(report: RunReport, output: &Output) -> Result<ExitCode> {
    match report.outcome {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) if output.json => Ok(ExitCode::from(failure::exit_code(error.code()))),
        Err(error) => Err(error.into()),
    }
}
