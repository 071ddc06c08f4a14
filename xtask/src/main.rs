//! Automation of the project: `cargo xtask test | bench | fuzz | abuse | crash | mutants`.
//!
//! `test` is the whole test command. It installs everything it needs beyond cargo, pinned and
//! cached beneath `target`, and prints each step.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for the terminal"
)]

mod bus;
mod collector;
mod commands;
mod endurance;
mod features;
mod frameworks;
mod fuzz;
mod install;
mod interop;
mod licences;
mod models;
mod mutants;
mod real_skills;
mod reference_validator;
mod runtime;
mod servers;
mod test;

use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test                  format, lints, unit, integration and doc tests, the reference
                        validator, the official MCP conformance suite, inspector and SDKs,
                        the iii SDKs, the worker, the fuzz targets
  test --quick          format, lints and the tests that need nothing installed
  interop               only the part with the MCP suite, inspector and SDKs
  installing            only the tests of installing skills from elsewhere
  bus                   only the part with the iii SDKs and the worker
  bench catalogue       measure the catalogue against sha256sum and bare SQLite
  bench mcp             measure the MCP server against pmcp and bare rmcp
  bench large-folder    measure the first read and the memory with 10 000 skills
  bench iii             measure the functions on the hub against its own state
  bench buses CALLS URL…
                        compare the functions on running buses, and count lost answers
  bench search          measure finding skills against SQLite's full-text search
  bench ranking         measure which skills are found, against BM25, BM25F and MiniLM
  bench encoder         measure the sentence encoder against candle and ONNX Runtime
  bench gate            fit the decision whether any skill fits a message
  bench installing      measure installing and verifying against `skills` and sha256sum
  bench sandbox         measure scripts in the sandbox, and what having it costs
  abuse [MINUTES]       load and abuse a server, with a soak of 30 minutes
  crash [ROUNDS]        kill processes and simulate losses of power, 200 times each
  mutants [ROW…]        switch off each guard and see that a test notices, or those of rows
  real-skills FOLDER    count what becomes of published skills, and read them with the clients
  man                   write the man pages to target/man
  sidecar               only the sidecar's own tests
  sidecar-bundle        build the sidecar into one file that needs no Python
  fuzz TARGET SECONDS   fuzz one target (frontmatter, markdown, package, uri)";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test"] => test::run_all(),
        ["test", "--quick"] => test::run_quick(),
        ["interop"] => test::test_interop(),
        ["bus"] => test::test_bus(),
        ["abuse"] => endurance::abuse(endurance::SOAK_MINUTES),
        ["abuse", minutes] => endurance::abuse(minutes),
        ["crash"] => endurance::crash(endurance::CRASH_ROUNDS),
        ["crash", rounds] => endurance::crash(rounds),
        ["mutants", rows @ ..] => mutants::test_mutants(rows),
        ["real-skills", folder] => real_skills::measure(folder.as_ref()),
        ["man"] => write_man_pages(),
        ["installing"] => test::test_installing(),
        ["sidecar"] => test::test_sidecar(),
        ["sidecar-bundle"] => runtime::build_bundle(),
        ["conformance-client", program, url] => interop::conformance_client(program, url),
        ["bench", rest @ ..] if !rest.is_empty() => run_bench(rest),
        ["fuzz", target, seconds] => fuzz::run_target(target, seconds),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_man_pages() -> anyhow::Result<()> {
    let folder = commands::project_dir().join("target/man");
    std::fs::create_dir_all(&folder)?;
    let command = [
        "run",
        "--package",
        "repertoire",
        "--features",
        "man",
        "--",
        "man",
    ];
    commands::run_checked(commands::cargo_command(&command).arg(&folder))?;
    println!("wrote {}", folder.display());
    Ok(())
}

fn run_bench(args: &[&str]) -> anyhow::Result<()> {
    // Measure the profile that is shipped.
    let built = commands::project_dir().join("target/dist");
    let ours = built.join("repertoire");
    let pmcp = commands::project_dir().join("target/xtask/pmcp/release/pmcp-peer");
    let without = commands::project_dir().join("target/xtask/without-sandbox");
    let dist = ["build", "--profile", "dist", "--package", "repertoire"];
    if args == ["sandbox"] {
        println!("building without the sandbox first, to compare");
        commands::run_checked(commands::cargo_command(&dist).arg("--no-default-features"))?;
        std::fs::create_dir_all(commands::project_dir().join("target/xtask"))?;
        std::fs::copy(&ours, &without)?;
    }
    // In one build: separate builds would use other features and compile everything twice.
    commands::run_checked(commands::cargo_command(&dist).args(["--package", "repertoire-bench"]))?;
    let peer = match args {
        ["mcp"] => Some("pmcp"),
        ["encoder"] => Some("candle"),
        _ => None,
    };
    if let Some(name) = peer {
        println!("building the peer on {name}; the first time takes some minutes");
        let manifest = format!("bench/peers/{name}/Cargo.toml");
        let target = format!("target/xtask/{name}");
        let mut peer =
            commands::cargo_command(&["build", "--release", "--manifest-path", &manifest]);
        commands::run_checked(peer.args(["--target-dir", &target]))?;
    }
    let mut command = Command::new(built.join("repertoire-bench"));
    command.args(args).current_dir(commands::project_dir());
    match args {
        ["mcp"] => drop(command.arg(ours).arg(pmcp)),
        ["iii" | "large-folder"] => drop(command.arg(ours)),
        ["installing"] => {
            let modules = interop::NodeTools::install()?.modules_dir().to_owned();
            command.arg(ours).arg(modules.join("node/bin/node"));
            command.arg(modules.join("skills/bin/cli.mjs"));
        }
        ["sandbox"] => {
            let parts = runtime::RuntimeParts::install_with(&ours)?;
            command.arg(parts.sandbox_dir()).arg(ours).arg(without);
        }
        ["encoder"] => {
            let candle = commands::project_dir().join("target/xtask/candle/release/candle-peer");
            let python = install::install_python("bench/peers/onnx/requirements.txt", "onnx")?;
            command.arg(models::TestModels::install()?.vectors);
            command.arg(candle).arg(python);
        }
        ["search" | "ranking" | "gate"] => {
            command.arg(models::TestModels::install()?.vectors);
        }
        _ => {}
    }
    commands::run_checked(&mut command)
}
