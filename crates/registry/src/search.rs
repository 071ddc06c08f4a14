//! Finding skills for a message, without asking a model.
//!
//! Names, descriptions, hints (tags, intent patterns, trigger phrases) and the beginnings of
//! documents are indexed when a skill enters the catalogue; a query loads nothing. A message that
//! names a skill, or says one of its phrases, finds it first. For all others the score is the share
//! of what the message says that the skill speaks of, so that "nothing fits" is an answer.
//!
//! With an [`Embedder`] it also counts what the message means: both are added, and whether anything
//! fits is told by the meaning. A skill whose vector is not there yet is found by its words.
//!
//! Most skills are in one index that is built at once. What changed since is in small ones: the
//! newest is built anew with each change, and eight of a size become one. All are asked with the
//! statistics of all, and what an older one has of a skill that is in a newer one does not count.

mod meaning;
mod part;
mod words;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use repertoire_core::{SkillId, frontmatter};
use serde::Serialize;

pub use self::meaning::Embedder;
use self::{
    meaning::Meaning,
    part::{Part, Parts},
    words::{grams, plain},
};
use crate::{
    catalogue::{Entry, Snapshot},
    error::{Error, Result},
    origin::Trusted,
    registry::Registry,
};

/// How much of a document is indexed.
const BODY_CHARS: usize = 4_000;
/// How many changes the newest index has.
const NEWEST: usize = 16;
/// How many indexes of a size become one.
const SAME_SIZE: usize = 8;
/// From how many changes on everything is built anew, if that is not more than a part of it.
const CHANGES: usize = 512;
/// What a message that says a phrase of a skill is worth.
const PHRASE: f64 = 0.95;
/// A skill that speaks of a smaller share of what a message says does not fit.
pub const THRESHOLD: f64 = 0.16;
/// A skill that is less like what a message means, as the cosine of their vectors, does not fit.
pub const MEANING_THRESHOLD: f64 = 0.28;
/// How much the share of what a message says counts besides what it means.
const WORDS: f64 = 0.7;
/// How many skills found by their words are looked at when the meaning counts too.
const CANDIDATES: usize = 100;

/// A skill that may fit a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// The skill.
    pub id: SkillId,
    /// How well it fits, from 0 to 1.
    pub score: f64,
    /// Why it was found.
    pub why: Why,
    /// Whether it fits, or is only the least unlike.
    pub fits: bool,
    /// How alike the message and the skill are in meaning, where both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

/// Why a skill was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The message names it.
    Named,
    /// The message says this phrase of it.
    Phrase(String),
    /// The message speaks of the same things.
    Words,
    /// The message means something like it.
    Meaning,
}

/// What is indexed of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    id: SkillId,
    name: String,
    description: String,
    hints: String,
    body: String,
    phrases: Vec<String>,
    trusted: bool,
}

impl Document {
    fn of(registry: &Registry, entry: &Entry) -> Self {
        let head = &entry.head;
        let mut hints = Vec::new();
        let mut phrases = Vec::new();
        if let Some(package) = &head.package {
            hints.extend(package.tags.iter().cloned());
            hints.extend(package.intent_patterns.iter().cloned());
            hints.extend(package.trigger_phrases.iter().cloned());
            phrases.clone_from(&package.trigger_phrases);
        }
        // A document that cannot be read now is found by the rest.
        let body = if entry.is_remote() || entry.is_on_bus() {
            String::new()
        } else {
            let bytes = registry.body(entry).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            frontmatter::body(&text).chars().take(BODY_CHARS).collect()
        };
        Self {
            id: entry.id.clone(),
            name: format!(
                "{} {}",
                entry.id.as_str().replace(['/', '-', '_'], " "),
                head.title.as_deref().unwrap_or_default()
            ),
            description: head.description.as_deref().unwrap_or_default().to_owned(),
            hints: hints.join(" . "),
            body,
            phrases,
            trusted: entry.trusted == Trusted::Yes,
        }
    }

    /// The words by which a message can call it.
    fn names(&self) -> impl Iterator<Item = String> {
        let whole = plain(self.id.as_str()).join(" ");
        let last = plain(self.id.name()).join(" ");
        let both = if whole == last {
            vec![whole]
        } else {
            vec![whole, last]
        };
        both.into_iter().filter(|name| !name.is_empty())
    }
}

