//! `list`: what is in the catalogue, flat, as a tree, or with everything that is hidden.

use std::{fmt::Write as _, process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{Uri, markdown::one_line, text::terminal_safe};
use repertoire_registry::{Entry, Origin, Registry, Snapshot, Trusted};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use crate::output::{BOLD, DIM, ID, Output, count, fit, width};

/// What JSON says of a skill.
pub(crate) fn to_json(entry: &Entry) -> Value {
    let head = &entry.head;
    let uri = if head.is_skill() {
        Uri::document(&entry.id)
    } else {
        Uri::Body(entry.id.clone())
    };
    let mut value = json!({
        "id": entry.id,
        "origin": entry.origin,
        "trusted": entry.trusted == Trusted::Yes,
        "uri": uri.to_string(),
        "title": head.title,
        "description": head.description,
        "files": head.files.len(),
        "size": head.size(),
        "digest": head.digest(),
    });
    if let Some(package) = &head.package {
        value["package"] = json!(package);
    }
    value
}

/// The visible skills, or every skill of an origin.
fn listed<'a>(snapshot: &'a Snapshot, origin: Option<&Origin>) -> Vec<&'a Arc<Entry>> {
    if origin.is_none() {
        return snapshot.skills().collect();
    }
    let all = snapshot.all_skills().map(|(entry, _)| entry);
    all.filter(|entry| wanted(entry, origin)).collect()
}

fn wanted(entry: &Entry, origin: Option<&Origin>) -> bool {
    origin.is_none_or(|origin| entry.origin == *origin)
}

/// One line a skill.
pub(crate) fn flat(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries = listed(&snapshot, origin);
    if output.json {
        let skills: Vec<_> = entries.iter().map(|e| to_json(e)).collect();
        output.print_json(&json!({"skills": skills}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let column = entries
        .iter()
        .map(|e| e.id.as_str().len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for entry in &entries {
        line(&mut text, entry.id.as_str(), column, entry);
    }
    output.print(&text)?;
    summary(registry, entries.len(), output);
    Ok(ExitCode::SUCCESS)
}

/// A label in its column, then what the skill is for, fitted to the terminal.
fn line(text: &mut String, label: &str, column: usize, entry: &Entry) {
    let pad = column.saturating_sub(label.width());
    let description = entry.head.description.as_deref().unwrap_or_default();
    let description = one_line(description);
    let description = terminal_safe(&description);
    let fitted = match width() {
        Some(width) => fit(&description, width.saturating_sub(column + 2).max(20)),
        None => description.into_owned(),
    };
    let line = format!("{ID}{label}{ID:#}{:pad$}  {fitted}", "");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
}

fn summary(registry: &Registry, shown: usize, output: &Output) {
    let snapshot = registry.snapshot();
    let hidden = snapshot.all_skills().filter(|(_, by)| by.is_some()).count();
    let skipped = registry.notices().len();
    let mut text = count(shown, "skill");
    if hidden > 0 {
        let _ = write!(text, ", {hidden} shadowed");
    }
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    if hidden + skipped > 0 {
        text.push_str(" (`repertoire list --all` says why)");
    }
    output.note(format!("{DIM}{text}{DIM:#}"));
}

/// Ids as a tree.
pub(crate) fn tree(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries = listed(&snapshot, origin);
    if output.json {
        return flat(registry, origin, output);
    }
    output.print(&draw(&entries.iter().map(|e| &***e).collect::<Vec<_>>()))?;
    summary(registry, entries.len(), output);
    Ok(ExitCode::SUCCESS)
}

/// One line of a tree in the making.
struct Row<'a> {
    label: String,
    entry: Option<&'a Entry>,
}

/// Draws sorted entries as a tree; folders that are no skills are plain names.
pub(crate) fn draw(entries: &[&Entry]) -> String {
    let mut rows = Vec::new();
    branch(entries, 0, "", &mut rows);
    let column = rows.iter().map(|row| row.label.width()).max().unwrap_or(0);
    let mut text = String::new();
    for row in &rows {
        match row.entry {
            Some(entry) => line(&mut text, &row.label, column, entry),
            None => {
                let _ = writeln!(text, "{BOLD}{}{BOLD:#}", row.label);
            }
        }
    }
    text
}

fn branch<'a>(entries: &[&'a Entry], depth: usize, indent: &str, rows: &mut Vec<Row<'a>>) {
    let segment = |entry: &Entry| entry.id.segments().nth(depth).map(str::to_owned);
    let groups: Vec<&[&Entry]> = entries.chunk_by(|a, b| segment(a) == segment(b)).collect();
    let last = groups.len().saturating_sub(1);
    for (at, group) in groups.into_iter().enumerate() {
        let Some(name) = group.first().and_then(|e| segment(e)) else {
            continue;
        };
        let (knot, below) = match (depth, at == last) {
            (0, _) => ("", ""),
            (_, true) => ("└── ", "    "),
            (_, false) => ("├── ", "│   "),
        };
        let own = group.first().filter(|e| e.id.depth() == depth);
        rows.push(Row {
            label: format!("{indent}{knot}{name}"),
            entry: own.copied(),
        });
        let children = if own.is_some() { &group[1..] } else { group };
        branch(children, depth + 1, &format!("{indent}{below}"), rows);
    }
}

/// Everything: what is visible, what is shadowed and by what, what was skipped and why.
pub(crate) fn all(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries: Vec<_> = snapshot
        .all_skills()
        .filter(|(entry, _)| wanted(entry, origin))
        .collect();
    let notices = registry.notices();
    if output.json {
        let skills: Vec<_> = entries
            .iter()
            .map(|(entry, by)| {
                let mut value = to_json(entry);
                value["shadowed_by"] = json!(by.map(|by| format!("{}:{}", by.origin, by.id)));
                value
            })
            .collect();
        output.print_json(&json!({"skills": skills, "skipped": notices}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for (entry, by) in &entries {
        let _ = write!(text, "{ID}{}:{}{ID:#}", entry.origin, entry.id);
        if let Some(by) = by {
            let _ = write!(text, "  {DIM}shadowed by {}:{}{DIM:#}", by.origin, by.id);
        }
        if entry.trusted == Trusted::No {
            let _ = write!(text, "  {DIM}not trusted{DIM:#}");
        }
        text.push('\n');
    }
    output.print(&text)?;
    for notice in &notices {
        output.warn(format!(
            "skipped [{}] {}",
            notice.code,
            terminal_safe(&notice.message)
        ));
    }
    let hidden = entries.iter().filter(|(_, by)| by.is_some()).count();
    output.note(format!(
        "{DIM}{}, {hidden} of them shadowed, {} skipped{DIM:#}",
        count(entries.len(), "skill"),
        notices.len()
    ));
    Ok(ExitCode::SUCCESS)
}

/// The prompts.
pub(crate) fn prompts(registry: &Registry, output: &Output) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    if output.json {
        let prompts: Vec<_> = snapshot
            .prompts()
            .map(|entry| {
                json!({
                    "name": entry.prompt.name,
                    "description": entry.prompt.description,
                    "arguments": entry.prompt.arguments,
                    "origin": entry.origin,
                })
            })
            .collect();
        output.print_json(&json!({"prompts": prompts}))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for entry in snapshot.prompts() {
        let description = one_line(&entry.prompt.description);
        let description = terminal_safe(&description);
        let _ = writeln!(text, "{ID}/{}{ID:#}  {description}", entry.prompt.name);
    }
    output.print(&text)?;
    let shown = snapshot.prompts().count();
    output.note(format!("{DIM}{}{DIM:#}", count(shown, "prompt")));
    Ok(ExitCode::SUCCESS)
}
