//! Which skills are found: ours and peers on the same messages, in one table.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use repertoire_app::{ActivationCase, ActivationTally, CaseKind, EvaluationFile, ratio};
use repertoire_core::{SkillId, frontmatter};
use repertoire_registry::{
    Registry, RegistrySettings, Snapshot,
    search::{
        ModelKind, SearchMethod, SearchRequest, SentenceEncoder, SkillIndex, SkillUse, Vector,
        index_terms, text_digest,
    },
    store::ExampleMessages,
};

/// How many of the best results count.
const TOP_RESULTS: usize = 5;
const BODY_CHARS: usize = 4_000;

/// The skills and messages of `corpus/activation`.
pub(crate) struct Corpus {
    _account: tempfile::TempDir,
    pub(crate) registry: Arc<Registry>,
    pub(crate) encoder: Arc<SentenceEncoder>,
    pub(crate) tuning: Vec<ActivationCase>,
    pub(crate) held_out: Vec<ActivationCase>,
}

pub(crate) fn corpus_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/activation")
}

impl Corpus {
    pub(crate) fn open(model: &Path) -> Result<Self> {
        let account = tempfile::tempdir()?;
        let mut settings = RegistrySettings::from_folders([corpus_dir().join("skills")]);
        settings.account = Some(account.path().into());
        settings.system_skills = false;
        let registry = Registry::open(settings)?;
        let kind = if model.to_string_lossy().contains("mpnet") {
            ModelKind::Mpnet
        } else {
            ModelKind::MiniLm
        };
        let local = registry.local_store()?.clone();
        let encoder = Arc::new(SentenceEncoder::open(kind, model, Some(local))?);
        let cases = |name: &str| -> Result<Vec<ActivationCase>> {
            let text = std::fs::read_to_string(corpus_dir().join(name))?;
            Ok(EvaluationFile::parse(&text)?.activations)
        };
        Ok(Self {
            _account: account,
            registry,
            encoder,
            tuning: cases("tuning.yaml")?,
            held_out: cases("held-out.yaml")?,
        })
    }

    pub(crate) fn build_index(&self) -> Result<SkillIndex> {
        let snapshot = self.registry.snapshot();
        let encoder = Some(self.encoder.clone());
        let mut index = SkillIndex::with_encoder(&self.registry, &snapshot, encoder)?;
        while let Some(batch) = index.next_batch(&self.registry, &snapshot, 256) {
            index.insert_embeddings(batch.compute_embeddings()?);
        }
        Ok(index)
    }

    /// Stores the example messages of the corpus.
    fn add_examples(&self, snapshot: &Snapshot) -> Result<()> {
        let text = std::fs::read_to_string(corpus_dir().join("examples.yaml"))?;
        let yaml = repertoire_core::Frontmatter::parse_file(&text)?.to_json();
        let mut all = Vec::new();
        for entry in snapshot.skills() {
            let messages = yaml.get(entry.id.as_str());
            let messages = messages.and_then(serde_json::Value::as_array);
            let messages = messages.with_context(|| format!("{} has no examples", entry.id))?;
            let texts = messages.iter().filter_map(serde_json::Value::as_str);
            let stored = ExampleMessages {
                skill: entry.id.as_str().to_owned(),
                model: "corpus".to_owned(),
                messages: texts.map(str::to_owned).collect(),
                written_at: String::new(),
            };
            all.push((text_digest(&self.registry, entry), stored));
        }
        self.registry.local_store()?.put_example_messages(all)?;
        Ok(())
    }
}

/// The results of one method on one set.
#[derive(Default)]
struct Row {
    kinds: HashMap<CaseKind, [usize; 4]>,
}

impl Row {
    /// Counts the result of a peer, which ranks but does not decide.
    fn count_ranking(&mut self, case: &ActivationCase, ranked: &[&SkillId]) {
        let place = ranked.iter().position(|id| case.accepts(id.as_str()));
        let counts = self.kinds.entry(case.kind()).or_default();
        counts[0] += 1;
        counts[1] += usize::from(place == Some(0));
        counts[2] += usize::from(place.is_some());
    }

