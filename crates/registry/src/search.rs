//! Search for skills that fit a message, without calling a model.
//!
//! Names, descriptions, bodies, tags and example messages are indexed when a skill enters the
//! catalogue; a query loads nothing. The score of a skill is a sum of parts ([`ScoreParts`]): that
//! the message names it or contains one of its phrases, the terms they share, the similarity of
//! their embeddings, and what was chosen for similar messages before. Whether anything fits is
//! another question, which is asked once for each message ([`GateDecision`]).
//!
//! The score of a skill does not depend on other skills, except through the rarity of words.

mod document;
mod duplicates;
mod embeddings;
mod gate;
mod lexical;
mod names;
mod request;
mod score;
mod text;
mod usage;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use repertoire_core::SkillId;
pub use repertoire_embed::{ModelKind, QUANTIZED_FILE, VOCABULARY_FILE, Vector, WEIGHTS_FILE};

use self::{
    document::SkillDocument,
    duplicates::TextSignature,
    embeddings::{EmbeddingIndex, SkillVectors},
    lexical::LexicalIndex,
    names::{Mention, NameIndex},
    score::{Evidence, Similarity, words_weight},
    text::message_terms,
    usage::usage_shares,
};
pub use self::{
    embeddings::SentenceEncoder,
    gate::{GateDecision, GateFeatures, GateModel, MINILM_GATE, MPNET_GATE, WORDS_GATE},
    lexical::CorpusStatistics,
    request::{SearchMethod, SearchOutcome, SearchRequest},
    score::{MatchReason, Recommendation, ScoreParts},
    usage::{SkillUse, USAGE_BOUND},
};
use crate::{catalogue::Snapshot, error::Result, registry::Registry};

/// How many of the best skills by terms, by embeddings and by example messages are scored.
const CANDIDATES: usize = 100;
/// With a smaller share of skills without an embedding, the others are still found by meaning.
const MAX_PENDING_SHARE: usize = 10;

/// What search knows of a skill beside its texts.
#[derive(Debug)]
struct SkillTraits {
    signature: TextSignature,
    is_vague: bool,
    is_trusted: bool,
}

/// A search index of skills.
#[derive(Debug)]
pub struct SkillIndex {
    lexical: LexicalIndex,
    names: NameIndex,
    traits: HashMap<SkillId, SkillTraits>,
    embeddings: Option<EmbeddingIndex>,
}

impl SkillIndex {
    /// Indexes every visible skill lexically.
    pub fn new(registry: &Registry, snapshot: &Snapshot) -> Result<Self> {
        Self::with_encoder(registry, snapshot, None)
    }

    /// The same, also with embeddings. Skills without stored ones are [`Self::pending_skills`].
    pub fn with_encoder(
        registry: &Registry,
        snapshot: &Snapshot,
        encoder: Option<Arc<SentenceEncoder>>,
    ) -> Result<Self> {
        let documents = snapshot
            .skills()
            .map(|entry| SkillDocument::from_entry(registry, entry));
        let mut documents: Vec<SkillDocument> = documents.collect();
        attach_examples(registry, &mut documents)?;
        let embeddings = encoder.map(|encoder| EmbeddingIndex::new(encoder, documents.iter()));
        let mut index = Self {
            lexical: LexicalIndex::default(),
            names: NameIndex::default(),
            traits: HashMap::new(),
            embeddings: embeddings.transpose()?,
        };
        for document in &documents {
            index.insert_texts(document);
        }
        index.lexical.shrink_to_fit();
        Ok(index)
    }

    /// Returns the number of indexed skills.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether no skill is indexed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds, updates or removes one skill. The next query sees the change.
    pub fn update_skill(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        id: &SkillId,
    ) -> Result<()> {
        let Some(entry) = snapshot.get(id) else {
            self.lexical.remove(id);
            self.names.remove(id);
            self.traits.remove(id);
            if let Some(embeddings) = &mut self.embeddings {
                embeddings.remove_skill(id);
            }
            return Ok(());
        };
        let mut document = [SkillDocument::from_entry(registry, entry)];
        attach_examples(registry, &mut document)?;
        let [document] = document;
        self.insert_texts(&document);
        if let Some(embeddings) = &mut self.embeddings {
            embeddings.update_document(&document)?;
        }
        Ok(())
    }

    /// Rebuilds the whole index.
    pub fn rebuild_index(&mut self, registry: &Registry, snapshot: &Snapshot) -> Result<()> {
        let encoder = self.encoder();
        *self = Self::with_encoder(registry, snapshot, encoder)?;
        Ok(())
    }

    fn insert_texts(&mut self, document: &SkillDocument) {
        self.lexical.insert(document);
        self.names.insert(document);
        let traits = SkillTraits {
            signature: document.signature(),
            is_vague: document.is_vague(),
            is_trusted: document.is_trusted(),
        };
        self.traits.insert(document.id().clone(), traits);
    }

