//! `approve`: trusts skills from elsewhere, as they are now.

use std::{io::IsTerminal as _, process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use repertoire_app::{
    FileChange, FileDiff, SkillQuery,
    install::{ApprovalView, approval_view},
};
use repertoire_core::{markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{QualifiedSkillId, Registry, SkillEntry, StoreScope, Trusted};
use serde_json::{Value, json};

use super::{
    add_remote::describe_finding, find_entry, open_registry, open_skill, report_look_alikes,
};
use crate::{
    args::ApproveArgs,
    failure::UsageError,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

/// The most lines of changes that are shown of one file.
const MAX_DIFF_LINES: usize = 200;

pub(crate) fn run(args: &ApproveArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let mut rows = Vec::new();
    if args.all {
        if !args.yes && !args.show && (output.json || !std::io::stdin().is_terminal()) {
            bail!(UsageError(
                "this would approve all of them: add --yes, or look with --show".to_owned()
            ));
        }
        let registry = open_registry(&[], settings, output)?;
        let snapshot = registry.snapshot();
        for (entry, _) in snapshot.all_skills() {
            if entry.trusted == Trusted::No && registry.installed_entry(entry)?.is_some() {
                rows.push(approve_entry(&registry, entry, args, settings, output)?);
            }
        }
        if rows.is_empty() {
            output.print_note("every installed skill is approved");
        }
    }
    for skill in &args.skills {
        let (registry, reference) = open_skill(skill, settings, output)?;
        let entry = find_meant(&registry, skill, &reference)?;
        rows.push(approve_entry(&registry, &entry, args, settings, output)?);
    }
    if output.json {
        let answer = match rows.as_mut_slice() {
            [one] if !args.all => one.take(),
            _ => json!({"skills": rows}),
        };
        output.print_json(&answer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the skill that is meant: if the name says no origin, the one that waits for approval.
fn find_meant(
    registry: &Registry,
    query: &SkillQuery,
    reference: &QualifiedSkillId,
) -> Result<Arc<SkillEntry>> {
    let names_origin = matches!(query, SkillQuery::Id(id) if id.origin.is_some());
    if !names_origin {
        let snapshot = registry.snapshot();
        for (entry, _) in snapshot.all_skills() {
            if entry.id == reference.id
                && entry.trusted == Trusted::No
                && registry.installed_entry(entry)?.is_some()
            {
                return Ok(entry.clone());
            }
        }
    }
    find_entry(registry, reference)
}

fn approve_entry(
    registry: &Arc<Registry>,
    entry: &SkillEntry,
    args: &ApproveArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<Value> {
    settings.clear_instructions_cache();
    if args.revoke {
        if !registry.revoke_approval(entry)? {
            bail!(UsageError(format!("{} was not approved", entry.id)));
        }
        output.print_note(format!("{} is no longer approved", entry.id));
        return Ok(json!({"skill": entry.id, "approved": false}));
    }
    if let Some((scope, _)) = registry.installed_entry(entry)? {
        return approve_installed(registry, scope, entry, args, output);
    }
    if args.show {
        bail!(UsageError(format!(
            "look at it with `repertoire show {}`",
            entry.id
        )));
    }
    let similar = report_look_alikes(registry, std::slice::from_ref(&entry.id), output);
    let found = entry.metadata.digest();
    if let Some(digest) = args.digest
        && digest != found
    {
        return Err(digest_changed(
            entry,
            &digest.to_string(),
            &found.to_string(),
        ));
    }
    registry.approve_skill(entry)?;
    output.print_note(format!(
        "{} is approved with its {}; any change to them revokes the approval",
        entry.id,
        format_count(entry.metadata.files.len(), "file")
    ));
    Ok(json!({"skill": entry.id, "approved": true, "similar": similar}))
}

fn digest_changed(entry: &SkillEntry, asked: &str, found: &str) -> anyhow::Error {
    UsageError(format!(
        "{} has the digest {found}, not {asked}: look at it again with `repertoire approve {} --show`",
        entry.id, entry.id
    ))
    .into()
}

/// Shows an installed skill and approves exactly what was shown.
fn approve_installed(
    registry: &Arc<Registry>,
    scope: StoreScope,
    entry: &SkillEntry,
    args: &ApproveArgs,
    output: &Output,
) -> Result<Value> {
    let Some(view) = approval_view(registry, scope, &entry.id)? else {
        bail!(UsageError(format!("{} was removed meanwhile", entry.id)));
    };
    let found = view.digest;
    if let Some(digest) = args.digest
        && digest != found
    {
        return Err(digest_changed(
            entry,
            &digest.to_string(),
            &found.to_string(),
        ));
    }
    if !output.json {
        print_view(&view, output)?;
    }
    let may_ask = !args.yes && !output.json && std::io::stdin().is_terminal();
    let refused = args.show || (may_ask && !output.ask_yes_no(&format!("approve {}?", view.id))?);
    if !refused {
        registry.approve_installed(scope, &[(view.id.clone(), view.digest)])?;
        output.print_note(format!(
            "{}:{} is approved as {}; another content needs another approval",
            view.scope.as_str(),
            view.id,
            view.digest
        ));
    }
    let findings: Vec<String> = view.findings.iter().map(describe_finding).collect();
    let changes: Vec<Value> = view
        .changes
        .iter()
        .map(|change| json!({"path": change.path, "change": change.change}))
        .collect();
    Ok(json!({
        "skill": view.id, "approved": !refused || view.is_approved, "digest": view.digest,
        "source": view.from.source, "resolved": view.from.resolved, "pin": view.from.pin,
        "signer": view.from.signer, "has_earlier": view.has_earlier, "changes": changes,
        "findings": findings,
        "similar": view.similar.iter().map(|one| one.known.to_string()).collect::<Vec<_>>(),
    }))
}

fn print_view(view: &ApprovalView, output: &Output) -> Result<()> {
    output.print_text(&format!("{ID}{}:{}{ID:#}\n", view.scope.as_str(), view.id))?;
    let fact = |name: &str, value: &str| {
        output.print_text(&format!(
            "  {DIM}{name:<9}{DIM:#} {}\n",
            terminal_safe(&to_single_line(value))
        ))
    };
    fact("source", &view.from.source)?;
    fact("resolved", &view.from.resolved)?;
    fact("pin", &view.from.pin)?;
    fact("digest", &view.digest.to_string())?;
    match &view.from.signer {
        Some(signer) => fact("signer", &signer.to_string())?,
        None => fact("signer", "unsigned")?,
    }
    for one in &view.similar {
        output.print_warning(format!(
            "{} looks like {}, which you have: {}",
            one.name,
            one.known,
            one.likeness.describe()
        ));
    }
    for finding in view.findings.iter().take(20) {
        output.print_warning(describe_finding(finding));
    }
    if view.is_approved {
        fact("approved", "as it is")?;
    } else if view.has_earlier {
        let count = format_count(view.changes.len(), "file");
        fact("changes", &format!("{count} since you last approved it"))?;
        // The document decides most, so it is shown first.
        let mut changes: Vec<&FileDiff> = view.changes.iter().collect();
        changes.sort_by_key(|change| !change.path.is_document());
        for change in changes {
            let word = match change.change {
                FileChange::Added => "added",
                FileChange::Removed => "removed",
                FileChange::Changed => "changed",
            };
            output.print_text(&format!(
                "  {word} {}\n",
                terminal_safe(change.path.as_str())
            ))?;
            let Some(text) = &change.text else {
                output.print_text("    (no text that can be compared)\n")?;
                continue;
            };
            for line in text.lines().take(MAX_DIFF_LINES) {
                output.print_text(&format!("    {}\n", terminal_safe(line)))?;
            }
            let more = text.lines().count().saturating_sub(MAX_DIFF_LINES);
            if more > 0 {
                output.print_warning(format!(
                    "{}: {} more are not shown here",
                    terminal_safe(change.path.as_str()),
                    format_count(more, "line")
                ));
            }
        }
    } else {
        let files = format_count(view.from.files.len(), "file");
        fact(
            "changes",
            &format!("never approved: all of its {files} are new"),
        )?;
    }
    Ok(())
}
