//! What skills and messages mean, as vectors.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use rayon::prelude::*;
use repertoire_core::{Digest, Hasher, SkillId};
use repertoire_embed::{Model, Vector};

use super::Document;
use crate::{
    error::{Error, Result},
    store::Store,
};

/// Says how a skill becomes a vector; one that was made in another way is not used.
const METHOD: &str = "all-MiniLM-L6-v2 1";
/// How much the description weighs against the document.
const DESCRIPTION: f32 = 0.5;
/// The most tokens of a document that are read: twice as many take twice as long and find hardly more.
const BODY_TOKENS: usize = 128;
/// A document with fewer bytes says no more than the description.
const SHORT: usize = 200;
/// How many vectors one thread compares at least.
const PART: usize = 4096;
/// How many of the nearest are looked at.
const NEAREST: usize = 100;

/// Reads texts, and remembers what it read.
#[derive(Debug)]
pub struct Embedder {
    model: Model,
    store: Option<Arc<Store>>,
}

impl Embedder {
    /// Opens the model in a folder; vectors are kept in the store.
    pub fn open(folder: &Path, store: Option<Arc<Store>>) -> Result<Self> {
        let model = Model::open(folder).map_err(|error| Error::Conflict(error.to_string()))?;
        Ok(Self { model, store })
    }

    /// The vectors that are kept for these keys.
    pub(super) fn kept(&self, keys: &[Digest]) -> Result<Vec<Option<Vector>>> {
        let Some(store) = &self.store else {
            return Ok(vec![None; keys.len()]);
        };
        let kept = store.vectors(keys)?.into_iter();
        Ok(kept
            .map(|bytes| bytes.and_then(|bytes| Vector::from_bytes(&bytes)))
            .collect())
    }

    /// What skills mean. It takes a while; what was computed is kept, and not computed twice.
    pub(super) fn read(&self, documents: &[Document]) -> Result<Vec<Vector>> {
        let keys: Vec<Digest> = documents.iter().map(key).collect();
        let mut known: HashMap<Digest, Vector> = HashMap::new();
        for (key, kept) in keys.iter().zip(self.kept(&keys)?) {
            known.extend(kept.map(|vector| (*key, vector)));
        }
        let mut unknown: Vec<(Digest, &Document)> = keys.iter().copied().zip(documents).collect();
        unknown.sort_by_key(|(key, _)| *key);
        unknown.dedup_by_key(|(key, _)| *key);
        unknown.retain(|(key, _)| !known.contains_key(key));
        let read: Vec<(Digest, Vector)> = unknown
            .par_iter()
            .map(|(key, document)| (*key, self.vector(document)))
            .collect();
        if let Some(store) = &self.store
            && !read.is_empty()
        {
            let rows = read.iter().map(|(key, vector)| (*key, vector.to_bytes()));
            // What cannot be kept is computed again the next time.
            if let Err(error) = store.put_vectors(rows.collect()) {
                tracing::debug!(%error, "vectors are not kept");
            }
        }
        known.extend(read);
        let vectors = keys.iter().map(|key| known.get(key).copied());
        // Every key is known by now.
        Ok(vectors
            .map(|vector| vector.unwrap_or(Vector::NONE))
            .collect())
    }

    fn vector(&self, document: &Document) -> Vector {
        let about = self.model.embed(&about(document));
        if document.body.trim().len() < SHORT {
            return about;
        }
        let body = self.model.embed_some(&document.body, BODY_TOKENS);
        about.between(DESCRIPTION, &body)
    }
}

/// What a skill says of itself. Its name is found by its words, and says little of what it means.
fn about(document: &Document) -> String {
    let parts = [&document.description, &document.hints].map(|text| text.trim());
    let said: Vec<&str> = parts.into_iter().filter(|text| !text.is_empty()).collect();
    if said.is_empty() {
        return document.name.clone();
    }
    said.join(" ")
}

/// What a vector depends on.
fn key(document: &Document) -> Digest {
    let mut hasher = Hasher::default();
    for text in [METHOD, &about(document), &document.body] {
        hasher.update(text.as_bytes());
        hasher.update(&[0]);
    }
    hasher.finish()
}

