//! Embeddings of skills and messages.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use rayon::prelude::*;
use repertoire_core::{Digest, Hasher, SkillId};
use repertoire_embed::{EmbeddingModel, ModelKind, Vector, VectorTable};

use super::document::SkillDocument;
use crate::{
    error::{Error, Result},
    store::LocalStore,
};

/// Identifies how skills are embedded; vectors of another method are not used.
const EMBEDDING_METHOD: &str = "int8 2";
/// The weight of the description relative to the document.
const DESCRIPTION_WEIGHT: f32 = 0.5;
/// The most tokens of a document that are embedded. Twice as many take twice as long for hardly
/// better results.
const BODY_TOKENS: usize = 128;
/// The most tokens of a description or an example message.
const DESCRIPTION_TOKENS: usize = 256;
/// A document with fewer bytes is not embedded, because it adds nothing to the description.
const SHORT_BODY_BYTES: usize = 200;
/// The weight of the nearest example message relative to the skill's own text.
const EXAMPLE_WEIGHT: f64 = 0.5;

/// Computes embeddings of texts and stores them.
#[derive(Debug)]
pub struct SentenceEncoder {
    model: EmbeddingModel,
    store: Option<Arc<LocalStore>>,
}

impl SentenceEncoder {
    /// Opens a model in a folder; vectors are cached in the store.
    pub fn open(kind: ModelKind, folder: &Path, store: Option<Arc<LocalStore>>) -> Result<Self> {
        let model = EmbeddingModel::open(kind, folder)
            .map_err(|error| Error::Embeddings(error.to_string()))?;
        Ok(Self { model, store })
    }

    /// Rounds the published weights of a model to eight bits and writes them into a folder.
    pub fn quantize(kind: ModelKind, from: &Path, to: &Path) -> Result<()> {
        EmbeddingModel::quantize(kind, from, to)
            .map_err(|error| Error::Embeddings(error.to_string()))
    }

    /// Which model it is.
    pub fn kind(&self) -> ModelKind {
        self.model.kind()
    }

    /// Embeds a message. It takes a few milliseconds.
    pub fn encode_message(&self, message: &str) -> Vector {
        self.model.embed_text(message)
    }

    fn dimensions(&self) -> usize {
        self.kind().dimensions()
    }

    /// Returns the stored vectors of these keys.
    fn stored_vectors(&self, keys: &[Digest]) -> Result<Vec<Option<Vector>>> {
        let Some(store) = &self.store else {
            return Ok(vec![None; keys.len()]);
        };
        let kept = store.vectors(keys)?.into_iter();
        Ok(kept
            .map(|bytes| bytes.and_then(|bytes| Vector::from_bytes(&bytes, self.dimensions())))
            .collect())
    }

