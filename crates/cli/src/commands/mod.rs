//! One file per command. A command takes settings, works through the registry and prints.

mod add;
mod artifact;
mod ask;
mod bus;
mod bus_mode;
mod cat;
mod catalogue;
mod doctor;
mod eval;
mod history;
mod init;
mod lint;
mod lint_fix;
mod list;
mod optimize;
mod package;
mod remote;
mod remove;
mod run;
mod search;
mod serve;
mod setup;
mod show;
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
use repertoire_app::SkillQuery;
use repertoire_core::text::terminal_safe;
use repertoire_registry::{
    Error, Notice, Origin, QualifiedSkillId, Registry, RegistrySettings, RequestedBy, SkillEntry,
    SourceLocation, StoreScope, Trusted, store::Account,
};
use repertoire_serve::{iii::config::worker_manifest, mcp_client::ConnectionPool};

use crate::{
    args::{Command, ScopeArg},
    completion,
    failure::UsageError,
    output::Output,
    settings::{CliSettings, find_workspace},
};

/// Runs a command; invalid settings fail only the commands that need them.
pub(crate) fn run(
    command: Command,
    settings: Result<CliSettings>,
    output: &Output,
) -> Result<ExitCode> {
    match command {
        Command::Validate {
            paths,
            strict,
            recursive,
        } => validate::run(&paths, strict, recursive, output),
        Command::Lint { rules: true, .. } => lint::print_rules(output),
        Command::Package { command } => package::run(command, settings, output),
        Command::Doctor => doctor::run(settings, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            completion::write_script(shell, &mut script)?;
            output.print_bytes(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        #[cfg(feature = "man")]
        Command::Man { folder } => {
            clap_mangen::generate_to(crate::args::grouped_command(), &folder)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Worker { manifest: true, .. } => {
            output.print_text(&format!("{:#}\n", worker_manifest()))?;
            Ok(ExitCode::SUCCESS)
        }
        command => run_with_settings(command, &settings?, output),
    }
}

/// Runs a command that needs valid settings.
#[allow(clippy::too_many_lines, reason = "one arm per command")]
fn run_with_settings(
    command: Command,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
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
            let registry = open_registry(&paths, settings, output)?;
            match (prompts, all, tree) {
                (true, _, _) => list::print_prompts(&registry, output),
                (_, true, _) => list::print_all(&registry, origin.as_ref(), output),
                (_, _, true) => list::print_tree(&registry, origin.as_ref(), output),
                _ => list::print_flat(&registry, origin.as_ref(), output),
            }
        }
        Command::Mcp { paths, expose } => serve::serve_mcp(&paths, &expose, settings, output),
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
            let listen = serve::ListenOptions {
                bus,
                address: (bind, port).into(),
                hosts: host,
                origins: origin,
                access_log,
                no_auth,
            };
            serve::serve_http(&paths, listen, &expose, settings, output)
        }
        Command::Worker { config, url, .. } => {
            worker::run(config.as_deref(), url, settings, output)
        }
        Command::Bus { command } => bus::run(command, settings, output),
        Command::Search(args) => search::run(&args, settings, output),
        Command::Fork { skill } => artifact::fork_skill(&skill, settings, output),
        Command::Artifact { command } => artifact::run(&command, settings, output),
        Command::Ask(args) => ask::run_ask(&args, settings, output),
        Command::Optimize(args) => optimize::run_optimize(&args, settings, output),
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
                lint_fix::run(&targets, settings, output)?;
            }
            lint::run(&targets, strict, settings, output)
        }
        Command::Add {
            from: Some(from), ..
        } => remote::add_remote(from, settings, output),
        Command::Add {
            from: None,
            paths,
            id,
            write,
        } => add::run(&paths, id, &write, settings, output),
        Command::Remote { command } => remote::run(command, settings, output),
        Command::Approve { skill, revoke } => {
            remote::approve_skill(&skill, revoke, settings, output)
        }
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
        } => history::rollback_skill(&skill, revision, scope, settings, output),
        Command::Trust { path, revoke } => trust::run(path, revoke, settings, output),
        Command::Watch { paths } => watch::run(&paths, settings, output),
        #[cfg(feature = "man")]
        Command::Man { .. } => run(command, Err(UsageError(String::new()).into()), output),
        Command::Validate { .. }
        | Command::Package { .. }
        | Command::Doctor
        | Command::Completions { .. } => {
            run(command, Err(UsageError(String::new()).into()), output)
        }
    }
}

