//! Words of messages and names.

/// The longest run of words that can be a name or a phrase.
const LONGEST: usize = 12;
/// The most words of a message that are looked at.
const MOST: usize = 256;

/// Words that say nothing about what is wanted.
pub(super) const STOP: &[&str] = &[
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

/// The words of a text, in lower case.
pub(super) fn plain(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .take(MOST)
        .map(str::to_lowercase)
        .collect()
}

/// Every run of words.
pub(super) fn grams(words: &[String]) -> impl Iterator<Item = String> + '_ {
    (0..words.len()).flat_map(move |from| {
        let most = LONGEST.min(words.len() - from);
        (1..=most).map(move |length| words[from..from + length].join(" "))
    })
}
