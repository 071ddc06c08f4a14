//! `mcp` and `serve`: serves the catalogue to hosts over stdio and over HTTP.

use std::{
    fmt::Write as _,
    io::IsTerminal as _,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use repertoire_app::{
    ComponentKind, FileWatching, Reoptimizer, RunLimits, Runner, RunnerSettings,
    clean_up_periodically,
};
use repertoire_core::{FunctionGuard, text::terminal_safe};
use repertoire_registry::{
    AccountSkills, Registry, RegistrySettings as Sources, SkillEntry, Trusted,
    store::RetentionPolicy,
};
use repertoire_runtime::sidecar::Sidecar;
use repertoire_serve::{
    Error as ServeError, ListenProblem, OptionalTools, PromptExposure, ServeOptions, SkillService,
    http::{AccessLog, AllowedHosts, Auth, HttpListener, HttpOptions, OwnUser},
    iii::{
        BoundBus, BusMode, HubOptions,
        bus_mode::hub_url,
        functions::FunctionOptions,
        hub::{SkillsProvider, StateTrigger},
        worker::bus_url,
    },
};
use tokio::{runtime::Runtime, sync::Notify};

use crate::{
    args::{BusArgs, ExposeArgs, OfferedTool},
    interrupt,
    output::{Output, format_count},
    settings::CliSettings,
};

/// The usual port.
const DEFAULT_PORT: u16 = 8321;
/// The default token limit of one run that a host starts.
const DEFAULT_RUN_TOKENS: u64 = 100_000;

/// Whether a server embeds skills in the background, if the component for it is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BackgroundEmbedding {
    On,
    Off,
}

/// The address to listen on, and the hosts and origins that are accepted.
pub(crate) struct ListenOptions {
    pub(crate) address: IpAddr,
    /// The port, if the user named one.
    pub(crate) port: Option<u16>,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) access_log: Option<PathBuf>,
    pub(crate) no_auth: bool,
    pub(crate) own_user: OwnUser,
    pub(crate) bus: BusArgs,
}

