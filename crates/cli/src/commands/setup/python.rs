//! Environments of Python, made by the tools that are there.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::failure::Usage;

/// What goes into an environment.
pub(super) struct Wanted<'a> {
    /// A file of requirements, with the digest of whatever is downloaded.
    pub(super) requirements: &'a Path,
    /// The oldest Python they run on.
    pub(super) oldest: (u32, u32),
}

/// The Python of this machine: `REPERTOIRE_PYTHON`, else `python3`.
fn system() -> std::ffi::OsString {
    std::env::var_os("REPERTOIRE_PYTHON").unwrap_or_else(|| "python3".into())
}

/// Makes an environment with exactly what a file of requirements says; gives its Python.
pub(super) fn environment(folder: &Path, wanted: &Wanted<'_>) -> Result<PathBuf> {
    is_new_enough(wanted.oldest)?;
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
        // It heeds settings of the folder it is started in, which may be a stranger's.
        let beside = folder.parent().unwrap_or(folder);
        let mut venv = Command::new("uv");
        venv.args(["venv", "--quiet", "--python"])
            .arg(system())
            .arg(folder)
            .current_dir(beside);
        run(&mut venv)?;
        let mut install = Command::new("uv");
        install
            .args(["pip", "install", "--quiet", "--only-binary", ":all:"])
            .args(["--require-hashes", "--python"])
            .arg(&python)
            .arg("-r")
            .arg(wanted.requirements)
            .current_dir(beside);
        run(&mut install)?;
    } else {
        let mut venv = Command::new(system());
        venv.args(["-I", "-m", "venv"]).arg(folder);
        run(&mut venv)?;
        let mut install = Command::new(&python);
        install
            .args(["-I", "-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary=:all:"])
            .args(["--require-hashes", "-r"])
            .arg(wanted.requirements);
        run(&mut install)?;
    }
    Ok(python)
}

fn is_new_enough(oldest: (u32, u32)) -> Result<()> {
    let mut ask = Command::new(system());
    ask.args(["-I", "-c", "import sys; print(*sys.version_info[:2])"]);
    let said = run(&mut ask)?;
    let mut numbers = said.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        bail!(
            "{} does not say which version it is",
            Path::new(&system()).display()
        );
    };
    if (major, minor) < oldest {
        let (a, b) = oldest;
        bail!(Usage(format!(
            "this is Python {major}.{minor}, and {a}.{b} is needed: name a newer one with \
             REPERTOIRE_PYTHON"
        )));
    }
    Ok(())
}

/// Runs a program; gives what it prints. One that fails is an error with its last words.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = Path::new(command.get_program()).to_owned();
    let name = name.file_name().unwrap_or(OsStr::new("python")).display();
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("{name}: it is needed, and could not be run"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let why: Vec<&str> = said
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        let last = why[why.len().saturating_sub(3)..].join("\n  ");
        bail!(Usage(format!("{name} failed: {last}")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
