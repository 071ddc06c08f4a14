//! `ask`: both phases of an activation, and what comes of it.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{markdown::one_line, text::terminal_safe};
use repertoire_registry::{Registry, search::Recommendation};
use repertoire_runtime::{
    ArtifactOutput, Ask, Error as RunError, ExecutionContext, Usage,
    orchestrate::{Candidate, Decided, Decision, decide, fill, research},
    run::{Report, plan},
};
use repertoire_serve::runs::{Runnable, equip};
use serde_json::json;

use super::{open, run, search, serve::runtime, setup::finder};
use crate::{
    args::AskArgs,
    output::{BOLD, DIM, Output},
    settings::Settings,
};

/// How many skills may be passed over because they came from elsewhere.
const STRANGERS: usize = 20;

pub(crate) fn ask(args: &AskArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let message = args.message.join(" ");
    let said = Some(message.as_str());
    let mut context = run::context(&args.model, &args.params, said, true, settings)?;
    let message = context.message.clone().unwrap_or_default();
    let (found, skills) = recommended(&registry, &message, args.limit, settings, output)?;
    let model = run::model_of(&context)?;
    let live = run::listen(&mut context, output);
    let dispatcher = run::dispatcher(settings);
    equip(&mut context, &registry, &dispatcher);
    let runtime = runtime()?;
    let candidates: Vec<Candidate<'_>> = skills
        .iter()
        .map(|(skill, about)| Candidate {
            skill,
            about: about.clone(),
        })
        .collect();
    run::stop_on_signal(&context);
    let stop = context.stop.clone();
    let decided = runtime.block_on(async {
        tokio::select! {
            decided = decide(&model, &dispatcher, &[], &message, &candidates) => decided,
            () = stop.cancelled() => Err(RunError::Interrupted),
        }
    })?;
    if args.decide_only && !output.json {
        output.print(&format!("{}\n", explained(&decided)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !output.json {
        output.note(explained(&decided));
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
                let steps = plan(chosen, &dispatcher, &context.family(), artifacts)?;
                let engine = context.engine.clone();
                let values = &mut context.values;
                let by = &dispatcher;
                let filling = fill(&model, chosen, by, &steps, &message, &engine, values);
                let filled = tokio::select! {
                    filled = filling => filled?,
                    () = stop.cancelled() => return Err(RunError::Interrupted.into()),
                };
                let done =
                    run::carried_out(&registry, chosen, &dispatcher, &steps, &mut context, output);
                Ok((done.await, filled))
            }
            Decision::Clarify { question } => Ok((said_back(&context, question), Usage::default())),
            Decision::Respond => answer(&context, Ask::new(message.as_str())).await,
            Decision::Research { query } => {
                let Some(workspace) = context.engine.workspace().cloned() else {
                    let none = "there is nothing to look it up in: name a folder of pages with \
                                --vault";
                    return Err(RunError::Workspace(none.to_owned()).into());
                };
                let (query, message) = (query.clone(), message.clone());
                let looked =
                    tokio::task::spawn_blocking(move || research(&*workspace, &query, &message));
                let (ask, pages) = looked.await??;
                output.note(format!("{DIM}read {pages} pages{DIM:#}"));
                answer(&context, ask).await
            }
        }
    })?;
    finish(&message, &found, &decided, report, spent, live, output)
}

/// A skill that may be chosen, and what the catalogue says it is for.
type Choice = (Runnable, String);

/// The first phase: the skills that fit and may be run, said as they are found.
fn recommended(
    registry: &Arc<Registry>,
    message: &str,
    limit: usize,
    settings: &Settings,
    output: &Output,
) -> Result<(Vec<Recommendation>, Vec<Choice>)> {
    let snapshot = registry.snapshot();
    let finder = finder(registry, &snapshot, settings, search::PATIENCE, output)?;
    let all = finder.find(message, limit + STRANGERS)?;
    if !all.iter().any(|one| one.fits) {
        output.note(search::nothing(&finder, &all));
    }
    let (mut found, mut skills) = (Vec::new(), Vec::new());
    for one in all.into_iter().filter(|one| one.fits) {
        let Some(entry) = snapshot.get(&one.id) else {
            continue;
        };
        // One that may not be run is told, and takes no place from one that may.
        match Runnable::new(registry, entry) {
            Ok(_) if skills.len() >= limit => break,
            Ok(skill) => {
                if !output.json && !output.quiet() {
                    output.note(search::line(&one, &snapshot));
                }
                let about = entry.head.description.as_deref();
                skills.push((skill, about.map(one_line).unwrap_or_default()));
                found.push(one);
            }
            Err(error) => output.warn(terminal_safe(&error.to_string())),
        }
    }
    Ok((found, skills))
}

/// What was decided, and why.
fn explained(decided: &Decided) -> String {
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
    let why = one_line(&decided.reason);
    format!(
        "{BOLD}{}{BOLD:#}  {DIM}{}{DIM:#}",
        terminal_safe(&what),
        terminal_safe(&why)
    )
}

/// Asks the model without a skill; nothing is executed, so nothing is traced.
async fn answer(context: &ExecutionContext, mut ask: Ask) -> Result<(Report, Usage)> {
    let model = run::model_of(context)?;
    ask.max_tokens = context.max_tokens;
    let reply = tokio::select! {
        reply = model.ask(&ask, context.listener.as_ref()) => reply?,
        () = context.stop.cancelled() => return Err(RunError::Interrupted.into()),
    };
    Ok((said_back(context, &reply.text), reply.usage))
}

fn said_back(context: &ExecutionContext, text: &str) -> Report {
    Report {
        session_id: context.session_id.clone(),
        records: Vec::new(),
        outcome: Ok(ArtifactOutput::text(text)),
        warnings: Vec::new(),
    }
}

fn finish(
    message: &str,
    found: &[Recommendation],
    decided: &Decided,
    report: Report,
    spent: Usage,
    live: bool,
    output: &Output,
) -> Result<ExitCode> {
    let mut usage = report.usage();
    usage.add(spent);
    usage.add(decided.usage);
    if output.json {
        let mut all = json!({"message": message, "recommendations": found, "decided": decided});
        if let (Some(all), Some(done)) = (
            all.as_object_mut(),
            run::to_json(&report, usage).as_object_mut(),
        ) {
            all.append(done);
        }
        output.print_json(&all)?;
    } else {
        let live = live && !matches!(decided.decision, Decision::Clarify { .. });
        run::print_for_people(&report, usage, live, output)?;
    }
    run::ended(report, output)
}
