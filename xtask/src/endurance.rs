//! Long runs: abuse and crashes, with a short form in the test command.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::commands::{CheckCount, build_program, cargo_command, project_dir, run_checked};

/// How long the soak of `cargo xtask abuse` takes, unless it is given.
pub(crate) const SOAK_MINUTES: &str = "30";
/// How many rounds of kills `cargo xtask crash` runs, unless it is given; as many losses of power.
pub(crate) const CRASH_ROUNDS: &str = "200";

/// Loads and abuses the build that is shipped, with a soak of some minutes.
pub(crate) fn abuse(minutes: &str) -> Result<()> {
    let dist = ["build", "--profile", "dist", "--package", "repertoire"];
    run_checked(cargo_command(&dist).args(["--package", "repertoire-bench"]))?;
    let built = project_dir().join("target/dist");
    let mut bench = Command::new(built.join("repertoire-bench"));
    run_checked(
        bench
            .arg("abuse")
            .arg(built.join("repertoire"))
            .arg(minutes),
    )
}

/// Kills processes and simulates losses of power, this often each.
pub(crate) fn crash(rounds: &str) -> Result<()> {
    let program = build_program()?;
    let bench = build_bench()?;
    run_checked(
        Command::new(bench)
            .arg("crash")
            .arg(program)
            .arg(find_strace()?)
            .args([rounds, rounds]),
    )?;
    kill_installations(rounds)
}

/// The short forms for the test command.
pub(crate) fn test_abuse() -> Result<CheckCount> {
    let program = build_program()?;
    let bench = build_bench()?;
    let run = run_checked(Command::new(bench).arg("abuse").arg(program));
    Ok(CheckCount::from_result("abuse", run))
}

pub(crate) fn test_crash() -> Result<CheckCount> {
    let program = build_program()?;
    let bench = build_bench()?;
    let mut command = Command::new(bench);
    command.arg("crash").arg(program).arg(find_strace()?);
    let run = run_checked(command.args(["4", "40"]));
    Ok(CheckCount::from_result("crash", run))
}

/// Kills installations and updates as often.
fn kill_installations(rounds: &str) -> Result<()> {
    let args = [
        "test",
        "--workspace",
        "--test",
        "installing",
        "interrupted::",
    ];
    run_checked(cargo_command(&args).env("REPERTOIRE_KILL_ROUNDS", rounds))
}

fn build_bench() -> Result<PathBuf> {
    // With the features of the tests, because other features would cause a second build.
    let build = [
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "usage",
        "--no-run",
    ];
    run_checked(&mut cargo_command(&build))?;
    Ok(project_dir().join("target/debug/repertoire-bench"))
}

/// Returns `strace`: the installed one, or one from the distribution's package, unpacked without root.
fn find_strace() -> Result<PathBuf> {
    let works = |program: &Path| {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let folder = project_dir().join("target/xtask/strace");
    for program in [PathBuf::from("strace"), folder.join("usr/bin/strace")] {
        if works(&program) {
            return Ok(program);
        }
    }
    println!("unpacking strace into target/xtask/strace");
    fs::create_dir_all(&folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        run_checked(command.args(["download", "strace"]).current_dir(&folder))
    };
    // A new machine may not know any package yet.
    download()
        .or_else(|_| {
            run_checked(Command::new("apt-get").arg("update"))?;
            download()
        })
        .context("strace is needed to simulate losses of power: install it")?;
    let package = fs::read_dir(&folder)?
        .flatten()
        .find(|file| file.path().extension().is_some_and(|end| end == "deb"));
    let package = package.context("no package was downloaded")?.path();
    run_checked(Command::new("dpkg").arg("-x").arg(package).arg(&folder))?;
    let program = folder.join("usr/bin/strace");
    ensure!(works(&program), "strace does not start");
    Ok(program)
}
