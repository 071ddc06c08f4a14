//! One process of the sidecar, from its first line to its end.
//!
//! Whoever holds it can write to it and wait for what it says. It ends when it says something that
//! makes no sense, when nobody needs it, or when it is told to; its folder goes with it.

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
    own::Own,
    process::{MAX_OPEN, Program},
    wire::{Said, read_line},
};
use crate::error::{Error, Result};

/// The version of what is spoken.
const PROTOCOL: u64 = 1;
/// How much of what it says to people is kept.
const MAX_STDERR: usize = 4 * 1024;

/// A process that was started.
pub(super) struct Running {
    pub(super) lines: mpsc::Sender<String>,
    pub(super) waiting: Mutex<HashMap<u64, mpsc::Sender<Said>>>,
    pub(super) used: Mutex<Instant>,
    /// Why it is over.
    over: Mutex<Option<String>>,
    /// The process, and the folder it has to itself, which goes with it.
    child: Mutex<Option<(Child, Own)>>,
    stderr: Mutex<VecDeque<u8>>,
    /// Whether its end was counted.
    pub(super) counted: AtomicBool,
    /// Whether a request got no answer in time.
    pub(super) doubted: AtomicBool,
    pub(super) dspy: String,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// Starts it, and waits until it says that it is there.
    pub(super) async fn start(program: &Program) -> Result<Arc<Self>> {
        let broken = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| Error::Sidecar(format!("{what}: {error}"))
        };
        let shown = program.program.display().to_string();
        std::fs::create_dir_all(&program.folder).map_err(broken(&shown))?;
        // A bundle unpacks itself into it, and cannot tidy up when it is killed.
        let folder = program.folder.clone();
        let own = tokio::task::spawn_blocking(move || Own::within(&folder)).await;
        let own = own.map_err(|_| Error::Interrupted)?;
        let own = own.map_err(broken(&program.folder.display().to_string()))?;
        let mut command = Command::new(&program.program);
        command
            .args(&program.args)
            .current_dir(&program.folder)
            // Nothing of ours is there to be found: no key, no proxy, no path.
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
        // A bundle starts a process of its own, which has to end with it.
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
        let (lines, mut to_write) = mpsc::channel::<String>(MAX_OPEN);
        let mut running = Self {
            lines,
            waiting: Mutex::default(),
            used: Mutex::new(Instant::now()),
            over: Mutex::default(),
            child: Mutex::new(Some((child, own))),
            stderr: Mutex::default(),
            counted: AtomicBool::new(false),
            doubted: AtomicBool::new(false),
            dspy: String::new(),
        };
        let mut stdout = BufReader::new(stdout);
        // What it complains about while it starts is worth knowing.
        let mut stderr = BufReader::new(stderr);
        let ready = tokio::time::timeout(program.start, read_line(&mut stdout, program.max_line));
        let ready: Value = match ready.await {
            Err(_) => {
                running.end(&format!("it did not start within {:?}", program.start));
                return Err(running.why());
            }
            Ok(Err(error)) => {
                running.end(&format!("it did not start: {error}"));
                // It is gone, so that its last words are there; somebody else may hold the pipe.
                let mut said = Vec::new();
                let mut last = (&mut stderr).take(MAX_STDERR as u64);
                let reading = last.read_to_end(&mut said);
                let _ = tokio::time::timeout(Duration::from_secs(1), reading).await;
                lock(&running.stderr).extend(said);
                return Err(running.why());
            }
            Ok(Ok(line)) => repertoire_core::json::from_slice(&line).unwrap_or_default(),
        };
        if ready["type"] != "ready" || ready["protocol"] != PROTOCOL {
            running.end("it did not start: it speaks something else");
            return Err(running.why());
        }
        let dspy = ready["dspy"].as_str().unwrap_or_default();
        dspy.clone_into(&mut running.dspy);
        let running = Arc::new(running);
        tokio::spawn(async move {
            while let Some(line) = to_write.recv().await {
                // One that does not read is found out by what it does not say.
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        tokio::spawn(listen(running.clone(), stdout, program.max_line));
        tokio::spawn(overhear(running.clone(), stderr));
        tokio::spawn(retire(Arc::downgrade(&running), program.idle));
        Ok(running)
    }

    /// Ends it; whoever waits for it is told.
    pub(super) fn end(&self, why: &str) {
        lock(&self.over).get_or_insert_with(|| why.to_owned());
        if let Some((mut child, folder)) = lock(&self.child).take() {
            #[cfg(unix)]
            if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok())
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                // It is gone already, or it is going.
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
            let _ = child.start_kill();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    let _ = child.wait().await;
                    // That of a bundle holds all of Python.
                    tokio::task::spawn_blocking(move || drop(folder));
                });
            }
        }
        lock(&self.waiting).clear();
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.over).is_some()
    }

    /// Why it is over, with the last thing it said to people.
    pub(super) fn why(&self) -> Error {
        let why = lock(&self.over).clone();
        let said: Vec<u8> = lock(&self.stderr).iter().copied().collect();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let last = last.map(|line| repertoire_core::markdown::cut(line.trim(), 300));
        let mut text = why.unwrap_or_else(|| "it is gone".to_owned());
        if let Some(last) = last {
            text = format!("{text} (it said: {last})");
        }
        Error::Sidecar(text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end("nobody waits for it");
    }
}

/// Gives what is said to whoever waits for it, until it says something that makes no sense.
async fn listen(running: Arc<Running>, mut stdout: BufReader<ChildStdout>, most: u64) {
    let why = loop {
        let line = match read_line(&mut stdout, most).await {
            Ok(line) => line,
            Err(error) => break error.to_string(),
        };
        let Some((id, said)) = Said::read(&line) else {
            break "it said something that is no message".to_owned();
        };
        let mut waiting = lock(&running.waiting);
        if let Some(id) = id
            && let Some(tell) = waiting.get(&id)
        {
            let ends = !matches!(said, Said::Asked { .. });
            // Whoever asked may have stopped waiting, and that is all right.
            if let Err(mpsc::error::TrySendError::Full(_)) = tell.try_send(said) {
                drop(waiting);
                break "it asks more than can be answered".to_owned();
            }
            if ends {
                waiting.remove(&id);
            }
        }
    };
    // Its last words come by another way.
    tokio::task::yield_now().await;
    running.end(&why);
}

/// Keeps the end of what it says to people.
async fn overhear(running: Arc<Running>, mut stderr: BufReader<ChildStderr>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = lock(&running.stderr);
        kept.extend(&chunk[..read]);
        let over = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..over);
    }
}

/// Ends a process that nobody has needed for a while.
async fn retire(running: Weak<Running>, idle: Duration) {
    loop {
        let Some(now) = running.upgrade() else { return };
        if now.is_over() {
            return;
        }
        let spent = lock(&now.used).elapsed();
        let busy = !lock(&now.waiting).is_empty();
        if spent >= idle && !busy {
            now.end("it was not needed for a while");
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
