//! The order in which other tools sort file names before they hash them: that of JavaScript's
//! `localeCompare` without a locale of its own.
//!
//! Only names of ASCII characters are compared, for which that order is known: punctuation, digits,
//! letters regardless of their case, and lower case first where nothing else differs.

use std::cmp::Ordering;

/// ASCII punctuation in its order.
const PUNCTUATION: &str = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$";

/// Compares two names; `None` if one has characters whose order is not known here.
pub(super) fn compare(a: &str, b: &str) -> Option<Ordering> {
    let weights = |text: &str| text.chars().map(weight).collect::<Option<Vec<u32>>>();
    let primary = weights(a)?.cmp(&weights(b)?);
    // Lower case comes before upper case, the reverse of their codes.
    Some(primary.then_with(|| b.cmp(a)))
}

fn weight(c: char) -> Option<u32> {
    match c {
        '0'..='9' => Some(100 + u32::from(c)),
        'a'..='z' | 'A'..='Z' => Some(1000 + u32::from(c.to_ascii_lowercase())),
        _ => PUNCTUATION.find(c).and_then(|at| u32::try_from(at).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_as_javascript_does() {
        let sorted = [
            "_x",
            ".hid",
            "assets/a",
            "LICENSE",
            "README",
            "references",
            "scripts/a_b",
            "scripts/a-b",
            "SKILL.md",
        ];
        for pair in sorted.windows(2) {
            assert_eq!(compare(pair[0], pair[1]), Some(Ordering::Less), "{pair:?}");
            assert_eq!(
                compare(pair[1], pair[0]),
                Some(Ordering::Greater),
                "{pair:?}"
            );
        }
        assert_eq!(compare("readme", "README"), Some(Ordering::Less));
        assert_eq!(compare("Ä", "a"), None);
    }
}
