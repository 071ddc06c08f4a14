//! Processes that are killed, and processes that share a store.
//!
//! The test binary starts itself as the writing process: a worker acknowledges each write on
//! stdout only after it returned, and the test kills it at a random moment.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use common::document;
use repertoire_core::RelPath;
use repertoire_registry::{Registry, Scope, Settings, store::NewSkill};

const WORKER: &str = "REPERTOIRE_TEST_WORKER";

fn open(home: &Path) -> Arc<Registry> {
    Registry::open(Settings {
        account: Some(home.to_owned()),
        ..Settings::default()
    })
    .unwrap()
}

/// Not a test of its own: the process that is killed. Without its variable it does nothing.
#[test]
fn worker() {
    let Ok(plan) = std::env::var(WORKER) else {
        return;
    };
    let (home, round) = plan.split_once('|').unwrap();
    let registry = open(Path::new(home));
    let limit: usize =
        std::env::var("REPERTOIRE_TEST_WRITES").map_or(usize::MAX, |n| n.parse().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let registry = &registry;
            scope.spawn(move || {
                for n in 0..limit {
                    let text = format!("{round}-{n}");
                    if n % 2 == 0 {
                        let id = format!("r{thread}").parse().unwrap();
                        registry.register(&id, &text).unwrap();
                        acknowledge(&format!("r{thread} {text}"));
                    } else {
                        let name = format!("p{thread}");
                        let files = [(RelPath::document(), document(&name, &text).into())].into();
                        let skill = NewSkill::from_files(name.parse().unwrap(), files).unwrap();
                        registry.add(Scope::Account, vec![skill]).unwrap();
                        acknowledge(&format!("{name} {text}"));
                    }
                }
            });
        }
    });
}

fn acknowledge(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ack {line}").unwrap();
    out.flush().unwrap();
}

fn start(home: &Path, round: &str, writes: Option<usize>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
        .env(WORKER, format!("{}|{round}", home.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(writes) = writes {
        command.env("REPERTOIRE_TEST_WRITES", writes.to_string());
    }
    command.spawn().unwrap()
}

/// The last acknowledged text of each key, and how many acknowledgements there were.
fn acknowledged(child: &mut Child, last: &mut BTreeMap<String, String>) -> usize {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut count = 0;
    for line in lines.map_while(Result::ok) {
        let Some(at) = line.find("ack ") else {
            continue;
        };
        if let Some((key, text)) = line[at + 4..].split_once(' ') {
            last.insert(key.to_owned(), text.to_owned());
            count += 1;
        }
    }
    count
}

/// Rounds and counts within a text, to compare which of two writes is later.
fn order(text: &str) -> (usize, usize) {
    let (round, n) = text.split_once('-').unwrap();
    (round.parse().unwrap(), n.parse().unwrap())
}

#[test]
fn t35_a_killed_process_loses_no_acknowledged_write() {
    const ROUNDS: usize = 200;
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path()));
    let mut last = BTreeMap::new();
    let mut writes = 0;
    for round in 0..ROUNDS {
        let mut child = start(home.path(), &round.to_string(), None);
        // Different moments every round, early ones (opening, recovery) included.
        let moment = Duration::from_millis((round as u64 * 7919) % 60);
        let started = Instant::now();
        while started.elapsed() < moment {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        writes += acknowledged(&mut child, &mut last);
        child.wait().unwrap();
        let registry = open(home.path());
        let store = registry.store(Scope::Account).unwrap();
        store.check().unwrap();
        for (key, text) in &last {
            let body = registry
                .read(&format!("iii://{key}").parse().unwrap())
                .unwrap()
                .bytes;
            let body = String::from_utf8(body.to_vec()).unwrap();
            let stored = body.rsplit('\n').next().unwrap();
            assert!(
                order(stored) >= order(text),
                "round {round}: {key} has {stored}, not {text}"
            );
        }
    }
    println!("{writes} acknowledged writes in {ROUNDS} rounds");
    assert!(writes > ROUNDS, "the workers hardly wrote: {writes}");
}

#[test]
fn t35_two_processes_share_a_store_without_starving() {
    let home = tempfile::tempdir().unwrap();
    drop(open(home.path()));
    let mut children = [
        start(home.path(), "1", Some(100)),
        start(home.path(), "2", Some(100)),
    ];
    for child in &mut children {
        let mut last = BTreeMap::new();
        assert_eq!(acknowledged(child, &mut last), 400);
        assert!(child.wait().unwrap().success());
    }
    let registry = open(home.path());
    registry.store(Scope::Account).unwrap().check().unwrap();
    assert_eq!(registry.snapshot().len(), 8);
    let store = registry.store(Scope::Account).unwrap();
    for thread in 0..4 {
        let id = format!("p{thread}").parse().unwrap();
        let mut writers: Vec<char> = registry
            .history(Scope::Account, &id)
            .unwrap()
            .iter()
            .map(|r| {
                let files = store.files_at(&id, r.revision).unwrap();
                let text = String::from_utf8(files[&RelPath::document()].to_vec()).unwrap();
                text.lines().last().unwrap().chars().next().unwrap()
            })
            .collect();
        assert!(writers.len() >= 50);
        // Neither waited until the other was done: both come before the first of them ends.
        writers.reverse();
        let last = |process| writers.iter().rposition(|w| *w == process).unwrap();
        let first = |process| writers.iter().position(|w| *w == process).unwrap();
        assert!(
            first('1') < last('2') && first('2') < last('1'),
            "{writers:?}"
        );
    }
}