/// A part, and what it was made of where it will be needed again.
#[derive(Debug)]
struct Indexed {
    number: u64,
    part: Part,
    documents: Vec<Arc<Document>>,
}

/// Finds skills for messages.
#[derive(Debug)]
pub struct Finder {
    /// The oldest and largest first, the newest last.
    parts: Vec<Indexed>,
    /// Which part has what a skill is now, if it is not the first; none has what is gone.
    moved: HashMap<SkillId, Option<u64>>,
    /// The number of the next part.
    next: u64,
    /// Everything there is, by id, without its texts.
    calls: HashMap<SkillId, (Vec<String>, Vec<String>)>,
    names: HashMap<String, Vec<SkillId>>,
    phrases: HashMap<String, Vec<SkillId>>,
    meaning: Option<Meaning>,
}

impl Finder {
    /// Indexes every visible skill that a user could run or read, by its words.
    pub fn new(registry: &Registry, snapshot: &Snapshot) -> Result<Self> {
        Self::with(registry, snapshot, None)
    }

    /// The same, also by what skills mean. Vectors that are not kept yet are [`Self::missing`].
    pub fn with(
        registry: &Registry,
        snapshot: &Snapshot,
        embedder: Option<Arc<Embedder>>,
    ) -> Result<Self> {
        let documents = snapshot.skills().map(|entry| Document::of(registry, entry));
        let documents: Vec<Document> = documents.collect();
        let meaning = embedder.map(|embedder| Meaning::new(embedder, documents.iter()));
        let mut finder = Self {
            meaning: meaning.transpose()?,
            parts: vec![Indexed {
                number: 0,
                part: Part::of(documents.iter())?,
                documents: Vec::new(),
            }],
            moved: HashMap::new(),
            next: 1,
            calls: HashMap::new(),
            names: HashMap::new(),
            phrases: HashMap::new(),
        };
        for document in &documents {
            finder.call(document);
        }
        Ok(finder)
    }

    /// How many skills can be found.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is nothing to find.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Brings one skill up to date, whatever became of it. The next query sees it.
    pub fn update(&mut self, registry: &Registry, snapshot: &Snapshot, id: &SkillId) -> Result<()> {
        self.forget(id);
        if let Some(entry) = snapshot.get(id) {
            let document = Document::of(registry, entry);
            self.call(&document);
            if let Some(meaning) = &mut self.meaning {
                meaning.update(&document)?;
            }
            self.append(document)?;
        } else {
            self.moved.insert(id.clone(), None);
            if let Some(meaning) = &mut self.meaning {
                meaning.remove(id);
            }
        }
        if self.moved.len() > CHANGES.max(self.len() / 4) {
            self.rebuild(registry, snapshot)?;
        }
        Ok(())
    }

    /// Indexes everything anew.
    pub fn rebuild(&mut self, registry: &Registry, snapshot: &Snapshot) -> Result<()> {
        let embedder = self.meaning.as_ref().map(|known| known.embedder.clone());
        *self = Self::with(registry, snapshot, embedder)?;
        Ok(())
    }

    /// Puts a skill into the newest part, and parts together when there are many.
    fn append(&mut self, document: Document) -> Result<()> {
        let mut documents = vec![Arc::new(document)];
        if self.parts.len() > 1
            && let Some(newest) = self.parts.pop_if(|newest| newest.documents.len() < NEWEST)
        {
            documents.splice(0..0, self.still(&newest));
        }
        self.push(documents)?;
        loop {
            let of_a_size = self.parts.iter().skip(1).rev();
            let full = of_a_size.take_while(|part| {
                let newest = self.parts.last().map_or(0, |last| last.documents.len());
                newest >= NEWEST && part.documents.len() < newest * 2
            });
            if full.count() < SAME_SIZE {
                return Ok(());
            }
            let first = self.parts.len() - SAME_SIZE;
            let together = self.parts.split_off(first);
            let documents = together.iter().flat_map(|part| self.still(part));
            self.push(documents.collect())?;
        }
    }

