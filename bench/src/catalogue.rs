//! The catalogue: loading folders, memory, registering, pages and reads.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use repertoire_core::{SkillId, Uri};
use repertoire_registry::{Registry, RegistrySettings};

use crate::measure::{median, memory_kib, print_comparison, time_call};

const SKILLS: usize = 10_000;
const ROUNDS: usize = 7;

pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    println!("| what | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|");
    measure_loading(folder.path())?;
    measure_registering(folder.path())?;
    Ok(())
}

/// Writes skills of about 6 KiB in two files, each with different content.
fn write_skills(root: &Path) -> Result<()> {
    for n in 0..SKILLS {
        let name = format!("skill-{n:05}");
        let skill = root.join(format!("team-{:02}", n % 40)).join(&name);
        fs::create_dir_all(skill.join("references"))?;
        let paragraph = format!("Step {n}: look at the thing, decide, write down why. ").repeat(8);
        let mut body = format!(
            "---\nname: {name}\ndescription: Handles case {n}. Use when case {n} comes up.\n\
             license: Apache-2.0\nmetadata:\n  owner: team-{}\n---\n# Case {n}\n\n",
            n % 40
        );
        for part in 0..9 {
            body.push_str(&format_args!("## Part {part}\n\n{paragraph}\n\n").to_string());
        }
        fs::write(skill.join("SKILL.md"), body)?;
        fs::write(skill.join("references/notes.md"), paragraph.repeat(5))?;
    }
    Ok(())
}

fn measure_loading(folder: &Path) -> Result<()> {
    let root = folder.join("skills");
    let cache = folder.join("cache");
    let empty = folder.join("empty");
    fs::create_dir_all(&empty)?;
    write_skills(&root)?;
    // Timestamps younger than the clock's tick are not cached; wait until it has passed.
    let written = Instant::now();
    while written.elapsed() < Duration::from_millis(200) {
        std::thread::yield_now();
    }
    let (mut sums, mut finds) = (Vec::new(), Vec::new());
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    let mut used = 0;
    for round in 0..=ROUNDS {
        let _ = fs::remove_dir_all(&cache);
        let (sum, _) = time_call(|| {
            run_shell(
                &root,
                "find . -type f -print0 | xargs -0 sha256sum > /dev/null",
            )
        });
        let (find, _) = time_call(|| run_shell(&root, "find . -printf '%s %T@\\n' > /dev/null"));
        let (first, _) = time_call(|| load_in_child(&root, &cache));
        let (second, answer) = time_call(|| load_in_child(&root, &cache));
        let (_, nothing) = time_call(|| load_in_child(&empty, &cache));
        // The first round brings the files into the system's cache.
        if round > 0 {
            sums.push(sum);
            finds.push(find);
            cold.push(first);
            warm.push(second);
        }
        let (count, memory) = answer?;
        ensure!(count == SKILLS, "{count} skills were loaded");
        used = memory.saturating_sub(nothing?.1);
    }
    let (sums, finds) = (median(sums), median(finds));
    let (cold, warm) = (median(cold), median(warm));
    print_comparison(
        "cold load of 10 000 skill folders",
        cold,
        "sha256sum over the same files",
        sums,
        Some(1.5),
    );
    print_comparison("warm start", warm, "cold load", cold, Some(0.2));
    print_comparison(
        "warm start",
        warm,
        "`find` that only looks at size and time of the same files",
        finds,
        None,
    );
    let goal = if used <= 40 * 1024 { "met" } else { "MISSED" };
    println!(
        "| memory of 10 000 skills | {:.1} MiB | an empty process | | | goal ≤ 40 MB {goal} |",
        f64::from(u32::try_from(used).unwrap_or(u32::MAX)) / 1024.0
    );
    Ok(())
}

/// Runs a shell script in the folder of the skills.
fn run_shell(root: &Path, script: &str) -> Result<()> {
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "`{script}` failed");
    Ok(())
}

/// Loads in a child process; returns the number of skills and the memory in KiB.
fn load_in_child(root: &Path, cache: &Path) -> Result<(usize, u64)> {
    let output = Command::new(std::env::current_exe()?)
        .arg("load")
        .args([root, cache])
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let (count, memory) = text
        .trim()
        .split_once(' ')
        .context("the child printed nothing")?;
    Ok((count.parse()?, memory.parse()?))
}

