//! `install`, `update`, `outdated`, `verify`, `why` and `migrate`: skills that came from elsewhere.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Result, bail};
use repertoire_app::{
    HOSTS, HostScope, SkillLinks,
    install::{
        FetchOptions, InstallMode, Installer, LockedSkill, ProjectOwner, SkillChange,
        SkillConflict, SkillProject, SkillState, UpdateRequest, UpdatedSkill, find_project,
        has_foreign_lock,
    },
};
use repertoire_core::{SkillId, markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{
    Error as RegistryError, Registry, StoreScope, Trusted,
    store::{Account, WriteMode},
    trust,
};
use serde_json::{Value, json};

use super::open_registry;
use crate::{
    args::{InstallArgs, InstalledArgs, MigrateArgs, ScopeArg, UpdateArgs, VerifyArgs},
    failure::{EXIT_PROBLEMS, UsageError},
    output::{DIM, ID, Output, format_count, format_size},
    settings::CliSettings,
};

/// Returns the folder of the project that a command is about: the workspace, or the nearest folder
/// with a `repertoire.toml`.
fn project_folder(settings: &CliSettings) -> Option<PathBuf> {
    if let Some(workspace) = &settings.workspace {
        return Some(workspace.clone());
    }
    let here = std::env::current_dir().ok()?;
    let found = find_project(&here)?;
    let is_account = found.canonicalize().ok() == settings.account.canonicalize().ok();
    (!is_account).then_some(found)
}

/// Decides between the project and the account: within a project its skills are meant, whether or not
/// its file is there.
fn choose_scope(asked: Option<ScopeArg>, settings: &CliSettings) -> StoreScope {
    match asked {
        Some(scope) => scope.into(),
        None if project_folder(settings).is_some() => StoreScope::Workspace,
        None => StoreScope::Account,
    }
}

/// Opens the registry with the project as its workspace.
fn open_project(
    scope: StoreScope,
    settings: &CliSettings,
    output: &Output,
) -> Result<Arc<Registry>> {
    let mut with_project = settings.sources.clone();
    if scope == StoreScope::Workspace && with_project.workspace.is_none() {
        with_project.workspace = project_folder(settings);
    }
    super::open_sources(with_project, settings, output)
}

/// Prepares work on the installed skills of a scope.
pub(super) fn open_installer(
    asked: Option<ScopeArg>,
    options: FetchOptions,
    settings: &CliSettings,
    output: &Output,
) -> Result<Installer> {
    let scope = choose_scope(asked, settings);
    if scope == StoreScope::Workspace {
        require_trust(settings, output)?;
    }
    let registry = open_project(scope, settings, output)?;
    Ok(Installer::open(
        registry,
        scope,
        &settings.account,
        options,
    )?)
}

/// Refuses a project that is not trusted, after listing what it names.
fn require_trust(settings: &CliSettings, output: &Output) -> Result<()> {
    let Some(folder) = project_folder(settings) else {
        return Ok(());
    };
    let local = Account::open(&settings.account)?.local;
    if local.workspace_trust(&folder)? == Trusted::Yes {
        return Ok(());
    }
    let project = SkillProject::read(&folder, ProjectOwner::Project)?;
    if !output.json {
        let count = project.wanted().count();
        output.print_note(format!(
            "{} is not trusted; it names {}:",
            folder.display(),
            format_count(count, "skill")
        ));
        for one in project.wanted().take(100) {
            output.print_note(format!("  {}  {}", one.id, terminal_safe(&one.source)));
        }
    }
    if !output.json {
        output.print_note("`repertoire install --trust` trusts it and installs them, unapproved");
    }
    Err(RegistryError::Untrusted(folder).into())
}

/// Trusts a project, making it a workspace if it is none.
pub(super) fn trust_project(folder: &Path, settings: &CliSettings) -> Result<()> {
    let own = folder.join(trust::WORKSPACE_FOLDER);
    if !own.is_dir() {
        std::fs::create_dir(&own)?;
    }
    Account::open(&settings.account)?
        .local
        .trust_workspace(folder)?;
    repertoire_app::ignore_store(folder)?;
    settings.clear_instructions_cache();
    Ok(())
}

pub(crate) fn install(
    args: &InstallArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let options = args.source.fetch_options();
    let opened = open_installer(args.scope, options.clone(), settings, output);
    let mut installer = match opened {
        Err(error) => {
            let Some(RegistryError::Untrusted(folder)) = error.downcast_ref() else {
                return Err(error);
            };
            let folder = folder.clone();
            let may_ask = !output.json && std::io::stdin().is_terminal();
            let question = "trust this project and install them?";
            let may_trust = args.trust || (may_ask && output.ask_yes_no(question)?);
            if !may_trust {
                return Err(error);
            }
            trust_project(&folder, settings)?;
            output.print_note(format!("{} is trusted", folder.display()));
            open_installer(args.scope, options, settings, output)?
        }
        opened => opened?,
    };
    let mode = if args.frozen {
        InstallMode::Frozen
    } else {
        InstallMode::Resolve
    };
    let report = output.with_spinner("installing skills", || installer.install(mode))?;
    settings.clear_instructions_cache();
    if output.json {
        let skills: Vec<Value> = report
            .skills
            .iter()
            .map(|(id, change)| {
                let locked = installer.lock().get(id);
                json!({
                    "id": id, "change": change, "digest": locked.map(|l| l.digest),
                    "pin": locked.map(|l| l.pin.to_string()),
                    "from_cache": report.from_cache.contains(id),
                })
            })
            .collect();
        output.print_json(&json!({
            "scope": installer.scope().as_str(), "skills": skills,
            "unapproved": report.unapproved, "edited": report.edited,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let changed = report
        .skills
        .iter()
        .filter(|(_, change)| *change != SkillChange::Unchanged);
    for (id, change) in changed {
        print_change(id, *change, installer.lock().get(id), output)?;
    }
    let unchanged = report
        .skills
        .iter()
        .filter(|(_, change)| *change == SkillChange::Unchanged)
        .count();
    let place = installer.project().path();
    if unchanged > 0 || report.skills.is_empty() {
        let count = format_count(unchanged, "skill");
        output.print_note(format!("{count} of {} as locked", place.display()));
    }
    if !report.edited.is_empty() {
        let names: Vec<&str> = report.edited.iter().map(SkillId::as_str).collect();
        output.print_note(format!("changed by you, and left so: {}", names.join(", ")));
    }
    if !report.from_cache.is_empty() {
        output.print_note(format!(
            "{} from the cache of earlier downloads, without a request",
            format_count(report.from_cache.len(), "skill")
        ));
    }
    note_unapproved(&report.unapproved, output);
    Ok(ExitCode::SUCCESS)
}

fn print_change(
    id: &SkillId,
    change: SkillChange,
    locked: Option<&LockedSkill>,
    output: &Output,
) -> Result<()> {
    let word = match change {
        SkillChange::Added => "added",
        SkillChange::Updated => "updated",
        SkillChange::Merged => "updated, merged with your changes",
        SkillChange::Removed => "removed",
        SkillChange::Unchanged => "unchanged",
    };
    let pin = locked.map(short_pin).unwrap_or_default();
    output.print_text(&format!("{ID}{id}{ID:#}  {word}  {DIM}{pin}{DIM:#}\n"))?;
    Ok(())
}

/// Returns a version or the beginning of a pin, for people.
pub(super) fn short_pin(locked: &LockedSkill) -> String {
    let pin = locked.pin.to_string();
    let (kind, value) = pin.split_once(':').unwrap_or_default();
    let value = value.rsplit(':').next().unwrap_or_default();
    let short = format!("{kind}:{}", value.get(..12).unwrap_or(value));
    match &locked.version {
        Some(version) => format!("{} {short}", terminal_safe(version)),
        None => short,
    }
}

fn note_unapproved(ids: &[SkillId], output: &Output) {
    if ids.is_empty() {
        return;
    }
    let names: Vec<&str> = ids.iter().take(5).map(SkillId::as_str).collect();
    let more = if ids.len() > 5 { ", …" } else { "" };
    output.print_note(format!(
        "{} not approved ({}{more}): they can be read, and neither run nor override; `repertoire \
         approve --all` shows and approves them",
        format_count(ids.len(), "skill"),
        names.join(", ")
    ));
}

pub(crate) fn update(
    args: &UpdateArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let options = args.source.fetch_options();
    let mut installer = open_installer(args.scope, options, settings, output)?;
    let request = UpdateRequest {
        skills: args.skills.iter().cloned().collect(),
        choices: args.choices(),
        abort: args.abort,
        dry_run: args.dry_run,
    };
    let report = output.with_spinner("updating skills", || installer.update(&request))?;
    settings.clear_instructions_cache();
    if args.abort {
        if output.json {
            output.print_json(&json!({"aborted": report.resumed}))?;
        }
        output.print_note(if report.resumed {
            "the update that waited for decisions is forgotten; the skills are as they were"
        } else {
            "no update waited for decisions"
        });
        return Ok(ExitCode::SUCCESS);
    }
    let failed = !report.failed.is_empty() || !report.conflicts.is_empty();
    if output.json {
        let changes: Vec<Value> = report
            .changes
            .iter()
            .map(|one| {
                json!({
                    "id": one.id, "change": one.change,
                    "before": one.before.as_ref().map(|before| before.pin.to_string()),
                    "pin": one.after.pin.to_string(), "digest": one.after.digest,
                })
            })
            .collect();
        let errors: Vec<Value> = report
            .failed
            .iter()
            .map(
                |(id, error)| json!({"id": id, "code": error.code(), "message": error.to_string()}),
            )
            .collect();
        output.print_json(&json!({
            "dry_run": args.dry_run, "skills": changes, "conflicts": report.conflicts,
            "decided": report.decided,
            "failed": errors, "unapproved": report.unapproved,
        }))?;
    } else {
        let is_changed = |one: &&UpdatedSkill| one.change != SkillChange::Unchanged;
        let changed: Vec<&UpdatedSkill> = report.changes.iter().filter(is_changed).collect();
        if args.dry_run && !changed.is_empty() {
            output.print_note("nothing is changed; an update would be:");
        }
        for one in &changed {
            print_change(&one.id, one.change, Some(&one.after), output)?;
        }
        let count = report.changes.len() - changed.len();
        let is_all = changed.is_empty() && report.failed.is_empty() && report.conflicts.is_empty();
        if count > 0 || is_all {
            let place = installer.project().path();
            let count = format_count(count, "skill");
            output.print_note(format!("{count} of {} up to date", place.display()));
        }
        if report.decided > 0 {
            output.print_note(format!(
                "{} decided so far",
                format_count(report.decided, "file")
            ));
        }
        for (id, error) in &report.failed {
            let text = error.to_string();
            let text = terminal_safe(&text);
            // Many errors begin with the skill.
            let names_it = text.starts_with(id.as_str());
            output.print_warning(if names_it {
                text.into_owned()
            } else {
                format!("{id}: {text}")
            });
        }
        print_conflicts(&report.conflicts, output)?;
        note_unapproved(&report.unapproved, output);
    }
    Ok(if failed {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

/// Shows what has to be decided, with all three states of the lines.
fn print_conflicts(conflicts: &[SkillConflict], output: &Output) -> Result<()> {
    if conflicts.is_empty() {
        return Ok(());
    }
    for conflict in conflicts {
        for file in &conflict.files {
            let (id, path) = (&conflict.id, &file.path);
            output.print_text(&format!("{ID}{id}:{path}{ID:#}  {}\n", file.reason))?;
            if let Some(marked) = &file.marked {
                let shown: Vec<&str> = marked.lines().take(80).collect();
                output.print_text(&format!("{}\n", terminal_safe(&shown.join("\n"))))?;
            }
        }
    }
    let example = conflicts
        .iter()
        .find_map(|one| Some(format!("{}:{}", one.id, one.files.first()?.path)));
    let example = example.unwrap_or_default();
    output.print_warning(format!(
        "nothing was changed: decide for each file with `repertoire update --take-remote {example}` or \
         `--keep-local {example}`; `repertoire update --abort` forgets this update"
    ));
    Ok(())
}

pub(crate) fn outdated(
    args: &InstalledArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let options = args.source.fetch_options();
    let installer = open_installer(args.scope, options, settings, output)?;
    let rows = output.with_spinner("asking sources", || installer.outdated())?;
    let found = rows.iter().filter(|row| row.is_outdated).count();
    let failed = rows.iter().filter(|row| row.error.is_some()).count();
    if output.json {
        output.print_json(&json!({"skills": rows}))?;
    } else {
        for row in &rows {
            match (&row.error, &row.available) {
                (Some(error), _) => {
                    output.print_warning(format!("{}: {}", row.id, terminal_safe(error)));
                }
                (None, Some(available)) if row.is_outdated => output.print_text(&format!(
                    "{ID}{}{ID:#}  {DIM}{}{DIM:#} → {}\n",
                    row.id,
                    terminal_safe(&row.installed),
                    terminal_safe(available)
                ))?,
                _ => {}
            }
        }
        match (found, rows.len() - failed) {
            (0, 0) if rows.is_empty() => output.print_note("nothing is installed from elsewhere"),
            (0, asked) => output.print_note(format!("{} up to date", format_count(asked, "skill"))),
            (found, _) => output.print_note(format!(
                "{} outdated: `repertoire update` (it refuses tags that moved, unless --allow-moved)",
                format_count(found, "skill")
            )),
        }
    }
    Ok(if found + failed > 0 {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

pub(crate) fn verify(
    args: &VerifyArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let installer = open_installer(args.scope, FetchOptions::default(), settings, output)?;
    let report = output.with_spinner("reading skills", || installer.verify())?;
    let copies = changed_copies(installer.registry(), settings);
    let is_problem = |state: &SkillState| match state {
        SkillState::Intact => false,
        SkillState::Edited { .. } => !args.edits,
        _ => true,
    };
    let problems = report
        .skills
        .iter()
        .filter(|one| is_problem(&one.state))
        .count();
    if output.json {
        output.print_json(&json!({
            "skills": report.skills, "files": report.files, "bytes": report.bytes,
            "copies": copies, "ok": problems == 0 && copies.is_empty(),
        }))?;
    } else {
        for one in &report.skills {
            let text = match &one.state {
                SkillState::Intact => continue,
                SkillState::Edited { files } if args.edits => {
                    format!("changed by you: {}", files.join(", "))
                }
                SkillState::Edited { files } => format!(
                    "changed since it was installed: {} (--edits accepts that)",
                    files.join(", ")
                ),
                SkillState::Damaged { files } => {
                    format!("damaged: {}", files.join(", "))
                }
                SkillState::NotLocked { reason } => format!("not what is locked: {reason}"),
                SkillState::Missing => "locked and not installed".to_owned(),
            };
            output.print_text(&format!("{ID}{}{ID:#}  {}\n", one.id, terminal_safe(&text)))?;
        }
        for copy in &copies {
            output.print_text(&format!(
                "{}  changed in a host's folder\n",
                terminal_safe(&copy.to_string_lossy())
            ))?;
        }
        let intact = report.skills.len() - problems;
        output.print_note(format!(
            "{} of {} intact; {} read, {}",
            intact,
            format_count(report.skills.len(), "skill"),
            format_count(report.files, "file"),
            format_size(report.bytes)
        ));
    }
    Ok(if problems > 0 || !copies.is_empty() {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns the files of linked copies that differ from what was copied.
fn changed_copies(registry: &Registry, settings: &CliSettings) -> Vec<PathBuf> {
    let project = project_folder(settings).or_else(|| std::env::current_dir().ok());
    let home = std::env::home_dir();
    let places = [(HostScope::Project, project), (HostScope::User, home)];
    let mut folders: Vec<PathBuf> = Vec::new();
    for (scope, base) in places {
        let Some(base) = base else { continue };
        folders.extend(
            HOSTS
                .iter()
                .filter_map(|host| host.skills_folder(scope, &base)),
        );
    }
    if let Ok(local) = registry.local_store() {
        folders.extend(local.linked_folders().unwrap_or_default());
    }
    folders.sort();
    folders.dedup();
    let mut changed = Vec::new();
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        let links = SkillLinks::new(folder, Vec::new(), settings.account.clone());
        // A record of another account names nothing of ours.
        changed.extend(links.changed_files(registry).unwrap_or_default());
    }
    changed
}

pub(crate) fn why(
    skill: &SkillId,
    scope: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let installer = open_installer(scope, FetchOptions::default(), settings, output)?;
    let lines = installer.why(skill)?;
    let locked = installer.lock().get(skill);
    if output.json {
        output.print_json(&json!({
            "id": skill, "reasons": lines, "source": locked.map(|l| &l.source),
            "resolved": locked.map(|l| &l.resolved), "pin": locked.map(|l| l.pin.to_string()),
            "digest": locked.map(|l| l.digest), "signer": locked.map(|l| &l.signer),
            "explicit": locked.map(|l| l.explicit), "required_by": locked.map(|l| &l.required_by),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_text(&format!("{ID}{skill}{ID:#}\n"))?;
    for line in lines {
        output.print_text(&format!("  {}\n", terminal_safe(&line)))?;
    }
    if let Some(locked) = locked {
        let fact = |name: &str, value: &str| {
            output.print_text(&format!(
                "  {DIM}{name:<9}{DIM:#} {}\n",
                terminal_safe(&to_single_line(value))
            ))
        };
        fact("resolved", &locked.resolved)?;
        fact("pin", &locked.pin.to_string())?;
        fact("digest", &locked.digest.to_string())?;
        match &locked.signer {
            Some(signer) => fact("signer", &signer.to_string())?,
            None => fact("signer", "unsigned")?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn migrate(
    args: &MigrateArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let scope = if let Some(scope) = args.installed.scope {
        scope.into()
    } else {
        let preference = settings.scope_preference();
        preference.resolve(&*open_registry(&[], settings, output)?, None)?
    };
    let here = std::env::current_dir()?;
    let folder = match (&args.folder, scope) {
        (Some(folder), _) => folder.clone(),
        (None, _) if has_foreign_lock(&here) => here,
        (None, StoreScope::Workspace) => project_folder(settings).unwrap_or(here),
        (None, StoreScope::Account) => match std::env::home_dir() {
            Some(home) => home,
            None => bail!(UsageError(
                "no home folder is known: name a folder".to_owned()
            )),
        },
    };
    repertoire_app::require_folder(&folder)?;
    let asked = match scope {
        StoreScope::Workspace => ScopeArg::Workspace,
        StoreScope::Account => ScopeArg::Account,
    };
    let options = args.installed.source.fetch_options();
    let mut installer = open_installer(Some(asked), options, settings, output)?;
    let mode = if args.dry_run {
        WriteMode::DryRun
    } else {
        WriteMode::Commit
    };
    let report = output.with_spinner("adopting skills", || installer.migrate(&folder, mode))?;
    if report.locks.is_empty() {
        bail!(RegistryError::NotFound {
            what: "lock of another tool",
            name: folder.display().to_string(),
        });
    }
    let adopted = report.skills.iter().filter(|one| one.is_adopted).count();
    if output.json {
        output.print_json(&json!({
            "locks": report.locks, "dry_run": args.dry_run, "skills": report.skills,
        }))?;
    } else {
        for one in &report.skills {
            let word = match (one.is_adopted, one.is_verified) {
                (false, _) => "left out",
                (true, Some(true)) => "adopted, as its lock says",
                (true, Some(false)) => "adopted as it is",
                (true, None) => "adopted",
            };
            output.print_text(&format!(
                "{ID}{}{ID:#}  {word}  {DIM}{} {}{DIM:#}\n",
                terminal_safe(&one.name),
                one.tool,
                terminal_safe(&one.source)
            ))?;
            if let Some(note) = &one.note {
                output.print_note(format!("  {}", terminal_safe(note)));
            }
        }
        let word = if args.dry_run {
            "would be adopted"
        } else {
            "adopted"
        };
        output.print_note(format!("{} {word}", format_count(adopted, "skill")));
        if !args.dry_run {
            note_unapproved(&installer.unapproved()?, output);
        }
    }
    Ok(if adopted < report.skills.len() {
        ExitCode::from(EXIT_PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}
