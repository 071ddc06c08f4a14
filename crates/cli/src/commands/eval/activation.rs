//! Measures how well search finds the expected skills.

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::search::{Recommendation, SkillIndex};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::output::{BOLD, DIM, Output, format_count};

/// How many of the best results are checked.
const TOP_RESULTS: usize = 5;

/// The goals of the metrics.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActivationGoals {
    #[serde(default)]
    hit_at_1: Option<f64>,
    #[serde(default)]
    hit_at_5: Option<f64>,
    #[serde(default)]
    named: Option<f64>,
    /// The largest share of messages without a fitting skill that may activate one.
    #[serde(default)]
    false_activation: Option<f64>,
    /// The largest share of near misses that may activate a skill.
    #[serde(default)]
    near_miss: Option<f64>,
}

/// A message and the skill it should find.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActivationCase {
    message: String,
    /// An id, or `none`.
    pub(super) expect: String,
    /// Whether the message names the skill.
    #[serde(default)]
    named: bool,
    /// The similar skill that a message without a fitting skill must not activate.
    #[serde(default)]
    pub(super) near: Option<String>,
}

/// The counted results of one search method.
#[derive(Debug, Default)]
struct ActivationTally {
    /// A skill was expected: found the right one, another one, none.
    expected_skill: [usize; 3],
    hits_in_top: usize,
    first: usize,
    /// No skill was expected: found one, none.
    expected_none: [usize; 2],
    named: usize,
    named_first: usize,
    near: usize,
    near_activated: usize,
    misses: Vec<Value>,
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
    fn goal_metrics(&self, goals: &ActivationGoals) -> Vec<GoalMetric> {
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

struct GoalMetric {
    name: &'static str,
    value: f64,
    goal: Option<f64>,
    more: bool,
    /// The number of messages that the value is a share of.
    of: usize,
}

impl GoalMetric {
    fn is_missed(&self) -> bool {
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

pub(super) fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss, reason = "numbers of messages are small")]
    let share = part as f64 / whole as f64;
    share
}

/// The results of each available search method.
pub(super) struct ActivationReport<'a> {
    skills: usize,
    by: Vec<(&'static str, ActivationTally, &'a ActivationGoals)>,
}

impl<'a> ActivationReport<'a> {
    /// Searches for every message by words, and with embeddings if they are installed.
    pub(super) fn measure_activations(
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

    pub(super) fn is_missed(&self) -> bool {
        let mut figures = self
            .by
            .iter()
            .flat_map(|(_, f, goals)| f.goal_metrics(goals));
        figures.any(|figure| figure.is_missed())
    }

    pub(super) fn to_json(&self) -> Value {
        let by = self.by.iter();
        let by: Map<String, Value> = by
            .map(|(name, found, goals)| (name.replace(' ', "_"), found.to_json(goals)))
            .collect();
        json!({"skills": self.skills, "by": by})
    }

    pub(super) fn print_report(&self, misses: bool, output: &Output) -> Result<()> {
        let Some((_, first, _)) = self.by.first() else {
            return Ok(());
        };
        output.print_text(&format!(
            "{DIM}{}, {} messages that fit one, {} that name one, {} that fit none{DIM:#}\n",
            format_count(self.skills, "skill"),
            first.expected_skill.iter().sum::<usize>(),
            first.named,
            first.expected_none.iter().sum::<usize>(),
        ))?;
        for (name, found, goals) in &self.by {
            output.print_text(&format!("\n{BOLD}{name}{BOLD:#}\n"))?;
            for figure in found.goal_metrics(goals) {
                let goal = match figure.goal {
                    None => String::new(),
                    Some(goal) if figure.is_missed() => format!("  MISSED: goal {goal}"),
                    Some(goal) => format!("  goal {goal} met"),
                };
                output.print_text(&format!(
                    "  {:<18} {:.2}{goal}\n",
                    figure.name, figure.value
                ))?;
            }
            let [right, another, nothing] = found.expected_skill;
            let [something, none] = found.expected_none;
            output.print_text(&format!(
                "  {DIM}{:<18} {:>6} {:>8} {:>8}{DIM:#}\n  {:<18} {right:>6} {another:>8} \
                 {nothing:>8}\n  {:<18} {:>6} {something:>8} {none:>8}\n",
                "expected", "right", "another", "nothing", "a skill", "nothing", "-"
            ))?;
            if !misses {
                continue;
            }
            for miss in &found.misses {
                let text = |key: &str| miss[key].as_str().unwrap_or("nothing").to_owned();
                let fits = if miss["fits"] == json!(true) {
                    ""
                } else {
                    ", below the threshold"
                };
                let line = format!(
                    "  {} → {} ({:.2}{fits}), expected {}",
                    text("message"),
                    text("found"),
                    miss["score"].as_f64().unwrap_or(0.0),
                    text("expect")
                );
                output.print_text(&format!("{}\n", terminal_safe(&line)))?;
            }
        }
        Ok(())
    }
}
