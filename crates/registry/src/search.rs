//! Search for skills that fit a message, without calling a model.
//!
//! Names, descriptions, hints (tags, intent patterns, trigger phrases) and the beginnings of
//! documents are indexed when a skill enters the catalogue; a query loads nothing. A message that
//! contains the name of a skill, or one of its phrases, ranks it first. For all others the score
//! is the share of the message's terms that the skill covers, so that a result can be "no match".
//!
//! With a sentence encoder ([`SentenceEncoder`]) the similarity of the embeddings is added to the
//! lexical score, and the similarity alone decides whether a skill fits. A skill without an
//! embedding is ranked lexically.
//!
//! Most skills are in one segment that is built at once. Later changes are in small segments: the
//! newest one is rebuilt with each change, and eight of a size are merged. All are searched with
//! the statistics of all, and only the newest version of a skill counts.

mod embeddings;
mod lexical;
mod segment;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use repertoire_core::{SkillId, frontmatter};
use serde::Serialize;

pub use self::embeddings::SentenceEncoder;
use self::{
    embeddings::EmbeddingIndex,
    lexical::{lowercase_words, word_runs},
    segment::{Segment, SegmentSet},
};
use crate::{
    catalogue::{SkillEntry, Snapshot},
    error::{Error, Result},
    origin::Trusted,
    registry::Registry,
};

/// How many characters of a document are indexed.
const BODY_CHARS: usize = 4_000;
/// The most documents in the newest segment.
const NEWEST_SEGMENT_DOCUMENTS: usize = 16;
/// How many segments of similar size are merged into one.
const SEGMENTS_PER_MERGE: usize = 8;
/// The number of changes that triggers a full rebuild, unless the index is much larger.
const REBUILD_CHANGES: usize = 512;
/// The score of a message that contains a phrase of the skill.
const PHRASE_SCORE: f64 = 0.95;
/// A skill that covers a smaller share of the message's terms does not fit.
pub const LEXICAL_THRESHOLD: f64 = 0.16;
/// A skill whose embedding has a smaller cosine with that of the message does not fit.
pub const COSINE_THRESHOLD: f64 = 0.28;
/// The weight of the lexical score relative to the cosine.
const LEXICAL_WEIGHT: f64 = 0.7;
/// How many lexical matches are considered when embeddings are used too.
const LEXICAL_CANDIDATES: usize = 100;

/// A skill that may fit a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommendation {
    /// The skill.
    pub id: SkillId,
    /// How well it fits, from 0 to 1.
    pub score: f64,
    /// Why it matched.
    pub why: MatchReason,
    /// Whether it fits, or is only the closest of the skills that do not.
    pub fits: bool,
    /// The cosine of the embeddings of message and skill, if both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
}

/// Why a skill matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchReason {
    /// The message contains its name.
    Named,
    /// The message contains this phrase of the skill.
    Phrase(String),
    /// The message and the skill share terms.
    Words,
    /// The embeddings of message and skill are similar.
    Meaning,
}

/// The indexed texts of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillDocument {
    id: SkillId,
    name: String,
    description: String,
    hints: String,
    body: String,
    phrases: Vec<String>,
    trusted: bool,
}