    /// What of a part is still so: a skill may have changed since, or be gone.
    fn still(&self, part: &Indexed) -> Vec<Arc<Document>> {
        let is_now = |one: &&Arc<Document>| self.moved.get(&one.id) == Some(&Some(part.number));
        part.documents.iter().filter(is_now).cloned().collect()
    }

    fn push(&mut self, mut documents: Vec<Arc<Document>>) -> Result<()> {
        // Of one that changed twice only the last counts.
        let mut seen = HashSet::new();
        documents.reverse();
        documents.retain(|one| seen.insert(one.id.clone()));
        let number = self.next;
        self.next += 1;
        for document in &documents {
            self.moved.insert(document.id.clone(), Some(number));
        }
        let part = Part::of(documents.iter().map(|document| &**document))?;
        self.parts.push(Indexed {
            number,
            part,
            documents,
        });
        Ok(())
    }

    /// Notes by which words a skill is called. A stranger's is found by what it speaks of: what it
    /// calls itself must not come before everything else.
    fn call(&mut self, document: &Document) {
        let (mut names, mut phrases) = (Vec::new(), Vec::new());
        if document.trusted {
            names.extend(document.names());
            let said = document.phrases.iter();
            phrases.extend(said.map(|phrase| plain(phrase).join(" ")));
            phrases.retain(|phrase: &String| !phrase.is_empty());
        }
        for name in &names {
            self.names
                .entry(name.clone())
                .or_default()
                .push(document.id.clone());
        }
        for phrase in &phrases {
            self.phrases
                .entry(phrase.clone())
                .or_default()
                .push(document.id.clone());
        }
        self.calls.insert(document.id.clone(), (names, phrases));
    }

    fn forget(&mut self, id: &SkillId) {
        let Some((names, phrases)) = self.calls.remove(id) else {
            return;
        };
        for (map, words) in [(&mut self.names, names), (&mut self.phrases, phrases)] {
            for word in words {
                if let Some(ids) = map.get_mut(&word) {
                    ids.retain(|known| known != id);
                    if ids.is_empty() {
                        map.remove(&word);
                    }
                }
            }
        }
    }

    /// The skills that fit a message best, best first; those that do not fit are there too.
    pub fn find(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        self.look(message, limit, self.meaning.as_ref())
    }

    /// The same by words alone.
    pub fn find_by_words(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        self.look(message, limit, None)
    }

