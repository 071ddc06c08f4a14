//! Killed processes, and several processes on one store.
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

use common::document_text;
use repertoire_core::RelPath;
use repertoire_registry::{Registry, RegistrySettings, StoreScope, store::NewSkill};

const WORKER: &str = "REPERTOIRE_TEST_WORKER";

fn open_registry(home: &Path) -> Arc<Registry> {
    Registry::open(RegistrySettings {
        account: Some(home.to_owned()),
        ..RegistrySettings::default()
    })
    .unwrap()
}

/// The process that is killed, started by the tests. Without its variable it does nothing.
#[test]
fn worker() {
    let Ok(plan) = std::env::var(WORKER) else {
        return;
    };
    let (home, round) = plan.split_once('|').unwrap();
    let registry = open_registry(Path::new(home));
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
                        registry.register_skill(&id, &text).unwrap();
                        acknowledge(&format!("r{thread} {text}"));
                    } else {
                        let name = format!("p{thread}");
                        let files =
                            [(RelPath::document(), document_text(&name, &text).into())].into();
                        let skill = NewSkill::from_files(name.parse().unwrap(), files).unwrap();
                        registry
                            .add_skills(StoreScope::Account, vec![skill])
                            .unwrap();
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

fn start_worker(home: &Path, round: &str, writes: Option<usize>) -> Child {
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

/// Returns the number of acknowledgements, and stores the last acknowledged text of each key.
fn read_acknowledged(child: &mut Child, last: &mut BTreeMap<String, String>) -> usize {
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

/// Returns the round and count in a text, to compare which of two writes is later.
fn write_order(text: &str) -> (usize, usize) {
    let (round, n) = text.split_once('-').unwrap();
    (round.parse().unwrap(), n.parse().unwrap())
}

#[test]
fn t35_a_killed_process_loses_no_acknowledged_write() {
    const ROUNDS: usize = 200;
    let home = tempfile::tempdir().unwrap();
    drop(open_registry(home.path()));
    let mut last = BTreeMap::new();
    let mut writes = 0;
    for round in 0..ROUNDS {
        let mut child = start_worker(home.path(), &round.to_string(), None);
        // Kill at a different moment each round, including during opening and recovery.
        let moment = Duration::from_millis((round as u64 * 7919) % 60);
        let started = Instant::now();
        while started.elapsed() < moment {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        writes += read_acknowledged(&mut child, &mut last);
        child.wait().unwrap();
        let registry = open_registry(home.path());
        let store = registry.store(StoreScope::Account).unwrap();
        store.check_integrity().unwrap();
        for (key, text) in &last {
            let body = registry
                .read_uri(&format!("iii://{key}").parse().unwrap())
                .unwrap()
                .bytes;
            let body = String::from_utf8(body.to_vec()).unwrap();
            let stored = body.rsplit('\n').next().unwrap();
            assert!(
                write_order(stored) >= write_order(text),
                "round {round}: {key} has {stored}, not {text}"
            );
        }
    }
    println!("{writes} acknowledged writes in {ROUNDS} rounds");
    assert!(writes > ROUNDS, "the workers wrote too little: {writes}");
}

#[test]
fn t35_two_processes_share_a_store_without_starving() {
    let home = tempfile::tempdir().unwrap();
    drop(open_registry(home.path()));
    let mut children = [
        start_worker(home.path(), "1", Some(100)),
        start_worker(home.path(), "2", Some(100)),
    ];
    for child in &mut children {
        let mut last = BTreeMap::new();
        assert_eq!(read_acknowledged(child, &mut last), 400);
        assert!(child.wait().unwrap().success());
    }
    let registry = open_registry(home.path());
    registry
        .store(StoreScope::Account)
        .unwrap()
        .check_integrity()
        .unwrap();
    assert_eq!(registry.snapshot().len(), 8);
    let store = registry.store(StoreScope::Account).unwrap();
    for thread in 0..4 {
        let id = format!("p{thread}").parse().unwrap();
        let mut writers: Vec<char> = registry
            .history(StoreScope::Account, &id)
            .unwrap()
            .iter()
            .map(|r| {
                let files = store.files_at(&id, r.revision).unwrap();
                let text = String::from_utf8(files[&RelPath::document()].to_vec()).unwrap();
                text.lines().last().unwrap().chars().next().unwrap()
            })
            .collect();
        assert!(writers.len() >= 50);
        // Both processes make progress: each one writes before the other has finished.
        writers.reverse();
        let last = |process| writers.iter().rposition(|w| *w == process).unwrap();
        let first = |process| writers.iter().position(|w| *w == process).unwrap();
        assert!(
            first('1') < last('2') && first('2') < last('1'),
            "{writers:?}"
        );
    }
}
