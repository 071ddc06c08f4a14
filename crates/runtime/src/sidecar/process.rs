//! The process: started when it is needed, ended when it is not, and never trusted to behave.
//!
//! It says one line of JSON at a time. Lines are capped, silence has a deadline, and a process that
//! says anything else is ended; whoever waits for it is told why.

use std::{
    collections::{HashMap, VecDeque},
    ffi::OsString,
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    sync::{Semaphore, mpsc},
};

use super::wire::{Answers, Question, Said, read_line, told};
use crate::error::{Error, Result};

/// The version of what is spoken.
const PROTOCOL: u64 = 1;
/// How much of what it says to people is kept.
const MAX_STDERR: usize = 4 * 1024;
/// How many requests it works on at a time.
const AT_ONCE: usize = 8;
/// How many questions and answers may be on their way; more is a flood.
const MAX_OPEN: usize = 256;
/// How many crashes within how long make it not worth trying.
const CRASHES: usize = 3;
const WITHIN: Duration = Duration::from_mins(1);

/// How a sidecar is started, and how long it is waited for.
#[derive(Debug, Clone)]
pub struct Program {
    /// What is run.
    pub program: PathBuf,
    /// With what.
    pub args: Vec<OsString>,
    /// Where: a folder of its own.
    pub folder: PathBuf,
    /// How long it may take to start.
    pub start: Duration,
    /// How long it may say nothing while it is its turn.
    pub quiet: Duration,
    /// How long it is kept while nobody needs it.
    pub idle: Duration,
    /// The longest line, in bytes.
    pub max_line: u64,
}

impl Program {
    /// A program with the usual deadlines.
    pub fn new(
        program: impl Into<PathBuf>,
        args: Vec<OsString>,
        folder: impl Into<PathBuf>,
    ) -> Self {
        Self {
            program: program.into(),
            args,
            folder: folder.into(),
            start: Duration::from_mins(1),
            quiet: Duration::from_mins(1),
            idle: Duration::from_mins(5),
            max_line: 16 << 20,
        }
    }
}

/// A process that was started.
struct Running {
    lines: mpsc::Sender<String>,
    waiting: Mutex<HashMap<u64, mpsc::Sender<Said>>>,
    used: Mutex<Instant>,
    /// Why it is over.
    over: Mutex<Option<String>>,
    /// The process, and the folder it has to itself, which goes with it.
    child: Mutex<Option<(Child, Own)>>,
    stderr: Mutex<VecDeque<u8>>,
    /// Whether its end was counted.
    counted: AtomicBool,
    dspy: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    /// Ends it; whoever waits for it is told.
    fn end(&self, why: &str) {
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
                    drop(folder);
                });
            }
        }
        lock(&self.waiting).clear();
    }

    fn is_over(&self) -> bool {
        lock(&self.over).is_some()
    }

    /// Why it is over, with the last thing it said to people.
    fn why(&self) -> Error {
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

/// The sidecar, whether it runs or not.
pub struct Sidecar {
    program: Program,
    running: tokio::sync::Mutex<Option<Arc<Running>>>,
    crashes: Mutex<VecDeque<Instant>>,
    next: AtomicU64,
    room: Semaphore,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().take() {
            running.end("it is not needed any more");
        }
    }
}

impl std::fmt::Debug for Sidecar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sidecar")
            .field("program", &self.program.program)
            .finish_non_exhaustive()
    }
}

