//! One file a command. A command takes settings, does its work through the registry and prints.

mod add;
mod artifact;
mod ask;
mod bus;
mod cat;
mod catalogue;
mod doctor;
mod eval;
mod fix;
mod history;
mod init;
mod lint;
mod list;
mod optimize;
mod package;
mod remote;
mod remove;
mod renew;
mod run;
mod search;
mod serve;
mod setup;
mod show;
mod side;
mod token;
mod tour;
mod trace;
mod trust;
mod validate;
mod watch;
mod worker;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use clap::CommandFactory;
use repertoire_core::text::terminal_safe;
use repertoire_registry::{Error, Origin, Reference, Registry, Scope, Trusted};
use repertoire_serve::client::Pool;

use crate::{
    args::{Args, Command, ScopeArg},
    failure::Usage,
    output::Output,
    settings::Settings,
};

/// Runs a command. Broken settings stop only what depends on them.
pub(crate) fn run(
    command: Command,
    settings: Result<Settings>,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        Command::Validate {
            paths,
            strict,
            recursive,
        } => validate::run(&paths, strict, recursive, output),
        Command::Lint { rules: true, .. } => lint::rules(output),
        Command::Pack { folder, output: to } => package::pack(&folder, to.as_deref(), output),
        Command::Unpack { file, output: to } => package::unpack(&file, to, output),
        Command::Doctor => doctor::run(settings, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "repertoire", &mut script);
            output.print_bytes(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        command => run_with(command, &settings?, output),
    }
}

/// Runs a command that looks at the catalogue.
#[allow(clippy::too_many_lines, reason = "one arm a command")]
fn run_with(command: Command, settings: &Settings, output: &Output) -> Result<ExitCode> {
    match command {
        Command::Tour { paths } => tour::run(&paths, settings, output),
        Command::Init { path } => init::run(&path, settings, output),
        Command::List {
            paths,
            all,
            origin,
            tree,
            prompts,
        } => {
            let registry = open(&paths, settings, output)?;
            match (prompts, all, tree) {
                (true, _, _) => list::prompts(&registry, output),
                (_, true, _) => list::all(&registry, origin.as_ref(), output),
                (_, _, true) => list::tree(&registry, origin.as_ref(), output),
                _ => list::flat(&registry, origin.as_ref(), output),
            }
        }
        Command::Mcp { paths, expose } => serve::mcp(&paths, &expose, settings, output),
        Command::Serve {
            paths,
            port,
            bind,
            host,
            origin,
            access_log,
            no_auth,
            bus,
            expose,
        } => {
            let listen = serve::Listen {
                bus,
                address: (bind, port).into(),
                hosts: host,
                origins: origin,
                access_log,
                no_auth,
            };
            serve::http(&paths, listen, &expose, settings, output)
        }
        Command::Worker { config, url } => worker::run(config.as_deref(), url, settings, output),
        Command::Call {
            function,
            payload,
            timeout,
            bus,
        } => bus::call(
            &function,
            &payload,
            timeout,
            &bus::Place::of(bus, settings)?,
            output,
        ),
        Command::Functions { internal, bus } => {
            bus::functions(internal, &bus::Place::of(bus, settings)?, output)
        }
        Command::Search(args) => search::run(&args, settings, output),
        Command::Fork { skill } => artifact::fork(&skill, settings, output),
        Command::Artifact { command } => artifact::run(&command, settings, output),
        Command::Ask(args) => ask::ask(&args, settings, output),
        Command::Optimize(args) => optimize::optimize(&args, settings, output),
        Command::Catalogue(args) => catalogue::run(&args, settings, output),
        Command::Setup { command } => setup::run(command, settings, output),
        Command::Eval(args) => eval::run(&args, settings, output),
        Command::Run(args) => run::run(&args, settings, output),
        Command::Trace { command } => trace::run(command, settings, output),
        Command::Token { command } => token::run(command, settings, output),
        Command::Show { skill } => show::run(&skill, settings, output),
        Command::Cat { uri, prompt } => cat::run(uri.as_deref(), prompt.as_ref(), settings, output),
        Command::Lint {
            targets,
            strict,
            fix,
            ..
        } => {
            if fix {
                fix::run(&targets, settings, output)?;
            }
            lint::run(&targets, strict, settings, output)
        }
        Command::Add {
            from: Some(from), ..
        } => remote::add(from, settings, output),
        Command::Add {
            from: None,
            paths,
            id,
            write,
        } => add::run(&paths, id, &write, settings, output),
        Command::Remote { command } => remote::run(command, settings, output),
        Command::Approve { skill, revoke } => remote::approve(&skill, revoke, settings, output),
        Command::Remove {
            skills,
            purge,
            scope,
        } => remove::run(&skills, purge, scope, settings, output),
        Command::History { skill, scope } => history::run(&skill, scope, settings, output),
        Command::Rollback {
            skill,
            revision,
            scope,
        } => history::rollback(&skill, revision, scope, settings, output),
        Command::Import { files, write } => package::import(&files, &write, settings, output),
        Command::Export { skill, output: to } => {
            package::export(&skill, to.as_deref(), settings, output)
        }
        Command::Trust { path, revoke } => trust::run(path, revoke, settings, output),
        Command::Watch { paths } => watch::run(&paths, settings, output),
        Command::Validate { .. }
        | Command::Pack { .. }
        | Command::Unpack { .. }
        | Command::Doctor
        | Command::Completions { .. } => run(command, Err(Usage(String::new()).into()), output),
    }
}

