//! Embeddings of skills and messages.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use rayon::prelude::*;
use repertoire_core::{Digest, Hasher, SkillId};
use repertoire_embed::{EmbeddingModel, Vector};

use super::{SkillDocument, WantedSkills};
use crate::{
    error::{Error, Result},
    store::LocalStore,
};

/// Identifies how a skill is embedded; vectors of another method are not used.
const EMBEDDING_METHOD: &str = "all-MiniLM-L6-v2 1";
/// The weight of the description relative to the document.
const DESCRIPTION_WEIGHT: f32 = 0.5;
/// The most tokens of a document that are embedded. Twice as many take twice as long for hardly
/// better results.
const BODY_TOKENS: usize = 128;
/// A document with fewer bytes is not embedded, because it adds nothing to the description.
const SHORT_BODY_BYTES: usize = 200;
/// The minimum number of vectors that one thread compares.
const VECTORS_PER_TASK: usize = 4096;
/// How many of the nearest skills are returned.
const NEAREST_COUNT: usize = 100;

/// Computes embeddings of texts and stores them.
#[derive(Debug)]
pub struct SentenceEncoder {
    model: EmbeddingModel,
    store: Option<Arc<LocalStore>>,
}

impl SentenceEncoder {
    /// Opens the model in a folder; vectors are cached in the store.
    pub fn open(folder: &Path, store: Option<Arc<LocalStore>>) -> Result<Self> {
        let model =
            EmbeddingModel::open(folder).map_err(|error| Error::Embeddings(error.to_string()))?;
        Ok(Self { model, store })
    }

    /// Returns the stored vectors of these keys.
    pub(super) fn stored_vectors(&self, keys: &[Digest]) -> Result<Vec<Option<Vector>>> {
        let Some(store) = &self.store else {
            return Ok(vec![None; keys.len()]);
        };
        let kept = store.vectors(keys)?.into_iter();
        Ok(kept
            .map(|bytes| bytes.and_then(|bytes| Vector::from_bytes(&bytes)))
            .collect())
    }

    /// Returns the embeddings of skills. It is slow; computed vectors are stored for reuse.
    pub(super) fn encode_documents(&self, documents: &[SkillDocument]) -> Result<Vec<Vector>> {
        let keys: Vec<Digest> = documents.iter().map(vector_key).collect();
        let mut known: HashMap<Digest, Vector> = HashMap::new();
        for (key, kept) in keys.iter().zip(self.stored_vectors(&keys)?) {
            known.extend(kept.map(|vector| (*key, vector)));
        }
        let mut unknown: Vec<(Digest, &SkillDocument)> =
            keys.iter().copied().zip(documents).collect();
        unknown.sort_by_key(|(key, _)| *key);
        unknown.dedup_by_key(|(key, _)| *key);
        unknown.retain(|(key, _)| !known.contains_key(key));
        let read: Vec<(Digest, Vector)> = unknown
            .par_iter()
            .map(|(key, document)| (*key, self.encode_document(document)))
            .collect();
        if let Some(store) = &self.store
            && !read.is_empty()
        {
            let rows = read.iter().map(|(key, vector)| (*key, vector.to_bytes()));
            // A vector that cannot be stored is computed again next time.
            if let Err(error) = store.put_vectors(rows.collect()) {
                tracing::debug!(%error, "could not store vectors");
            }
        }
        known.extend(read);
        let vectors = keys.iter().map(|key| known.get(key).copied());
        // Every key is known by now.
        Ok(vectors
            .map(|vector| vector.unwrap_or(Vector::ZERO))
            .collect())
    }

    fn encode_document(&self, document: &SkillDocument) -> Vector {
        let about = self.model.embed_text(&description_text(document));
        if document.body.trim().len() < SHORT_BODY_BYTES {
            return about;
        }
        let body = self.model.embed_prefix(&document.body, BODY_TOKENS);
        about.blend_with(DESCRIPTION_WEIGHT, &body)
    }
}

/// Returns the text to embed. The name is left out: it is matched lexically and adds little.
fn description_text(document: &SkillDocument) -> String {
    let parts = [&document.description, &document.hints].map(|text| text.trim());
    let said: Vec<&str> = parts.into_iter().filter(|text| !text.is_empty()).collect();
    if said.is_empty() {
        return document.name.clone();
    }
    said.join(" ")
}

/// Returns a digest of all inputs of a vector.
fn vector_key(document: &SkillDocument) -> Digest {
    let mut hasher = Hasher::default();
    for text in [
        EMBEDDING_METHOD,
        &description_text(document),
        &document.body,
    ] {
        hasher.update(text.as_bytes());
        hasher.update(&[0]);
    }
    hasher.finish()
}

