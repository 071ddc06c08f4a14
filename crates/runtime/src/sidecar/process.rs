//! The process: started when it is needed, ended when it is not, and never trusted to behave.
//!
//! It says one line of JSON at a time. Lines are capped, silence has a deadline, and a process that
//! says anything else is ended; whoever waits for it is told why.

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
    running::{Running, lock},
    wire::{Answers, Question, Said, told},
};
use crate::error::{Error, Result};

/// How many requests it works on at a time.
const AT_ONCE: usize = 8;
/// How many questions and answers may be on their way; more is a flood.
pub(super) const MAX_OPEN: usize = 256;
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
        let started = match Running::start(&self.program).await {
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

    /// One that has been idle for a while, or has let somebody down, is asked whether it is still
    /// there.
    async fn is_well(&self, running: &Arc<Running>) -> bool {
        let idle = lock(&running.used).elapsed();
        let busy = !lock(&running.waiting).is_empty();
        let is_fresh = busy || idle < Duration::from_secs(10).min(self.program.quiet);
        if is_fresh && !running.doubted.swap(false, Ordering::Relaxed) {
            return true;
        }
        let ping = self.exchange(running, json!({"type": "ping"}), &Nobody);
        let patience = Duration::from_secs(2).min(self.program.quiet);
        matches!(tokio::time::timeout(patience, ping).await, Ok(Ok(_)))
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
        if let Ok(done) = tokio::time::timeout(deadline, asked).await {
            return done;
        }
        // It may be busy, or it may hang: whoever needs it next asks it.
        if let Ok(slot) = self.running.try_lock()
            && let Some(running) = &*slot
        {
            running.doubted.store(true, Ordering::Relaxed);
        }
        Err(Error::Sidecar(format!("it took more than {deadline:?}")))
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
