//! Search among 10 000 and 100 000 skills: by words, with embeddings, and after a change.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_core::SkillId;
use repertoire_registry::{
    Registry, RegistrySettings, Snapshot,
    search::{ModelKind, SearchMethod, SearchRequest, SentenceEncoder, SkillIndex},
};
use rusqlite::{Connection, params};

use crate::measure::{format_duration, memory_kib, time_call};

/// How many skills there are, and the goals of the median and of the 99th percentile.
const SIZES: &[(usize, (Option<Duration>, Duration))] = &[
    (
        10_000,
        (Some(Duration::from_millis(10)), Duration::from_millis(15)),
    ),
    (100_000, (None, Duration::from_millis(25))),
];
/// How many skills are embedded for the first time.
const FIRST_SKILLS: usize = 2_800;
/// The number of distinct texts; the other skills repeat them.
const DISTINCT_TEXTS: usize = 2_000;
const QUERIES: usize = 500;
const UPDATES: usize = 2_000;
const SEED: u64 = 2640;

/// Sentences and messages from the corpus, to generate texts from.
struct TextCorpus {
    sentences: Vec<String>,
    messages: Vec<String>,
}

impl TextCorpus {
    fn read_corpus() -> Result<Self> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/activation");
        let mut sentences = Vec::new();
        for folder in std::fs::read_dir(corpus.join("skills"))? {
            let text = std::fs::read_to_string(folder?.path().join("SKILL.md"))?;
            let parts = text.split(['.', '\n']).map(str::trim);
            sentences.extend(parts.filter(|part| part.len() > 40).map(str::to_owned));
        }
        let messages = std::fs::read_to_string(corpus.join("tuning.yaml"))?;
        let messages = messages
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- message: "))
            .map(|text| text.trim_matches('"').to_owned());
        Ok(Self {
            sentences,
            messages: messages.collect(),
        })
    }

    /// Returns a text of this many sentences.
    fn random_text(&self, random: &mut fastrand::Rng, sentences: usize) -> String {
        let some = (0..sentences).filter_map(|_| random.choice(&self.sentences));
        let some: Vec<&str> = some.map(String::as_str).collect();
        some.join(". ")
    }

    /// Returns a message of 5 to 20 words.
    fn random_message(&self, random: &mut fastrand::Rng) -> String {
        let wanted = random.usize(5..=20);
        let mut words: Vec<&str> = Vec::new();
        while words.len() < wanted {
            let message = random.choice(&self.messages).map_or("", |text| text);
            words.extend(message.split_whitespace());
        }
        words.truncate(wanted);
        words.join(" ")
    }
}

pub(crate) fn run(model: &Path) -> Result<()> {
    let words = TextCorpus::read_corpus()?;
    measure_first_embedding(model)?;
    for (skills, goals) in SIZES {
        measure_size(model, &words, *skills, *goals)?;
    }
    Ok(())
}

/// Embeds published-size texts that no store knows: the skills of the corpus, several times with
/// different words.
fn measure_first_embedding(model: &Path) -> Result<()> {
    let account = tempfile::tempdir()?;
    let registry = Registry::open(RegistrySettings {
        account: Some(account.path().into()),
        ..RegistrySettings::default()
    })?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/activation/skills");
    let mut texts = Vec::new();
    for skill in std::fs::read_dir(folder)? {
        texts.push(std::fs::read_to_string(skill?.path().join("SKILL.md"))?);
    }
    for n in 0..FIRST_SKILLS {
        let text = texts.get(n % texts.len()).context("no skills")?;
        let (head, body) = text.split_once("\n# ").context("no heading")?;
        let about = head
            .lines()
            .find_map(|line| line.strip_prefix("description: "));
        let about = about.unwrap_or_default();
        let text = format!("# {n} {body}\n");
        let text = format!(
            "{}\n\n{about} {n}\n\n{text}",
            text.lines().next().unwrap_or_default()
        );
        registry.register_skill(&skill_id(n)?, &text)?;
    }
    let encoder = Arc::new(open_encoder(model, &registry)?);
    let snapshot = registry.snapshot();
    let mut index = SkillIndex::with_encoder(&registry, &snapshot, Some(encoder))?;
    let (took, done) = time_call(|| embed_all(&mut index, &registry, &snapshot));
    done?;
    println!(
        "First embedding of {FIRST_SKILLS} skills: {:.1} s (goal 90 s) on {} cores; {} MiB resident.\n",
        took.as_secs_f64(),
        std::thread::available_parallelism()?,
        memory_kib("VmRSS") / 1024
    );
    Ok(())
}

