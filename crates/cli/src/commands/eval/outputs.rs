//! Measures how well skills perform, with and without each skill.

use std::sync::Arc;

use anyhow::Result;
use repertoire_core::{Artifact, ArtifactKind, text::terminal_safe};
use repertoire_registry::{QualifiedSkillId, Registry};
use repertoire_runtime::{
    Model, ModelRequest, ModelUsage,
    assertion::{self, Assertion},
    run::{plan_run, run_plan},
};
use repertoire_serve::runs::{RunnableSkill, attach_registry, trace_from_record};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::run as running;
use crate::{
    args::ModelArgs,
    output::{BOLD, DIM, Output},
    settings::CliSettings,
};

/// A skill, its input, and the assertions on its output.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputCase {
    pub(super) skill: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    params: Map<String, Value>,
    /// Assertions, as an artifact's metadata has them.
    expect: Vec<Value>,
}

impl OutputCase {
    /// Parses the assertions, so that errors appear before any model is called.
    pub(super) fn parse_assertions(&self) -> Result<Vec<Assertion>> {
        let metadata = json!({"assertions": self.expect});
        let artifact = Artifact {
            id: None,
            kind: ArtifactKind::PromptTemplate,
            name: format!("outputs of {}", self.skill),
            ordinal: 0,
            content: String::new(),
            file: None,
            model_variant: None,
            metadata: metadata.as_object().cloned(),
            state_blob: None,
            created_at: None,
            updated_at: None,
        };
        Ok(assertion::read_assertions(&artifact)?)
    }
}

/// The result of a case, with or without its skill.
#[derive(Debug, Default)]
struct CaseOutcome {
    passed: usize,
    of: usize,
    usage: ModelUsage,
    /// The assertions that failed.
    problems: Vec<String>,
}

impl CaseOutcome {
    fn has_passed(&self) -> bool {
        self.problems.is_empty()
    }

    fn to_json(&self) -> Value {
        json!({
            "passed": self.passed, "of": self.of, "usage": self.usage, "problems": self.problems,
        })
    }

    fn format_summary(&self) -> String {
        let cost = self.usage.cost.map(|cost| format!(" ${cost:.6}"));
        format!(
            "{}/{}  {:>6} tokens{}",
            self.passed,
            self.of,
            self.usage.total_tokens(),
            cost.unwrap_or_default()
        )
    }
}

/// The results of all cases, with and without the skill.
#[derive(Debug, Default)]
pub(super) struct OutputReport {
    cases: Vec<(String, CaseOutcome, CaseOutcome)>,
}

impl OutputReport {
    /// Runs every case with its skill, and sends its message to the model without it.
    pub(super) fn run_cases(
        registry: &Arc<Registry>,
        cases: &[OutputCase],
        model: &ModelArgs,
        settings: &CliSettings,
    ) -> Result<Self> {
        let mut outputs = Self::default();
        if cases.is_empty() {
            return Ok(outputs);
        }
        let runtime = super::super::serve::build_runtime()?;
        for case in cases {
            let assertions = case.parse_assertions()?;
            let reference: QualifiedSkillId = case.skill.parse()?;
            let entry = running::find_entry(registry, &reference)?;
            let skill = RunnableSkill::new(registry, &entry)?;
            let message = Some(case.message.as_str());
            let mut context = running::build_context(model, &[], message, true, settings)?;
            context.values.clone_from(&case.params);
            let asked = running::require_model(&context)?;
            let dispatcher = running::build_dispatcher(settings);
            attach_registry(&mut context, registry, &dispatcher);
            let steps = plan_run(&skill, &dispatcher, &context.model_family(), &[])?;
            let pair = runtime.block_on(async {
                // A registry over plain folders keeps no traces.
                let mut keep = |record: &_| drop(registry.put_trace(trace_from_record(record)));
                let report = run_plan(&skill, &dispatcher, &steps, &mut context, &mut keep).await;
                let usage = report.usage();
                let text = report.outcome.map(|output| output.text);
                let with = evaluate_assertions(&assertions, text, usage, &asked).await;
                let plain = asked
                    .ask(&ModelRequest::new(case.message.as_str()), None)
                    .await;
                let usage = plain.as_ref().map(|reply| reply.usage).unwrap_or_default();
                let text = plain.map(|reply| reply.text);
                (
                    with,
                    evaluate_assertions(&assertions, text, usage, &asked).await,
                )
            });
            let name = format!("{}: {}", case.skill, case.message);
            outputs.cases.push((name, pair.0, pair.1));
        }
        Ok(outputs)
    }

    pub(super) fn is_missed(&self) -> bool {
        self.cases.iter().any(|(_, with, _)| !with.has_passed())
    }

    pub(super) fn to_json(&self) -> Value {
        let cases = self.cases.iter().map(|(name, with, without)| {
            json!({"case": name, "with": with.to_json(), "without": without.to_json()})
        });
        Value::Array(cases.collect())
    }

    pub(super) fn print_results(&self, output: &Output) -> Result<()> {
        if self.cases.is_empty() {
            return Ok(());
        }
        output.print_text(&format!("\n{BOLD}outputs{BOLD:#}\n"))?;
        for (name, with, without) in &self.cases {
            let verdict = if with.has_passed() { "" } else { "  MISSED" };
            output.print_text(&format!(
                "  {}{verdict}\n    {:<8} {}\n    {DIM}{:<8} {}{DIM:#}\n",
                terminal_safe(name),
                "with",
                with.format_summary(),
                "without",
                without.format_summary()
            ))?;
            for problem in &with.problems {
                output.print_text(&format!("    {}\n", terminal_safe(problem)))?;
            }
        }
        Ok(())
    }
}

async fn evaluate_assertions(
    assertions: &[Assertion],
    text: repertoire_runtime::Result<String>,
    usage: ModelUsage,
    model: &Arc<dyn Model>,
) -> CaseOutcome {
    let mut outcome = CaseOutcome {
        of: assertions.len(),
        usage,
        ..CaseOutcome::default()
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            outcome.problems.push(error.to_string());
            return outcome;
        }
    };
    for assertion in assertions {
        // The cost of the judge is not part of the skill's cost.
        let (verdict, _) = assertion.evaluate(&text, Some(model)).await;
        if verdict.passed {
            outcome.passed += 1;
        } else {
            let why = verdict.explanation.unwrap_or_default();
            outcome
                .problems
                .push(format!("{}: {why}", verdict.description));
        }
    }
    outcome
}
