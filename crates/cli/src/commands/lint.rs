//! `lint`: checks skills in the catalogue or in folders.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Result;
use repertoire_app::{SkillQuery, lint_entry, lint_files};
use repertoire_core::{
    lint::{self, LintFinding, LintSeverity},
    text::terminal_safe,
};
use repertoire_registry::{Error, Registry, SkillEntry, folder};
use serde_json::json;

use super::{open_registry, resolve_target};
use crate::{
    failure::EXIT_PROBLEMS,
    output::{BOLD, DIM, Output, format_count},
    settings::CliSettings,
};

pub(crate) fn run(
    targets: &[SkillQuery],
    strict: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let mut results: Vec<(String, Vec<LintFinding>)> = Vec::new();
    let mut unread: Vec<(String, String)> = Vec::new();
    let mut skills = Vec::new();
    for target in targets {
        match resolve_target(target, settings, output)? {
            SkillQuery::Folder(path) => {
                let folders = skill_folders(&path, output)?;
                if folders.is_empty() {
                    anyhow::bail!(Error::NotFound {
                        what: "skill in the folder",
                        name: path.display().to_string(),
                    });
                }
                // A single skill is not among others that could claim its name.
                let misplaced = repertoire_app::lint_names(&path).unwrap_or_default();
                for folder in &folders {
                    let name = folder.display().to_string();
                    match folder::read_folder(folder) {
                        Ok(files) => {
                            let mut found = lint_files(&files);
                            let real = folder.canonicalize().ok();
                            found.extend(real.and_then(|real| misplaced.get(&real).cloned()));
                            // What is beneath a nested skill is reported there.
                            let nested = folders.iter().filter_map(|other| {
                                let inner = other.strip_prefix(folder).ok()?;
                                (!inner.as_os_str().is_empty()).then_some(inner)
                            });
                            let nested: Vec<&Path> = nested.collect();
                            found.retain(|finding| {
                                let path = Path::new(&finding.path);
                                !nested.iter().any(|inner| path.starts_with(inner))
                            });
                            results.push((name, found));
                        }
                        // One that cannot be read does not end the run.
                        Err(error) => unread.push((name, error.to_string())),
                    }
                }
            }
            skill => skills.push(skill),
        }
    }
    if targets.is_empty() || !skills.is_empty() {
        let registry = open_registry(&[], settings, output)?;
        output.with_spinner("reading skills", || {
            lint_entries(&registry, &skills, &mut results, &mut unread)
        })?;
    }
    let worst = results
        .iter()
        .flat_map(|(_, found)| found.iter().map(|f| f.rule.severity))
        .max();
    print_findings(&results, &unread, output)?;
    for (name, reason) in &unread {
        let (name, reason) = (terminal_safe(name), terminal_safe(reason));
        output.print_warning(format!("not checked: {name}: {reason}"));
    }
    if !unread.is_empty() {
        return Ok(ExitCode::from(EXIT_PROBLEMS));
    }
    let limit = if strict {
        LintSeverity::Warning
    } else {
        LintSeverity::Error
    };
    Ok(match worst {
        Some(worst) if worst >= limit => ExitCode::from(EXIT_PROBLEMS),
        _ => ExitCode::SUCCESS,
    })
}

fn lint_entries(
    registry: &Registry,
    skills: &[SkillQuery],
    results: &mut Vec<(String, Vec<LintFinding>)>,
    unread: &mut Vec<(String, String)>,
) -> Result<()> {
    let mut entries: Vec<Arc<SkillEntry>> = Vec::new();
    for skill in skills {
        entries.push(repertoire_app::find_skill(registry, skill)?);
    }
    if skills.is_empty() {
        entries.extend(registry.snapshot().skills().cloned());
    }
    for entry in entries {
        match lint_entry(registry, &entry) {
            Ok(found) => results.push((entry.id.to_string(), found)),
            Err(error) => unread.push((entry.id.to_string(), error.to_string())),
        }
    }
    Ok(())
}

/// Returns every skill at or beneath a folder.
pub(super) fn skill_folders(path: &Path, output: &Output) -> Result<Vec<PathBuf>> {
    let (found, skipped) = folder::find_skills(path)?;
    for error in skipped {
        output.print_warning(format!("skipped: {error}"));
    }
    Ok(found)
}

fn print_findings(
    results: &[(String, Vec<LintFinding>)],
    unread: &[(String, String)],
    output: &Output,
) -> Result<()> {
    if output.json {
        let skills: Vec<_> = results
            .iter()
            .map(|(name, found)| {
                let findings: Vec<_> = found
                    .iter()
                    .map(|f| {
                        json!({
                            "rule": f.rule.id, "severity": f.rule.severity, "path": f.path,
                            "line": f.line, "reason": f.reason, "remedy": f.rule.remedy,
                        })
                    })
                    .collect();
                json!({"skill": name, "findings": findings})
            })
            .collect();
        let mut answer = json!({"skills": skills});
        if !unread.is_empty() {
            let rows = unread.iter();
            let rows = rows.map(|(name, reason)| json!({"skill": name, "reason": reason}));
            answer["unread"] = rows.collect();
        }
        return output.print_json(&answer);
    }
    // Writing to a string cannot fail.
    let mut text = String::new();
    for (name, found) in results.iter().filter(|(_, found)| !found.is_empty()) {
        let _ = writeln!(text, "{BOLD}{}{BOLD:#}", terminal_safe(name));
        for finding in found {
            let _ = writeln!(
                text,
                "  {}:{}: {} {}: {}\n      {DIM}{}{DIM:#}",
                terminal_safe(&finding.path),
                finding.line,
                finding.rule.severity.as_str(),
                finding.rule.id,
                terminal_safe(&finding.reason),
                finding.rule.remedy,
            );
        }
    }
    output.print_text(&text)?;
    let total = results.iter().map(|(_, found)| found.len()).sum();
    output.print_note(format!(
        "{DIM}{} in {}{DIM:#}",
        format_count(total, "finding"),
        format_count(results.len(), "skill")
    ));
    Ok(())
}

/// Prints the rules.
pub(crate) fn print_rules(output: &Output) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({"rules": lint::all_rules()}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for rule in lint::all_rules() {
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#} ({})\n  finds: {}\n  do: {}",
            rule.id,
            rule.severity.as_str(),
            rule.about,
            rule.remedy
        );
    }
    output.print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}
