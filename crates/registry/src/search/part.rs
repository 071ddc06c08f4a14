//! One index in memory, and several asked as one.

use std::collections::HashMap;

use repertoire_core::SkillId;
use tantivy::{
    Index, IndexReader, IndexSettings, ReloadPolicy, Searcher, TantivyDocument, Term,
    collector::TopDocs,
    directory::RamDirectory,
    query::{Bm25StatisticsProvider, BooleanQuery, Occur, Query, TermQuery},
    schema::{Field, IndexRecordOption, Schema, TextFieldIndexing, TextOptions},
    tokenizer::{
        Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter,
        TextAnalyzer, TokenizerManager,
    },
};

use super::{Document, failed, words::STOP};
use crate::error::Result;

const ANALYZER: &str = "skills";
/// What the engine may take before it makes room; it grows if it has to.
const MEMORY: usize = 15_000_000;
const SMALL_MEMORY: usize = 1_000_000;

/// The most a word can add to a score, times its rarity.
const CEILING: f64 = 2.2;

pub(super) fn analyzer() -> TextAnalyzer {
    let stop = STOP.iter().map(|&word| word.to_owned());
    TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(40))
        .filter(LowerCaser)
        .filter(StopWordFilter::remove(stop))
        .filter(Stemmer::new(Language::English))
        .build()
}

/// Some skills in one index.
pub(super) struct Part {
    searcher: Option<Searcher>,
    field: Field,
    ids: Vec<SkillId>,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part")
            .field("skills", &self.ids.len())
            .finish_non_exhaustive()
    }
}

/// One field: a word counts by how often it is in all of a skill, names and descriptions twice. Kept
/// apart, each field has a score of its own, and short ones drown the others.
fn schema() -> (Schema, Field) {
    let mut builder = Schema::builder();
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(ANALYZER)
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let text = TextOptions::default().set_indexing_options(indexing);
    let field = builder.add_text_field("text", text);
    (builder.build(), field)
}

impl Part {
    pub(super) fn of<'a>(documents: impl Iterator<Item = &'a Document>) -> Result<Self> {
        let (schema, field) = schema();
        let mut part = Self {
            searcher: None,
            field,
            ids: Vec::new(),
        };
        let documents: Vec<&Document> = documents.collect();
        if documents.is_empty() {
            return Ok(part);
        }
        let memory = if documents.len() > 1000 {
            MEMORY
        } else {
            SMALL_MEMORY
        };
        let tokenizers = TokenizerManager::new();
        tokenizers.register(ANALYZER, analyzer());
        let settings = IndexSettings {
            docstore_compress_dedicated_thread: false,
            ..IndexSettings::default()
        };
        let build = || -> tantivy::Result<(IndexReader, Vec<SkillId>)> {
            let mut writer = Index::builder()
                .schema(schema)
                .settings(settings)
                .tokenizers(tokenizers)
                .single_segment_index_writer(RamDirectory::create(), memory)?;
            let mut ids = Vec::with_capacity(documents.len());
            for document in documents {
                let mut row = TantivyDocument::new();
                let weighted = [&document.name, &document.description, &document.hints];
                for text in weighted.into_iter().chain(weighted).chain([&document.body]) {
                    row.add_text(field, text);
                }
                writer.add_document(row)?;
                ids.push(document.id.clone());
            }
            let index = writer.finalize()?;
            let reader = index
                .reader_builder()
                .reload_policy(ReloadPolicy::Manual)
                .try_into()?;
            Ok((reader, ids))
        };
        let (reader, ids) = build().map_err(|error| failed(&error))?;
        part.searcher = Some(reader.searcher());
        part.ids = ids;
        Ok(part)
    }
}

/// Parts that count as one.
pub(super) struct Parts<'a>(pub(super) Vec<&'a Part>);

impl Parts<'_> {
    fn searchers(&self) -> impl Iterator<Item = &Searcher> {
        self.0.iter().filter_map(|part| part.searcher.as_ref())
    }

    /// The skills that speak of what a message says, with the share of it.
    pub(super) fn find(
        &self,
        message: &str,
        limit: usize,
        is_current: impl Fn(usize, &SkillId) -> bool,
    ) -> Result<Vec<(SkillId, f64)>> {
        let mut words: Vec<String> = Vec::new();
        let mut analyzer = analyzer();
        let message: String = message.chars().take(4_000).collect();
        let mut stream = analyzer.token_stream(&message);
        while let Some(token) = stream.next() {
            if !words.contains(&token.text) && words.len() < 64 {
                words.push(token.text.clone());
            }
        }
        if words.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let ideal = self.weight(&words)? * CEILING;
        let mut found: HashMap<SkillId, f64> = HashMap::new();
        for (number, part) in self.0.iter().enumerate() {
            let Some(searcher) = &part.searcher else {
                continue;
            };
            let query = query(part.field, &words);
            let mut wanted = limit;
            let current = loop {
                let best = TopDocs::with_limit(wanted).order_by_score();
                let hits = searcher
                    .search_with_statistics_provider(&query, &best, self)
                    .map_err(|error| failed(&error))?;
                let all = hits.len();
                let mut current = Vec::new();
                for (score, at) in hits {
                    let at = usize::try_from(at.doc_id).unwrap_or(usize::MAX);
                    let id = part.ids.get(at).filter(|id| is_current(number, id));
                    current.extend(id.map(|id| (id, score)));
                }
                if current.len() >= limit || all < wanted {
                    break current;
                }
                // What skills once were must not hide what others are.
                wanted *= 2;
            };
            for (id, score) in current {
                found.insert(id.clone(), (f64::from(score) / ideal).min(0.9));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// How much the words of a message say: rare ones much, unknown ones most.
    fn weight(&self, words: &[String]) -> Result<f64> {
        #[allow(clippy::cast_precision_loss, reason = "numbers of skills are small")]
        let number = |n: u64| n as f64;
        let all = number(self.total_num_docs().map_err(|error| failed(&error))?);
        let mut sum = 0.0;
        for word in words {
            let Some(part) = self.0.first() else { break };
            let term = Term::from_field_text(part.field, word);
            let having = number(self.doc_freq(&term).map_err(|error| failed(&error))?);
            sum += (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
        }
        Ok(sum)
    }
}

fn query(field: Field, words: &[String]) -> BooleanQuery {
    let clauses = words.iter().map(|word| {
        let term = Term::from_field_text(field, word);
        let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
        (Occur::Should, query)
    });
    BooleanQuery::new(clauses.collect())
}

impl Bm25StatisticsProvider for Parts<'_> {
    fn total_num_tokens(&self, field: Field) -> tantivy::Result<u64> {
        self.searchers()
            .map(|searcher| searcher.total_num_tokens(field))
            .sum()
    }

    fn total_num_docs(&self) -> tantivy::Result<u64> {
        self.searchers()
            .map(Bm25StatisticsProvider::total_num_docs)
            .sum()
    }

    fn doc_freq(&self, term: &Term) -> tantivy::Result<u64> {
        self.searchers()
            .map(|searcher| Bm25StatisticsProvider::doc_freq(searcher, term))
            .sum()
    }
}
