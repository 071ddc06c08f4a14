//! Optimizes a program with examples: trained on some, evaluated on the others.
//!
//! The result is a state; it is accepted only if it scores at least as well on examples held back
//! from training. Answers are scored by the artifact's assertions and the expected outputs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures::StreamExt;
use repertoire_core::{Artifact, Digest};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    assertion::{self, DeclaredAssertion},
    dispatch::ExecutionContext,
    error::{Error, Result},
    model::ModelUsage,
    record::now_rfc3339,
    sidecar::{
        DspyModule, HostRequest, HostRequestHandler, HostServices, PROGRAM_DEADLINE as ONE,
        ProgramState, Sidecar,
    },
};

/// The deadline of training.
const TRAINING_DEADLINE: Duration = Duration::from_hours(4);
/// The maximum number of host requests in training; the budget of the run applies too.
const MAX_TRAINING_REQUESTS: u64 = 100_000;
/// The minimum number of examples, and the maximum.
pub const FEWEST: usize = 4;
const MAX_EXAMPLES: usize = 2000;
/// How many examples are evaluated concurrently.
const MAX_CONCURRENT: usize = 4;

/// The optimization method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Good answers become few-shot examples.
    Bootstrap,
    /// The same several times; the best candidate is kept.
    RandomSearch,
    /// Searches instructions and examples together.
    Mipro,
    /// Rewrites instructions by reflecting on failures.
    Gepa,
}

/// One example: inputs, and the expected outputs where they are known.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingExample {
    /// The inputs.
    pub inputs: Map<String, Value>,
    /// The expected outputs.
    pub outputs: Map<String, Value>,
}

impl TrainingExample {
    /// Reads an example by a program's signature: a value for each input, and for given outputs;
    /// either at the top level, or under `inputs` and `outputs`.
    pub fn from_row(row: &Value, module: &DspyModule) -> Result<Self> {
        let refuse = |reason: String| Error::InvalidCall {
            call: "example".to_owned(),
            reason,
        };
        let Value::Object(row) = row else {
            return Err(refuse("it is no object".to_owned()));
        };
        let part = |key: &str| row.get(key).and_then(Value::as_object);
        let (inputs, outputs) = match (part("inputs"), part("outputs")) {
            (Some(inputs), outputs) => (inputs, outputs),
            _ => (row, Some(row)),
        };
        let signature = &module.signature;
        let mut example = Self {
            inputs: Map::new(),
            outputs: Map::new(),
        };
        for field in &signature.inputs {
            let value = inputs.get(&field.name);
            let missing = || refuse(format!("`{}` is missing", field.name));
            let value = value.ok_or_else(missing)?;
            example.inputs.insert(field.name.clone(), value.clone());
        }
        for field in &signature.outputs {
            if let Some(value) = outputs.and_then(|outputs| outputs.get(&field.name)) {
                example.outputs.insert(field.name.clone(), value.clone());
            }
        }
        Ok(example)
    }

    fn to_row(&self) -> Value {
        let mut row = self.inputs.clone();
        row.extend(self.outputs.clone());
        Value::Object(row)
    }
}

/// The examples for training and for evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleSplit {
    /// The training examples.
    pub training: Vec<TrainingExample>,
    /// The evaluation examples.
    pub held_back: Vec<TrainingExample>,
}

impl ExampleSplit {
    /// Holds back about a quarter, chosen by the digest of each example alone, so that a training
    /// example is never used for evaluation in a later run. Duplicates count once.
    pub fn from_examples(examples: Vec<TrainingExample>) -> Result<Self> {
        let mut known: Vec<(Digest, TrainingExample)> = Vec::new();
        for example in examples.into_iter().take(MAX_EXAMPLES) {
            let digest = Digest::hash_bytes(json!(example.inputs).to_string().as_bytes());
            if known.iter().all(|(other, _)| *other != digest) {
                known.push((digest, example));
            }
        }
        if known.len() < FEWEST {
            return Err(Error::InvalidCall {
                call: "optimize".to_owned(),
                reason: format!("it takes {FEWEST} different examples, not {}", known.len()),
            });
        }
        known.sort_by_key(|(digest, _)| digest.hex_digits());
        let many = known
            .iter()
            .filter(|(digest, _)| is_in_lowest_quarter(digest))
            .count();
        // With few examples, one side could be empty by chance.
        let many = many.clamp(1, known.len() / 2);
        let mut all: Vec<TrainingExample> = known.into_iter().map(|(_, example)| example).collect();
        let training = all.split_off(many);
        Ok(Self {
            training,
            held_back: all,
        })
    }
}

