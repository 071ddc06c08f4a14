//! `run`: executes the artifacts of a skill and leaves a trace of each.

use std::{
    io::{IsTerminal, Read, Write},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use repertoire_core::{ArtifactKind, text::terminal_safe};
use repertoire_registry::{Entry, Error, Reference, Registry, store::TraceFilter};
use repertoire_runtime::{
    ArtifactDispatcher, Budget, Error as RunError, ExecutionContext, ExecutionRecord, Metered,
    Model, PromptEngine, Redactor, SkillSource, Usage, Vault,
    run::{Plan, Report, plan, run as carry_out},
    sidecar::{Modules, Sidecar},
    template::constants_of,
};
use repertoire_serve::runs::{Runnable, equip, trace_of};
use serde_json::{Map, Value, json};

use super::{open, serve::runtime};
use crate::{
    args::{ModelArgs, Param, RunArgs},
    failure::{self, Usage as WrongUsage},
    interrupt,
    output::{BOLD, DIM, Output, count},
    settings::Settings,
};

pub(crate) fn run(args: &RunArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let entry = find(&registry, &args.skill)?;
    let skill = Runnable::new(&registry, &entry)?;
    let message = args.message.as_deref();
    let asks = !args.dry_run;
    let mut context = context(&args.model, &args.params, message, asks, settings)?;
    let dispatcher = dispatcher(settings);
    equip(&mut context, &registry, &dispatcher);
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
            output.warn(
                "the session was run with another --param or --message: what its scripts kept was \
                 kept for those",
            );
        }
        context.session_id.clone_from(session);
    }
    let steps = plan(&skill, &dispatcher, &context.family(), &args.artifacts)?;
    if args.dry_run {
        return show_plan(&skill, &dispatcher, &steps, &context, output);
    }
    if context.model.is_none() && steps.asks_a_model() {
        let none = "this skill asks a model, and none was named".to_owned();
        return Err(RunError::Model(none).into());
    }
    let live = listen(&mut context, output);
    stop_on_signal(&context);
    let report = runtime()?.block_on(carried_out(
        &registry,
        &skill,
        &dispatcher,
        &steps,
        &mut context,
        output,
    ));
    print(report, live, output)
}

/// Who runs which kind of artifact here.
pub(super) fn dispatcher(settings: &Settings) -> ArtifactDispatcher {
    let mut dispatcher = ArtifactDispatcher::default();
    #[cfg(feature = "sandbox")]
    dispatcher.add(Arc::new(repertoire_runtime::sandbox::Scripts::new(
        super::setup::sandbox::folder(settings),
        settings.script_limits,
    )));
    let sidecar = Sidecar::new(super::setup::sidecar::program(settings));
    let modules = Modules::new(Arc::new(sidecar), settings.script_limits);
    dispatcher.add(Arc::new(modules));
    dispatcher
}

/// Lets a terminal hear answers as they come; says whether it does.
pub(super) fn listen(context: &mut ExecutionContext, output: &Output) -> bool {
    let live = !output.json && std::io::stdout().is_terminal();
    if live {
        context.listener = Some(Arc::new(|text: &str| {
            let mut out = std::io::stdout().lock();
            // With nobody left to see it, the run still leaves its trace.
            let _ = out.write_all(terminal_safe(text).as_bytes());
            let _ = out.flush();
        }));
    }
    live
}

/// The first Ctrl-C stops what is going on in an orderly way, so that it leaves its trace.
pub(super) fn stop_on_signal(context: &ExecutionContext) {
    let stop = context.stop.clone();
    interrupt::shut_down_with(move || stop.cancel());
}

/// Runs a plan, and keeps a trace of each step.
pub(super) async fn carried_out(
    registry: &Registry,
    skill: &Runnable,
    dispatcher: &ArtifactDispatcher,
    plan: &Plan,
    context: &mut ExecutionContext,
    output: &Output,
) -> Report {
    let mut keep = |record: &ExecutionRecord| {
        if let Err(error) = registry.put_trace(trace_of(record)) {
            output.warn(format!("the trace could not be kept: {error}"));
        }
    };
    carry_out(skill, dispatcher, plan, context, &mut keep).await
}

/// The skill, as the catalogue has it now.
pub(super) fn find(registry: &Registry, reference: &Reference) -> Result<Arc<Entry>> {
    let snapshot = registry.snapshot();
    let entry = snapshot.skill(reference).cloned();
    Ok(entry.ok_or_else(|| Error::NotFound {
        what: "skill",
        name: reference.to_string(),
    })?)
}

