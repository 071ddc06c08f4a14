//! `list`: prints the catalogue flat, as a tree, or with shadowed and skipped skills.

use std::{fmt::Write as _, process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{Uri, markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{Origin, Registry, SkillEntry, Snapshot, Trusted};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

use crate::output::{
    BOLD, DIM, ID, Output, format_count, terminal_width, truncate_to_width, wrap_to_width,
};

/// Returns the JSON form of a skill.
pub(crate) fn entry_to_json(entry: &SkillEntry) -> Value {
    let head = &entry.metadata;
    let uri = if entry.has_files() {
        Uri::for_document(&entry.id)
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
        "size": head.total_size(),
        "digest": head.digest(),
    });
    if let Some(package) = &head.package {
        value["package"] = json!(package);
    }
    if let Some(problem) = &head.unlisted {
        value["unlisted"] = json!({"code": problem.rule.code(), "message": problem.message});
    }
    if let Some(alias) = &entry.alias {
        value["alias"] = json!(alias);
    }
    value
}

/// Returns the visible skills, or every skill of an origin.
fn entries_to_list<'a>(
    snapshot: &'a Snapshot,
    origin: Option<&Origin>,
) -> Vec<&'a Arc<SkillEntry>> {
    if origin.is_none() {
        return snapshot.skills().collect();
    }
    let all = snapshot.all_skills().map(|(entry, _)| entry);
    all.filter(|entry| has_wanted_origin(entry, origin))
        .collect()
}

fn has_wanted_origin(entry: &SkillEntry, origin: Option<&Origin>) -> bool {
    origin.is_none_or(|origin| entry.origin == *origin)
}

/// Prints one line per skill.
pub(crate) fn print_flat(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries = entries_to_list(&snapshot, origin);
    if output.json {
        let skills: Vec<_> = entries.iter().map(|e| entry_to_json(e)).collect();
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
        write_entry_line(&mut text, entry.id.as_str(), column, entry);
    }
    output.print_text(&text)?;
    print_summary(registry, entries.len(), output);
    Ok(ExitCode::SUCCESS)
}

/// The fewest columns for descriptions on one line each; below, they are wrapped.
const MIN_LINE_COLUMNS: usize = 40;
/// The fewest columns beside a label; below, descriptions begin on a line of their own.
const MIN_DESCRIPTION_COLUMNS: usize = 20;
/// The most lines of a wrapped description.
const MAX_WRAPPED_LINES: usize = 3;

/// Writes a label in its column, then the description, fitted to the terminal.
fn write_entry_line(text: &mut String, label: &str, column: usize, entry: &SkillEntry) {
    let description = entry.metadata.description.as_deref().unwrap_or_default();
    let description = to_single_line(description);
    let description = terminal_safe(&description);
    write_columns(text, label, column, &description, terminal_width());
}

fn write_columns(
    text: &mut String,
    label: &str,
    column: usize,
    description: &str,
    width: Option<usize>,
) {
    // A few long labels do not take the columns of all descriptions.
    let column = width.map_or(column, |width| column.min((width * 2 / 5).max(16)));
    let rest = width.map_or(usize::MAX, |width| width.saturating_sub(column + 2));
    let (indent, lines) = if rest >= MIN_LINE_COLUMNS {
        (column + 2, vec![truncate_to_width(description, rest)])
    } else if rest >= MIN_DESCRIPTION_COLUMNS {
        let lines = wrap_to_width(description, rest, MAX_WRAPPED_LINES);
        (column + 2, lines)
    } else {
        let rest = width.unwrap_or_default().saturating_sub(2).max(10);
        (2, wrap_to_width(description, rest, MAX_WRAPPED_LINES))
    };
    let mut lines = lines.iter().filter(|line| !line.is_empty());
    let mut line = format!("{ID}{label}{ID:#}");
    if label.width() + 2 <= indent
        && let Some(first) = lines.next()
    {
        let pad = indent - label.width();
        // Writing to a string cannot fail.
        let _ = write!(line, "{:pad$}{first}", "");
    }
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
    for line in lines {
        let _ = writeln!(text, "{:indent$}{line}", "");
    }
}

