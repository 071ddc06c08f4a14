//! `ask`: finds skills for a message, lets a model decide, and carries the decision out.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_app::{AskOutcome, AskProgress, AskRequest, Runner, SkillShortlist, last_session};
use repertoire_core::{markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{Registry, search::Recommendation};
use repertoire_runtime::orchestrate::{Decision, DecisionOutcome};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    open_registry,
    run::{self, ModelUse},
    search,
    serve::build_runtime,
    setup::index_skills,
};
use crate::{
    args::AskArgs,
    failure::UsageError,
    output::{BOLD, DIM, DelayedSpinner, Output},
    settings::CliSettings,
};

pub(crate) fn run_ask(args: &AskArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let message = run::read_message(&args.message.join(" "))?;
    if message.trim().is_empty() {
        return Err(UsageError("the message is empty".to_owned()).into());
    }
    let session = session_to_continue(args, &registry)?;
    let runner = run::build_runner(registry, &args.model, ModelUse::Calls, settings)?;
    let shortlist = find_candidates(&runner, &message, args.limit, settings, output)?;
    let spinner = DelayedSpinner::default();
    let listener = run::stream_answers(output, &spinner);
    let is_streamed = listener.is_some();
    let request = AskRequest {
        message: message.clone(),
        session,
        values: run::param_values(&args.params)?,
        listener,
        stop: CancellationToken::new(),
        ..AskRequest::default()
    };
    run::stop_on_signal(&request.stop);
    let runtime = build_runtime()?;
    if args.decide_only {
        let decided = output.with_spinner("deciding", || {
            runtime.block_on(runner.decide(&shortlist, &request))
        })?;
        if output.json {
            let found = &shortlist.recommendations;
            let all = json!({"message": message, "recommendations": found, "decided": decided});
            output.print_json(&all)?;
        } else {
            output.print_text(&format!("{}\n", explain_decision(&decided)))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let found = shortlist.recommendations.clone();
    let waiting = spinner.clone();
    let mut on_progress = |progress: AskProgress<'_>| {
        waiting.finish();
        match progress {
            AskProgress::Decided(decided) if !output.json => {
                output.print_note(explain_decision(decided));
            }
            AskProgress::PagesRead(pages) => {
                output.print_note(format!("{DIM}read {pages} pages{DIM:#}"));
            }
            _ => {}
        }
        waiting.restart(output, "waiting for the answer");
    };
    spinner.restart(output, "deciding");
    let outcome = runtime.block_on(runner.ask(shortlist, request, &mut on_progress));
    spinner.finish();
    let outcome = outcome?;
    print_outcome(&message, &found, outcome, is_streamed, output)
}

/// Returns the session to continue: the named one, or the last one for `--continue`.
fn session_to_continue(args: &AskArgs, registry: &Registry) -> Result<Option<String>> {
    if !args.resume_last {
        return Ok(args.session.clone());
    }
    let last = last_session(registry)?;
    if last.is_none() {
        let none = "there is no conversation to continue: ask without --continue first";
        return Err(UsageError(none.to_owned()).into());
    }
    Ok(last)
}

/// Finds the skills that fit and can be run, and prints them.
fn find_candidates(
    runner: &Runner,
    message: &str,
    limit: usize,
    settings: &CliSettings,
    output: &Output,
) -> Result<SkillShortlist> {
    let registry: &Arc<Registry> = runner.registry();
    let snapshot = registry.snapshot();
    let timeout = search::INDEXING_TIMEOUT;
    let index = index_skills(registry, &snapshot, settings, timeout, output)?;
    let shortlist = runner.shortlist(&index, &snapshot, message, limit)?;
    if let Some(found) = &shortlist.search
        && found.fitting().is_empty()
        && shortlist.untrusted.is_empty()
    {
        output.print_note(search::explain_no_match(found));
    }
    if !output.json && !output.is_quiet() {
        for one in &shortlist.recommendations {
            output.print_note(search::format_recommendation(one, &snapshot));
        }
    }
    for error in &shortlist.refused {
        output.print_warning(terminal_safe(&error.to_string()));
    }
    Ok(shortlist)
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

fn print_outcome(
    message: &str,
    found: &[Recommendation],
    outcome: AskOutcome,
    is_streamed: bool,
    output: &Output,
) -> Result<ExitCode> {
    let AskOutcome {
        decided,
        report,
        usage,
    } = outcome;
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
        let is_streamed = is_streamed && !matches!(decided.decision, Decision::Clarify { .. });
        run::print_text_report(&report, usage, is_streamed, output)?;
    }
    run::report_exit_code(report, output)
}
