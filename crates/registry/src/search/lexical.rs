//! An inverted index over the fields of skills, scored by BM25F.
//!
//! A word in the name of a skill counts more than one in its body, and one in a long text counts
//! less. Lengths are compared with fixed ones instead of the averages of the catalogue, so that a
//! skill that comes or goes changes the scores of others only through the rarity of words
//! ([`CorpusStatistics`]).

use std::collections::HashMap;

use foldhash::fast::FixedState;
use repertoire_core::SkillId;

use super::{document::SkillDocument, text::terms};

/// How fast further occurrences of a term count less.
const SATURATION: f32 = 1.2;
/// The weighted frequencies of terms are stored in steps of this.
const FREQUENCY_STEP: f32 = 1.0 / 256.0;

/// With more terms that no skill contains, and half of all, they are forgotten.
const MAX_UNUSED_TERMS: usize = 20_000;

/// A field: its weight, how much its length matters, and the length that is usual.
struct Field {
    weight: f32,
    length_share: f32,
    usual_length: f32,
}

const NAME: Field = Field {
    weight: 2.0,
    length_share: 0.5,
    usual_length: 3.0,
};
const DESCRIPTION: Field = Field {
    weight: 2.0,
    length_share: 0.75,
    usual_length: 16.0,
};
const EXAMPLES: Field = Field {
    weight: 1.0,
    length_share: 0.75,
    usual_length: 25.0,
};
const BODY: Field = Field {
    weight: 1.0,
    length_share: 0.75,
    usual_length: 100.0,
};

/// The number of skills, and of those that contain each term.
#[derive(Debug, Clone, Default)]
pub struct CorpusStatistics {
    documents: u32,
    containing: HashMap<String, u32>,
}

impl CorpusStatistics {
    /// The number of skills.
    pub(super) fn skills(&self) -> usize {
        self.documents as usize
    }

    fn is_known(&self, term: &str) -> bool {
        self.containing.get(term).is_some_and(|having| *having > 0)
    }

    /// The weight of a term: rare terms weigh more, unknown ones most.
    fn rarity(&self, term: &str) -> f32 {
        rarity(
            self.documents,
            self.containing.get(term).copied().unwrap_or(0),
        )
    }
}

#[allow(clippy::cast_precision_loss, reason = "numbers of skills are small")]
fn rarity(documents: u32, containing: u32) -> f32 {
    let (all, having) = (documents as f32, containing.min(documents) as f32);
    (1.0 + (all - having + 0.5) / (having + 0.5)).ln()
}

/// The skills that contain a term, by place, with its weighted frequency in each.
#[derive(Debug, Default)]
struct Postings {
    places: Vec<u32>,
    frequencies: Vec<u16>,
}

/// The index.
#[derive(Debug, Default)]
pub(super) struct LexicalIndex {
    /// The number of each term.
    numbers: HashMap<Box<str>, u32, FixedState>,
    postings: Vec<Postings>,
    /// The skill at each place; a place is used again after its skill was removed.
    skills: Vec<Option<SkillId>>,
    /// The terms of the skill at each place.
    terms: Vec<Box<[u32]>>,
    places: HashMap<SkillId, u32>,
    free: Vec<u32>,
    /// About how many terms no skill contains any more.
    unused_terms: usize,
}

