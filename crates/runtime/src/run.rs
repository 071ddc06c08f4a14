//! A run: which artifacts of a skill are executed, and in which order.
//!
//! The description comes first, then what else belongs into context, then what is executed, by
//! ordinal. What one gives the next can use.

use repertoire_core::ArtifactKind;
use serde_json::{Value, json};

use crate::{
    dispatch::{ArtifactDispatcher, ArtifactInfo, ArtifactOutput, ExecutionContext, SkillSource},
    error::{Error, Result},
    model::Usage,
    record::ExecutionRecord,
    variant::choose,
};

/// What is to be done, step by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The artifacts, in order.
    pub steps: Vec<ArtifactInfo>,
    /// What is left out, and why.
    pub skipped: Vec<String>,
}

impl Plan {
    /// Whether a model is asked for sure; a script may ask one, or not.
    pub fn asks_a_model(&self) -> bool {
        self.steps.iter().any(|info| {
            matches!(
                info.artifact.kind,
                ArtifactKind::PromptTemplate | ArtifactKind::DspyModule
            )
        })
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The run.
    pub session_id: String,
    /// One record for each artifact.
    pub records: Vec<ExecutionRecord>,
    /// What the last one gave, or why the run ended.
    pub outcome: Result<ArtifactOutput>,
    /// What was left out, and what did not hold without ending the run.
    pub warnings: Vec<String>,
}

impl Report {
    /// What all of it cost, with the skills that were run on the way.
    pub fn usage(&self) -> Usage {
        let mut all = Usage::default();
        for record in &self.records {
            all.add(record.usage());
        }
        all
    }
}

pub(crate) fn is_context(kind: ArtifactKind) -> bool {
    matches!(
        kind,
        ArtifactKind::Description | ArtifactKind::Approach | ArtifactKind::Example
    )
}

/// Plans a run of a skill for a model's family; nothing is loaded for it.
///
/// With names, those and what belongs into context; without, everything that can be run here, but
/// no prompt that only stands in for something else.
pub fn plan(
    skill: &dyn SkillSource,
    dispatcher: &ArtifactDispatcher,
    family: &str,
    names: &[String],
) -> Result<Plan> {
    let artifacts = &skill.outline().artifacts;
    for name in names {
        if !artifacts
            .iter()
            .any(|info| info.artifact.name.eq_ignore_ascii_case(name))
        {
            let known: Vec<&str> = artifacts.iter().map(|info| &*info.artifact.name).collect();
            return Err(Error::Artifact {
                artifact: name.clone(),
                reason: format!(
                    "the skill has none of that name: it has {}",
                    known.join(", ")
                ),
            });
        }
    }
    let fallbacks: Vec<&str> = artifacts
        .iter()
        .filter_map(|info| info.artifact.fallback())
        .collect();
    let mut places: Vec<(ArtifactKind, &str)> = Vec::new();
    for info in artifacts {
        let place = (info.artifact.kind, info.artifact.name.as_str());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut plan = Plan {
        steps: Vec::new(),
        skipped: Vec::new(),
    };
    let mut left_out = Vec::new();
    for (kind, name) in places {
        let wanted_now = names.iter().any(|wanted| wanted.eq_ignore_ascii_case(name));
        let variants: Vec<&ArtifactInfo> = artifacts
            .iter()
            .filter(|info| info.artifact.kind == kind && info.artifact.name == name)
            .collect();
        let Some(info) = choose(&variants, family) else {
            continue;
        };
        if !is_context(kind) && !wanted_now {
            if !names.is_empty()
                || (kind == ArtifactKind::PromptTemplate && fallbacks.contains(&name))
            {
                continue;
            }
            let stands = kind == ArtifactKind::DspyModule;
            if !dispatcher.runs(kind) && !stands {
                let why = dispatcher.lacks(kind).unwrap_or(Error::NoHandler(kind));
                let hint = why.hint().map(|hint| format!(" ({hint})"));
                plan.skipped
                    .push(format!("{name}: {why}{}", hint.unwrap_or_default()));
                left_out.push(info.clone());
                continue;
            }
        }
        plan.steps.push(info.clone());
    }
    if plan.steps.iter().all(|info| is_context(info.artifact.kind)) {
        // With nothing left to do, what cannot be done fails, and says why.
        plan.steps.append(&mut left_out);
        plan.skipped.clear();
    }
    let rank = |kind: ArtifactKind| match kind {
        ArtifactKind::Description => 0,
        ArtifactKind::Approach => 1,
        ArtifactKind::Example => 2,
        _ => 3,
    };
    plan.steps
        .sort_by_key(|info| (rank(info.artifact.kind), info.artifact.ordinal));
    Ok(plan)
}

/// Carries out a plan; each record is told as soon as it is there.
pub async fn run(
    skill: &dyn SkillSource,
    dispatcher: &ArtifactDispatcher,
    plan: &Plan,
    context: &mut ExecutionContext,
    tell: &mut (dyn FnMut(&ExecutionRecord) + Send),
) -> Report {
    let mut report = Report {
        session_id: context.session_id.clone(),
        records: Vec::new(),
        outcome: Ok(ArtifactOutput::default()),
        warnings: plan.skipped.clone(),
    };
    let mut outputs = serde_json::Map::new();
    for info in &plan.steps {
        let executed = dispatcher.dispatch(skill, info, context).await;
        if let Some(failed) = executed.failed {
            let (name, why) = (&failed.details.artifact, failed.error.as_deref());
            let why = why.unwrap_or_default();
            report.warnings.push(format!("{name}: {why}"));
            tell(&failed);
            report.records.push(*failed);
        }
        tell(&executed.record);
        let name = executed.record.details.artifact.clone();
        for verdict in executed
            .record
            .details
            .assertions
            .iter()
            .filter(|v| !v.passed)
        {
            let why = verdict.explanation.as_deref().unwrap_or_default();
            report.warnings.push(format!(
                "{name}: {why} (assertion: {})",
                verdict.description
            ));
        }
        if let Some(other) = &executed.record.details.fallback_for {
            report.warnings.push(format!(
                "{other}: the sidecar could not run it, so {name} stood in for it"
            ));
        }
        report.records.push(executed.record);
        match executed.outcome {
            Ok(output) => {
                if output.cut {
                    report.warnings.push(format!(
                        "{name}: the answer was cut after {} tokens",
                        context.max_tokens
                    ));
                }
                if !is_context(info.artifact.kind) {
                    keep(context, &mut outputs, &info.artifact.name, &output);
                }
                report.outcome = Ok(output);
            }
            Err(error) => {
                report.outcome = Err(error);
                return report;
            }
        }
    }
    report
}

/// Makes an output available to whatever comes next.
fn keep(
    context: &mut ExecutionContext,
    outputs: &mut serde_json::Map<String, Value>,
    name: &str,
    output: &ArtifactOutput,
) {
    let value = output.value.clone().unwrap_or_else(|| json!(output.text));
    if let Value::Object(fields) = &value {
        for (key, value) in fields {
            // What was given from outside stays as it was given.
            context
                .values
                .entry(key.clone())
                .or_insert_with(|| value.clone());
        }
    }
    outputs.insert(name.to_owned(), value);
    context
        .values
        .insert("outputs".to_owned(), Value::Object(outputs.clone()));
}