    /// Finds the skills that fit a message.
    pub fn find_skills(&self, message: &str, limit: usize) -> SearchOutcome {
        self.search(&SearchRequest::new(message, limit))
    }

    /// Returns the rarity of the words of a message in this index.
    pub fn statistics_for(&self, message: &str) -> CorpusStatistics {
        self.lexical.statistics(&message_terms(message), None)
    }

    /// Finds the skills that fit a message.
    pub fn search(&self, request: &SearchRequest<'_>) -> SearchOutcome {
        let method = request.method.unwrap_or_else(|| self.best_method());
        let embeddings = match method {
            SearchMethod::Words => None,
            SearchMethod::Meaning => self.embeddings.as_ref(),
        };
        let encoder = embeddings.filter(|_| request.vector.is_none());
        let computed = encoder.map(|index| index.encoder.encode_message(request.message));
        let vector = request.vector.or(computed.as_ref());
        let similarities = embeddings
            .zip(vector)
            .map(|(index, vector)| index.compare(vector));
        let terms = message_terms(request.message);
        let own_statistics;
        let statistics = if let Some(statistics) = request.statistics {
            statistics
        } else {
            own_statistics = self.lexical.statistics(&terms, request.is_visible);
            &own_statistics
        };
        let words = self.lexical.score(&terms, statistics);
        let usage = vector.map_or_else(HashMap::new, |vector| usage_shares(request.uses, vector));
        let mut mentions: HashMap<&SkillId, Vec<Mention>> = HashMap::new();
        for (id, mention) in self.names.mentions(request.message, request.is_wanted) {
            mentions.entry(id).or_default().push(mention);
        }

        let most = CANDIDATES.max(request.limit);
        let by_words = self.lexical.best(&words, most, request.is_wanted);
        let best_share = by_words.first().map_or(0.0, |(_, share)| f64::from(*share));
        let by_meaning = similarities.as_ref().map_or_else(Vec::new, |similarities| {
            similarities.nearest_documents(most, request.is_wanted)
        });
        let by_example = similarities.as_ref().map_or_else(Vec::new, |similarities| {
            similarities.nearest_examples(most, request.is_wanted)
        });
        let used = usage.keys().filter(|id| self.traits.contains_key(*id));
        let candidates: HashSet<&SkillId> = by_words
            .iter()
            .map(|(id, _)| *id)
            .chain(by_meaning.iter().map(|(id, _)| *id))
            .chain(by_example)
            .chain(mentions.keys().copied())
            .chain(used.filter(|id| (request.is_wanted)(id)))
            .collect();
        let words_weight = words_weight(terms.len());
        let scored = candidates.into_iter().map(|id| {
            let similarity = match &similarities {
                None => Similarity::Unused,
                Some(all) => all.of(id).map_or(Similarity::Missing, Similarity::Cosine),
            };
            let traits = self.traits.get(id);
            let evidence = Evidence {
                share: f64::from(self.lexical.share_of(&words, id)),
                similarity,
                usage: usage.get(id).copied().unwrap_or(0.0),
                mentions: mentions.get(id).map_or(&[], |all| all),
                is_vague: traits.is_some_and(|traits| traits.is_vague),
                is_trusted: traits.is_some_and(|traits| traits.is_trusted),
            };
            evidence.score_skill(id, words_weight)
        });
        let mut skills: Vec<Recommendation> = scored.collect();
        skills.sort_unstable_by(|a, b| {
            let by_score = b.score.total_cmp(&a.score);
            let by_trust = || self.is_trusted(&b.id).cmp(&self.is_trusted(&a.id));
            by_score.then_with(by_trust).then_with(|| a.id.cmp(&b.id))
        });
        let cosines: Vec<f64> = by_meaning.iter().map(|(_, cosine)| *cosine).collect();
        let features = GateFeatures::new(
            &cosines,
            best_share,
            f64::from(words.unknown),
            terms.len(),
            statistics.skills(),
        );
        let encoder = embeddings.map(|index| index.encoder.kind());
        SearchOutcome {
            decision: if skills.is_empty() {
                GateDecision::closed()
            } else {
                GateDecision::for_message(&features, encoder, !mentions.is_empty())
            },
            skills: self.collapse_duplicates(skills, request.limit),
            features,
            method,
            pending: self.pending_among(request.is_visible),
        }
    }

    /// The number of skills without an embedding, among those that a caller may know of.
    fn pending_among(&self, is_visible: Option<&(dyn Fn(&SkillId) -> bool + Sync)>) -> usize {
        let Some(embeddings) = &self.embeddings else {
            return 0;
        };
        let is_visible = |id: &&SkillId| is_visible.is_none_or(|is_visible| is_visible(id));
        embeddings.without_document().filter(is_visible).count()
    }

