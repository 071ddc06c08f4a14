//! One registry behind every surface: opened in the background, followed while it is served.
//!
//! A server answers first and indexes behind it: the handshake needs no catalogue, so it never
//! waits for one. Whatever needs it waits until it is there.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use repertoire_core::SkillId;
use repertoire_registry::{Entry, Registry, Settings, Trusted, Watch};
use tokio::sync::{SetOnce, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    activation::{Activation, Active},
    error::{Error, Result},
    iii::{Bus, functions::FunctionOptions},
    instructions,
    metrics::Metrics,
};

/// Which skills are offered as prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Exposure {
    /// Every skill that is trusted.
    #[default]
    All,
    /// No skill.
    None,
    /// These skills.
    Only(Vec<SkillId>),
}

/// Who the server says it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            name: "repertoire".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// How skills are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Who the server says it is.
    pub identity: Identity,
    /// Which skills are prompts.
    pub prompts: Exposure,
    /// Further names under which a skill is a prompt.
    pub aliases: BTreeMap<String, SkillId>,
    /// How many entries a page has.
    pub page_size: usize,
    /// How many tokens the instructions may have, about.
    pub instruction_tokens: usize,
    /// Whether changes on disk are followed.
    pub watch: bool,
    /// Where the instructions of the last run are kept, to have some before the index is read.
    pub instructions_file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            prompts: Exposure::All,
            aliases: BTreeMap::new(),
            page_size: 100,
            // Hosts cut after 2 KiB.
            instruction_tokens: 480,
            watch: true,
            instructions_file: None,
        }
    }
}

impl Options {
    /// Whether a skill is offered as a prompt of its own name.
    pub(crate) fn is_prompt(&self, entry: &Entry) -> bool {
        // A prompt is the server's own word; a stranger's skill is not.
        entry.trusted == Trusted::Yes
            && entry.has_files()
            && match &self.prompts {
                Exposure::All => true,
                Exposure::None => false,
                Exposure::Only(ids) => ids.contains(&entry.id),
            }
    }
}

/// The bus an engine is on, and how it may be used.
#[derive(Debug)]
pub(crate) struct OnBus {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) options: FunctionOptions,
}

/// A function of a worker that is offered as a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTool {
    /// The function.
    pub function_id: String,
    /// What it does.
    pub description: Option<String>,
    /// The schema of what it takes.
    pub request: Option<serde_json::Value>,
    /// The schema of what it gives.
    pub response: Option<serde_json::Value>,
}

impl FunctionTool {
    /// The name of the tool: `::` is not allowed in one.
    pub fn name(&self) -> String {
        self.function_id.replace("::", "__")
    }

    /// Why hosts could not take it.
    fn problem(&self, name: &str) -> Option<&'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        let size = |schema: &Option<serde_json::Value>| {
            schema.as_ref().map_or(0, |schema| schema.to_string().len())
        };
        if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
            Some("a tool's name has at most 128 letters, digits, `_`, `-` and `.`")
        } else if crate::mcp::OWN_TOOLS.contains(&name) {
            Some("this server has a tool of that name")
        } else if size(&self.request) + size(&self.response) > 256 * 1024 {
            Some("its schemas are too large")
        } else {
            None
        }
    }
}

/// What is not taken, and why.
fn messages(registry: &Registry) -> HashSet<String> {
    let notices = registry.notices().into_iter();
    let shown = notices.map(|n| {
        let message = repertoire_core::text::terminal_safe(&n.message).into_owned();
        format!("[{}] {message}", n.code)
    });
    shown.collect()
}

/// A registry that is being served.
#[derive(Debug)]
pub struct Engine {
    registry: SetOnce<Result<Arc<Registry>, Arc<repertoire_registry::Error>>>,
    /// How it is served.
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    /// The number of the last event; whoever waits on it looks for more.
    seq: watch::Sender<u64>,
    /// Cancelled when the server shuts down: whoever waits for changes stops waiting.
    pub(crate) stop: CancellationToken,
    watching: Mutex<Option<Watch>>,
    /// The bus this engine is on, if it is on one.
    bus: OnceLock<OnBus>,
    /// Finding and running skills, if that is offered.
    active: OnceLock<Arc<Active>>,
    /// How often each function is making content right now.
    pub(crate) making: Mutex<HashMap<String, usize>>,
    /// Functions of workers that are tools, by the tool's name.
    tools: ArcSwap<BTreeMap<String, FunctionTool>>,
    /// Grows with every change of the tools.
    tools_seq: watch::Sender<u64>,
    instructions: ArcSwapOption<(u64, Arc<str>)>,
}

