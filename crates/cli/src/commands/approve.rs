//! `approve`: trusts skills from elsewhere, as they are now.

use std::{io::IsTerminal as _, process::ExitCode, sync::Arc};

use anyhow::{Result, bail};
use repertoire_app::{
    FileChange,
    install::{ApprovalView, approval_view},
};
use repertoire_core::text::terminal_safe;
use repertoire_registry::{Registry, SkillEntry, StoreScope, Trusted};
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

/// The most lines of changes that are shown of one skill.
const MAX_DIFF_LINES: usize = 200;

pub(crate) fn run(args: &ApproveArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let mut rows = Vec::new();
    if args.all {
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
        let entry = find_entry(&registry, &reference)?;
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
    if let Some(digest) = args.digest
        && digest != entry.metadata.digest()
    {
        return Err(digest_changed(entry, &digest.to_string()));
    }
    registry.approve_skill(entry)?;
    output.print_note(format!(
        "{} is approved with its {}; any change to them revokes the approval",
        entry.id,
        format_count(entry.metadata.files.len(), "file")
    ));
    Ok(json!({"skill": entry.id, "approved": true, "similar": similar}))
}

fn digest_changed(entry: &SkillEntry, asked: &str) -> anyhow::Error {
    anyhow::Error::from(repertoire_registry::Error::Changed {
        what: "skill",
        name: entry.id.to_string(),
    })
    .context(format!("its digest is not {asked}"))
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
    if let Some(digest) = args.digest
        && digest != view.digest
    {
        return Err(digest_changed(entry, &digest.to_string()));
    }
    if !output.json {
        print_view(&view, output)?;
    }
    let may_ask = !args.yes && !output.json && std::io::stdin().is_terminal();
    let refused = args.show || (may_ask && !output.ask_yes_no(&format!("approve {}?", view.id))?);
    if !refused {
        registry.approve_installed(scope, &[(view.id.clone(), view.digest)])?;
        output.print_note(format!(
            "{} is approved as {}; another content needs another approval",
            view.id, view.digest
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
    output.print_text(&format!("{ID}{}{ID:#}\n", view.id))?;
    let fact = |name: &str, value: &str| {
        output.print_text(&format!(
            "  {DIM}{name:<9}{DIM:#} {}\n",
            terminal_safe(value)
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
        let mut left = MAX_DIFF_LINES;
        for change in &view.changes {
            let word = match change.change {
                FileChange::Added => "added",
                FileChange::Removed => "removed",
                FileChange::Changed => "changed",
            };
            output.print_text(&format!(
                "  {word} {}\n",
                terminal_safe(change.path.as_str())
            ))?;
            let text = change.text.as_deref().unwrap_or_default();
            let lines: Vec<&str> = text.lines().take(left).collect();
            left -= lines.len();
            for line in lines {
                output.print_text(&format!("    {}\n", terminal_safe(line)))?;
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