/// Whether a digest is in the lowest quarter of all digests, which is held back.
fn is_in_lowest_quarter(digest: &Digest) -> bool {
    digest.as_bytes().first().is_some_and(|first| *first < 64)
}

/// Limits for the optimizer.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Effort {
    /// The maximum number of examples in a prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demos: Option<u32>,
    /// How many candidates are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<u32>,
    /// How many combinations are tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
    /// How many answers are judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_calls: Option<u32>,
}

/// The result of an optimization.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Improvement {
    /// The score before, from 0 to 1, on the examples held back.
    pub before: f64,
    /// The score after.
    pub after: f64,
    /// The number of training examples.
    pub training: usize,
    /// The number of examples held back.
    pub held_back: usize,
    /// The usage of training.
    pub learning: ModelUsage,
    /// The usage of evaluation.
    pub measuring: EvaluationUsage,
    /// The number of model and workspace requests.
    pub questions: u64,
    /// The version of DSPy.
    pub dspy: String,
    /// The new state, in the form an artifact stores.
    #[serde(skip)]
    pub state: Vec<u8>,
}

/// The usage of evaluation, on the same examples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EvaluationUsage {
    /// With the old state.
    pub before: ModelUsage,
    /// With the new state.
    pub after: ModelUsage,
}

impl Improvement {
    /// Whether the new state scores at least as well.
    pub fn is_not_worse(&self) -> bool {
        self.after >= self.before
    }
}

/// Scores answers by an artifact's assertions and by the expected outputs.
struct AnswerJudge {
    services: HostServices,
    assertions: Vec<DeclaredAssertion>,
    outputs: Vec<String>,
    /// Whether the expected outputs of an example count.
    by_example: bool,
}

impl AnswerJudge {
    /// Returns the score of an answer, from 0 to 1, and a list of its faults.
    async fn score_answer(
        &self,
        expected: &Map<String, Value>,
        given: &Map<String, Value>,
    ) -> Result<(f64, String)> {
        let (mut scores, mut wrong) = (Vec::new(), Vec::new());
        let text = Value::Object(given.clone()).to_string();
        for assertion in &self.assertions {
            // A judge that fails is an error, not a verdict on the answer.
            let (verdict, usage) = assertion
                .try_check(&text, self.services.model.as_ref())
                .await?;
            self.services.notes.add_usage(usage);
            scores.push(if verdict.passed { 1.0 } else { 0.0 });
            wrong.extend(verdict.explanation);
        }
        if self.by_example {
            for name in &self.outputs {
                let Some(want) = expected.get(name) else {
                    continue;
                };
                let have = given.get(name).unwrap_or(&Value::Null);
                let score = value_similarity(want, have);
                scores.push(score);
                if score < 1.0 {
                    let want = repertoire_core::markdown::truncate_text(&want.to_string(), 500);
                    wrong.push(format!("`{name}` should be {want}"));
                }
            }
        }
        if scores.is_empty() {
            return Ok((0.0, "there is no criterion for a good answer".to_owned()));
        }
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        Ok((mean, wrong.join("; ")))
    }
}

