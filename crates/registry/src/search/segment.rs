//! One lexical index in memory, and the search over several of them.

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

use super::{SkillDocument, index_error, lexical::STOP_WORDS};
use crate::error::Result;

const ANALYZER: &str = "skills";
/// The memory budget of the index writer in bytes; it grows if needed.
const WRITER_MEMORY: usize = 15_000_000;
const SMALL_WRITER_MEMORY: usize = 1_000_000;

/// The highest score that one term can add, divided by its rarity.
const MAX_TERM_SCORE: f64 = 2.2;

pub(super) fn text_analyzer() -> TextAnalyzer {
    let stop = STOP_WORDS.iter().map(|&word| word.to_owned());
    TextAnalyzer::builder(SimpleTokenizer::default())
        .filter(RemoveLongFilter::limit(40))
        .filter(LowerCaser)
        .filter(StopWordFilter::remove(stop))
        .filter(Stemmer::new(Language::English))
        .build()
}

/// A lexical index of some skills.
pub(super) struct Segment {
    searcher: Option<Searcher>,
    field: Field,
    ids: Vec<SkillId>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segment")
            .field("skills", &self.ids.len())
            .finish_non_exhaustive()
    }
}

/// Builds a schema with one field, in which names and descriptions are indexed twice. Separate
/// fields would have separate scores, and short fields would dominate.
fn index_schema() -> (Schema, Field) {
    let mut builder = Schema::builder();
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(ANALYZER)
        .set_index_option(IndexRecordOption::WithFreqs)
        .set_fieldnorms(true);
    let text = TextOptions::default().set_indexing_options(indexing);
    let field = builder.add_text_field("text", text);
    (builder.build(), field)
}

impl Segment {
    pub(super) fn from_documents<'a>(
        documents: impl Iterator<Item = &'a SkillDocument>,
    ) -> Result<Self> {
        let (schema, field) = index_schema();
        let mut part = Self {
            searcher: None,
            field,
            ids: Vec::new(),
        };
        let documents: Vec<&SkillDocument> = documents.collect();
        if documents.is_empty() {
            return Ok(part);
        }
        let memory = if documents.len() > 1000 {
            WRITER_MEMORY
        } else {
            SMALL_WRITER_MEMORY
        };
        let tokenizers = TokenizerManager::new();
        tokenizers.register(ANALYZER, text_analyzer());
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
        let (reader, ids) = build().map_err(|error| index_error(&error))?;
        part.searcher = Some(reader.searcher());
        part.ids = ids;
        Ok(part)
    }
}

/// Segments that are searched as one index.
pub(super) struct SegmentSet<'a>(pub(super) Vec<&'a Segment>);

impl SegmentSet<'_> {
    fn searchers(&self) -> impl Iterator<Item = &Searcher> {
        self.0.iter().filter_map(|part| part.searcher.as_ref())
    }

    /// Returns the skills that share terms with a message, with the share of its terms they cover.
    pub(super) fn score_documents(
        &self,
        message: &str,
        limit: usize,
        is_current: impl Fn(usize, &SkillId) -> bool,
    ) -> Result<Vec<(SkillId, f64)>> {
        let mut words: Vec<String> = Vec::new();
        let mut analyzer = text_analyzer();
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
        let ideal = self.message_weight(&words)? * MAX_TERM_SCORE;
        let mut found: HashMap<SkillId, f64> = HashMap::new();
        for (number, part) in self.0.iter().enumerate() {
            let Some(searcher) = &part.searcher else {
                continue;
            };
            let query = terms_query(part.field, &words);
            let mut wanted = limit;
            let current = loop {
                let best = TopDocs::with_limit(wanted).order_by_score();
                let hits = searcher
                    .search_with_statistics_provider(&query, &best, self)
                    .map_err(|error| index_error(&error))?;
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
                // Outdated versions of skills must not displace current ones.
                wanted *= 2;
            };
            for (id, score) in current {
                found.insert(id.clone(), (f64::from(score) / ideal).min(0.9));
            }
        }
        Ok(found.into_iter().collect())
    }

    /// Returns the total weight of the words: rare words weigh more, unknown ones most.
    fn message_weight(&self, words: &[String]) -> Result<f64> {
        #[allow(clippy::cast_precision_loss, reason = "numbers of skills are small")]
        let number = |n: u64| n as f64;
        let all = number(self.total_num_docs().map_err(|error| index_error(&error))?);
        let mut sum = 0.0;
        for word in words {
            let Some(part) = self.0.first() else { break };
            let term = Term::from_field_text(part.field, word);
            let having = number(self.doc_freq(&term).map_err(|error| index_error(&error))?);
            sum += (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
        }
        Ok(sum)
    }
}

fn terms_query(field: Field, words: &[String]) -> BooleanQuery {
    let clauses = words.iter().map(|word| {
        let term = Term::from_field_text(field, word);
        let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
        (Occur::Should, query)
    });
    BooleanQuery::new(clauses.collect())
}

impl Bm25StatisticsProvider for SegmentSet<'_> {
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
