//! Names that look like the name of another skill (T15).
//!
//! A stranger's skill can have a name that is easily taken for a known one: a letter more or less,
//! `1` for `l`, a word such as `official` added, or a random suffix. Such names are reported, never
//! refused: many are legitimate. Pairs that differ in a number, a plural or a file format are quiet.

use std::collections::HashMap;

use crate::id::SkillId;

/// How a name resembles another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Likeness {
    /// Characters that look the same, or other separators.
    Confusable,
    /// One letter more, less, other or swapped.
    Typo,
    /// A word that only claims something, such as `official`.
    Affix,
    /// A suffix that means nothing.
    RandomSuffix,
}

impl Likeness {
    /// Describes the likeness, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Confusable => "it is written with characters that look alike",
            Self::Typo => "it differs in one letter",
            Self::Affix => "it adds a word that means nothing",
            Self::RandomSuffix => "it adds random characters",
        }
    }
}

/// A known name that another name resembles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAlike {
    /// The name that was looked up.
    pub name: SkillId,
    /// The known name.
    pub known: SkillId,
    /// How they resemble each other.
    pub likeness: Likeness,
}

/// Words that claim something and say nothing about what a skill does.
const EMPTY_WORDS: [&str; 22] = [
    "best",
    "better",
    "certified",
    "enhanced",
    "fixed",
    "free",
    "genuine",
    "improved",
    "latest",
    "legit",
    "new",
    "official",
    "original",
    "patched",
    "plus",
    "premium",
    "pro",
    "real",
    "safe",
    "secure",
    "ultimate",
    "verified",
];
/// Pairs of words that differ in one letter and are both common.
const KNOWN_PAIRS: [(&str, &str); 16] = [
    ("adapter", "adaptor"),
    ("affect", "effect"),
    ("builder", "guilder"),
    ("color", "colour"),
    ("docker", "locker"),
    ("header", "reader"),
    ("linker", "linter"),
    ("loader", "reader"),
    ("matcher", "watcher"),
    ("parser", "purser"),
    ("planner", "scanner"),
    ("preact", "react"),
    ("reader", "render"),
    ("tester", "texter"),
    ("trainer", "drainer"),
    ("writer", "waiter"),
];
/// The most look-alikes that are reported of one name.
const MAX_FOUND: usize = 3;
/// The most names with the same last part that are compared.
const MAX_COMPARED: usize = 64;
/// Shorter names are not compared letter by letter: too many words are that close.
const MIN_TYPO_LETTERS: usize = 6;

/// An index of known names.
///
/// ```
/// use repertoire_core::look_alike::{Likeness, NameIndex};
///
/// let index = NameIndex::new(["pdf-tools".parse()?]);
/// let found = index.find(&"pdf-toools".parse()?);
/// assert_eq!(found[0].likeness, Likeness::Typo);
/// assert!(index.find(&"csv-tools".parse()?).is_empty());
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct NameIndex {
    names: Vec<SkillId>,
    /// The names with each last part.
    by_last: HashMap<String, Vec<usize>>,
    by_skeleton: HashMap<String, Vec<usize>>,
    /// Each name without one of its letters, and as it is.
    by_variant: HashMap<String, Vec<usize>>,
}

impl NameIndex {
    /// Indexes known names.
    pub fn new(names: impl IntoIterator<Item = SkillId>) -> Self {
        let mut index = Self::default();
        for name in names {
            let at = index.names.len();
            let add = |map: &mut HashMap<String, Vec<usize>>, key: String| {
                map.entry(key).or_default().push(at);
            };
            // Of names with the same last part, one is enough.
            if !index.by_last.contains_key(name.name()) {
                add(&mut index.by_skeleton, skeleton(name.name()));
                for variant in variants(name.name()) {
                    add(&mut index.by_variant, variant);
                }
            }
            add(&mut index.by_last, name.name().to_owned());
            index.names.push(name);
        }
        index
    }

