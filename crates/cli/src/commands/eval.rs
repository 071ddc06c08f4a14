//! `eval`: how well messages find the skills they mean, and how well skills do their work.

mod activation;
mod outputs;

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_core::Frontmatter;
use repertoire_registry::{Registry, Settings as Sources};
use serde::Deserialize;
use serde_json::{Value, json};

use self::{
    activation::{Activated, Activation, Goals},
    outputs::{Case, Outputs},
};
use super::{open, setup::finder};
use crate::{
    args::EvalArgs,
    failure::{PROBLEMS, Usage},
    output::Output,
    settings::Settings,
};

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    skills: Option<String>,
    #[serde(default)]
    goals: Goals,
    /// The same where skills are found by what messages mean, too.
    #[serde(default)]
    goals_with_meaning: Goals,
    #[serde(default)]
    activations: Vec<Activation>,
    #[serde(default)]
    outputs: Vec<Case>,
}

pub(crate) fn run(args: &EvalArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let at = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| at.to_string())?;
    let wrong = |reason: String| Usage(format!("{at}: {reason}"));
    let yaml = Frontmatter::parse(&text, 1).map_err(|error| wrong(error.to_string()))?;
    let file: File = serde_json::from_value(Value::Object(yaml.to_json()))
        .map_err(|error| wrong(error.to_string()))?;
    let registry = registry(args, &file, settings, output)?;
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
    // What is expected has to make sense before anybody is asked.
    for case in &file.outputs {
        case.assertions()?;
    }
    // Figures of half an index would say nothing.
    let finder = finder(&registry, &snapshot, settings, Duration::MAX, output)?;
    let activated = Activated::measure(
        &finder,
        &file.activations,
        &file.goals,
        &file.goals_with_meaning,
    )?;
    let outputs = Outputs::measure(&registry, &file.outputs, &args.model, settings)?;
    if output.json {
        let (activations, outputs) = (activated.to_json(), outputs.to_json());
        output.print_json(&json!({"activations": activations, "outputs": outputs}))?;
    } else {
        if !file.activations.is_empty() {
            activated.print(args.misses, output)?;
        }
        outputs.print(output)?;
        if !finder.understands() && !file.activations.is_empty() {
            output.note("by words alone: `repertoire setup embeddings` adds what messages mean");
        }
    }
    Ok(if activated.is_missed() || outputs.is_missed() {
        ExitCode::from(PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

fn registry(
    args: &EvalArgs,
    file: &File,
    settings: &Settings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let Some(folder) = &file.skills else {
        return open(&[], settings, output);
    };
    let base = args.file.parent().unwrap_or(std::path::Path::new("."));
    let folder = base.join(folder);
    crate::settings::need_folder(&folder)?;
    Ok(Registry::open(Sources::of_folders([folder]))?)
}
