//! The fuzz targets, built with coverage counters on the stable compiler.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::{Count, cargo, checked, project};

const TARGETS: [&str; 4] = ["frontmatter", "markdown", "package", "uri"];

/// What `cargo fuzz` passes, as far as the stable compiler takes it.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Ccodegen-units=1 -Cdebug-assertions \
     --cfg fuzzing";

/// Runs each target for a few seconds: enough to see that it works and holds.
pub(crate) fn smoke() -> Result<Count> {
    build()?;
    let mut count = Count::default();
    for target in TARGETS {
        count.add(Count::of(target, start(target, "5")));
    }
    Ok(count)
}

/// Runs one target for as long as asked.
pub(crate) fn run(target: &str, seconds: &str) -> Result<()> {
    ensure!(
        TARGETS.contains(&target),
        "targets are {}",
        TARGETS.join(", ")
    );
    build()?;
    start(target, seconds)
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

fn start(target: &str, seconds: &str) -> Result<()> {
    let corpus = format!("fuzz/corpus/{target}");
    let artifacts = format!("fuzz/artifacts/{target}/");
    std::fs::create_dir_all(project().join(&corpus))?;
    std::fs::create_dir_all(project().join(&artifacts))?;
    let binary = project()
        .join("target/fuzz")
        .join(host()?)
        .join("release")
        .join(target);
    let log = project().join(format!("target/xtask/fuzz-{target}.log"));
    std::fs::create_dir_all(project().join("target/xtask"))?;
    println!("$ {target} for {seconds} s");
    let status = Command::new(binary)
        .current_dir(project())
        .args([
            &corpus,
            &format!("fuzz/seeds/{target}"),
            &format!("-max_total_time={seconds}"),
            &format!("-artifact_prefix={artifacts}"),
        ])
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