    /// Returns the embeddings of skills. It is slow; computed vectors are stored for reuse.
    pub(super) fn encode_documents(
        &self,
        documents: &[SkillDocument],
    ) -> Result<Vec<SkillVectors>> {
        let keys: Vec<VectorKeys> = documents
            .iter()
            .map(|document| VectorKeys::of(self, document))
            .collect();
        let all: Vec<Digest> = keys.iter().flat_map(VectorKeys::all).collect();
        let mut known: HashMap<Digest, Vector> = HashMap::new();
        for (key, kept) in all.iter().zip(self.stored_vectors(&all)?) {
            known.extend(kept.map(|vector| (*key, vector)));
        }
        let mut unknown: Vec<(Digest, EmbeddedText<'_>)> = keys
            .iter()
            .zip(documents)
            .flat_map(|(keys, document)| {
                let examples = document
                    .examples()
                    .iter()
                    .map(|one| EmbeddedText::Example(one));
                keys.all()
                    .zip(std::iter::once(EmbeddedText::Document(document)).chain(examples))
            })
            .filter(|(key, _)| !known.contains_key(key))
            .collect();
        unknown.sort_by_key(|(key, _)| *key);
        unknown.dedup_by_key(|(key, _)| *key);
        let read: Vec<(Digest, Vector)> = unknown
            .par_iter()
            .with_max_len(1)
            .map(|(key, text)| (*key, self.encode_text(text)))
            .collect();
        if let Some(store) = &self.store
            && !read.is_empty()
        {
            // A zero vector is the result of a damaged model.
            let usable = read.iter().filter(|(_, vector)| !vector.is_zero());
            let rows = usable.map(|(key, vector)| (*key, vector.to_bytes()));
            // A vector that cannot be stored is computed again next time.
            if let Err(error) = store.put_vectors(rows.collect()) {
                tracing::debug!(%error, "could not store vectors");
            }
        }
        known.extend(read);
        Ok(keys
            .into_iter()
            .map(|keys| SkillVectors::collect(keys, &known))
            .collect())
    }

    fn encode_text(&self, text: &EmbeddedText<'_>) -> Vector {
        let document = match text {
            EmbeddedText::Example(text) => {
                return self.model.embed_prefix(text, DESCRIPTION_TOKENS);
            }
            EmbeddedText::Document(document) => document,
        };
        let about = description_text(document);
        let about = self.model.embed_prefix(about, DESCRIPTION_TOKENS);
        if document.body().trim().len() < SHORT_BODY_BYTES {
            return about;
        }
        let body = self.model.embed_prefix(document.body(), BODY_TOKENS);
        about.blend_with(DESCRIPTION_WEIGHT, &body)
    }
}

enum EmbeddedText<'a> {
    Document(&'a SkillDocument),
    Example(&'a str),
}

/// Returns the text to embed. The name is left out: it is matched lexically and adds little.
fn description_text(document: &SkillDocument) -> &str {
    let about = document.description().trim();
    if about.is_empty() {
        document.name()
    } else {
        about
    }
}

/// The digests of everything that the vectors of a skill are computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct VectorKeys {
    document: Digest,
    examples: Vec<Digest>,
}

impl VectorKeys {
    fn of(encoder: &SentenceEncoder, document: &SkillDocument) -> Self {
        let key = |texts: &[&str]| {
            let mut hasher = Hasher::default();
            let model = encoder.kind().published_name();
            for text in [EMBEDDING_METHOD, model].iter().chain(texts) {
                hasher.update(text.as_bytes());
                hasher.update(&[0]);
            }
            hasher.finish()
        };
        Self {
            document: key(&["document", description_text(document), document.body()]),
            examples: document
                .examples()
                .iter()
                .map(|text| key(&["message", text]))
                .collect(),
        }
    }

    fn all(&self) -> impl Iterator<Item = Digest> {
        std::iter::once(self.document).chain(self.examples.iter().copied())
    }
}

/// The embeddings of one skill.
#[derive(Debug)]
pub(super) struct SkillVectors {
    keys: VectorKeys,
    document: Option<Vector>,
    examples: Vec<Vector>,
}

impl SkillVectors {
    fn collect(keys: VectorKeys, known: &HashMap<Digest, Vector>) -> Self {
        Self {
            document: known.get(&keys.document).cloned(),
            examples: keys
                .examples
                .iter()
                .filter_map(|key| known.get(key).cloned())
                .collect(),
            keys,
        }
    }

    fn is_complete(&self) -> bool {
        self.document.is_some() && self.examples.len() == self.keys.examples.len()
    }
}

/// The embeddings of all skills.
#[derive(Debug)]
pub(super) struct EmbeddingIndex {
    pub(super) encoder: Arc<SentenceEncoder>,
    /// The keys of every skill, with or without vectors.
    keys: HashMap<SkillId, VectorKeys>,
    /// Skills without all their vectors.
    pending: BTreeSet<SkillId>,
    documents: VectorTable<SkillId>,
    examples: VectorTable<SkillId>,
}

impl EmbeddingIndex {
    /// Creates an index with the vectors that are already stored.
    pub(super) fn new<'a>(
        encoder: Arc<SentenceEncoder>,
        documents: impl Iterator<Item = &'a SkillDocument>,
    ) -> Result<Self> {
        let dimensions = encoder.dimensions();
        let mut index = Self {
            keys: HashMap::new(),
            pending: BTreeSet::new(),
            documents: VectorTable::new(dimensions),
            examples: VectorTable::new(dimensions),
            encoder,
        };
        let keys: Vec<(&SkillId, VectorKeys)> = documents
            .map(|document| (document.id(), VectorKeys::of(&index.encoder, document)))
            .collect();
        let all: Vec<Digest> = keys.iter().flat_map(|(_, keys)| keys.all()).collect();
        let mut kept = index.encoder.stored_vectors(&all)?.into_iter();
        for (id, keys) in keys {
            let known: HashMap<Digest, Vector> = keys
                .all()
                .zip(kept.by_ref())
                .filter_map(|(key, vector)| Some((key, vector?)))
                .collect();
            index.insert_vectors(id, SkillVectors::collect(keys, &known));
        }
        Ok(index)
    }

