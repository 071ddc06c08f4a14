//! The score of one skill for one message: what it is made of, and how the parts are weighed.

use repertoire_core::SkillId;
use serde::Serialize;

use super::names::Mention;

/// The share of a score that words and meaning can make up together.
const CONTENT_SHARE: f64 = 0.85;
/// The weight of the covered terms relative to the cosine, for a message of usual length.
const WORDS_WEIGHT: f64 = 0.85;
/// The same for a long message, whose embedding is about many things.
const LONG_WORDS_WEIGHT: f64 = 2.0;
/// How many terms a message of usual length has at most, and a long one at least.
const LONG_MESSAGE: (f64, f64) = (16.0, 40.0);
/// What a phrase of the skill in the message adds.
const PHRASE_SHARE: f64 = 0.25;
/// The score of a skill that the message names begins here.
const NAME_SHARE: f64 = 0.9;
/// The part of its score that a skill with a description that says nothing loses.
const VAGUE_LOSS: f64 = 0.15;
/// The part of its score that an untrusted skill loses.
const UNTRUSTED_LOSS: f64 = 0.05;

/// A skill that may fit a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// The skill.
    pub id: SkillId,
    /// How well it fits, from 0 to 1.
    pub score: f64,
    /// The most important reason.
    pub why: MatchReason,
    /// What the score is made of; the parts add up to it.
    pub parts: ScoreParts,
    /// The cosine of the embeddings of message and skill, if both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
    /// Skills that are nearly copies of this one and would follow it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<SkillId>,
}

/// What a score is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ScoreParts {
    /// The message names the skill.
    pub name: f64,
    /// The message contains a phrase of the skill.
    pub phrase: f64,
    /// They share terms.
    pub words: f64,
    /// Their embeddings are similar.
    pub meaning: f64,
    /// The skill was chosen for similar messages.
    pub usage: f64,
    /// What is subtracted because the description says nothing or the skill is untrusted.
    pub loss: f64,
}

impl ScoreParts {
    /// The sum.
    fn total(&self) -> f64 {
        self.name + self.phrase + self.words + self.meaning + self.usage + self.loss
    }

    fn scale(&mut self, factor: f64) {
        for part in [
            &mut self.phrase,
            &mut self.words,
            &mut self.meaning,
            &mut self.usage,
            &mut self.loss,
        ] {
            *part *= factor;
        }
    }
}

/// Why a skill matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchReason {
    /// The message names it.
    Named,
    /// The message contains this phrase of the skill.
    Phrase(String),
    /// The message and the skill share terms.
    Words,
    /// The embeddings of message and skill are similar.
    Meaning,
}

/// How similar a skill is to a message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Similarity {
    /// Embeddings are not used.
    Unused,
    /// The skill has no embedding yet.
    Missing,
    Cosine(f64),
}

/// What is known of a skill for one message.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    /// The share of the message's terms that it covers.
    pub(super) share: f64,
    pub(super) similarity: Similarity,
    /// What earlier use adds.
    pub(super) usage: f64,
    pub(super) mentions: &'a [Mention],
    /// Whether its description says nothing.
    pub(super) is_vague: bool,
    pub(super) is_trusted: bool,
}

impl Evidence<'_> {
    /// Weighs the evidence.
    pub(super) fn score_skill(&self, id: &SkillId, words_weight: f64) -> Recommendation {
        let mut parts = ScoreParts {
            usage: self.usage,
            ..ScoreParts::default()
        };
        let cosine = match self.similarity {
            // Covered terms stand for a similarity that is not known yet.
            Similarity::Unused | Similarity::Missing => None,
            Similarity::Cosine(cosine) => Some(cosine),
        };
        if self.similarity == Similarity::Unused {
            parts.words = self.share * CONTENT_SHARE;
        } else {
            let unit = CONTENT_SHARE / (1.0 + words_weight);
            parts.words = self.share * words_weight * unit;
            parts.meaning = cosine.unwrap_or(self.share).max(0.0) * unit;
        }
        let mut why = if parts.meaning > parts.words {
            MatchReason::Meaning
        } else {
            MatchReason::Words
        };
        let mut is_named = false;
        for mention in self.mentions {
            match mention {
                Mention::Name => is_named = true,
                Mention::Phrase(phrase) => {
                    parts.phrase = PHRASE_SHARE;
                    why = MatchReason::Phrase(phrase.clone());
                }
            }
        }
        let mut kept = 1.0;
        if self.is_vague {
            kept *= 1.0 - VAGUE_LOSS;
        }
        if !self.is_trusted {
            // It may have the id of a skill that was chosen.
            parts.usage = 0.0;
            kept *= 1.0 - UNTRUSTED_LOSS;
        }
        parts.loss = parts.total() * (kept - 1.0);
        if is_named {
            why = MatchReason::Named;
            parts.scale(1.0 - NAME_SHARE);
            parts.name = NAME_SHARE;
        } else if parts.total() > NAME_SHARE {
            // The score of a skill that is not named stays below that of a named one.
            parts.scale(NAME_SHARE / parts.total());
        }
        Recommendation {
            id: id.clone(),
            score: parts.total().clamp(0.0, 1.0),
            why,
            parts,
            cosine,
            also: Vec::new(),
        }
    }
}

/// The weight of the covered terms relative to the cosine, for a message with this many terms.
pub(super) fn words_weight(terms: usize) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
    let terms = terms as f64;
    let (usual, long) = LONG_MESSAGE;
    let length = ((terms - usual) / (long - usual)).clamp(0.0, 1.0);
    WORDS_WEIGHT + (LONG_WORDS_WEIGHT - WORDS_WEIGHT) * length
}