/// The embeddings of all skills.
#[derive(Debug)]
pub(super) struct EmbeddingIndex {
    pub(super) encoder: Arc<SentenceEncoder>,
    /// The key of every skill, with or without a vector.
    keys: HashMap<SkillId, Digest>,
    /// Skills without a vector.
    pending: BTreeSet<SkillId>,
    /// The position of each skill's vector.
    positions: HashMap<SkillId, usize>,
    ids: Vec<SkillId>,
    vectors: Vec<Vector>,
}

impl EmbeddingIndex {
    /// Creates an index with the vectors that are already stored.
    pub(super) fn new<'a>(
        embedder: Arc<SentenceEncoder>,
        documents: impl Iterator<Item = &'a SkillDocument>,
    ) -> Result<Self> {
        let keys: Vec<(SkillId, Digest)> =
            documents.map(|d| (d.id.clone(), vector_key(d))).collect();
        let digests: Vec<Digest> = keys.iter().map(|(_, key)| *key).collect();
        let kept = embedder.stored_vectors(&digests)?;
        let mut meaning = Self {
            encoder: embedder,
            keys: HashMap::with_capacity(keys.len()),
            pending: BTreeSet::new(),
            positions: HashMap::new(),
            ids: Vec::new(),
            vectors: Vec::new(),
        };
        for ((id, key), vector) in keys.into_iter().zip(kept) {
            meaning.keys.insert(id.clone(), key);
            match vector {
                Some(vector) => meaning.insert_vector(id, &vector),
                None => drop(meaning.pending.insert(id)),
            }
        }
        Ok(meaning)
    }

    /// Adds a skill, or updates it if its text changed.
    pub(super) fn update_document(&mut self, document: &SkillDocument) -> Result<()> {
        let new = vector_key(document);
        if self.keys.insert(document.id.clone(), new) == Some(new) {
            return Ok(());
        }
        self.drop_vector(&document.id);
        match self.encoder.stored_vectors(&[new])?.pop().flatten() {
            Some(vector) => self.insert_vector(document.id.clone(), &vector),
            None => drop(self.pending.insert(document.id.clone())),
        }
        Ok(())
    }

    pub(super) fn remove_skill(&mut self, id: &SkillId) {
        self.keys.remove(id);
        self.pending.remove(id);
        self.drop_vector(id);
    }

    /// Returns at most `most` skills whose vectors have to be computed.
    pub(super) fn pending_skills(&self, most: usize) -> Vec<SkillId> {
        self.pending.iter().take(most).cloned().collect()
    }

    /// Returns the number of skills without a vector.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Inserts a vector, unless the skill has changed since it was computed.
    pub(super) fn insert_if_current(&mut self, document: &SkillDocument, vector: &Vector) -> bool {
        let is_right = self.keys.get(&document.id) == Some(&vector_key(document));
        if is_right {
            self.insert_vector(document.id.clone(), vector);
        }
        is_right
    }

    fn insert_vector(&mut self, id: SkillId, vector: &Vector) {
        self.drop_vector(&id);
        self.pending.remove(&id);
        self.positions.insert(id.clone(), self.ids.len());
        self.ids.push(id);
        self.vectors.push(*vector);
    }

    fn drop_vector(&mut self, id: &SkillId) {
        let Some(place) = self.positions.remove(id) else {
            return;
        };
        self.ids.swap_remove(place);
        self.vectors.swap_remove(place);
        if let Some(moved) = self.ids.get(place) {
            self.positions.insert(moved.clone(), place);
        }
    }

    /// Returns the cosines of the skills nearest to a message, and of the `others` requested.
    pub(super) fn nearest_skills<'a>(
        &self,
        message: &str,
        others: impl Iterator<Item = &'a SkillId>,
        is_wanted: &WantedSkills<'_>,
    ) -> HashMap<SkillId, f64> {
        let message = self.encoder.model.embed_text(message);
        let each = self.vectors.par_iter().with_min_len(VECTORS_PER_TASK);
        let cosines: Vec<f32> = each
            .map(|vector| vector.cosine_similarity(&message))
            .collect();
        let all = 0..cosines.len();
        let mut order: Vec<usize> = all.filter(|at| is_wanted(&self.ids[*at])).collect();
        if order.len() > NEAREST_COUNT {
            let by_cosine = |a: &usize, b: &usize| cosines[*b].total_cmp(&cosines[*a]);
            order.select_nth_unstable_by(NEAREST_COUNT, by_cosine);
            order.truncate(NEAREST_COUNT);
        }
        order.extend(others.filter_map(|id| self.positions.get(id)));
        order
            .into_iter()
            .map(|place| (self.ids[place].clone(), f64::from(cosines[place])))
            .collect()
    }
}
