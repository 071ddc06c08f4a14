//! Decides for a message whether any skill fits it.
//!
//! The decision is about the message, not about each result: a threshold for each result hides right
//! ones. It is a logistic function of a few features of the message in the catalogue, each of which
//! moves it in one direction only. `repertoire-bench gate` fits the coefficients on the messages in
//! `corpus/activation/tuning.yaml` and prints the share of right and wrong openings for every
//! threshold.

use repertoire_embed::ModelKind;
use serde::Serialize;

/// How many of the nearest skills say how well the catalogue covers the topic of a message.
pub(super) const TOPIC_SKILLS: usize = 10;
/// In a small catalogue another skill is assumed to be this much less similar than the first.
const USUAL_GAP: f64 = 0.09;
/// A catalogue with fewer skills is small.
const SMALL_CATALOGUE: f64 = 66.0;
/// A catalogue with so many skills contains most words of the messages that fit it. In a smaller one
/// an unknown word says less.
const RICH_CATALOGUE: f64 = 400.0;
/// The usual share of unknown terms in messages that fit a rich catalogue.
const USUAL_UNKNOWN: f64 = 0.15;
/// A message with this many terms is long enough; more of them say nothing.
const ENOUGH_TERMS: f64 = 8.0;

/// What the decision depends on, for one message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GateFeatures {
    /// The largest cosine of a skill with the message, if embeddings are used.
    pub best_cosine: Option<f64>,
    /// The tenth largest cosine, or one of a higher rank in a smaller catalogue: how well it covers the
    /// topic.
    pub tenth_cosine: Option<f64>,
    /// The largest share of the message's terms that a skill covers.
    pub best_share: f64,
    /// The share of the message's terms that no skill contains.
    pub unknown_terms: f64,
    /// How much of a rich catalogue this is: in a small one, unknown terms say little.
    pub richness: f64,
    /// The number of terms, up to eight, as a share of eight.
    pub length: f64,
}

/// Which of the nearest skills stands for the topic: the tenth of a rich catalogue, and as large a
/// share of a smaller one.
fn topic_rank(skills: f64) -> usize {
    #[allow(clippy::cast_precision_loss, reason = "a small constant")]
    let most = TOPIC_SKILLS as f64;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 1 to 10"
    )]
    let rank = (skills / RICH_CATALOGUE * most).round().clamp(1.0, most) as usize;
    rank
}

impl GateFeatures {
    pub(super) fn new(
        cosines: &[f64],
        best_share: f64,
        unknown_terms: f64,
        terms: usize,
        skills: usize,
    ) -> Self {
        #[allow(
            clippy::cast_precision_loss,
            reason = "numbers of words and skills are small"
        )]
        let (terms, skills) = (terms as f64, skills as f64);
        let richness = (skills / RICH_CATALOGUE).min(1.0);
        let best_cosine = cosines.first().copied();
        Self {
            best_cosine,
            tenth_cosine: best_cosine.map(|best| {
                let tenth = cosines.get(topic_rank(skills) - 1).copied();
                let tenth = tenth.filter(|_| skills >= SMALL_CATALOGUE);
                tenth.unwrap_or(best - USUAL_GAP)
            }),
            best_share,
            unknown_terms,
            richness,
            length: terms.min(ENOUGH_TERMS) / ENOUGH_TERMS,
        }
    }

    /// The features as the gate with or without embeddings weighs them.
    pub fn values(&self) -> Vec<f64> {
        let unknown = USUAL_UNKNOWN + (self.unknown_terms - USUAL_UNKNOWN) * self.richness;
        match (self.best_cosine, self.tenth_cosine) {
            (Some(best), Some(tenth)) => vec![best, tenth, unknown, self.length],
            _ => vec![self.best_share, self.best_share * self.length, unknown],
        }
    }
}

/// The coefficients of a gate.
#[derive(Debug)]
pub struct GateModel {
    /// One for each value of [`GateFeatures::values`].
    pub coefficients: &'static [f64],
    /// What is added.
    pub intercept: f64,
    /// From this confidence on something fits.
    pub threshold: f64,
}

