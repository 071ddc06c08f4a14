//! `setup examples`: lets a model write example messages for skills.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use repertoire_app::missing_examples;
use repertoire_core::text::terminal_safe;
use repertoire_registry::{Origin, Registry};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::super::{
    open_registry,
    run::{ModelUse, build_runner, stop_on_signal},
    serve::build_runtime,
};
use crate::{
    args::ModelArgs,
    failure::UsageError,
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

/// What is asked for.
pub(super) struct ExampleArgs {
    pub(super) list: bool,
    pub(super) dry_run: bool,
    /// Remove the messages of these skills, or of all if none is named.
    pub(super) remove: Option<Vec<String>>,
    pub(super) model: ModelArgs,
}

pub(super) fn run(args: ExampleArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    if args.list {
        return list_messages(&registry, output);
    }
    if let Some(skills) = args.remove {
        let store = registry.local_store()?;
        let mut removed = 0;
        if skills.is_empty() {
            removed = store.remove_example_messages(None)?;
        }
        for skill in &skills {
            let count = store.remove_example_messages(Some(skill))?;
            if count == 0 {
                let none = format!("{skill} has no example messages: --list shows those that have");
                return Err(UsageError(none).into());
            }
            removed += count;
        }
        output.print_note(format!(
            "removed the example messages of {}",
            format_count(removed, "skill")
        ));
        if output.json {
            output.print_json(&json!({"removed": removed}))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let collections = missing_examples(&registry, &registry.snapshot())?;
    let missing: usize = collections.values().map(Vec::len).sum();
    if args.dry_run || missing == 0 {
        output.print_note(match missing {
            0 => "every trusted skill has example messages".to_owned(),
            _ => format!(
                "{} without example messages",
                format_count(missing, "skill")
            ),
        });
        if output.json {
            let by_origin = collections
                .iter()
                .map(|(origin, skills)| (origin.to_string(), json!(skills.len())));
            let by_origin: serde_json::Map<_, _> = by_origin.collect();
            output.print_json(&json!({"missing": by_origin}))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.model.id.is_none() && settings.model.is_none() {
        let none = "example messages are written by a model: `--model PROVIDER/MODEL`, or `model` in \
                    the settings";
        return Err(UsageError(none.to_owned()).into());
    }
    let runner = build_runner(registry, &args.model, ModelUse::Calls, settings)?;
    let runtime = build_runtime()?;
    let stop = CancellationToken::new();
    stop_on_signal(&stop);
    let totals: BTreeMap<String, usize> = collections
        .iter()
        .map(|(origin, skills)| (origin.to_string(), skills.len()))
        .collect();
    let bar = output.progress_spinner();
    let mut on_progress = |origin: &Origin, done: usize| {
        let origin = origin.to_string();
        let total = totals.get(&origin).copied().unwrap_or(0);
        bar.set_message(format!(
            "{}: {done} of {total} skills",
            terminal_safe(&origin)
        ));
    };
    let work = runner.write_example_messages(collections, &stop, &mut on_progress);
    let written = runtime.block_on(work);
    bar.finish_and_clear();
    if written.is_err() {
        output.print_note("what was written so far is kept: the next run goes on from there");
    }
    let report = written?;
    let cost = report.usage.cost.map(|cost| format!(", ${cost:.4}"));
    output.print_note(format!(
        "stored {} for {}; {} dropped as too general; {} tokens{}",
        format_count(report.messages, "message"),
        format_count(report.skills, "skill"),
        report.dropped,
        report.usage.total_tokens(),
        cost.unwrap_or_default()
    ));
    if !report.without.is_empty() {
        let names: Vec<&str> = report.without.iter().take(10).map(String::as_str).collect();
        output.print_warning(format!(
            "nothing usable was written for {}: {}; another run asks again",
            format_count(report.without.len(), "skill"),
            terminal_safe(&names.join(", "))
        ));
    }
    if output.json {
        output.print_json(&json!({"written": report}))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list_messages(registry: &Registry, output: &Output) -> Result<ExitCode> {
    let all = registry.local_store()?.list_example_messages()?;
    if output.json {
        output.print_json(&json!({"examples": all}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if all.is_empty() {
        output.print_note("no skill has example messages: `repertoire setup examples` writes them");
    }
    for one in &all {
        output.print_text(&format!(
            "{BOLD}{}{BOLD:#}  {DIM}{}, {}{DIM:#}\n",
            terminal_safe(&one.skill),
            terminal_safe(&one.model),
            one.written_at
        ))?;
        for message in &one.messages {
            output.print_text(&format!("  {}\n", terminal_safe(message)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
