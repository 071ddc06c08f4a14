//! Splits texts into words, and words into the terms that are indexed.

use frostem::{Algorithm, Stemmer};

/// The longest word that is indexed, in bytes.
const MAX_WORD_BYTES: usize = 40;
/// The most characters of a message that are considered.
const MAX_MESSAGE_CHARS: usize = 4_000;
/// The most terms of a message that are considered.
const MAX_MESSAGE_TERMS: usize = 64;
/// The longest run of words that can be a name or a phrase.
const MAX_RUN_WORDS: usize = 12;
/// The most words of a message that are considered.
const MAX_MESSAGE_WORDS: usize = 256;

/// Words that carry no information for search.
pub(super) const STOP_WORDS: &[&str] = &[
    "a", "about", "after", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be",
    "because", "been", "before", "but", "by", "can", "could", "did", "do", "does", "doing", "don",
    "for", "from", "get", "give", "go", "got", "had", "has", "have", "he", "her", "here", "him",
    "his", "how", "i", "if", "in", "into", "is", "it", "its", "just", "know", "let", "like", "ll",
    "make", "me", "more", "my", "need", "no", "not", "now", "of", "off", "on", "one", "only", "or",
    "our", "out", "over", "please", "put", "re", "s", "same", "she", "should", "so", "some",
    "such", "t", "tell", "than", "that", "the", "their", "them", "then", "there", "these", "they",
    "thing", "things", "this", "those", "to", "too", "up", "us", "use", "using", "ve", "very",
    "want", "was", "way", "we", "were", "what", "when", "where", "which", "who", "why", "will",
    "with", "would", "you", "your",
];

/// Returns the words of a text in lower case.
pub(super) fn lowercase_words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(MAX_MESSAGE_WORDS)
        .map(str::to_lowercase)
        .collect()
}

/// Returns every run of consecutive words, with the place of its first.
pub(super) fn word_runs(words: &[String]) -> impl Iterator<Item = (usize, String)> + '_ {
    (0..words.len()).flat_map(move |from| {
        let most = MAX_RUN_WORDS.min(words.len() - from);
        (1..=most).map(move |length| (from, words[from..from + length].join(" ")))
    })
}

/// Returns the stems of the words that carry information.
pub(super) fn terms(text: &str) -> impl Iterator<Item = String> + '_ {
    let stemmer = Stemmer::new(Algorithm::English);
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty() && word.len() <= MAX_WORD_BYTES)
        .map(str::to_lowercase)
        .filter(|word| STOP_WORDS.binary_search(&word.as_str()).is_err())
        .map(move |word| stemmer.stem(&word).into_owned())
}

/// Returns the different terms of a message, in order.
pub(super) fn message_terms(message: &str) -> Vec<String> {
    let end = message.char_indices().nth(MAX_MESSAGE_CHARS);
    let message = end.map_or(message, |(end, _)| &message[..end]);
    let mut found: Vec<String> = Vec::new();
    for term in terms(message) {
        if found.len() == MAX_MESSAGE_TERMS {
            break;
        }
        if !found.contains(&term) {
            found.push(term);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_words_are_sorted_for_the_search_among_them() {
        assert!(STOP_WORDS.is_sorted());
    }

    #[test]
    fn words_become_stems_and_stop_words_vanish() {
        let found: Vec<String> = terms("Which COMMITS broke the builds? #42 größer").collect();
        assert_eq!(found, ["commit", "broke", "build", "42", "größer"]);
        assert_eq!(message_terms("tide tide tides"), ["tide"]);
        assert_eq!(message_terms(&"harbours ".repeat(9_000))[0], "harbour");
        let many: Vec<String> = (0..100).map(|n| format!("w{n}")).collect();
        assert_eq!(message_terms(&many.join(" ")).len(), MAX_MESSAGE_TERMS);
    }
}
