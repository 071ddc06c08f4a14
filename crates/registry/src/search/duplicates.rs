//! Recognises skills that are nearly copies of another one.

use std::hash::BuildHasher as _;

use foldhash::fast::FixedState;

/// How many hashes a signature has. The share of equal ones estimates the share of common terms
/// with an error of a tenth.
const HASHES: usize = 32;
/// Two texts with this share of common terms are near-duplicates.
const DUPLICATE_SHARE: f64 = 0.45;
/// The same for short texts, in which a single word makes a difference.
const SHORT_DUPLICATE_SHARE: f64 = 0.95;
/// A text with fewer terms is short.
const SHORT_TERMS: u32 = 60;

/// A `MinHash` of the terms of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextSignature {
    least: [u32; HASHES],
    /// How many terms the text has, repeated ones included.
    terms: u32,
}

impl TextSignature {
    pub(super) fn of_terms(terms: impl Iterator<Item = String>) -> Self {
        let hasher = FixedState::with_seed(0);
        let mut least = [u32::MAX; HASHES];
        let mut count = 0_u32;
        for term in terms {
            count = count.saturating_add(1);
            let hash = hasher.hash_one(&term);
            for (seed, least) in (1_u64..).zip(&mut least) {
                // Odd multipliers permute the hashes, each in another way.
                let mixed = (hash ^ (hash >> 29)).wrapping_mul(seed.wrapping_mul(2) | 1);
                let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                *least = (*least).min(u32::try_from(mixed >> 32).unwrap_or(u32::MAX));
            }
        }
        Self {
            least,
            terms: count,
        }
    }

    /// Whether most terms of two texts are the same. Texts without terms are not compared.
    pub(super) fn is_duplicate_of(&self, other: &Self) -> bool {
        let shorter = self.terms.min(other.terms);
        if shorter == 0 {
            return false;
        }
        let mut equal = 0.0;
        for (a, b) in self.least.iter().zip(other.least) {
            equal += f64::from(u8::from(*a == b));
        }
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let all = HASHES as f64;
        equal / all
            >= if shorter < SHORT_TERMS {
                SHORT_DUPLICATE_SHARE
            } else {
                DUPLICATE_SHARE
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(words: std::ops::Range<u32>) -> TextSignature {
        TextSignature::of_terms(words.map(|n| format!("word{n}")))
    }

    #[test]
    fn texts_with_mostly_the_same_terms_are_duplicates() {
        let one = signature(0..100);
        assert!(one.is_duplicate_of(&one));
        assert!(one.is_duplicate_of(&signature(15..115)), "74 % are common");
        assert!(!one.is_duplicate_of(&signature(60..160)), "25 % are common");
        assert!(!one.is_duplicate_of(&signature(200..300)));
        assert!(!signature(0..0).is_duplicate_of(&signature(0..0)));
        // "Starts the server of the shop" and "Stops the server of the shop" are different skills.
        assert!(!signature(0..10).is_duplicate_of(&signature(1..11)));
        assert!(signature(0..10).is_duplicate_of(&signature(0..10)));
    }
}