/// What a run has at hand: values, what is said, a model within its budget, and pages.
pub(super) fn context(
    model: &ModelArgs,
    params: &[(String, Param)],
    message: Option<&str>,
    asks: bool,
    settings: &Settings,
) -> Result<ExecutionContext> {
    let mut context = ExecutionContext::new();
    context.values = values(params)?;
    context.message = match message {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            Some(text)
        }
        other => other.map(str::to_owned),
    };
    let providers = settings.providers();
    context.max_tokens = model.answer_tokens;
    context.redactor = Redactor::with_environment(providers.secrets());
    let named = model.id.as_deref().or(settings.model.as_deref());
    if let Some(id) = named.filter(|_| asks) {
        let budget = Arc::new(Budget::new(model.max_tokens, model.max_cost));
        context.model = Some(Arc::new(Metered::new(providers.model(id)?, budget)));
    }
    let vault = model.vault.as_ref().or(settings.vault.as_ref());
    if let Some(folder) = vault {
        context.engine = PromptEngine::over(Arc::new(Vault::open(folder)?));
    }
    Ok(context)
}

/// The model of a run that cannot do without.
pub(super) fn model_of(context: &ExecutionContext) -> Result<Arc<dyn Model>> {
    let none = || RunError::Model("a model is asked, and none was named".to_owned());
    Ok(context.model.clone().ok_or_else(none)?)
}

fn values(params: &[(String, Param)]) -> Result<Map<String, Value>> {
    let mut values = Map::new();
    for (name, param) in params {
        let value = match param {
            Param::Text(text) => json!(text),
            Param::Json(value) => value.clone(),
            Param::File(path) => {
                let text = std::fs::read_to_string(path);
                json!(text.with_context(|| format!("--param {name}: {}", path.display()))?)
            }
        };
        values.insert(name.clone(), value);
    }
    Ok(values)
}

/// What would be sent.
fn show_plan(
    skill: &Runnable,
    dispatcher: &ArtifactDispatcher,
    plan: &Plan,
    context: &ExecutionContext,
    output: &Output,
) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for step in &plan.steps {
        let family = context.family();
        let info = dispatcher.executed(skill, step, &family).unwrap_or(step);
        if info != step {
            output.warn(terminal_safe(&format!(
                "{}: the sidecar is not available, so {} stands in for it",
                step.artifact.name, info.artifact.name
            )));
        }
        let written = skill.content(info)?;
        let text = match info.artifact.kind {
            ArtifactKind::PromptTemplate => {
                let values = context.template_values();
                context.engine.render_str(&written, &values)?
            }
            ArtifactKind::CodeTemplate => {
                let values = context.template_values();
                let constants = constants_of(&info.artifact)?;
                let code = context.engine.render_code(&written, &values, &constants)?;
                code.shown()
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
        output.print(&format!(
            "{BOLD}{name}{BOLD:#} {DIM}({kind}){DIM:#}\n{}\n\n",
            terminal_safe(text.trim_end())
        ))?;
    }
    for skipped in &plan.skipped {
        output.warn(terminal_safe(skipped));
    }
    Ok(ExitCode::SUCCESS)
}

/// A report for programs.
pub(super) fn to_json(report: &Report, usage: Usage) -> Value {
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

fn print(report: Report, live: bool, output: &Output) -> Result<ExitCode> {
    let usage = report.usage();
    if output.json {
        output.print_json(&to_json(&report, usage))?;
    } else {
        print_for_people(&report, usage, live, output)?;
    }
    ended(report, output)
}

/// The answer on stdout, what it took on stderr.
pub(super) fn print_for_people(
    report: &Report,
    usage: Usage,
    live: bool,
    output: &Output,
) -> Result<()> {
    if let Ok(done) = &report.outcome {
        // Only what a prompt is answered is heard as it comes.
        let is_prompt =
            |record: &ExecutionRecord| record.artifact_kind == ArtifactKind::PromptTemplate;
        if live && (report.records.is_empty() || report.records.iter().any(is_prompt)) {
            output.print("\n")?;
        }
        if !live || report.records.last().is_some_and(|last| !is_prompt(last)) {
            output.print_bytes(format!("{}\n", done.text.trim_end()).as_bytes())?;
        }
    }
    for warning in &report.warnings {
        output.warn(terminal_safe(warning));
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
        output.note(format!("{DIM}{tokens}{cost}; no skill was run{DIM:#}"));
        return Ok(());
    }
    output.note(format!(
        "{DIM}{}, {time} ms, {tokens}{cost} · repertoire trace list --session {}{DIM:#}",
        count(report.records.len(), "artifact"),
        report.session_id,
    ));
    Ok(())
}

/// The exit code of a run.
pub(super) fn ended(report: Report, output: &Output) -> Result<ExitCode> {
    match report.outcome {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) if output.json => Ok(ExitCode::from(failure::exit_code(error.code()))),
        Err(error) => Err(error.into()),
    }
}
