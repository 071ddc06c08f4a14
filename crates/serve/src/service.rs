//! The service behind every surface: one registry, opened in the background and watched.
//!
//! The handshake does not need the catalogue, so a server answers it before indexing has
//! finished. Requests that need the catalogue wait until it is loaded.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use repertoire_app::{Caller, ConnectionPool, FileWatching, LiveRegistry, OnSettled, UseRecorder};
use repertoire_core::{Digest, SkillId, SkillUri, permission::IdPrefix};
use repertoire_registry::{Registry, RegistrySettings, SkillEntry, Snapshot, Trusted};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    function_links::FunctionLinks,
    iii::{
        Bus, CallError,
        changes::ChangePublisher,
        functions::{FunctionOptions, is_listed},
    },
    instructions,
    metrics::Metrics,
    optional_tools::{OptionalToolState, OptionalTools},
};

/// How many parts of the catalogue are kept for tokens.
const MAX_RESTRICTED_SNAPSHOTS: usize = 64;

/// Which skills are offered as prompts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PromptExposure {
    /// Every trusted skill.
    #[default]
    All,
    /// No skill.
    None,
    /// These skills.
    Only(Vec<SkillId>),
}

impl PromptExposure {
    /// Reads a selection: `all`, `none`, or ids. Nothing selects all.
    pub fn parse(selection: &[String]) -> Result<Self> {
        let refuse = |reason: &str| Error::InvalidOption {
            what: "prompts",
            value: selection.join(","),
            rule: format!("write `all`, `none`, or ids with commas between them{reason}"),
        };
        match selection {
            [] => return Ok(Self::All),
            [word] if word == "all" => return Ok(Self::All),
            [word] if word == "none" => return Ok(Self::None),
            _ => {}
        }
        let ids = selection.iter().map(|id| id.trim().parse::<SkillId>());
        let ids = ids.collect::<std::result::Result<Vec<_>, _>>();
        match ids {
            Ok(ids) if ids.iter().all(|id| !matches!(id.as_str(), "all" | "none")) => {
                Ok(Self::Only(ids))
            }
            Ok(_) => Err(refuse("")),
            Err(error) => Err(refuse(&format!(": {error}"))),
        }
    }
}

/// The name and version the server reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// The server name.
    pub name: String,
    /// The server version.
    pub version: String,
}

impl Default for ServerIdentity {
    fn default() -> Self {
        Self {
            name: "repertoire".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Settings for serving skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// The name and version the server reports.
    pub identity: ServerIdentity,
    /// Which skills are offered as prompts.
    pub prompts: PromptExposure,
    /// Additional prompt names, each for one skill.
    pub aliases: BTreeMap<String, SkillId>,
    /// The number of entries on a page.
    pub page_size: usize,
    /// The approximate token limit of the instructions.
    pub instruction_tokens: usize,
    /// Whether changes on disk are watched.
    pub watch: FileWatching,
    /// File with the instructions of the last run, used until the index is loaded.
    pub instructions_file: Option<PathBuf>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            identity: ServerIdentity::default(),
            prompts: PromptExposure::All,
            aliases: BTreeMap::new(),
            page_size: 100,
            // Hosts truncate instructions after 2 KiB.
            instruction_tokens: 480,
            watch: FileWatching::On,
            instructions_file: None,
        }
    }
}

impl ServeOptions {
    /// Saves the instructions in a folder, for the next start with the same sources and prompts.
    #[must_use]
    pub fn with_instructions_cache(mut self, folder: &Path, sources: &RegistrySettings) -> Self {
        let inputs = format!("{sources:?}{:?}", self.prompts);
        let key = Digest::hash_bytes(inputs.as_bytes()).hex_digits();
        self.instructions_file = Some(folder.join(format!("{}.md", &key[..16])));
        self
    }

    /// Whether a skill is offered as a prompt under its own id.
    pub(crate) fn is_offered_as_prompt(&self, entry: &SkillEntry) -> bool {
        // Hosts take prompts as the server's own text, so untrusted skills are excluded.
        entry.trusted == Trusted::Yes
            && entry.has_files()
            && match &self.prompts {
                PromptExposure::All => true,
                PromptExposure::None => false,
                PromptExposure::Only(ids) => ids.contains(&entry.id),
            }
    }
}

/// The bus a service has joined, and the options for calls to it.
#[derive(Debug)]
pub(crate) struct BusBinding {
    bus: Weak<dyn Bus>,
    pub(crate) options: FunctionOptions,
}

impl BusBinding {
    /// The bus, while it exists.
    pub(crate) fn bus(&self) -> Result<Arc<dyn Bus>, CallError> {
        let gone = || CallError::new("disconnected", "the bus was shut down");
        self.bus.upgrade().ok_or_else(gone)
    }
}

