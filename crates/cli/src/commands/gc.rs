//! `gc`, `backup` and `restore`: keeps the stores small and safe.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use repertoire_app::{CleanupReport, clean_up};
use repertoire_registry::store::{RetentionPolicy, WriteMode};
use serde_json::json;

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
    let apply = !plan.is_empty() && (yes || confirm(&plan, output)?);
    let report = if apply {
        output.with_spinner("deleting", || measure(WriteMode::Commit))?
    } else {
        plan
    };
    if output.json {
        output.print_json(&json!({"deleted": apply, "report": report}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if report.is_empty() {
        output.print_note("nothing to delete");
        return Ok(ExitCode::SUCCESS);
    }
    print_report(&report, output)?;
    output.print_note(if apply {
        "deleted"
    } else {
        "nothing was deleted: add --yes to delete this"
    });
    Ok(ExitCode::SUCCESS)
}

fn print_report(report: &CleanupReport, output: &Output) -> Result<()> {
    for (scope, garbage) in &report.stores {
        let counts = [
            (garbage.traces, "trace"),
            (garbage.revisions, "superseded revision"),
            (garbage.registered_revisions, "superseded registered value"),
            (garbage.checkpoints, "value of a script"),
            (garbage.vectors, "unused embedding"),
        ];
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            let count = format_count(usize::try_from(count).unwrap_or(usize::MAX), what);
            output.print_text(&format!("{scope:<10} {count}\n"))?;
        }
        if garbage.files > 0 {
            let count = format_count(usize::try_from(garbage.files).unwrap_or(usize::MAX), "file");
            let size = format_size(garbage.file_bytes);
            output.print_text(&format!("{scope:<10} {count} of old revisions, {size}\n"))?;
        }
    }
    if report.cache_files > 0 {
        let files = usize::try_from(report.cache_files).unwrap_or(usize::MAX);
        let size = format_size(report.cache_bytes);
        output.print_text(&format!(
            "{:<10} {}, {size}\n",
            "cache",
            format_count(files, "file")
        ))?;
    }
    Ok(())
}

/// Shows what would go and asks; without a terminal the answer is no.
fn confirm(plan: &CleanupReport, output: &Output) -> Result<bool> {
    if output.json || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Ok(false);
    }
    print_report(plan, output)?;
    output.ask_yes_no("delete this?")
}

pub(crate) fn back_up(
    file: &Path,
    asked: Option<ScopeArg>,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let scope = asked.map_or(repertoire_registry::StoreScope::Account, Into::into);
    let store = registry.store(scope)?;
    output.with_spinner("copying", || store.back_up(file))?;
    let bytes = file.metadata().map_or(0, |m| m.len());
    if output.json {
        output.print_json(&json!({"file": file, "scope": scope.as_str(), "bytes": bytes}))?;
    }
    output.print_note(format!(
        "wrote the {} store to {} ({}); keep it private: it holds skills, traces and approvals",
        scope.as_str(),
        file.display(),
        format_size(bytes)
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn restore(
    file: &Path,
    asked: Option<ScopeArg>,
    yes: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let asked = asked.map_or(repertoire_registry::StoreScope::Account, Into::into);
    let scope = settings
        .scope_preference()
        .resolve(&registry, Some(asked))?;
    if !file.is_file() {
        anyhow::bail!(UsageError(format!("{} is not a file", file.display())));
    }
    let question = format!(
        "replace everything in the {} store, approvals and tokens included, by {}?",
        scope.as_str(),
        file.display()
    );
    if !yes {
        let asks = !output.json && std::io::stdin().is_terminal();
        if !asks {
            anyhow::bail!(UsageError(format!("{question} Add --yes to do it.")));
        }
        if !output.ask_yes_no(&question)? {
            output.print_note("nothing was changed");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let store = registry.store(scope)?;
    let kept: PathBuf = output.with_spinner("restoring", || store.restore(file))?;
    settings.clear_instructions_cache();
    if output.json {
        output.print_json(&json!({"file": file, "scope": scope.as_str(), "kept": kept}))?;
    }
    output.print_note(format!(
        "restored the {} store from {}; what was there before is in {}",
        scope.as_str(),
        file.display(),
        kept.display()
    ));
    Ok(ExitCode::SUCCESS)
}
