//! `optimize`: optimises a skill's DSPy module from examples; a worse result is discarded.

use std::{path::Path, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_core::{Artifact, ArtifactKind, text::terminal_safe};
use repertoire_registry::{Origin, Registry, StoreScope, store::TraceFilter};
use repertoire_runtime::{
    Error as RunError, SkillSource,
    optimise::{Effort, ExampleSplit, Improvement, Optimizer, TrainingExample, optimise_module},
    sidecar::{DspyModule, Sidecar},
    variant::choose_variant,
};
use repertoire_serve::runs::RunnableSkill;
use serde_json::{Value, json};

use super::{artifact, history, open_registry, run, serve::build_runtime, setup};
use crate::{
    args::{OptimizeArgs, OptimizerArg},
    failure::UsageError,
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

/// The most bytes of a file of examples.
const MAX_EXAMPLES_FILE: usize = 64 * 1024 * 1024;

pub(crate) fn run_optimize(
    args: &OptimizeArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let entry = run::find_entry(&registry, &args.skill)?;
    let skill = RunnableSkill::new(&registry, &entry)?;
    let context = run::build_context(&args.model, &[], None, true, settings)?;
    let module = choose_module(&skill, args.artifact.as_deref(), &context.model_family())?;
    let program = DspyModule::from_artifact(&module)?;
    if args.with == OptimizerArg::RandomSearch && args.demos == Some(0) {
        let why = "random-search looks for examples to show: --demos is at least 1";
        return Err(UsageError(why.to_owned()).into());
    }
    // Before any model is called: check where the result is stored and whether it is used there.
    let scope = history::resolve_history_scope(&registry, &args.skill, args.scope, settings)?;
    let used = [StoreScope::Workspace, StoreScope::Account]
        .into_iter()
        .find(|scope| entry.origin == Origin::from_scope(*scope));
    let scope = match (args.scope, used) {
        (Some(_), Some(used)) if used != scope => {
            let (used, scope) = (used.as_str(), scope.as_str());
            return Err(UsageError(format!(
                "the {used}'s copy of {} is the one that runs, so that what is learned for the \
                 {scope}'s would not be used: leave --scope out",
                entry.id
            ))
            .into());
        }
        (_, used) => used.unwrap_or(scope),
    };
    let (store, summary) = artifact::find_stored_skill(&registry, scope, &args.skill)?;
    let (examples, by_example) = if args.from.as_os_str() == "traces" {
        (
            examples_from_traces(&registry, &skill.outline().skill_id, &module, &program)?,
            false,
        )
    } else {
        (examples_from_file(&args.from, &program)?, true)
    };
    let split = ExampleSplit::from_examples(examples)?;
    let context = Arc::new(context);
    run::stop_on_signal(&context);
    let sidecar = Sidecar::new(setup::sidecar::sidecar_program(settings));
    if sidecar.unavailable_reason().is_some() {
        return Err(RunError::NeedsSidecar(module.name.clone()).into());
    }
    let how = (
        match args.with {
            OptimizerArg::Bootstrap => Optimizer::Bootstrap,
            OptimizerArg::RandomSearch => Optimizer::RandomSearch,
            OptimizerArg::Mipro => Optimizer::Mipro,
            OptimizerArg::Gepa => Optimizer::Gepa,
        },
        Effort {
            demos: args.demos,
            candidates: args.candidates,
            trials: args.trials,
            metric_calls: args.judgements,
        },
    );
    let bar = output.progress_spinner();
    let progress = |what: &str| bar.suspend(|| output.print_note(what));
    let improved = build_runtime()?.block_on(async {
        let mut work = pin!(optimise_module(
            &sidecar, &module, &split, how, by_example, &context, &progress,
        ));
        let mut now_and_then = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                improved = &mut work => break improved,
                () = context.stop.cancelled() => break Err(RunError::Interrupted),
                _ = now_and_then.tick() => bar.set_message(format_usage(&context.notes.usage_so_far())),
            }
        }
    });
    bar.finish_and_clear();
    let improved = improved.inspect_err(|_| {
        output.print_note(format!(
            "{} spent before the error",
            format_usage(&context.notes.usage_so_far())
        ));
    })?;
    let keep = improved.is_not_worse() || args.force;
    if keep {
        let known = store.get_artifacts(summary.id, &[ArtifactKind::DspyModule])?;
        let known = known
            .into_iter()
            .find(|one| one.name == module.name && one.model_variant == module.model_variant);
        let id = known.and_then(|known| known.id);
        let id = id.context("the artifact no longer exists")?;
        store.put_learned_state(id, &module, improved.state.clone())?;
    }
    print_result(&improved, keep, &module, args, output)?;
    Ok(if keep {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Chooses the DSPy module to optimise.
fn choose_module(skill: &RunnableSkill, name: Option<&str>, family: &str) -> Result<Artifact> {
    let outline = skill.outline();
    let is_module = |kind: ArtifactKind| kind == ArtifactKind::DspyModule;
    let modules: Vec<_> = outline
        .artifacts
        .iter()
        .filter(|info| is_module(info.artifact.kind))
        .filter(|info| name.is_none_or(|name| info.artifact.name.eq_ignore_ascii_case(name)))
        .collect();
    // Modules of one name are variants; the model family selects one.
    let first = modules.first().map(|info| &info.artifact.name);
    let are_variants = modules
        .iter()
        .all(|info| Some(&info.artifact.name) == first);
    match choose_variant(&modules, family).filter(|_| are_variants) {
        Some(info) => Ok(Artifact {
            content: skill.load_content(info)?,
            ..info.artifact.clone()
        }),
        None if modules.is_empty() => Err(UsageError(match name {
            Some(name) => format!("skill {} has no dspy_module {name:?}", outline.skill),
            None => format!(
                "skill {} has no dspy_module: add one with `repertoire artifact put {} NAME FILE \
                 --kind dspy_module`",
                outline.skill, outline.skill
            ),
        })
        .into()),
        None => {
            let names: Vec<&str> = modules.iter().map(|info| &*info.artifact.name).collect();
            let all = names.join(", ");
            Err(UsageError(format!(
                "there are several modules: name one with --artifact: {all}"
            ))
            .into())
        }
    }
}

/// Returns examples from the traces in which every assertion held.
pub(super) fn examples_from_traces(
    registry: &Registry,
    skill_id: &str,
    module: &Artifact,
    program: &DspyModule,
) -> Result<Vec<TrainingExample>> {
    let filter = TraceFilter {
        skill: Some(skill_id.to_owned()),
        ..TraceFilter::default()
    };
    let traces = registry.traces(&filter)?;
    let good = traces.iter().filter(|trace| {
        trace.artifact_kind == ArtifactKind::DspyModule.as_str()
            && trace.details["artifact"] == module.name
            && trace.details.get("variant").and_then(Value::as_str)
                == module.model_variant.as_deref()
            && trace.error.is_none()
            && trace.assertions_run > 0
            && trace.assertions_passed == trace.assertions_run
    });
    let examples: Vec<TrainingExample> = good
        .filter_map(|trace| {
            let read = |text: &Option<String>| -> Option<Value> {
                repertoire_core::json::from_str(text.as_deref()?).ok()
            };
            let row = json!({
                "inputs": read(&trace.rendered_input)?, "outputs": read(&trace.raw_output)?,
            });
            TrainingExample::from_row(&row, program).ok()
        })
        .collect();
    if examples.is_empty() {
        return Err(UsageError(format!(
            "no trace of {:?} is a usable example: {}, or give examples with --from FILE",
            module.name,
            if module
                .metadata
                .as_ref()
                .is_some_and(|all| all.contains_key("assertions"))
            {
                "run it until its assertions have held"
            } else {
                "give it assertions in its metadata, which say what a good answer is, and run it"
            }
        ))
        .into());
    }
    Ok(examples)
}

/// Reads examples from a file: a JSON array, or an object on each line.
fn examples_from_file(file: &Path, program: &DspyModule) -> Result<Vec<TrainingExample>> {
    let text = super::read_input(file, MAX_EXAMPLES_FILE)?;
    let shown = file.display();
    let text =
        String::from_utf8(text).map_err(|_| UsageError(format!("{shown} is not UTF-8 text")))?;
    let rows: Vec<(usize, Value)> = if let Ok(rows) =
        repertoire_core::json::from_str::<Vec<Value>>(&text)
    {
        (1..).zip(rows).collect()
    } else {
        let lines = (1..).zip(text.lines());
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let rows = lines.map(|(at, line)| {
            let row = repertoire_core::json::from_str(line);
            let row = row.map_err(|error| UsageError(format!("{shown}, line {at}: {error}")))?;
            Ok((at, row))
        });
        rows.collect::<Result<_>>()?
    };
    rows.iter()
        .map(|(at, row)| {
            let read = TrainingExample::from_row(row, program);
            Ok(read.map_err(|error| UsageError(format!("{shown}, {at}: {error}")))?)
        })
        .collect()
}

fn format_usage(usage: &repertoire_runtime::ModelUsage) -> String {
    let cost = usage.cost.map(|cost| format!(", ${cost:.6}"));
    format!(
        "{} tokens{}",
        usage.total_tokens(),
        cost.unwrap_or_default()
    )
}

fn print_result(
    improved: &Improvement,
    kept: bool,
    module: &Artifact,
    args: &OptimizeArgs,
    output: &Output,
) -> Result<()> {
    if output.json {
        return output.print_json(&json!({
            "skill": args.skill.to_string(), "artifact": module.name, "with": args.with.as_str(),
            "kept": kept, "improvement": improved,
        }));
    }
    output.print_text(&format!(
        "{BOLD}{}{BOLD:#}  {:.3} before ({}), {:.3} after ({}), on {} held back\n\
         {DIM}learned from {} with {}: {}; DSPy {}{DIM:#}\n",
        terminal_safe(&module.name),
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