fn open_encoder(model: &Path, registry: &Registry) -> Result<SentenceEncoder> {
    let store = registry.local_store().ok().cloned();
    Ok(SentenceEncoder::open(ModelKind::MiniLm, model, store)?)
}

/// Measures search among a number of skills.
fn measure_size(
    model: &Path,
    words: &TextCorpus,
    skills: usize,
    (median_goal, goal): (Option<Duration>, Duration),
) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let folder = tempfile::tempdir()?;
    let settings = RegistrySettings {
        account: Some(folder.path().into()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings)?;
    eprintln!("registering {skills} skills");
    let texts: Vec<String> = (0..DISTINCT_TEXTS)
        .map(|n| {
            format!(
                "# Skill {n}\n\n{}\n\n{}\n",
                words.random_text(&mut random, 2),
                words.random_text(&mut random, 12)
            )
        })
        .collect();
    for n in 0..skills {
        registry.register_skill(&skill_id(n)?, &texts[n % DISTINCT_TEXTS])?;
    }
    let snapshot = registry.snapshot();
    let messages: Vec<String> = (0..QUERIES)
        .map(|_| words.random_message(&mut random))
        .collect();

    println!("| {skills} skills | p50 | p99 | goal |\n|---|---|---|---|");
    let before = memory_kib("VmRSS");
    let (built, lexical) = time_call(|| SkillIndex::new(&registry, &snapshot));
    let mut lexical = lexical?;
    let index = memory_kib("VmRSS").saturating_sub(before) / 1024;
    let by_words = measure_queries(&messages, |message| drop(lexical.find_skills(message, 5)));
    print_row("by words", &by_words, None, Some(Duration::from_millis(10)));
    compare_full_text(skills, &texts, &messages, &by_words)?;
    measure_updates(skills, &registry, &mut lexical, "one change, by words")?;
    drop(lexical);

    let before = memory_kib("VmRSS");
    let encoder = Arc::new(open_encoder(model, &registry)?);
    let model = memory_kib("VmRSS").saturating_sub(before) / 1024;
    let encoding = measure_queries(&messages, |message| drop(encoder.encode_message(message)));
    let mut fused = SkillIndex::with_encoder(&registry, &snapshot, Some(encoder))?;
    eprintln!("embedding {DISTINCT_TEXTS} texts, for {skills} skills");
    embed_all(&mut fused, &registry, &snapshot)?;
    let by_meaning = measure_queries(&messages, |message| drop(fused.find_skills(message, 5)));
    print_row("by words and meaning", &by_meaning, median_goal, Some(goal));
    print_row("… of that the encoder", &encoding, None, None);
    measure_updates(
        skills,
        &registry,
        &mut fused,
        "one change, by words and meaning",
    )?;
    println!(
        "\nIndex of {skills} skills: built in {:.1} s, {index} MiB; the model {model} MiB, the vectors \
         {} MiB (by their size).\n",
        built.as_secs_f64(),
        skills * (ModelKind::MiniLm.dimensions() + 4) / (1024 * 1024),
    );
    Ok(())
}

fn skill_id(n: usize) -> Result<SkillId> {
    Ok(format!("group-{}/skill-{n}", n % 100).parse()?)
}

fn embed_all(finder: &mut SkillIndex, registry: &Registry, snapshot: &Snapshot) -> Result<()> {
    while let Some(lesson) = finder.next_batch(registry, snapshot, 2_000) {
        finder.insert_embeddings(lesson.compute_embeddings()?);
    }
    Ok(())
}