impl SkillDocument {
    fn from_entry(registry: &Registry, entry: &SkillEntry) -> Self {
        let head = &entry.metadata;
        let mut hints = Vec::new();
        let mut phrases = Vec::new();
        if let Some(package) = &head.package {
            hints.extend(package.tags.iter().cloned());
            hints.extend(package.intent_patterns.iter().cloned());
            hints.extend(package.trigger_phrases.iter().cloned());
            phrases.clone_from(&package.trigger_phrases);
        }
        // If the document cannot be read now, the skill is found by its other fields.
        let body = if entry.is_remote() || entry.is_on_bus() {
            String::new()
        } else {
            let bytes = registry.read_body(entry).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            frontmatter::strip_frontmatter(&text)
                .chars()
                .take(BODY_CHARS)
                .collect()
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

    /// Returns the names by which a message can refer to it.
    fn name_phrases(&self) -> impl Iterator<Item = String> {
        let whole = lowercase_words(self.id.as_str()).join(" ");
        let last = lowercase_words(self.id.name()).join(" ");
        let both = if whole == last {
            vec![whole]
        } else {
            vec![whole, last]
        };
        both.into_iter().filter(|name| !name.is_empty())
    }
}

/// A segment with the documents it was built from, which are needed when it is merged.
#[derive(Debug)]
struct IndexedSegment {
    number: u64,
    segment: Segment,
    documents: Vec<Arc<SkillDocument>>,
}

/// The skills that a search is about.
type WantedSkills<'a> = dyn Fn(&SkillId) -> bool + Sync + 'a;

/// A search index of skills.
#[derive(Debug)]
pub struct SkillIndex {
    /// The oldest and largest first, the newest last.
    segments: Vec<IndexedSegment>,
    /// The segment with the current version of a changed skill; `None` if it was removed.
    segment_of: HashMap<SkillId, Option<u64>>,
    /// The number of the next segment.
    next_number: u64,
    /// The names and phrases of every skill, by id.
    lookup_terms: HashMap<SkillId, (Vec<String>, Vec<String>)>,
    ids_by_name: HashMap<String, Vec<SkillId>>,
    ids_by_phrase: HashMap<String, Vec<SkillId>>,
    embeddings: Option<EmbeddingIndex>,
}

impl SkillIndex {
    /// Indexes every visible skill lexically.
    pub fn new(registry: &Registry, snapshot: &Snapshot) -> Result<Self> {
        Self::with_encoder(registry, snapshot, None)
    }

    /// The same, also with embeddings. Skills without a stored one are [`Self::pending_skills`].
    pub fn with_encoder(
        registry: &Registry,
        snapshot: &Snapshot,
        embedder: Option<Arc<SentenceEncoder>>,
    ) -> Result<Self> {
        let documents = snapshot
            .skills()
            .map(|entry| SkillDocument::from_entry(registry, entry));
        let documents: Vec<SkillDocument> = documents.collect();
        let meaning = embedder.map(|embedder| EmbeddingIndex::new(embedder, documents.iter()));
        let mut finder = Self {
            embeddings: meaning.transpose()?,
            segments: vec![IndexedSegment {
                number: 0,
                segment: Segment::from_documents(documents.iter())?,
                documents: Vec::new(),
            }],
            segment_of: HashMap::new(),
            next_number: 1,
            lookup_terms: HashMap::new(),
            ids_by_name: HashMap::new(),
            ids_by_phrase: HashMap::new(),
        };
        for document in &documents {
            finder.insert_terms(document);
        }
        Ok(finder)
    }

    /// Returns the number of indexed skills.
    pub fn len(&self) -> usize {
        self.lookup_terms.len()
    }

    /// Whether no skill is indexed.
    pub fn is_empty(&self) -> bool {
        self.lookup_terms.is_empty()
    }

    /// Adds, updates or removes one skill. The next query sees the change.
    pub fn update_skill(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        id: &SkillId,
    ) -> Result<()> {
        self.remove_terms(id);
        if let Some(entry) = snapshot.get(id) {
            let document = SkillDocument::from_entry(registry, entry);
            self.insert_terms(&document);
            if let Some(meaning) = &mut self.embeddings {
                meaning.update_document(&document)?;
            }
            self.append_document(document)?;
        } else {
            self.segment_of.insert(id.clone(), None);
            if let Some(meaning) = &mut self.embeddings {
                meaning.remove_skill(id);
            }
        }
        if self.segment_of.len() > REBUILD_CHANGES.max(self.len() / 4) {
            self.rebuild_index(registry, snapshot)?;
        }
        Ok(())
    }

    /// Rebuilds the whole index.
    pub fn rebuild_index(&mut self, registry: &Registry, snapshot: &Snapshot) -> Result<()> {
        let embedder = self.embeddings.as_ref().map(|known| known.encoder.clone());
        *self = Self::with_encoder(registry, snapshot, embedder)?;
        Ok(())
    }

    /// Adds a document to the newest segment, and merges segments when there are many.
    fn append_document(&mut self, document: SkillDocument) -> Result<()> {
        let mut documents = vec![Arc::new(document)];
        if self.segments.len() > 1
            && let Some(newest) = self
                .segments
                .pop_if(|newest| newest.documents.len() < NEWEST_SEGMENT_DOCUMENTS)
        {
            documents.splice(0..0, self.live_documents(&newest));
        }
        self.push_segment(documents)?;
        loop {
            let of_a_size = self.segments.iter().skip(1).rev();
            let full = of_a_size.take_while(|part| {
                let newest = self.segments.last().map_or(0, |last| last.documents.len());
                newest >= NEWEST_SEGMENT_DOCUMENTS && part.documents.len() < newest * 2
            });
            if full.count() < SEGMENTS_PER_MERGE {
                return Ok(());
            }
            let first = self.segments.len() - SEGMENTS_PER_MERGE;
            let together = self.segments.split_off(first);
            let documents = together.iter().flat_map(|part| self.live_documents(part));
            self.push_segment(documents.collect())?;
        }
    }

    /// Returns the documents of a segment that are still current.
    fn live_documents(&self, part: &IndexedSegment) -> Vec<Arc<SkillDocument>> {
        let is_now =
            |one: &&Arc<SkillDocument>| self.segment_of.get(&one.id) == Some(&Some(part.number));
        part.documents.iter().filter(is_now).cloned().collect()
    }

    fn push_segment(&mut self, mut documents: Vec<Arc<SkillDocument>>) -> Result<()> {
        // If a skill changed twice, only its last version is kept.
        let mut seen = HashSet::new();
        documents.reverse();
        documents.retain(|one| seen.insert(one.id.clone()));
        let number = self.next_number;
        self.next_number += 1;
        for document in &documents {
            self.segment_of.insert(document.id.clone(), Some(number));
        }
        let part = Segment::from_documents(documents.iter().map(|document| &**document))?;
        self.segments.push(IndexedSegment {
            number,
            segment: part,
            documents,
        });
        Ok(())
    }

    /// Adds the names and phrases of a skill. An untrusted skill gets none, so that it cannot
    /// rank itself first by its own choice of name.
    fn insert_terms(&mut self, document: &SkillDocument) {
        let (mut names, mut phrases) = (Vec::new(), Vec::new());
        if document.trusted {
            names.extend(document.name_phrases());
            let said = document.phrases.iter();
            phrases.extend(said.map(|phrase| lowercase_words(phrase).join(" ")));
            phrases.retain(|phrase: &String| !phrase.is_empty());
        }
        for name in &names {
            self.ids_by_name
                .entry(name.clone())
                .or_default()
                .push(document.id.clone());
        }
        for phrase in &phrases {
            self.ids_by_phrase
                .entry(phrase.clone())
                .or_default()
                .push(document.id.clone());
        }
        self.lookup_terms
            .insert(document.id.clone(), (names, phrases));
    }

    fn remove_terms(&mut self, id: &SkillId) {
        let Some((names, phrases)) = self.lookup_terms.remove(id) else {
            return;
        };
        for (map, words) in [
            (&mut self.ids_by_name, names),
            (&mut self.ids_by_phrase, phrases),
        ] {
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

    /// Returns the best matches for a message, best first, including those that do not fit.
    pub fn find_skills(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        self.find_skills_among(message, limit, |_| true)
    }

    /// Returns the best matches among some skills. The others take no place from them, however many
    /// there are.
    pub fn find_skills_among(
        &self,
        message: &str,
        limit: usize,
        is_wanted: impl Fn(&SkillId) -> bool + Sync,
    ) -> Result<Vec<Recommendation>> {
        self.search_text(message, limit, self.embeddings.as_ref(), &is_wanted)
    }

    /// The same without embeddings.
    pub fn find_lexical(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        self.search_text(message, limit, None, &|_| true)
    }

    fn search_text(
        &self,
        message: &str,
        limit: usize,
        meaning: Option<&EmbeddingIndex>,
        is_wanted: &WantedSkills<'_>,
    ) -> Result<Vec<Recommendation>> {
        let mut found: HashMap<SkillId, Recommendation> = HashMap::new();
        for one in self.rank_candidates(message, limit, meaning, is_wanted)? {
            found.insert(one.id.clone(), one);
        }
        let matched = self.match_terms(message).into_iter();
        for (id, score, why) in matched.filter(|(id, ..)| is_wanted(id)) {
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

    /// Returns the skills whose names or phrases the message contains.
    fn match_terms(&self, message: &str) -> Vec<(&SkillId, f64, MatchReason)> {
        let mut called = Vec::new();
        for gram in word_runs(&lowercase_words(message)) {
            // If one name contains another, the longer one is the better match.
            #[allow(clippy::cast_precision_loss, reason = "numbers of words are small")]
            let length = gram.split(' ').count().min(50) as f64;
            for id in self.ids_by_name.get(&gram).into_iter().flatten() {
                called.push((id, 1.0 + length / 1000.0, MatchReason::Named));
            }
            for id in self.ids_by_phrase.get(&gram).into_iter().flatten() {
                called.push((id, PHRASE_SCORE, MatchReason::Phrase(gram.clone())));
            }
        }
        called
    }

    /// Scores skills by shared terms and, if available, by embeddings.
    fn rank_candidates(
        &self,
        message: &str,
        limit: usize,
        meaning: Option<&EmbeddingIndex>,
        is_wanted: &WantedSkills<'_>,
    ) -> Result<Vec<Recommendation>> {
        let parts = SegmentSet(self.segments.iter().map(|one| &one.segment).collect());
        let most = match meaning {
            None => limit,
            Some(_) => limit.max(LEXICAL_CANDIDATES),
        };
        let words = parts.score_documents(message, most, |at, id| {
            let is_current = match self.segment_of.get(id) {
                None => at == 0,
                Some(number) => *number == Some(self.segments[at].number),
            };
            is_current && is_wanted(id)
        })?;
        let Some(meaning) = meaning.filter(|_| limit > 0) else {
            let all = words.into_iter().map(|(id, score)| Recommendation {
                id,
                score,
                why: MatchReason::Words,
                fits: score >= LEXICAL_THRESHOLD,
                cosine: None,
            });
            return Ok(all.collect());
        };
        let near = meaning.nearest_skills(message, words.iter().map(|(id, _)| id), is_wanted);
        let shares: HashMap<SkillId, f64> = words.into_iter().collect();
        let ids: HashSet<&SkillId> = near.keys().chain(shares.keys()).collect();
        let all = ids.into_iter().map(|id| {
            let share = shares.get(id).copied().unwrap_or(0.0);
            let cosine = near.get(id).copied();
            let like = cosine.unwrap_or(share).max(0.0);
            // The best possible score stays below that of a name or a phrase.
            let score = (LEXICAL_WEIGHT * share + like) / (LEXICAL_WEIGHT + 1.0) * 0.9;
            let (why, fits) = match cosine {
                Some(cosine) => (MatchReason::Meaning, cosine >= COSINE_THRESHOLD),
                None => (MatchReason::Words, share >= LEXICAL_THRESHOLD),
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

    /// Whether embeddings are used.
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }

    /// Returns the number of skills without an embedding.
    pub fn pending_count(&self) -> usize {
        self.embeddings
            .as_ref()
            .map_or(0, EmbeddingIndex::pending_count)
    }

    /// Returns at most `most` skills without an embedding.
    pub fn pending_skills(&self, most: usize) -> Vec<SkillId> {
        self.embeddings
            .as_ref()
            .map_or_else(Vec::new, |meaning| meaning.pending_skills(most))
    }

    /// Returns the next documents to embed, so that the caller can release the index meanwhile.
    pub fn next_batch(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        most: usize,
    ) -> Option<EmbeddingBatch> {
        let meaning = self.embeddings.as_mut()?;
        let mut documents = Vec::new();
        for id in meaning.pending_skills(most) {
            match snapshot.get(&id) {
                Some(entry) => documents.push(SkillDocument::from_entry(registry, entry)),
                // The event of its removal has not arrived yet.
                None => meaning.remove_skill(&id),
            }
        }
        for document in &documents {
            // It may have changed since it was indexed; the text read now is embedded.
            meaning.update_document(document).ok()?;
        }
        (!documents.is_empty()).then(|| EmbeddingBatch {
            encoder: meaning.encoder.clone(),
            documents,
        })
    }

    /// Inserts computed embeddings; returns how many skills were still unchanged.
    pub fn insert_embeddings(&mut self, learned: &EmbeddedDocuments) -> usize {
        let Some(meaning) = &mut self.embeddings else {
            return 0;
        };
        let learned = learned.0.iter();
        learned
            .filter(|(document, vector)| meaning.insert_if_current(document, vector))
            .count()
    }

    /// Updates many skills, or rebuilds the index if that is less work.
    pub fn update_skills(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        ids: &BTreeSet<SkillId>,
    ) -> Result<()> {
        if self.segment_of.len() + ids.len() > REBUILD_CHANGES.max(self.len() / 4) {
            return self.rebuild_index(registry, snapshot);
        }
        ids.iter()
            .try_for_each(|id| self.update_skill(registry, snapshot, id))
    }
}

/// Skills whose embeddings have to be computed.
#[derive(Debug)]
pub struct EmbeddingBatch {
    encoder: Arc<SentenceEncoder>,
    documents: Vec<SkillDocument>,
}

/// Skills with their computed embeddings.
#[derive(Debug)]
pub struct EmbeddedDocuments(Vec<(SkillDocument, repertoire_embed::Vector)>);

impl EmbeddingBatch {
    /// Computes and stores the embeddings; this is slow.
    pub fn compute_embeddings(self) -> Result<EmbeddedDocuments> {
        let vectors = self.encoder.encode_documents(&self.documents)?;
        Ok(EmbeddedDocuments(
            self.documents.into_iter().zip(vectors).collect(),
        ))
    }
}

fn index_error(error: &tantivy::TantivyError) -> Error {
    Error::Search(error.to_string())
}