fn print_summary(registry: &Registry, shown: usize, output: &Output) {
    let snapshot = registry.snapshot();
    let hidden = snapshot.all_skills().filter(|(_, by)| by.is_some()).count();
    let disabled = snapshot.all_skills();
    let disabled = disabled.filter(|(entry, by)| by.is_none() && snapshot.is_hidden(&entry.id));
    let disabled = disabled.count();
    let unlisted = snapshot
        .skills()
        .filter(|entry| entry.metadata.unlisted.is_some());
    let unlisted = unlisted.count();
    let notices = registry.notices();
    let skipped = notices.iter().filter(|notice| notice.is_problem()).count();
    let mut text = format_count(shown, "skill");
    if hidden > 0 {
        let _ = write!(text, ", {hidden} shadowed");
    }
    if disabled > 0 {
        let _ = write!(text, ", {disabled} disabled");
    }
    if unlisted > 0 {
        let _ = write!(text, ", {unlisted} not in skills/list");
    }
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    if hidden + disabled + unlisted + skipped > 0 {
        text.push_str(" (`--all` shows why)");
    }
    output.print_note(format!("{DIM}{text}{DIM:#}"));
}

/// Prints ids as a tree.
pub(crate) fn print_tree(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries = entries_to_list(&snapshot, origin);
    if output.json {
        return print_flat(registry, origin, output);
    }
    output.print_text(&draw_tree(
        &entries.iter().map(|e| &***e).collect::<Vec<_>>(),
    ))?;
    print_summary(registry, entries.len(), output);
    Ok(ExitCode::SUCCESS)
}

/// One line of the tree.
struct TreeRow<'a> {
    label: String,
    entry: Option<&'a SkillEntry>,
}

/// Draws sorted entries as a tree; folders that are not skills are plain names.
pub(crate) fn draw_tree(entries: &[&SkillEntry]) -> String {
    let mut rows = Vec::new();
    add_branch(entries, 0, "", &mut rows);
    let column = rows.iter().map(|row| row.label.width()).max().unwrap_or(0);
    let mut text = String::new();
    for row in &rows {
        match row.entry {
            Some(entry) => write_entry_line(&mut text, &row.label, column, entry),
            None => {
                let _ = writeln!(text, "{BOLD}{}{BOLD:#}", row.label);
            }
        }
    }
    text
}

fn add_branch<'a>(
    entries: &[&'a SkillEntry],
    depth: usize,
    indent: &str,
    rows: &mut Vec<TreeRow<'a>>,
) {
    let segment = |entry: &SkillEntry| entry.id.segments().nth(depth).map(str::to_owned);
    let groups: Vec<&[&SkillEntry]> = entries.chunk_by(|a, b| segment(a) == segment(b)).collect();
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
        rows.push(TreeRow {
            label: format!("{indent}{knot}{name}"),
            entry: own.copied(),
        });
        let children = if own.is_some() { &group[1..] } else { group };
        add_branch(children, depth + 1, &format!("{indent}{below}"), rows);
    }
}

