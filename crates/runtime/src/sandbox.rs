//! The sandbox: Python scripts in WebAssembly, each in an instance of its own.
//!
//! A script sees its values and what [`host`](mod@self) calls give it: no file, no network, no
//! environment, no other script. Whatever it does, it ends within its [`Limits`], and says what it
//! used. Instances run on threads of their own, so that whoever serves keeps serving.

mod guest;
mod host;
mod install;
mod ticker;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use repertoire_core::{Artifact, ArtifactKind};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::component::{Component, InstancePre};

pub use install::{GUEST, compile, is_installed};

use self::{guest::State, host::Host, ticker::Ticker};
use crate::{
    dispatch::{ArtifactHandler, ArtifactOutput, ExecutionContext},
    error::{Error, Result},
    limits::Limits,
    template::{Code, constants_of},
};

/// How many scripts run at a time; others wait.
const AT_ONCE: usize = 128;

/// A sandbox that is ready to run scripts.
pub struct Sandbox {
    guest: InstancePre<State>,
    ticker: Ticker,
    room: Semaphore,
    /// How many scripts it was given.
    begun: AtomicU64,
    threads: Option<tokio::runtime::Runtime>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").finish_non_exhaustive()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // It may be dropped on a thread that must not wait.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

impl Sandbox {
    /// Loads what was installed in a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::of(&install::load(folder)?)
    }

    fn of(component: &Component) -> Result<Self> {
        let guest = guest::bind(component);
        let guest = guest.map_err(|error| Error::Sandbox(format!("{error:#}")))?;
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = tokio::runtime::Builder::new_multi_thread()
            // One that waits for a disk does not keep the others from running.
            .worker_threads(cores.max(4))
            .thread_name("repertoire-sandbox")
            .enable_all()
            .build()
            .map_err(|error| Error::Sandbox(error.to_string()))?;
        Ok(Self {
            ticker: Ticker::start(guest.engine()),
            guest,
            room: Semaphore::new(AT_ONCE),
            begun: AtomicU64::new(0),
            threads: Some(threads),
        })
    }

    /// Runs a script. Whoever stops waiting stops it.
    async fn run(
        self: &Arc<Self>,
        code: Code,
        values: Value,
        host: Arc<Host>,
    ) -> Result<ArtifactOutput> {
        let Some(threads) = &self.threads else {
            return Err(Error::Interrupted);
        };
        self.begun.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        let work = threads.spawn(async move {
            // One that another script runs has that one's place.
            let room = this.room.acquire();
            let _room = if host.is_nested() {
                None
            } else {
                let waited = tokio::time::timeout(host.limits.time(), room).await;
                Some(waited.map_err(|_| {
                    let most = AT_ONCE;
                    Error::ScriptLimit(format!("{most} others ran for all of its time"))
                })?)
            };
            let _ticking = this.ticker.tick();
            guest::run(&this.guest, code, &values, &host).await
        });
        let done = AbortOnDropHandle::new(work).await;
        done.map_err(|error| Error::Sandbox(error.to_string()))?
    }
}

/// Whether what is installed in a folder works: it is loaded, and runs a script.
pub fn check(folder: &Path) -> Result<()> {
    try_out(&install::load(folder)?)
}

/// Whether a component is a guest: it runs a script.
fn try_out(component: &Component) -> Result<()> {
    let sandbox = Arc::new(Sandbox::of(component)?);
    let context = ExecutionContext::new();
    let script = "import repertoire\nrepertoire.submit(6 * 7)";
    let code =
        context
            .engine
            .render_code(script, &context.template_values(), &serde_json::Map::new())?;
    let host = Host::new(&context, Limits::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Sandbox(error.to_string()))?;
    // Whoever asks may be on a thread that must not wait like this.
    let done = std::thread::scope(|scope| {
        let work = scope.spawn(|| runtime.block_on(sandbox.run(code, json!({}), host)));
        work.join()
    });
    let value = done.map_err(|_| Error::Interrupted)??.value;
    if value != Some(json!(42)) {
        let why = "this is no guest: it does not do what a script says";
        return Err(Error::Sandbox(why.to_owned()));
    }
    Ok(())
}