/// A function of a worker that is offered as a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionTool {
    /// The function.
    pub function_id: String,
    /// What it does.
    pub description: Option<String>,
    /// The schema of its input.
    pub request: Option<serde_json::Value>,
    /// The schema of its output.
    pub response: Option<serde_json::Value>,
}

/// The name of the tool that calls a function; `::` is not allowed in tool names.
pub(crate) fn tool_name(function_id: &str) -> String {
    function_id.replace("::", "__")
}

impl FunctionTool {
    /// The name of the tool.
    pub fn tool_name(&self) -> String {
        tool_name(&self.function_id)
    }

    /// Returns why hosts would reject it as a tool, if they would.
    fn rejection_reason(&self, name: &str) -> Option<&'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        let size = |schema: &Option<serde_json::Value>| {
            schema.as_ref().map_or(0, |schema| schema.to_string().len())
        };
        if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
            Some("a tool's name has at most 128 letters, digits, `_`, `-` and `.`")
        } else if crate::mcp::is_builtin_tool(name) {
            Some("this server has a tool of that name")
        } else if size(&self.request) + size(&self.response) > 256 * 1024 {
            Some("its schemas are too large")
        } else {
            None
        }
    }
}

/// The skipped entries of a registry with their reasons, as log messages.
fn notice_messages(registry: &Registry) -> HashSet<String> {
    let notices = registry.notices().into_iter();
    let shown = notices.map(|n| {
        let message = repertoire_core::text::terminal_safe(&n.message).into_owned();
        format!("[{}] {message}", n.code)
    });
    shown.collect()
}

/// A service that answers requests about one registry.
#[derive(Debug)]
pub struct SkillService {
    live: Arc<LiveRegistry>,
    /// The settings it is served with.
    pub(crate) options: ServeOptions,
    pub(crate) metrics: Metrics,
    /// Cancelled on shutdown; tasks that wait for changes end then.
    pub(crate) stop: CancellationToken,
    /// The bus this service has joined, if any.
    bus: OnceLock<BusBinding>,
    /// Search and execution of skills, if offered.
    optional_tools: OnceLock<Arc<OptionalToolState>>,
    /// The number of running content calls of each function.
    pub(crate) content_calls: Mutex<HashMap<String, usize>>,
    /// What calls the followers on the bus, while there is a bus.
    pub(crate) publisher: Arc<ArcSwapOption<ChangePublisher>>,
    /// Functions that their workers declare as content.
    content_functions: ArcSwap<BTreeSet<String>>,
    /// Functions of workers offered as tools, by tool name.
    function_tools: ArcSwap<BTreeMap<String, FunctionTool>>,
    /// Increases with every change of the tools.
    tools_seq: watch::Sender<u64>,
    instructions: ArcSwapOption<(u64, Arc<str>)>,
    /// The parts of the catalogue that tokens for some skills see.
    restricted: Mutex<HashMap<Vec<IdPrefix>, Arc<Snapshot>>>,
    /// The functions whose content may be read over MCP.
    pub(crate) function_links: FunctionLinks,
    /// The connections to other servers. They are set before the registry can be seen, because the
    /// first request may read a skill of another server.
    pub(crate) remotes: Arc<OnceLock<Arc<ConnectionPool>>>,
}

impl SkillService {
    fn new(options: ServeOptions) -> Arc<Self> {
        Arc::new(Self {
            live: LiveRegistry::new(),
            options,
            metrics: Metrics::default(),
            stop: CancellationToken::new(),
            bus: OnceLock::new(),
            optional_tools: OnceLock::new(),
            content_calls: Mutex::default(),
            publisher: Arc::default(),
            content_functions: ArcSwap::default(),
            function_tools: ArcSwap::default(),
            tools_seq: watch::Sender::new(0),
            instructions: ArcSwapOption::empty(),
            restricted: Mutex::default(),
            function_links: FunctionLinks::default(),
            remotes: Arc::default(),
        })
    }

    /// Serves an open registry.
    pub fn with_registry(registry: Arc<Registry>, options: ServeOptions) -> Arc<Self> {
        let service = Self::new(options);
        let on_settled = service.on_settled();
        let watching = service.options.watch;
        let _ = service
            .remotes
            .set(ConnectionPool::from_registry(&registry));
        service.live.follow(registry, watching, on_settled);
        service
    }

