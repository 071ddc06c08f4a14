//! How well messages find the skills they mean.

use anyhow::Result;
use repertoire_core::text::terminal_safe;
use repertoire_registry::search::{Finder, Recommendation};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::output::{BOLD, DIM, Output, count};

/// How many of the best are looked at.
const BEST: usize = 5;

/// What has to be reached.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Goals {
    #[serde(default)]
    hit_at_1: Option<f64>,
    #[serde(default)]
    hit_at_5: Option<f64>,
    #[serde(default)]
    named: Option<f64>,
    /// At most this share of what fits nothing may activate something.
    #[serde(default)]
    false_activation: Option<f64>,
    /// At most this share of near misses may activate something.
    #[serde(default)]
    near_miss: Option<f64>,
}

/// A message, and the skill it means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Activation {
    message: String,
    /// An id, or `none`.
    pub(super) expect: String,
    /// Whether the message names the skill.
    #[serde(default)]
    named: bool,
    /// The skill that a message that fits none only nearly means.
    #[serde(default)]
    pub(super) near: Option<String>,
}

/// What was found by one method.
#[derive(Debug, Default)]
struct Found {
    /// Expected a skill: right, another one, nothing.
    fitting: [usize; 3],
    in_best: usize,
    first: usize,
    /// Expected nothing: something, nothing.
    unfitting: [usize; 2],
    named: usize,
    named_first: usize,
    near: usize,
    near_taken: usize,
    misses: Vec<Value>,
}

impl Found {
    fn of(
        activations: &[Activation],
        find: impl Fn(&str) -> repertoire_registry::Result<Vec<Recommendation>>,
    ) -> Result<Self> {
        let mut found = Self::default();
        for activation in activations {
            found.note(activation, &find(&activation.message)?);
        }
        Ok(found)
    }

    fn note(&mut self, activation: &Activation, best: &[Recommendation]) {
        let first = best.first();
        let activated = first.filter(|first| first.fits);
        let is = |one: &Recommendation| one.id.as_str() == activation.expect;
        let right = match (activation.expect.as_str(), activated) {
            ("none", activated) if activation.near.is_some() => {
                self.near += 1;
                self.near_taken += usize::from(activated.is_some());
                activated.is_none()
            }
            ("none", Some(_)) => {
                self.unfitting[0] += 1;
                false
            }
            ("none", None) => {
                self.unfitting[1] += 1;
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
                self.in_best += usize::from(best.iter().any(is));
                let place = match activated {
                    Some(one) if is(one) => 0,
                    Some(_) => 1,
                    None => 2,
                };
                self.fitting[place] += 1;
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

    /// Each figure, its goal, and whether more is better.
    fn figures(&self, goals: &Goals) -> Vec<Figure> {
        let fitting = self.fitting.iter().sum();
        let unfitting = self.unfitting.iter().sum();
        let figure = |name, part, whole, goal, more| Figure {
            name,
            value: share(part, whole),
            goal,
            more,
            of: whole,
        };
        let near = (self.near_taken, self.near);
        let figures = vec![
            figure("hit@1", self.first, fitting, goals.hit_at_1, true),
            figure("hit@5", self.in_best, fitting, goals.hit_at_5, true),
            figure("named", self.named_first, self.named, goals.named, true),
            figure(
                "false activation",
                self.unfitting[0],
                unfitting,
                goals.false_activation,
                false,
            ),
            figure("near miss", near.0, near.1, goals.near_miss, false),
        ];
        // What was not tried has no figure.
        figures.into_iter().filter(|figure| figure.of > 0).collect()
    }

    fn to_json(&self, goals: &Goals) -> Value {
        let figures: Map<String, Value> = self
            .figures(goals)
            .iter()
            .map(|f| (f.name.to_owned(), json!({"value": f.value, "goal": f.goal})))
            .collect();
        json!({
            "figures": figures,
            "confusion": {
                "expected_skill": {
                    "right": self.fitting[0], "another": self.fitting[1],
                    "nothing": self.fitting[2],
                },
                "expected_nothing": {
                    "something": self.unfitting[0], "nothing": self.unfitting[1],
                },
            },
            "misses": self.misses,
        })
    }
}

struct Figure {
    name: &'static str,
    value: f64,
    goal: Option<f64>,
    more: bool,
    /// How many messages it is the share of.
    of: usize,
}

impl Figure {
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

pub(super) fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss, reason = "numbers of messages are small")]
    let share = part as f64 / whole as f64;
    share
}

/// How well skills are found, by each method that is there.
pub(super) struct Activated<'a> {
    skills: usize,
    by: Vec<(&'static str, Found, &'a Goals)>,
}

impl<'a> Activated<'a> {
    /// Tries every message: by its words, and by its meaning too where that is known.
    pub(super) fn measure(
        finder: &Finder,
        activations: &[Activation],
        goals: &'a Goals,
        goals_with_meaning: &'a Goals,
    ) -> Result<Self> {
        let words = Found::of(activations, |message| finder.find_by_words(message, BEST))?;
        let mut by = vec![("words", words, goals)];
        if finder.understands() {
            let fused = Found::of(activations, |message| finder.find(message, BEST))?;
            by.push(("with meaning", fused, goals_with_meaning));
        }
        let skills = finder.len();
        Ok(Self { skills, by })
    }

    pub(super) fn is_missed(&self) -> bool {
        let mut figures = self.by.iter().flat_map(|(_, f, goals)| f.figures(goals));
        figures.any(|figure| figure.is_missed())
    }

    pub(super) fn to_json(&self) -> Value {
        let by = self.by.iter();
        let by: Map<String, Value> = by
            .map(|(name, found, goals)| (name.replace(' ', "_"), found.to_json(goals)))
            .collect();
        json!({"skills": self.skills, "by": by})
    }

    pub(super) fn print(&self, misses: bool, output: &Output) -> Result<()> {
        let Some((_, first, _)) = self.by.first() else {
            return Ok(());
        };
        output.print(&format!(
            "{DIM}{}, {} messages that fit one, {} that name one, {} that fit none{DIM:#}\n",
            count(self.skills, "skill"),
            first.fitting.iter().sum::<usize>(),
            first.named,
            first.unfitting.iter().sum::<usize>(),
        ))?;
        for (name, found, goals) in &self.by {
            output.print(&format!("\n{BOLD}{name}{BOLD:#}\n"))?;
            for figure in found.figures(goals) {
                let goal = match figure.goal {
                    None => String::new(),
                    Some(goal) if figure.is_missed() => format!("  MISSED: goal {goal}"),
                    Some(goal) => format!("  goal {goal} met"),
                };
                output.print(&format!(
                    "  {:<18} {:.2}{goal}\n",
                    figure.name, figure.value
                ))?;
            }
            let [right, another, nothing] = found.fitting;
            let [something, none] = found.unfitting;
            output.print(&format!(
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
                output.print(&format!("{}\n", terminal_safe(&line)))?;
            }
        }
        Ok(())
    }
}