    /// Adds a skill, or updates it if its texts changed.
    pub(super) fn update_document(&mut self, document: &SkillDocument) -> Result<()> {
        let keys = VectorKeys::of(&self.encoder, document);
        if self.keys.get(document.id()) == Some(&keys) {
            return Ok(());
        }
        let all: Vec<Digest> = keys.all().collect();
        let kept = self.encoder.stored_vectors(&all)?;
        let known = all.into_iter().zip(kept);
        let known = known.filter_map(|(key, vector)| Some((key, vector?)));
        let vectors = SkillVectors::collect(keys, &known.collect());
        self.insert_vectors(document.id(), vectors);
        Ok(())
    }

    pub(super) fn remove_skill(&mut self, id: &SkillId) {
        self.keys.remove(id);
        self.pending.remove(id);
        self.documents.remove(id);
        self.examples.remove(id);
    }

    /// Returns at most `most` skills whose vectors have to be computed.
    pub(super) fn pending_skills(&self, most: usize) -> Vec<SkillId> {
        self.pending.iter().take(most).cloned().collect()
    }

    /// Returns the skills whose own text has no vector. Those that lack only vectors of example
    /// messages are found by meaning already.
    pub(super) fn without_document(&self) -> impl Iterator<Item = &SkillId> {
        let has_none = |id: &&SkillId| !self.documents.contains(id);
        self.pending.iter().filter(has_none)
    }

    /// Returns the number of skills without all their vectors.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Inserts vectors, unless the skill has changed since they were computed.
    pub(super) fn insert_if_current(&mut self, id: &SkillId, vectors: SkillVectors) -> bool {
        let is_current = self.keys.get(id) == Some(&vectors.keys);
        if is_current {
            self.insert_vectors(id, vectors);
        }
        is_current
    }

    fn insert_vectors(&mut self, id: &SkillId, vectors: SkillVectors) {
        if vectors.is_complete() {
            self.pending.remove(id);
        } else {
            self.pending.insert(id.clone());
        }
        self.documents
            .insert(id.clone(), vectors.document.as_slice());
        self.examples.insert(id.clone(), &vectors.examples);
        self.keys.insert(id.clone(), vectors.keys);
    }

    /// Compares a message with every skill.
    pub(super) fn compare(&self, message: &Vector) -> Similarities<'_> {
        Similarities {
            documents: self.documents.cosines(message),
            examples: self.examples.cosines(message),
            message: message.clone(),
            index: self,
        }
    }
}

/// How similar the skills are to one message.
pub(super) struct Similarities<'a> {
    documents: Vec<f32>,
    examples: Vec<f32>,
    message: Vector,
    index: &'a EmbeddingIndex,
}

impl<'a> Similarities<'a> {
    /// The skills whose texts are most similar, with the cosines, of those wanted.
    pub(super) fn nearest_documents(
        &self,
        limit: usize,
        is_wanted: impl Fn(&SkillId) -> bool,
    ) -> Vec<(&'a SkillId, f64)> {
        nearest(&self.index.documents, &self.documents, limit, is_wanted)
    }

    /// The skills with the most similar example messages, of those wanted.
    pub(super) fn nearest_examples(
        &self,
        limit: usize,
        is_wanted: impl Fn(&SkillId) -> bool,
    ) -> Vec<&'a SkillId> {
        let all = nearest(&self.index.examples, &self.examples, limit, is_wanted);
        all.into_iter().map(|(id, _)| id).collect()
    }

    /// How similar a skill is, from its own text and from what people say; `None` if it has no
    /// vector yet.
    pub(super) fn of(&self, id: &SkillId) -> Option<f64> {
        let own = f64::from(self.index.documents.cosine(id, &self.message)?);
        let example = self.index.examples.cosine(id, &self.message);
        let both = example.map(|example| own + (f64::from(example) - own) * EXAMPLE_WEIGHT);
        Some(both.map_or(own, |both| both.max(own)))
    }
}

fn nearest<'a>(
    table: &'a VectorTable<SkillId>,
    cosines: &[f32],
    limit: usize,
    is_wanted: impl Fn(&SkillId) -> bool,
) -> Vec<(&'a SkillId, f64)> {
    let mut all: Vec<(f32, u32)> = cosines.iter().copied().zip(0..).collect();
    let key = |place: u32| table.key(place as usize);
    let best =
        super::lexical::take_best(&mut all, limit, |place| key(place).is_some_and(&is_wanted));
    best.into_iter()
        .filter_map(|(cosine, place)| Some((key(place)?, f64::from(cosine))))
        .collect()
}
