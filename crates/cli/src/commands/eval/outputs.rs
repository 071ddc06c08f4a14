//! How well skills do their work, with each and without.

use std::sync::Arc;

use anyhow::Result;
use repertoire_core::{Artifact, ArtifactKind, text::terminal_safe};
use repertoire_registry::{Reference, Registry};
use repertoire_runtime::{
    Ask, Model, Usage,
    assertion::{self, Assertion},
    run::{plan, run},
};
use repertoire_serve::runs::{Runnable, equip, trace_of};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::run as running;
use crate::{
    args::ModelArgs,
    output::{BOLD, DIM, Output},
    settings::Settings,
};

/// A skill, what it is given, and what has to come of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub(super) skill: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    params: Map<String, Value>,
    /// Assertions, as an artifact's metadata has them.
    expect: Vec<Value>,
}

impl Case {
    /// What is expected, checked before anything is asked.
    pub(super) fn assertions(&self) -> Result<Vec<Assertion>> {
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
        Ok(assertion::of(&artifact)?)
    }
}

/// What came of a case, one way.
#[derive(Debug, Default)]
struct Outcome {
    passed: usize,
    of: usize,
    usage: Usage,
    /// What did not hold.
    problems: Vec<String>,
}

impl Outcome {
    fn is_right(&self) -> bool {
        self.problems.is_empty()
    }

    fn to_json(&self) -> Value {
        json!({
            "passed": self.passed, "of": self.of, "usage": self.usage, "problems": self.problems,
        })
    }

    fn shown(&self) -> String {
        let cost = self.usage.cost.map(|cost| format!(" ${cost:.6}"));
        format!(
            "{}/{}  {:>6} tokens{}",
            self.passed,
            self.of,
            self.usage.tokens(),
            cost.unwrap_or_default()
        )
    }
}

/// How skills do, with each and without.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    cases: Vec<(String, Outcome, Outcome)>,
}

impl Outputs {
    /// Runs every case with its skill, and puts its message to the model without.
    pub(super) fn measure(
        registry: &Arc<Registry>,
        cases: &[Case],
        model: &ModelArgs,
        settings: &Settings,
    ) -> Result<Self> {
        let mut outputs = Self::default();
        if cases.is_empty() {
            return Ok(outputs);
        }
        let runtime = super::super::serve::runtime()?;
        for case in cases {
            let assertions = case.assertions()?;
            let reference: Reference = case.skill.parse()?;
            let entry = running::find(registry, &reference)?;
            let skill = Runnable::new(registry, &entry)?;
            let message = Some(case.message.as_str());
            let mut context = running::context(model, &[], message, true, settings)?;
            context.values.clone_from(&case.params);
            let asked = running::model_of(&context)?;
            let dispatcher = running::dispatcher(settings);
            equip(&mut context, registry, &dispatcher);
            let steps = plan(&skill, &dispatcher, &context.family(), &[])?;
            let pair = runtime.block_on(async {
                // A folder that is only looked at keeps no traces.
                let mut keep = |record: &_| drop(registry.put_trace(trace_of(record)));
                let report = run(&skill, &dispatcher, &steps, &mut context, &mut keep).await;
                let usage = report.usage();
                let text = report.outcome.map(|output| output.text);
                let with = judge(&assertions, text, usage, &asked).await;
                let plain = asked.ask(&Ask::new(case.message.as_str()), None).await;
                let usage = plain.as_ref().map(|reply| reply.usage).unwrap_or_default();
                let text = plain.map(|reply| reply.text);
                (with, judge(&assertions, text, usage, &asked).await)
            });
            let name = format!("{}: {}", case.skill, case.message);
            outputs.cases.push((name, pair.0, pair.1));
        }
        Ok(outputs)
    }

    pub(super) fn is_missed(&self) -> bool {
        self.cases.iter().any(|(_, with, _)| !with.is_right())
    }

    pub(super) fn to_json(&self) -> Value {
        let cases = self.cases.iter().map(|(name, with, without)| {
            json!({"case": name, "with": with.to_json(), "without": without.to_json()})
        });
        Value::Array(cases.collect())
    }

    pub(super) fn print(&self, output: &Output) -> Result<()> {
        if self.cases.is_empty() {
            return Ok(());
        }
        output.print(&format!("\n{BOLD}outputs{BOLD:#}\n"))?;
        for (name, with, without) in &self.cases {
            let verdict = if with.is_right() { "" } else { "  MISSED" };
            output.print(&format!(
                "  {}{verdict}\n    {:<8} {}\n    {DIM}{:<8} {}{DIM:#}\n",
                terminal_safe(name),
                "with",
                with.shown(),
                "without",
                without.shown()
            ))?;
            for problem in &with.problems {
                output.print(&format!("    {}\n", terminal_safe(problem)))?;
            }
        }
        Ok(())
    }
}

async fn judge(
    assertions: &[Assertion],
    text: repertoire_runtime::Result<String>,
    usage: Usage,
    model: &Arc<dyn Model>,
) -> Outcome {
    let mut outcome = Outcome {
        of: assertions.len(),
        usage,
        ..Outcome::default()
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            outcome.problems.push(error.to_string());
            return outcome;
        }
    };
    for assertion in assertions {
        // What the judge costs is not the skill's.
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