impl Sidecar {
    /// A sidecar that is started when it is first needed.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            running: tokio::sync::Mutex::default(),
            crashes: Mutex::default(),
            next: AtomicU64::new(1),
            room: Semaphore::new(AT_ONCE),
        }
    }

    /// Why it cannot be used now.
    pub fn lacks(&self) -> Option<Error> {
        if !self.program.program.is_file() {
            return Some(Error::Sidecar("it is not installed".to_owned()));
        }
        let mut crashes = lock(&self.crashes);
        while crashes
            .front()
            .is_some_and(|crash| crash.elapsed() > WITHIN)
        {
            crashes.pop_front();
        }
        (crashes.len() >= CRASHES).then(|| {
            let within = WITHIN.as_secs();
            Error::Sidecar(format!(
                "it ended {CRASHES} times within {within} s, and is left alone for a while"
            ))
        })
    }

    /// The version of DSPy it has.
    pub async fn dspy(&self) -> Result<String> {
        Ok(self.running().await?.dspy.clone())
    }

    /// Whether there is a process.
    pub async fn is_running(&self) -> bool {
        let running = self.running.lock().await;
        running.as_ref().is_some_and(|running| !running.is_over())
    }

    /// Ends the process, if there is one.
    pub async fn stop(&self) {
        if let Some(running) = self.running.lock().await.take() {
            running.end("it was stopped");
        }
    }

    /// The process; started, or found to be well.
    async fn running(&self) -> Result<Arc<Running>> {
        let mut slot = self.running.lock().await;
        if let Some(running) = &*slot {
            if !running.is_over() && self.is_well(running).await {
                return Ok(running.clone());
            }
            running.end("it did not answer");
        }
        if let Some(error) = self.lacks() {
            return Err(error);
        }
        let started = match self.start().await {
            Ok(started) => started,
            Err(error) => {
                self.crashed();
                return Err(error);
            }
        };
        *slot = Some(started.clone());
        Ok(started)
    }

    fn crashed(&self) {
        lock(&self.crashes).push_back(Instant::now());
    }

    /// One that has been idle for a while is asked whether it is still there.
    async fn is_well(&self, running: &Arc<Running>) -> bool {
        let idle = lock(&running.used).elapsed();
        if idle < Duration::from_secs(10).min(self.program.quiet)
            || !lock(&running.waiting).is_empty()
        {
            return true;
        }
        let ping = self.exchange(running, json!({"type": "ping"}), &Nobody);
        let patience = Duration::from_secs(2).min(self.program.quiet);
        matches!(tokio::time::timeout(patience, ping).await, Ok(Ok(_)))
    }

    async fn start(&self) -> Result<Arc<Running>> {
        let broken = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| Error::Sidecar(format!("{what}: {error}"))
        };
        let program = &self.program;
        let shown = program.program.display().to_string();
        std::fs::create_dir_all(&program.folder).map_err(broken(&shown))?;
        // A bundle unpacks itself into it, and cannot tidy up when it is killed.
        let own = Own::within(&program.folder);
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
        let mut running = Running {
            lines,
            waiting: Mutex::default(),
            used: Mutex::new(Instant::now()),
            over: Mutex::default(),
            child: Mutex::new(Some((child, own))),
            stderr: Mutex::default(),
            counted: AtomicBool::new(false),
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
            Ok(Ok(line)) => serde_json::from_slice(&line).unwrap_or_default(),
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

    /// Asks for something, and answers what is asked back meanwhile.
    pub(crate) async fn request(
        &self,
        request: Value,
        answers: &dyn Answers,
        deadline: Duration,
    ) -> Result<Map<String, Value>> {
        let asked = async {
            // What waits here is not waited for there.
            let _room = self.room.acquire().await;
            let running = self.running().await?;
            let done = self.exchange(&running, request, answers).await;
            if running.is_over() && !running.counted.swap(true, Ordering::Relaxed) {
                self.crashed();
            }
            done
        };
        match tokio::time::timeout(deadline, asked).await {
            Ok(done) => done,
            Err(_) => Err(Error::Sidecar(format!("it took more than {deadline:?}"))),
        }
    }

    async fn exchange(
        &self,
        running: &Arc<Running>,
        mut request: Value,
        answers: &dyn Answers,
    ) -> Result<Map<String, Value>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request["id"] = json!(id);
        let (tell, mut said) = mpsc::channel(MAX_OPEN);
        lock(&running.waiting).insert(id, tell);
        // However this ends, it is cleaned up.
        let _waiting = Waiting { running, id };
        // It may have ended before it could tell this one.
        if running.is_over() {
            return Err(running.why());
        }
        let send = |message: &Value| -> Result<()> {
            let line = format!("{message}\n");
            if line.len() as u64 > self.program.max_line {
                let most = self.program.max_line;
                return Err(Error::Sidecar(format!("that is more than {most} bytes")));
            }
            running.lines.try_send(line).map_err(|_| {
                running.end("it does not listen");
                running.why()
            })
        };
        send(&request)?;
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = said.recv() => match message {
                    None => return Err(running.why()),
                    Some(Said::Result(body)) => return Ok(body),
                    Some(Said::Refused { code, message }) => return Err(told(&code, &message)),
                    Some(Said::Asked { .. }) if open.len() >= MAX_OPEN => {
                        running.end("it asks more than can be answered");
                        return Err(running.why());
                    }
                    Some(Said::Asked { call, question }) => open.push(async move {
                        (call, answers.answer(question).await)
                    }),
                },
                Some((call, answer)) = open.next(), if !open.is_empty() => {
                    let message = match answer {
                        Ok(Value::Object(mut body)) => {
                            body.insert("type".to_owned(), json!("answer"));
                            body.insert("call".to_owned(), json!(call));
                            Value::Object(body)
                        }
                        Ok(_) => json!({"type": "answer", "call": call}),
                        Err(error) => json!({
                            "type": "refused", "call": call, "code": error.code(),
                            "message": error.to_string(),
                        }),
                    };
                    send(&message)?;
                }
                // While it waits for us, it is quiet by right.
                () = tokio::time::sleep(self.program.quiet), if open.is_empty() => {
                    running.end(&format!("it said nothing for {:?}", self.program.quiet));
                    return Err(running.why());
                }
            }
        }
    }
}

