//! `validate`: applies the rules of the reference validator, or the stricter specification.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use repertoire_core::{text::terminal_safe, validate::ValidationLevel};
use repertoire_registry::folder;
use serde_json::json;

use crate::{
    failure::{EXIT_PROBLEMS, UsageError},
    output::{Output, format_count},
};

pub(crate) fn run(
    paths: &[PathBuf],
    strict: bool,
    recursive: bool,
    output: &Output,
) -> Result<ExitCode> {
    let level = if strict {
        ValidationLevel::Strict
    } else {
        ValidationLevel::Reference
    };
    let mut folders = Vec::new();
    for path in paths {
        let folder = skill_folder(path)?;
        if recursive {
            let (found, passed) = folder::find_skills(&folder)?;
            for error in passed {
                output.print_warning(format!("skipped: {error}"));
            }
            folders.extend(found);
        } else {
            folders.push(folder);
        }
    }
    let mut invalid = 0;
    let mut results = Vec::new();
    for folder in &folders {
        let problems = repertoire_app::validate_folder(folder, level);
        let name = terminal_safe(&folder.to_string_lossy()).into_owned();
        invalid += usize::from(!problems.is_empty());
        if output.json {
            results.push(json!({
                "path": folder, "valid": problems.is_empty(), "problems": problems,
            }));
        } else if problems.is_empty() {
            output.print_text(&format!("{name}: valid\n"))?;
        } else {
            output.print_text(&format!(
                "{name}: {}\n",
                format_count(problems.len(), "problem")
            ))?;
            for problem in &problems {
                let line = problem
                    .line
                    .map_or(String::new(), |line| format!("SKILL.md:{line}: "));
                let message = terminal_safe(&problem.message);
                output.print_text(&format!("  {line}{message} [{}]\n", problem.code))?;
            }
        }
    }
    if output.json {
        output.print_json(&json!({"valid": invalid == 0, "skills": results}))?;
    }
    if recursive && folders.is_empty() {
        anyhow::bail!(UsageError(
            "no SKILL.md beneath the given folders".to_owned()
        ));
    }
    if !strict && folders.iter().any(|f| has_only_lowercase_document(f)) {
        output.print_hint("hosts look for SKILL.md: rename skill.md (`--strict` refuses it)");
    }
    if invalid == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !recursive && paths.iter().any(|path| has_skills_beneath(path)) {
        output.print_hint("there are skills beneath: `--recursive` validates each of them");
    }
    Ok(ExitCode::from(EXIT_PROBLEMS))
}

/// Whether the folder has only a lower-case `skill.md`.
fn has_only_lowercase_document(folder: &Path) -> bool {
    matches!(folder::read_document(folder), Ok(Some(("skill.md", _))))
}

/// Returns the folder of a skill, given the folder or its document.
fn skill_folder(path: &Path) -> Result<PathBuf> {
    let is_document = path
        .file_name()
        .is_some_and(|name| name.eq_ignore_ascii_case("skill.md"));
    if is_document && path.is_file() {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        return Ok(parent.unwrap_or(Path::new(".")).to_owned());
    }
    if !path.exists() {
        anyhow::bail!(repertoire_registry::Error::NotFound {
            what: "path",
            name: path.display().to_string(),
        });
    }
    Ok(path.to_owned())
}

fn has_skills_beneath(path: &Path) -> bool {
    folder::find_skills(path).is_ok_and(|(found, _)| found.iter().any(|skill| skill != path))
}
