//! `mcp` and `serve`: the catalogue for hosts, over stdio and over HTTP.

use std::{
    fmt::Write as _, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration,
};

use anyhow::{Context, Result, bail};
use repertoire_core::{Digest, SkillId, text::terminal_safe};
use repertoire_registry::{
    Registry, Settings as Sources, Trusted,
    store::{Store, Trust},
    trust,
};
use repertoire_runtime::{Redactor, Vault, Workspace, sidecar::Sidecar};
use repertoire_serve::{
    Activation, Engine, Exposure, Options, Runs,
    client::Pool,
    http::{AccessLog, Auth, HttpOptions, Listener, Names},
};
use tokio::{runtime::Runtime, sync::Notify};

use super::{renew::Renewal, side::Side};
use crate::{
    args::{BusArgs, ExposeArgs, Offer},
    failure::Usage,
    interrupt,
    output::{Output, count},
    settings::Settings,
};

/// The most tokens of one run that a host asks for, unless the settings say otherwise.
const RUN_TOKENS: u64 = 100_000;

/// Where to listen, and who may ask.
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) access_log: Option<PathBuf>,
    pub(crate) no_auth: bool,
    pub(crate) bus: BusArgs,
}

pub(crate) fn mcp(
    paths: &[PathBuf],
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let sources = settings.sources_of(paths)?;
    let engine = engine(sources, expose, settings, output, |_| {})?;
    let remotes = runtime.spawn(follow_remotes(engine.clone()));
    let stop = engine.clone();
    interrupt::shut_down_with(move || stop.shut_down());
    let ended = runtime.block_on(async {
        let ended = repertoire_serve::serve_stdio(engine.clone()).await;
        engine.shut_down();
        // Programs that were started for this host end with it.
        let _ = tokio::time::timeout(Duration::from_secs(2), remotes).await;
        ended
    });
    // A read of stdin may still be waiting for a host that will not write again.
    runtime.shutdown_background();
    ended?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn http(
    paths: &[PathBuf],
    listen: Listen,
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    check_names(&listen)?;
    let side = Side::of(&listen.bus, settings)?;
    let auth = Arc::new(auth(&listen, side.address(), settings)?);
    let access_log = match listen.access_log.as_deref() {
        None => None,
        Some(path) if path.as_os_str() == "-" => Some(AccessLog::to(std::io::stderr())),
        Some(path) => {
            let mut open = std::fs::OpenOptions::new();
            let file = open.create(true).append(true).open(path);
            Some(AccessLog::to(
                file.with_context(|| path.display().to_string())?,
            ))
        }
    };
    let runtime = runtime()?;
    runtime.block_on(async {
        let listener = Listener::bind(listen.address).await?;
        let address = listener.address();
        let side = side.bind().await?;
        let quiet = output.quiet();
        let mut sources = settings.sources_of(paths)?;
        side.adapt(&mut sources, settings);
        // Serving does not depend on it.
        let renewal = renewal(settings).unwrap_or_else(|error| {
            tracing::warn!("states of DSPy modules are not renewed: {error:#}");
            None
        });
        let background = tokio::runtime::Handle::current();
        let engine = engine(sources, expose, settings, output, move |registry| {
            if let Some(renewal) = renewal {
                background.spawn(renewal.go(registry.clone()));
            }
            if !quiet {
                let skills = count(registry.snapshot().len(), "skill");
                Output::whisper(&format!("serving {skills}\n"));
            }
            repertoire_serve::iii::boot::log_files(registry);
        })?;
        let remotes = tokio::spawn(follow_remotes(engine.clone()));
        let who = match &*auth {
            Auth::Open => "for everybody who can reach it",
            Auth::Tokens(tokens) if tokens.are_required() => "for whoever has a token",
            Auth::Tokens(_) => "for every program on this machine, as there is no token",
        };
        output.note(format!(
            "listening on http://{address}/mcp {who}; Ctrl-C ends"
        ));
        if let Some(words) = side.describe() {
            output.note(words);
        }
        if output.json {
            let line =
                serde_json::json!({"url": format!("http://{address}/mcp"), "hub": side.url()});
            output.print(&format!("{line}\n"))?;
        }
        let mut names = Names {
            hosts: listen.hosts,
            origins: listen.origins,
        };
        let reachable = [Some(address), side.address()];
        for address in reachable.into_iter().flatten() {
            if !address.ip().is_loopback() && !address.ip().is_unspecified() {
                names.hosts.push(address.ip().to_string());
            }
        }
        let side = side.start(&engine, &names, &auth, &listen.bus, settings);
        let options = HttpOptions {
            names,
            auth,
            access_log,
            ..HttpOptions::default()
        };
        let stop = Arc::new(Notify::new());
        let signal = stop.clone();
        interrupt::shut_down_with(move || signal.notify_one());
        let failed = async {
            match engine.registry().await {
                Err(error) => error,
                Ok(_) => std::future::pending().await,
            }
        };
        let until = async {
            stop.notified().await;
            output.note("finishing what was accepted; Ctrl-C again ends at once");
        };
        tokio::select! {
            ended = listener.serve(engine.clone(), options, until) => ended?,
            error = failed => return Err(error.into()),
        }
        // Programs that were started for this server end with it.
        let _ = tokio::time::timeout(Duration::from_secs(2), remotes).await;
        side.end().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Keeps in touch with other servers, if the account names any.
async fn follow_remotes(engine: Arc<Engine>) {
    if let Ok(registry) = engine.registry().await {
        Pool::of(registry).follow(engine).await;
    }
}

/// Refuses names and origins that no request could ever have.
fn check_names(listen: &Listen) -> Result<()> {
    for host in &listen.hosts {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || host.contains("//") || !host.chars().all(plain) {
            bail!(Usage(format!(
                "--host {host:?}: write a name without scheme and path, such as skills.example.com"
            )));
        }
    }
    for origin in &listen.origins {
        let rest = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"));
        let rest = rest.map(|rest| rest.trim_end_matches('/'));
        if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', ' ', '@'])) {
            bail!(Usage(format!(
                "--origin {origin:?}: write scheme and host, such as https://app.example.com"
            )));
        }
    }
    Ok(())
}

pub(super) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().thread_name("serve").build()?)
}

/// Starts to open the registry; what is wrong with it is told when it is known.
fn engine(
    sources: Sources,
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
    then: impl FnOnce(&Arc<Registry>) + Send + 'static,
) -> Result<Arc<Engine>> {
    let which = match (expose.prompts.as_slice(), &settings.skills_as_prompts) {
        ([], Some(set)) => set.as_slice(),
        (given, _) => given,
    };
    let prompts = exposure(which)?;
    // What the instructions say follows from what is opened, and how it is offered.
    let key = Digest::of(format!("{sources:?}{prompts:?}").as_bytes()).hex();
    let kept = settings.kept_instructions();
    let options = Options {
        prompts,
        watch: !expose.no_watch,
        instructions_file: Some(kept.join(format!("{}.md", &key[..16]))),
        ..Options::default()
    };
    let problem = settings.workspace_problem.clone();
    let wanted = match &options.prompts {
        Exposure::Only(ids) => ids.clone(),
        Exposure::All | Exposure::None => Vec::new(),
    };
    let quiet = output.quiet();
    let activation = activation(expose, settings, output)?;
    let engine = Engine::open(sources, options, move |registry| {
        // Writing to a string cannot fail.
        let mut words = String::new();
        if let Some(problem) = problem {
            let _ = writeln!(words, "warning: {} (ignored)", terminal_safe(&problem));
        }
        if let Some((workspace, Trusted::No)) = registry.workspace() {
            let _ = writeln!(
                words,
                "workspace {} is not trusted: its skills can be read, they are no prompts",
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
        let skipped = registry.notices();
        for notice in skipped.iter().take(10) {
            let _ = writeln!(
                words,
                "skipped [{}] {}",
                notice.code,
                terminal_safe(&notice.message)
            );
        }
        if skipped.len() > 10 {
            let _ = writeln!(
                words,
                "… and {} more: `repertoire list --all`",
                skipped.len() - 10
            );
        }
        if !quiet {
            Output::whisper(&words);
        }
        then(registry);
    });
    if let Some(activation) = activation {
        engine.activate(activation);
    }
    Ok(engine)
}

/// What learning states anew takes, if it can and may be done.
fn renewal(settings: &Settings) -> Result<Option<Renewal>> {
    let sidecar = Sidecar::new(super::setup::sidecar::program(settings));
    let model = settings.model.as_deref().filter(|id| *id != "host");
    let (true, None, Some(model)) = (settings.renew, sidecar.lacks(), model) else {
        return Ok(None);
    };
    let vault = settings.vault.as_ref().map(|folder| Vault::open(folder));
    let vault = vault.transpose()?;
    let (max_tokens, max_cost) = settings.run_limits;
    Ok(Some(Renewal {
        sidecar,
        model: settings.providers().model(model)?,
        workspace: vault.map(|vault| Arc::new(vault) as Arc<dyn Workspace>),
        limits: (max_tokens.or(Some(RUN_TOKENS)), max_cost),
    }))
}

/// The tools that are offered beyond reading, if any are.
fn activation(
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<Option<Activation>> {
    let offers = |what: Offer| expose.offer.contains(&what) || settings.offer.contains(&what);
    let (search, run) = (offers(Offer::Search), offers(Offer::Run));
    if !search && !run {
        return Ok(None);
    }
    let providers = settings.providers();
    let (max_tokens, max_cost) = settings.run_limits;
    let runs = || -> Result<Runs> {
        let model = settings.model.as_deref().filter(|id| *id != "host");
        let vault = settings.vault.as_ref().map(|folder| Vault::open(folder));
        Ok(Runs {
            model: model.map(|id| providers.model(id)).transpose()?,
            workspace: vault
                .transpose()?
                .map(|vault| Arc::new(vault) as Arc<dyn Workspace>),
            dispatcher: super::run::dispatcher(settings),
            redactor: Redactor::with_environment(providers.secrets()),
            max_tokens: max_tokens.or(Some(RUN_TOKENS)),
            max_cost,
        })
    };
    Ok(Some(Activation {
        search,
        run: run.then(runs).transpose()?,
        embedder: search
            .then(|| super::setup::embedder(None, settings, output))
            .flatten(),
    }))
}

fn exposure(which: &[String]) -> Result<Exposure> {
    let usage = "--prompts takes `all`, `none`, or ids with commas between them";
    match which {
        [] => Ok(Exposure::All),
        [word] if word == "all" => Ok(Exposure::All),
        [word] if word == "none" => Ok(Exposure::None),
        ids => {
            let ids = ids.iter().map(|id| id.trim().parse::<SkillId>());
            let ids = ids.collect::<Result<Vec<_>, _>>();
            match ids {
                Ok(ids) if ids.iter().all(|id| !matches!(id.as_str(), "all" | "none")) => {
                    Ok(Exposure::Only(ids))
                }
                Ok(_) => bail!(Usage(usage.to_owned())),
                Err(error) => bail!(Usage(format!("{usage}: {error}"))),
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as `is_err_and` gives it")]
fn is_missing(error: std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}

/// Tokens count as soon as there is one; an address that others can reach does not go without.
fn auth(listen: &Listen, hub: Option<SocketAddr>, settings: &Settings) -> Result<Auth> {
    if listen.no_auth {
        return Ok(Auth::Open);
    }
    let mut addresses = std::iter::once(listen.address).chain(hub);
    let open = addresses.find(|address| !address.ip().is_loopback());
    let open_to_others = open.is_some();
    let file = settings.account.join(trust::STORE);
    let store = match Store::open(&file, Trust::Own) {
        Ok(store) => store,
        // Where nothing may be written there may still be tokens to read.
        Err(error) if error.code() == "io_error" => match Store::open(&file, Trust::ReadOnly) {
            Ok(store) => store,
            // Without a store there never was a token.
            Err(_) if !open_to_others && file.symlink_metadata().is_err_and(is_missing) => {
                return Ok(Auth::Open);
            }
            Err(error) => return Err(error.into()),
        },
        Err(error) => return Err(error.into()),
    };
    if open_to_others && store.tokens()?.is_empty() {
        bail!(Usage(format!(
            "{} can be reached by others: make a token with `repertoire token create NAME`, or \
             say --no-auth",
            open.unwrap_or(listen.address).ip()
        )));
    }
    Ok(Auth::tokens(store, open_to_others))
}
