//! Making a program better from examples: learned on some, measured on the others.
//!
//! What is learned is a state, and it counts only if it does at least as well on examples it never
//! saw. How good an answer is says the artifact: its assertions, and what the example expects.

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
    assertion::{self, Assertion},
    dispatch::ExecutionContext,
    error::{Error, Result},
    model::Usage,
    record::now,
    sidecar::{Answers, DEADLINE as ONE, Desk, Module, Question, Sidecar, State},
};

/// How long learning may take.
const DEADLINE: Duration = Duration::from_hours(4);
/// How often learning may ask; the budget of the run counts besides.
const MAX_QUESTIONS: u64 = 100_000;
/// The fewest examples it makes sense with, and the most.
pub const FEWEST: usize = 4;
const MOST: usize = 2000;
/// How many examples are measured at a time.
const AT_ONCE: usize = 4;

/// How a program is made better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Good answers to some questions become examples for the others.
    Bootstrap,
    /// The same, several times, and the best is kept.
    RandomSearch,
    /// Instructions and examples, searched together.
    Mipro,
    /// Instructions, rewritten by reflecting on what went wrong.
    Gepa,
}

/// One example: what goes in, and what is expected to come out, where that is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// What goes in.
    pub inputs: Map<String, Value>,
    /// What is expected.
    pub outputs: Map<String, Value>,
}

impl Example {
    /// Takes an example apart by a program's signature: a value for each input, and for outputs
    /// where it has some; either side by side, or under `inputs` and `outputs`.
    pub fn read(row: &Value, module: &Module) -> Result<Self> {
        let refuse = |reason: String| Error::Call {
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

    fn row(&self) -> Value {
        let mut row = self.inputs.clone();
        row.extend(self.outputs.clone());
        Value::Object(row)
    }
}

/// What is learned on, and what is measured on.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// What is learned on.
    pub training: Vec<Example>,
    /// What is held back.
    pub held_back: Vec<Example>,
}

impl Split {
    /// Holds about a quarter back, each by what it is and not by what others there are, so that one
    /// that was learned on is not measured on another time. Copies count once.
    pub fn of(examples: Vec<Example>) -> Result<Self> {
        let mut known: Vec<(Digest, Example)> = Vec::new();
        for example in examples.into_iter().take(MOST) {
            let digest = Digest::of(json!(example.inputs).to_string().as_bytes());
            if known.iter().all(|(other, _)| *other != digest) {
                known.push((digest, example));
            }
        }
        if known.len() < FEWEST {
            return Err(Error::Call {
                call: "optimize".to_owned(),
                reason: format!("it takes {FEWEST} different examples, not {}", known.len()),
            });
        }
        known.sort_by_key(|(digest, _)| digest.hex());
        let many = known.iter().filter(|(digest, _)| is_low(digest)).count();
        // Of few, chance may leave none on one side.
        let many = many.clamp(1, known.len() / 2);
        let mut all: Vec<Example> = known.into_iter().map(|(_, example)| example).collect();
        let training = all.split_off(many);
        Ok(Self {
            training,
            held_back: all,
        })
    }
}

/// Whether a digest is among the lowest quarter.
fn is_low(digest: &Digest) -> bool {
    digest.as_bytes().first().is_some_and(|first| *first < 64)
}

/// How hard it is tried.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Effort {
    /// The most examples in a prompt.
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

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Improvement {
    /// How good it was on what was held back, from 0 to 1.
    pub before: f64,
    /// How good it is now.
    pub after: f64,
    /// How many examples were learned on.
    pub training: usize,
    /// How many were held back.
    pub held_back: usize,
    /// What learning cost.
    pub learning: Usage,
    /// What measuring cost.
    pub measuring: Measuring,
    /// How often a model or a page was asked for.
    pub questions: u64,
    /// The version of DSPy.
    pub dspy: String,
    /// The new state, as an artifact keeps it.
    #[serde(skip)]
    pub state: Vec<u8>,
}

/// What measuring cost, on the same examples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measuring {
    /// With what there was.
    pub before: Usage,
    /// With what was learned.
    pub after: Usage,
}

impl Improvement {
    /// Whether it is worth keeping.
    pub fn is_not_worse(&self) -> bool {
        self.after >= self.before
    }
}

/// Judges answers by an artifact's assertions, and by what is expected.
struct Judge {
    desk: Desk,
    assertions: Vec<Assertion>,
    outputs: Vec<String>,
    /// Whether what an example expects counts.
    by_example: bool,
}