    /// Opens a registry in the background and serves it; calls `then` once it is open.
    pub fn open_in_background(
        settings: RegistrySettings,
        options: ServeOptions,
        then: impl FnOnce(&Arc<Registry>) + Send + 'static,
    ) -> Arc<Self> {
        let service = Self::new(options);
        let (live, on_settled) = (&service.live, service.on_settled());
        let remotes = service.remotes.clone();
        let opened = move |registry: &Arc<Registry>| {
            let _ = remotes.set(ConnectionPool::from_registry(registry));
            then(registry);
        };
        live.open_in_background(settings, service.options.watch, on_settled, opened);
        service
    }

    /// Logs newly skipped skills and saves the instructions for the next start.
    fn on_settled(self: &Arc<Self>) -> OnSettled {
        let service = Arc::downgrade(self);
        let mut known: Option<HashSet<String>> = None;
        Box::new(move |registry| {
            let now = notice_messages(registry);
            if let Some(known) = &known {
                for message in now.difference(known) {
                    tracing::warn!("skipped {message}");
                }
            }
            known = Some(now);
            if let Some(service) = service.upgrade() {
                service.save_instructions();
            }
        })
    }

    /// Waits until the registry is open and returns it.
    pub async fn registry(&self) -> Result<&Arc<Registry>> {
        self.live.registry().await.map_err(Error::Open)
    }

    /// Returns a registry for reading a file of a skill, which need not know any other skill.
    pub(crate) async fn registry_for_file(&self, uri: &SkillUri) -> Result<Arc<Registry>> {
        let registry = self.live.registry_for_file(uri);
        registry.await.map_err(Error::Open)
    }

    /// Returns the registry if it is already open.
    pub fn opened_registry(&self) -> Option<&Arc<Registry>> {
        self.live.opened()
    }

    /// Returns the part of the catalogue that a caller may see.
    pub(crate) fn visible_snapshot(&self, registry: &Registry, caller: &Caller) -> Arc<Snapshot> {
        let all = registry.snapshot();
        if !caller.is_restricted() {
            return all;
        }
        let mut known = self
            .restricted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = known.get(caller.prefixes())
            && part.seq() == all.seq()
        {
            return part.clone();
        }
        if known.len() >= MAX_RESTRICTED_SNAPSHOTS {
            known.clear();
        }
        let part = Arc::new(all.restricted_to(caller.prefixes()));
        known.insert(caller.prefixes().to_vec(), part.clone());
        part
    }

    /// Signals shutdown to all waiting tasks.
    pub fn shut_down(&self) {
        self.stop.cancel();
    }

