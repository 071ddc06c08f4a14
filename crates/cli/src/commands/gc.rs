//! `gc`, `backup` and `restore`: keeps the stores small and safe.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, bail};
use repertoire_app::{CleanupReport, clean_up};
use repertoire_registry::{
    Error, StoreScope,
    store::{
        RetentionPolicy, Store, WriteMode, read_backup_id, set_damaged_store_aside,
        system_skill_ids,
    },
};
use serde_json::{Value, json};

use super::open_registry;
use crate::{
    args::ScopeArg,
    failure::UsageError,
    output::{Output, format_count, format_size},
    settings::CliSettings,
};

pub(crate) fn run(
    retention: &RetentionPolicy,
    yes: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let measure = |mode| clean_up(&registry, &settings.account, retention, mode);
    let plan = output.with_spinner("looking for what can go", || measure(WriteMode::DryRun))?;
    let asked = !yes
        && !plan.is_empty()
        && !output.json
        && std::io::stdin().is_terminal()
        && std::io::stderr().is_terminal();
    if asked {
        print_report("would delete", &plan, output)?;
    }
    let apply = !plan.is_empty() && (yes || (asked && output.ask_yes_no("delete this?")?));
    let report = if apply {
        output.with_spinner("deleting", || measure(WriteMode::Commit))?
    } else {
        plan
    };
    if output.json {
        let stores: serde_json::Map<String, Value> = report
            .stores
            .iter()
            .map(|(scope, garbage)| ((*scope).to_owned(), json!(garbage)))
            .collect();
        output.print_json(&json!({
            "deleted": apply, "stores": stores, "cache_files": report.cache_files,
            "cache_bytes": report.cache_bytes,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if report.is_empty() {
        output.print_note("nothing to delete");
        return Ok(ExitCode::SUCCESS);
    }
    match (apply, asked) {
        (true, _) => print_report("deleted", &report, output)?,
        (false, true) => output.print_note("nothing was deleted"),
        (false, false) => {
            print_report("would delete", &report, output)?;
            output.print_note("nothing was deleted: add --yes to delete this");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_report(word: &str, report: &CleanupReport, output: &Output) -> Result<()> {
    for (scope, garbage) in &report.stores {
        let counts = [
            (garbage.traces, "trace"),
            (garbage.spans, "span"),
            (garbage.revisions, "superseded revision"),
            (garbage.registered_revisions, "superseded registered value"),
            (garbage.checkpoints, "value of a script"),
            (garbage.vectors, "unused embedding"),
            (garbage.uses, "old choice"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            let count = format_count(usize::try_from(count).unwrap_or(usize::MAX), what);
            output.print_text(&format!("{word}  {scope:<10} {count}\n"))?;
        }
        if garbage.files > 0 {
            let count = format_count(usize::try_from(garbage.files).unwrap_or(usize::MAX), "file");
            let size = format_size(garbage.file_bytes);
            output.print_text(&format!(
                "{word}  {scope:<10} {count} of old revisions, {size}\n"
            ))?;
        }
    }
    if report.cache_files > 0 {
        let files = usize::try_from(report.cache_files).unwrap_or(usize::MAX);
        let size = format_size(report.cache_bytes);
        output.print_text(&format!(
            "{word}  {:<10} {}, {size}\n",
            "cache",
            format_count(files, "file")
        ))?;
    }
    Ok(())
}

pub(crate) fn back_up(
    file: &Path,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let scope = asked.map_or(StoreScope::Account, Into::into);
    if scope == StoreScope::Workspace && registry.workspace().is_none() {
        bail!(Error::NoWorkspace);
    }
    let store = registry.store(scope)?;
    output.with_spinner("copying", || store.back_up(file))?;
    let bytes = file.metadata().map_or(0, |m| m.len());
    if output.json {
        output.print_json(&json!({"file": file, "scope": scope.as_str(), "bytes": bytes}))?;
    }
    output.print_note(format!(
        "wrote the {} store to {} ({}); keep it private: it holds skills, traces, approvals, servers \
         and hashed tokens",
        scope.as_str(),
        file.display(),
        format_size(bytes)
    ));
    if asked.is_none() && registry.store(StoreScope::Workspace).is_ok() {
        output
            .print_note("the workspace's store is a file of its own: --scope workspace copies it");
    }
    Ok(ExitCode::SUCCESS)
}

/// How a store is restored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestoreOptions {
    pub(crate) scope: Option<ScopeArg>,
    pub(crate) other_store: bool,
    pub(crate) yes: bool,
}

/// Asks whether a damaged store may be moved aside.
fn may_replace(store: &Path, output: &Output) -> Result<bool> {
    if output.json || !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    let question = format!("{} is damaged; move it aside?", store.display());
    output.ask_yes_no(&question)
}

/// Whether a store has more than the skills that come with the program.
fn has_own_content(store: &dyn Store) -> Result<bool> {
    if store.usage()?.state_values > 0 {
        return Ok(true);
    }
    let system = system_skill_ids()?;
    let skills = store.list_skills()?;
    Ok(skills.iter().any(|skill| !system.contains(&skill.path)))
}

pub(crate) fn restore(
    file: &Path,
    options: RestoreOptions,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    if !file.is_file() {
        bail!(Error::NotFound {
            what: "file",
            name: file.display().to_string(),
        });
    }
    // Before anything is moved.
    read_backup_id(file)?;
    let (registry, is_damaged) = match open_registry(&[], settings, output) {
        Ok(registry) => (registry, false),
        Err(error) => match error.downcast_ref::<Error>() {
            Some(Error::Corrupt { path, .. }) if options.yes || may_replace(path, output)? => {
                let kept = set_damaged_store_aside(path)?;
                output.print_note(format!("the damaged file is now {}", kept.display()));
                (open_registry(&[], settings, output)?, true)
            }
            _ => return Err(error),
        },
    };
    let asked = options.scope.map_or(StoreScope::Account, Into::into);
    let scope = settings
        .scope_preference()
        .resolve(&registry, Some(asked))?;
    let store = registry.store(scope)?;
    let from = output.with_spinner("checking the backup", || store.check_backup(file))?;
    let is_used = !is_damaged && has_own_content(&**store)?;
    if from != store.store_id()? && is_used && !options.other_store {
        bail!(UsageError(format!(
            "{} is a backup of another store than the {} one here: add --other-store to replace this \
             one by it",
            file.display(),
            scope.as_str()
        )));
    }
    let what = format!(
        "everything in the {} store, with approvals, trusted workspaces, servers and tokens, by {}",
        scope.as_str(),
        file.display()
    );
    if !options.yes && !is_damaged {
        if output.json || !std::io::stdin().is_terminal() {
            bail!(UsageError(format!(
                "this replaces {what}: add --yes to do it"
            )));
        }
        if !output.ask_yes_no(&format!("replace {what}?"))? {
            output.print_note("nothing was changed");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let kept: PathBuf = output.with_spinner("restoring", || store.restore(file))?;
    settings.clear_instructions_cache();
    if output.json {
        output.print_json(&json!({"file": file, "scope": scope.as_str(), "kept": kept}))?;
    }
    output.print_note(format!(
        "restored the {} store from {}: approvals, trusted workspaces, servers and tokens are those of \
         the backup; what was there before is in {}",
        scope.as_str(),
        file.display(),
        kept.display()
    ));
    Ok(ExitCode::SUCCESS)
}
