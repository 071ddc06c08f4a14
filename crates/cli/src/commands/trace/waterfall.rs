//! Draws the spans of a run as a tree with their times.

use std::fmt::Write as _;

use jiff::Timestamp;
use repertoire_app::SpanNode;
use repertoire_core::{Span, SpanKind, markdown::to_single_line, text::terminal_safe};
use uuid::Uuid;

use crate::output::{BOLD, DIM, truncate_to_width};

/// How many spans are drawn.
const MAX_ROWS: usize = 200;
/// The columns of names and bars on a wide terminal.
const NAME_COLUMNS: usize = 48;
const BAR_COLUMNS: usize = 30;
/// The columns between names and bars: id, duration, tokens.
const NUMBER_COLUMNS: usize = 34;

struct Row<'a> {
    span: &'a Span,
    label: String,
}

/// Draws a tree; the chosen span is bold.
pub(super) fn draw(tree: &SpanNode, chosen: Option<Uuid>, width: Option<usize>) -> String {
    let mut rows = Vec::new();
    collect_rows(tree, "", "", &mut rows);
    let begin = milliseconds(&tree.span.started_at);
    let end = rows
        .iter()
        .map(|row| milliseconds(&row.span.completed_at))
        .max();
    let total = end.unwrap_or(begin).saturating_sub(begin).max(1);
    let width = width.unwrap_or(NAME_COLUMNS + NUMBER_COLUMNS + BAR_COLUMNS);
    let bar = BAR_COLUMNS.min(width.saturating_sub(NUMBER_COLUMNS + 20));
    let widest = rows.iter().map(|row| row.label.chars().count()).max();
    let names = widest.unwrap_or(0).min(NAME_COLUMNS);
    let names = names
        .min(width.saturating_sub(NUMBER_COLUMNS + bar))
        .max(16);
    let mut text = String::new();
    for Row { span, label } in rows.iter().take(MAX_ROWS) {
        let label = truncate_to_width(label, names);
        let pad = " ".repeat(names.saturating_sub(label.chars().count()));
        let tokens = match span.usage.total_tokens() {
            0 => String::new(),
            tokens => format!("{tokens} tok"),
        };
        let id = span.id.to_string();
        let id = id.get(..8).unwrap_or(&id);
        let offset = milliseconds(&span.started_at).saturating_sub(begin);
        let drawn = draw_bar(offset, span.duration_ms, total, bar);
        let label = if chosen == Some(span.id) {
            format!("{BOLD}{label}{BOLD:#}")
        } else {
            label
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{label}{pad}  {DIM}{id}{DIM:#} {:>9} ms {tokens:>9} {}",
            span.duration_ms,
            drawn.trim_end()
        );
    }
    if rows.len() > MAX_ROWS {
        let more = rows.len() - MAX_ROWS;
        let _ = writeln!(text, "{DIM}{more} more spans: --json has all{DIM:#}");
    }
    text
}

fn collect_rows<'a>(node: &'a SpanNode, first: &str, rest: &str, rows: &mut Vec<Row<'a>>) {
    let label = format!("{first}{}", describe(&node.span));
    rows.push(Row {
        span: &node.span,
        label,
    });
    let last = node.children.len().saturating_sub(1);
    for (index, child) in node.children.iter().enumerate() {
        let (branch, below) = if index == last {
            ("└ ", "  ")
        } else {
            ("├ ", "│ ")
        };
        collect_rows(
            child,
            &format!("{rest}{branch}"),
            &format!("{rest}{below}"),
            rows,
        );
    }
}

fn describe(span: &Span) -> String {
    let name = to_single_line(&span.name);
    let name = terminal_safe(&name);
    let mark = if span.error.is_some() { "✗ " } else { "" };
    match (span.kind, &span.skill, &span.model_id) {
        (SpanKind::Run, Some(skill), _) if *skill != span.name => {
            format!("{mark}{name} {}", terminal_safe(skill))
        }
        (SpanKind::ModelCall, _, Some(model)) => format!("{mark}{name} {}", terminal_safe(model)),
        (SpanKind::HostCall, ..) => format!("{mark}{name}()"),
        _ => format!("{mark}{name}"),
    }
}

fn draw_bar(offset: u64, duration: u64, total: u64, columns: usize) -> String {
    let columns = u64::try_from(columns).unwrap_or(0);
    let scale =
        |time: u64| usize::try_from(time.min(total).saturating_mul(columns) / total).unwrap_or(0);
    let begin = scale(offset);
    let length = (scale(offset.saturating_add(duration)).saturating_sub(begin)).max(1);
    format!("{}{}", " ".repeat(begin), "█".repeat(length))
}

fn milliseconds(time: &str) -> u64 {
    let time: Option<Timestamp> = time.parse().ok();
    time.map_or(0, |time| u64::try_from(time.as_millisecond()).unwrap_or(0))
}