    /// Keeps the best of skills that are nearly copies, and names the others in it.
    fn collapse_duplicates(
        &self,
        ranked: Vec<Recommendation>,
        limit: usize,
    ) -> Vec<Recommendation> {
        let mut kept: Vec<Recommendation> = Vec::new();
        for one in ranked {
            let original = kept.iter().position(|better| {
                let both = self.traits.get(&better.id).zip(self.traits.get(&one.id));
                both.is_some_and(|(better, copy)| {
                    // An untrusted skill hides no trusted one.
                    (better.is_trusted || !copy.is_trusted)
                        && better.signature.is_duplicate_of(&copy.signature)
                })
            });
            match original {
                // A copy that the message names is an answer of its own.
                Some(at) if one.why != MatchReason::Named => {
                    // An untrusted copy adds nothing to a trusted skill.
                    let adds = self.is_trusted(&one.id) || !self.is_trusted(&kept[at].id);
                    kept[at].also.extend(adds.then_some(one.id));
                }
                _ if kept.len() < limit => kept.push(one),
                _ => {}
            }
        }
        kept
    }

    fn is_trusted(&self, id: &SkillId) -> bool {
        self.traits.get(id).is_some_and(|traits| traits.is_trusted)
    }

    /// The method that finds most: embeddings, unless too many are missing.
    fn best_method(&self) -> SearchMethod {
        let pending = self.pending_among(None);
        if self.embeddings.is_some() && pending * MAX_PENDING_SHARE <= self.len() {
            SearchMethod::Meaning
        } else {
            SearchMethod::Words
        }
    }

    /// Whether embeddings are used.
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }

    /// The encoder, to embed a message before the index is locked.
    pub fn encoder(&self) -> Option<Arc<SentenceEncoder>> {
        let embeddings = self.embeddings.as_ref()?;
        Some(embeddings.encoder.clone())
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
            .map_or_else(Vec::new, |embeddings| embeddings.pending_skills(most))
    }

    /// Returns the next documents to embed, so that the caller can release the index meanwhile.
    pub fn next_batch(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        most: usize,
    ) -> Option<EmbeddingBatch> {
        let embeddings = self.embeddings.as_mut()?;
        let mut documents = Vec::new();
        for id in embeddings.pending_skills(most) {
            match snapshot.get(&id) {
                Some(entry) => documents.push(SkillDocument::from_entry(registry, entry)),
                // The event of its removal has not arrived yet.
                None => embeddings.remove_skill(&id),
            }
        }
        attach_examples(registry, &mut documents).ok()?;
        for document in &documents {
            // It may have changed since it was indexed; the text read now is embedded.
            embeddings.update_document(document).ok()?;
        }
        (!documents.is_empty()).then(|| EmbeddingBatch {
            encoder: embeddings.encoder.clone(),
            documents,
        })
    }

    /// Inserts computed embeddings; returns how many skills were still unchanged.
    pub fn insert_embeddings(&mut self, embedded: EmbeddedDocuments) -> usize {
        let Some(embeddings) = &mut self.embeddings else {
            return 0;
        };
        let mut count = 0;
        for (id, vectors) in embedded.0 {
            count += usize::from(embeddings.insert_if_current(&id, vectors));
        }
        count
    }

    /// Updates many skills.
    pub fn update_skills(
        &mut self,
        registry: &Registry,
        snapshot: &Snapshot,
        ids: &BTreeSet<SkillId>,
    ) -> Result<()> {
        ids.iter()
            .try_for_each(|id| self.update_skill(registry, snapshot, id))
    }
}

/// Adds the stored example messages to documents.
fn attach_examples(registry: &Registry, documents: &mut [SkillDocument]) -> Result<()> {
    let Ok(store) = registry.local_store() else {
        return Ok(());
    };
    if !store.has_example_messages()? {
        return Ok(());
    }
    let digests: Vec<_> = documents.iter().map(SkillDocument::text_digest).collect();
    let stored = store.example_messages(&digests)?;
    for (document, written) in documents.iter_mut().zip(stored) {
        if let Some(written) = written {
            document.add_examples(written.messages);
        }
    }
    Ok(())
}

/// Returns the terms of a text as they are indexed: stems without stop words.
pub fn index_terms(text: &str) -> Vec<String> {
    text::terms(text).collect()
}

/// Identifies the texts of a skill from which example messages are written: they belong to exactly
/// this text.
pub fn text_digest(registry: &Registry, entry: &crate::SkillEntry) -> repertoire_core::Digest {
    SkillDocument::from_entry(registry, entry).text_digest()
}

/// Skills whose embeddings have to be computed.
#[derive(Debug)]
pub struct EmbeddingBatch {
    encoder: Arc<SentenceEncoder>,
    documents: Vec<SkillDocument>,
}

/// Skills with their computed embeddings.
#[derive(Debug)]
pub struct EmbeddedDocuments(Vec<(SkillId, SkillVectors)>);

impl EmbeddingBatch {
    /// Computes and stores the embeddings; this is slow.
    pub fn compute_embeddings(self) -> Result<EmbeddedDocuments> {
        let vectors = self.encoder.encode_documents(&self.documents)?;
        let ids = self.documents.iter().map(|document| document.id().clone());
        Ok(EmbeddedDocuments(ids.zip(vectors).collect()))
    }
}