impl Judge {
    /// How good an answer is, from 0 to 1, and what is wrong with it.
    async fn score(
        &self,
        expected: &Map<String, Value>,
        given: &Map<String, Value>,
    ) -> Result<(f64, String)> {
        let (mut scores, mut wrong) = (Vec::new(), Vec::new());
        let text = Value::Object(given.clone()).to_string();
        for assertion in &self.assertions {
            // A judge who cannot be asked says nothing about the answer.
            let (verdict, usage) = assertion.check(&text, self.desk.model.as_ref()).await?;
            self.desk.notes.usage(usage);
            scores.push(if verdict.passed { 1.0 } else { 0.0 });
            wrong.extend(verdict.explanation);
        }
        if self.by_example {
            for name in &self.outputs {
                let Some(want) = expected.get(name) else {
                    continue;
                };
                let have = given.get(name).unwrap_or(&Value::Null);
                let score = likeness(want, have);
                scores.push(score);
                if score < 1.0 {
                    let want = repertoire_core::markdown::cut(&want.to_string(), 500);
                    wrong.push(format!("`{name}` should be {want}"));
                }
            }
        }
        if scores.is_empty() {
            return Ok((0.0, "nothing says what a good answer is".to_owned()));
        }
        #[allow(clippy::cast_precision_loss, reason = "there are few")]
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        Ok((mean, wrong.join("; ")))
    }
}