/// The gate of search with embeddings of `MiniLm`: best cosine, tenth cosine, unknown terms, length.
pub const MINILM_GATE: GateModel = GateModel {
    coefficients: &[8.01, 18.32, -3.78, 0.27],
    intercept: -7.25,
    threshold: 0.302,
};

/// The same with embeddings of `Mpnet`.
pub const MPNET_GATE: GateModel = GateModel {
    coefficients: &[10.62, 12.63, -3.73, 2.54],
    intercept: -8.75,
    threshold: 0.356,
};

/// The gate of search without embeddings: best share, the same weighted by length, unknown terms.
pub const WORDS_GATE: GateModel = GateModel {
    coefficients: &[0.56, 4.93, -4.33],
    intercept: -0.97,
    threshold: 0.23,
};

/// Whether anything fits a message.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GateDecision {
    /// Whether something fits: the best results are shown, otherwise none.
    pub is_open: bool,
    /// How sure that is, from 0 to 1. A message that names a skill, or contains a phrase of one, has 1.
    pub confidence: f64,
    /// The confidence from which something fits.
    pub threshold: f64,
}

impl GateDecision {
    pub(super) fn for_message(
        features: &GateFeatures,
        encoder: Option<ModelKind>,
        is_mentioned: bool,
    ) -> Self {
        let model = match encoder.filter(|_| features.best_cosine.is_some()) {
            None => &WORDS_GATE,
            Some(ModelKind::MiniLm) => &MINILM_GATE,
            Some(ModelKind::Mpnet) => &MPNET_GATE,
        };
        let confidence = if is_mentioned {
            1.0
        } else {
            model.confidence(&features.values())
        };
        Self {
            is_open: confidence >= model.threshold,
            confidence,
            threshold: model.threshold,
        }
    }

    /// The decision about a catalogue in which nothing can be found.
    pub(super) fn closed() -> Self {
        Self {
            is_open: false,
            confidence: 0.0,
            threshold: WORDS_GATE.threshold,
        }
    }
}

impl GateModel {
    /// How sure it is that something fits, from 0 to 1.
    pub fn confidence(&self, values: &[f64]) -> f64 {
        let terms = self.coefficients.iter().zip(values);
        let sum: f64 = terms.map(|(coefficient, value)| coefficient * value).sum();
        1.0 / (1.0 + (-(sum + self.intercept)).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A more similar skill, a better covered message and known words never close the gate.
    #[test]
    fn every_feature_moves_the_gate_in_one_direction() {
        for gate in [MINILM_GATE, MPNET_GATE] {
            let [cosine, tenth, unknown, length] = gate.coefficients else {
                panic!("four features");
            };
            assert!(*cosine > 0.0 && *tenth >= 0.0 && *unknown <= 0.0 && *length >= 0.0);
        }
        let [share, covered, unknown] = WORDS_GATE.coefficients else {
            panic!("three features");
        };
        assert!(*share > 0.0 && *covered > 0.0 && *unknown <= 0.0);
    }

    #[test]
    fn a_small_catalogue_has_a_tenth_skill_too() {
        let few = GateFeatures::new(&[0.6, 0.2], 0.1, 1.0, 20, 2);
        assert_eq!(few.tenth_cosine, Some(0.6 - USUAL_GAP));
        assert!(
            (few.values()[2] - USUAL_UNKNOWN).abs() < 0.01,
            "unknown words say little"
        );
        assert!((few.length - 1.0).abs() < f64::EPSILON);
        let many: Vec<f64> = (0..30).map(|n| 0.9 - f64::from(n) / 100.0).collect();
        let features = GateFeatures::new(&many, 0.1, 0.0, 4, 1_000);
        assert!((features.tenth_cosine.unwrap() - 0.81).abs() < 1e-9);
        assert_eq!(GateFeatures::new(&[], 0.1, 0.0, 4, 1_000).values().len(), 3);
    }
}
