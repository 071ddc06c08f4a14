//! The fuzz targets, built with coverage counters on the stable compiler.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::run::{Count, cargo, checked, project};

/// Each target, and how many inputs the test command gives it: a few seconds' worth.
const TARGETS: [(&str, u32); 4] = [
    ("frontmatter", 300_000),
    ("markdown", 100_000),
    ("package", 100_000),
    ("uri", 600_000),
];

/// What `cargo fuzz` passes, as far as the stable compiler takes it.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 -Cdebug-assertions \
     --cfg fuzzing";

/// Runs each target on as many inputs, from the same seed and the same beginnings. What is left to
/// chance is little: the order in maps of libraries, which decides what is worth trying further.
pub(crate) fn smoke() -> Result<Count> {
    build()?;
    let mut count = Count::default();
    for (target, runs) in TARGETS {
        let corpus = project().join("target/xtask/fuzz").join(target);
        if corpus.exists() {
            std::fs::remove_dir_all(&corpus)?;
        }
        std::fs::create_dir_all(&corpus)?;
        let limits = [format!("-runs={runs}"), "-seed=1".to_owned()];
        println!("$ {target} with {runs} inputs");
        let result = start(target, &corpus, &limits);
        count.add(Count::of(target, result));
    }
    Ok(count)
}

/// Runs one target for as long as asked, and keeps what it has found worth trying for the next time.
pub(crate) fn run(target: &str, seconds: &str) -> Result<()> {
    let known = TARGETS.map(|(name, _)| name);
    ensure!(known.contains(&target), "targets are {}", known.join(", "));
    build()?;
    let corpus = project().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&corpus)?;
    println!("$ {target} for {seconds} s");
    start(target, &corpus, &[format!("-max_total_time={seconds}")])
}

fn build() -> Result<()> {
    let mut command = cargo(&[
        "build",
        "--release",
        "--bins",
        "--manifest-path",
        "fuzz/Cargo.toml",
    ]);
    // Naming the target keeps the flags away from build scripts.
    command.args(["--target", &host()?]);
    checked(
        command
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", "target/fuzz"),
    )
}

/// The triple of this machine.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}

fn start(target: &str, corpus: &Path, limits: &[String]) -> Result<()> {
    let artifacts = format!("fuzz/artifacts/{target}/");
    std::fs::create_dir_all(project().join(&artifacts))?;
    let binary = project()
        .join("target/fuzz")
        .join(host()?)
        .join("release")
        .join(target);
    let logs = project().join("target/xtask");
    std::fs::create_dir_all(&logs)?;
    let log = logs.join(format!("fuzz-{target}.log"));
    let status = Command::new(binary)
        .current_dir(project())
        .arg(corpus)
        .args([
            format!("fuzz/seeds/{target}"),
            format!("-artifact_prefix={artifacts}"),
        ])
        .args(limits)
        // An input that takes this long or this much is a finding too.
        .args(["-timeout=5", "-rss_limit_mb=1024", "-max_len=8192"])
        .stderr(std::fs::File::create(&log)?)
        .status()?;
    let said = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    if !status.success() {
        let tail: Vec<&str> = said.lines().rev().take(30).collect();
        eprintln!("{}", tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
    }
    ensure!(
        status.success(),
        "fuzzing {target} failed ({status}), see {artifacts}"
    );
    println!(
        "{}",
        said.lines()
            .find(|line| line.starts_with("Done "))
            .unwrap_or("done")
    );
    Ok(())
}