/// How alike two values are: 1 for the same, and for texts the share of words they have in common.
fn likeness(want: &Value, have: &Value) -> f64 {
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
impl Answers for Judge {
    async fn answer(&self, mut question: Question) -> Result<Value> {
        if question.kind != "score" {
            return self.desk.answer(question).await;
        }
        self.desk.count()?;
        let mut take = |key: &str| match question.body.remove(key) {
            Some(Value::Object(fields)) => Ok(fields),
            _ => Err(Error::Call {
                call: "score".to_owned(),
                reason: format!("`{key}` is no object"),
            }),
        };
        let (expected, given) = (take("example")?, take("prediction")?);
        let given = given
            .into_iter()
            .filter(|(name, _)| self.outputs.contains(name))
            .collect();
        let (score, feedback) = self.score(&expected, &given).await?;
        Ok(json!({"score": score, "feedback": feedback}))
    }
}

/// Tells how far it is.
pub type Progress<'a> = &'a (dyn Fn(&str) + Sync);

/// Makes an artifact's program better; nothing is stored.
pub async fn optimise(
    sidecar: &Sidecar,
    artifact: &Artifact,
    split: &Split,
    how: (Optimizer, Effort),
    by_example: bool,
    context: &ExecutionContext,
    progress: Progress<'_>,
) -> Result<Improvement> {
    let module = Module::read(artifact)?;
    let held_back: Vec<_> = split.held_back.iter().map(|held| &held.inputs).collect();
    let old = module.state(artifact)?;
    let old = old.map(|state| state.without(&held_back));
    let assertions = assertion::of(artifact)?;
    context.needs_model()?;
    let by_example = by_example || assertions.is_empty();
    if by_example
        && split
            .held_back
            .iter()
            .all(|example| example.outputs.is_empty())
    {
        return Err(Error::Call {
            call: "optimize".to_owned(),
            reason: "nothing says what a good answer is: the artifact has no assertions, and the \
                     examples no outputs"
                .to_owned(),
        });
    }
    let mut desk = Desk::of(context);
    desk.most = Some(MAX_QUESTIONS);
    let outputs = module.signature.outputs.iter();
    let judge = Judge {
        desk,
        assertions,
        outputs: outputs.map(|field| field.name.clone()).collect(),
        by_example,
    };
    let spent = || context.notes.spent();
    let held = split.held_back.len();
    progress(&format!(
        "measuring what there is, on {held} examples held back"
    ));
    let start = spent();
    let before = measure(sidecar, &module, old.as_ref(), &split.held_back, &judge).await?;
    let measured = spent();
    let many = split.training.len();
    progress(&format!("learning from {many} examples"));
    let (optimizer, effort) = how;
    let rows = |examples: &[Example]| examples.iter().map(Example::row).collect::<Vec<_>>();
    // Nothing of what is held back is seen; what is chosen by, is taken from what is learned on.
    let choosing = match optimizer {
        Optimizer::Bootstrap => 0,
        Optimizer::RandomSearch | Optimizer::Mipro | Optimizer::Gepa => (many / 4).max(1),
    };
    let (learn, choose) = split.training.split_at(many - choosing);
    let mut request = module.request("optimize", old.as_ref());
    request["optimizer"] = json!(optimizer);
    request["settings"] = json!(effort);
    request["training_data"] = json!(rows(learn));
    request["validation_data"] = json!(rows(choose));
    let body = sidecar.request(request, &judge, DEADLINE).await;
    let mut body = body.map_err(|error| judge.desk.reason(error))?;
    let learned = spent();
    let dspy = sidecar.dspy().await?;
    let Some(Value::Object(mut state)) = body.remove("state") else {
        return Err(Error::Sidecar("it learned nothing".to_owned()));
    };
    state.insert(
        "metadata".to_owned(),
        json!({
            "dependency_versions": {"dspy": dspy}, "optimizer": optimizer, "optimized_at": now(),
            "examples": many,
        }),
    );
    let blob = Value::Object(state).to_string().into_bytes();
    // What the sidecar gives is checked like what anybody gives.
    let new = State::read(&blob, &module.template, &module.signature)?;
    progress("measuring what was learned");
    let after = measure(sidecar, &module, Some(&new), &split.held_back, &judge).await?;
    let measuring = Measuring {
        before: less(measured, start),
        after: less(spent(), learned),
    };
    Ok(Improvement {
        before,
        after,
        training: many,
        held_back: held,
        learning: less(learned, measured),
        measuring,
        questions: judge.desk.questions.load(Ordering::Relaxed),
        dspy,
        state: blob,
    })
}

/// The mean score over examples.
async fn measure(
    sidecar: &Sidecar,
    module: &Module,
    state: Option<&State>,
    examples: &[Example],
    judge: &Judge,
) -> Result<f64> {
    // Once one could not be measured, no more are begun; those under way are paid for, and counted.
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
    let scores = futures::stream::iter(work).buffer_unordered(AT_ONCE);
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
    module: &Module,
    state: Option<&State>,
    example: &Example,
    judge: &Judge,
) -> Result<f64> {
    let given = sidecar.execute(module, state, &example.inputs, &judge.desk, ONE);
    match given.await {
        Ok(given) => Ok(judge.score(&example.outputs, &given).await?.0),
        // An answer that cannot be read is a bad answer.
        Err(Error::Program { code, .. }) if code == "program_error" => Ok(0.0),
        Err(error) => Err(error),
    }
}

fn less(a: Usage, b: Usage) -> Usage {
    let left = |a: Option<u64>, b: Option<u64>| a.map(|a| a - b.unwrap_or(0));
    Usage {
        input_tokens: left(a.input_tokens, b.input_tokens),
        output_tokens: left(a.output_tokens, b.output_tokens),
        cost: a.cost.map(|a| a - b.cost.unwrap_or(0.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_is_by_words() {
        assert!((likeness(&json!("Blue!"), &json!("blue")) - 1.0).abs() < 1e-9);
        assert!((likeness(&json!("the blue sky"), &json!("a blue sky")) - 2.0 / 3.0).abs() < 1e-9);
        assert!(likeness(&json!(["a"]), &json!(["b"])) < 1e-9);
        assert!(likeness(&json!(""), &json!("")) > 0.9);
    }

    #[test]
    fn splits_are_the_same_again_and_copies_count_once() {
        let example = |n: usize| Example {
            inputs: [("q".to_owned(), json!(n))].into_iter().collect(),
            outputs: Map::new(),
        };
        let split = Split::of((0..40).chain(0..40).map(example).collect()).unwrap();
        assert_eq!(split.training.len() + split.held_back.len(), 40);
        assert!((4..=16).contains(&split.held_back.len()));
        let again = Split::of((0..40).rev().map(example).collect()).unwrap();
        assert_eq!(split, again);
        // What was learned on before is not measured on when there are more.
        let more = Split::of((0..200).map(example).collect()).unwrap();
        assert!(split.training.iter().all(|one| more.training.contains(one)));
        assert!(
            split
                .held_back
                .iter()
                .all(|one| more.held_back.contains(one))
        );
        for few in 4..10 {
            let split = Split::of((0..few).map(example).collect()).unwrap();
            assert!(!split.held_back.is_empty() && split.training.len() >= 2);
        }
        let few = Split::of((0..3).map(example).collect()).unwrap_err();
        assert!(
            few.to_string().contains("different examples, not 3"),
            "{few}"
        );
    }
}
