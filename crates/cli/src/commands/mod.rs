//! One file per command. A command takes settings, works through the registry and prints.

mod add;
mod add_remote;
mod approve;
mod artifact;
mod ask;
mod bus;
mod cat;
mod catalogue;
mod connect;
mod diff;
mod doctor;
mod eval;
mod gc;
mod history;
mod init;
mod install;
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
mod visibility;
mod watch;
mod worker;

use std::{
    io::{Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result};
use repertoire_app::{
    ConnectionPool, SkillQuery, folder_skill, folder_source, require_folder, resolve_folder,
    resolve_skill,
};
use repertoire_core::{SkillId, look_alike::LookAlike, text::terminal_safe};
use repertoire_registry::{
    Error, QualifiedSkillId, Registry, RegistrySettings, SkillEntry, Trusted,
    store::RetentionPolicy, trust::ForeignJournals,
};
use repertoire_serve::{http::OwnUser, iii::config::worker_manifest};
use serde_json::{Value, json};

use crate::{
    args::Command, completion, failure::UsageError, output::Output, settings::CliSettings,
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
        Command::Init { path, trust } => init::run(&path, trust, settings, output),
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
            require_token,
            bus,
            expose,
        } => {
            let listen = serve::ListenOptions {
                bus,
                address: bind,
                port,
                hosts: host,
                origins: origin,
                access_log,
                no_auth,
                own_user: if require_token {
                    OwnUser::NeedsToken
                } else {
                    OwnUser::Recognised
                },
            };
            serve::serve_http(&paths, &listen, &expose, settings, output)
        }
        Command::Worker {
            config,
            url,
            share_account,
            ..
        } => worker::run(config.as_deref(), url, share_account, settings, output),
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
        Command::Add { from: None, args } => add::run(&args, settings, output),
        Command::Install(args) => install::install(&args, settings, output),
        Command::Update(args) => install::update(&args, settings, output),
        Command::Outdated(args) => install::outdated(&args, settings, output),
        Command::Verify(args) => install::verify(&args, settings, output),
        Command::Why { skill, scope } => install::why(&skill, scope, settings, output),
        Command::Migrate(args) => install::migrate(&args, settings, output),
        Command::Remote { command } => remote::run(command, settings, output),
        Command::Approve(args) => approve::run(&args, settings, output),
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
        Command::Trust {
            link: Some(link),
            revoke,
            ..
        } => trust::confirm_link(&link, revoke, settings, output),
        Command::Trust {
            path,
            revoke,
            with_journal,
            link: None,
        } => {
            let journals = if with_journal {
                ForeignJournals::Applied
            } else {
                ForeignJournals::Refused
            };
            trust::run(path, revoke, journals, settings, output)
        }
        Command::Gc {
            traces,
            history,
            yes,
        } => {
            let retention = RetentionPolicy {
                traces,
                history,
                ..RetentionPolicy::default()
            };
            gc::run(&retention, yes, settings, output)
        }
        Command::Backup { file, scope } => gc::back_up(&file, scope, settings, output),
        Command::Restore {
            file,
            scope,
            other_store,
            yes,
        } => {
            let asked = gc::RestoreOptions {
                scope,
                other_store,
                yes,
            };
            gc::restore(&file, asked, settings, output)
        }
        Command::Watch { paths } => watch::run(&paths, settings, output),
        Command::Connect {
            host,
            paths,
            place,
            print,
            url,
        } => {
            let server = connect::ServerChoice { paths, url };
            connect::connect(host, &place, print, &server, settings, output)
        }
        Command::Diff { old, new } => diff::run(&old, new.as_deref(), settings, output),
        Command::Disable { skills } => visibility::disable(&skills, settings, output),
        Command::Enable { skills } => visibility::enable(&skills, settings, output),
        Command::Disconnect { host, place } => connect::disconnect(&host, &place, settings, output),
        Command::Link {
            target,
            place,
            only,
            watch,
            remove,
        } => connect::link(&target, &place, &only, watch, remove, settings, output),
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
/// Returns a path as a shell takes it.
pub(crate) fn quote_path(path: &Path) -> String {
    let text = path.to_string_lossy().into_owned();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@~".contains(c);
    if text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

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
    let reads_account = sources.account.is_some();
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
    // Without the account most of what the user knows is missing.
    if let Some(notice) = registry.account_problem()
        && reads_account
        && !output.is_quiet()
    {
        output.print_warning(terminal_safe(&notice.message));
    }
    if let Some((workspace, Trusted::No)) = registry.workspace() {
        output.print_note(format!(
            "workspace {} is not trusted: its skills are listed but override nothing",
            workspace.display()
        ));
        if let Some(notice) = registry.workspace_problem() {
            output.print_warning(terminal_safe(&notice.message));
        }
    }
    Ok(registry)
}

/// Warns if another skill of the same id is served instead of the one that was changed.
fn warn_shadowed(registry: &Registry, id: &SkillId, origin: &str, output: &Output) {
    let snapshot = registry.snapshot();
    if let Some(winner) = snapshot.get(id)
        && winner.origin.to_string() != origin
    {
        output.print_warning(format!(
            "{id} is served from {}:{id}, which was not changed",
            winner.origin
        ));
    }
}

/// The most warnings about look-alikes of one command.
const MAX_LOOK_ALIKES: usize = 20;

/// Warns about names that could be taken for those of other skills; returns them for `--json`.
fn report_look_alikes(registry: &Registry, names: &[SkillId], output: &Output) -> Vec<Value> {
    let found = registry.look_alikes(names);
    for one in found.iter().take(MAX_LOOK_ALIKES) {
        output.print_warning(format!(
            "{} looks like {}, which you have: {}; make sure it is the one you want",
            one.name,
            one.known,
            one.likeness.describe()
        ));
    }
    let to_json = |one: LookAlike| json!({"id": one.name, "looks_like": one.known, "reason": one.likeness.describe()});
    found.into_iter().map(to_json).collect()
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
    require_folder(folder)?;
    let mut sources = settings.sources_for(&[])?;
    sources
        .folders
        .insert(0, folder_source(folder, &settings.account)?);
    let registry = open_sources(sources, settings, output)?;
    let reference = folder_skill(&registry, folder)?;
    Ok((registry, reference))
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

/// Finds a skill in the current catalogue.
fn find_entry(registry: &Registry, skill: &QualifiedSkillId) -> Result<Arc<SkillEntry>> {
    let snapshot = registry.snapshot();
    let entry = snapshot.find_skill(skill).cloned();
    if entry.is_none() && snapshot.is_hidden(&skill.id) {
        let known = snapshot.all_skills().any(|(entry, _)| entry.id == skill.id);
        if known {
            anyhow::bail!(UsageError(format!(
                "{skill} is disabled: `repertoire enable {}` serves it again",
                skill.id
            )));
        }
    }
    Ok(entry.ok_or_else(|| Error::NotFound {
        what: "skill",
        name: skill.to_string(),
    })?)
}

/// Decides whether the name of a skill is that of a folder; a name that is both is an error.
fn resolve_target(
    query: &SkillQuery,
    settings: &CliSettings,
    output: &Output,
) -> Result<SkillQuery> {
    resolve_folder(query, || open_registry(&[], settings, output))
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
    require_folder(folder)?;
    crate::interrupt::run_protected(|_| {
        let mut partial = tempfile::NamedTempFile::new_in(folder).with_context(context)?;
        partial.write_all(bytes).with_context(context)?;
        // Without it, a loss of power could leave an empty file in place of the old one.
        partial.as_file().sync_all().with_context(context)?;
        partial
            .persist(path)
            .map_err(|e| e.error)
            .with_context(context)?;
        repertoire_registry::folder::sync_folder(folder).with_context(context)?;
        Ok(())
    })
}
