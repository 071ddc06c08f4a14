//! The sandbox: runs Python scripts in WebAssembly, each in its own instance.
//!
//! A script sees its values and the results of [`host`](mod@self) calls: no file, no network, no
//! environment, no other script. Every script ends within its [`Limits`] and reports its resource
//! use. Instances run on separate threads, so that scripts never block the server.

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

pub use install::{GUEST_SOURCES, install_component, is_installed};

use self::{guest::GuestState, host::ScriptHost, ticker::Ticker};
use crate::{
    dispatch::{ArtifactHandler, ArtifactOutput, ExecutionContext},
    error::{Error, Result},
    limits::Limits,
    template::{RenderedScript, read_constants},
};

/// How many scripts run concurrently; further scripts wait.
const MAX_CONCURRENT_SCRIPTS: usize = 128;

/// A sandbox that is ready to run scripts.
pub struct Sandbox {
    guest: InstancePre<GuestState>,
    ticker: Ticker,
    room: Semaphore,
    /// The number of scripts started so far.
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
        // Shut down in the background: this may run on a thread that must not block.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

impl Sandbox {
    /// Loads the sandbox that is installed in a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::from_component(&install::load_component(folder)?)
    }

    fn from_component(component: &Component) -> Result<Self> {
        let guest = guest::bind_host(component);
        let guest = guest.map_err(|error| Error::Sandbox(format!("{error:#}")))?;
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = tokio::runtime::Builder::new_multi_thread()
            // A script that waits for a disk must not block the others.
            .worker_threads(cores.max(4))
            .thread_name("repertoire-sandbox")
            .enable_all()
            .build()
            .map_err(|error| Error::Sandbox(error.to_string()))?;
        Ok(Self {
            ticker: Ticker::start(guest.engine()),
            guest,
            room: Semaphore::new(MAX_CONCURRENT_SCRIPTS),
            begun: AtomicU64::new(0),
            threads: Some(threads),
        })
    }

    /// Runs a script. Dropping the future stops the script.
    async fn run_script(
        self: &Arc<Self>,
        code: RenderedScript,
        values: Value,
        host: Arc<ScriptHost>,
    ) -> Result<ArtifactOutput> {
        let Some(threads) = &self.threads else {
            return Err(Error::Interrupted);
        };
        self.begun.fetch_add(1, Ordering::Relaxed);
        let this = self.clone();
        let work = threads.spawn(async move {
            // A nested script uses the permit of the script that runs it.
            let room = this.room.acquire();
            let _room = if host.is_nested() {
                None
            } else {
                let waited = tokio::time::timeout(host.limits.time(), room).await;
                Some(waited.map_err(|_| {
                    let most = MAX_CONCURRENT_SCRIPTS;
                    Error::ScriptLimit(format!("{most} other scripts used all of its time"))
                })?)
            };
            let _ticking = this.ticker.keep_ticking();
            guest::run_guest(&this.guest, code, &values, &host).await
        });
        let done = AbortOnDropHandle::new(work).await;
        done.map_err(|error| Error::Sandbox(error.to_string()))?
    }
}

/// Checks an installation: loads it and runs a script.
pub fn check_installation(folder: &Path) -> Result<()> {
    run_smoke_test(&install::load_component(folder)?)
}

/// Checks that a component is a guest by running a script.
fn run_smoke_test(component: &Component) -> Result<()> {
    let sandbox = Arc::new(Sandbox::from_component(component)?);
    let context = ExecutionContext::new();
    let script = "import repertoire\nrepertoire.submit(6 * 7)";
    let code =
        context
            .engine
            .render_code(script, &context.template_values(), &serde_json::Map::new())?;
    let host = ScriptHost::new(&context, Limits::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Sandbox(error.to_string()))?;
    // The caller may be on an async thread, which must neither block nor drop a runtime.
    let done = std::thread::scope(|scope| {
        let work = scope.spawn(move || runtime.block_on(sandbox.run_script(code, json!({}), host)));
        work.join()
    });
    let value = done.map_err(|_| Error::Interrupted)??.value;
    if value != Some(json!(42)) {
        let why = "this is no guest: it does not run scripts correctly";
        return Err(Error::Sandbox(why.to_owned()));
    }
    Ok(())
}

