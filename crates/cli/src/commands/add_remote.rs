//! `add` for sources elsewhere: looks, pins, stores, and approves what it showed.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_app::{
    install::{AddRequest, AddedSkill, FetchOptions, Installer, SkillChange, SourceOffer},
    lint_files,
};
use repertoire_core::{
    lint::{LintFinding, LintSeverity},
    markdown::{to_single_line, truncate_text},
    text::terminal_safe,
};
use repertoire_registry::{
    StoreScope,
    store::{NewSkill, WriteMode},
};
use repertoire_remote::SkillSource;
use serde_json::{Value, json};

use super::{
    add::store_skills,
    install::{open_installer, short_pin},
    open_registry, report_look_alikes,
};
use crate::{
    args::{AddArgs, ScopeArg},
    failure::UsageError,
    output::{DIM, ID, Output, format_count},
    settings::CliSettings,
};

/// The most findings that are shown of one skill.
const MAX_FINDINGS: usize = 10;
/// The most characters of a description in a list.
const MAX_ABOUT_CHARS: usize = 120;

/// Returns the scope that skills are added to.
fn choose_scope(args: &AddArgs, settings: &CliSettings, output: &Output) -> Result<ScopeArg> {
    let registry = open_registry(&[], settings, output)?;
    let asked = args.write.scope.map(Into::into);
    let scope = settings.scope_preference().resolve(&registry, asked)?;
    Ok(match scope {
        StoreScope::Workspace => ScopeArg::Workspace,
        StoreScope::Account => ScopeArg::Account,
    })
}

