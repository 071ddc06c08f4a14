//! Splits messages and names into words.

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

/// Returns every run of consecutive words.
pub(super) fn word_runs(words: &[String]) -> impl Iterator<Item = String> + '_ {
    (0..words.len()).flat_map(move |from| {
        let most = MAX_RUN_WORDS.min(words.len() - from);
        (1..=most).map(move |length| words[from..from + length].join(" "))
    })
}
