//! The sidecar client: starts the process on demand, stops it when idle, and does not trust it.
//!
//! The process sends one JSON message per line. Lines are capped and silence has a deadline. A
//! process that violates the protocol is ended, and every waiting request fails with the reason.

use std::{
    collections::VecDeque,
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, mpsc};

use super::{
    child_process::{SidecarProcess, lock_mutex},
    protocol::{HostRequest, HostRequestHandler, SidecarMessage, program_error},
};
use crate::error::{Error, Result};

/// The maximum number of concurrent requests.
const MAX_CONCURRENT: usize = 8;
/// The maximum number of queued messages; more is treated as a flood.
pub(super) const MAX_PENDING: usize = 256;
/// After this many crashes within this time, the sidecar is not restarted.
const CRASHES: usize = 3;
const CRASH_WINDOW: Duration = Duration::from_mins(1);

/// How to start a sidecar, with its timeouts.
#[derive(Debug, Clone)]
pub struct SidecarCommand {
    /// The path of the program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working folder.
    pub folder: PathBuf,
    /// The startup timeout.
    pub start: Duration,
    /// The maximum silence while it works on a request.
    pub silence_timeout: Duration,
    /// How long an idle process is kept.
    pub idle: Duration,
    /// The longest line, in bytes.
    pub max_line: u64,
}

impl SidecarCommand {
    /// A program with default timeouts.
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
            silence_timeout: Duration::from_mins(1),
            idle: Duration::from_mins(5),
            max_line: 16 << 20,
        }
    }
}

