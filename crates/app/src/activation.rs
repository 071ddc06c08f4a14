//! Measures how well search finds the expected skills.

use repertoire_registry::search::{Recommendation, SkillIndex};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::Result;

/// How many of the best results are checked.
const TOP_RESULTS: usize = 5;

/// The goals of the metrics.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationGoals {
    /// The smallest share of messages whose skill is found first.
    #[serde(default)]
    pub hit_at_1: Option<f64>,
    /// The smallest share of messages whose skill is among the first five.
    #[serde(default)]
    pub hit_at_5: Option<f64>,
    /// The smallest share of messages that name a skill and find it first.
    #[serde(default)]
    pub named: Option<f64>,
    /// The largest share of messages without a fitting skill that may activate one.
    #[serde(default)]
    pub false_activation: Option<f64>,
    /// The largest share of near misses that may activate a skill.
    #[serde(default)]
    pub near_miss: Option<f64>,
}

/// A message and the skill it should find.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationCase {
    /// What the user says.
    pub message: String,
    /// An id, or `none`.
    pub expect: String,
    /// Whether the message names the skill.
    #[serde(default)]
    pub named: bool,
    /// The similar skill that a message without a fitting skill must not activate.
    #[serde(default)]
    pub near: Option<String>,
}

/// The counted results of one search method.
#[derive(Debug, Default)]
pub struct ActivationTally {
    /// A skill was expected: found the right one, another one, none.
    pub expected_skill: [usize; 3],
    hits_in_top: usize,
    first: usize,
    /// No skill was expected: found one, none.
    pub expected_none: [usize; 2],
    /// How many messages name a skill.
    pub named: usize,
    named_first: usize,
    near: usize,
    near_activated: usize,
    /// The messages with a wrong result.
    pub misses: Vec<Value>,
}

impl ActivationTally {
    fn from_cases(
        activations: &[ActivationCase],
        find: impl Fn(&str) -> repertoire_registry::Result<Vec<Recommendation>>,
    ) -> Result<Self> {
        let mut found = Self::default();
        for activation in activations {
            found.record_result(activation, &find(&activation.message)?);
        }
        Ok(found)
    }

    fn record_result(&mut self, activation: &ActivationCase, best: &[Recommendation]) {
        let first = best.first();
        let activated = first.filter(|first| first.fits);
        let is = |one: &Recommendation| one.id.as_str() == activation.expect;
        let right = match (activation.expect.as_str(), activated) {
            ("none", activated) if activation.near.is_some() => {
                self.near += 1;
                self.near_activated += usize::from(activated.is_some());
                activated.is_none()
            }
            ("none", Some(_)) => {
                self.expected_none[0] += 1;
                false
            }
            ("none", None) => {
                self.expected_none[1] += 1;
                true
            }
            _ if activation.named => {
                self.named += 1;
                let right = first.is_some_and(is);
                self.named_first += usize::from(right);
                right
            }
            (_, activated) => {
                self.first += usize::from(first.is_some_and(is));
                self.hits_in_top += usize::from(best.iter().any(is));
                let place = match activated {
                    Some(one) if is(one) => 0,
                    Some(_) => 1,
                    None => 2,
                };
                self.expected_skill[place] += 1;
                place == 0
            }
        };
        if !right {
            self.misses.push(json!({
                "message": activation.message, "expect": activation.expect,
                "found": first.map(|one| &one.id), "score": first.map(|one| one.score),
                "fits": activated.is_some(),
            }));
        }
    }

    /// Returns each metric with its goal and whether higher is better.
    pub fn goal_metrics(&self, goals: &ActivationGoals) -> Vec<GoalMetric> {
        let fitting = self.expected_skill.iter().sum();
        let unfitting = self.expected_none.iter().sum();
        let figure = |name, part, whole, goal, more| GoalMetric {
            name,
            value: ratio(part, whole),
            goal,
            more,
            of: whole,
        };
        let near = (self.near_activated, self.near);
        let figures = vec![
            figure("hit@1", self.first, fitting, goals.hit_at_1, true),
            figure("hit@5", self.hits_in_top, fitting, goals.hit_at_5, true),
            figure("named", self.named_first, self.named, goals.named, true),
            figure(
                "false activation",
                self.expected_none[0],
                unfitting,
                goals.false_activation,
                false,
            ),
            figure("near miss", near.0, near.1, goals.near_miss, false),
        ];
        // A metric without messages is left out.
        figures.into_iter().filter(|figure| figure.of > 0).collect()
    }

    fn to_json(&self, goals: &ActivationGoals) -> Value {
        let figures: Map<String, Value> = self
            .goal_metrics(goals)
            .iter()
            .map(|f| (f.name.to_owned(), json!({"value": f.value, "goal": f.goal})))
            .collect();
        json!({
            "figures": figures,
            "confusion": {
                "expected_skill": {
                    "right": self.expected_skill[0], "another": self.expected_skill[1],
                    "nothing": self.expected_skill[2],
                },
                "expected_nothing": {
                    "something": self.expected_none[0], "nothing": self.expected_none[1],
                },
            },
            "misses": self.misses,
        })
    }
}

/// One metric with its goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GoalMetric {
    /// Its name.
    pub name: &'static str,
    /// The measured value.
    pub value: f64,
    /// The goal, if there is one.
    pub goal: Option<f64>,
    /// Whether more is better.
    more: bool,
    /// The number of messages that the value is a share of.
    of: usize,
}

impl GoalMetric {
    /// Whether the goal was missed.
    pub fn is_missed(&self) -> bool {
        let worse = |goal| {
            if self.more {
                self.value < goal
            } else {
                self.value > goal
            }
        };
        self.goal.is_some_and(worse)
    }
}

/// Returns a share, 0 of nothing.
pub fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss, reason = "numbers of messages are small")]
    let share = part as f64 / whole as f64;
    share
}

/// The results of each available search method.
#[derive(Debug)]
pub struct ActivationReport<'a> {
    /// How many skills were searched.
    pub skills: usize,
    /// The name, the result and the goals of each method.
    pub by: Vec<(&'static str, ActivationTally, &'a ActivationGoals)>,
}

impl<'a> ActivationReport<'a> {
    /// Searches for every message by words, and with embeddings if they are installed.
    pub fn measure_activations(
        finder: &SkillIndex,
        activations: &[ActivationCase],
        goals: &'a ActivationGoals,
        goals_with_meaning: &'a ActivationGoals,
    ) -> Result<Self> {
        let words = ActivationTally::from_cases(activations, |message| {
            finder.find_lexical(message, TOP_RESULTS)
        })?;
        let mut by = vec![("words", words, goals)];
        if finder.has_embeddings() {
            let fused = ActivationTally::from_cases(activations, |message| {
                finder.find_skills(message, TOP_RESULTS)
            })?;
            by.push(("with meaning", fused, goals_with_meaning));
        }
        let skills = finder.len();
        Ok(Self { skills, by })
    }

    /// Whether a goal was missed.
    pub fn is_missed(&self) -> bool {
        let mut figures = self
            .by
            .iter()
            .flat_map(|(_, f, goals)| f.goal_metrics(goals));
        figures.any(|figure| figure.is_missed())
    }

    /// Returns the report as JSON.
    pub fn to_json(&self) -> Value {
        let by = self.by.iter();
        let by: Map<String, Value> = by
            .map(|(name, found, goals)| (name.replace(' ', "_"), found.to_json(goals)))
            .collect();
        json!({"skills": self.skills, "by": by})
    }
}
