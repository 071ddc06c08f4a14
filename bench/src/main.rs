//! Benchmarks: ours and a peer, interleaved in one run, reported as ratios.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a tool for the terminal"
)]

mod abuse;
mod catalogue;
mod crash;
mod encoder;
mod gate;
mod iii;
mod installing;
mod mcp;
mod measure;
mod ranking;
mod rmcp_baseline;
mod sandbox;
mod search;

use std::{path::Path, process::ExitCode, time::Duration};

fn run_crashes(ours: &Path, strace: &Path, rounds: &str, moments: &str) -> anyhow::Result<()> {
    crash::run_power_loss(ours, strace, moments.parse()?)?;
    crash::run_kills(ours, rounds.parse()?)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["abuse", ours] => abuse::run(ours.as_ref(), None),
        ["abuse", ours, minutes] => minutes
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(|minutes| abuse::run(ours.as_ref(), Some(Duration::from_mins(minutes)))),
        ["crash", ours, strace, rounds, moments] => {
            run_crashes(ours.as_ref(), strace.as_ref(), rounds, moments)
        }
        ["catalogue"] => catalogue::run(),
        ["large-folder", ours] => mcp::run_large_folder(ours.as_ref()),
        ["mcp", ours, pmcp] => mcp::run(ours.as_ref(), pmcp.as_ref()),
        ["installing", ours, node, skills] => {
            installing::run(ours.as_ref(), node.as_ref(), skills.as_ref())
        }
        ["iii", ours] => iii::run(ours.as_ref()),
        ["buses", calls, urls @ ..] if !urls.is_empty() => calls
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(|calls| iii::compare_buses(urls, calls)),
        ["sandbox", folder, with, without] => {
            sandbox::measure_sandbox(folder.as_ref(), with.as_ref(), without.as_ref())
        }
        ["ranking", model] => ranking::run(model.as_ref()),
        ["encoder", model, candle, python] => {
            encoder::run(model.as_ref(), candle.as_ref(), python.as_ref())
        }
        ["gate", model] => gate::run(model.as_ref()),
        ["search", model] => search::run(model.as_ref()),
        ["bare", transport, size] => size
            .parse()
            .map_err(anyhow::Error::from)
            .and_then(|size| rmcp_baseline::run(transport, size)),
        // The benchmark starts itself for what needs a process of its own.
        ["load", rest @ ..] => catalogue::load_and_report(rest),
        _ => {
            eprintln!(
                "usage: cargo xtask bench catalogue|mcp|iii|search|ranking|gate|encoder|sandbox"
            );
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