    fn from_tally(tally: &ActivationTally) -> Self {
        let kinds = tally.kinds.iter();
        let counts =
            kinds.map(|(kind, one)| (*kind, [one.cases, one.first, one.in_top, one.shown]));
        Self {
            kinds: counts.collect(),
        }
    }

    fn sum(&self, kinds: &[CaseKind]) -> [usize; 4] {
        let mut sum = [0; 4];
        for counts in kinds.iter().filter_map(|kind| self.kinds.get(kind)) {
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sum
    }

    fn print(&self, name: &str, decides: bool) {
        let hits = |kinds: &[CaseKind]| {
            let [cases, first, in_top, _] = self.sum(kinds);
            format!("{:.2} / {:.2}", ratio(first, cases), ratio(in_top, cases))
        };
        let shown = |kinds: &[CaseKind]| {
            let [cases, .., shown] = self.sum(kinds);
            if decides {
                format!("{:.2}", ratio(shown, cases))
            } else {
                "–".to_owned()
            }
        };
        let content = [CaseKind::Ordinary, CaseKind::Avoid, CaseKind::Noisy];
        let [named, first, ..] = self.sum(&[CaseKind::Named]);
        println!(
            "| {name} | {} | {} | {} | {} | {:.2} | {} | {} | {} | {} |",
            hits(&[CaseKind::Ordinary]),
            hits(&[CaseKind::Avoid]),
            hits(&[CaseKind::Noisy]),
            hits(&content),
            ratio(first, named),
            shown(&content),
            shown(&[CaseKind::Easy]),
            shown(&[CaseKind::Hard]),
            shown(&[CaseKind::Chitchat]),
        );
    }
}

/// BM25 over weighted fields with the average lengths of the corpus, as in textbooks.
struct Bm25 {
    ids: Vec<SkillId>,
    postings: HashMap<String, Vec<(usize, f64)>>,
}

impl Bm25 {
    fn new(fields: &[(f64, Vec<Vec<String>>)], ids: Vec<SkillId>) -> Self {
        let mut frequencies: Vec<HashMap<String, f64>> = vec![HashMap::new(); ids.len()];
        for (weight, texts) in fields {
            let all: usize = texts.iter().map(Vec::len).sum();
            let average = (ratio(all, texts.len())).max(1.0);
            for (terms, frequencies) in texts.iter().zip(&mut frequencies) {
                let norm = 0.25 + 0.75 * ratio(terms.len(), 1) / average;
                for term in terms {
                    *frequencies.entry(term.clone()).or_default() += weight / norm;
                }
            }
        }
        let mut postings: HashMap<String, Vec<(usize, f64)>> = HashMap::new();
        for (place, terms) in frequencies.into_iter().enumerate() {
            for (term, frequency) in terms {
                postings.entry(term).or_default().push((place, frequency));
            }
        }
        Self { ids, postings }
    }

    fn rank(&self, message: &str) -> Vec<&SkillId> {
        let mut scores = vec![0.0; self.ids.len()];
        let mut terms = index_terms(message);
        terms.sort_unstable();
        terms.dedup();
        for term in terms {
            let Some(postings) = self.postings.get(&term) else {
                continue;
            };
            let (all, having) = (ratio(self.ids.len(), 1), ratio(postings.len(), 1));
            let rarity = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
            for (place, frequency) in postings {
                scores[*place] += rarity * frequency * 2.2 / (frequency + 1.2);
            }
        }
        best_of(&self.ids, &scores)
    }
}

fn best_of<'a>(ids: &'a [SkillId], scores: &[f64]) -> Vec<&'a SkillId> {
    let mut order: Vec<usize> = (0..ids.len()).filter(|at| scores[*at] > 0.0).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order
        .into_iter()
        .take(TOP_RESULTS)
        .map(|at| &ids[at])
        .collect()
}

/// Other ways to rank skills.
struct Peers {
    ids: Vec<SkillId>,
    plain: Bm25,
    with_body: Bm25,
    vectors: Vec<Vector>,
}

