//! `eval`: measures how well search finds skills and how well skills perform.

mod activation;
mod outputs;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_app::{ActivationCase, ActivationGoals, ActivationReport, OutputCase};
use repertoire_core::Frontmatter;
use repertoire_registry::{Registry, RegistrySettings as Sources};
use serde::Deserialize;
use serde_json::{Value, json};

use self::outputs::OutputReport;
use super::{open_registry, setup::build_skill_index};
use crate::{
    args::EvalArgs,
    failure::{EXIT_PROBLEMS, UsageError},
    output::Output,
    settings::CliSettings,
};

/// The evaluation file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvalFile {
    #[serde(default)]
    skills: Option<String>,
    #[serde(default)]
    goals: ActivationGoals,
    /// The goals for search with embeddings.
    #[serde(default)]
    goals_with_meaning: ActivationGoals,
    #[serde(default)]
    activations: Vec<ActivationCase>,
    #[serde(default)]
    outputs: Vec<OutputCase>,
}

pub(crate) fn run(args: &EvalArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let at = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| at.to_string())?;
    let wrong = |reason: String| UsageError(format!("{at}: {reason}"));
    let yaml = Frontmatter::parse(&text, 1).map_err(|error| wrong(error.to_string()))?;
    let file: EvalFile = serde_json::from_value(Value::Object(yaml.to_json()))
        .map_err(|error| wrong(error.to_string()))?;
    let registry = open_eval_registry(args, &file, settings, output)?;
    let snapshot = registry.snapshot();
    let expected = file.activations.iter().map(|one| &one.expect);
    let near = file.activations.iter().filter_map(|one| one.near.as_ref());
    let run = file.outputs.iter().map(|case| &case.skill);
    for id in expected.filter(|id| *id != "none").chain(near).chain(run) {
        let known = id.parse().ok().and_then(|id| snapshot.get(&id));
        if known.is_none() {
            return Err(wrong(format!("names the skill {id:?}, which is not there")).into());
        }
    }
    // Check the assertions before any model is called.
    for case in &file.outputs {
        case.parse_assertions()?;
    }
    // Metrics of a partial index would be meaningless.
    let finder = build_skill_index(&registry, &snapshot, settings, Duration::MAX, output)?;
    let activated = ActivationReport::measure_activations(
        &finder,
        &file.activations,
        &file.goals,
        &file.goals_with_meaning,
    )?;
    let outputs = OutputReport::run_cases(&registry, &file.outputs, &args.model, settings)?;
    if output.json {
        let (activations, outputs) = (activated.to_json(), outputs.to_json());
        output.print_json(&json!({"activations": activations, "outputs": outputs}))?;
    } else {
        if !file.activations.is_empty() {
            activation::print_report(&activated, args.misses, output)?;
        }
        outputs.print_results(output)?;
        if !finder.has_embeddings() && !file.activations.is_empty() {
            output
                .print_note("by words alone: `repertoire setup embeddings` adds search by meaning");
        }
    }
    Ok(if activated.is_missed() || outputs.is_missed() {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

fn open_eval_registry(
    args: &EvalArgs,
    file: &EvalFile,
    settings: &CliSettings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let Some(folder) = &file.skills else {
        return open_registry(&[], settings, output);
    };
    let base = args.file.parent().unwrap_or(std::path::Path::new("."));
    let folder = base.join(folder);
    crate::settings::require_folder(&folder)?;
    Ok(Registry::open(Sources::from_folders([folder]))?)
}
