//! One sidecar process, from its start to its end.
//!
//! Callers write lines to it and receive its messages. It ends after an invalid message, when idle,
//! or on request; its folder is removed with it.

use std::{
    collections::{HashMap, VecDeque},
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStderr, ChildStdout, Command},
    sync::mpsc,
};

use super::{
    client::{MAX_PENDING, SidecarCommand},
    process_dir::ProcessDir,
    protocol::{SidecarMessage, read_line},
};
use crate::error::{Error, Result};

/// The protocol version.
const PROTOCOL: u64 = 1;
/// How many bytes of its stderr are kept.
const MAX_STDERR: usize = 4 * 1024;

/// A started process.
pub(super) struct SidecarProcess {
    pub(super) lines: mpsc::Sender<String>,
    pub(super) pending: Mutex<HashMap<u64, mpsc::Sender<SidecarMessage>>>,
    pub(super) last_used: Mutex<Instant>,
    /// Why it ended.
    end_reason: Mutex<Option<String>>,
    /// The process and its folder, which is removed with it.
    child: Mutex<Option<(Child, ProcessDir)>>,
    stderr: Mutex<VecDeque<u8>>,
    /// Whether its end was counted as a crash.
    pub(super) crash_counted: AtomicBool,
    /// Whether a request missed its deadline.
    pub(super) needs_ping: AtomicBool,
    pub(super) dspy_version: String,
}

pub(super) fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SidecarProcess {
    /// Starts it, and waits for its `ready` message.
    pub(super) async fn start_process(program: &SidecarCommand) -> Result<Arc<Self>> {
        let broken = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| Error::Sidecar(format!("{what}: {error}"))
        };
        let shown = program.program.display().to_string();
        std::fs::create_dir_all(&program.folder).map_err(broken(&shown))?;
        // A bundle unpacks itself into this folder and cannot remove it when it is killed.
        let folder = program.folder.clone();
        let own = tokio::task::spawn_blocking(move || ProcessDir::create_in(&folder)).await;
        let own = own.map_err(|_| Error::Interrupted)?;
        let own = own.map_err(broken(&program.folder.display().to_string()))?;
        let mut command = Command::new(&program.program);
        command
            .args(&program.args)
            .current_dir(&program.folder)
            // The process must not see keys, proxies or paths from our environment.
            .env_clear()
            .env("HOME", &program.folder)
            .env("DSPY_CACHEDIR", program.folder.join("cache"))
            .envs(["TMPDIR", "TMP", "TEMP"].map(|name| (name, own.folder.path())))
            .env("PYTHONUTF8", "1")
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        // A bundle starts a child process, which must end with it.
        #[cfg(unix)]
        command.process_group(0);
        #[cfg(windows)]
        if let Some(root) = std::env::var_os("SYSTEMROOT") {
            command.env("SYSTEMROOT", root);
        }
        let mut child = command.spawn().map_err(broken(&shown))?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::Sidecar("it has no pipes".to_owned()));
        };
        let (lines, mut to_write) = mpsc::channel::<String>(MAX_PENDING);
        let mut running = Self {
            lines,
            pending: Mutex::default(),
            last_used: Mutex::new(Instant::now()),
            end_reason: Mutex::default(),
            child: Mutex::new(Some((child, own))),
            stderr: Mutex::default(),
            crash_counted: AtomicBool::new(false),
            needs_ping: AtomicBool::new(false),
            dspy_version: String::new(),
        };
        let mut stdout = BufReader::new(stdout);
        // Errors during startup are reported from stderr.
        let mut stderr = BufReader::new(stderr);
        let ready = tokio::time::timeout(program.start, read_line(&mut stdout, program.max_line));
        let ready: Value = match ready.await {
            Err(_) => {
                running.end_process(&format!("it did not start within {:?}", program.start));
                return Err(running.end_error());
            }
            Ok(Err(error)) => {
                running.end_process(&format!("it did not start: {error}"));
                // It ended, so stderr is complete; another process may hold the pipe open.
                let mut said = Vec::new();
                let mut last = (&mut stderr).take(MAX_STDERR as u64);
                let reading = last.read_to_end(&mut said);
                let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
                lock_mutex(&running.stderr).extend(said);
                return Err(running.end_error());
            }
            Ok(Ok(line)) => repertoire_core::json::from_slice(&line).unwrap_or_default(),
        };
        if ready["type"] != "ready" || ready["protocol"] != PROTOCOL {
            running.end_process("it did not start: it speaks another protocol");
            return Err(running.end_error());
        }
        let dspy = ready["dspy"].as_str().unwrap_or_default();
        dspy.clone_into(&mut running.dspy_version);
        let running = Arc::new(running);
        tokio::spawn(async move {
            while let Some(line) = to_write.recv().await {
                // A process that stops reading runs into the silence timeout.
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        tokio::spawn(route_messages(running.clone(), stdout, program.max_line));
        tokio::spawn(collect_stderr(running.clone(), stderr));
        tokio::spawn(stop_when_idle(Arc::downgrade(&running), program.idle));
        Ok(running)
    }

    /// Ends the process; all waiting requests fail.
    pub(super) fn end_process(&self, why: &str) {
        lock_mutex(&self.end_reason).get_or_insert_with(|| why.to_owned());
        if let Some((mut child, folder)) = lock_mutex(&self.child).take() {
            #[cfg(unix)]
            if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                // Fails if it has already ended.
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
            let _ = child.start_kill();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    let _ = child.wait().await;
                    // Removing the folder of a bundle is slow: it contains all of Python.
                    tokio::task::spawn_blocking(move || drop(folder));
                });
            }
        }
        lock_mutex(&self.pending).clear();
    }

    pub(super) fn has_ended(&self) -> bool {
        lock_mutex(&self.end_reason).is_some()
    }

    /// Why it ended, with the last line of its stderr.
    pub(super) fn end_error(&self) -> Error {
        let why = lock_mutex(&self.end_reason).clone();
        let said: Vec<u8> = lock_mutex(&self.stderr).iter().copied().collect();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map(|line| repertoire_core::markdown::truncate_text(line.trim(), 300));
        let mut text = why.unwrap_or_else(|| "it ended".to_owned());
        if let Some(last) = last {
            text = format!("{text} (stderr: {last})");
        }
        Error::Sidecar(text)
    }
}

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        self.end_process("it is no longer used");
    }
}