impl Peers {
    fn new(corpus: &Corpus, snapshot: &Snapshot) -> Result<Self> {
        let name = |id: &SkillId| id.as_str().replace(['-', '/'], " ");
        let (mut ids, mut vectors) = (Vec::new(), Vec::new());
        let (mut names, mut descriptions, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for entry in snapshot.skills() {
            let about = entry.metadata.description.as_deref().unwrap_or_default();
            let bytes = corpus.registry.read_body(entry)?;
            let text = String::from_utf8_lossy(&bytes);
            let body = frontmatter::strip_frontmatter(&text).chars();
            names.push(index_terms(&name(&entry.id)));
            descriptions.push(index_terms(about));
            bodies.push(index_terms(&body.take(BODY_CHARS).collect::<String>()));
            let text = format!("{}. {about}", name(&entry.id));
            vectors.push(corpus.encoder.encode_message(&text));
            ids.push(entry.id.clone());
        }
        let both = names.iter().zip(&descriptions);
        let both = both.map(|(name, description)| [&name[..], description].concat());
        let plain = Bm25::new(&[(1.0, both.collect())], ids.clone());
        let fields = [(2.0, names), (2.0, descriptions), (1.0, bodies)];
        let with_body = Bm25::new(&fields, ids.clone());
        Ok(Self {
            ids,
            plain,
            with_body,
            vectors,
        })
    }

    fn rank_by_cosine(&self, encoder: &SentenceEncoder, message: &str) -> Vec<&SkillId> {
        let message = encoder.encode_message(message);
        let cosines = self.vectors.iter();
        let cosines = cosines.map(|one| f64::from(one.cosine_similarity(&message)));
        best_of(&self.ids, &cosines.collect::<Vec<_>>())
    }

    fn print_rows(&self, cases: &[ActivationCase], encoder: &SentenceEncoder) {
        let [mut plain, mut with_body, mut cosine] = [(); 3].map(|()| Row::default());
        for case in cases {
            plain.count_ranking(case, &self.plain.rank(&case.message));
            with_body.count_ranking(case, &self.with_body.rank(&case.message));
            cosine.count_ranking(case, &self.rank_by_cosine(encoder, &case.message));
        }
        plain.print("BM25", false);
        with_body.print("BM25F with body", false);
        cosine.print("embeddings of name and description", false);
    }
}

pub(crate) fn run(model: &Path) -> Result<()> {
    let corpus = Corpus::open(model)?;
    let snapshot = corpus.registry.snapshot();
    let peers = Peers::new(&corpus, &snapshot)?;
    let ours = corpus.build_index()?;
    corpus.add_examples(&snapshot)?;
    let with_examples = corpus.build_index()?;
    // What was chosen for the messages of the other set.
    let fitting = corpus.tuning.iter().filter(|case| case.expect != "none");
    let uses = fitting.filter_map(|case| {
        Some(SkillUse {
            skill: case.expect.parse().ok()?,
            message: corpus.encoder.encode_message(&case.message),
        })
    });
    let uses: Vec<SkillUse> = uses.collect();
    println!(
        "{} skills, {}",
        ours.len(),
        corpus.encoder.kind().published_name()
    );
    for (set, cases) in [("tuning", &corpus.tuning), ("held out", &corpus.held_out)] {
        println!(
            "\n| {set}, {} messages | ordinary | other words | long | all three | named first | \
             shown | shown, easy | hard | chit-chat |\n|---|---|---|---|---|---|---|---|---|---|",
            cases.len()
        );
        peers.print_rows(cases, &corpus.encoder);
        let measure = |index: &SkillIndex, method: SearchMethod, uses: &[SkillUse]| {
            let tally = ActivationTally::from_cases(cases, |message| {
                index.search(&SearchRequest {
                    uses,
                    ..SearchRequest::new(message, TOP_RESULTS).by(method)
                })
            });
            Row::from_tally(&tally)
        };
        measure(&ours, SearchMethod::Words, &[]).print("ours, words", true);
        measure(&ours, SearchMethod::Meaning, &[]).print("ours, fused", true);
        measure(&with_examples, SearchMethod::Meaning, &[]).print("ours, with examples", true);
        // Using the same messages would measure memory.
        if set != "tuning" {
            measure(&ours, SearchMethod::Meaning, &uses).print("ours, fused, after use", true);
            measure(&with_examples, SearchMethod::Meaning, &uses)
                .print("ours, with examples, after use", true);
        }
    }
    Ok(())
}
