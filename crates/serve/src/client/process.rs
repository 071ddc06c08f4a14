//! Another server as a program of ours, over its stdin and stdout.
//!
//! It is given a small environment, its lines are bounded, and it ends with us: with its whole
//! process group, so that a wrapper leaves nothing behind.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{SetOnce, oneshot},
    time::Instant,
};

use super::{Envelope, Failure, Message, Question, Result, target::Target};

/// Variables every program may know.
const USUAL: [&str; 12] = [
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
    "SYSTEMROOT",
    "USERPROFILE",
];
/// The most bytes of a line nobody is waiting for.
const MAX_NOISE: usize = 64 * 1024;
/// How much of the last words on stderr is kept.
const LAST_WORDS: usize = 400;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>;

/// How often a server may have been started by a server that was started by a server.
const MAX_DEPTH: usize = 4;
/// The variable that counts.
const DEPTH: &str = "REPERTOIRE_DEPTH";

/// The process groups of every program that runs.
static GROUPS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Ends every program that was started as a server, at once: for when the process ends.
pub fn end_all() {
    for group in GROUPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        end(group);
    }
}

fn end(group: u32) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(group)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = group;
}

/// A program that was started.
#[derive(Debug)]
pub(super) struct Process {
    child: Mutex<Child>,
    group: Option<u32>,
    stdin: Arc<tokio::sync::Mutex<ChildStdin>>,
    waiting: Waiting,
    /// The most bytes of a line, by what was asked for.
    limit: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    last_words: Arc<Mutex<Vec<u8>>>,
    /// Set once nothing more can come on stderr.
    silent: Arc<SetOnce<()>>,
    next: AtomicU64,
}

impl Process {
    pub(super) fn start(target: &Target) -> Result<Self> {
        let Target::Command { argv, env, cwd } = target else {
            return Err(Failure::Unusable("is no command".into()));
        };
        let Some((program, arguments)) = argv.split_first() else {
            return Err(Failure::Unusable("the command is empty".into()));
        };
        let depth = std::env::var(DEPTH).ok().and_then(|d| d.parse().ok());
        let depth: usize = depth.unwrap_or(0);
        if depth >= MAX_DEPTH {
            return Err(Failure::Gone(
                "is started by a server that it has started itself; ask one that is not".into(),
            ));
        }
        let mut command = Command::new(program);
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        command
            .args(arguments)
            .env_clear()
            .env(DEPTH, (depth + 1).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for name in USUAL.into_iter().chain(env.iter().map(String::as_str)) {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        #[cfg(unix)]
        command.process_group(0);
        let failed = |error: std::io::Error| {
            Failure::Gone(format!("{program:?} could not be started: {error}"))
        };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Failure::Gone(format!("{program:?} has no pipes")));
        };
        if let Some(group) = child.id() {
            let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
            groups.push(group);
        }
        let process = Self {
            group: child.id(),
            child: Mutex::new(child),
            stdin: Arc::new(tokio::sync::Mutex::new(stdin)),
            waiting: Waiting::default(),
            limit: Arc::new(AtomicUsize::new(MAX_NOISE)),
            ended: Arc::default(),
            last_words: Arc::default(),
            silent: Arc::new(SetOnce::new()),
            next: AtomicU64::new(1),
        };
        process.listen(stdout);
        process.overhear(stderr);
        Ok(process)
    }