/// Shows what sources have, and adds nothing.
pub(crate) fn list(
    sources: &[SkillSource],
    args: &AddArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    // Looking needs no project and no trust.
    let options = args.source.fetch_options();
    let installer = open_installer(Some(ScopeArg::Account), options, settings, output)?;
    let mut listed = Vec::new();
    for source in sources {
        let offer = output.with_spinner("asking the source", || installer.look(source))?;
        if output.json {
            listed.push(offer_to_json(source, &offer));
        } else {
            print_offer(&offer, output)?;
        }
    }
    if output.json {
        output.print_json(&json!({"sources": listed}))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn offer_to_json(source: &SkillSource, offer: &SourceOffer) -> Value {
    let skills: Vec<Value> = offer
        .skills
        .iter()
        .map(|skill| {
            json!({
                "name": skill.name, "description": skill.description, "folder": skill.folder,
                "version": skill.version, "plugin": skill.plugin,
            })
        })
        .collect();
    let problems: Vec<Value> = offer
        .problems
        .iter()
        .map(|problem| json!({"subject": problem.subject, "reason": problem.reason}))
        .collect();
    json!({
        "source": source.as_str(), "location": offer.location, "skills": skills,
        "problems": problems,
    })
}

fn print_offer(offer: &SourceOffer, output: &Output) -> Result<()> {
    let location = terminal_safe(&offer.location).into_owned();
    output.print_note(format!(
        "{location} has {}",
        format_count(offer.skills.len(), "skill")
    ));
    for skill in &offer.skills {
        let about = truncate_text(&to_single_line(&skill.description), MAX_ABOUT_CHARS);
        let version = terminal_safe(skill.version.as_deref().unwrap_or_default());
        output.print_text(&format!(
            "{ID}{}{ID:#}  {}  {DIM}{version}{DIM:#}\n",
            terminal_safe(&skill.name),
            terminal_safe(&about)
        ))?;
    }
    warn_problems(offer, output);
    Ok(())
}

fn warn_problems(offer: &SourceOffer, output: &Output) {
    for problem in offer.problems.iter().take(20) {
        let text = format!("{}: {}", problem.subject, problem.reason);
        output.print_warning(format!("left out: {}", terminal_safe(&text)));
    }
}

/// Adds skills of sources elsewhere.
pub(crate) fn run(
    sources: &[SkillSource],
    args: &AddArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let scope = choose_scope(args, settings, output)?;
    let options = args.source.fetch_options();
    let mut installer = open_installer(Some(scope), options, settings, output)?;
    let mode = if args.write.dry_run {
        WriteMode::DryRun
    } else {
        WriteMode::Commit
    };
    let mut rows = Vec::new();
    for source in sources {
        let request = AddRequest {
            source: source.clone(),
            skills: args.skills.clone(),
            all: args.all,
            id: args.id.clone(),
        };
        let mut offer = output.with_spinner("asking the source", || installer.look(source))?;
        warn_problems(&offer, output);
        if !installer.can_record(source) {
            // It is a copy of the user's own, like that of a folder.
            if args.no_approve {
                anyhow::bail!(UsageError(
                    "a copy from this machine is your own, and needs no approval: leave --no-approve out"
                        .to_owned()
                ));
            }
            drop(installer);
            return copy_local(&request, args, settings, output);
        }
        let added = output.with_spinner("fetching skills", || {
            installer.add_offered(&request, &mut offer, mode)
        })?;
        let shown: Vec<_> = added
            .iter()
            .map(|skill| (skill.id.clone(), skill.locked.digest))
            .collect();
        if !args.no_approve && mode == WriteMode::Commit {
            installer.approve(&shown)?;
        }
        for skill in added {
            rows.push(show_added(&installer, &skill, args, output)?);
        }
    }
    settings.clear_instructions_cache();
    let name = installer.scope().as_str();
    if output.json {
        output.print_json(&json!({
            "scope": name, "dry_run": args.write.dry_run, "skills": rows,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.write.dry_run {
        output.print_note("nothing was stored");
    } else {
        output.print_note(format!(
            "in the {name} store; recorded in {}",
            installer.project().path().display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows what was added, with the digest that is approved.
fn show_added(
    installer: &Installer,
    skill: &AddedSkill,
    args: &AddArgs,
    output: &Output,
) -> Result<Value> {
    let findings = lint_files(&skill.files);
    let is_error = |finding: &&LintFinding| finding.rule.severity == LintSeverity::Error;
    let risky: Vec<&LintFinding> = findings.iter().filter(is_error).collect();
    let similar = report_look_alikes(
        installer.registry(),
        std::slice::from_ref(&skill.id),
        output,
    );
    let approves = !args.no_approve && !args.write.dry_run;
    let word = match skill.change {
        SkillChange::Added => "added",
        SkillChange::Updated => "updated",
        SkillChange::Merged => "updated, merged with your changes",
        SkillChange::Removed | SkillChange::Unchanged => "unchanged",
    };
    if !output.json {
        let signer = match &skill.locked.signer {
            Some(signer) => format!("signed by {}", terminal_safe(&signer.to_string())),
            None => "unsigned".to_owned(),
        };
        output.print_text(&format!(
            "{ID}{}{ID:#}  {word}  {DIM}{}, {}, {signer}{DIM:#}\n  {DIM}{}{DIM:#}\n",
            skill.id,
            short_pin(&skill.locked),
            format_count(skill.files.len(), "file"),
            skill.locked.digest,
        ))?;
    }
    if let Some(problem) = unlisted_problem(skill) {
        output.print_warning(format!(
            "{} will not be in skills/list: {problem}",
            skill.id
        ));
    }
    // What is risky first, and then everything else that is approved here.
    let others = findings.iter().filter(|finding| !is_error(finding));
    for finding in risky.iter().copied().chain(others).take(MAX_FINDINGS) {
        output.print_warning(format!("{}: {}", skill.id, describe_finding(finding)));
    }
    if !findings.is_empty() && approves {
        output.print_warning(format!(
            "{}: {} to review; `repertoire approve {} --revoke` takes the approval back",
            skill.id,
            format_count(findings.len(), "finding"),
            skill.id
        ));
    }
    let findings: Vec<String> = findings.iter().map(describe_finding).collect();
    Ok(json!({
        "id": skill.id, "change": skill.change, "source": skill.locked.source,
        "resolved": skill.locked.resolved, "pin": skill.locked.pin.to_string(),
        "digest": skill.locked.digest, "version": skill.locked.version,
        "signer": skill.locked.signer, "approved": approves, "findings": findings,
        "similar": similar,
    }))
}

/// Returns why hosts would not list a skill.
fn unlisted_problem(skill: &AddedSkill) -> Option<String> {
    let checked = NewSkill::from_files(skill.id.clone(), skill.files.clone()).ok()?;
    let problem = checked.metadata().unlisted.as_ref()?;
    Some(terminal_safe(&problem.to_string()).into_owned())
}

/// Stores copies of what is on this machine.
fn copy_local(
    request: &AddRequest,
    args: &AddArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let account = Some(ScopeArg::Account);
    let installer = open_installer(account, args.source.fetch_options(), settings, output)?;
    let read = installer.read_copies(request)?;
    drop(installer);
    let skills: Result<Vec<NewSkill>, _> = read
        .into_iter()
        .map(|(id, files)| NewSkill::from_files(id, files))
        .collect();
    store_skills(skills?, &[], &args.write, settings, output)
}

/// Shows what a source has, as `show` does for a skill that is not installed.
pub(crate) fn show_source(
    source: &SkillSource,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let account = Some(ScopeArg::Account);
    let installer = open_installer(account, FetchOptions::default(), settings, output)?;
    let mut offer = output.with_spinner("asking the source", || installer.look(source))?;
    let is_one = source.skill().is_some() || offer.skills.len() == 1;
    if !is_one {
        if output.json {
            output.print_json(&offer_to_json(source, &offer))?;
        } else {
            print_offer(&offer, output)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let request = AddRequest {
        source: source.clone(),
        skills: Vec::new(),
        all: false,
        id: None,
    };
    let fetched = output.with_spinner("fetching the skill", || {
        installer.read_offered(&request, &mut offer)
    })?;
    for skill in fetched {
        let findings = lint_files(&skill.files);
        if output.json {
            let files: Vec<Value> = skill
                .files
                .iter()
                .map(|(path, bytes)| json!({"path": path, "size": bytes.len()}))
                .collect();
            output.print_json(&json!({
                "name": skill.name, "location": offer.location, "folder": skill.folder,
                "pin": skill.pin.to_string(), "digest": skill.digest, "version": skill.version,
                "signer": skill.signer, "files": files, "findings": findings.len(),
            }))?;
            continue;
        }
        let fact = |name: &str, value: &str| {
            output.print_text(&format!(
                "{DIM}{name:<9}{DIM:#} {}\n",
                terminal_safe(&to_single_line(value))
            ))
        };
        fact("name", &skill.name)?;
        fact("from", &offer.location)?;
        fact("pin", &skill.pin.to_string())?;
        fact("digest", &skill.digest.to_string())?;
        match &skill.signer {
            Some(signer) => fact("signer", &signer.to_string())?,
            None => fact("signer", "unsigned")?,
        }
        for (path, bytes) in &skill.files {
            output.print_text(&format!(
                "  {ID}{}{ID:#}  {DIM}{}{DIM:#}\n",
                terminal_safe(path.as_str()),
                crate::output::format_size(bytes.len() as u64)
            ))?;
        }
        for finding in &findings {
            output.print_warning(describe_finding(finding));
        }
        let document = skill.files.iter().find(|(path, _)| path.is_document());
        if let Some((_, bytes)) = document {
            let text = String::from_utf8_lossy(bytes);
            output.print_text(&format!("\n{}\n", terminal_safe(text.trim())))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes a finding in one line.
pub(super) fn describe_finding(finding: &LintFinding) -> String {
    format!(
        "{}:{} {}: {}",
        terminal_safe(&finding.path),
        finding.line,
        finding.rule.id,
        terminal_safe(&to_single_line(&finding.reason))
    )
}
