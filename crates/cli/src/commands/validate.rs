//! `validate`: the verdict of the reference validator, with lines, and the stricter one.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use repertoire_core::{
    FileEntry, Manifest,
    text::terminal_safe,
    validate::{Level, Problem, validate},
};
use repertoire_registry::folder;
use serde_json::json;

use crate::{
    failure::{PROBLEMS, Usage},
    output::{Output, count},
};

pub(crate) fn run(
    paths: &[PathBuf],
    strict: bool,
    recursive: bool,
    output: &Output,
) -> Result<ExitCode> {
    let level = if strict {
        Level::Strict
    } else {
        Level::Reference
    };
    let mut folders = Vec::new();
    for path in paths {
        let folder = skill_folder(path)?;
        if recursive {
            let (found, passed) = folder::find_skills(&folder)?;
            for error in passed {
                output.warn(format!("passed over: {error}"));
            }
            folders.extend(found);
        } else {
            folders.push(folder);
        }
    }
    let mut invalid = 0;
    let mut results = Vec::new();
    for folder in &folders {
        let problems = check(folder, level);
        let name = terminal_safe(&folder.to_string_lossy()).into_owned();
        invalid += usize::from(!problems.is_empty());
        if output.json {
            results.push(json!({
                "path": folder, "valid": problems.is_empty(), "problems": problems,
            }));
        } else if problems.is_empty() {
            output.print(&format!("{name}: valid\n"))?;
        } else {
            output.print(&format!("{name}: {}\n", count(problems.len(), "problem")))?;
            for problem in &problems {
                let line = problem
                    .line
                    .map_or(String::new(), |line| format!("SKILL.md:{line}: "));
                let message = terminal_safe(&problem.message);
                output.print(&format!("  {line}{message} [{}]\n", problem.code))?;
            }
        }
    }
    if output.json {
        output.print_json(&json!({"valid": invalid == 0, "skills": results}))?;
    }
    if recursive && folders.is_empty() {
        anyhow::bail!(Usage("no SKILL.md beneath the given folders".to_owned()));
    }
    if !strict && folders.iter().any(|f| only_lowercase(f)) {
        output.hint("hosts look for SKILL.md: rename skill.md (`--strict` refuses it)");
    }
    if invalid == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    if !recursive && paths.iter().any(|path| has_skills_beneath(path)) {
        output.hint("there are skills beneath: `--recursive` validates each of them");
    }
    Ok(ExitCode::from(PROBLEMS))
}

/// Whether the document is there under its lower-case name only.
fn only_lowercase(folder: &Path) -> bool {
    matches!(folder::document(folder), Ok(Some(("skill.md", _))))
}

/// A path to a document means its folder.
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

/// Every problem of one folder.
fn check(folder: &Path, level: Level) -> Vec<Problem> {
    let problem = |code, message: String| Problem {
        code,
        line: None,
        message,
    };
    if !folder.is_dir() {
        return vec![problem("not-a-folder", "not a folder".to_owned())];
    }
    let name = match folder.canonicalize() {
        Ok(real) => real
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        Err(error) => return vec![problem("unreadable", error.to_string())],
    };
    let document = match folder::document(folder) {
        Ok(document) => document,
        Err(error) => return vec![problem("unreadable", error.to_string())],
    };
    let given = document.as_ref().map(|(name, bytes)| (*name, &bytes[..]));
    let mut problems = validate(&name, given, level);
    // What the reference does not look at, and no host could be given.
    match folder::read(folder) {
        Ok(files) => {
            let entries = files
                .iter()
                .map(|(path, bytes)| FileEntry::of(path.clone(), bytes));
            match Manifest::new(entries) {
                Err(repertoire_core::Error::NoDocument) | Ok(_) => {}
                Err(error) => problems.push(problem("files", error.to_string())),
            }
        }
        Err(error) => problems.push(problem("files", error.to_string())),
    }
    problems
}

fn has_skills_beneath(path: &Path) -> bool {
    folder::find_skills(path).is_ok_and(|(found, _)| found.iter().any(|skill| skill != path))
}
