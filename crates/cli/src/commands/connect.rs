//! `connect`, `disconnect` and `link`: what hosts read.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use repertoire_app::{
    ConfigChange, HOSTS, Host, HostScope, KnownAddresses, LinkChange, LinkReport, ServerEntry,
    SkillLinks,
};
use repertoire_core::{permission::IdPrefix, text::terminal_safe};
use repertoire_registry::{Error as RegistryError, Registry};
use serde_json::json;

use super::open_registry;
use crate::{
    args::HostPlaceArgs,
    failure::UsageError,
    interrupt,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

/// Finds a host by its id.
fn find_host(id: &str) -> Result<&'static Host> {
    Host::find(id).ok_or_else(|| {
        let ids: Vec<_> = HOSTS.iter().map(|host| host.id).collect();
        let wanted = id.to_lowercase();
        let similar = ids.iter().filter(|known| {
            known.contains(&wanted) || wanted.contains(**known) && !known.is_empty()
        });
        let similar: Vec<_> = similar.copied().collect();
        UsageError(match (wanted.is_empty(), similar.as_slice()) {
            (false, [_, ..]) => format!(
                "there is no host {id:?}; did you mean {}?",
                similar.join(" or ")
            ),
            _ => format!("there is no host {id:?}; known are {}", ids.join(", ")),
        })
        .into()
    })
}

/// The scope, and the folder that the paths of the scope are below.
fn resolve_place(
    place: &HostPlaceArgs,
    has_place: impl Fn(HostScope) -> bool,
    settings: &CliSettings,
) -> Result<(HostScope, PathBuf)> {
    let here = std::env::current_dir()?;
    let is_repository = |path: &&Path| path.join(".git").exists();
    let repository = here.ancestors().find(is_repository);
    let project = settings.workspace.as_deref().or(repository);
    let scope = match (place.project, place.user) {
        (true, _) => HostScope::Project,
        (_, true) => HostScope::User,
        _ if project.is_some() && has_place(HostScope::Project) => HostScope::Project,
        _ if has_place(HostScope::User) => HostScope::User,
        _ => HostScope::Project,
    };
    let base = match scope {
        HostScope::Project => project.unwrap_or(&here).to_owned(),
        HostScope::User => std::env::home_dir().context("there is no home folder")?,
    };
    Ok((scope, base))
}

/// What a host is connected to.
pub(crate) struct ServerChoice {
    /// Folders that the program serves; without any, stores and settings.
    pub(crate) paths: Vec<PathBuf>,
    /// The address of a running server.
    pub(crate) url: Option<String>,
}

/// How a host starts this program, or reaches a running server.
fn server_entry(
    (scope, base): (HostScope, &Path),
    server: &ServerChoice,
    settings: &CliSettings,
    output: &Output,
) -> Result<ServerEntry> {
    if let Some(url) = server.url.clone() {
        check_address(&url)?;
        return Ok(ServerEntry::Address(url));
    }
    // Others have the program elsewhere; programs with windows do not know the shell's path.
    let command = match scope {
        HostScope::Project => "repertoire".to_owned(),
        HostScope::User => std::env::current_exe()?.to_string_lossy().into_owned(),
    };
    let mut args = Vec::new();
    // A host does not have the environment of this shell.
    if scope == HostScope::User && std::env::var_os("REPERTOIRE_HOME").is_some() {
        let home = settings.account.to_string_lossy().into_owned();
        args.extend(["--home".to_owned(), home]);
    }
    args.push("mcp".to_owned());
    for path in &server.paths {
        repertoire_app::require_folder(path)?;
        let real = path.canonicalize()?;
        let path = match scope {
            // Relative to the project, where hosts start programs; others have it elsewhere.
            HostScope::Project => match real.strip_prefix(base.canonicalize()?) {
                Ok(below) if below.as_os_str().is_empty() => PathBuf::from("."),
                Ok(below) => below.to_owned(),
                Err(_) => real,
            },
            HostScope::User => real,
        };
        args.push(path.to_string_lossy().into_owned());
    }
    if scope == HostScope::Project && !is_in_path("repertoire") {
        output.print_warning("`repertoire` is not in the PATH, where the host will look for it");
    }
    Ok(ServerEntry::Program { command, args })
}

/// Checks the address of a server. Settings of a project are shared, so it holds nothing else.
fn check_address(url: &str) -> Result<()> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
        bail!(UsageError(format!("{url:?} is no http address")));
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') || rest.contains(['?', '#']) {
        // The address is not repeated, because it may hold a password.
        bail!(UsageError(
            "the address holds more than a host and a path: settings of hosts are no place for \
             passwords; create a token with `repertoire token create` and add it to the host's own \
             settings"
                .to_owned()
        ));
    }
    Ok(())
}