impl LexicalIndex {
    /// Adds a skill, or replaces it.
    pub(super) fn insert(&mut self, document: &SkillDocument) {
        self.remove(document.id());
        let place = self.free.pop().unwrap_or_else(|| {
            self.skills.push(None);
            self.terms.push(Box::default());
            u32::try_from(self.skills.len() - 1).unwrap_or(u32::MAX)
        });
        let mut frequencies: HashMap<u32, f32, FixedState> = HashMap::default();
        let fields = [
            (NAME, document.name()),
            (DESCRIPTION, document.description()),
            (EXAMPLES, document.examples_text()),
            (BODY, document.body()),
        ];
        for (field, text) in fields {
            let numbers: Vec<u32> = terms(text).map(|term| self.number_of(term)).collect();
            #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
            let length = numbers.len() as f32 / field.usual_length;
            let norm = 1.0 - field.length_share + field.length_share * length;
            for number in numbers {
                *frequencies.entry(number).or_default() += field.weight / norm;
            }
        }
        let mut numbers: Vec<u32> = frequencies.keys().copied().collect();
        numbers.sort_unstable();
        for (number, frequency) in frequencies {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a conversion to an integer stays in its range"
            )]
            let frequency = (frequency / FREQUENCY_STEP).round().max(1.0) as u16;
            let postings = &mut self.postings[number as usize];
            let at = postings.places.partition_point(|other| *other < place);
            postings.places.insert(at, place);
            postings.frequencies.insert(at, frequency);
        }
        self.terms[place as usize] = numbers.into();
        self.skills[place as usize] = Some(document.id().clone());
        self.places.insert(document.id().clone(), place);
    }

    pub(super) fn remove(&mut self, id: &SkillId) {
        let Some(place) = self.places.remove(id) else {
            return;
        };
        for number in std::mem::take(&mut self.terms[place as usize]) {
            let postings = &mut self.postings[number as usize];
            if let Ok(at) = postings.places.binary_search(&place) {
                postings.places.remove(at);
                postings.frequencies.remove(at);
                self.unused_terms += usize::from(postings.places.is_empty());
            }
        }
        self.skills[place as usize] = None;
        self.free.push(place);
        if self.unused_terms > MAX_UNUSED_TERMS.max(self.postings.len() / 2) {
            self.forget_unused_terms();
        }
    }

    /// Numbers the terms anew, without those that no skill contains any more.
    fn forget_unused_terms(&mut self) {
        let mut renumbered: Vec<Option<u32>> = Vec::with_capacity(self.postings.len());
        let mut kept = Vec::new();
        for postings in std::mem::take(&mut self.postings) {
            let next = u32::try_from(kept.len()).unwrap_or(u32::MAX);
            let is_used = !postings.places.is_empty();
            renumbered.push(is_used.then_some(next));
            kept.extend(is_used.then_some(postings));
        }
        self.postings = kept;
        let new_number = |number: u32| renumbered.get(number as usize).copied().flatten();
        self.numbers.retain(|_, number| {
            let new = new_number(*number);
            *number = new.unwrap_or(0);
            new.is_some()
        });
        self.numbers.shrink_to_fit();
        for terms in &mut self.terms {
            for number in terms.iter_mut() {
                *number = new_number(*number).unwrap_or(0);
            }
        }
        self.unused_terms = 0;
    }

    fn number_of(&mut self, term: String) -> u32 {
        let next = u32::try_from(self.postings.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(term.into()).or_insert(next);
        if number == next {
            self.postings.push(Postings::default());
        }
        number
    }

    fn postings_of(&self, term: &str) -> Option<&Postings> {
        let number = self.numbers.get(term)?;
        self.postings.get(*number as usize)
    }

    /// The statistics of these terms, of which scores depend, among the skills that a caller may
    /// see.
    pub(super) fn statistics(
        &self,
        terms: &[String],
        is_visible: Option<&(dyn Fn(&SkillId) -> bool + Sync)>,
    ) -> CorpusStatistics {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let visible: Option<Vec<bool>> = is_visible.map(|is_visible| {
            let skills = self.skills.iter();
            skills
                .map(|skill| skill.as_ref().is_some_and(is_visible))
                .collect()
        });
        let containing = terms.iter().map(|term| {
            let places = self.postings_of(term).map_or(&[][..], |all| &all.places);
            let having = match &visible {
                None => places.len(),
                Some(visible) => places.iter().filter(|at| visible[**at as usize]).count(),
            };
            (term.clone(), number(having))
        });
        CorpusStatistics {
            containing: containing.collect(),
            documents: number(match &visible {
                None => self.places.len(),
                Some(visible) => visible.iter().filter(|one| **one).count(),
            }),
        }
    }

    /// Scores every skill: the share of the message's terms that it covers, from 0 to 1.
    pub(super) fn score(&self, terms: &[String], statistics: &CorpusStatistics) -> LexicalScores {
        let mut shares = vec![0.0; self.skills.len()];
        let ideal: f32 = terms.iter().map(|term| statistics.rarity(term)).sum();
        for term in terms {
            let Some(postings) = self.postings_of(term) else {
                continue;
            };
            let weight = statistics.rarity(term) / ideal;
            for (place, frequency) in postings.places.iter().zip(&postings.frequencies) {
                let frequency = f32::from(*frequency) * FREQUENCY_STEP;
                shares[*place as usize] += weight * frequency / (frequency + SATURATION);
            }
        }
        let unknown = terms.iter().filter(|term| !statistics.is_known(term));
        #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
        let unknown = match terms.len() {
            0 => 1.0,
            all => unknown.count() as f32 / all as f32,
        };
        LexicalScores { shares, unknown }
    }

    /// The share of one skill.
    pub(super) fn share_of(&self, scores: &LexicalScores, id: &SkillId) -> f32 {
        let place = self.places.get(id);
        place.map_or(0.0, |place| scores.shares[*place as usize])
    }

    /// The skills with the largest shares above 0, best first, of those wanted.
    pub(super) fn best<'a>(
        &'a self,
        scores: &LexicalScores,
        limit: usize,
        is_wanted: impl Fn(&SkillId) -> bool,
    ) -> Vec<(&'a SkillId, f32)> {
        let shares = scores.shares.iter().zip(0_u32..);
        let mut all: Vec<(f32, u32)> = shares
            .filter(|(share, _)| **share > 0.0)
            .map(|(share, place)| (*share, place))
            .collect();
        let skill = |place: u32| self.skills[place as usize].as_ref();
        let best = take_best(&mut all, limit, |place| {
            skill(place).is_some_and(&is_wanted)
        });
        best.into_iter()
            .filter_map(|(share, place)| Some((skill(place)?, share)))
            .collect()
    }

    /// Frees memory that was reserved for growth, after many skills were added.
    pub(super) fn shrink_to_fit(&mut self) {
        for postings in &mut self.postings {
            postings.places.shrink_to_fit();
            postings.frequencies.shrink_to_fit();
        }
        self.postings.shrink_to_fit();
        self.numbers.shrink_to_fit();
    }
}

