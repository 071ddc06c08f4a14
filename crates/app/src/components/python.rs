//! Creates Python environments with uv or venv.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::Duration,
};

use super::InstallProgress;
use crate::error::{Error, Result};

/// The maximum bytes of a program's messages that are kept for an error.
const MAX_MESSAGES: u64 = 1 << 20;
/// How often the progress of a download is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

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
///
/// Each package is reported when its download begins.
pub(super) fn create_environment(
    folder: &Path,
    spec: &EnvironmentSpec<'_>,
    progress: &dyn InstallProgress,
) -> Result<PathBuf> {
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
            .args(["-I", "-m", "pip", "install", "--progress-bar", "off"])
            .args(["--no-input", "--no-color"])
            .args(["--disable-pip-version-check", "--only-binary=:all:"])
            .args(["--require-hashes", "-r"])
            .arg(spec.requirements);
        let total = count_requirements(spec.requirements);
        let mut begun = 0;
        run_and_follow(&mut install, &mut |line| {
            let Some(package) = line.strip_prefix("Collecting ") else {
                return;
            };
            let package = package.split_whitespace().next().unwrap_or_default();
            progress.report_progress(package, begun * 100 / total.max(1));
            begun += 1;
        })?;
    }
    Ok(python)
}

/// How many packages a requirements file pins.
fn count_requirements(file: &Path) -> usize {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.contains("==")).count()
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

fn program_name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(OsStr::new("python"));
    program.display().to_string()
}

/// The error of a program that failed, with the last lines of its messages.
fn failure(program: String, messages: &[u8]) -> Error {
    let messages = String::from_utf8_lossy(messages);
    let lines: Vec<&str> = messages
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    Error::ProgramFailed {
        program,
        reason: lines[lines.len().saturating_sub(3)..].join("\n  "),
    }
}

/// A program whose messages are collected while it runs.
struct RunningProgram {
    program: String,
    child: Child,
    messages: Option<JoinHandle<Vec<u8>>>,
}

impl RunningProgram {
    fn start(command: &mut Command, stdout: Stdio) -> Result<Self> {
        let program = program_name(command);
        let piped = command.stdin(Stdio::null()).stdout(stdout);
        let spawned = piped.stderr(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|reason| Error::NoProgram {
            program: program.clone(),
            reason,
        })?;
        let messages = child.stderr.take().map(|stderr| {
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                let mut stderr = stderr.take(MAX_MESSAGES);
                // What cannot be read is missing in the error.
                let _ = stderr.read_to_end(&mut kept);
                // A full pipe would stop the program.
                let _ = std::io::copy(stderr.get_mut(), &mut std::io::sink());
                kept
            })
        });
        Ok(Self {
            program,
            child,
            messages,
        })
    }

    fn finish(mut self) -> Result<()> {
        let ended = self.child.wait();
        let messages = self.messages.and_then(|reader| reader.join().ok());
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(failure(self.program, &messages.unwrap_or_default())),
            Err(reason) => Err(Error::NoProgram {
                program: self.program,
                reason,
            }),
        }
    }
}

/// Runs a program and passes on each line of its stdout as it comes.
fn run_and_follow(command: &mut Command, on_line: &mut dyn FnMut(&str)) -> Result<()> {
    let mut running = RunningProgram::start(command, Stdio::piped())?;
    if let Some(stdout) = running.child.stdout.take() {
        for line in BufReader::new(stdout)
            .split(b'\n')
            .map_while(std::result::Result::ok)
        {
            on_line(String::from_utf8_lossy(&line).trim_end());
        }
    }
    running.finish()
}

/// Runs a program and calls a function while it runs.
pub(super) fn run_and_poll(command: &mut Command, on_poll: &mut dyn FnMut()) -> Result<()> {
    let mut running = RunningProgram::start(command, Stdio::null())?;
    while matches!(running.child.try_wait(), Ok(None)) {
        on_poll();
        std::thread::sleep(POLL_INTERVAL);
    }
    running.finish()
}

/// Runs a program and returns its stdout; an error has the last lines of its stderr.
pub(super) fn run_program(command: &mut Command) -> Result<String> {
    let program = program_name(command);
    match command.stdin(Stdio::null()).output() {
        Err(reason) => Err(Error::NoProgram { program, reason }),
        Ok(done) if !done.status.success() => Err(failure(program, &done.stderr)),
        Ok(done) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
    }
}
