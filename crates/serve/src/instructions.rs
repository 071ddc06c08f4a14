//! What a model is told about the skills before it asks: within a budget, and honest about it.

use std::fmt::Write as _;

use repertoire_core::markdown::{cut, one_line};
use repertoire_registry::{Snapshot, Trusted};

/// Bytes a token has, about, in English prose.
const BYTES_PER_TOKEN: usize = 4;

const HEAD: &str = "Skills: tested instructions for particular tasks. Before such a task, read \
the skill and follow it. Read `skill://ID/SKILL.md` as a resource, or call skill__fetch with \
that URI; files it mentions are beside it. skills_list names every skill.\n";

/// The most bytes the instructions of a budget have.
pub(crate) fn max_bytes(tokens: usize) -> usize {
    tokens.saturating_mul(BYTES_PER_TOKEN).max(HEAD.len())
}

/// What is said while the index is still being read.
pub(crate) fn still_reading() -> String {
    HEAD.to_owned()
}

/// The instructions for a catalogue.
///
/// Skills are named as long as there is room, in the order of their ids and first with short
/// descriptions; how many were left out is said. What nobody trusts is not spoken for.
pub(crate) fn of(snapshot: &Snapshot, tokens: usize) -> String {
    let limit = max_bytes(tokens);
    let trusted = || {
        let skills = snapshot.skills();
        skills.filter(|entry| entry.trusted == Trusted::Yes && entry.has_files())
    };
    let total = trusted().count();
    let mut out = String::from(HEAD);
    if total == 0 {
        let strangers = snapshot.skills().filter(|entry| entry.has_files()).count();
        // Writing to a string cannot fail.
        let _ = match strangers {
            0 => writeln!(out, "There are none yet."),
            _ => writeln!(
                out,
                "None of the {strangers} here is approved to be named here."
            ),
        };
        return out;
    }
    let note = |left: usize| format!("… and {left} more, cut to keep this short: skills_list\n");
    let room = limit.saturating_sub(out.len() + note(total).len());
    let (mut used, mut shown) = (0, 0);
    for entry in trusted() {
        let mut line = format!("- {}", entry.id);
        if let Some(description) = &entry.head.description {
            // Writing to a string cannot fail.
            let _ = write!(line, ": {}", cut(&one_line(description), 100));
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
