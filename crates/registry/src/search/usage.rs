//! What was chosen for earlier messages, and how it moves later rankings.
//!
//! Someone who searches and then reads or runs a skill has judged the results. For a similar message
//! the same skill gets a little more. Only the most similar earlier message counts, so repetition
//! adds nothing, and the addition never exceeds [`USAGE_BOUND`].

use std::collections::HashMap;

use repertoire_core::SkillId;
use repertoire_embed::Vector;

/// The most that earlier use adds to a score.
pub const USAGE_BOUND: f64 = 0.06;
/// Messages less similar than this say nothing about each other.
const DIFFERENT: f64 = 0.45;
/// Messages more similar than this count as the same.
const SAME: f64 = 0.9;

/// A skill that was chosen for a message.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillUse {
    /// The skill.
    pub skill: SkillId,
    /// The embedding of the message.
    pub message: Vector,
}

/// What adds to the score of skills for a message, by earlier use of one client.
pub(super) fn usage_shares(uses: &[SkillUse], message: &Vector) -> HashMap<SkillId, f64> {
    let mut shares: HashMap<SkillId, f64> = HashMap::new();
    for one in uses {
        let cosine = f64::from(one.message.cosine_similarity(message));
        let share = ((cosine - DIFFERENT) / (SAME - DIFFERENT)).clamp(0.0, 1.0) * USAGE_BOUND;
        if share > 0.0 {
            let known = shares.entry(one.skill.clone()).or_default();
            *known = known.max(share);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(skill: &str, message: &[f32]) -> SkillUse {
        SkillUse {
            skill: skill.parse().unwrap(),
            message: Vector::new(message),
        }
    }

    #[test]
    fn repeating_a_use_adds_nothing_and_the_bound_holds() {
        let message = Vector::new(&[1.0, 0.1]);
        let once = usage_shares(&[chosen("tide-tables", &[1.0, 0.1])], &message);
        let often: Vec<SkillUse> = (0..500)
            .map(|_| chosen("tide-tables", &[1.0, 0.1]))
            .collect();
        assert_eq!(usage_shares(&often, &message), once);
        let share = once["tide-tables"];
        assert!(share > 0.0 && share <= USAGE_BOUND, "{share}");
        assert!(usage_shares(&[chosen("tide-tables", &[0.0, 1.0])], &message).is_empty());
    }
}
