//! Client for another server as a child process, over its stdin and stdout.
//!
//! The child gets a small environment and its lines are limited. It is killed with its whole
//! process group, so that a wrapper script leaves no processes behind.

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

use super::{Envelope, RawResponse, RemoteFailure, RemoteRequest, Result, target::ServerTarget};
use crate::process_group::ProcessGroup;

/// Environment variables every child inherits.
const INHERITED_VARIABLES: [&str; 12] = [
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
/// The maximum length in bytes of a line that answers no request.
const MAX_UNSOLICITED_LINE: usize = 64 * 1024;
/// The number of bytes kept from the end of stderr.
const STDERR_TAIL_BYTES: usize = 400;

type PendingResponses = Arc<Mutex<HashMap<u64, oneshot::Sender<RawResponse>>>>;

/// The maximum nesting depth of servers that start other servers.
const MAX_DEPTH: usize = 4;
/// The environment variable with the nesting depth.
const DEPTH_VARIABLE: &str = "REPERTOIRE_DEPTH";

/// A running child process.
#[derive(Debug)]
pub(super) struct ProcessChannel {
    child: Mutex<Child>,
    /// Kills the child with everything it started.
    _group: Option<ProcessGroup>,
    stdin: Arc<tokio::sync::Mutex<ChildStdin>>,
    pending: PendingResponses,
    /// The maximum line length, raised by each request.
    limit: Arc<AtomicUsize>,
    ended: Arc<AtomicBool>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
    /// Set once stderr is closed.
    stderr_closed: Arc<SetOnce<()>>,
    next_id: AtomicU64,
}

impl ProcessChannel {
    pub(super) fn spawn_server(target: &ServerTarget) -> Result<Self> {
        let ServerTarget::Command { argv, env, cwd } = target else {
            return Err(RemoteFailure::Unusable("is not a command".into()));
        };
        let Some((program, arguments)) = argv.split_first() else {
            return Err(RemoteFailure::Unusable("the command is empty".into()));
        };
        let depth = std::env::var(DEPTH_VARIABLE)
            .ok()
            .and_then(|d| d.parse().ok());
        let depth: usize = depth.unwrap_or(0);
        if depth >= MAX_DEPTH {
            return Err(RemoteFailure::Unreachable(
                "is started by a server that it started itself; configure another one".into(),
            ));
        }
        let mut command = Command::new(program);
        if let Some(cwd) = cwd {
            command.current_dir(cwd);
        }
        command
            .args(arguments)
            .env_clear()
            .env(DEPTH_VARIABLE, (depth + 1).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for name in INHERITED_VARIABLES
            .into_iter()
            .chain(env.iter().map(String::as_str))
        {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        #[cfg(unix)]
        command.process_group(0);
        let failed = |error: std::io::Error| {
            RemoteFailure::Unreachable(format!("{program:?} could not be started: {error}"))
        };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(RemoteFailure::Unreachable(format!(
                "{program:?} has no pipes"
            )));
        };
        let process = Self {
            _group: child.id().map(ProcessGroup::new),
            child: Mutex::new(child),
            stdin: Arc::new(tokio::sync::Mutex::new(stdin)),
            pending: PendingResponses::default(),
            limit: Arc::new(AtomicUsize::new(MAX_UNSOLICITED_LINE)),
            ended: Arc::default(),
            stderr_tail: Arc::default(),
            stderr_closed: Arc::new(SetOnce::new()),
            next_id: AtomicU64::new(1),
        };
        process.read_responses(stdout);
        process.collect_stderr(stderr);
        Ok(process)
    }

    /// Passes each response to its request until the program ends.
    fn read_responses(&self, stdout: impl AsyncRead + Unpin + Send + 'static) {
        let (waiting, ended) = (self.pending.clone(), self.ended.clone());
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
                        answer_server_request(&stdin, method, id).await;
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
                    let _ = asker.send(RawResponse(std::mem::take(&mut line)));
                }
            }
            ended.store(true, Ordering::SeqCst);
            waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        });
    }

    /// Keeps the end of stderr, to report why a program failed.
    fn collect_stderr(&self, stderr: impl AsyncRead + Unpin + Send + 'static) {
        let (words, silent) = (self.stderr_tail.clone(), self.stderr_closed.clone());
        tokio::spawn(async move {
            let mut stderr = stderr;
            let mut chunk = [0u8; 1024];
            while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                words.extend_from_slice(&chunk[..read]);
                let extra = words.len().saturating_sub(STDERR_TAIL_BYTES);
                words.drain(..extra);
            }
            let _ = silent.set(());
        });
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    async fn exit_failure(&self) -> RemoteFailure {
        // The process may have ended before its stderr was read.
        let _ = tokio::time::timeout(Duration::from_millis(500), self.stderr_closed.wait()).await;
        let words = self
            .stderr_tail
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rev().find(|line| !line.trim().is_empty());
        RemoteFailure::Unreachable(match last {
            Some(last) => format!("ended; last line on stderr: {}", last.trim()),
            None => "ended".to_owned(),
        })
    }

    pub(super) async fn send_request(&self, question: RemoteRequest<'_>) -> Result<RawResponse> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (answer, wait) = oneshot::channel();
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, answer);
        self.limit.fetch_max(question.limit, Ordering::Relaxed);
        let work = async {
            if self.has_ended() {
                return Err(self.exit_failure().await);
            }
            self.write_message(&super::request_message(id, &question))
                .await?;
            match wait.await {
                Ok(answer) => Ok(answer),
                Err(_) => Err(self.exit_failure().await),
            }
        };
        let answered = tokio::time::timeout_at(question.deadline, work).await;
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
        answered.map_err(|_| RemoteFailure::Unreachable("did not answer in time".into()))?
    }

    pub(super) async fn send_notification(&self, method: &str, until: Instant) -> Result<()> {
        let value = json!({"jsonrpc": "2.0", "method": method});
        let sent = tokio::time::timeout_at(until, self.write_message(&value)).await;
        sent.map_err(|_| RemoteFailure::Unreachable("did not answer in time".into()))?
    }

    async fn write_message(&self, value: &Value) -> Result<()> {
        let mut stdin = self.stdin.lock().await;
        let line = format!("{value}\n");
        let written = match stdin.write_all(line.as_bytes()).await {
            Ok(()) => stdin.flush().await,
            error => error,
        };
        drop(stdin);
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(self.exit_failure().await),
        }
    }
}

/// Reads one line; returns false at the end of input and for a line over the limit.
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

/// Answers a request from the server: pings with a result, others with an error.
async fn answer_server_request(
    stdin: &tokio::sync::Mutex<ChildStdin>,
    method: &str,
    id: &RawValue,
) {
    let answer = if method == "ping" {
        json!({"jsonrpc": "2.0", "id": id, "result": {}})
    } else {
        let error = json!({"code": -32601, "message": "method not supported"});
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    };
    let line = format!("{answer}\n");
    // If the server no longer reads, the pending requests fail anyway.
    let _ = stdin.lock().await.write_all(line.as_bytes()).await;
}

impl Drop for ProcessChannel {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = child.start_kill();
    }
}