impl Engine {
    fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            registry: SetOnce::new(),
            options,
            metrics: Metrics::default(),
            seq: watch::Sender::new(0),
            stop: CancellationToken::new(),
            watching: Mutex::new(None),
            bus: OnceLock::new(),
            active: OnceLock::new(),
            making: Mutex::default(),
            tools: ArcSwap::default(),
            tools_seq: watch::Sender::new(0),
            instructions: ArcSwapOption::empty(),
        })
    }

    /// Serves a registry that is open.
    pub fn over(registry: Arc<Registry>, options: Options) -> Arc<Self> {
        let engine = Self::new(options);
        engine.attach(registry);
        engine
    }

    /// Opens a registry in the background and serves it; `then` is told when it is open.
    pub fn open(
        settings: Settings,
        options: Options,
        then: impl FnOnce(&Arc<Registry>) + Send + 'static,
    ) -> Arc<Self> {
        let engine = Self::new(options);
        let opening = engine.clone();
        // Not a task: opening reads the disk for as long as it takes.
        std::thread::spawn(move || match Registry::open(settings) {
            Ok(registry) => {
                then(&registry);
                opening.attach(registry);
            }
            Err(error) => drop(opening.registry.set(Err(Arc::new(error)))),
        });
        engine
    }

    fn attach(self: &Arc<Self>, registry: Arc<Registry>) {
        if self.options.watch {
            match registry.watch() {
                Ok(watch) => {
                    *self.watching.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
                }
                Err(error) => tracing::warn!(%error, "changes on disk are not followed"),
            }
        }
        let engine = Arc::downgrade(self);
        let follow = registry.clone();
        // Before anybody can ask: what changes from here on is told.
        let mut seen = follow.snapshot().seq();
        let mut known: HashSet<String> = messages(&follow);
        drop(self.registry.set(Ok(registry)));
        self.keep_instructions();
        std::thread::spawn(move || {
            // What looks at the whole catalogue is done once for many changes.
            let mut looked = Instant::now();
            let mut pause = Duration::from_secs(1);
            let mut due = false;
            loop {
                // Short waits, so that the thread ends soon after its engine.
                let news = follow.wait_events(seen, Duration::from_millis(100));
                let Some(engine) = engine.upgrade() else {
                    return;
                };
                let changed = news.map_or(true, |events| !events.is_empty());
                if changed {
                    seen = follow.snapshot().seq();
                    engine.seq.send_replace(seen);
                }
                due |= changed;
                if due && (!changed || looked.elapsed() > pause.min(Duration::from_secs(10))) {
                    let begun = Instant::now();
                    // A skill that is no longer taken is not dropped without a word.
                    let now = messages(&follow);
                    for message in now.difference(&known) {
                        tracing::warn!("skipped {message}");
                    }
                    known = now;
                    engine.keep_instructions();
                    looked = Instant::now();
                    // A large catalogue is looked at less often.
                    pause = (begun.elapsed() * 20).max(Duration::from_secs(1));
                    due = false;
                }
                if engine.stop.is_cancelled() {
                    return;
                }
            }
        });
    }

    /// The registry, as soon as it is open.
    pub async fn registry(&self) -> Result<&Arc<Registry>> {
        match self.registry.wait().await {
            Ok(registry) => Ok(registry),
            Err(error) => Err(Error::Open(error.clone())),
        }
    }

    /// The registry, if it is open already.
    pub fn opened(&self) -> Option<&Arc<Registry>> {
        self.registry.get()?.as_ref().ok()
    }

    /// Tells everybody who waits that the server is going away.
    pub fn shut_down(&self) {
        self.stop.cancel();
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.seq.subscribe()
    }

    /// Puts the engine on a bus: content and prompts that functions make can be had from now on.
    ///
    /// An engine stays on the bus it was first put on.
    pub fn join(&self, bus: Arc<dyn Bus>, options: FunctionOptions) {
        let _ = self.bus.set(OnBus { bus, options });
    }

    /// Offers the tools that find and run skills, from the start on: the first word counts.
    pub fn activate(&self, activation: Activation) {
        let _ = self.active.set(Arc::new(Active::new(activation)));
    }

    pub(crate) fn active(&self) -> Option<&Arc<Active>> {
        self.active.get()
    }

    pub(crate) fn bus(&self) -> Option<&OnBus> {
        self.bus.get()
    }

    /// The functions of workers that are tools, by the tool's name.
    pub(crate) fn tools(&self) -> Arc<BTreeMap<String, FunctionTool>> {
        self.tools.load_full()
    }

    /// Offers these functions as tools from now on, and no others.
    pub fn offer_tools(&self, tools: impl IntoIterator<Item = FunctionTool>) {
        let mut named = BTreeMap::new();
        for tool in tools {
            let name = tool.name();
            if let Some(reason) = tool.problem(&name) {
                tracing::warn!(function = tool.function_id, "is no tool: {reason}");
                continue;
            }
            match named.entry(name) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(tool)),
                std::collections::btree_map::Entry::Occupied(taken) => tracing::warn!(
                    function = tool.function_id,
                    tool = taken.key().as_str(),
                    "is no tool: another function has its name"
                ),
            }
        }
        if *self.tools.load_full() != named {
            self.tools.store(Arc::new(named));
            self.tools_seq.send_modify(|seq| *seq += 1);
        }
    }

    pub(crate) fn tool_changes(&self) -> watch::Receiver<u64> {
        self.tools_seq.subscribe()
    }

    /// What a model is told about this server before it asks for anything.
    pub(crate) fn instructions(&self) -> Arc<str> {
        let budget = self.options.instruction_tokens;
        let Some(registry) = self.opened() else {
            // What the last run had is nearly always still right, and better than nothing.
            let file = self.options.instructions_file.as_ref();
            let kept = file.and_then(|file| std::fs::read_to_string(file).ok());
            let usable = kept.filter(|text| text.len() <= instructions::max_bytes(budget));
            return usable.map_or_else(|| instructions::still_reading().into(), Into::into);
        };
        let snapshot = registry.snapshot();
        if let Some(known) = &*self.instructions.load()
            && known.0 == snapshot.seq()
        {
            return known.1.clone();
        }
        let text: Arc<str> = instructions::of(&snapshot, budget).into();
        let known = Arc::new((snapshot.seq(), text.clone()));
        self.instructions.store(Some(known));
        text
    }

    /// Keeps the instructions for the next start. One that cannot be kept is only late.
    fn keep_instructions(&self) {
        let Some(file) = &self.options.instructions_file else {
            return;
        };
        let text = self.instructions();
        if std::fs::read_to_string(file).is_ok_and(|kept| *kept == *text) {
            return;
        }
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let written = file
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&part, text.as_bytes()))
            .and_then(|()| std::fs::rename(&part, file));
        if let Err(error) = written {
            tracing::debug!(%error, "instructions are not kept");
        }
    }
}