/// Prints every skill, including shadowed and skipped ones with the reason.
pub(crate) fn print_all(
    registry: &Registry,
    origin: Option<&Origin>,
    output: &Output,
) -> Result<ExitCode> {
    let snapshot = registry.snapshot();
    let entries: Vec<_> = snapshot
        .all_skills()
        .filter(|(entry, _)| has_wanted_origin(entry, origin))
        .collect();
    let notices = registry.notices();
    if output.json {
        let skills: Vec<_> = entries
            .iter()
            .map(|(entry, by)| {
                let mut value = entry_to_json(entry);
                if snapshot.is_hidden(&entry.id) {
                    value["disabled"] = json!(true);
                }
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
        if snapshot.is_hidden(&entry.id) {
            let _ = write!(text, "  {DIM}disabled{DIM:#}");
        }
        if entry.trusted == Trusted::No {
            let _ = write!(text, "  {DIM}not trusted{DIM:#}");
        }
        if let Some(path) = entry.path().filter(|_| entry.is_linked()) {
            let path = path.to_string_lossy();
            let _ = write!(text, "  {DIM}linked to {}{DIM:#}", terminal_safe(&path));
        }
        text.push('\n');
    }
    output.print_text(&text)?;
    for (entry, _) in &entries {
        if let Some(problem) = &entry.metadata.unlisted {
            output.print_warning(format!(
                "not in skills/list [{}] {}:{}: {}",
                problem.rule.code(),
                entry.origin,
                entry.id,
                terminal_safe(&problem.message)
            ));
        }
    }
    for notice in &notices {
        output.print_warning(format!(
            "skipped [{}] {}",
            notice.code,
            terminal_safe(&notice.message)
        ));
    }
    if notices.iter().any(|notice| notice.code == "link_outside") {
        output.print_note("`repertoire trust --link LINK` serves what a link leads to");
    }
    let hidden = entries.iter().filter(|(_, by)| by.is_some()).count();
    let unlisted = entries.iter();
    let unlisted = unlisted.filter(|(entry, _)| entry.metadata.unlisted.is_some());
    let unlisted = unlisted.count();
    let disabled = entries.iter();
    let disabled = disabled.filter(|(entry, _)| snapshot.is_hidden(&entry.id));
    let disabled = disabled.count();
    let mut words = format!(
        "{}, {hidden} of them shadowed, {} skipped",
        format_count(entries.len(), "skill"),
        notices.len()
    );
    for (count, word) in [(unlisted, "not in skills/list"), (disabled, "disabled")] {
        if count > 0 {
            let _ = write!(words, ", {count} {word}");
        }
    }
    output.print_note(format!("{DIM}{words}{DIM:#}"));
    Ok(ExitCode::SUCCESS)
}

/// Prints the prompts.
pub(crate) fn print_prompts(registry: &Registry, output: &Output) -> Result<ExitCode> {
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
        let description = to_single_line(&entry.prompt.description);
        let description = terminal_safe(&description);
        let _ = writeln!(text, "{ID}/{}{ID:#}  {description}", entry.prompt.name);
    }
    output.print_text(&text)?;
    let shown = snapshot.prompts().count();
    output.print_note(format!("{DIM}{}{DIM:#}", format_count(shown, "prompt")));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(label: &str, column: usize, width: Option<usize>) -> String {
        let mut text = String::new();
        let about = "Finds the commit that broke a test by bisection, alone";
        write_columns(&mut text, label, column, about, width);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_wide_terminal_has_a_line_for_each_skill() {
        assert_eq!(draw("bisect", 10, None).lines().count(), 1);
        let drawn = draw("bisect", 10, Some(60));
        assert!(drawn.starts_with("bisect      Finds the commit"), "{drawn}");
        assert!(
            drawn.ends_with("…\n") && drawn.lines().count() == 1,
            "{drawn}"
        );
    }

    #[test]
    fn a_narrow_terminal_wraps_within_the_column() {
        let drawn = draw("bisect", 10, Some(40));
        assert_eq!(
            drawn,
            "bisect      Finds the commit that broke\n            a test by bisection, alone\n"
        );
        // A label that is wider than its column has a line of its own.
        let drawn = draw("a-very-long-name-of-a-skill", 27, Some(50));
        assert!(
            drawn.starts_with("a-very-long-name-of-a-skill\n      "),
            "{drawn}"
        );
        assert!(drawn.lines().all(|line| line.width() <= 50), "{drawn}");
    }

    #[test]
    fn a_very_narrow_terminal_has_descriptions_below_the_labels() {
        let drawn = draw("bisect", 10, Some(24));
        assert!(
            drawn.starts_with("bisect\n  Finds the commit that\n"),
            "{drawn}"
        );
        assert!(drawn.lines().all(|line| line.width() <= 24), "{drawn}");
    }
}