/// Routes messages to the waiting requests until the process ends or sends an invalid message.
async fn route_messages(
    running: Arc<SidecarProcess>,
    mut stdout: BufReader<ChildStdout>,
    most: u64,
) {
    let why = loop {
        let line = match read_line(&mut stdout, most).await {
            Ok(line) => line,
            Err(error) => break error.to_string(),
        };
        let Some((id, said)) = SidecarMessage::parse_line(&line) else {
            break "it sent something that is no message".to_owned();
        };
        let mut waiting = lock_mutex(&running.pending);
        if let Some(id) = id
            && let Some(sender) = waiting.get(&id)
        {
            let ends = !matches!(said, SidecarMessage::Request { .. });
            // The caller may have stopped waiting, which is not an error.
            if let Err(mpsc::error::TrySendError::Full(_)) = sender.try_send(said) {
                drop(waiting);
                break "it sends more requests than can be answered".to_owned();
            }
            if ends {
                waiting.remove(&id);
            }
        }
    };
    // Let the stderr task read the last output first.
    tokio::task::yield_now().await;
    running.end_process(&why);
}

/// Keeps the last bytes of stderr.
async fn collect_stderr(running: Arc<SidecarProcess>, mut stderr: BufReader<ChildStderr>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = lock_mutex(&running.stderr);
        kept.extend(&chunk[..read]);
        let over = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..over);
    }
}

/// Ends a process that has been idle for a while.
async fn stop_when_idle(running: Weak<SidecarProcess>, idle: Duration) {
    loop {
        let Some(now) = running.upgrade() else { return };
        if now.has_ended() {
            return;
        }
        let spent = lock_mutex(&now.last_used).elapsed();
        let busy = !lock_mutex(&now.pending).is_empty();
        if spent >= idle && !busy {
            now.end_process("it was not needed for a while");
            return;
        }
        drop(now);
        let left = if busy {
            idle
        } else {
            idle.saturating_sub(spent)
        };
        tokio::time::sleep(left.max(Duration::from_millis(10))).await;
    }
}
