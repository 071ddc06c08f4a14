//! Measures how well search finds the expected skills.

use std::collections::BTreeMap;

use repertoire_registry::search::{
    Recommendation, SearchMethod, SearchOutcome, SearchRequest, SkillIndex, SkillUse,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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
    /// The smallest share of messages with a fitting skill for which anything is shown.
    #[serde(default)]
    pub shown: Option<f64>,
    /// The largest share of messages without a fitting skill for which something is shown.
    #[serde(default)]
    pub false_activation: Option<f64>,
    /// The largest share of near misses for which something is shown.
    #[serde(default)]
    pub near_miss: Option<f64>,
    /// The largest share of small talk for which something is shown.
    #[serde(default)]
    pub chitchat: Option<f64>,
}

impl ActivationGoals {
    /// The goals that are not shares from 0 to 1.
    pub(crate) fn out_of_range(&self) -> Vec<f64> {
        let all = [
            self.hit_at_1,
            self.hit_at_5,
            self.named,
            self.shown,
            self.false_activation,
            self.near_miss,
            self.chitchat,
        ];
        let all = all.into_iter().flatten();
        all.filter(|goal| !(0.0..=1.0).contains(goal)).collect()
    }
}

/// What sort of message a case is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseKind {
    /// A plain request.
    Ordinary,
    /// A request in other words than the skill's.
    Avoid,
    /// A long request, with much beside it.
    Noisy,
    /// A message that names the skill.
    Named,
    /// A near miss: nothing fits, although it sounds so.
    Hard,
    /// A request for something else.
    Easy,
    /// Small talk.
    Chitchat,
}

impl CaseKind {
    /// The name, as files write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Avoid => "avoid",
            Self::Noisy => "noisy",
            Self::Named => "named",
            Self::Hard => "hard",
            Self::Easy => "easy",
            Self::Chitchat => "chitchat",
        }
    }
}

/// A message and the skill it should find.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationCase {
    /// What the user says.
    pub message: String,
    /// An id, or `none`.
    pub expect: String,
    /// Skills that are just as right.
    #[serde(default)]
    pub also: Vec<String>,
    /// Whether the message names the skill.
    #[serde(default)]
    pub named: bool,
    /// The similar skill that a message without a fitting skill must not activate.
    #[serde(default)]
    pub near: Option<String>,
    /// What sort of message it is; by default it follows from the other fields.
    #[serde(default)]
    kind: Option<CaseKind>,
}

impl ActivationCase {
    /// What sort of message it is.
    pub fn kind(&self) -> CaseKind {
        self.kind.unwrap_or(match (&*self.expect, &self.near) {
            ("none", Some(_)) => CaseKind::Hard,
            ("none", None) => CaseKind::Easy,
            _ if self.named => CaseKind::Named,
            _ => CaseKind::Ordinary,
        })
    }

    /// Whether a skill is the expected one or as right.
    pub fn accepts(&self, id: &str) -> bool {
        self.expect == id || self.also.iter().any(|other| other == id)
    }

    fn is_found_in(&self, found: &Recommendation) -> bool {
        self.accepts(found.id.as_str()) || found.also.iter().any(|id| self.accepts(id.as_str()))
    }
}

/// The counted results of the messages of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KindTally {
    /// How many messages there are.
    pub cases: usize,
    /// For how many the expected skill came first.
    pub first: usize,
    /// For how many it was among the first five.
    pub in_top: usize,
    /// For how many something was shown.
    pub shown: usize,
}

/// The counted results of one search method.
#[derive(Debug, Default)]
pub struct ActivationTally {
    /// The results by kind of message.
    pub kinds: BTreeMap<CaseKind, KindTally>,
    /// The messages with a wrong result.
    pub misses: Vec<Value>,
}

impl ActivationTally {
    /// Searches for every message.
    pub fn from_cases(cases: &[ActivationCase], find: impl Fn(&str) -> SearchOutcome) -> Self {
        let mut tally = Self::default();
        for case in cases {
            tally.record_result(case, &find(&case.message));
        }
        tally
    }