fn is_in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

pub(crate) fn connect(
    host: Option<String>,
    place: &HostPlaceArgs,
    print: bool,
    server: &ServerChoice,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let Some(host) = host else {
        return list_hosts(output);
    };
    let host = find_host(&host)?;
    let has_config = |scope| host.config_file(scope, Path::new("")).is_some();
    if !has_config(HostScope::Project) && !has_config(HostScope::User) {
        bail!(UsageError(format!(
            "{} has no settings for servers, but a folder of skills: `repertoire link {}`",
            host.id, host.id
        )));
    }
    let (scope, base) = resolve_place(place, has_config, settings)?;
    let Some(file) = host.config_file(scope, &base) else {
        bail!(UsageError(format!(
            "{} has no file for MCP servers of a {}",
            host.name,
            scope.as_str()
        )));
    };
    let entry = server_entry((scope, &base), server, settings, output)?;
    if print {
        let text = host.config_snippet(&place.name, &entry)?;
        if output.json {
            output.print_json(&json!({"host": host.id, "file": file, "text": text}))?;
            return Ok(ExitCode::SUCCESS);
        }
        output.print_note(format!("for {}", file.display()));
        output.print_text(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut known = KnownAddresses::read(&settings.account);
    let plan = host.plan_connect(scope, &base, &place.name, &entry, &known)?;
    if let ServerEntry::Address(url) = &entry {
        known.insert(&settings.account, url)?;
    }
    let change = plan.apply()?;
    report_config(host, scope, &plan.file, &change, true, output)?;
    if let (ServerEntry::Address(_), false) = (&entry, output.json) {
        output.print_note("if the server needs a token, add it to the host's own settings");
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn disconnect(
    host: &str,
    place: &HostPlaceArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let host = find_host(host)?;
    let has_config = |scope| host.config_file(scope, Path::new("")).is_some();
    let (scope, base) = resolve_place(place, has_config, settings)?;
    let known = KnownAddresses::read(&settings.account);
    let plan = host.plan_disconnect(scope, &base, &place.name, &known)?;
    let change = plan.apply()?;
    report_config(host, scope, &plan.file, &change, false, output)?;
    Ok(ExitCode::SUCCESS)
}

fn report_config(
    host: &Host,
    scope: HostScope,
    file: &Path,
    change: &ConfigChange,
    connected: bool,
    output: &Output,
) -> Result<()> {
    if output.json {
        let changed = *change != ConfigChange::Unchanged;
        output.print_json(&json!({
            "host": host.id, "scope": scope.as_str(), "file": file, "connected": connected,
            "changed": changed, "backup": match change {
                ConfigChange::Written { backup } => backup.clone(),
                ConfigChange::Unchanged => None,
            },
        }))?;
        return Ok(());
    }
    let word = match (change, connected) {
        (ConfigChange::Unchanged, true) => "is connected already:",
        (ConfigChange::Unchanged, false) => "was not connected:",
        (_, true) => "is connected:",
        (_, false) => "is disconnected:",
    };
    output.print_text(&format!("{} {word} {}\n", host.name, file.display()))?;
    if let ConfigChange::Written {
        backup: Some(backup),
    } = change
    {
        output.print_note(format!("as it was before: {}", backup.display()));
    }
    let has_project_file = host
        .config_file(HostScope::Project, Path::new(""))
        .is_some();
    if scope == HostScope::User && has_project_file {
        output.print_note(
            "this file is for all your projects; `--project` changes the one of this folder",
        );
    }
    if connected {
        output.print_note(format!("start {} anew, so that it reads this", host.name));
    }
    Ok(())
}

/// Lists the hosts with what can be done for each.
fn list_hosts(output: &Output) -> Result<ExitCode> {
    let is_some = |place: Option<PathBuf>| place.is_some();
    let rows = HOSTS.iter().map(|host| {
        let config = |scope| is_some(host.config_file(scope, Path::new("")));
        let skills = |scope| is_some(host.skills_folder(scope, Path::new("")));
        let connect = config(HostScope::Project) || config(HostScope::User);
        let link = skills(HostScope::Project) || skills(HostScope::User);
        (host, connect, link)
    });
    if output.json {
        let rows: Vec<_> = rows
            .map(|(host, connect, link)| {
                json!({"id": host.id, "name": host.name, "connect": connect, "link": link})
            })
            .collect();
        output.print_json(&json!({"hosts": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (host, connect, link) in rows {
        let ways = match (connect, link) {
            (true, true) => "connect, link",
            (true, false) => "connect",
            _ => "link",
        };
        let (id, name) = (host.id, host.name);
        let line = format!("{ID}{id:<16}{ID:#} {name:<32} {DIM}{ways}{DIM:#}\n");
        output.print_text(&line)?;
    }
    output.print_note("`repertoire connect HOST` writes a host's settings, `link` copies skills");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn link(
    target: &str,
    place: &HostPlaceArgs,
    only: &[IdPrefix],
    watch: bool,
    remove: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let (folder, host) = if Host::find(target).is_none() && target.contains(['/', '\\', '.']) {
        (PathBuf::from(target), None)
    } else {
        let host = find_host(target)?;
        let has_folder = |scope| host.skills_folder(scope, Path::new("")).is_some();
        let (scope, base) = resolve_place(place, has_folder, settings)?;
        let folder = host.writable_skills_folder(scope, &base)?;
        let folder =
            folder.ok_or_else(|| UsageError(format!("{} reads no folder of skills", host.name)))?;
        (folder, Some(host.id))
    };
    let mut links = SkillLinks::new(folder.clone(), only.to_vec(), settings.account.clone());
    if let Some(host) = host {
        links = links.for_host(host);
    }
    if remove {
        report_links(&folder, &links.remove_all()?, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let registry = open_registry(&[], settings, output)?;
    // Without the skill that was meant, every copy would be removed.
    if let Some(name) = unknown_prefixes(&registry, only).into_iter().next() {
        bail!(RegistryError::NotFound {
            what: "skill",
            name,
        });
    }
    if host.is_none()
        && let (Ok(local), Ok(full)) = (registry.local_store(), std::path::absolute(&folder))
    {
        // So that `verify` finds what is changed there.
        local.remember_linked_folder(&full.to_string_lossy())?;
    }
    let watching = watch.then(|| registry.start_watching()).transpose()?;
    let mut seen = registry.snapshot().seq();
    let sync = || {
        output.with_spinner("copying skills", || {
            interrupt::run_protected(|stopped| links.sync(&registry, stopped))
        })
    };
    report_links(&folder, &sync()?, output)?;
    if watching.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    output.print_note("following changes; Ctrl-C ends");
    loop {
        let events = registry.wait_events(seen, Duration::from_millis(500));
        if events.is_ok_and(|events| events.is_empty()) {
            continue;
        }
        seen = registry.snapshot().seq();
        let report = sync()?;
        if !report.changes.is_empty() {
            report_links(&folder, &report, output)?;
        }
    }
}

/// Returns what `--only` names and no skill is below.
pub(super) fn unknown_prefixes(registry: &Registry, only: &[IdPrefix]) -> Vec<String> {
    let snapshot = registry.snapshot();
    let is_unknown = |one: &&IdPrefix| {
        !snapshot
            .all_skills()
            .any(|(entry, _)| one.contains(&entry.id))
    };
    let unknown = only.iter().filter(is_unknown);
    unknown.map(|one| one.path().to_string()).collect()
}

fn report_links(folder: &Path, report: &LinkReport, output: &Output) -> Result<()> {
    if output.json {
        let changes = report.changes.iter();
        let changes: Vec<_> = changes
            .map(|(name, change)| json!({"name": name, "change": change}))
            .collect();
        let conflicts = report.conflicts.iter();
        let conflicts: Vec<_> = conflicts
            .map(|(name, reason)| json!({"name": name, "reason": reason}))
            .collect();
        output.print_json(&json!({
            "folder": folder, "changes": changes, "conflicts": conflicts,
            "unchanged": report.unchanged, "used_by": report.used_by,
        }))?;
        return Ok(());
    }
    for (name, change) in &report.changes {
        let sign = match change {
            LinkChange::Added => '+',
            LinkChange::Updated => '~',
            LinkChange::Removed => '-',
        };
        output.print_text(&format!("{sign} {ID}{}{ID:#}\n", terminal_safe(name)))?;
    }
    for (name, reason) in &report.conflicts {
        output.print_warning(format!("{}: left alone, {reason}", terminal_safe(name)));
    }
    if !report.used_by.is_empty() {
        output.print_note(format!(
            "the copies stay: they were made for {}, too",
            report.used_by.join(", ")
        ));
    }
    output.print_note(format!(
        "{}: {} changed, {} as before",
        folder.display(),
        format_count(report.changes.len(), "skill"),
        report.unchanged
    ));
    Ok(())
}