/// Takes the places with the largest scores, best first, of those wanted; few are asked. Scores are
/// compared by number and place alone, because comparing ids would take most of the time.
pub(super) fn take_best(
    all: &mut [(f32, u32)],
    limit: usize,
    is_wanted: impl Fn(u32) -> bool,
) -> Vec<(f32, u32)> {
    let order = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    let (mut found, mut rest, mut size) = (Vec::new(), all, limit.clamp(8, 1 << 20) * 2);
    while found.len() < limit && !rest.is_empty() {
        if size < rest.len() {
            rest.select_nth_unstable_by(size - 1, order);
        }
        let (head, tail) = rest.split_at_mut(size.min(rest.len()));
        head.sort_unstable_by(order);
        let missing = limit - found.len();
        let wanted = head.iter().filter(|(_, place)| is_wanted(*place));
        found.extend(wanted.take(missing));
        (rest, size) = (tail, size * 4);
    }
    found
}

/// The score of every skill for one message.
#[derive(Debug)]
pub(super) struct LexicalScores {
    shares: Vec<f32>,
    /// The share of terms that no skill contains.
    pub(super) unknown: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_wanted_elements_come_first_however_few_there_are() {
        let numbers = || -> Vec<(f32, u32)> {
            let places = (0..1_000_u16).map(|n| n * 7 % 1_000);
            places.map(|n| (-f32::from(n), u32::from(n))).collect()
        };
        let best = |limit, is_wanted: fn(u32) -> bool| -> Vec<u32> {
            let found = take_best(&mut numbers(), limit, is_wanted).into_iter();
            found.map(|(_, place)| place).collect()
        };
        assert_eq!(best(3, |n| n % 300 == 299), [299, 599, 899]);
        assert_eq!(best(2, |_| true), [0, 1]);
        assert_eq!(best(5, |n| n == 998), [998]);
        assert!(best(0, |_| true).is_empty());
    }
}