/// The vectors of skills.
#[derive(Debug)]
pub(super) struct Meaning {
    pub(super) embedder: Arc<Embedder>,
    /// Of every skill, whether there is a vector or not.
    keys: HashMap<SkillId, Digest>,
    /// Those without one.
    unread: BTreeSet<SkillId>,
    /// Where the vector of a skill is.
    places: HashMap<SkillId, usize>,
    ids: Vec<SkillId>,
    vectors: Vec<Vector>,
}

impl Meaning {
    /// Takes what is known of skills already.
    pub(super) fn new<'a>(
        embedder: Arc<Embedder>,
        documents: impl Iterator<Item = &'a Document>,
    ) -> Result<Self> {
        let keys: Vec<(SkillId, Digest)> = documents.map(|d| (d.id.clone(), key(d))).collect();
        let digests: Vec<Digest> = keys.iter().map(|(_, key)| *key).collect();
        let kept = embedder.kept(&digests)?;
        let mut meaning = Self {
            embedder,
            keys: HashMap::with_capacity(keys.len()),
            unread: BTreeSet::new(),
            places: HashMap::new(),
            ids: Vec::new(),
            vectors: Vec::new(),
        };
        for ((id, key), vector) in keys.into_iter().zip(kept) {
            meaning.keys.insert(id.clone(), key);
            match vector {
                Some(vector) => meaning.put(id, &vector),
                None => drop(meaning.unread.insert(id)),
            }
        }
        Ok(meaning)
    }

    /// Notes that a skill is there, or is another one now.
    pub(super) fn update(&mut self, document: &Document) -> Result<()> {
        let new = key(document);
        if self.keys.insert(document.id.clone(), new) == Some(new) {
            return Ok(());
        }
        self.drop_vector(&document.id);
        match self.embedder.kept(&[new])?.pop().flatten() {
            Some(vector) => self.put(document.id.clone(), &vector),
            None => drop(self.unread.insert(document.id.clone())),
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &SkillId) {
        self.keys.remove(id);
        self.unread.remove(id);
        self.drop_vector(id);
    }

    /// Skills whose vectors are still to be computed, at most so many.
    pub(super) fn missing(&self, most: usize) -> Vec<SkillId> {
        self.unread.iter().take(most).cloned().collect()
    }

    /// How many skills have no vector yet.
    pub(super) fn wanting(&self) -> usize {
        self.unread.len()
    }

    /// Takes a vector, unless the skill has become another one since.
    pub(super) fn learn(&mut self, document: &Document, vector: &Vector) -> bool {
        let is_right = self.keys.get(&document.id) == Some(&key(document));
        if is_right {
            self.put(document.id.clone(), vector);
        }
        is_right
    }

    fn put(&mut self, id: SkillId, vector: &Vector) {
        self.drop_vector(&id);
        self.unread.remove(&id);
        self.places.insert(id.clone(), self.ids.len());
        self.ids.push(id);
        self.vectors.push(*vector);
    }

    fn drop_vector(&mut self, id: &SkillId) {
        let Some(place) = self.places.remove(id) else {
            return;
        };
        self.ids.swap_remove(place);
        self.vectors.swap_remove(place);
        if let Some(moved) = self.ids.get(place) {
            self.places.insert(moved.clone(), place);
        }
    }

    /// How near a message is to the skills nearest to it, and to those of the others that are asked for.
    pub(super) fn near<'a>(
        &self,
        message: &str,
        others: impl Iterator<Item = &'a SkillId>,
    ) -> HashMap<SkillId, f64> {
        let message = self.embedder.model.embed(message);
        let each = self.vectors.par_iter().with_min_len(PART);
        let cosines: Vec<f32> = each.map(|vector| vector.cosine(&message)).collect();
        let mut order: Vec<usize> = (0..cosines.len()).collect();
        if order.len() > NEAREST {
            let by_cosine = |a: &usize, b: &usize| cosines[*b].total_cmp(&cosines[*a]);
            order.select_nth_unstable_by(NEAREST, by_cosine);
            order.truncate(NEAREST);
        }
        order.extend(others.filter_map(|id| self.places.get(id)));
        order
            .into_iter()
            .map(|place| (self.ids[place].clone(), f64::from(cosines[place])))
            .collect()
    }
}