    fn look(
        &self,
        message: &str,
        limit: usize,
        meaning: Option<&Meaning>,
    ) -> Result<Vec<Recommendation>> {
        let mut found: HashMap<SkillId, Recommendation> = HashMap::new();
        for one in self.spoken_of(message, limit, meaning)? {
            found.insert(one.id.clone(), one);
        }
        for (id, score, why) in self.called(message) {
            let known = found.get(id);
            if known.is_none_or(|known| known.score < score) {
                let one = Recommendation {
                    cosine: known.and_then(|known| known.cosine),
                    id: id.clone(),
                    score,
                    why,
                    fits: true,
                };
                found.insert(id.clone(), one);
            }
        }
        let mut all: Vec<Recommendation> = found.into_values().collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.id.cmp(&b.id)));
        all.truncate(limit);
        for one in &mut all {
            one.score = one.score.min(1.0);
        }
        Ok(all)
    }

    /// The skills a message names, or whose phrases it says.
    fn called(&self, message: &str) -> Vec<(&SkillId, f64, Why)> {
        let mut called = Vec::new();
        for gram in grams(&plain(message)) {
            // Of two names within each other the longer one is meant.
            #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
            let length = gram.split(' ').count().min(50) as f64;
            for id in self.names.get(&gram).into_iter().flatten() {
                called.push((id, 1.0 + length / 1000.0, Why::Named));
            }
            for id in self.phrases.get(&gram).into_iter().flatten() {
                called.push((id, PHRASE, Why::Phrase(gram.clone())));
            }
        }
        called
    }

    /// The skills that speak of what a message says, or of what it means.
    fn spoken_of(
        &self,
        message: &str,
        limit: usize,
        meaning: Option<&Meaning>,
    ) -> Result<Vec<Recommendation>> {
        let parts = Parts(self.parts.iter().map(|one| &one.part).collect());
        let most = match meaning {
            None => limit,
            Some(_) => limit.max(CANDIDATES),
        };
        let words = parts.find(message, most, |at, id| match self.moved.get(id) {
            None => at == 0,
            Some(number) => *number == Some(self.parts[at].number),
        })?;
        let Some(meaning) = meaning.filter(|_| limit > 0) else {
            let all = words.into_iter().map(|(id, score)| Recommendation {
                id,
                score,
                why: Why::Words,
                fits: score >= THRESHOLD,
                cosine: None,
            });
            return Ok(all.collect());
        };
        let near = meaning.near(message, words.iter().map(|(id, _)| id));
        let shares: HashMap<SkillId, f64> = words.into_iter().collect();
        let ids: HashSet<&SkillId> = near.keys().chain(shares.keys()).collect();
        let all = ids.into_iter().map(|id| {
            let share = shares.get(id).copied().unwrap_or(0.0);
            let cosine = near.get(id).copied();
            let like = cosine.unwrap_or(share).max(0.0);
            // The best there could be is below a name and a phrase.
            let score = (WORDS * share + like) / (WORDS + 1.0) * 0.9;
            let (why, fits) = match cosine {
                Some(cosine) => (Why::Meaning, cosine >= MEANING_THRESHOLD),
                None => (Why::Words, share >= THRESHOLD),
            };
            Recommendation {
                id: id.clone(),
                score,
                why,
                fits,
                cosine,
            }
        });
        Ok(all.collect())
    }

    /// Whether what skills mean counts.
    pub fn understands(&self) -> bool {
        self.meaning.is_some()
    }

    /// How many skills have no vector yet.
    pub fn wanting(&self) -> usize {
        self.meaning.as_ref().map_or(0, Meaning::wanting)
    }

    /// Some of the skills that have no vector yet.
    pub fn missing(&self, most: usize) -> Vec<SkillId> {
        self.meaning
            .as_ref()
            .map_or_else(Vec::new, |meaning| meaning.missing(most))
    }

    /// What vectors are computed from; whoever computes them need not hold the finder meanwhile.
    pub fn lesson(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        most: usize,
    ) -> Option<Lesson> {
        let meaning = self.meaning.as_mut()?;
        let mut documents = Vec::new();
        for id in meaning.missing(most) {
            match snapshot.get(&id) {
                Some(entry) => documents.push(Document::of(registry, entry)),
                // Its removal is about to be told.
                None => meaning.remove(&id),
            }
        }
        for document in &documents {
            // It may have changed since it was indexed; what is read now is what counts.
            meaning.update(document).ok()?;
        }
        (!documents.is_empty()).then(|| Lesson {
            embedder: meaning.embedder.clone(),
            documents,
        })
    }

    /// Takes what was computed; says how many skills it was still right for.
    pub fn learn(&mut self, learned: &Learned) -> usize {
        let Some(meaning) = &mut self.meaning else {
            return 0;
        };
        let learned = learned.0.iter();
        learned
            .filter(|(document, vector)| meaning.learn(document, vector))
            .count()
    }

    /// Brings many skills up to date, all at once if that is less work.
    pub fn update_all(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        ids: &BTreeSet<SkillId>,
    ) -> Result<()> {
        if self.moved.len() + ids.len() > CHANGES.max(self.len() / 4) {
            return self.rebuild(registry, snapshot);
        }
        ids.iter()
            .try_for_each(|id| self.update(registry, snapshot, id))
    }
}

/// Skills whose vectors are to be computed.
#[derive(Debug)]
pub struct Lesson {
    embedder: Arc<Embedder>,
    documents: Vec<Document>,
}

/// Vectors of skills.
#[derive(Debug)]
pub struct Learned(Vec<(Document, repertoire_embed::Vector)>);

impl Lesson {
    /// Computes the vectors, which takes a while, and keeps them.
    pub fn read(self) -> Result<Learned> {
        let vectors = self.embedder.read(&self.documents)?;
        Ok(Learned(self.documents.into_iter().zip(vectors).collect()))
    }
}

fn failed(error: &tantivy::TantivyError) -> Error {
    Error::Conflict(format!("the search index failed: {error}"))
}
