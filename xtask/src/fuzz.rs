//! The fuzz targets, built with coverage counters on the stable compiler.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::commands::{CheckCount, cargo_command, project_dir, run_checked};

/// Each target, and how many inputs the test command gives it: a few seconds' worth.
const TARGETS: [(&str, u32); 4] = [
    ("frontmatter", 300_000),
    ("markdown", 100_000),
    ("package", 100_000),
    ("uri", 600_000),
];

/// The flags of `cargo fuzz` that the stable compiler accepts.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 -Cdebug-assertions \
     --cfg fuzzing";

/// Runs each target on a fixed number of inputs, from the same seed and the same corpus. The only
/// nondeterminism left is the order of maps in libraries, which affects the coverage.
pub(crate) fn run_smoke() -> Result<CheckCount> {
    build_targets()?;
    let mut count = CheckCount::default();
    for (target, runs) in TARGETS {
        let corpus = project_dir().join("target/xtask/fuzz").join(target);
        if corpus.exists() {
            std::fs::remove_dir_all(&corpus)?;
        }
        std::fs::create_dir_all(&corpus)?;
        let limits = [format!("-runs={runs}"), "-seed=1".to_owned()];
        println!("$ {target} with {runs} inputs");
        let result = start_target(target, &corpus, &limits);
        count.add(CheckCount::from_result(target, result));
    }
    Ok(count)
}

/// Runs one target for the given time and keeps its corpus for the next run.
pub(crate) fn run_target(target: &str, seconds: &str) -> Result<()> {
    let known = TARGETS.map(|(name, _)| name);
    ensure!(known.contains(&target), "targets are {}", known.join(", "));
    build_targets()?;
    let corpus = project_dir().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    println!("$ {target} for {seconds} s");
    start_target(target, &corpus, &[format!("-max_total_time={seconds}")])
}

fn build_targets() -> Result<()> {
    let mut command = cargo_command(&[
        "build",
        "--release",
        "--bins",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ]);
    // Naming the target keeps the flags away from build scripts.
    command.args(["--target", &host_triple()?]);
    run_checked(
        command
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", "target/fuzz"),
    )
}

/// Returns the target triple of this machine.
fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

fn start_target(target: &str, corpus: &Path, limits: &[String]) -> Result<()> {
    let artifacts = format!("fuzz/artifacts/{target}/");
    std::fs::create_dir_all(project_dir().join(&artifacts))?;
    let binary = project_dir()
        .join("target/fuzz")
        .join(host_triple()?)
        .join("release")
        .join(target);
    let logs = project_dir().join("target/xtask");
    std::fs::create_dir_all(&logs)?;
    let log = logs.join(format!("fuzz-{target}.log"));
    let status = Command::new(binary)
        .current_dir(project_dir())
        .arg(corpus)
        .args([
            format!("fuzz/seeds/{target}"),
            format!("-artifact_prefix={artifacts}"),
        ])
        .args(limits)
        // An input that takes this much time or memory is a finding too.
        .args(["-timeout=5", "-rss_limit_mb=1024", "-max_len=8192"])
        .stderr(std::fs::File::create(&log)?)
        .status()?;
    let output = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    if !status.success() {
        let tail: Vec<&str> = output.lines().rev().take(30).collect();
        eprintln!("{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    ensure!(
        status.success(),
        "fuzzing {target} failed ({status}), see {artifacts}"
    );
    println!(
        "{}",
        output
            .lines()
            .find(|line| line.starts_with("Done "))
            .unwrap_or("done")
    );
    Ok(())
}