/// Runs in the child: loads the skills and prints their number and the memory.
pub(crate) fn load_and_report(args: &[&str]) -> Result<()> {
    let [root, cache] = args else {
        anyhow::bail!("load ROOT CACHE");
    };
    let settings = RegistrySettings {
        cache: Some(PathBuf::from(cache)),
        ..RegistrySettings::from_folders([PathBuf::from(root)])
    };
    let registry = Registry::open(settings)?;
    println!("{} {}", registry.snapshot().len(), memory_kib("VmRSS"));
    // Exit without destructors: only loading is measured.
    std::process::exit(0)
}

fn skill_body(n: usize) -> String {
    let text = format!("Line {n} of a body that someone registered. ").repeat(90);
    format!("# Registered {n}\n\nWhat number {n} is for.\n\n{text}\n")
}

fn skill_id(n: usize) -> Result<SkillId> {
    Ok(format!("worker/skill-{n:06}").parse()?)
}

/// Opens a store and registers skills from several threads, so that commits are shared.
fn filled_registry(home: PathBuf, count: usize) -> Result<Arc<Registry>> {
    let registry = Registry::open(RegistrySettings {
        account: Some(home),
        ..RegistrySettings::default()
    })?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..16)
            .map(|worker| {
                let registry = &registry;
                scope.spawn(move || -> Result<()> {
                    for n in (worker..count).step_by(16) {
                        registry.register_skill(&skill_id(n)?, &skill_body(n))?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a worker panicked"),
            })
    })?;
    Ok(registry)
}

fn measure_registering(folder: &Path) -> Result<()> {
    let small = filled_registry(folder.join("small"), 1_000)?;
    let (took, large) = time_call(|| filled_registry(folder.join("large"), 100_000));
    let large = large?;
    eprintln!("filled 100 000 in {took:.1?}");
    let bare = bare_sqlite(&folder.join("bare.db"), 100_000)?;
    let (mut in_small, mut in_large, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..400 {
        let text = skill_body(n);
        let new = skill_id(900_000 + n)?;
        in_small.push(time_call(|| small.register_skill(&new, &text)).0);
        in_large.push(time_call(|| large.register_skill(&new, &text)).0);
        plain.push(
            time_call(|| {
                bare.execute(
                    "INSERT INTO t VALUES (?1, ?2)",
                    [new.as_str(), text.as_str()],
                )
            })
            .0,
        );
    }
    let (in_small, in_large) = (median(in_small), median(in_large));
    print_comparison(
        "register into 100 000",
        in_large,
        "register into 1 000",
        in_small,
        Some(1.5),
    );
    print_comparison(
        "register into 100 000",
        in_large,
        "bare durable INSERT",
        median(plain),
        None,
    );

    let (mut reads, mut bare_reads, mut pages, mut bare_pages) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for n in 0..2_000 {
        let at = (n * 7919) % 100_000;
        let key = skill_id(at)?;
        let uri = Uri::Body(key.clone());
        reads.push(time_call(|| large.read_uri(&uri)).0);
        bare_reads.push(
            time_call(|| -> rusqlite::Result<String> {
                bare.prepare_cached("SELECT value FROM t WHERE key = ?1")?
                    .query_row([key.as_str()], |row| row.get(0))
            })
            .0,
        );
        let page = || {
            let snapshot = large.snapshot();
            snapshot
                .skills_after(Some(&key))
                .take(100)
                .map(|e| e.id.as_str().len())
                .sum::<usize>()
        };
        pages.push(time_call(page).0);
        bare_pages.push(
            time_call(|| -> rusqlite::Result<usize> {
                let mut statement =
                    bare.prepare_cached("SELECT key FROM t WHERE key > ?1 ORDER BY key LIMIT 100")?;
                let rows = statement.query_map([key.as_str()], |row| row.get::<_, String>(0))?;
                rows.map(|key| key.map(|key| key.len())).sum()
            })
            .0,
        );
    }
    print_comparison(
        "read one of 100 000 bodies",
        median(reads),
        "bare SQLite read",
        median(bare_reads),
        None,
    );
    print_comparison(
        "list a page of 100",
        median(pages),
        "bare SQLite page",
        median(bare_pages),
        None,
    );
    Ok(())
}

/// Fills a bare SQLite database: one table, the same settings, the same bodies.
fn bare_sqlite(path: &Path, count: usize) -> Result<rusqlite::Connection> {
    let mut connection = rusqlite::Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute(
        "CREATE TABLE t (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        [],
    )?;
    let transaction = connection.transaction()?;
    for n in 0..count {
        transaction.execute(
            "INSERT INTO t VALUES (?1, ?2)",
            [skill_id(n)?.as_str(), &skill_body(n)],
        )?;
    }
    transaction.commit()?;
    Ok(connection)
}
