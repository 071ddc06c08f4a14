//! `eval`: measures how well search finds skills and how well skills perform.

mod activation;
mod outputs;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_app::{ActivationReport, EvaluationFile, require_folder};
use repertoire_registry::Registry;
use serde_json::json;

use self::outputs::OutputReport;
use super::{open_registry, setup::index_skills};
use crate::{args::EvalArgs, failure::EXIT_PROBLEMS, output::Output, settings::CliSettings};

pub(crate) fn run(args: &EvalArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let at = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| at.to_string())?;
    let file = EvaluationFile::parse(&text).with_context(|| at.to_string())?;
    let registry = open_eval_registry(args, &file, settings, output)?;
    let snapshot = registry.snapshot();
    file.check(&snapshot).with_context(|| at.to_string())?;
    // Metrics of a partial index would be meaningless.
    let finder = index_skills(&registry, &snapshot, settings, Duration::MAX, output)?;
    let activated = ActivationReport::measure_activations(
        &finder,
        &file.activations,
        &[],
        &file.goals,
        &file.goals_with_meaning,
    );
    let outputs = OutputReport::run_cases(&registry, &file.outputs, &args.model, settings, output)?;
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
    file: &EvaluationFile,
    settings: &CliSettings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let Some(folder) = &file.skills else {
        return open_registry(&[], settings, output);
    };
    let base = args.file.parent().unwrap_or(std::path::Path::new("."));
    let folder = base.join(folder);
    require_folder(&folder)?;
    Ok(Registry::open(settings.sources_for(&[folder])?)?)
}