/// Opens the catalogue over these folders, or over everything the settings name.
fn open(paths: &[PathBuf], settings: &Settings, output: &Output) -> Result<Arc<Registry>> {
    let sources = settings.sources_of(paths)?;
    let registry = output.working("reading skills", || Registry::open(sources))?;
    Pool::of(&registry);
    if let Some(problem) = &settings.workspace_problem
        && paths.is_empty()
    {
        match registry.workspace() {
            Some((_, Trusted::Yes)) => anyhow::bail!(Usage(problem.clone())),
            _ => output.warn(format!("{} (ignored)", terminal_safe(problem))),
        }
    }
    if let Some((workspace, Trusted::No)) = registry.workspace() {
        output.note(format!(
            "workspace {} is not trusted: its skills are shown, they override nothing",
            workspace.display()
        ));
    }
    Ok(registry)
}

/// The scope a reference names, if it names one that has a store.
fn named_scope(reference: &Reference, asked: Option<ScopeArg>) -> Result<Option<ScopeArg>> {
    Ok(match &reference.origin {
        None => asked,
        Some(Origin::Workspace) => Some(ScopeArg::Workspace),
        Some(Origin::Account) => Some(ScopeArg::Account),
        Some(other) => anyhow::bail!(Usage(format!(
            "{other} is no store: history is kept for workspace: and account: only"
        ))),
    })
}

/// What a person named: a skill of the catalogue, or a folder.
enum Target {
    Skill(Reference),
    Folder(PathBuf),
}

/// Tells ids from folders. Where a name could be both, nothing is decided silently.
fn target(text: &str, registry: impl FnOnce() -> Result<Arc<Registry>>) -> Result<Target> {
    let path = Path::new(text);
    if text.starts_with(['.', '/', '~']) || text.ends_with('/') {
        crate::settings::need_folder(path)?;
        return Ok(Target::Folder(path.to_owned()));
    }
    let reference = text.parse::<Reference>();
    if !path.is_dir() {
        return Ok(Target::Skill(reference?));
    }
    if let Ok(reference) = reference
        && let Some(entry) = registry()?.snapshot().skill(&reference)
    {
        anyhow::bail!(Usage(format!(
            "{text} is a skill and a folder here: write {}:{} or ./{text}",
            entry.origin, entry.id
        )));
    }
    Ok(Target::Folder(path.to_owned()))
}

/// The store for a write: the one asked for, the one set, or the nearest one.
fn scope(registry: &Registry, asked: Option<ScopeArg>, settings: &Settings) -> Result<Scope> {
    let trusted = matches!(registry.workspace(), Some((_, Trusted::Yes)));
    let set = settings
        .workspace_scope
        .filter(|_| trusted)
        .or(settings.scope);
    let nearest = if trusted {
        Scope::Workspace
    } else {
        Scope::Account
    };
    let scope = match asked {
        Some(ScopeArg::Workspace) => Scope::Workspace,
        Some(ScopeArg::Account) => Scope::Account,
        None => set.unwrap_or(nearest),
    };
    if scope == Scope::Workspace {
        match registry.workspace() {
            Some((_, Trusted::Yes)) => {}
            Some((path, Trusted::No)) => return Err(Error::Untrusted(path.to_owned()).into()),
            None => anyhow::bail!(Usage(
                "this folder is in no workspace: run `repertoire init`, or use --scope account"
                    .to_owned()
            )),
        }
    }
    Ok(scope)
}

/// Reads a file, or stdin for `-`, of at most `max` bytes.
fn read_input(path: &Path, max: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = max as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(limit)
            .read_to_end(&mut bytes)?;
    } else {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        file.take(limit)
            .read_to_end(&mut bytes)
            .with_context(|| path.display().to_string())?;
    }
    Ok(bytes)
}

/// Writes a file in one step: it is there whole, or as it was before.
fn write_output(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let context = || path.display().to_string();
    crate::settings::need_folder(folder)?;
    crate::interrupt::protect(|_| {
        let mut partial = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
        partial.write_all(bytes).with_context(context)?;
        partial
            .persist(path)
            .map_err(|e| e.error)
            .with_context(context)?;
        Ok(())
    })
}
