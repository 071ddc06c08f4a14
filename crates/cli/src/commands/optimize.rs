//! `optimize`: improves a DSPy module of a skill from examples, and stores it if it is better.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use repertoire_app::{
    Error as AppError, OptimizeReport, OptimizeRequest, TrainingSource, parse_examples,
};
use repertoire_core::text::terminal_safe;
use repertoire_runtime::{
    ModelUsage,
    optimize::{Effort, Optimizer},
    sidecar::DspyModule,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    open_skill,
    run::{self, ModelUse},
    serve::build_runtime,
};
use crate::{
    args::{OptimizeArgs, OptimizerArg},
    failure::UsageError,
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

/// The maximum size of a file with examples in bytes.
const MAX_FILE: usize = 64 * 1024 * 1024;

pub(crate) fn run_optimize(
    args: &OptimizeArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (registry, skill) = open_skill(&args.skill, settings, output)?;
    if args.with == OptimizerArg::RandomSearch && args.demos == Some(0) {
        let why = "random-search looks for examples to show: --demos is at least 1";
        return Err(UsageError(why.to_owned()).into());
    }
    let scope = args.scope.map(Into::into);
    let preference = settings.scope_preference();
    let fallback = preference.resolve_history(&registry, &skill, scope)?;
    let runner = run::build_runner(registry, &args.model, ModelUse::Calls, settings)?;
    let sidecar = settings.components().sidecar();
    let is_file = args.examples.as_os_str() != "traces";
    let text = if is_file {
        read_examples(&args.examples)?
    } else {
        String::new()
    };
    let from_file = |module: &DspyModule| {
        let read = parse_examples(&text, module);
        let at = args.examples.display();
        read.map_err(|error| AppError::Examples(format!("{at}, {error}")))
    };
    let bar = output.progress_spinner();
    let stop = CancellationToken::new();
    run::stop_on_signal(&stop);
    let usage = std::sync::Mutex::new(ModelUsage::default());
    let request = OptimizeRequest {
        skill: &skill,
        artifact: args.artifact.as_deref(),
        optimizer: match args.with {
            OptimizerArg::Bootstrap => Optimizer::Bootstrap,
            OptimizerArg::RandomSearch => Optimizer::RandomSearch,
            OptimizerArg::Mipro => Optimizer::Mipro,
            OptimizerArg::Gepa => Optimizer::Gepa,
        },
        effort: Effort {
            demos: args.demos,
            candidates: args.candidates,
            trials: args.trials,
            metric_calls: args.judgements,
        },
        source: if is_file {
            TrainingSource::Examples(&from_file)
        } else {
            TrainingSource::Traces
        },
        scope: (scope, fallback),
        keep_worse: args.force,
        stop,
        on_progress: &|what| bar.suspend(|| output.print_note(what)),
        on_usage: &|spent| {
            bar.set_message(format_usage(spent));
            *usage
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner) = *spent;
        },
    };
    let optimized = build_runtime()?.block_on(runner.optimize(&sidecar, request));
    bar.finish_and_clear();
    let spent = *usage
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let report = optimized.inspect_err(|_| {
        if spent.total_tokens() > 0 {
            output.print_note(format!("{} spent before the error", format_usage(&spent)));
        }
    })?;
    print_result(&report, args, output)?;
    Ok(if report.is_stored {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Reads a file with examples.
fn read_examples(file: &Path) -> Result<String> {
    let text = String::from_utf8(super::read_input(file, MAX_FILE)?);
    Ok(text.map_err(|_| UsageError(format!("{} is not UTF-8 text", file.display())))?)
}

fn format_usage(usage: &ModelUsage) -> String {
    let cost = usage.cost.map(|cost| format!(", ${cost:.6}"));
    format!(
        "{} tokens{}",
        usage.total_tokens(),
        cost.unwrap_or_default()
    )
}

fn print_result(report: &OptimizeReport, args: &OptimizeArgs, output: &Output) -> Result<()> {
    let (improved, kept) = (&report.improvement, report.is_stored);
    if output.json {
        return output.print_json(&json!({
            "skill": args.skill.to_string(), "artifact": report.artifact, "with": args.with.as_str(),
            "kept": kept, "improvement": improved,
        }));
    }
    output.print_text(&format!(
        "{BOLD}{}{BOLD:#}  {:.3} before ({}), {:.3} after ({}), on {} held back\n\
         {DIM}learned from {} with {}: {}; DSPy {}{DIM:#}\n",
        terminal_safe(&report.artifact),
        improved.before,
        format_usage(&improved.measuring.before),
        improved.after,
        format_usage(&improved.measuring.after),
        format_count(improved.held_back, "example"),
        format_count(improved.training, "example"),
        args.with.as_str(),
        format_usage(&improved.learning),
        improved.dspy,
    ))?;
    if kept {
        output.print_note(format!(
            "the new state is kept; the one before is in `repertoire history {}`",
            args.skill
        ));
    } else {
        output
            .print_warning("the result is worse, so nothing was changed: --force keeps it anyway");
    }
    Ok(())
}