type SharedSandbox = Mutex<Option<Arc<Sandbox>>>;

/// Runs `code_template` artifacts. The sandbox is loaded for the first script and unloaded after an
/// idle time.
#[derive(Debug)]
pub struct ScriptHandler {
    folder: PathBuf,
    limits: Limits,
    idle: Duration,
    sandbox: Arc<SharedSandbox>,
}

impl ScriptHandler {
    /// Uses the sandbox that is, or will be, installed in a folder.
    pub fn new(folder: impl Into<PathBuf>, limits: Limits) -> Self {
        Self {
            folder: folder.into(),
            limits,
            idle: Duration::from_mins(5),
            sandbox: Arc::default(),
        }
    }

    /// Sets how long an idle sandbox stays loaded.
    pub fn with_idle_timeout(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Whether a sandbox is loaded and uses memory.
    pub fn is_loaded(&self) -> bool {
        lock_sandbox(&self.sandbox).is_some()
    }

    /// Returns the sandbox; loads it the first time, which reads a large file or even compiles it.
    async fn load_sandbox(&self) -> Result<Arc<Sandbox>> {
        let known = self.sandbox.try_lock().ok().and_then(|known| known.clone());
        if let Some(sandbox) = known {
            return Ok(sandbox);
        }
        let (known, folder) = (self.sandbox.clone(), self.folder.clone());
        let (idle, caller) = (self.idle, tokio::runtime::Handle::current());
        let load = tokio::task::spawn_blocking(move || {
            let mut loaded = lock_sandbox(&known);
            if let Some(sandbox) = &*loaded {
                return Ok(sandbox.clone());
            }
            let opened = Arc::new(Sandbox::open(&folder)?);
            *loaded = Some(opened.clone());
            caller.spawn(unload_when_idle(Arc::downgrade(&known), idle));
            Ok(opened)
        });
        load.await.map_err(|_| Error::Interrupted)?
    }
}

fn lock_sandbox(loaded: &SharedSandbox) -> MutexGuard<'_, Option<Arc<Sandbox>>> {
    loaded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unloads a sandbox that has been idle for a while.
async fn unload_when_idle(loaded: Weak<SharedSandbox>, idle: Duration) {
    let mut seen = None;
    loop {
        tokio::time::sleep(idle).await;
        let Some(loaded) = loaded.upgrade() else {
            return;
        };
        let mut loaded = lock_sandbox(&loaded);
        let Some(sandbox) = &*loaded else { return };
        let begun = Some(sandbox.begun.load(Ordering::Relaxed));
        // Every running script holds a reference.
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
impl ArtifactHandler for ScriptHandler {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::CodeTemplate
    }

    fn unavailable_reason(&self) -> Option<Error> {
        (!is_installed(&self.folder)).then(|| Error::NeedsSandbox("not installed".to_owned()))
    }

    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        context: &ExecutionContext,
    ) -> Result<ArtifactOutput> {
        let limits = self
            .limits
            .for_artifact(artifact)?
            .capped_by(context.remaining_limits);
        let constants = read_constants(artifact)?;
        let (engine, values) = (context.engine.clone(), context.template_values());
        let given = serde_json::to_value(&values).unwrap_or_default();
        let template = artifact.content.clone();
        let code = tokio::task::spawn_blocking(move || {
            let code = engine.render_code(&template, &values, &constants)?;
            Ok((code.display_source(), code))
        });
        let (shown, code) = code.await.map_err(|_| Error::Interrupted)??;
        context.notes.set_input(&shown);
        let sandbox = self.load_sandbox().await?;
        let host = ScriptHost::new(context, limits);
        sandbox.run_script(code, given, host).await
    }
}
