//! A run: selects which artifacts of a skill are executed, in which order.
//!
//! The description comes first, then other context artifacts, then executable artifacts by
//! ordinal. Each output is available to the following artifacts.

use repertoire_core::{ArtifactKind, SpanKind};
use serde_json::{Value, json};

use crate::{
    dispatch::{ArtifactDispatcher, ArtifactInfo, ArtifactOutput, ExecutionContext, LoadableSkill},
    error::{Error, Result},
    model::ModelUsage,
    record::ExecutionRecord,
    variant::choose_variant,
};

/// The steps of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunPlan {
    /// The artifacts, in order.
    pub steps: Vec<ArtifactInfo>,
    /// Artifacts that are skipped, with the reason.
    pub skipped: Vec<SkippedArtifact>,
}

/// An artifact that is not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedArtifact {
    /// Its name.
    pub name: String,
    /// Why it cannot be run.
    pub reason: Error,
}

impl std::fmt::Display for SkippedArtifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

impl RunPlan {
    /// Whether a step certainly calls a model; a script may or may not call one.
    pub fn requires_model(&self) -> bool {
        self.steps.iter().any(|info| match info.artifact.kind {
            ArtifactKind::PromptTemplate | ArtifactKind::DspyModule => true,
            ArtifactKind::CodeTemplate
            | ArtifactKind::Description
            | ArtifactKind::Approach
            | ArtifactKind::Example => false,
        })
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The session id of the run.
    pub session_id: String,
    /// One record for each artifact.
    pub records: Vec<ExecutionRecord>,
    /// The output of the last artifact, or the error that ended the run.
    pub outcome: Result<ArtifactOutput>,
    /// Skipped artifacts, and failures that did not end the run.
    pub warnings: Vec<String>,
    /// Artifacts of the plan that were skipped.
    pub skipped: Vec<SkippedArtifact>,
}

impl RunReport {
    /// The usage of all executions, including nested skills.
    pub fn usage(&self) -> ModelUsage {
        let mut all = ModelUsage::default();
        for record in &self.records {
            all.add_usage(record.usage());
        }
        all
    }
}

/// Plans a run of a skill for a model family; loads no artifact content.
///
/// With names, the plan has those artifacts and the context artifacts; without names, everything
/// that can run here except prompts that are only a fallback.
pub fn plan_run(
    skill: &dyn LoadableSkill,
    dispatcher: &ArtifactDispatcher,
    family: &str,
    names: &[String],
) -> Result<RunPlan> {
    let artifacts = &skill.outline().artifacts;
    for name in names {
        if !artifacts
            .iter()
            .any(|info| info.artifact.name.eq_ignore_ascii_case(name))
        {
            let known: Vec<&str> = artifacts.iter().map(|info| &*info.artifact.name).collect();
            return Err(Error::NoArtifact {
                name: name.clone(),
                known: known.join(", "),
            });
        }
    }
    let fallbacks: Vec<&str> = artifacts
        .iter()
        .filter_map(|info| info.artifact.fallback_name())
        .collect();
    let mut places: Vec<(ArtifactKind, &str)> = Vec::new();
    for info in artifacts {
        let place = (info.artifact.kind, info.artifact.name.as_str());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let mut plan = RunPlan {
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
        let Some(info) = choose_variant(&variants, family) else {
            continue;
        };
        if !kind.is_context() && !wanted_now {
            if !names.is_empty()
                || (kind == ArtifactKind::PromptTemplate && fallbacks.contains(&name))
            {
                continue;
            }
            let stands = kind == ArtifactKind::DspyModule;
            if !dispatcher.can_run(kind) && !stands {
                let reason = dispatcher
                    .unavailable_reason(kind)
                    .unwrap_or(Error::NoHandler(kind));
                plan.skipped.push(SkippedArtifact {
                    name: name.to_owned(),
                    reason,
                });
                left_out.push(info.clone());
                continue;
            }
        }
        plan.steps.push(info.clone());
    }
    if plan
        .steps
        .iter()
        .all(|info| info.artifact.kind.is_context())
    {
        // If nothing else can run, keep these steps so that the run fails with their reason.
        plan.steps.append(&mut left_out);
        plan.skipped.clear();
    }
    let rank = |kind: ArtifactKind| match kind {
        ArtifactKind::Description => 0,
        ArtifactKind::Approach => 1,
        ArtifactKind::Example => 2,
        ArtifactKind::PromptTemplate | ArtifactKind::CodeTemplate | ArtifactKind::DspyModule => 3,
    };
    plan.steps
        .sort_by_key(|info| (rank(info.artifact.kind), info.artifact.ordinal));
    Ok(plan)
}

/// Runs a plan; calls the callback with each record as soon as it is complete.
pub async fn run_plan(
    skill: &dyn LoadableSkill,
    dispatcher: &ArtifactDispatcher,
    plan: &RunPlan,
    context: &mut ExecutionContext,
    on_record: &mut (dyn FnMut(&ExecutionRecord) + Send),
) -> RunReport {
    let outline = skill.outline();
    let mut span = context
        .spans
        .begin_span(context.place, SpanKind::Run, &outline.skill);
    span.set_skill(&outline.skill, &outline.version);
    if let Some(message) = &context.message {
        span.set_input(message);
    }
    let report = execute_steps(skill, dispatcher, plan, context, on_record).await;
    span.finish(report.outcome.as_ref().map(|output| &*output.text));
    report
}

async fn execute_steps(
    skill: &dyn LoadableSkill,
    dispatcher: &ArtifactDispatcher,
    plan: &RunPlan,
    context: &mut ExecutionContext,
    on_record: &mut (dyn FnMut(&ExecutionRecord) + Send),
) -> RunReport {
    let mut report = RunReport {
        session_id: context.session_id.clone(),
        records: Vec::new(),
        outcome: Ok(ArtifactOutput::default()),
        skipped: plan.skipped.clone(),
        warnings: Vec::new(),
    };
    let mut outputs = serde_json::Map::new();
    for info in &plan.steps {
        let executed = dispatcher.dispatch_artifact(skill, info, context).await;
        if let Some(failed) = executed.failed_attempt {
            let (name, why) = (&failed.details.artifact, failed.error.as_deref());
            let why = why.unwrap_or_default();
            report.warnings.push(format!("{name}: {why}"));
            on_record(&failed);
            report.records.push(*failed);
        }
        on_record(&executed.record);
        let name = executed.record.details.artifact.clone();
        let warnings = executed.record.details.warnings.iter();
        report
            .warnings
            .extend(warnings.map(|warning| format!("{name}: {warning}")));
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
                if !info.artifact.kind.is_context() {
                    store_output(context, &mut outputs, &info.artifact.name, &output);
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

/// Makes an output available to the following artifacts.
fn store_output(
    context: &mut ExecutionContext,
    outputs: &mut serde_json::Map<String, Value>,
    name: &str,
    output: &ArtifactOutput,
) {
    let value = output.value.clone().unwrap_or_else(|| json!(output.text));
    if let Value::Object(fields) = &value {
        for (key, value) in fields {
            // Values given by the caller are never overwritten.
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