    /// Gives each answer to whoever waits for it, until the program ends.
    fn listen(&self, stdout: impl AsyncRead + Unpin + Send + 'static) {
        let (waiting, ended) = (self.waiting.clone(), self.ended.clone());
        let (limit, stdin) = (self.limit.clone(), self.stdin.clone());
        tokio::spawn(async move {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            loop {
                line.clear();
                if !read_line(&mut reader, &mut line, &limit).await {
                    break;
                }
                let Ok(envelope) = repertoire_core::json::from_slice::<Envelope<'_>>(&line) else {
                    continue;
                };
                if let Some(method) = &envelope.method {
                    if let Some(id) = envelope.id.filter(|id| id.get().len() <= 128) {
                        refuse(&stdin, method, id).await;
                    }
                    continue;
                }
                let id = envelope.id.and_then(|id| id.get().parse::<u64>().ok());
                let asker = id.and_then(|id| {
                    waiting
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .remove(&id)
                });
                if let Some(asker) = asker {
                    let _ = asker.send(Message(std::mem::take(&mut line)));
                }
            }
            ended.store(true, Ordering::SeqCst);
            waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        });
    }

    /// Keeps the last words on stderr, to say why a program failed.
    fn overhear(&self, stderr: impl AsyncRead + Unpin + Send + 'static) {
        let (words, silent) = (self.last_words.clone(), self.silent.clone());
        tokio::spawn(async move {
            let mut stderr = stderr;
            let mut chunk = [0u8; 1024];
            while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                words.extend_from_slice(&chunk[..read]);
                let extra = words.len().saturating_sub(LAST_WORDS);
                words.drain(..extra);
            }
            let _ = silent.set(());
        });
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    async fn gone(&self) -> Failure {
        // It may have ended before its last words were read.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.silent.wait()).await;
        let words = self
            .last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rev().find(|line| !line.trim().is_empty());
        Failure::Gone(match last {
            Some(last) => format!("ended; its last words: {}", last.trim()),
            None => "ended".to_owned(),
        })
    }

    pub(super) async fn ask(&self, question: Question<'_>) -> Result<Message> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, wait) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, answer);
        self.limit.fetch_max(question.limit, Ordering::Relaxed);
        let work = async {
            if self.has_ended() {
                return Err(self.gone().await);
            }
            self.write(&super::question(id, &question)).await?;
            match wait.await {
                Ok(answer) => Ok(answer),
                Err(_) => Err(self.gone().await),
            }
        };
        let answered = tokio::time::timeout_at(question.until, work).await;
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
        answered.map_err(|_| Failure::Gone("did not answer in time".into()))?
    }

    pub(super) async fn tell(&self, method: &str, until: Instant) -> Result<()> {
        let value = json!({"jsonrpc": "2.0", "method": method});
        let told = tokio::time::timeout_at(until, self.write(&value)).await;
        told.map_err(|_| Failure::Gone("did not answer in time".into()))?
    }

    async fn write(&self, value: &Value) -> Result<()> {
        let mut stdin = self.stdin.lock().await;
        let line = format!("{value}\n");
        let written = match stdin.write_all(line.as_bytes()).await {
            Ok(()) => stdin.flush().await,
            error => error,
        };
        drop(stdin);
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(self.gone().await),
        }
    }
}

/// Reads one line; says no at the end, and at a line that is longer than anybody asked for.
async fn read_line(
    reader: &mut (impl AsyncBufReadExt + Unpin),
    line: &mut Vec<u8>,
    limit: &AtomicUsize,
) -> bool {
    loop {
        let Ok(chunk @ [_, ..]) = reader.fill_buf().await else {
            return false;
        };
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |at| at + 1);
        line.extend_from_slice(&chunk[..taken]);
        reader.consume(taken);
        if line.len() > limit.load(Ordering::Relaxed) {
            return false;
        }
        if end.is_some() {
            return true;
        }
    }
}

/// Answers a question of the server's own: a ping, or that it is not done here.
async fn refuse(stdin: &tokio::sync::Mutex<ChildStdin>, method: &str, id: &RawValue) {
    let answer = if method == "ping" {
        json!({"jsonrpc": "2.0", "id": id, "result": {}})
    } else {
        let error = json!({"code": -32601, "message": "not done here"});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    };
    let line = format!("{answer}\n");
    // A server that no longer reads has other problems.
    let _ = stdin.lock().await.write_all(line.as_bytes()).await;
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            end(group);
            let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
            groups.retain(|known| *known != group);
        }
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.start_kill();
    }
}