    /// Returns the known names that a name resembles, the closest likeness first; each once. A name
    /// that is known itself, or that has the same last part as a known one, resembles nothing.
    pub fn find(&self, name: &SkillId) -> Vec<LookAlike> {
        let last = name.name();
        if let Some(same) = self.by_last.get(last) {
            return self.find_namespace(name, same);
        }
        let mut found: Vec<(Likeness, usize)> = Vec::new();
        let mut add = |likeness, at: &[usize]| {
            found.extend(at.iter().map(|at| (likeness, *at)));
        };
        let empty = Vec::new();
        let with_skeleton = |text: &str| self.by_skeleton.get(&skeleton(text)).unwrap_or(&empty);
        add(Likeness::Confusable, with_skeleton(last));
        let mut close: Vec<usize> = variants(last)
            .iter()
            .filter_map(|variant| self.by_variant.get(variant))
            .flatten()
            .copied()
            .collect();
        close.sort_unstable();
        close.dedup();
        close.retain(|at| is_typo(last, self.names[*at].name()));
        add(Likeness::Typo, &close);
        if let Some(rest) = without_empty_words(last) {
            add(Likeness::Affix, with_skeleton(&rest));
        }
        if let Some((rest, suffix)) = last.rsplit_once(['-', '_'])
            && is_random(suffix)
        {
            add(Likeness::RandomSuffix, with_skeleton(rest));
        }
        found.sort_unstable();
        let mut seen = Vec::new();
        found.retain(|(_, at)| {
            let is_new = !seen.contains(at);
            seen.push(*at);
            is_new
        });
        found.truncate(MAX_FOUND);
        let to_look_alike = |(likeness, at): (Likeness, usize)| LookAlike {
            name: name.clone(),
            known: self.names[at].clone(),
            likeness,
        };
        found.into_iter().map(to_look_alike).collect()
    }
}

impl NameIndex {
    /// Compares what comes before the last part, if that is the same.
    fn find_namespace(&self, name: &SkillId, same: &[usize]) -> Vec<LookAlike> {
        let parent = |id: &SkillId| {
            let text = id.as_str();
            text.rsplit_once('/').map(|(parent, _)| parent.to_owned())
        };
        let Some(own) = parent(name) else {
            return Vec::new();
        };
        let compared = same.iter().take(MAX_COMPARED).filter_map(|at| {
            let known = &self.names[*at];
            let other = parent(known).filter(|other| *other != own)?;
            let likeness = if skeleton(&own) == skeleton(&other) {
                Likeness::Confusable
            } else if is_typo(&own, &other) {
                Likeness::Typo
            } else {
                return None;
            };
            Some(LookAlike {
                name: name.clone(),
                known: known.clone(),
                likeness,
            })
        });
        compared.take(MAX_FOUND).collect()
    }
}

/// Maps a name to what it looks like.
fn skeleton(name: &str) -> String {
    let plain: String = name
        .chars()
        .filter(|c| !matches!(c, '-' | '_'))
        .map(|c| match c {
            '0' => 'o',
            '1' | 'i' => 'l',
            '5' => 's',
            other => other,
        })
        .collect();
    plain.replace("rn", "m").replace("vv", "w")
}

/// The name without separators, and the same without each of its letters.
fn variants(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().filter(|c| !matches!(c, '-' | '_')).collect();
    if letters.len() + 1 < MIN_TYPO_LETTERS {
        return Vec::new();
    }
    let without = |skip: usize| {
        let kept = letters.iter().enumerate().filter(|(at, _)| *at != skip);
        kept.map(|(_, c)| *c).collect::<String>()
    };
    let mut all: Vec<String> = (0..letters.len()).map(without).collect();
    all.push(letters.iter().collect());
    all
}

