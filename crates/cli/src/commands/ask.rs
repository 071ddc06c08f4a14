//! `ask`: finds skills for a message, lets a model decide, and runs the decision.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{Registry, search::Recommendation};
use repertoire_runtime::{
    ArtifactOutput, Error as RunError, ExecutionContext, ModelRequest, ModelUsage,
    orchestrate::{
        Decision, DecisionOutcome, SkillCandidate, decide_action, fill_missing_values,
        research_request,
    },
    run::{RunReport, plan_run},
};
use repertoire_serve::runs::{RunnableSkill, attach_registry};
use serde_json::json;

use super::{open_registry, run, search, serve::build_runtime, setup::build_skill_index};
use crate::{
    args::AskArgs,
    output::{BOLD, DIM, Output},
    settings::CliSettings,
};

/// How many untrusted skills may be skipped.
const MAX_UNTRUSTED: usize = 20;

pub(crate) fn run_ask(args: &AskArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let message = args.message.join(" ");
    let text = Some(message.as_str());
    let mut context = run::build_context(&args.model, &args.params, text, true, settings)?;
    let message = context.message.clone().unwrap_or_default();
    let (found, skills) = find_candidates(&registry, &message, args.limit, settings, output)?;
    let model = run::require_model(&context)?;
    let live = run::stream_answers(&mut context, output);
    let dispatcher = run::build_dispatcher(settings);
    attach_registry(&mut context, &registry, &dispatcher);
    let runtime = build_runtime()?;
    let candidates: Vec<SkillCandidate<'_>> = skills
        .iter()
        .map(|(skill, about)| SkillCandidate {
            skill,
            about: about.clone(),
        })
        .collect();
    run::stop_on_signal(&context);
    let stop = context.stop.clone();
    let decided = runtime.block_on(async {
        tokio::select! {
            decided = decide_action(&model, &dispatcher, &[], &message, &candidates) => decided,
            () = stop.cancelled() => Err(RunError::Interrupted),
        }
    })?;
    if args.decide_only && !output.json {
        output.print_text(&format!("{}\n", explain_decision(&decided)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !output.json {
        output.print_note(explain_decision(&decided));
    }
    if args.decide_only {
        if output.json {
            let all = json!({"message": message, "recommendations": found, "decided": decided});
            output.print_json(&all)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (report, spent) = runtime.block_on(async {
        match &decided.decision {
            Decision::Activate { skill, artifacts } => {
                let chosen = skills
                    .iter()
                    .find(|(one, _)| repertoire_runtime::SkillSource::outline(one).skill == *skill);
                let Some((chosen, _)) = chosen else {
                    return Err(RunError::Decision(format!("no skill {skill:?}")).into());
                };
                let steps = plan_run(chosen, &dispatcher, &context.model_family(), artifacts)?;
                let engine = context.engine.clone();
                let values = &mut context.values;
                let by = &dispatcher;
                let filling =
                    fill_missing_values(&model, chosen, by, &steps, &message, &engine, values);
                let filled = tokio::select! {
                    filled = filling => filled?,
                    () = stop.cancelled() => return Err(RunError::Interrupted.into()),
                };
                let done = run::run_and_trace(
                    &registry,
                    chosen,
                    &dispatcher,
                    &steps,
                    &mut context,
                    output,
                );
                Ok((done.await, filled))
            }
            Decision::Clarify { question } => {
                Ok((text_report(&context, question), ModelUsage::default()))
            }
            Decision::Respond => {
                answer_without_skill(&context, ModelRequest::new(message.as_str())).await
            }
            Decision::Research { query } => {
                let Some(workspace) = context.engine.workspace().cloned() else {
                    let none = "there are no pages to search: name a folder of pages with \
                                --vault";
                    return Err(RunError::Workspace(none.to_owned()).into());
                };
                let (query, message) = (query.clone(), message.clone());
                let looked = tokio::task::spawn_blocking(move || {
                    research_request(&*workspace, &query, &message)
                });
                let (ask, pages) = looked.await??;
                output.print_note(format!("{DIM}read {pages} pages{DIM:#}"));
                answer_without_skill(&context, ask).await
            }
        }
    })?;
    print_answer(&message, &found, &decided, report, spent, live, output)
}

/// A skill that may be chosen, and its description in the catalogue.
type RunnableChoice = (RunnableSkill, String);

/// The first phase: finds the skills that fit and may be run, and prints them.
fn find_candidates(
    registry: &Arc<Registry>,
    message: &str,
    limit: usize,
    settings: &CliSettings,
    output: &Output,
) -> Result<(Vec<Recommendation>, Vec<RunnableChoice>)> {
    let snapshot = registry.snapshot();
    let finder = build_skill_index(
        registry,
        &snapshot,
        settings,
        search::INDEXING_TIMEOUT,
        output,
    )?;
    let all = finder.find_skills(message, limit + MAX_UNTRUSTED)?;
    if !all.iter().any(|one| one.fits) {
        output.print_note(search::explain_no_match(&finder, &all));
    }
    let (mut found, mut skills) = (Vec::new(), Vec::new());
    for one in all.into_iter().filter(|one| one.fits) {
        let Some(entry) = snapshot.get(&one.id) else {
            continue;
        };
        // A skill that may not be run is reported and does not count towards the limit.
        match RunnableSkill::new(registry, entry) {
            Ok(_) if skills.len() >= limit => break,
            Ok(skill) => {
                if !output.json && !output.is_quiet() {
                    output.print_note(search::format_recommendation(&one, &snapshot));
                }
                let about = entry.metadata.description.as_deref();
                skills.push((skill, about.map(to_single_line).unwrap_or_default()));
                found.push(one);
            }
            Err(error) => output.print_warning(terminal_safe(&error.to_string())),
        }
    }
    Ok((found, skills))
}

/// Formats the decision and its reason.
fn explain_decision(decided: &DecisionOutcome) -> String {
    let what = match &decided.decision {
        Decision::Respond => "respond".to_owned(),
        Decision::Clarify { question } => format!("clarify {question:?}"),
        Decision::Research { query } => format!("research {query:?}"),
        Decision::Activate { skill, artifacts } if artifacts.is_empty() => {
            format!("activate {skill}")
        }
        Decision::Activate { skill, artifacts } => {
            format!("activate {skill} with {}", artifacts.join(", "))
        }
    };
    let why = to_single_line(&decided.reason);
    format!(
        "{BOLD}{}{BOLD:#}  {DIM}{}{DIM:#}",
        terminal_safe(&what),
        terminal_safe(&why)
    )
}

/// Calls the model without a skill; nothing is executed, so nothing is traced.
async fn answer_without_skill(
    context: &ExecutionContext,
    mut ask: ModelRequest,
) -> Result<(RunReport, ModelUsage)> {
    let model = run::require_model(context)?;
    ask.max_tokens = context.max_tokens;
    let reply = tokio::select! {
        reply = model.ask(&ask, context.listener.as_ref()) => reply?,
        () = context.stop.cancelled() => return Err(RunError::Interrupted.into()),
    };
    Ok((text_report(context, &reply.text), reply.usage))
}

fn text_report(context: &ExecutionContext, text: &str) -> RunReport {
    RunReport {
        session_id: context.session_id.clone(),
        records: Vec::new(),
        outcome: Ok(ArtifactOutput::from_text(text)),
        warnings: Vec::new(),
    }
}

fn print_answer(
    message: &str,
    found: &[Recommendation],
    decided: &DecisionOutcome,
    report: RunReport,
    spent: ModelUsage,
    live: bool,
    output: &Output,
) -> Result<ExitCode> {
    let mut usage = report.usage();
    usage.add_usage(spent);
    usage.add_usage(decided.usage);
    if output.json {
        let mut all = json!({"message": message, "recommendations": found, "decided": decided});
        if let (Some(all), Some(done)) = (
            all.as_object_mut(),
            run::report_to_json(&report, usage).as_object_mut(),
        ) {
            all.append(done);
        }
        output.print_json(&all)?;
    } else {
        let live = live && !matches!(decided.decision, Decision::Clarify { .. });
        run::print_text_report(&report, usage, live, output)?;
    }
    run::report_exit_code(report, output)
}
