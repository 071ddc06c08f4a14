//! How git is run: with fixed settings, within bounds of memory, bytes and time, and never longer than
//! this process.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::Instant,
};

use super::Git;
use crate::{
    error::{Error, Result},
    limits::FetchLimits,
    process_group::ProcessGroup,
};

/// How often the size of what arrives is looked at.
const SIZE_CHECK: Duration = Duration::from_millis(50);
/// How many bytes of git's messages are kept.
const MESSAGE_BYTES: usize = 4096;
/// The virtual memory of git, in KiB.
const MEMORY_KIB: u64 = 1024 * 1024;
/// The file with that input, beside the repository's own.
const INPUT_FILE: &str = "repertoire-input";
/// Names the file that git reads as its input.
const INPUT_VARIABLE: &str = "REPERTOIRE_GIT_INPUT";

impl Git {
    /// Runs git to its end and returns what it prints, which is at most `limit` bytes.
    pub(super) async fn run(
        &self,
        arguments: &[&str],
        input: Option<String>,
        limit: u64,
    ) -> Result<Vec<u8>> {
        let mut running = self.start(arguments, input.as_deref())?;
        let output = running.take_output()?;
        let mut printed = Vec::new();
        let deadline = Instant::now() + self.limits.time;
        let read = async {
            output
                .take(limit)
                .read_to_end(&mut printed)
                .await
                .map_err(|e| self.broken_pipe(&e))
        };
        // What arrives is in a file that is being written, so its size is looked at.
        let watch = async {
            loop {
                tokio::time::sleep(SIZE_CHECK).await;
                if folder_size(self.folder.path()) > self.limits.total_bytes {
                    let limit = self.limits.total_bytes;
                    return Error::refused(&self.shown, format!("sends more than {limit} bytes"));
                }
            }
        };
        tokio::select! {
            read = read => read.map(drop)?,
            error = watch => return Err(error),
            () = tokio::time::sleep_until(deadline) => return Err(self.late()),
        }
        let ended = running.finish(self).await;
        // The limit for the size of a file ends git before the size of the folder is looked at.
        let limit = self.limits.total_bytes;
        if folder_size(self.folder.path()) >= limit - limit / 64 {
            let reason = format!("sends more than {limit} bytes");
            return Err(Error::refused(&self.shown, reason));
        }
        ended?;
        Ok(printed)
    }

