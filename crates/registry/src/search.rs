//! Finding skills for a message, without asking a model.
//!
//! Names, descriptions, hints (tags, intent patterns, trigger phrases) and the beginnings of
//! documents are indexed when a skill enters the catalogue; a query loads nothing. A message that
//! names a skill, or says one of its phrases, finds it first. For all others the score is the share
//! of what the message says that the skill speaks of, so that "nothing fits" is an answer.
//!
//! Most skills are in one index that is built at once; what changed since is in a small one that is
//! built anew with each change. Both are asked with the statistics of both.

mod part;
mod words;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use repertoire_core::{SkillId, frontmatter};
use serde::Serialize;

use self::{
    part::{Both, Part},
    words::{grams, plain},
};
use crate::{
    catalogue::{Entry, Snapshot},
    error::{Error, Result},
    registry::Registry,
};

/// How much of a document is indexed.
const BODY_CHARS: usize = 4_000;
/// From how many changes on everything is built anew.
const CHANGES: usize = 512;
/// What a message that says a phrase of a skill is worth.
const PHRASE: f64 = 0.95;
/// Below this, nothing fits.
pub const THRESHOLD: f64 = 0.16;

/// A skill that may fit a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// The skill.
    pub id: SkillId,
    /// How well it fits, from 0 to 1.
    pub score: f64,
    /// Why it was found.
    pub why: Why,
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

/// Finds skills for messages.
#[derive(Debug)]
pub struct Finder {
    main: Part,
    /// What changed since the main part was built.
    recent: Part,
    changed: BTreeMap<SkillId, Arc<Document>>,
    /// What of the main part is no longer so.
    replaced: HashSet<SkillId>,
    /// Everything there is, by id, without its texts.
    calls: HashMap<SkillId, (Vec<String>, Vec<String>)>,
    names: HashMap<String, Vec<SkillId>>,
    phrases: HashMap<String, Vec<SkillId>>,
}

impl Finder {
    /// Indexes every visible skill that a user could run or read.
    pub fn new(registry: &Registry, snapshot: &Snapshot) -> Result<Self> {
        let documents = snapshot.skills().map(|entry| Document::of(registry, entry));
        let mut finder = Self {
            main: Part::empty()?,
            recent: Part::empty()?,
            changed: BTreeMap::new(),
            replaced: HashSet::new(),
            calls: HashMap::new(),
            names: HashMap::new(),
            phrases: HashMap::new(),
        };
        let documents: Vec<Document> = documents.collect();
        for document in &documents {
            finder.call(document);
        }
        finder.main = Part::of(documents.iter())?;
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
        self.replaced.insert(id.clone());
        match snapshot.get(id) {
            Some(entry) => {
                let document = Document::of(registry, entry);
                self.call(&document);
                self.changed.insert(id.clone(), Arc::new(document));
            }
            None => {
                self.changed.remove(id);
            }
        }
        if self.replaced.len() > CHANGES {
            *self = Self::new(registry, snapshot)?;
            return Ok(());
        }
        self.recent = Part::of(self.changed.values().map(|document| &**document))?;
        Ok(())
    }

    /// Notes by which words a skill is called.
    fn call(&mut self, document: &Document) {
        let names: Vec<String> = document.names().collect();
        let phrases = document
            .phrases
            .iter()
            .map(|phrase| plain(phrase).join(" "));
        let phrases: Vec<String> = phrases.filter(|phrase| !phrase.is_empty()).collect();
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

    /// The skills that fit a message best, best first; those below the threshold are there too.
    pub fn find(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        let mut found: HashMap<SkillId, Recommendation> = HashMap::new();
        let mut put = |id: &SkillId, score: f64, why: Why| {
            let better = found.get(id).is_none_or(|known| known.score < score);
            if better {
                let id = id.clone();
                found.insert(id.clone(), Recommendation { id, score, why });
            }
        };
        let spoken = plain(message);
        for gram in grams(&spoken) {
            // Of two names within each other the longer one is meant.
            #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
            let length = gram.split(' ').count().min(50) as f64;
            for id in self.names.get(&gram).into_iter().flatten() {
                put(id, 1.0 + length / 1000.0, Why::Named);
            }
            for id in self.phrases.get(&gram).into_iter().flatten() {
                put(id, PHRASE, Why::Phrase(gram.clone()));
            }
        }
        let both = Both {
            main: &self.main,
            recent: &self.recent,
        };
        for (id, score) in both.find(
            message,
            limit + self.replaced.len().min(limit),
            &self.replaced,
        )? {
            put(&id, score, Why::Words);
        }
        let mut all: Vec<Recommendation> = found.into_values().collect();
        all.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.id.cmp(&b.id)));
        all.truncate(limit);
        for one in &mut all {
            one.score = one.score.min(1.0);
        }
        Ok(all)
    }
}

fn failed(error: &tantivy::TantivyError) -> Error {
    Error::Conflict(format!("the search index failed: {error}"))
}