type Loaded = Mutex<Option<Arc<Sandbox>>>;

/// Runs the scripts of skills, with a sandbox that is loaded when the first one comes, and let go
/// when none has come for a while.
#[derive(Debug)]
pub struct Scripts {
    folder: PathBuf,
    limits: Limits,
    idle: Duration,
    sandbox: Arc<Loaded>,
}

impl Scripts {
    /// With the sandbox that is, or will be, installed in a folder.
    pub fn new(folder: impl Into<PathBuf>, limits: Limits) -> Self {
        Self {
            folder: folder.into(),
            limits,
            idle: Duration::from_mins(5),
            sandbox: Arc::default(),
        }
    }

    /// Keeps a sandbox that nobody uses for so long.
    pub fn idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Whether a sandbox is loaded, with the memory it takes.
    pub fn is_loaded(&self) -> bool {
        lock(&self.sandbox).is_some()
    }

    /// The sandbox, loaded if this is the first time; that reads a large file, or even compiles.
    async fn sandbox(&self) -> Result<Arc<Sandbox>> {
        let known = self.sandbox.try_lock().ok().and_then(|known| known.clone());
        if let Some(sandbox) = known {
            return Ok(sandbox);
        }
        let (known, folder) = (self.sandbox.clone(), self.folder.clone());
        let (idle, caller) = (self.idle, tokio::runtime::Handle::current());
        let load = tokio::task::spawn_blocking(move || {
            let mut loaded = lock(&known);
            if let Some(sandbox) = &*loaded {
                return Ok(sandbox.clone());
            }
            let opened = Arc::new(Sandbox::open(&folder)?);
            *loaded = Some(opened.clone());
            caller.spawn(retire(Arc::downgrade(&known), idle));
            Ok(opened)
        });
        load.await.map_err(|_| Error::Interrupted)?
    }
}

fn lock(loaded: &Loaded) -> MutexGuard<'_, Option<Arc<Sandbox>>> {
    loaded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of a sandbox that nobody has used for a while.
async fn retire(loaded: Weak<Loaded>, idle: Duration) {
    let mut seen = None;
    loop {
        tokio::time::sleep(idle).await;
        let Some(loaded) = loaded.upgrade() else {
            return;
        };
        let mut loaded = lock(&loaded);
        let Some(sandbox) = &*loaded else { return };
        let begun = Some(sandbox.begun.load(Ordering::Relaxed));
        // Whoever runs a script holds it, too.
        if begun == seen && Arc::strong_count(sandbox) == 1 {
            let over = loaded.take();
            drop(loaded);
            drop(over);
            return;
        }
        seen = begun;
    }
}

#[async_trait]
impl ArtifactHandler for Scripts {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::CodeTemplate
    }

    fn lacks(&self) -> Option<Error> {
        (!is_installed(&self.folder)).then(|| Error::NeedsSandbox("not installed".to_owned()))
    }

    async fn execute(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let limits = self.limits.of(artifact)?.within(context.left);
        let constants = constants_of(artifact)?;
        let (engine, values) = (context.engine.clone(), context.template_values());
        let given = serde_json::to_value(&values).unwrap_or_default();
        let template = artifact.content.clone();
        let code = tokio::task::spawn_blocking(move || {
            let code = engine.render_code(&template, &values, &constants)?;
            Ok((code.shown(), code))
        });
        let (shown, code) = code.await.map_err(|_| Error::Interrupted)??;
        context.notes.input(&shown);
        let sandbox = self.sandbox().await?;
        let host = Host::new(context, limits);
        sandbox.run(code, given, host).await
    }
}
