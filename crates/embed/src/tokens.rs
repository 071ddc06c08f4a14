//! Tokenizes text like the uncased BERT.

use std::{collections::HashMap, path::Path, sync::LazyLock};

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::{Error, Result};

/// A word longer than this is treated as unknown.
const MAX_WORD_CHARS: usize = 100;
/// The most bytes of a text that are read: many times the limit of the model.
const MAX_TEXT_BYTES: usize = 16 * 1024;

#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static WORD_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    // ASCII symbols count as punctuation too; each mark is a word of its own.
    Regex::new(r"[\p{P}$+<=>^`|~]|[^\s\p{P}$+<=>^`|~]+").expect("a valid pattern")
});
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static INVISIBLE_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{C}\x{FFFD}--\t\n\r]").expect("a valid pattern"));
#[allow(clippy::expect_used, reason = "the pattern is a constant")]
static ACCENT_PATTERN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\p{Mn}").expect("a valid pattern"));

/// The words and word pieces of the model.
#[derive(Debug)]
pub struct Vocabulary {
    tokens: HashMap<Box<str>, u32>,
    unknown: u32,
    first: u32,
    last: u32,
}

impl Vocabulary {
    /// Reads the vocabulary from a file with one token per line.
    pub(crate) fn open(path: &Path, special_tokens: [&str; 2]) -> Result<Self> {
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
        let [first, last] = special_tokens;
        let (unknown, first, last) = (special("[UNK]")?, special(first)?, special(last)?);
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

    /// The token ids of a text, at most `most`, including the two special tokens around it.
    pub fn token_ids(&self, text: &str, most: usize) -> Vec<u32> {
        let mut ids = vec![self.first];
        for word in WORD_PATTERN.find_iter(&normalise_text(text)) {
            if ids.len() + 1 >= most {
                break;
            }
            self.push_word_pieces(word.as_str(), &mut ids);
        }
        ids.truncate(most.saturating_sub(1).max(1));
        ids.push(self.last);
        ids
    }

    /// Splits a word into the longest known pieces; a word that cannot be split is unknown.
    fn push_word_pieces(&self, word: &str, ids: &mut Vec<u32>) {
        let begun = ids.len();
        if word.chars().count() > MAX_WORD_CHARS {
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

/// Lowercases, removes accents and invisible characters, and separates CJK ideographs.
fn normalise_text(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let seen = INVISIBLE_PATTERN.replace_all(&text[..end], "");
    let mut apart = String::with_capacity(seen.len());
    for c in seen.chars() {
        if is_cjk_ideograph(c) {
            apart.extend([' ', c, ' ']);
        } else {
            apart.push(c);
        }
    }
    let decomposed: String = apart.nfd().collect();
    ACCENT_PATTERN.replace_all(&decomposed, "").to_lowercase()
}

fn is_cjk_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B73F
        | 0x2_B740..=0x2_B81F | 0x2_B920..=0x2_CEAF | 0xF900..=0xFAFF | 0x2_F800..=0x2_FA1F)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_vocabulary(name: &str, words: &[&str]) -> Vocabulary {
        let name = format!("vocabulary-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let text = [&["[UNK]", "[CLS]", "[SEP]"], words].concat().join("\n");
        std::fs::write(&folder, text).unwrap();
        let vocabulary = Vocabulary::open(&folder, ["[CLS]", "[SEP]"]).unwrap();
        std::fs::remove_file(folder).unwrap();
        vocabulary
    }

    #[test]
    fn words_are_split_into_the_longest_known_pieces() {
        let words = test_vocabulary(
            "parts",
            &["un", "##want", "##wanted", "cafe", "!", "東", "a"],
        );
        assert_eq!(words.token_ids("Unwanted Café!", 9), [1, 3, 5, 6, 7, 2]);
        assert_eq!(words.token_ids("東a", 9), [1, 8, 9, 2]);
        assert_eq!(words.token_ids("unwantedest a", 9), [1, 0, 9, 2]);
        assert_eq!(words.token_ids("a\u{7}\ta\u{200b}", 9), [1, 9, 9, 2]);
        assert_eq!(words.token_ids(&"x".repeat(101), 9), [1, 0, 2]);
        assert_eq!(words.token_ids("", 9), [1, 2]);
    }

    #[test]
    fn the_token_count_is_limited() {
        let words = test_vocabulary("most", &["a"]);
        assert_eq!(words.token_ids("a a a a a", 4), [1, 3, 3, 2]);
        let endless = "aé".repeat(1_000_000);
        assert_eq!(words.token_ids(&endless, 4), [1, 0, 2]);
    }
}
