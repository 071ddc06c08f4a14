//! `optimize`: makes the program of a skill better from examples, and keeps it if it is.

use std::{path::Path, process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use repertoire_core::{Artifact, ArtifactKind, text::terminal_safe};
use repertoire_registry::{
    Registry,
    store::{SkillRepository, TraceFilter},
};
use repertoire_runtime::{
    Error as RunError, SkillSource,
    optimise::{Effort, Example, Improvement, Optimizer, Split, optimise},
    sidecar::{Module, Sidecar},
};
use repertoire_serve::runs::Runnable;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{artifact, history, open, run, serve::runtime, setup};
use crate::{
    args::{OptimizeArgs, With},
    failure::Usage,
    output::{BOLD, DIM, Output},
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
    let module = chosen(&skill, args.artifact.as_deref())?;
    let program = Module::read(&module)?;
    // Before anything is asked: where it would be kept.
    let scope = history::scope_of(&registry, &args.skill, args.scope, settings)?;
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
    let context = run::context(&args.model, &[], None, true, settings)?;
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
    let progress = |what: &str| output.note(what);
    let improved = runtime()?.block_on(async {
        let work = optimise(
            &sidecar, &module, &split, how, by_example, &context, &progress,
        );
        tokio::select! {
            improved = work => improved,
            () = context.stop.cancelled() => Err(RunError::Interrupted),
        }
    })?;
    let keep = improved.is_not_worse() || args.force;
    if keep {
        let known = store.get_artifacts(summary.id, &[ArtifactKind::DspyModule])?;
        let known = known
            .into_iter()
            .find(|one| one.name == module.name && one.model_variant == module.model_variant);
        let id = known.and_then(|known| known.id);
        let id = id.context("the artifact is gone")?;
        keep_state(store, id, &module, improved.state.clone())?;
    }
    tell(&improved, keep, &module, args, output)?;
    Ok(if keep {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

/// Keeps a state that was learned for an artifact, if that is still what it was.
pub(super) fn keep_state(
    store: &dyn SkillRepository,
    id: Uuid,
    learned_for: &Artifact,
    state: Vec<u8>,
) -> Result<()> {
    let now = store.get_artifact(id)?.context("the artifact is gone")?;
    let same = |a: &Artifact, b: &Artifact| {
        a.content.trim() == b.content.trim() && a.state_blob == b.state_blob
    };
    if !same(&now, learned_for) {
        return Err(Usage(format!(
            "{:?} was changed meanwhile, so that what was learned is not kept",
            now.name
        ))
        .into());
    }
    let changed = Artifact {
        id: None,
        state_blob: Some(state),
        ..now
    };
    Ok(store.update_artifact(id, &changed)?)
}

/// The program that is meant.
fn chosen(skill: &Runnable, name: Option<&str>) -> Result<Artifact> {
    let outline = skill.outline();
    let is_module = |kind: ArtifactKind| kind == ArtifactKind::DspyModule;
    let modules: Vec<_> = outline
        .artifacts
        .iter()
        .filter(|info| is_module(info.artifact.kind))
        .filter(|info| name.is_none_or(|name| info.artifact.name.eq_ignore_ascii_case(name)))
        .collect();
    match modules[..] {
        [info] => Ok(Artifact {
            content: skill.content(info)?,
            ..info.artifact.clone()
        }),
        [] => Err(Usage(match name {
            Some(name) => format!("skill {} has no dspy_module {name:?}", outline.skill),
            None => format!(
                "skill {} has no dspy_module: add one with `repertoire artifact put {} NAME FILE \
                 --kind dspy_module`",
                outline.skill, outline.skill
            ),
        })
        .into()),
        _ => {
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
            && trace.error.is_none()
            && trace.assertions_passed == trace.assertions_run
    });
    let examples: Vec<Example> = good
        .filter_map(|trace| {
            let read = |text: &Option<String>| -> Option<Value> {
                serde_json::from_str(text.as_deref()?).ok()
            };
            let row = json!({
                "inputs": read(&trace.rendered_input)?, "outputs": read(&trace.raw_output)?,
            });
            Example::read(&row, program).ok()
        })
        .collect();
    if examples.is_empty() {
        return Err(Usage(format!(
            "no trace of {:?} can be learned from: run it first, or bring examples with --from FILE",
            module.name
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
    let rows: Vec<(usize, Value)> = if let Ok(rows) = serde_json::from_str::<Vec<Value>>(&text) {
        (1..).zip(rows).collect()
    } else {
        let lines = (1..).zip(text.lines());
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let rows = lines.map(|(at, line)| {
            let row = serde_json::from_str(line);
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
    let money = |usage: &repertoire_runtime::Usage| {
        let cost = usage.cost.map(|cost| format!(", ${cost:.6}"));
        format!("{} tokens{}", usage.tokens(), cost.unwrap_or_default())
    };
    output.print(&format!(
        "{BOLD}{}{BOLD:#}  {:.3} before, {:.3} after, on {} examples held back\n\
         {DIM}learned from {} with {}: {}; measuring: {}; DSPy {}{DIM:#}\n",
        terminal_safe(&module.name),
        improved.before,
        improved.after,
        improved.held_back,
        improved.training,
        args.with.as_str(),
        money(&improved.learning),
        money(&improved.measuring),
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
