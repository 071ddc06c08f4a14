//! `optimize`: makes the program of a skill better from examples, and keeps it if it is.

use std::{path::Path, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_core::{Artifact, ArtifactKind, text::terminal_safe};
use repertoire_registry::{Origin, Registry, Scope, store::TraceFilter};
use repertoire_runtime::{
    Error as RunError, SkillSource,
    optimise::{Effort, Example, Improvement, Optimizer, Split, optimise},
    sidecar::{Module, Sidecar},
    variant::choose,
};
use repertoire_serve::runs::Runnable;
use serde_json::{Value, json};

use super::{artifact, history, open, run, serve::runtime, setup};
use crate::{
    args::{OptimizeArgs, With},
    failure::Usage,
    output::{BOLD, DIM, Output, count},
    settings::Settings,
};

/// The most bytes of a file of examples.
const MAX_FILE: usize = 64 * 1024 * 1024;

pub(crate) fn optimize(
    args: &OptimizeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let entry = run::find(&registry, &args.skill)?;
    let skill = Runnable::new(&registry, &entry)?;
    let context = run::context(&args.model, &[], None, true, settings)?;
    let module = chosen(&skill, args.artifact.as_deref(), &context.family())?;
    let program = Module::read(&module)?;
    if args.with == With::RandomSearch && args.demos == Some(0) {
        let why = "random-search looks for examples to show: --demos is at least 1";
        return Err(Usage(why.to_owned()).into());
    }
    // Before anything is asked: where it would be kept, and whether it would be used there.
    let scope = history::scope_of(&registry, &args.skill, args.scope, settings)?;
    let used = [Scope::Workspace, Scope::Account]
        .into_iter()
        .find(|scope| entry.origin == Origin::of_scope(*scope));
    let scope = match (args.scope, used) {
        (Some(_), Some(used)) if used != scope => {
            let (used, scope) = (used.as_str(), scope.as_str());
            return Err(Usage(format!(
                "the {used}'s copy of {} is the one that runs, so that what is learned for the \
                 {scope}'s would not be used: leave --scope out",
                entry.id
            ))
            .into());
        }
        (_, used) => used.unwrap_or(scope),
    };
    let (store, summary) = artifact::stored(&registry, scope, &args.skill)?;
    let (examples, by_example) = if args.from.as_os_str() == "traces" {
        (
            from_traces(&registry, &skill.outline().skill_id, &module, &program)?,
            false,
        )
    } else {
        (from_file(&args.from, &program)?, true)
    };
    let split = Split::of(examples)?;
    let context = Arc::new(context);
    run::stop_on_signal(&context);
    let sidecar = Sidecar::new(setup::sidecar::program(settings));
    if sidecar.lacks().is_some() {
        return Err(RunError::NeedsSidecar(module.name.clone()).into());
    }
    let how = (
        match args.with {
            With::Bootstrap => Optimizer::Bootstrap,
            With::RandomSearch => Optimizer::RandomSearch,
            With::Mipro => Optimizer::Mipro,
            With::Gepa => Optimizer::Gepa,
        },
        Effort {
            demos: args.demos,
            candidates: args.candidates,
            trials: args.trials,
            metric_calls: args.judgements,
        },
    );
    let bar = output.spinner();
    let progress = |what: &str| bar.suspend(|| output.note(what));
    let improved = runtime()?.block_on(async {
        let mut work = pin!(optimise(
            &sidecar, &module, &split, how, by_example, &context, &progress,
        ));
        let mut now_and_then = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                improved = &mut work => break improved,
                () = context.stop.cancelled() => break Err(RunError::Interrupted),
                _ = now_and_then.tick() => bar.set_message(spent(&context.notes.spent())),
            }
        }
    });
    bar.finish_and_clear();
    let improved = improved.inspect_err(|_| {
        output.note(format!("{} until then", spent(&context.notes.spent())));
    })?;
    let keep = improved.is_not_worse() || args.force;
    if keep {
        let known = store.get_artifacts(summary.id, &[ArtifactKind::DspyModule])?;
        let known = known
            .into_iter()
            .find(|one| one.name == module.name && one.model_variant == module.model_variant);
        let id = known.and_then(|known| known.id);
        let id = id.context("the artifact is gone")?;
        store.learn_artifact(id, &module, improved.state.clone())?;
    }
    tell(&improved, keep, &module, args, output)?;
    Ok(if keep {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// The program that is meant.
fn chosen(skill: &Runnable, name: Option<&str>, family: &str) -> Result<Artifact> {
    let outline = skill.outline();
    let is_module = |kind: ArtifactKind| kind == ArtifactKind::DspyModule;
    let modules: Vec<_> = outline
        .artifacts
        .iter()
        .filter(|info| is_module(info.artifact.kind))
        .filter(|info| name.is_none_or(|name| info.artifact.name.eq_ignore_ascii_case(name)))
        .collect();
    // Those of one name are variants, and the model says which is meant.
    let first = modules.first().map(|info| &info.artifact.name);
    let are_variants = modules
        .iter()
        .all(|info| Some(&info.artifact.name) == first);
    match choose(&modules, family).filter(|_| are_variants) {
        Some(info) => Ok(Artifact {
            content: skill.content(info)?,
            ..info.artifact.clone()
        }),
        None if modules.is_empty() => Err(Usage(match name {
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
            Err(Usage(format!("which one? Name it with --artifact: {all}")).into())
        }
    }
}

/// What the program was asked and answered, where every assertion held.
pub(super) fn from_traces(
    registry: &Registry,
    skill_id: &str,
    module: &Artifact,
    program: &Module,
) -> Result<Vec<Example>> {
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
    let examples: Vec<Example> = good
        .filter_map(|trace| {
            let read = |text: &Option<String>| -> Option<Value> {
                repertoire_core::json::from_str(text.as_deref()?).ok()
            };
            let row = json!({
                "inputs": read(&trace.rendered_input)?, "outputs": read(&trace.raw_output)?,
            });
            Example::read(&row, program).ok()
        })
        .collect();
    if examples.is_empty() {
        return Err(Usage(format!(
            "no trace of {:?} can be learned from: {}, or bring examples with --from FILE",
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

/// Examples of a file: a JSON array, or an object on each line.
fn from_file(file: &Path, program: &Module) -> Result<Vec<Example>> {
    let text = super::read_input(file, MAX_FILE)?;
    let shown = file.display();
    let text = String::from_utf8(text).map_err(|_| Usage(format!("{shown} is no text")))?;
    let rows: Vec<(usize, Value)> =
        if let Ok(rows) = repertoire_core::json::from_str::<Vec<Value>>(&text) {
            (1..).zip(rows).collect()
        } else {
            let lines = (1..).zip(text.lines());
            let lines = lines.filter(|(_, line)| !line.trim().is_empty());
            let rows = lines.map(|(at, line)| {
                let row = repertoire_core::json::from_str(line);
                let row = row.map_err(|error| Usage(format!("{shown}, line {at}: {error}")))?;
                Ok((at, row))
            });
            rows.collect::<Result<_>>()?
        };
    rows.iter()
        .map(|(at, row)| {
            let read = Example::read(row, program);
            Ok(read.map_err(|error| Usage(format!("{shown}, {at}: {error}")))?)
        })
        .collect()
}

fn spent(usage: &repertoire_runtime::Usage) -> String {
    let cost = usage.cost.map(|cost| format!(", ${cost:.6}"));
    format!("{} tokens{}", usage.tokens(), cost.unwrap_or_default())
}

fn tell(
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
    output.print(&format!(
        "{BOLD}{}{BOLD:#}  {:.3} before ({}), {:.3} after ({}), on {} held back\n\
         {DIM}learned from {} with {}: {}; DSPy {}{DIM:#}\n",
        terminal_safe(&module.name),
        improved.before,
        spent(&improved.measuring.before),
        improved.after,
        spent(&improved.measuring.after),
        count(improved.held_back, "example"),
        count(improved.training, "example"),
        args.with.as_str(),
        spent(&improved.learning),
        improved.dspy,
    ))?;
    if kept {
        output.note(format!(
            "the new state is kept; the one before is in `repertoire history {}`",
            args.skill
        ));
    } else {
        output.warn("it is worse, so that nothing was changed: --force keeps it all the same");
    }
    Ok(())
}
