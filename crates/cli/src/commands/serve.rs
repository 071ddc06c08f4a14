//! `mcp` and `serve`: the catalogue for hosts, over stdio and over HTTP.

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, bail};
use repertoire_core::{Digest, SkillId, text::terminal_safe};
use repertoire_registry::{
    Registry, Trusted,
    store::{Store, Trust},
    trust,
};
use repertoire_serve::{
    Engine, Exposure, Options,
    client::Pool,
    http::{AccessLog, Auth, HttpOptions, Listener},
};
use tokio::{runtime::Runtime, sync::Notify};

use crate::{
    args::ExposeArgs,
    failure::Usage,
    interrupt,
    output::{Output, count},
    settings::Settings,
};

/// Where to listen, and who may ask.
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) hosts: Vec<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) access_log: Option<PathBuf>,
    pub(crate) no_auth: bool,
}

pub(crate) fn mcp(
    paths: &[PathBuf],
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let engine = engine(paths, expose, settings, output, |_| {})?;
    runtime.spawn(follow_remotes(engine.clone()));
    let stop = engine.clone();
    interrupt::shut_down_with(move || stop.shut_down());
    let ended = runtime.block_on(repertoire_serve::serve_stdio(engine));
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
    let auth = auth(&listen, settings)?;
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
        let quiet = output.quiet();
        let engine = engine(paths, expose, settings, output, move |registry| {
            if !quiet {
                let skills = count(registry.snapshot().len(), "skill");
                Output::whisper(&format!("serving {skills}\n"));
            }
        })?;
        tokio::spawn(follow_remotes(engine.clone()));
        output.note(format!("listening on http://{address}/mcp; Ctrl-C ends"));
        if output.json {
            let line = serde_json::json!({"url": format!("http://{address}/mcp")});
            output.print(&format!("{line}\n"))?;
        }
        let mut hosts = listen.hosts;
        if !address.ip().is_loopback() && !address.ip().is_unspecified() {
            hosts.push(address.ip().to_string());
        }
        let options = HttpOptions {
            hosts,
            origins: listen.origins,
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
        Ok(ExitCode::SUCCESS)
    })
}

/// Keeps in touch with other servers, if the account names any.
async fn follow_remotes(engine: Arc<Engine>) {
    if let Ok(registry) = engine.registry().await
        && let Ok(pool) = Pool::of(registry)
    {
        pool.follow(engine).await;
    }
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder.enable_all().thread_name("serve").build()?)
}

/// Starts to open the registry; what is wrong with it is told when it is known.
fn engine(
    paths: &[PathBuf],
    expose: &ExposeArgs,
    settings: &Settings,
    output: &Output,
    then: impl FnOnce(&Arc<Registry>) + Send + 'static,
) -> Result<Arc<Engine>> {
    let sources = settings.sources_of(paths)?;
    let which = match (expose.prompts.as_slice(), &settings.skills_as_prompts) {
        ([], Some(set)) => set.as_slice(),
        (given, _) => given,
    };
    let prompts = exposure(which)?;
    // What the instructions say follows from what is opened, and how it is offered.
    let key = Digest::of(format!("{sources:?}{prompts:?}").as_bytes()).hex();
    let kept = settings.account.join("cache").join("instructions");
    let options = Options {
        prompts,
        watch: !expose.no_watch,
        instructions_file: Some(kept.join(format!("{}.md", &key[..16]))),
        ..Options::default()
    };
    let problem = settings.workspace_problem.clone();
    let quiet = output.quiet();
    Ok(Engine::open(sources, options, move |registry| {
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
    }))
}

fn exposure(which: &[String]) -> Result<Exposure> {
    match which {
        [] => Ok(Exposure::All),
        [word] if word == "all" => Ok(Exposure::All),
        [word] if word == "none" => Ok(Exposure::None),
        ids => {
            let ids = ids.iter().map(|id| id.trim().parse::<SkillId>());
            let ids = ids.collect::<Result<_, _>>();
            Ok(Exposure::Only(ids.context("prompts: all, none, or ids")?))
        }
    }
}

/// Tokens count as soon as there is one; an address that others can reach does not go without.
fn auth(listen: &Listen, settings: &Settings) -> Result<Auth> {
    if listen.no_auth {
        return Ok(Auth::Open);
    }
    let open_to_others = !listen.address.ip().is_loopback();
    let store = Store::open(&settings.account.join(trust::STORE), Trust::Own);
    let store = match store {
        Ok(store) => store,
        // Whoever may not write there cannot have made a token either.
        Err(error) if !open_to_others && error.code() == "io_error" => return Ok(Auth::Open),
        Err(error) => return Err(error.into()),
    };
    if open_to_others && store.tokens()?.is_empty() {
        bail!(Usage(format!(
            "{} can be reached by others: make a token with `repertoire token create NAME`, or \
             say --no-auth",
            listen.address.ip()
        )));
    }
    Ok(Auth::tokens(store, open_to_others))
}
