//! Finds skills that a message names, and skills with a phrase that the message contains.
//!
//! A name of several words is certain wherever it stands. A name of one word is mostly just a word:
//! it names the skill only as `/name`, in quotes, or beside the word "skill".

use std::{collections::HashMap, ops::Range};

use repertoire_core::SkillId;

use super::{
    document::SkillDocument,
    text::{lowercase_words, word_runs},
};

/// A phrase with fewer words is only words.
const MIN_PHRASE_WORDS: usize = 2;
/// Quotes that may be around a name, opening and closing.
const QUOTES: &[(char, char)] = &[
    ('"', '"'),
    ('\'', '\''),
    ('`', '`'),
    ('“', '”'),
    ('‘', '’'),
    ('„', '“'),
    ('«', '»'),
];
/// Words that may stand between "skill" and its name.
const LINKS: &[&str] = &["called", "named", "is"];

/// A skill that a message refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mention {
    /// Its name.
    Name,
    /// One of its phrases.
    Phrase(String),
}

/// The names and phrases of trusted skills. An untrusted skill gets none, so that it cannot rank
/// itself first by its own choice of name.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    ids_by_name: HashMap<String, Vec<SkillId>>,
    ids_by_phrase: HashMap<String, Vec<SkillId>>,
    /// The names and phrases of every skill.
    entries: HashMap<SkillId, (Vec<String>, Vec<String>)>,
}

impl NameIndex {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn insert(&mut self, document: &SkillDocument) {
        self.remove(document.id());
        let (mut names, mut phrases) = (Vec::new(), Vec::new());
        if document.is_trusted() {
            names = document.names();
            let all = document.phrases().iter();
            phrases.extend(all.map(|phrase| lowercase_words(phrase)));
            phrases.retain(|words: &Vec<String>| words.len() >= MIN_PHRASE_WORDS);
        }
        let phrases: Vec<String> = phrases.into_iter().map(|words| words.join(" ")).collect();
        for (map, texts) in [
            (&mut self.ids_by_name, &names),
            (&mut self.ids_by_phrase, &phrases),
        ] {
            for text in texts {
                let ids = map.entry(text.clone()).or_default();
                ids.push(document.id().clone());
            }
        }
        self.entries.insert(document.id().clone(), (names, phrases));
    }

    pub(super) fn remove(&mut self, id: &SkillId) {
        let Some((names, phrases)) = self.entries.remove(id) else {
            return;
        };
        for (map, texts) in [
            (&mut self.ids_by_name, names),
            (&mut self.ids_by_phrase, phrases),
        ] {
            for text in texts {
                if let Some(ids) = map.get_mut(&text) {
                    ids.retain(|known| known != id);
                    if ids.is_empty() {
                        map.remove(&text);
                    }
                }
            }
        }
    }

    /// Returns the wanted skills that a message refers to. Where names overlap, the longest counts.
    pub(super) fn mentions(
        &self,
        message: &str,
        is_wanted: impl Fn(&SkillId) -> bool,
    ) -> Vec<(&SkillId, Mention)> {
        let words = lowercase_words(message);
        let mut found: Vec<(&SkillId, Mention)> = Vec::new();
        // Only names of wanted skills are compared: others must not hide them.
        let mut named: Vec<(Range<usize>, &SkillId)> = Vec::new();
        for (from, run) in word_runs(&words) {
            let length = run.split(' ').count();
            let ids = self.ids_by_name.get(&run).into_iter().flatten();
            let mut wanted = ids.filter(|id| is_wanted(id)).peekable();
            if wanted.peek().is_some() && (length > 1 || is_explicit(message, &run, &words)) {
                named.extend(wanted.map(|id| (from..from + length, id)));
            }
            let ids = self.ids_by_phrase.get(&run).into_iter().flatten();
            for id in ids.filter(|id| is_wanted(id)) {
                found.push((id, Mention::Phrase(run.clone())));
            }
        }
        for (place, id) in &named {
            let is_inside_another = named.iter().any(|(other, _)| {
                other.len() > place.len() && other.start <= place.start && place.end <= other.end
            });
            if !is_inside_another {
                found.push((id, Mention::Name));
            }
        }
        found
    }
}

/// Whether a message refers to a skill by a name of one word, instead of just using the word.
fn is_explicit(message: &str, name: &str, words: &[String]) -> bool {
    let lower = message.to_lowercase();
    let is_marked = lower.match_indices(name).any(|(at, found)| {
        let (before, after) = (&lower[..at], &lower[at + found.len()..]);
        let next = after.chars().next();
        let mut previous = before.chars().rev();
        match previous.next() {
            Some('/') => {
                let is_start = previous.next().is_none_or(char::is_whitespace);
                is_start && next.is_none_or(|c| !c.is_alphanumeric() && !"/-_.".contains(c))
            }
            Some(open) => QUOTES.contains(&(open, next.unwrap_or(' '))),
            // The whole message.
            None => next.is_none(),
        }
    });
    let is_beside_skill = || {
        words.iter().enumerate().any(|(at, word)| {
            let mut following = words[at + 1..].iter();
            if word == name {
                return following.next().is_some_and(|next| next == "skill");
            }
            word == "skill"
                && following
                    .find(|next| !LINKS.contains(&next.as_str()))
                    .is_some_and(|next| next == name)
        })
    };
    is_marked || is_beside_skill()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[&str]) -> NameIndex {
        let mut index = NameIndex::default();
        for name in names {
            let id: SkillId = name.parse().unwrap();
            let text = name.replace(['/', '-'], " ");
            index.ids_by_name.entry(text).or_default().push(id);
        }
        index
    }

    /// A skill that a caller may not see hides no other one by a longer name.
    #[test]
    fn t36_overlapping_names_of_others_hide_nothing() {
        let index = index(&["roll-back", "roll-back-payroll"]);
        let message = "please roll back payroll";
        let mine = |id: &SkillId| id.as_str() == "roll-back";
        let all: Vec<&str> = index
            .mentions(message, |_| true)
            .into_iter()
            .map(|(id, _)| id.as_str())
            .collect();
        assert_eq!(all, ["roll-back-payroll"]);
        assert_eq!(index.mentions(message, mine).len(), 1);
        // A name that stands elsewhere too counts.
        let both = index.mentions("roll back, but do not roll back payroll", |_| true);
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn a_name_of_one_word_counts_only_where_it_is_marked() {
        for (message, expected) in [
            ("/keep these receipts", true),
            ("please run /keep now", true),
            ("`keep` the receipts", true),
            ("use “keep” for it", true),
            ("Keep", true),
            ("use the keep skill", true),
            ("the skill called Keep does it", true),
            ("skill keep, please", true),
            ("keep the receipts", false),
            ("/keep/receipts is full", false),
            ("path/keep is full", false),
            ("which skill helps to keep bees", false),
            ("don't 'keepsake' me", false),
            ("you keep skills somewhere", false),
        ] {
            let words = lowercase_words(message);
            assert_eq!(is_explicit(message, "keep", &words), expected, "{message}");
        }
    }
}