/// The sidecar; its process is started on demand.
pub struct Sidecar {
    program: SidecarCommand,
    running: tokio::sync::Mutex<Option<Arc<SidecarProcess>>>,
    crashes: Mutex<VecDeque<Instant>>,
    next: AtomicU64,
    room: Semaphore,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut().take() {
            running.end_process("it is not needed any more");
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
    /// A sidecar whose process is started by the first request.
    pub fn new(program: SidecarCommand) -> Self {
        Self {
            program,
            running: tokio::sync::Mutex::default(),
            crashes: Mutex::default(),
            next: AtomicU64::new(1),
            room: Semaphore::new(MAX_CONCURRENT),
        }
    }

    /// Why the sidecar cannot be used now, if it cannot.
    pub fn unavailable_reason(&self) -> Option<Error> {
        if !self.program.program.is_file() {
            return Some(Error::Sidecar("it is not installed".to_owned()));
        }
        let mut crashes = lock_mutex(&self.crashes);
        while crashes
            .front()
            .is_some_and(|crash| crash.elapsed() > CRASH_WINDOW)
        {
            crashes.pop_front();
        }
        (crashes.len() >= CRASHES).then(|| {
            let within = CRASH_WINDOW.as_secs();
            Error::Sidecar(format!(
                "it ended {CRASHES} times within {within} s; restarts are paused for a while"
            ))
        })
    }

    /// The version of DSPy.
    pub async fn dspy_version(&self) -> Result<String> {
        Ok(self.ensure_running().await?.dspy_version.clone())
    }

    /// Whether the process is running.
    pub async fn is_running(&self) -> bool {
        let running = self.running.lock().await;
        running.as_ref().is_some_and(|running| !running.has_ended())
    }

    /// Ends the process, if there is one.
    pub async fn stop(&self) {
        if let Some(running) = self.running.lock().await.take() {
            running.end_process("it was stopped");
        }
    }

    /// Returns a process that is responsive; starts one if needed.
    async fn ensure_running(&self) -> Result<Arc<SidecarProcess>> {
        let mut slot = self.running.lock().await;
        if let Some(running) = &*slot {
            if !running.has_ended() && self.is_responsive(running).await {
                return Ok(running.clone());
            }
            running.end_process("it did not answer");
        }
        if let Some(error) = self.unavailable_reason() {
            return Err(error);
        }
        let started = match SidecarProcess::start_process(&self.program).await {
            Ok(started) => started,
            Err(error) => {
                self.record_crash();
                return Err(error);
            }
        };
        *slot = Some(started.clone());
        Ok(started)
    }

    fn record_crash(&self) {
        lock_mutex(&self.crashes).push_back(Instant::now());
    }

    /// Whether the process responds. It is pinged only after it was idle for a while or missed a
    /// deadline.
    async fn is_responsive(&self, running: &Arc<SidecarProcess>) -> bool {
        let idle = lock_mutex(&running.last_used).elapsed();
        let busy = !lock_mutex(&running.pending).is_empty();
        let is_fresh = busy || idle < Duration::from_secs(10).min(self.program.silence_timeout);
        if is_fresh && !running.needs_ping.swap(false, Ordering::Relaxed) {
            return true;
        }
        let ping = self.exchange_messages(running, json!({"type": "ping"}), &RefusingHandler);
        let patience = Duration::from_secs(2).min(self.program.silence_timeout);
        matches!(tokio::time::timeout(patience, ping).await, Ok(Ok(_)))
    }

    /// Sends a request, and answers the host requests that arrive before its result.
    pub(crate) async fn send_request(
        &self,
        request: Value,
        answers: &dyn HostRequestHandler,
        deadline: Duration,
    ) -> Result<Map<String, Value>> {
        let asked = async {
            // Waiting here counts against the caller's deadline, not the silence timeout.
            let _room = self.room.acquire().await;
            let running = self.ensure_running().await?;
            let done = self.exchange_messages(&running, request, answers).await;
            if running.has_ended() && !running.crash_counted.swap(true, Ordering::Relaxed) {
                self.record_crash();
            }
            done
        };
        if let Ok(done) = tokio::time::timeout(deadline, asked).await {
            return done;
        }
        // It may be busy or hang, so ping it before the next request.
        if let Ok(slot) = self.running.try_lock()
            && let Some(running) = &*slot
        {
            running.needs_ping.store(true, Ordering::Relaxed);
        }
        Err(Error::Sidecar(format!("it took more than {deadline:?}")))
    }

    async fn exchange_messages(
        &self,
        running: &Arc<SidecarProcess>,
        mut request: Value,
        answers: &dyn HostRequestHandler,
    ) -> Result<Map<String, Value>> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request["id"] = json!(id);
        let (sender, mut messages) = mpsc::channel(MAX_PENDING);
        lock_mutex(&running.pending).insert(id, sender);
        // Removes the entry on every exit path.
        let _waiting = PendingRequest { running, id };
        // It may have ended before this request was registered.
        if running.has_ended() {
            return Err(running.end_error());
        }
        let send = |message: &Value| -> Result<()> {
            let line = format!("{message}\n");
            if line.len() as u64 > self.program.max_line {
                let most = self.program.max_line;
                return Err(Error::Sidecar(format!("that is more than {most} bytes")));
            }
            running.lines.try_send(line).map_err(|_| {
                running.end_process("it does not listen");
                running.end_error()
            })
        };
        send(&request)?;
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    None => return Err(running.end_error()),
                    Some(SidecarMessage::Result(body)) => return Ok(body),
                    Some(SidecarMessage::Refused { code, message }) => return Err(program_error(&code, &message)),
                    Some(SidecarMessage::Request { .. }) if open.len() >= MAX_PENDING => {
                        running.end_process("it sends more requests than can be answered");
                        return Err(running.end_error());
                    }
                    Some(SidecarMessage::Request { call, question }) => open.push(async move {
                        (call, answers.handle_request(question).await)
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
                // While it waits for a reply from the host, silence is expected.
                () = tokio::time::sleep(self.program.silence_timeout), if open.is_empty() => {
                    running.end_process(&format!("it sent nothing for {:?}", self.program.silence_timeout));
                    return Err(running.end_error());
                }
            }
        }
    }
}

/// Removes a request from the process when dropped, and cancels it if it is still open.
struct PendingRequest<'a> {
    running: &'a Arc<SidecarProcess>,
    id: u64,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let known = lock_mutex(&self.running.pending).remove(&self.id).is_some();
        *lock_mutex(&self.running.last_used) = Instant::now();
        if known {
            let cancel = json!({"type": "cancel", "id": self.id});
            let _ = self.running.lines.try_send(format!("{cancel}\n"));
        }
    }
}

struct RefusingHandler;

#[async_trait]
impl HostRequestHandler for RefusingHandler {
    async fn handle_request(&self, question: HostRequest) -> Result<Value> {
        Err(Error::Sidecar(format!(
            "unexpected host request {:?}",
            question.kind
        )))
    }
}