    pub(crate) fn live_registry(&self) -> &Arc<LiveRegistry> {
        &self.live
    }

    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.live.subscribe_changes()
    }

    /// Calls the followers on the bus for every change so far.
    pub(crate) fn publish_pending(&self) {
        if let Some(publisher) = &*self.publisher.load() {
            publisher.publish_pending();
        }
    }

    /// Joins a bus, which makes content and prompts of its functions available.
    ///
    /// Only the first call has an effect. The service does not keep the bus alive.
    pub fn join_bus(&self, bus: &Arc<dyn Bus>, options: FunctionOptions) {
        let bus = Arc::downgrade(bus);
        let _ = self.bus.set(BusBinding { bus, options });
    }

    /// Offers the tools that find and run skills. Only the first call has an effect.
    pub fn enable_tools(&self, tools: OptionalTools) {
        let _ = self
            .optional_tools
            .set(Arc::new(OptionalToolState::new(tools)));
    }

    /// Builds the search index and computes the embeddings that are missing, if there is an encoder;
    /// until they are there, skills are found by their words.
    pub async fn prepare_search(&self) {
        let Some(tools) = self.optional_tools.get().cloned() else {
            return;
        };
        if tools.options.embedder.is_none() {
            return;
        }
        let Ok(registry) = self.registry().await.cloned() else {
            return;
        };
        let built = tokio::task::spawn_blocking(move || tools.skill_index(&registry).map(drop));
        if let Ok(Err(error)) = built.await {
            tracing::warn!(%error, "the search index could not be built");
        }
    }

    pub(crate) fn optional_tools(&self) -> Option<&Arc<OptionalToolState>> {
        self.optional_tools.get()
    }

    /// Records that a client reads or runs a skill, if it found it by a search just now.
    pub(crate) async fn record_choice(
        &self,
        registry: &Arc<Registry>,
        caller: &Caller,
        id: &SkillId,
    ) {
        if let Some(tools) = self.optional_tools.get() {
            let recorder = UseRecorder::new(registry, tools.options.usage);
            tools.feedback.record_choice(caller, id, &recorder).await;
        }
    }

    /// How often a caller chose each skill, if choices may be used.
    fn use_counts(&self, registry: &Registry, caller: &Caller) -> HashMap<String, u64> {
        let tools = self.optional_tools.get();
        let learns = tools.is_some_and(|tools| tools.options.usage.learn);
        let store = registry.local_store().ok().filter(|_| learns);
        let known = store.zip(caller.usage_owner());
        let counts = known.and_then(|(store, owner)| store.use_counts(owner).ok());
        counts.unwrap_or_default()
    }

    pub(crate) fn bus(&self) -> Option<&BusBinding> {
        self.bus.get()
    }

    /// Replaces the set of functions that their workers declare as content.
    pub(crate) fn set_content_functions(&self, functions: BTreeSet<String>) {
        self.content_functions.store(Arc::new(functions));
    }

    /// Whether the content of a function may be read over MCP without a link to it: its worker
    /// declares it as content, or the owner of the server allows it, as content or as a tool.
    pub(crate) fn is_content_function(&self, id: &str) -> bool {
        self.content_functions.load().contains(id)
            || (self.bus()).is_some_and(|bus| is_listed(&bus.options.content, id))
            || (self.function_tools().values()).any(|tool| tool.function_id == id)
    }

    /// The functions of workers offered as tools, by tool name.
    pub(crate) fn function_tools(&self) -> Arc<BTreeMap<String, FunctionTool>> {
        self.function_tools.load_full()
    }

    /// Replaces the set of functions offered as tools.
    pub fn offer_tools(&self, tools: impl IntoIterator<Item = FunctionTool>) {
        let mut named = BTreeMap::new();
        for tool in tools {
            let name = tool.tool_name();
            if let Some(reason) = tool.rejection_reason(&name) {
                tracing::warn!(
                    function = tool.function_id,
                    "not offered as a tool: {reason}"
                );
                continue;
            }
            match named.entry(name) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(tool)),
                std::collections::btree_map::Entry::Occupied(taken) => tracing::warn!(
                    function = tool.function_id,
                    tool = taken.key().as_str(),
                    "not offered as a tool: the tool name is taken"
                ),
            }
        }
        if *self.function_tools.load_full() != named {
            self.function_tools.store(Arc::new(named));
            self.tools_seq.send_modify(|seq| *seq += 1);
        }
    }

    pub(crate) fn subscribe_tool_changes(&self) -> watch::Receiver<u64> {
        self.tools_seq.subscribe()
    }

    /// The instructions that hosts pass to the model at the start of a session.
    pub(crate) fn instructions(&self) -> Arc<str> {
        let budget = self.options.instruction_tokens;
        let Some(registry) = self.opened_registry() else {
            // The instructions of the last run are nearly always still valid.
            let file = self.options.instructions_file.as_ref();
            let kept = file.and_then(|file| std::fs::read_to_string(file).ok());
            let usable = kept.filter(|text| text.len() <= instructions::max_bytes(budget));
            return usable.map_or_else(|| instructions::placeholder_text().into(), Into::into);
        };
        let snapshot = registry.snapshot();
        if let Some(known) = &*self.instructions.load()
            && known.0 == snapshot.seq()
        {
            return known.1.clone();
        }
        let counts = self.use_counts(registry, &Caller::local_user());
        let text: Arc<str> = instructions::build_instructions(&snapshot, budget, &counts).into();
        let known = Arc::new((snapshot.seq(), text.clone()));
        self.instructions.store(Some(known));
        text
    }

    /// The instructions for a caller, who may see only a part of the catalogue.
    pub(crate) fn instructions_for(&self, caller: &Caller) -> Arc<str> {
        // What the user of this machine uses most is not shown to others.
        if *caller == Caller::local_user() {
            return self.instructions();
        }
        match self.opened_registry() {
            Some(registry) => {
                let part = self.visible_snapshot(registry, caller);
                let budget = self.options.instruction_tokens;
                let counts = self.use_counts(registry, caller);
                instructions::build_instructions(&part, budget, &counts).into()
            }
            None => instructions::placeholder_text().into(),
        }
    }

    /// Saves the instructions for the next start. A failure only delays the next handshake.
    fn save_instructions(&self) {
        let Some(file) = &self.options.instructions_file else {
            return;
        };
        let text = self.instructions();
        if std::fs::read_to_string(file).is_ok_and(|kept| *kept == *text) {
            return;
        }
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let written =
            write_private(&part, text.as_bytes()).and_then(|()| std::fs::rename(&part, file));
        if let Err(error) = written {
            tracing::debug!(%error, "instructions could not be saved");
        }
    }
}

/// Writes a file that only this user can read; skills may be private.
fn write_private(path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        let created = repertoire_registry::store::create_private_dir(folder);
        created.map_err(std::io::Error::other)?;
    }
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    std::io::Write::write_all(&mut options.open(path)?, bytes)
}
