//! Running other programs: shown, checked, and where tests are concerned, counted.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The project's folder.
pub(crate) fn project() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Cargo, in the project's folder.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(project());
    command
}

pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
    format!("{name} {}", args.join(" "))
}

/// Runs a command and fails with it.
pub(crate) fn checked(command: &mut Command) -> Result<()> {
    let name = shown(command);
    println!("$ {name}");
    let status = command.status().with_context(|| name.clone())?;
    if !status.success() {
        bail!("`{name}` failed ({status})");
    }
    Ok(())
}

/// The command under test, built as the tests build it: with other features, everything would be
/// built once more.
pub(crate) fn program() -> Result<PathBuf> {
    let build = [
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "bdd",
        "--no-run",
    ];
    checked(&mut cargo(&build))?;
    Ok(project().join("target/debug/repertoire"))
}

/// How many checks passed and failed.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Count {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// One step that either worked or did not.
    pub(crate) fn of(name: &str, result: Result<()>) -> Self {
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
pub(crate) fn counted(command: &mut Command) -> Result<Count> {
    let name = shown(command);
    println!("$ {name}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| name.clone())?;
    let mut count = Count::default();
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).lines() {
            let line = line?;
            count.add(results(&line));
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

/// The numbers of a line `test result: ok. 3 passed; 0 failed; …`.
fn results(line: &str) -> Count {
    let Some(rest) = line.trim_start().strip_prefix("test result: ") else {
        return Count::default();
    };
    let number = |word: &str| {
        let before = rest.split(word).next().filter(|b| b.len() < rest.len())?;
        before.trim().rsplit([' ', ';']).next()?.parse().ok()
    };
    Count {
        passed: number(" passed").unwrap_or(0),
        failed: number(" failed").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let count = results("test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured");
        assert_eq!((count.passed, count.failed), (12, 3));
        assert_eq!(results("running 3 tests").passed, 0);
    }
}