/// A request that is waited for.
struct Waiting<'a> {
    running: &'a Arc<Running>,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let known = lock(&self.running.waiting).remove(&self.id).is_some();
        *lock(&self.running.used) = Instant::now();
        if known {
            let cancel = json!({"type": "cancel", "id": self.id});
            let _ = self.running.lines.try_send(format!("{cancel}\n"));
        }
    }
}

struct Nobody;

#[async_trait]
impl Answers for Nobody {
    async fn answer(&self, question: Question) -> Result<Value> {
        Err(Error::Sidecar(format!("it asked {:?}", question.kind)))
    }
}

/// Gives what is said to whoever waits for it, until it says something that makes no sense.
async fn listen(
    running: Arc<Running>,
    mut stdout: BufReader<tokio::process::ChildStdout>,
    most: u64,
) {
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
async fn overhear(running: Arc<Running>, mut stderr: BufReader<tokio::process::ChildStderr>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut kept = lock(&running.stderr);
        kept.extend(&chunk[..read]);
        let over = kept.len().saturating_sub(MAX_STDERR);
        kept.drain(..over);
    }
}

/// A folder for one process. Whoever made it holds a lock on a file in it, so that what is left
/// behind can be told from what is in use.
struct Own {
    // Let go before the folder goes.
    _lock: File,
    folder: TempDir,
}

impl Own {
    fn within(folder: &Path) -> std::io::Result<Self> {
        const BEGINS: &str = "process-";
        const LOCK: &str = "lock";
        for entry in std::fs::read_dir(folder)?.flatten() {
            let left = entry.path();
            let locked = || File::open(left.join(LOCK)).map(|lock| lock.try_lock().is_err());
            if entry.file_name().to_string_lossy().starts_with(BEGINS)
                && locked().is_ok_and(|locked| !locked)
            {
                let _ = std::fs::remove_dir_all(left);
            }
        }
        let folder = tempfile::Builder::new().prefix(BEGINS).tempdir_in(folder)?;
        // It is locked before others see it.
        let hidden = folder.path().join("new-lock");
        let lock = File::create(&hidden)?;
        lock.lock()?;
        std::fs::rename(hidden, folder.path().join(LOCK))?;
        Ok(Self {
            _lock: lock,
            folder,
        })
    }
}

/// Ends a process that nobody has needed for a while.
async fn retire(running: std::sync::Weak<Running>, idle: Duration) {
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