    pub(super) fn start(&self, arguments: &[&str], input: Option<&str>) -> Result<RunningGit> {
        let input = match input {
            Some(input) => {
                let path = self.folder.path().join(INPUT_FILE);
                std::fs::write(&path, input).map_err(|error| Error::Io {
                    path: path.clone(),
                    error,
                })?;
                path
            }
            None => PathBuf::from("/dev/null"),
        };
        let mut command = self.limited_command();
        command.arg("--git-dir").arg(self.folder.path());
        for setting in FIXED_SETTINGS
            .iter()
            .copied()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.args(["-c", setting]);
        }
        let stall = self.limits.stall.as_secs().max(1);
        command.args([
            "-c",
            &format!("http.lowSpeedLimit={}", FetchLimits::STALL_BYTES),
        ]);
        command.args(["-c", &format!("http.lowSpeedTime={stall}")]);
        command.args(arguments);
        for (name, _) in std::env::vars_os() {
            let known = name.to_string_lossy();
            if known.starts_with("GIT_")
                && !matches!(&*known, "GIT_SSH" | "GIT_SSH_COMMAND" | "GIT_EXEC_PATH")
            {
                command.env_remove(&name);
            }
        }
        command
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "")
            .env("SSH_ASKPASS", "")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_ALLOW_PROTOCOL", "https:http:ssh:file")
            .env(INPUT_VARIABLE, &input)
            .stdin(standard_input(&input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(ssh) = self.ssh_command {
            command.env("GIT_SSH_COMMAND", ssh);
        }
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().map_err(|reason| Error::NoProgram {
            program: "git",
            reason,
        })?;
        let group = child.id().map(ProcessGroup::new);
        let messages = child
            .stderr
            .take()
            .map(|stderr| tokio::spawn(read_messages(stderr)));
        Ok(RunningGit {
            child,
            _group: group,
            messages,
        })
    }

    /// Starts git with a bound on its memory and on the size of each file it writes, which its own
    /// children inherit, and so that it ends with this process however that ends: what holds the other
    /// end of the standard input is gone then.
    fn limited_command(&self) -> Command {
        if !cfg!(unix) {
            return Command::new("git");
        }
        let blocks = self.limits.total_bytes / 512 + 1;
        let script = format!(
            "ulimit -v {MEMORY_KIB} 2>/dev/null; ulimit -f {blocks} 2>/dev/null; exec 3<&0; (cat <&3; \
             kill -KILL 0) >/dev/null 2>&1 & exec 3<&-; exec git \"$@\" <\"${INPUT_VARIABLE}\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]);
        command
    }

    pub(super) fn late(&self) -> Error {
        Error::unreachable(&self.shown, "did not answer in time")
    }

    pub(super) fn broken_pipe(&self, error: &std::io::Error) -> Error {
        Error::unreachable(&self.shown, format!("git ended unexpectedly: {error}"))
    }
}

/// What git reads: on Unix the shell opens the input, and the pipe only says that this process lives.
fn standard_input(input: &Path) -> Stdio {
    if cfg!(unix) {
        return Stdio::piped();
    }
    std::fs::File::open(input).map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Settings of every run: no hook and no other protocol, and every object is checked.
const FIXED_SETTINGS: [&str; 18] = [
    "core.bigFileThreshold=1m",
    "pack.threads=1",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=false",
    "core.askPass=",
    "credential.interactive=false",
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.http.allow=always",
    "protocol.ssh.allow=always",
    "protocol.file.allow=always",
    "transfer.fsckObjects=true",
    "transfer.bundleURI=false",
    "fetch.recurseSubmodules=false",
    "fetch.unpackLimit=1",
    "gc.auto=0",
    "maintenance.auto=false",
];

/// A run of git; dropping it ends the program and everything it started.
pub(super) struct RunningGit {
    child: Child,
    _group: Option<ProcessGroup>,
    messages: Option<tokio::task::JoinHandle<String>>,
}

impl RunningGit {
    pub(super) fn take_output(&mut self) -> Result<tokio::process::ChildStdout> {
        self.child.stdout.take().ok_or_else(no_pipe)
    }

    pub(super) async fn finish(mut self, git: &Git) -> Result<()> {
        let status = self
            .child
            .wait()
            .await
            .map_err(|error| git.broken_pipe(&error))?;
        let messages = match self.messages.take() {
            Some(messages) => messages.await.unwrap_or_default(),
            None => String::new(),
        };
        if status.success() {
            return Ok(());
        }
        Err(failure(&git.shown, &messages, status))
    }
}

fn no_pipe() -> Error {
    Error::NoProgram {
        program: "git",
        reason: std::io::ErrorKind::BrokenPipe.into(),
    }
}

async fn read_messages(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..count]);
        let excess = kept.len().saturating_sub(MESSAGE_BYTES);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Turns the messages of a failed run into an error.
fn failure(address: &str, messages: &str, status: std::process::ExitStatus) -> Error {
    let is_noise = |line: &&str| !line.trim().is_empty() && !line.starts_with("hint:");
    let lines: Vec<&str> = messages.lines().filter(is_noise).collect();
    let important = lines
        .iter()
        .rev()
        .find(|line| line.starts_with("fatal:") || line.starts_with("error:"));
    let reason = match important.or(lines.last()) {
        Some(line) => line
            .trim_start_matches("fatal: ")
            .trim_start_matches("error: ")
            .to_owned(),
        None => status.to_string(),
    };
    let all = messages.to_ascii_lowercase();
    let wants_login = [
        "authentication failed",
        "could not read username",
        "permission denied",
        "terminal prompts disabled",
    ];
    if wants_login.iter().any(|words| all.contains(words)) {
        return Error::Unauthorized {
            address: address.to_owned(),
            reason,
        };
    }
    if all.contains("does not appear to be a git repository")
        || all.contains("repository not found")
    {
        return Error::NotFound {
            what: "repository",
            name: address.to_owned(),
        };
    }
    if all.contains("fsck") || all.contains("index-pack") || all.contains("bad object") {
        let reason = format!("sent something that is not valid: {}", lines.join("; "));
        return Error::refused(address, reason);
    }
    Error::unreachable(address, format!("git: {reason}"))
}

/// Returns the bytes of all files beneath a folder. What cannot be read counts nothing.
fn folder_size(folder: &Path) -> u64 {
    let mut open = vec![PathBuf::from(folder)];
    let mut bytes = 0;
    while let Some(folder) = open.pop() {
        let Ok(entries) = folder.read_dir() else {
            continue;
        };
        for entry in entries.flatten() {
            match entry.metadata() {
                // Metadata of entries follow no link, so there is no circle.
                Ok(about) if about.is_dir() => open.push(entry.path()),
                Ok(about) => bytes += about.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}
