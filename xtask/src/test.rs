//! The test command: every step runs, also after a failure, and the counts close it.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result, bail};

use crate::{
    fuzz, interop, reference,
    run::{Count, cargo, checked, counted, project},
};

/// Only the steps that need what others wrote.
pub(crate) fn interop() -> Result<()> {
    let mut total = Count::default();
    total.add(step("MCP conformance suite", &mut interop::conformance));
    total.add(step("MCP inspector", &mut interop::inspector));
    total.add(step("MCP SDKs", &mut interop::sdks));
    finish(total)
}

fn step(name: &str, work: &mut dyn FnMut() -> Result<Count>) -> Count {
    println!("\n== {name}");
    let begun = Instant::now();
    let count = work().unwrap_or_else(|error| Count::of(name, Err(error)));
    println!(
        "== {name}: {} passed, {} failed in {:.0?}",
        count.passed,
        count.failed,
        begun.elapsed()
    );
    count
}

fn finish(total: Count) -> Result<()> {
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("{} checks failed", total.failed);
    }
    Ok(())
}

pub(crate) fn run() -> Result<()> {
    let started = Instant::now();
    let mut total = Count::default();
    let mut step =
        |name: &str, work: &mut dyn FnMut() -> Result<Count>| total.add(step(name, work));
    step("format", &mut || {
        let result = checked(&mut cargo(&["fmt", "--all", "--check"]));
        Ok(Count::of("format", result))
    });
    step("lints", &mut || {
        let mut command = cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]);
        Ok(Count::of("lints", checked(&mut command)))
    });
    step("documentation", &mut || {
        let mut command = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        Ok(Count::of("documentation", checked(&mut command)))
    });
    step("unit, integration and doc tests", &mut || {
        counted(&mut cargo(&["test", "--workspace", "--no-fail-fast"]))
    });
    step("the README's first command", &mut || {
        let readme = std::fs::read_to_string(project().join("README.md"))?;
        let line = readme
            .lines()
            .find_map(|line| line.strip_prefix("$ cargo run "));
        let args: Vec<&str> = line
            .context("the README runs nothing")?
            .split(' ')
            .collect();
        let mut command = cargo(&["run"]);
        // A home of its own, so that nothing of this machine is shown or changed.
        command
            .args(args)
            .env("REPERTOIRE_HOME", project().join("target/xtask/home"));
        Ok(Count::of("readme", checked(&mut command)))
    });
    step("reference validator", &mut reference::run);
    step("MCP conformance suite", &mut interop::conformance);
    step("MCP inspector", &mut interop::inspector);
    step("MCP SDKs", &mut interop::sdks);
    step("fuzz targets", &mut fuzz::smoke);
    step("licences and advisories", &mut || {
        let installed = Command::new("cargo-deny").arg("--version").output();
        if !installed.is_ok_and(|out| out.status.success()) {
            println!("cargo-deny is not installed: skipped");
            return Ok(Count::default());
        }
        Ok(Count::of("deny", checked(&mut cargo(&["deny", "check"]))))
    });
    println!("\nfinished in {:.0?}", started.elapsed());
    finish(total)
}
