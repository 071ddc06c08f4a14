//! Finding skills among 100 000: by words, by meaning too, and after a change.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use repertoire_core::SkillId;
use repertoire_registry::{
    Registry, Scope, Settings, Snapshot,
    search::{Embedder, Finder},
};
use rusqlite::{Connection, params};

use crate::measure::{memory, shown, time};

const SKILLS: usize = 100_000;
/// So many are different in more than their names; the rest repeats them.
const TEXTS: usize = 2_000;
const QUERIES: usize = 500;
const UPDATES: usize = 2_000;
const SEED: u64 = 2640;

/// Sentences that people wrote about skills, to make others from.
struct Words {
    sentences: Vec<String>,
    messages: Vec<String>,
}

impl Words {
    fn read() -> Result<Self> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus/activation");
        let mut sentences = Vec::new();
        for folder in std::fs::read_dir(corpus.join("skills"))? {
            let text = std::fs::read_to_string(folder?.path().join("SKILL.md"))?;
            let parts = text.split(['.', '\n']).map(str::trim);
            sentences.extend(parts.filter(|part| part.len() > 40).map(str::to_owned));
        }
        let messages = std::fs::read_to_string(corpus.join("eval.yaml"))?;
        let messages = messages
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- message: "))
            .map(|text| text.trim_matches('"').to_owned());
        Ok(Self {
            sentences,
            messages: messages.collect(),
        })
    }

    /// A text of so many sentences.
    fn text(&self, random: &mut fastrand::Rng, sentences: usize) -> String {
        let some = (0..sentences).filter_map(|_| random.choice(&self.sentences));
        let some: Vec<&str> = some.map(String::as_str).collect();
        some.join(". ")
    }

    /// A message of 5 to 20 words.
    fn message(&self, random: &mut fastrand::Rng) -> String {
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
    let words = Words::read()?;
    let mut random = fastrand::Rng::with_seed(SEED);
    let folder = tempfile::tempdir()?;
    let settings = Settings {
        account: Some(folder.path().into()),
        ..Settings::default()
    };
    let registry = Registry::open(settings)?;
    eprintln!("registering {SKILLS} skills");
    let texts: Vec<String> = (0..TEXTS)
        .map(|n| {
            format!(
                "# Skill {n}\n\n{}\n\n{}\n",
                words.text(&mut random, 2),
                words.text(&mut random, 12)
            )
        })
        .collect();
    for n in 0..SKILLS {
        registry.register(&id(n)?, &texts[n % TEXTS])?;
    }
    let snapshot = registry.snapshot();
    let messages: Vec<String> = (0..QUERIES).map(|_| words.message(&mut random)).collect();

    println!("| what | p50 | p99 | goal |\n|---|---|---|---|");
    let before = memory("VmRSS");
    let (built, lexical) = time(|| Finder::new(&registry, &snapshot));
    let mut lexical = lexical?;
    let index = memory("VmRSS").saturating_sub(before) / 1024;
    let by_words = measure(&messages, |message| lexical.find(message, 5).map(drop))?;
    row("by words", &by_words, Some(Duration::from_millis(10)));
    full_text(&texts, &messages, &by_words)?;
    changes(&registry, &mut lexical, "one change, by words")?;
    drop(lexical);

    let before = memory("VmRSS");
    let embedder = Arc::new(Embedder::open(
        model,
        registry.store(Scope::Account).ok().cloned(),
    )?);
    let model = memory("VmRSS").saturating_sub(before) / 1024;
    let mut fused = Finder::with(&registry, &snapshot, Some(embedder))?;
    eprintln!("reading {TEXTS} texts, for {SKILLS} skills");
    let (read, done) = time(|| read_all(&mut fused, &registry, &snapshot));
    done?;
    let vectors = SKILLS * size_of::<repertoire_embed::Vector>() / (1024 * 1024);
    let by_meaning = measure(&messages, |message| fused.find(message, 5).map(drop))?;
    row(
        "by words and meaning",
        &by_meaning,
        Some(Duration::from_millis(40)),
    );
    changes(&registry, &mut fused, "one change, by words and meaning")?;
    println!(
        "\nIndex of {SKILLS} skills: built in {:.1} s, {index} MiB; the model {model} MiB, the \
         vectors {vectors} MiB (by their size). One text read in {} on {} cores.",
        built.as_secs_f64(),
        shown(read / u32::try_from(TEXTS)?),
        std::thread::available_parallelism()?
    );
    Ok(())
}

