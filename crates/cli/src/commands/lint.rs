//! `lint`: advice on skills, wherever they are.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use repertoire_core::{
    RelPath,
    lint::{self, Finding, Severity, Subject},
    text::terminal_safe,
};
use repertoire_registry::{Entry, Error, Reference, Registry, folder};
use serde_json::json;

use super::{Target, open, target};
use crate::{
    failure::PROBLEMS,
    output::{BOLD, DIM, Output, count},
    settings::Settings,
};

pub(crate) fn run(
    targets: &[String],
    strict: bool,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let mut results: Vec<(String, Vec<Finding>)> = Vec::new();
    let mut references = Vec::new();
    for text in targets {
        match target(text, || open(&[], settings, output))? {
            Target::Skill(reference) => references.push(reference),
            Target::Folder(path) => {
                let folders = skill_folders(&path, output)?;
                if folders.is_empty() {
                    anyhow::bail!(Error::NotFound {
                        what: "skill in",
                        name: path.display().to_string(),
                    });
                }
                for folder in folders {
                    let files = folder::read(&folder)?;
                    results.push((folder.display().to_string(), findings(&files)));
                }
            }
        }
    }
    if targets.is_empty() || !references.is_empty() {
        let registry = open(&[], settings, output)?;
        output.working("reading skills", || {
            lint_entries(&registry, &references, &mut results)
        })?;
    }
    let worst = results
        .iter()
        .flat_map(|(_, found)| found.iter().map(|f| f.rule.severity))
        .max();
    print(&results, output)?;
    let limit = if strict {
        Severity::Warning
    } else {
        Severity::Error
    };
    Ok(match worst {
        Some(worst) if worst >= limit => ExitCode::from(PROBLEMS),
        _ => ExitCode::SUCCESS,
    })
}

fn lint_entries(
    registry: &Registry,
    references: &[Reference],
    results: &mut Vec<(String, Vec<Finding>)>,
) -> Result<()> {
    let snapshot = registry.snapshot();
    let mut entries: Vec<&Entry> = Vec::new();
    for reference in references {
        entries.push(snapshot.skill(reference).ok_or(Error::NotFound {
            what: "skill",
            name: reference.to_string(),
        })?);
    }
    if references.is_empty() {
        entries.extend(snapshot.skills().map(|entry| &**entry));
    }
    for entry in entries {
        let mut files = BTreeMap::new();
        for file in &entry.head.files {
            files.insert(file.path.clone(), registry.file(entry, &file.path)?);
        }
        results.push((entry.id.to_string(), findings(&files)));
    }
    Ok(())
}

/// What the linter says of a file set.
pub(crate) fn findings<B: AsRef<[u8]>>(files: &BTreeMap<RelPath, B>) -> Vec<Finding> {
    let mut subject = Subject::default();
    for (path, bytes) in files {
        subject.add(path, bytes.as_ref());
    }
    lint::lint(&subject)
}

/// The skill at a folder, or every outermost skill beneath it.
pub(super) fn skill_folders(path: &Path, output: &Output) -> Result<Vec<PathBuf>> {
    let mut outer: Vec<PathBuf> = Vec::new();
    let (found, passed) = folder::find_skills(path)?;
    for error in passed {
        output.warn(format!("passed over: {error}"));
    }
    for folder in found {
        if !outer.iter().any(|skill| folder.starts_with(skill)) {
            outer.push(folder);
        }
    }
    Ok(outer)
}

fn print(results: &[(String, Vec<Finding>)], output: &Output) -> Result<()> {
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
        return output.print_json(&json!({"skills": skills}));
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
    output.print(&text)?;
    let total = results.iter().map(|(_, found)| found.len()).sum();
    output.note(format!(
        "{DIM}{} in {}{DIM:#}",
        count(total, "finding"),
        count(results.len(), "skill")
    ));
    Ok(())
}

/// The rules, for people and for tools.
pub(crate) fn rules(output: &Output) -> Result<ExitCode> {
    if output.json {
        output.print_json(&json!({"rules": lint::rules()}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for rule in lint::rules() {
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#} ({})\n  finds: {}\n  do: {}",
            rule.id,
            rule.severity.as_str(),
            rule.about,
            rule.remedy
        );
    }
    output.print(&text)?;
    Ok(ExitCode::SUCCESS)
}
