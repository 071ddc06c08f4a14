//! Runs other programs: prints the command, checks its status, and counts test results.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Returns the project's folder.
pub(crate) fn project_dir() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Returns a cargo command in the project's folder.
pub(crate) fn cargo_command(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(project_dir());
    command
}

pub(crate) fn format_command(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    format!("{name} {}", args.join(" "))
}

/// Runs a command and returns an error if it fails.
pub(crate) fn run_checked(command: &mut Command) -> Result<()> {
    let name = format_command(command);
    println!("$ {name}");
    let status = command.status().with_context(|| name.clone())?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// Builds the program under test with the features of the tests, because other features would
/// cause a second build.
pub(crate) fn build_program() -> Result<PathBuf> {
    let build = [
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "bdd",
        "--no-run",
    ];
    run_checked(&mut cargo_command(&build))?;
    Ok(project_dir().join("target/debug/repertoire"))
}

/// How many checks passed and failed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct CheckCount {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl CheckCount {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Counts one step as passed or failed.
    pub(crate) fn from_result(name: &str, result: Result<()>) -> Self {
        match result {
            Ok(()) => Self {
                passed: 1,
                failed: 0,
            },
            Err(error) => {
                eprintln!("{name}: {error:#}");
                Self {
                    passed: 0,
                    failed: 1,
                }
            }
        }
    }
}

/// Runs `cargo test`, shows its output and adds its results up.
pub(crate) fn run_counted(command: &mut Command) -> Result<CheckCount> {
    let name = format_command(command);
    println!("$ {name}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| name.clone())?;
    let mut count = CheckCount::default();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            let line = line?;
            count.add(parse_result_line(&line));
            println!("{line}");
        }
    }
    let status = child.wait()?;
    // A test binary that does not build or crashes prints no result line.
    if !status.success() && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// Parses a line `test result: ok. 3 passed; 0 failed; …`.
fn parse_result_line(line: &str) -> CheckCount {
    let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
        return CheckCount::default();
    };
    let number = |word: &str| {
        let before = rest.split(word).next().filter(|b| b.len() < rest.len())?;
        before.trim().rsplit([' ', ';']).next()?.parse().ok()
    };
    CheckCount {
        passed: number(" passed").unwrap_or(0),
        failed: number(" failed").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let count =
            parse_result_line("test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured");
        assert_eq!((count.passed, count.failed), (12, 3));
        assert_eq!(parse_result_line("running 3 tests").passed, 0);
    }
}
