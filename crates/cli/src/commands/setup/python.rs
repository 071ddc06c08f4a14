//! Creates Python environments with uv or venv.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::failure::UsageError;

/// The contents of an environment.
pub(super) struct EnvironmentSpec<'a> {
    /// A requirements file with the digest of every download.
    pub(super) requirements: &'a Path,
    /// The oldest supported Python version.
    pub(super) oldest: (u32, u32),
}

/// Returns the Python of this machine: `REPERTOIRE_PYTHON`, else `python3`.
fn system_python() -> std::ffi::OsString {
    std::env::var_os("REPERTOIRE_PYTHON").unwrap_or_else(|| "python3".into())
}

/// Creates an environment with exactly the given requirements and returns its Python.
pub(super) fn create_environment(folder: &Path, wanted: &EnvironmentSpec<'_>) -> Result<PathBuf> {
    check_python_version(wanted.oldest)?;
    let python = folder.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    let has_uv = Command::new("uv")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if has_uv {
        // uv reads settings from its working directory, which may be untrusted.
        let beside = folder.parent().unwrap_or(folder);
        let mut venv = Command::new("uv");
        venv.args(["venv", "--quiet", "--python"])
            .arg(system_python())
            .arg(folder)
            .current_dir(beside);
        run_command(&mut venv)?;
        let mut install = Command::new("uv");
        install
            .args(["pip", "install", "--quiet", "--only-binary", ":all:"])
            .args(["--require-hashes", "--python"])
            .arg(&python)
            .arg("-r")
            .arg(wanted.requirements)
            .current_dir(beside);
        run_command(&mut install)?;
    } else {
        let mut venv = Command::new(system_python());
        venv.args(["-I", "-m", "venv"]).arg(folder);
        run_command(&mut venv)?;
        let mut install = Command::new(&python);
        install
            .args(["-I", "-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary=:all:"])
            .args(["--require-hashes", "-r"])
            .arg(wanted.requirements);
        run_command(&mut install)?;
    }
    Ok(python)
}

fn check_python_version(oldest: (u32, u32)) -> Result<()> {
    let mut ask = Command::new(system_python());
    ask.args(["-I", "-c", "import sys; print(*sys.version_info[:2])"]);
    let version = run_command(&mut ask)?;
    let mut numbers = version.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        bail!(
            "{} does not report its version",
            Path::new(&system_python()).display()
        );
    };
    if (major, minor) < oldest {
        let (a, b) = oldest;
        bail!(UsageError(format!(
            "this is Python {major}.{minor}, and {a}.{b} is needed: name a newer one with \
             REPERTOIRE_PYTHON"
        )));
    }
    Ok(())
}

/// Runs a program and returns its stdout; an error has the last lines of its stderr.
pub(super) fn run_command(command: &mut Command) -> Result<String> {
    let name = Path::new(command.get_program()).to_owned();
    let name = name.file_name().unwrap_or(OsStr::new("python")).display();
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("{name} is required but could not be run"))?;
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        let why: Vec<&str> = stderr
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let last = why[why.len().saturating_sub(3)..].join("\n  ");
        bail!(UsageError(format!("{name} failed: {last}")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