/// Opens the catalogue over these folders, or over everything the settings name.
fn open_registry(
    paths: &[PathBuf],
    settings: &CliSettings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let sources = settings.sources_for(paths)?;
    open_sources(sources, settings, output)
}

fn open_sources(
    sources: RegistrySettings,
    settings: &CliSettings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let reads_workspace = sources.workspace.is_some();
    let registry = output.with_spinner("reading skills", || Registry::open(sources))?;
    ConnectionPool::from_registry(&registry);
    if let Some(problem) = &settings.workspace_problem
        && reads_workspace
    {
        match registry.workspace() {
            Some((_, Trusted::Yes)) => anyhow::bail!(UsageError(problem.clone())),
            _ => output.print_warning(format!("{} (ignored)", terminal_safe(problem))),
        }
    }
    if let Some((workspace, Trusted::No)) = registry.workspace() {
        output.print_note(format!(
            "workspace {} is not trusted: its skills are listed but override nothing",
            workspace.display()
        ));
    }
    Ok(registry)
}

/// Opens the catalogue for commands that change or run one skill, and finds it.
///
/// A folder joins the catalogue as its first source. An id that is not in the catalogue is returned
/// as it is, because a store may still have its history.
fn open_skill(
    skill: &SkillQuery,
    settings: &CliSettings,
    output: &Output,
) -> Result<(Arc<Registry>, QualifiedSkillId)> {
    let SkillQuery::Folder(folder) = skill else {
        let registry = open_registry(&[], settings, output)?;
        let reference = resolve_skill(&registry, skill)?;
        return Ok((registry, reference));
    };
    crate::settings::require_folder(folder)?;
    refuse_untrusted_folder(folder, settings)?;
    let mut sources = settings.sources_for(&[])?;
    let location = SourceLocation {
        path: folder.clone(),
        pattern: None,
        requested_by: RequestedBy::User,
    };
    sources.folders.insert(0, location);
    let registry = open_sources(sources, settings, output)?;
    let reference = folder_skill(&registry, folder)?;
    Ok((registry, reference))
}

/// Refuses a folder in a workspace that is not trusted. A link counts where it stands and where it
/// leads to.
fn refuse_untrusted_folder(folder: &Path, settings: &CliSettings) -> Result<()> {
    let absolute = std::path::absolute(folder)?;
    for place in [folder.canonicalize()?, absolute] {
        let Some(workspace) = find_workspace(&place, &settings.account) else {
            continue;
        };
        let local = Account::open(&settings.account)?.local;
        if local.workspace_trust(&workspace)? == Trusted::No {
            anyhow::bail!(Error::Untrusted(workspace));
        }
    }
    Ok(())
}

/// Like [`open_skill`], for commands that only read: a folder is opened alone, without stores.
fn open_skill_to_read(
    skill: &SkillQuery,
    settings: &CliSettings,
    output: &Output,
) -> Result<(Arc<Registry>, QualifiedSkillId)> {
    let SkillQuery::Folder(folder) = skill else {
        return open_skill(skill, settings, output);
    };
    let registry = open_registry(std::slice::from_ref(folder), settings, output)?;
    let reference = folder_skill(&registry, folder)?;
    Ok((registry, reference))
}

/// Returns the skill that a folder is. It has the name of the folder as id.
fn folder_skill(registry: &Registry, folder: &Path) -> Result<QualifiedSkillId> {
    let folder = folder.canonicalize()?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let missing = || Error::NotFound {
        what: "skill in",
        name: folder.display().to_string(),
    };
    let reference = name.parse().ok().map(|id| QualifiedSkillId {
        origin: Some(Origin::Files(1)),
        id,
    });
    let snapshot = registry.snapshot();
    if let Some(reference) = reference.filter(|one| snapshot.find_skill(one).is_some()) {
        return Ok(reference);
    }
    let within = |notice: &Notice| notice.path.starts_with(&folder);
    let notice = registry.notices().into_iter().find(within);
    Err(notice.map_or_else(missing, Error::from).into())
}

