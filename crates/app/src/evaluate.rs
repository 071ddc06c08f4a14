//! Measures what skills achieve: each case is run with its skill and without it.

use std::sync::Arc;

use repertoire_core::{Artifact, ArtifactKind, SpanKind};
use repertoire_runtime::{
    CallPurpose, Model, ModelRequest, ModelUsage,
    assertion::{self, DeclaredAssertion},
    spans::{ChildCalls, SpanPlace},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    error::Result,
    runner::{RunRequest, Runner},
};

/// A skill, its input and the expected output.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputCase {
    /// The skill.
    pub skill: String,
    /// The message of the user.
    #[serde(default)]
    pub message: String,
    /// Values for the templates.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Assertions, as in the metadata of an artifact.
    pub expect: Vec<Value>,
}

impl OutputCase {
    /// Parses the assertions, which needs no model.
    pub fn parse_assertions(&self) -> Result<Vec<DeclaredAssertion>> {
        let metadata = json!({"assertions": self.expect});
        let mut artifact = Artifact::new(
            ArtifactKind::PromptTemplate,
            format!("outputs of {}", self.skill),
        );
        artifact.metadata = metadata.as_object().cloned();
        Ok(assertion::read_assertions(&artifact)?)
    }
}

/// The result of one way to answer a case.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CaseOutcome {
    /// How many assertions passed.
    pub passed: usize,
    /// How many assertions there are.
    pub of: usize,
    /// The usage, without the judges.
    pub usage: ModelUsage,
    /// The failed assertions, or the error.
    pub problems: Vec<String>,
}

impl CaseOutcome {
    /// Whether every assertion passed.
    pub fn is_passed(&self) -> bool {
        self.problems.is_empty()
    }
}

/// A case with both of its results.
#[derive(Debug, Clone, Serialize)]
pub struct CaseResult {
    /// The skill and the message.
    pub case: String,
    /// The result with the skill.
    pub with: CaseOutcome,
    /// The result of the message alone.
    pub without: CaseOutcome,
}

impl Runner {
    /// Runs a case with its skill, sends its message without, and checks both.
    ///
    /// A trace that cannot be stored does not fail the case: a folder may be evaluated that has
    /// no store.
    pub async fn evaluate(&self, case: &OutputCase) -> Result<CaseResult> {
        let assertions = case.parse_assertions()?;
        let request = RunRequest {
            values: case.params.clone(),
            message: Some(case.message.clone()),
            ..RunRequest::default()
        };
        let mut run = self.plan(&case.skill.parse()?, &request)?;
        let model = run.model()?;
        // The run, the message without the skill and the judges are parts of one case.
        let spans = run.context.spans.clone();
        let place = SpanPlace::below(None);
        let mut span = spans.begin_span(place, SpanKind::Run, "eval");
        span.set_input(&case.message);
        run.context.place.parent = Some(place.id);
        let model: Arc<dyn Model> = Arc::new(ChildCalls::new(model, Some(place.id)));
        let report = run.execute().await;
        let usage = report.usage();
        let text = report.outcome.map(|output| output.text);
        let with = check_output(&assertions, text, usage, &model).await;
        let mut baseline = ModelRequest::new(case.message.as_str());
        baseline.purpose = CallPurpose::Baseline;
        let reply = model.send_request(&baseline, None).await;
        let usage = reply.as_ref().map(|reply| reply.usage).unwrap_or_default();
        let text = reply.map(|reply| reply.text);
        let without = check_output(&assertions, text, usage, &model).await;
        let verdict = format!(
            "{} of {} with, {} without",
            with.passed, with.of, without.passed
        );
        span.finish(Ok(&verdict));
        spans.flush();
        Ok(CaseResult {
            case: format!("{}: {}", case.skill, case.message),
            with,
            without,
        })
    }
}

async fn check_output(
    assertions: &[DeclaredAssertion],
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
        // The cost of a judge is not a cost of the skill.
        let (verdict, _) = assertion.check_output(&text, Some(model)).await;
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
