//! Text to tokens, as BERT without capitals reads it.

use std::{collections::HashMap, path::Path, sync::LazyLock};

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::{Error, Result};

/// A word longer than this is read as unknown.
const MAX_WORD: usize = 100;
/// The most bytes of a text that are looked at: many times what the model can read.
const MAX_TEXT: usize = 16 * 1024;

#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static WORDS: LazyLock<Regex> = LazyLock::new(|| {
    // What ASCII calls punctuation counts as such; each mark is a word of its own.
    Regex::new(r"[\p{P}$+<=>^`|~]|[^\s\p{P}$+<=>^`|~]+").expect("a valid pattern")
});
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static UNSEEN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{C}\x{FFFD}--\t\n\r]").expect("a valid pattern"));
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static ACCENTS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\p{Mn}").expect("a valid pattern"));

/// The words and parts of words the model knows.
#[derive(Debug)]
pub struct Vocabulary {
    tokens: HashMap<Box<str>, u32>,
    unknown: u32,
    first: u32,
    last: u32,
}

impl Vocabulary {
    /// Reads it from a file with one token a line.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        let tokens: HashMap<Box<str>, u32> = text.lines().map(Box::from).zip(0..).collect();
        let special = |token: &str| {
            tokens.get(token).copied().ok_or_else(|| Error::Format {
                path: path.to_owned(),
                reason: format!("there is no {token}"),
            })
        };
        let (unknown, first, last) = (special("[UNK]")?, special("[CLS]")?, special("[SEP]")?);
        Ok(Self {
            tokens,
            unknown,
            first,
            last,
        })
    }

    /// How many tokens there are.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens of a text, at most so many, the two that frame it among them.
    pub fn tokens(&self, text: &str, most: usize) -> Vec<u32> {
        let mut ids = vec![self.first];
        for word in WORDS.find_iter(&plain(text)) {
            if ids.len() + 1 >= most {
                break;
            }
            self.pieces(word.as_str(), &mut ids);
        }
        ids.truncate(most.saturating_sub(1).max(1));
        ids.push(self.last);
        ids
    }

    /// Cuts a word into the longest parts that are known; one that cannot be cut is unknown.
    fn pieces(&self, word: &str, ids: &mut Vec<u32>) {
        let begun = ids.len();
        if word.chars().count() > MAX_WORD {
            ids.push(self.unknown);
            return;
        }
        let mut start = 0;
        let mut part = String::new();
        while start < word.len() {
            let ends = word[start..]
                .char_indices()
                .rev()
                .map(|(at, c)| start + at + c.len_utf8());
            let mut known = None;
            for end in ends {
                part.clear();
                if start > 0 {
                    part.push_str("##");
                }
                part.push_str(&word[start..end]);
                if let Some(&id) = self.tokens.get(part.as_str()) {
                    known = Some((id, end));
                    break;
                }
            }
            let Some((id, end)) = known else {
                ids.truncate(begun);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            start = end;
        }
    }
}

/// Small letters without accents, signs for words apart, and nothing that cannot be seen.
fn plain(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let seen = UNSEEN.replace_all(&text[..end], "");
    let mut apart = String::with_capacity(seen.len());
    for c in seen.chars() {
        if is_sign_for_a_word(c) {
            apart.extend([' ', c, ' ']);
        } else {
            apart.push(c);
        }
    }
    let decomposed: String = apart.nfd().collect();
    ACCENTS.replace_all(&decomposed, "").to_lowercase()
}

fn is_sign_for_a_word(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F
        | 0x2_B740..=0x2_B81F | 0x2_B920..=0x2_CEAF | 0xF900..=0xFAFF | 0x2_F800..=0x2_FA1F)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(name: &str, words: &[&str]) -> Vocabulary {
        let name = format!("vocabulary-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let text = [&["[UNK]", "[CLS]", "[SEP]"], words].concat().join("\n");
        std::fs::write(&folder, text).unwrap();
        let vocabulary = Vocabulary::open(&folder).unwrap();
        std::fs::remove_file(folder).unwrap();
        vocabulary
    }

    #[test]
    fn words_are_cut_into_the_longest_known_parts() {
        let words = vocabulary(
            "parts",
            &["un", "##want", "##wanted", "cafe", "!", "東", "a"],
        );
        assert_eq!(words.tokens("Unwanted Café!", 9), [1, 3, 5, 6, 7, 2]);
        assert_eq!(words.tokens("東a", 9), [1, 8, 9, 2]);
        assert_eq!(words.tokens("unwantedest a", 9), [1, 0, 9, 2]);
        assert_eq!(words.tokens("a\u{7}\ta\u{200b}", 9), [1, 9, 9, 2]);
        assert_eq!(words.tokens(&"x".repeat(101), 9), [1, 0, 2]);
        assert_eq!(words.tokens("", 9), [1, 2]);
    }

    #[test]
    fn no_more_tokens_than_asked_for() {
        let words = vocabulary("most", &["a"]);
        assert_eq!(words.tokens("a a a a a", 4), [1, 3, 3, 2]);
        let endless = "aé".repeat(1_000_000);
        assert_eq!(words.tokens(&endless, 4), [1, 0, 2]);
    }
}