pub(crate) fn serve_mcp(
    paths: &[PathBuf],
    expose: &ExposeArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    if std::io::stdin().is_terminal() {
        output.print_note(
            "this speaks MCP over stdin and stdout, for a host that starts it (`repertoire connect`); \
             `repertoire serve` listens on a port; Ctrl-D ends",
        );
    }
    let runtime = build_runtime()?;
    let _entered = runtime.enter();
    let mut sources = settings.sources_for(paths)?;
    sources.only.clone_from(&expose.only);
    // A host starts a process for each session, so these do not compute the same embeddings again.
    let embedding = BackgroundEmbedding::Off;
    let engine = open_service(sources, expose, embedding, settings, output, |_| {})?;
    let remotes = runtime.spawn(repertoire_serve::follow_servers(engine.clone()));
    let stop = engine.clone();
    interrupt::set_shutdown_handler(move || stop.shut_down());
    let ended = runtime.block_on(async {
        let ended = repertoire_serve::serve_stdio(engine.clone()).await;
        engine.shut_down();
        // Wait for the programs that were started for this host to end.
        let _ = tokio::time::timeout(Duration::from_secs(2), remotes).await;
        ended
    });
    // A read of stdin may still be waiting for a host that will not write again.
    runtime.shutdown_background();
    ended?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn serve_http(
    paths: &[PathBuf],
    listen: &ListenOptions,
    expose: &ExposeArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut names = AllowedHosts::new(listen.hosts.clone(), listen.origins.clone())?;
    let side = bus_mode(&listen.bus, settings)?;
    let auth = Arc::new(if listen.no_auth {
        Auth::Open
    } else {
        let address = SocketAddr::new(listen.address, listen.port.unwrap_or(DEFAULT_PORT));
        let addresses = std::iter::once(address).chain(side.address());
        Auth::for_addresses(&settings.account, addresses, listen.own_user)?
    });
    let access_log = listen
        .access_log
        .as_deref()
        .map(open_access_log)
        .transpose()?;
    let runtime = build_runtime()?;
    runtime.block_on(async {
        let listener = bind_http(listen, output).await?;
        let address = listener.address();
        let has_default_hub = listen.bus.hub.is_none() && settings.hub.is_none();
        let side = bind_bus(side, has_default_hub, output).await?;
        let quiet = output.is_quiet();
        let mut sources = settings.sources_for(paths)?;
        side.adapt_sources(&mut sources, &settings.account);
        sources.only.clone_from(&expose.only);
        // Serving works without it.
        let renewal = reoptimizer_settings(settings).unwrap_or_else(|error| {
            tracing::warn!("states of DSPy modules are not renewed: {error:#}");
            None
        });
        let background = tokio::runtime::Handle::current();
        let account = settings.account.clone();
        let url = format!("http://{address}/mcp");
        let who = match &*auth {
            Auth::Open => "without a token, for every client that can reach it",
            auth if auth.is_token_required() => "for clients with a token",
            Auth::Checked(_) => "for your own programs on this machine; others need a token",
        };
        let listening = format!("listening on {url} {who}; Ctrl-C ends");
        output.print_note(&listening);
        let embedding = BackgroundEmbedding::On;
        let engine = open_service(
            sources,
            expose,
            embedding,
            settings,
            output,
            move |registry| {
                let retention = RetentionPolicy::default();
                background.spawn(clean_up_periodically(registry.clone(), account, retention));
                if let Some((sidecar, settings)) = renewal {
                    let runner = Runner::new(registry.clone(), settings);
                    background.spawn(Reoptimizer { sidecar, runner }.reoptimize_all());
                }
                if !quiet {
                    let skills = format_count(registry.snapshot().len(), "skill");
                    // The address once more, below what was said about skills.
                    Output::print_stderr(&format!("serving {skills} on {url}\n"));
                }
                repertoire_serve::iii::startup_log::log_loaded_files(registry);
            },
        )?;
        let remotes = tokio::spawn(repertoire_serve::follow_servers(engine.clone()));
        let searching = engine.clone();
        tokio::spawn(async move { searching.prepare_search().await });
        if let Some(words) = side.describe() {
            output.print_note(words);
        }
        if output.json {
            let line =
                serde_json::json!({"url": format!("http://{address}/mcp"), "hub": side.url()});
            output.print_text(&format!("{line}\n"))?;
        }
        names.add_addresses(std::iter::once(address).chain(side.address()));
        let options = hub_options(&listen.bus, settings);
        let side = side.start(&engine, &names, &auth, options, &settings.account);
        let options = HttpOptions {
            allowed_hosts: names,
            auth,
            access_log,
            ..HttpOptions::default()
        };
        let stop = Arc::new(Notify::new());
        let signal = stop.clone();
        interrupt::set_shutdown_handler(move || signal.notify_one());
        let failed = async {
            match engine.registry().await {
                Err(error) => error,
                Ok(_) => std::future::pending().await,
            }
        };
        let until = async {
            stop.notified().await;
            output.print_note("finishing what was accepted; Ctrl-C again ends at once");
        };
        tokio::select! {
            ended = listener.serve_until(engine.clone(), options, until) => ended?,
            error = failed => return Err(error.into()),
        }
        // Wait for the programs that were started for this server to end.
        let _ = tokio::time::timeout(Duration::from_secs(2), remotes).await;
        side.shut_down().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Opens the access log: a file, or stderr for `-`.
fn open_access_log(path: &Path) -> Result<AccessLog> {
    if path.as_os_str() == "-" {
        return Ok(AccessLog::with_writer(std::io::stderr()));
    }
    let file = AccessLog::with_file(path);
    file.with_context(|| path.display().to_string())
}

/// Binds the port that was named, or the usual one, or a free one if that is in use.
async fn bind_http(listen: &ListenOptions, output: &Output) -> Result<HttpListener> {
    let bind = |port| HttpListener::bind(SocketAddr::new(listen.address, port));
    match (listen.port, bind(listen.port.unwrap_or(DEFAULT_PORT)).await) {
        (
            None,
            Err(ServeError::Listen {
                address,
                reason: ListenProblem::InUse,
            }),
        ) => {
            let user = describe_port_user(address);
            output.print_note(format!(
                "port {DEFAULT_PORT} is in use{user}: taking a free one"
            ));
            Ok(bind(0).await?)
        }
        (_, Err(ServeError::Listen { address, reason })) if reason == ListenProblem::InUse => {
            let user = describe_port_user(address);
            let error = ServeError::Listen { address, reason };
            let port = address.port();
            Err(anyhow::Error::from(error).context(format!("port {port} is in use{user}")))
        }
        (_, bound) => Ok(bound?),
    }
}

/// Binds the port of the hub; without a setting for it, a free one if the usual one is in use.
async fn bind_bus(side: BusMode, is_default: bool, output: &Output) -> Result<BoundBus> {
    let address = side.address();
    match (address, side.bind().await) {
        (Some(address), Err(ServeError::Listen { reason, .. }))
            if is_default && reason != ListenProblem::NotPermitted =>
        {
            let user = describe_port_user(address);
            let port = address.port();
            output.print_note(format!(
                "port {port} is in use{user}: the hub takes a free one"
            ));
            let free = BusMode::Hub(SocketAddr::new(address.ip(), 0));
            Ok(free.bind().await?)
        }
        (_, bound) => Ok(bound?),
    }
}

/// Names the process that has a port, if that is known.
fn describe_port_user(address: SocketAddr) -> String {
    let user = repertoire_serve::find_port_user(address);
    user.map_or_else(String::new, |user| format!(" by {user}"))
}

/// Reads flags, environment and settings.
fn bus_mode(bus: &BusArgs, settings: &CliSettings) -> Result<BusMode> {
    if let Some(url) = &bus.join {
        let hub = bus.hub.as_deref().filter(|place| !place.is_empty());
        return Ok(match (url.as_str(), hub) {
            ("", Some(place)) => BusMode::join(&hub_url(place))?,
            ("", None) => BusMode::join(&bus_url(None))?,
            (url, _) => BusMode::join(url)?,
        });
    }
    let asked = bus.hub.as_deref().filter(|place| !place.is_empty());
    let place = asked.or(settings.hub.as_deref());
    Ok(BusMode::hub_at(place.unwrap_or("127.0.0.1:49134"))?)
}

fn hub_options(bus: &BusArgs, settings: &CliSettings) -> HubOptions {
    HubOptions {
        tools: settings.tools.iter().chain(&bus.tool).cloned().collect(),
        functions: FunctionOptions {
            guard: FunctionGuard::new(settings.guard.iter().cloned()),
            content: settings.content.clone(),
            account: shared_account(bus.share_account, settings),
            limits: settings.limits,
            ..FunctionOptions::default()
        },
        skills_provider: if bus.bare_hub {
            SkillsProvider::OnWorker
        } else {
            SkillsProvider::OnHub
        },
        state_trigger: if bus.silent_state {
            StateTrigger::Missing
        } else {
            StateTrigger::Provided
        },
        ..HubOptions::default()
    }
}

/// Whether the packages of the account are on the bus: by the flag, or by the settings.
pub(super) fn shared_account(asked: bool, settings: &CliSettings) -> AccountSkills {
    if asked {
        AccountSkills::Shown
    } else {
        settings.account_skills
    }
}

pub(super) fn build_runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.enable_all().thread_name("serve").build()?;
    runtime.spawn(release_memory_periodically());
    Ok(runtime)
}

/// Sessions and connections leave gaps between what stays in use, and the allocator keeps them.
async fn release_memory_periodically() {
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let _ = tokio::task::spawn_blocking(repertoire_malloc::release_freed_memory).await;
    }
}

/// Starts to open the registry; problems are printed once it is open.
fn open_service(
    sources: Sources,
    expose: &ExposeArgs,
    embedding: BackgroundEmbedding,
    settings: &CliSettings,
    output: &Output,
    then: impl FnOnce(&Arc<Registry>) + Send + 'static,
) -> Result<Arc<SkillService>> {
    let which = match (expose.prompts.as_slice(), &settings.skills_as_prompts) {
        ([], Some(set)) => set.as_slice(),
        (given, _) => given,
    };
    let prompts = PromptExposure::parse(which)?;
    let only = expose.only.clone();
    let options = ServeOptions {
        prompts,
        watch: if expose.no_watch {
            FileWatching::Off
        } else {
            FileWatching::On
        },
        ..ServeOptions::default()
    }
    .with_instructions_cache(&settings.instructions_cache_dir(), &sources);
    let problem = settings.workspace_problem.clone();
    let wanted = match &options.prompts {
        PromptExposure::Only(ids) => ids.clone(),
        PromptExposure::All | PromptExposure::None => Vec::new(),
    };
    let quiet = output.is_quiet();
    let tools = build_optional_tools(expose, embedding, settings, output)?;
    let engine = SkillService::open_in_background(sources, options, move |registry| {
        // Writing to a string cannot fail.
        let mut words = String::new();
        if let Some(problem) = problem {
            let _ = writeln!(words, "warning: {} (ignored)", terminal_safe(&problem));
        }
        if let Some((workspace, Trusted::No)) = registry.workspace() {
            let _ = writeln!(
                words,
                "workspace {} is not trusted: its skills can be read but are not prompts",
                terminal_safe(&workspace.to_string_lossy())
            );
        }
        let snapshot = registry.snapshot();
        for id in wanted.iter().filter(|id| snapshot.get(id).is_none()) {
            let _ = writeln!(
                words,
                "warning: --prompts names {id}, and there is no such skill"
            );
        }
        for unknown in super::connect::unknown_prefixes(registry, &only) {
            let _ = writeln!(
                words,
                "warning: --only names {unknown}, and there is no such skill"
            );
        }
        let snapshot = registry.snapshot();
        let is_unlisted = |entry: &&Arc<SkillEntry>| entry.metadata.unlisted.is_some();
        let unlisted = snapshot.skills().filter(is_unlisted).count();
        let mut parts = Vec::new();
        let notices = registry.notices();
        match notices.iter().filter(|notice| notice.is_problem()).count() {
            0 => {}
            skipped => parts.push(format!("{skipped} skipped")),
        }
        if unlisted > 0 {
            parts.push(format!("{unlisted} not in skills/list"));
        }
        if !parts.is_empty() {
            let parts = parts.join(", ");
            let _ = writeln!(
                words,
                "{parts}: `repertoire list --all`, with the same folders, says why"
            );
        }
        if !quiet {
            Output::print_stderr(&words);
        }
        then(registry);
    });
    if let Some(tools) = tools {
        engine.enable_tools(tools);
    }
    Ok(engine)
}

/// Returns the sidecar and the settings for optimizing states again, if it is possible and allowed.
fn reoptimizer_settings(settings: &CliSettings) -> Result<Option<(Sidecar, RunnerSettings)>> {
    let sidecar = settings.components().sidecar();
    let has_model = settings.model.as_deref().is_some_and(|id| id != "host");
    if !settings.renew || !has_model || sidecar.unavailable_reason().is_some() {
        return Ok(None);
    }
    Ok(Some((sidecar, serving_runner(settings)?)))
}

/// Builds the settings of runs that a server starts. A model named `host` is the host's own.
fn serving_runner(settings: &CliSettings) -> Result<RunnerSettings> {
    let (max_tokens, max_cost) = settings.run_limits;
    let limits = RunLimits {
        max_tokens: max_tokens.or(Some(DEFAULT_RUN_TOKENS)),
        max_cost,
        ..RunLimits::default()
    };
    let model = settings.model.as_deref().filter(|id| *id != "host");
    super::run::runner_settings(model, settings.vault.as_deref(), limits, settings)
}

/// Builds the tools that are offered beyond reading, if any are.
fn build_optional_tools(
    expose: &ExposeArgs,
    embedding: BackgroundEmbedding,
    settings: &CliSettings,
    output: &Output,
) -> Result<Option<OptionalTools>> {
    let offers = |what: OfferedTool| expose.offer.contains(&what) || settings.offer.contains(&what);
    let (search, run) = (offers(OfferedTool::Search), offers(OfferedTool::Run));
    let embeds = embedding == BackgroundEmbedding::On
        && settings
            .components()
            .is_installed(ComponentKind::Embeddings);
    if !search && !run && !embeds {
        return Ok(None);
    }
    Ok(Some(OptionalTools {
        search,
        run: run.then(|| serving_runner(settings)).transpose()?,
        embedder: (search || embeds)
            .then(|| super::setup::open_encoder(None, settings, output))
            .flatten(),
        usage: settings.usage,
    }))
}
