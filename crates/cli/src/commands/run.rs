//! `run`: executes the artifacts of a skill and records a trace of each.

use std::{
    io::{IsTerminal, Read, Write},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use repertoire_core::{ArtifactKind, text::terminal_safe};
use repertoire_registry::{Error, QualifiedSkillId, Registry, SkillEntry, store::TraceFilter};
use repertoire_runtime::{
    ArtifactDispatcher, Budget, Error as RunError, ExecutionContext, ExecutionRecord, MeteredModel,
    Model, ModelUsage, PromptEngine, Redactor, SkillSource, Vault,
    run::{RunPlan, RunReport, plan_run, run_plan as carry_out},
    sidecar::{DspyHandler, Sidecar},
    template::read_constants,
};
use repertoire_serve::runs::{RunnableSkill, attach_registry, trace_from_record};
use serde_json::{Map, Value, json};

use super::{open_registry, serve::build_runtime};
use crate::{
    args::{ModelArgs, ParamValue, RunArgs},
    failure::{self, UsageError as WrongUsage},
    interrupt,
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(args: &RunArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let entry = find_entry(&registry, &args.skill)?;
    let skill = RunnableSkill::new(&registry, &entry)?;
    let message = args.message.as_deref();
    let asks = !args.dry_run;
    let mut context = build_context(&args.model, &args.params, message, asks, settings)?;
    let dispatcher = build_dispatcher(settings);
    attach_registry(&mut context, &registry, &dispatcher);
    if let Some(session) = &args.resume {
        let known = TraceFilter {
            skill: Some(skill.outline().skill_id.clone()),
            session: Some(session.clone()),
            ..TraceFilter::default()
        };
        let before = registry.traces(&known)?;
        if before.is_empty() {
            return Err(WrongUsage(format!(
                "{} was not run in a session {session:?}: `repertoire trace list --skill {} --json` \
                 shows those there are",
                args.skill, args.skill
            ))
            .into());
        }
        let newest = before
            .iter()
            .find_map(|trace| trace.details["values"].as_str());
        if newest.is_some_and(|values| values != context.fingerprint()) {
            output.print_warning(
                "the session was run with another --param or --message: the checkpoints of its \
                 scripts are for those",
            );
        }
        context.session_id.clone_from(session);
    }
    let steps = plan_run(
        &skill,
        &dispatcher,
        &context.model_family(),
        &args.artifacts,
    )?;
    if args.dry_run {
        return show_plan(&skill, &dispatcher, &steps, &context, output);
    }
    if context.model.is_none() && steps.requires_model() {
        let none = "this skill asks a model, and none was named".to_owned();
        return Err(RunError::Model(none).into());
    }
    let live = stream_answers(&mut context, output);
    stop_on_signal(&context);
    let report = build_runtime()?.block_on(run_and_trace(
        &registry,
        &skill,
        &dispatcher,
        &steps,
        &mut context,
        output,
    ));
    print_report(report, live, output)
}

/// Builds the dispatcher with a handler for each kind of artifact.
pub(super) fn build_dispatcher(settings: &CliSettings) -> ArtifactDispatcher {
    let mut dispatcher = ArtifactDispatcher::default();
    #[cfg(feature = "sandbox")]
    dispatcher.add_handler(Arc::new(repertoire_runtime::sandbox::ScriptHandler::new(
        super::setup::sandbox::sandbox_dir(settings),
        settings.script_limits,
    )));
    let sidecar = Sidecar::new(super::setup::sidecar::sidecar_program(settings));
    let modules = DspyHandler::new(Arc::new(sidecar), settings.script_limits);
    dispatcher.add_handler(Arc::new(modules));
    dispatcher
}

/// Streams answers to a terminal; returns whether it does.
pub(super) fn stream_answers(context: &mut ExecutionContext, output: &Output) -> bool {
    let live = !output.json && std::io::stdout().is_terminal();
    if live {
        context.listener = Some(Arc::new(|text: &str| {
            let mut out = std::io::stdout().lock();
            // If stdout is closed, the run still records its trace.
            let _ = out.write_all(terminal_safe(text).as_bytes());
            let _ = out.flush();
        }));
    }
    live
}

/// Makes the first Ctrl-C stop the run in an orderly way, so that its trace is kept.
pub(super) fn stop_on_signal(context: &ExecutionContext) {
    let stop = context.stop.clone();
    interrupt::set_shutdown_handler(move || stop.cancel());
}

/// Runs a plan and stores a trace of each step.
pub(super) async fn run_and_trace(
    registry: &Registry,
    skill: &RunnableSkill,
    dispatcher: &ArtifactDispatcher,
    plan: &RunPlan,
    context: &mut ExecutionContext,
    output: &Output,
) -> RunReport {
    let mut keep = |record: &ExecutionRecord| {
        if let Err(error) = registry.put_trace(trace_from_record(record)) {
            output.print_warning(format!("the trace could not be kept: {error}"));
        }
    };
    carry_out(skill, dispatcher, plan, context, &mut keep).await
}

/// Finds a skill in the current catalogue.
pub(super) fn find_entry(
    registry: &Registry,
    reference: &QualifiedSkillId,
) -> Result<Arc<SkillEntry>> {
    let snapshot = registry.snapshot();
    let entry = snapshot.find_skill(reference).cloned();
    Ok(entry.ok_or_else(|| Error::NotFound {
        what: "skill",
        name: reference.to_string(),
    })?)
}

/// Builds the context of a run: values, message, a model with a budget, and pages.
pub(super) fn build_context(
    model: &ModelArgs,
    params: &[(String, ParamValue)],
    message: Option<&str>,
    asks: bool,
    settings: &CliSettings,
) -> Result<ExecutionContext> {
    let mut context = ExecutionContext::new();
    context.values = param_values(params)?;
    context.message = match message {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            Some(text)
        }
        other => other.map(str::to_owned),
    };
    let providers = settings.resolved_providers();
    context.max_tokens = model.answer_tokens;
    context.redactor = Redactor::with_environment(providers.secrets());
    let named = model.id.as_deref().or(settings.model.as_deref());
    if let Some(id) = named.filter(|_| asks) {
        let budget = Arc::new(Budget::new(model.max_tokens, model.max_cost));
        context.model = Some(Arc::new(MeteredModel::new(
            providers.resolve_model(id)?,
            budget,
        )));
    }
    let vault = model.vault.as_ref().or(settings.vault.as_ref());
    if let Some(folder) = vault {
        context.engine = PromptEngine::with_workspace(Arc::new(Vault::open(folder)?));
    }
    Ok(context)
}

/// Returns the model of a run; fails if none was named.
pub(super) fn require_model(context: &ExecutionContext) -> Result<Arc<dyn Model>> {
    let none = || RunError::Model("a model is needed, and none was named".to_owned());
    Ok(context.model.clone().ok_or_else(none)?)
}

fn param_values(params: &[(String, ParamValue)]) -> Result<Map<String, Value>> {
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
fn show_plan(
    skill: &RunnableSkill,
    dispatcher: &ArtifactDispatcher,
    plan: &RunPlan,
    context: &ExecutionContext,
    output: &Output,
) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for step in &plan.steps {
        let family = context.model_family();
        let info = dispatcher
            .executable_artifact(skill, step, &family)
            .unwrap_or(step);
        if info != step {
            output.print_warning(terminal_safe(&format!(
                "{}: the sidecar is not available, so {} stands in for it",
                step.artifact.name, info.artifact.name
            )));
        }
        let written = skill.load_content(info)?;
        let text = match info.artifact.kind {
            ArtifactKind::PromptTemplate => {
                let values = context.template_values();
                context.engine.render_str(&written, &values)?
            }
            ArtifactKind::CodeTemplate => {
                let values = context.template_values();
                let constants = read_constants(&info.artifact)?;
                let code = context.engine.render_code(&written, &values, &constants)?;
                code.display_source()
            }
            _ => written,
        };
        rows.push((info, text));
    }
    if output.json {
        let steps: Vec<Value> = rows
            .iter()
            .map(|(info, text)| {
                json!({
                    "artifact": info.artifact.name, "kind": info.artifact.kind,
                    "variant": info.artifact.model_variant, "text": text,
                })
            })
            .collect();
        output.print_json(&json!({"steps": steps, "skipped": plan.skipped}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (info, text) in rows {
        let name = terminal_safe(&info.artifact.name);
        let kind = info.artifact.kind.as_str();
        output.print_text(&format!(
            "{BOLD}{name}{BOLD:#} {DIM}({kind}){DIM:#}\n{}\n\n",
            terminal_safe(text.trim_end())
        ))?;
    }
    for skipped in &plan.skipped {
        output.print_warning(terminal_safe(skipped));
    }
    Ok(ExitCode::SUCCESS)
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
        "warnings": report.warnings, "usage": usage, "traces": report.records,
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
    for warning in &report.warnings {
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
        output.print_note(format!("{DIM}{tokens}{cost}; no skill was run{DIM:#}"));
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