/// Whether two names differ in one letter, or in two that are swapped, and in nothing that usually
/// makes a difference.
fn is_typo(a: &str, b: &str) -> bool {
    let parts = |name: &str| -> Vec<String> { name.split(['-', '_']).map(str::to_owned).collect() };
    let (a, b) = (parts(a), parts(b));
    if a.len() != b.len() {
        return false;
    }
    let mut differing = a.iter().zip(&b).filter(|(a, b)| a != b);
    let (Some((a, b)), None) = (differing.next(), differing.next()) else {
        return false;
    };
    let letters: usize = a.len().max(b.len());
    if letters < MIN_TYPO_LETTERS - 1 || is_plural(a, b) || is_known_pair(a, b) {
        return false;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let start = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let end = a[start..]
        .iter()
        .rev()
        .zip(b[start..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (middle_a, middle_b) = (&a[start..a.len() - end], &b[start..b.len() - end]);
    // Versions and numbers are meant to differ.
    let differs_in_digit = middle_a.iter().chain(middle_b).all(char::is_ascii_digit);
    let is_swap = middle_a.len() == 2 && middle_a.iter().rev().eq(middle_b);
    let is_edit = middle_a.len() <= 1 && middle_b.len() <= 1;
    !differs_in_digit && (is_swap || is_edit)
}

fn is_plural(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() < b.len() { (a, b) } else { (b, a) };
    // Also verbs and file formats: `test` and `tests`, `doc` and `docx`, `code` and `coder`.
    long.strip_prefix(short)
        .is_some_and(|end| matches!(end, "s" | "x" | "r" | "d" | "y"))
}

fn is_known_pair(a: &str, b: &str) -> bool {
    KNOWN_PAIRS.contains(&(a, b)) || KNOWN_PAIRS.contains(&(b, a))
}

/// Returns the name without words that mean nothing, if it has some and others.
fn without_empty_words(name: &str) -> Option<String> {
    let words: Vec<&str> = name.split(['-', '_']).collect();
    let meant: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| !EMPTY_WORDS.contains(word))
        .collect();
    (meant.len() < words.len() && !meant.is_empty()).then(|| meant.join("-"))
}

/// Whether a word looks like random characters: letters and digits that take turns.
fn is_random(word: &str) -> bool {
    let kinds: Vec<bool> = word.bytes().map(|byte| byte.is_ascii_digit()).collect();
    let turns = kinds.windows(2).filter(|pair| pair[0] != pair[1]).count();
    word.len() >= 5 && turns >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(known: &[&str], name: &str) -> Vec<Likeness> {
        let index = NameIndex::new(known.iter().map(|name| name.parse().unwrap()));
        let found = index.find(&name.parse().unwrap());
        found.into_iter().map(|one| one.likeness).collect()
    }

    #[test]
    fn t15_look_alikes_are_found() {
        for (known, name, likeness) in [
            ("code-review", "code-reveiw", Likeness::Typo),
            ("code-review", "code-revew", Likeness::Typo),
            ("deployment", "deploynent", Likeness::Typo),
            ("acme/deployment", "deploymentt", Likeness::Typo),
            ("skill-creator", "ski11-creator", Likeness::Confusable),
            ("terraform", "terrafom", Likeness::Typo),
            ("terraform", "terraforrn", Likeness::Confusable),
            ("pdf", "p_df", Likeness::Confusable),
            ("pdf", "pdf-official", Likeness::Affix),
            ("pdf", "real-pdf-pro", Likeness::Affix),
            ("pdf", "pdf-a8f3k1", Likeness::RandomSuffix),
            ("skill-creator", "skill-cre4tor", Likeness::Typo),
            ("acme/deploy", "acrne/deploy", Likeness::Confusable),
            ("example/deploy", "exampel/deploy", Likeness::Typo),
        ] {
            assert_eq!(find(&[known], name), [likeness], "{known} {name}");
        }
    }

    #[test]
    fn t15_legitimate_pairs_stay_quiet() {
        for (known, name) in [
            ("pdf", "pdf"),
            ("acme/pdf", "other/pdf"),
            ("docx", "doc"),
            ("python2-style", "python3-style"),
            ("unit-test", "unit-tests"),
            ("react", "preact"),
            ("pdf-reader", "pdf-header"),
            ("sql", "sqs"),
            ("step-1", "step-2"),
            ("typescript", "typescript-es2022"),
            ("notes", "notes-2026"),
            ("pdf", "pdf-forms"),
            ("code-review", "code-preview-tool"),
            ("best-practices", "practices-guide"),
        ] {
            assert_eq!(find(&[known], name), [], "{known} {name}");
        }
    }
}