fn id(n: usize) -> Result<SkillId> {
    Ok(format!("group-{}/skill-{n}", n % 100).parse()?)
}

fn read_all(finder: &mut Finder, registry: &Registry, snapshot: &Snapshot) -> Result<()> {
    while let Some(lesson) = finder.lesson(registry, snapshot, 2_000) {
        finder.learn(&lesson.read()?);
    }
    Ok(())
}

fn measure(
    messages: &[String],
    find: impl Fn(&str) -> repertoire_registry::Result<()>,
) -> Result<Vec<Duration>> {
    // The first ones only warm up.
    for message in messages.iter().take(20) {
        find(message)?;
    }
    let mut times = Vec::with_capacity(messages.len());
    for message in messages {
        let (took, found) = time(|| find(message));
        found?;
        times.push(took);
    }
    times.sort_unstable();
    Ok(times)
}

fn at(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}

fn row(what: &str, times: &[Duration], goal: Option<Duration>) {
    let (p50, p99) = (at(times, 50), at(times, 99));
    let goal = match goal {
        None => String::new(),
        Some(goal) if p99 <= goal => format!("p99 ≤ {} met", shown(goal)),
        Some(goal) => format!("p99 ≤ {} MISSED", shown(goal)),
    };
    println!("| {what} | {} | {} | {goal} |", shown(p50), shown(p99));
}

/// The same question to SQLite, as whoever has no index of their own would ask it.
fn full_text(texts: &[String], messages: &[String], ours: &[Duration]) -> Result<()> {
    let mut connection = Connection::open_in_memory()?;
    connection.execute_batch(
        "CREATE VIRTUAL TABLE skills USING fts5(id UNINDEXED, text, tokenize = 'porter')",
    )?;
    let transaction = connection.transaction()?;
    for n in 0..SKILLS {
        transaction
            .prepare_cached("INSERT INTO skills VALUES (?1, ?2)")?
            .execute(params![id(n)?.as_str(), texts[n % TEXTS]])?;
    }
    transaction.commit()?;
    let mut times = Vec::new();
    // It takes long, so that fewer have to do.
    for message in messages.iter().take(50) {
        let words = message.split(|c: char| !c.is_alphanumeric());
        let words: Vec<String> = words
            .filter(|word| !word.is_empty())
            .map(|word| format!("\"{word}\""))
            .collect();
        let (took, found) = time(|| -> rusqlite::Result<usize> {
            let sql = "SELECT id FROM skills WHERE skills MATCH ?1 ORDER BY rank LIMIT 5";
            let mut statement = connection.prepare_cached(sql)?;
            let rows = statement.query_map([words.join(" OR ")], |row| row.get::<_, String>(0))?;
            Ok(rows.count())
        });
        found?;
        times.push(took);
    }
    times.sort_unstable();
    row("SQLite FTS5, the same messages", &times, None);
    let ratio = at(&times, 50).as_secs_f64() / at(ours, 50).as_secs_f64();
    println!("| ratio to FTS5 (p50) | {ratio:.1}× faster | | |");
    Ok(())
}

/// One skill changes: how long until the next query sees it.
fn changes(registry: &Registry, finder: &mut Finder, what: &str) -> Result<()> {
    let mut times = Vec::new();
    for n in 0..UPDATES {
        let id = id(n * 37)?;
        let word = format!("zebra{n}{}", what.len());
        registry.register(&id, &format!("# Changed\n\nSpeaks of {word} and more.\n"))?;
        let snapshot = registry.snapshot();
        let (took, done) = time(|| finder.update(registry, &snapshot, &id));
        done?;
        times.push(took);
        let found = finder.find_by_words(&word, 1)?;
        let seen = found.first().context("the change is not seen")?;
        anyhow::ensure!(seen.id == id, "{} instead of {id}", seen.id);
    }
    times.sort_unstable();
    row(what, &times, Some(Duration::from_millis(5)));
    let most = times.last().copied().unwrap_or_default();
    println!("| … the longest of {UPDATES} | | {} | |", shown(most));
    Ok(())
}
