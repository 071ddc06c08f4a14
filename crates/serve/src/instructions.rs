//! The instructions for models: a list of skills within a token budget.

use std::fmt::Write as _;

use repertoire_core::markdown::{to_single_line, truncate_text};
use repertoire_registry::{Snapshot, Trusted};

/// The approximate number of bytes per token in English prose.
const BYTES_PER_TOKEN: usize = 4;

const INTRODUCTION: &str = "Skills: tested instructions for particular tasks. Before such a task, read \
the skill and follow it. Read `skill://ID/SKILL.md` as a resource, or call skill__fetch with \
that URI; files it mentions are beside it. skills_list names every skill.\n";

/// The maximum size in bytes of instructions with a token budget.
pub(crate) fn max_bytes(tokens: usize) -> usize {
    tokens
        .saturating_mul(BYTES_PER_TOKEN)
        .max(INTRODUCTION.len())
}

/// The instructions used while the index is still loading.
pub(crate) fn placeholder_text() -> String {
    INTRODUCTION.to_owned()
}

/// Builds the instructions for a catalogue.
///
/// Skills are listed in the order of their ids, with short descriptions, until the budget is used
/// up; a note gives the number of omitted skills. Untrusted skills are not listed.
pub(crate) fn build_instructions(snapshot: &Snapshot, tokens: usize) -> String {
    let limit = max_bytes(tokens);
    let trusted = || {
        let skills = snapshot.skills();
        skills.filter(|entry| entry.trusted == Trusted::Yes && entry.has_files())
    };
    let total = trusted().count();
    let mut out = String::from(INTRODUCTION);
    if total == 0 {
        let untrusted = snapshot.skills().filter(|entry| entry.has_files()).count();
        // Writing to a string cannot fail.
        let _ = match untrusted {
            0 => writeln!(out, "There are none yet."),
            _ => writeln!(
                out,
                "None of the {untrusted} here is approved to be named here."
            ),
        };
        return out;
    }
    let note = |left: usize| format!("… and {left} more, cut to keep this short: skills_list\n");
    let room = limit.saturating_sub(out.len() + note(total).len());
    let (mut used, mut shown) = (0, 0);
    for entry in trusted() {
        let mut line = format!("- {}", entry.id);
        if let Some(description) = &entry.metadata.description {
            // Writing to a string cannot fail.
            let _ = write!(
                line,
                ": {}",
                truncate_text(&to_single_line(description), 100)
            );
        }
        line.push('\n');
        if used + line.len() > room {
            break;
        }
        used += line.len();
        shown += 1;
        out.push_str(&line);
    }
    if shown < total {
        out.push_str(&note(total - shown));
    }
    out
}