/// The similarity of two values: 1 if equal; for texts, the share of common words.
fn value_similarity(want: &Value, have: &Value) -> f64 {
    if want == have {
        return 1.0;
    }
    let words = |value: &Value| -> Vec<String> {
        let text = match value {
            Value::String(text) => text.to_lowercase(),
            other => other.to_string().to_lowercase(),
        };
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let (want, mut have) = (words(want), words(have));
    let all = want.len() + have.len();
    if all == 0 {
        return 0.0;
    }
    let mut common = 0;
    for word in &want {
        if let Some(at) = have.iter().position(|other| other == word) {
            have.swap_remove(at);
            common += 1;
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "there are few")]
    let share = 2.0 * f64::from(common) / all as f64;
    share
}

#[async_trait]
impl HostRequestHandler for AnswerJudge {
    async fn handle_request(&self, mut question: HostRequest) -> Result<Value> {
        if question.kind != "score" {
            return self.services.handle_request(question).await;
        }
        self.services.count_request()?;
        let mut take = |key: &str| match question.body.remove(key) {
            Some(Value::Object(fields)) => Ok(fields),
            _ => Err(Error::InvalidCall {
                call: "score".to_owned(),
                reason: format!("`{key}` is no object"),
            }),
        };
        let (expected, given) = (take("example")?, take("prediction")?);
        let given = given
            .into_iter()
            .filter(|(name, _)| self.outputs.contains(name))
            .collect();
        let (score, feedback) = self.score_answer(&expected, &given).await?;
        Ok(json!({"score": score, "feedback": feedback}))
    }
}

/// Called with a progress message.
pub type ProgressCallback<'a> = &'a (dyn Fn(&str) + Sync);

/// Optimizes the program of an artifact; stores nothing.
pub async fn optimize_module(
    sidecar: &Sidecar,
    artifact: &Artifact,
    split: &ExampleSplit,
    how: (Optimizer, Effort),
    by_example: bool,
    context: &ExecutionContext,
    progress: ProgressCallback<'_>,
) -> Result<Improvement> {
    let module = DspyModule::from_artifact(artifact)?;
    let held_back: Vec<_> = split.held_back.iter().map(|held| &held.inputs).collect();
    let old = module.read_state(artifact)?;
    let old = old.map(|state| state.without_examples(&held_back));
    let assertions = assertion::read_assertions(artifact)?;
    context.require_model()?;
    let by_example = by_example || assertions.is_empty();
    if by_example
        && split
            .held_back
            .iter()
            .all(|example| example.outputs.is_empty())
    {
        return Err(Error::InvalidCall {
            call: "optimize".to_owned(),
            reason: "there is no criterion for a good answer: the artifact has no assertions, and \
                     the examples have no outputs"
                .to_owned(),
        });
    }
    let mut services = HostServices::from_context(context);
    services.max_requests = Some(MAX_TRAINING_REQUESTS);
    let outputs = module.signature.outputs.iter();
    let judge = AnswerJudge {
        services,
        assertions,
        outputs: outputs.map(|field| field.name.clone()).collect(),
        by_example,
    };
    let spent = || context.notes.usage_so_far();
    let held = split.held_back.len();
    progress(&format!(
        "evaluating the current state on {held} examples held back"
    ));
    let start = spent();
    let before = measure_examples(sidecar, &module, old.as_ref(), &split.held_back, &judge).await?;
    let measured = spent();
    let many = split.training.len();
    progress(&format!("training on {many} examples"));
    let (optimizer, effort) = how;
    let rows = |examples: &[TrainingExample]| {
        examples
            .iter()
            .map(TrainingExample::to_row)
            .collect::<Vec<_>>()
    };
    // Training never sees the examples held back; the validation examples are training examples.
    let choosing = match optimizer {
        Optimizer::Bootstrap => 0,
        Optimizer::RandomSearch | Optimizer::Mipro | Optimizer::Gepa => (many / 4).max(1),
    };
    let (learn, choose) = split.training.split_at(many - choosing);
    let mut request = module.build_request("optimize", old.as_ref());
    request["optimizer"] = json!(optimizer);
    request["settings"] = json!(effort);
    request["training_data"] = json!(rows(learn));
    request["validation_data"] = json!(rows(choose));
    let body = sidecar
        .send_request(request, &judge, TRAINING_DEADLINE)
        .await;
    let mut body = body.map_err(|error| judge.services.restore_refusal(error))?;
    let learned = spent();
    let dspy = sidecar.dspy_version().await?;
    let Some(Value::Object(mut state)) = body.remove("state") else {
        return Err(Error::Sidecar("it returned no state".to_owned()));
    };
    state.insert(
        "metadata".to_owned(),
        json!({
            "dependency_versions": {"dspy": dspy}, "optimizer": optimizer, "optimized_at": now_rfc3339(),
            "examples": many,
        }),
    );
    let blob = Value::Object(state).to_string().into_bytes();
    // The state from the sidecar is validated like any untrusted state.
    let new = ProgramState::from_blob(&blob, &module.template, &module.signature)?;
    progress("evaluating the new state");
    let after = measure_examples(sidecar, &module, Some(&new), &split.held_back, &judge).await?;
    let measuring = EvaluationUsage {
        before: usage_difference(measured, start),
        after: usage_difference(spent(), learned),
    };
    Ok(Improvement {
        before,
        after,
        training: many,
        held_back: held,
        learning: usage_difference(learned, measured),
        measuring,
        questions: judge.services.request_count.load(Ordering::Relaxed),
        dspy,
        state: blob,
    })
}

/// The mean score over examples.
async fn measure_examples(
    sidecar: &Sidecar,
    module: &DspyModule,
    state: Option<&ProgramState>,
    examples: &[TrainingExample],
    judge: &AnswerJudge,
) -> Result<f64> {
    // After a failure start no more; those in progress are paid for, so wait for them.
    let over = AtomicBool::new(false);
    let mut work = Vec::new();
    for example in examples {
        let measured = measure_one(sidecar, module, state, example, judge);
        work.push(async {
            if over.load(Ordering::Relaxed) {
                return Ok(0.0);
            }
            let score = measured.await;
            over.fetch_or(score.is_err(), Ordering::Relaxed);
            score
        });
    }
    let scores = futures::stream::iter(work).buffer_unordered(MAX_CONCURRENT);
    let scores: Vec<Result<f64>> = scores.collect().await;
    let mut total = 0.0;
    for score in scores {
        total += score?;
    }
    #[allow(clippy::cast_precision_loss, reason = "there are few")]
    let mean = total / examples.len() as f64;
    Ok(mean)
}

async fn measure_one(
    sidecar: &Sidecar,
    module: &DspyModule,
    state: Option<&ProgramState>,
    example: &TrainingExample,
    judge: &AnswerJudge,
) -> Result<f64> {
    let given = sidecar.execute_program(module, state, &example.inputs, &judge.services, ONE);
    match given.await {
        Ok(given) => Ok(judge.score_answer(&example.outputs, &given).await?.0),
        // An answer that cannot be parsed scores 0.
        Err(Error::Program { code, .. }) if code == "program_error" => Ok(0.0),
        Err(error) => Err(error),
    }
}

fn usage_difference(a: ModelUsage, b: ModelUsage) -> ModelUsage {
    let left = |a: Option<u64>, b: Option<u64>| a.map(|a| a - b.unwrap_or(0));
    ModelUsage {
        input_tokens: left(a.input_tokens, b.input_tokens),
        output_tokens: left(a.output_tokens, b.output_tokens),
        cost: a.cost.map(|a| a - b.cost.unwrap_or(0.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_the_share_of_common_words() {
        assert!((value_similarity(&json!("Blue!"), &json!("blue")) - 1.0).abs() < 1e-9);
        assert!(
            (value_similarity(&json!("the blue sky"), &json!("a blue sky")) - 2.0 / 3.0).abs()
                < 1e-9
        );
        assert!(value_similarity(&json!(["a"]), &json!(["b"])) < 1e-9);
        assert!(value_similarity(&json!(""), &json!("")) > 0.9);
    }

    #[test]
    fn splits_are_deterministic_and_ignore_duplicates() {
        let example = |n: usize| TrainingExample {
            inputs: [("q".to_owned(), json!(n))].into_iter().collect(),
            outputs: Map::new(),
        };
        let split =
            ExampleSplit::from_examples((0..40).chain(0..40).map(example).collect()).unwrap();
        assert_eq!(split.training.len() + split.held_back.len(), 40);
        assert!((4..=16).contains(&split.held_back.len()));
        let again = ExampleSplit::from_examples((0..40).rev().map(example).collect()).unwrap();
        assert_eq!(split, again);
        // With more examples, training examples still stay out of the evaluation.
        let more = ExampleSplit::from_examples((0..200).map(example).collect()).unwrap();
        assert!(split.training.iter().all(|one| more.training.contains(one)));
        assert!(
            split
                .held_back
                .iter()
                .all(|one| more.held_back.contains(one))
        );
        for few in 4..10 {
            let split = ExampleSplit::from_examples((0..few).map(example).collect()).unwrap();
            assert!(!split.held_back.is_empty() && split.training.len() >= 2);
        }
        let few = ExampleSplit::from_examples((0..3).map(example).collect()).unwrap_err();
        assert!(
            few.to_string().contains("different examples, not 3"),
            "{few}"
        );
    }
}
