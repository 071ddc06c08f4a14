//! The hostile corpus, run through the real command and through the library.
//!
//! Each case is a folder with the expected code. After each case nothing is stored: no row, no
//! event, no file outside the case.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use common::{TestWorkspace, project_dir};
use repertoire_core::{Package, Uri};
use repertoire_registry::{
    Error, Registry, RegistrySettings, StoreScope, folder,
    store::{EventCursor, NewSkill, SqliteStore, StoreOpenMode},
};
use serde::Deserialize;

#[derive(Deserialize)]
struct RejectCase {
    about: String,
    row: String,
    code: String,
    command: Vec<String>,
    #[serde(default)]
    build: Vec<BuildStep>,
}

/// A step that builds input which a repository cannot hold.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum BuildStep {
    Symlink {
        path: String,
        target: String,
    },
    Fifo {
        path: String,
    },
    Fill {
        path: String,
        size: u64,
    },
    Many {
        path: String,
        count: usize,
    },
    Write {
        path: String,
        text: String,
    },
    Repeat {
        path: String,
        before: String,
        text: String,
        count: usize,
        after: String,
    },
    Store {
        path: String,
        sql: String,
    },
    Truncate {
        path: String,
        size: u64,
    },
}

impl BuildStep {
    fn build_input(&self, work: &Path, home: &Path) {
        let at = |path: &String| {
            let path = match path.strip_prefix("home/") {
                Some(rest) => home.join(rest),
                None => work.join(path),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        match self {
            Self::Symlink { path, target } => {
                std::os::unix::fs::symlink(target, at(path)).unwrap();
            }
            Self::Fifo { path } => {
                let made = std::process::Command::new("mkfifo").arg(at(path)).status();
                assert!(made.unwrap().success());
            }
            Self::Fill { path, size } => {
                fs::File::create(at(path)).unwrap().set_len(*size).unwrap();
            }
            Self::Many { path, count } => {
                for n in 0..*count {
                    fs::write(at(&format!("{path}{n}")), "x").unwrap();
                }
            }
            Self::Write { path, text } => fs::write(at(path), text).unwrap(),
            Self::Repeat {
                path,
                before,
                text,
                count,
                after,
            } => {
                fs::write(at(path), format!("{before}{}{after}", text.repeat(*count))).unwrap();
            }
            Self::Store { path, sql } => {
                drop(SqliteStore::open(&at(path), StoreOpenMode::Own).unwrap());
                let file = rusqlite::Connection::open(at(path)).unwrap();
                file.execute_batch(sql).unwrap();
                file.pragma_update(None, "journal_mode", "DELETE").unwrap();
            }
            Self::Truncate { path, size } => {
                let file = fs::File::options().write(true).open(at(path)).unwrap();
                file.set_len(*size).unwrap();
            }
        }
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Returns the error code of the library for the same input.
fn library_error_code(case: &RejectCase, place: &TestWorkspace) -> Option<String> {
    let input = place.work_dir().join(case.command.last()?);
    let verdict = match case.command[0].as_str() {
        "add" => {
            let name = case.command.last()?;
            name.parse().map_err(Error::from).and_then(|id| {
                folder::read_folder(&input)
                    .and_then(|files| NewSkill::from_files(id, files))
                    .map(|_| ())
            })
        }
        "package" => Package::from_json(&fs::read(input).unwrap())
            .map_err(Error::from)
            .and_then(|package| NewSkill::from_package(&package).map(|_| ())),
        "cat" => case.command[1]
            .parse::<Uri>()
            .map(|_| ())
            .map_err(Error::from),
        _ => SqliteStore::open(&place.home_dir().join("agents.db"), StoreOpenMode::Own).map(|_| ()),
    };
    Some(
        verdict
            .err()
            .map_or("accepted".to_owned(), |e| e.code().to_owned()),
    )
}

/// Asserts that the store is empty.
fn assert_nothing_stored(place: &TestWorkspace, name: &str) {
    let settings = RegistrySettings {
        account: Some(place.home_dir()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings).unwrap();
    let store = registry.store(StoreScope::Account).unwrap();
    let start = EventCursor::new("0");
    assert_eq!(
        store.event_cursor().unwrap(),
        start,
        "{name}: something was stored"
    );
    assert!(
        registry.snapshot().is_empty(),
        "{name}: something is listed"
    );
    drop(registry);
    let file = rusqlite::Connection::open(place.home_dir().join("agents.db")).unwrap();
    for table in [
        "skills",
        "skill_artifacts",
        "skill_files",
        "blobs",
        "revisions",
        "state",
    ] {
        let sql = format!("SELECT count(*) FROM {table}");
        let rows: i64 = file.query_row(&sql, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{name}: rows in {table}");
    }
}

#[test]
fn hostile_input_is_refused_and_nothing_is_stored() {
    let corpus = project_dir().join("corpus/reject");
    let mut rows: BTreeMap<String, usize> = BTreeMap::new();
    let names: BTreeSet<_> = fs::read_dir(&corpus)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    for name in names {
        let source = corpus.join(&name);
        let name = name.to_string_lossy();
        let case: RejectCase =
            toml::from_str(&fs::read_to_string(source.join("case.toml")).unwrap()).unwrap();
        let place = TestWorkspace::new();
        if source.join("files").is_dir() {
            copy_dir(&source.join("files"), &place.work_dir());
        }
        for step in &case.build {
            step.build_input(&place.work_dir(), &place.home_dir());
        }
        let store = place.home_dir().join("agents.db");
        let before = fs::read(&store).ok();
        let mut args: Vec<&str> = case.command.iter().map(String::as_str).collect();
        args.push("--json");

        let started = Instant::now();
        let run = place.run(&args);
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{name}: too slow"
        );
        let about = &case.about;
        assert_ne!(run.exit_code(), 0, "{name} ({about}) was accepted");
        let answer: serde_json::Value =
            serde_json::from_str(run.stderr().lines().last().unwrap_or(""))
                .unwrap_or_else(|_| panic!("{name}: no JSON error: {}", run.stderr()));
        assert_eq!(
            answer["error"]["code"], case.code,
            "{name} ({about}): {answer}"
        );
        assert!(
            !run.stderr().contains("panicked"),
            "{name}: {}",
            run.stderr()
        );
        assert!(
            run.stdout().is_empty(),
            "{name}: stdout is not empty after an error"
        );

        // A collection is refused for one of its skills; the library sees another id for it.
        if !name.starts_with("one-bad") && !name.starts_with("no-skill") {
            assert_eq!(
                library_error_code(&case, &place).as_deref(),
                Some(&*case.code),
                "{name}: library"
            );
        }
        match before {
            Some(before) => assert_eq!(
                fs::read(&store).unwrap(),
                before,
                "{name}: the store changed"
            ),
            None => assert_nothing_stored(&place, &name),
        }
        *rows.entry(case.row).or_default() += 1;
    }
    for row in ["T1", "T2", "T3", "T4", "T6", "T7", "T18", "T35", "T37"] {
        assert!(rows.contains_key(row), "no case for {row}");
    }
    println!("{} cases: {rows:?}", rows.values().sum::<usize>());
}

#[test]
fn t5_damaged_archives_are_not_accepted() {
    let place = TestWorkspace::new();
    place.write_file("skill.zip", b"PK\x03\x04 and so on");
    place.write_file("skill.tar.gz", b"\x1f\x8b\x08 and so on");
    for archive in ["skill.zip", "skill.tar.gz"] {
        let commands: [&[&str]; 3] = [&["add"], &["package", "import"], &["package", "unpack"]];
        for command in commands {
            let run = place.run(&[command, &[archive]].concat());
            assert!(
                matches!(run.exit_code(), 2 | 4),
                "{command:?} {archive}: {}",
                run.stderr()
            );
        }
    }
    assert_nothing_stored(&place, "archives");
}