/// Returns the reference of a skill that is not a folder; an unknown id is returned as it is.
fn resolve_skill(registry: &Registry, skill: &SkillQuery) -> Result<QualifiedSkillId> {
    if let SkillQuery::Id(id) = skill {
        let is_stored = |scope: StoreScope| {
            let history = registry.history(scope, &id.id);
            history.is_ok_and(|history| !history.is_empty())
        };
        // A removed skill keeps its id: no other one may take its place here.
        if registry.snapshot().find_skill(id).is_some()
            || is_stored(StoreScope::Workspace)
            || is_stored(StoreScope::Account)
        {
            return Ok(id.clone());
        }
    }
    match (repertoire_app::find_skill(registry, skill), skill) {
        (Ok(entry), _) => Ok(QualifiedSkillId {
            origin: Some(entry.origin.clone()),
            id: entry.id.clone(),
        }),
        (Err(repertoire_app::Error::Registry(Error::NotFound { .. })), SkillQuery::Id(id)) => {
            Ok(id.clone())
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Finds a skill in the current catalogue.
fn find_entry(registry: &Registry, skill: &QualifiedSkillId) -> Result<Arc<SkillEntry>> {
    let snapshot = registry.snapshot();
    let entry = snapshot.find_skill(skill).cloned();
    Ok(entry.ok_or_else(|| Error::NotFound {
        what: "skill",
        name: skill.to_string(),
    })?)
}

/// Returns the scope that a reference names; fails if that origin has no store, or if another scope
/// was asked for.
fn named_scope(reference: &QualifiedSkillId, asked: Option<ScopeArg>) -> Result<Option<ScopeArg>> {
    let named = match &reference.origin {
        None => return Ok(asked),
        Some(Origin::Workspace) => ScopeArg::Workspace,
        Some(Origin::Account) => ScopeArg::Account,
        Some(other) => anyhow::bail!(UsageError(format!(
            "{other}:{} is not in a store: only skills of workspace: and account: have a history \
             and can be changed here",
            reference.id
        ))),
    };
    if asked.is_some_and(|asked| asked != named) {
        anyhow::bail!(UsageError(format!(
            "{reference} and --scope name different stores: leave one out"
        )));
    }
    Ok(Some(named))
}

/// Decides whether the name of a skill is that of a folder; a name that is both is an error.
fn resolve_target(
    query: &SkillQuery,
    registry: impl FnOnce() -> Result<Arc<Registry>>,
) -> Result<SkillQuery> {
    if let SkillQuery::Folder(path) = query {
        crate::settings::require_folder(path)?;
        return Ok(query.clone());
    }
    let path = PathBuf::from(query.to_string());
    if !path.is_dir() {
        return Ok(query.clone());
    }
    if let Ok(entry) = repertoire_app::find_skill(&*registry()?, query) {
        anyhow::bail!(UsageError(format!(
            "{query} is a skill and a folder here: write {}:{} or ./{query}",
            entry.origin, entry.id
        )));
    }
    Ok(SkillQuery::Folder(path))
}

/// Resolves the store for a write: the requested, the configured, or the nearest one.
fn resolve_scope(
    registry: &Registry,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
) -> Result<StoreScope> {
    let trusted = matches!(registry.workspace(), Some((_, Trusted::Yes)));
    let set = settings
        .workspace_scope
        .filter(|_| trusted)
        .or(settings.scope);
    let nearest = if trusted {
        StoreScope::Workspace
    } else {
        StoreScope::Account
    };
    let scope = match asked {
        Some(ScopeArg::Workspace) => StoreScope::Workspace,
        Some(ScopeArg::Account) => StoreScope::Account,
        None => set.unwrap_or(nearest),
    };
    if scope == StoreScope::Workspace {
        match registry.workspace() {
            Some((_, Trusted::Yes)) => {}
            Some((path, Trusted::No)) => return Err(Error::Untrusted(path.to_owned()).into()),
            None => anyhow::bail!(UsageError(
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

/// Writes a file atomically.
fn write_output(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let context = || path.display().to_string();
    crate::settings::require_folder(folder)?;
    crate::interrupt::run_protected(|_| {
        let mut partial = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
        partial.write_all(bytes).with_context(context)?;
        partial
            .persist(path)
            .map_err(|e| e.error)
            .with_context(context)?;
        Ok(())
    })
}