fn measure_queries(messages: &[String], find: impl Fn(&str)) -> Vec<Duration> {
    // Warm up.
    for message in messages.iter().take(20) {
        find(message);
    }
    let mut times = Vec::with_capacity(messages.len());
    for message in messages {
        let (took, ()) = time_call(|| find(message));
        times.push(took);
    }
    times.sort_unstable();
    times
}

fn percentile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

fn print_row(
    what: &str,
    times: &[Duration],
    median_goal: Option<Duration>,
    goal: Option<Duration>,
) {
    let (p50, p99) = (percentile(times, 50), percentile(times, 99));
    let goals = [("p50", p50, median_goal), ("p99", p99, goal)];
    let goals = goals.into_iter().filter_map(|(name, time, goal)| {
        let goal = goal?;
        let verdict = if time <= goal { "met" } else { "MISSED" };
        Some(format!("{name} ≤ {} {verdict}", format_duration(goal)))
    });
    let goal = goals.collect::<Vec<_>>().join(", ");
    println!(
        "| {what} | {} | {} | {goal} |",
        format_duration(p50),
        format_duration(p99)
    );
}

/// Runs the same queries with SQLite FTS5, the usual alternative.
fn compare_full_text(
    skills: usize,
    texts: &[String],
    messages: &[String],
    ours: &[Duration],
) -> Result<()> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch(
        "CREATE VIRTUAL TABLE skills USING fts5(id UNINDEXED, text, tokenize = 'porter')",
    )?;
    let transaction = connection.transaction()?;
    for n in 0..skills {
        transaction
            .prepare_cached("INSERT INTO skills VALUES (?1, ?2)")?
            .execute(params![skill_id(n)?.as_str(), texts[n % DISTINCT_TEXTS]])?;
    }
    transaction.commit()?;
    let mut times = Vec::new();
    // FTS5 takes long here, so fewer messages are measured.
    for message in messages.iter().take(50) {
        let words = message.split(|c: char| !c.is_alphanumeric());
        let words: Vec<String> = words
            .filter(|word| !word.is_empty())
            .map(|word| format!("\"{word}\""))
            .collect();
        let (took, found) = time_call(|| -> rusqlite::Result<usize> {
            let sql = "SELECT id FROM skills WHERE skills MATCH ?1 ORDER BY rank LIMIT 5";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([words.join(" OR ")], |row| row.get::<_, String>(0))?;
            Ok(rows.count())
        });
        found?;
        times.push(took);
    }
    times.sort_unstable();
    print_row("SQLite FTS5, the same messages", &times, None, None);
    let ratio = percentile(&times, 50).as_secs_f64() / percentile(ours, 50).as_secs_f64();
    println!("| ratio to FTS5 (p50) | {ratio:.1}× faster | | |");
    Ok(())
}

/// Measures how long it takes until a query finds a changed skill.
fn measure_updates(
    skills: usize,
    registry: &Registry,
    finder: &mut SkillIndex,
    what: &str,
) -> Result<()> {
    let mut times = Vec::new();
    for n in 0..UPDATES {
        let id = skill_id(n * 37 % skills)?;
        let word = format!("zebra{n}{}", what.len());
        registry.register_skill(&id, &format!("# Changed\n\nSpeaks of {word} and more.\n"))?;
        let snapshot = registry.snapshot();
        let (took, done) = time_call(|| finder.update_skill(registry, &snapshot, &id));
        done?;
        times.push(took);
        let request = SearchRequest::new(&word, 1).by(SearchMethod::Words);
        let found = finder.search(&request);
        let seen = found.skills.first().context("the change is not seen")?;
        anyhow::ensure!(seen.id == id, "{} instead of {id}", seen.id);
    }
    times.sort_unstable();
    print_row(what, &times, None, Some(Duration::from_millis(5)));
    let most = times.last().copied().unwrap_or_default();
    println!(
        "| … the longest of {UPDATES} | | {} | |",
        format_duration(most)
    );
    Ok(())
}
