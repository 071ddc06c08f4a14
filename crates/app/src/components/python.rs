//! Creates Python environments with uv or venv.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::error::{Error, Result};

/// The contents of an environment.
pub(super) struct EnvironmentSpec<'a> {
    /// The Python to create it with.
    pub(super) python: &'a OsStr,
    /// A requirements file with the digest of every download.
    pub(super) requirements: &'a Path,
    /// The oldest supported Python version.
    pub(super) oldest: (u32, u32),
}

/// Creates an environment with exactly the given requirements and returns its Python.
pub(super) fn create_environment(folder: &Path, spec: &EnvironmentSpec<'_>) -> Result<PathBuf> {
    check_python_version(spec)?;
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
            .arg(spec.python)
            .arg(folder)
            .current_dir(beside);
        run_program(&mut venv)?;
        let mut install = Command::new("uv");
        install
            .args(["pip", "install", "--quiet", "--only-binary", ":all:"])
            .args(["--require-hashes", "--python"])
            .arg(&python)
            .arg("-r")
            .arg(spec.requirements)
            .current_dir(beside);
        run_program(&mut install)?;
    } else {
        let mut venv = Command::new(spec.python);
        venv.args(["-I", "-m", "venv"]).arg(folder);
        run_program(&mut venv)?;
        let mut install = Command::new(&python);
        install
            .args(["-I", "-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--only-binary=:all:"])
            .args(["--require-hashes", "-r"])
            .arg(spec.requirements);
        run_program(&mut install)?;
    }
    Ok(python)
}

fn check_python_version(spec: &EnvironmentSpec<'_>) -> Result<()> {
    let mut command = Command::new(spec.python);
    command.args(["-I", "-c", "import sys; print(*sys.version_info[:2])"]);
    let version = run_program(&mut command)?;
    let mut numbers = version.split_whitespace().map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(Error::ProgramFailed {
            program: spec.python.display().to_string(),
            reason: "it does not report its version".to_owned(),
        });
    };
    if (major, minor) < spec.oldest {
        return Err(Error::OldPython {
            found: (major, minor),
            oldest: spec.oldest,
        });
    }
    Ok(())
}

/// Runs a program and returns its stdout; an error has the last lines of its stderr.
pub(super) fn run_program(command: &mut Command) -> Result<String> {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(OsStr::new("python"));
    let program = program.display().to_string();
    match command.stdin(Stdio::null()).output() {
        Err(reason) => Err(Error::NoProgram { program, reason }),
        Ok(done) if !done.status.success() => {
            let stderr = String::from_utf8_lossy(&done.stderr);
            let lines: Vec<&str> = stderr
                .lines()
                .filter(|line| !line.trim().is_empty())
                .collect();
            Err(Error::ProgramFailed {
                program,
                reason: lines[lines.len().saturating_sub(3)..].join("\n  "),
            })
        }
        Ok(done) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
    }
}