    fn record_result(&mut self, case: &ActivationCase, outcome: &SearchOutcome) {
        let best = outcome.skills.iter().take(TOP_RESULTS);
        let place = best.clone().position(|one| case.is_found_in(one));
        let is_shown = !outcome.fitting().is_empty();
        let kind = self.kinds.entry(case.kind()).or_default();
        kind.cases += 1;
        kind.first += usize::from(place == Some(0));
        kind.in_top += usize::from(place.is_some());
        kind.shown += usize::from(is_shown);
        let is_right = if case.expect == "none" {
            !is_shown
        } else {
            place == Some(0) && is_shown
        };
        if !is_right {
            let first = outcome.skills.first();
            self.misses.push(json!({
                "message": case.message, "kind": case.kind(), "expect": case.expect,
                "found": first.map(|one| &one.id), "score": first.map(|one| one.score),
                "place": place.map(|place| place + 1),
                "shown": is_shown, "confidence": outcome.decision.confidence,
            }));
        }
    }

    /// The sum over some kinds.
    pub fn sum(&self, kinds: &[CaseKind]) -> KindTally {
        let mut sum = KindTally::default();
        for one in kinds.iter().filter_map(|kind| self.kinds.get(kind)) {
            sum.cases += one.cases;
            sum.first += one.first;
            sum.in_top += one.in_top;
            sum.shown += one.shown;
        }
        sum
    }

    /// Returns each metric with its goal and whether higher is better.
    pub fn goal_metrics(&self, goals: &ActivationGoals) -> Vec<GoalMetric> {
        let content = self.sum(&[CaseKind::Ordinary, CaseKind::Avoid, CaseKind::Noisy]);
        let [named, easy, hard, chitchat] = [
            CaseKind::Named,
            CaseKind::Easy,
            CaseKind::Hard,
            CaseKind::Chitchat,
        ]
        .map(|kind| self.sum(&[kind]));
        let metric = |name, part, whole: KindTally, goal, more| GoalMetric {
            name,
            value: ratio(part, whole.cases),
            goal,
            more,
            of: whole.cases,
        };
        let metrics = vec![
            metric("hit@1", content.first, content, goals.hit_at_1, true),
            metric("hit@5", content.in_top, content, goals.hit_at_5, true),
            metric("shown", content.shown, content, goals.shown, true),
            metric("named", named.first, named, goals.named, true),
            metric(
                "false activation",
                easy.shown,
                easy,
                goals.false_activation,
                false,
            ),
            metric("near miss", hard.shown, hard, goals.near_miss, false),
            metric("chitchat", chitchat.shown, chitchat, goals.chitchat, false),
        ];
        // A metric without messages is left out, unless it has a goal.
        let metrics = metrics.into_iter();
        metrics
            .filter(|one| one.of > 0 || one.goal.is_some())
            .collect()
    }

    fn to_json(&self, goals: &ActivationGoals) -> Value {
        let figures: Map<String, Value> = self
            .goal_metrics(goals)
            .iter()
            .map(|f| (f.name.to_owned(), json!({"value": f.value, "goal": f.goal})))
            .collect();
        json!({"figures": figures, "kinds": self.kinds, "misses": self.misses})
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
        self.goal.is_some_and(worse) || self.is_unmeasured()
    }

    /// Whether there is a goal, and no message to measure it with.
    pub fn is_unmeasured(&self) -> bool {
        self.of == 0 && self.goal.is_some()
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
        index: &SkillIndex,
        activations: &[ActivationCase],
        uses: &[SkillUse],
        goals: &'a ActivationGoals,
        goals_with_meaning: &'a ActivationGoals,
    ) -> Self {
        let words = ActivationTally::from_cases(activations, |message| {
            index.search(&SearchRequest::new(message, TOP_RESULTS).by(SearchMethod::Words))
        });
        let mut by = vec![("words", words, goals)];
        if index.has_embeddings() {
            let fused = ActivationTally::from_cases(activations, |message| {
                index.search(&SearchRequest {
                    uses,
                    ..SearchRequest::new(message, TOP_RESULTS)
                })
            });
            by.push(("with meaning", fused, goals_with_meaning));
        }
        let skills = index.len();
        Self { skills, by }
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
