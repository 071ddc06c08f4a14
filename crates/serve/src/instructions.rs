//! The instructions for models: a list of skills within a token budget.

use std::{collections::HashMap, fmt::Write as _};

use repertoire_core::markdown::{to_single_line, truncate_text};
use repertoire_registry::{SkillEntry, Snapshot, Trusted};

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
/// Skills are listed in the order of their ids, with short descriptions. If the budget does not allow
/// all, those that the caller uses most stay, then the first; a note gives the number of omitted
/// skills. Untrusted skills are not listed.
pub(crate) fn build_instructions(
    snapshot: &Snapshot,
    tokens: usize,
    use_counts: &HashMap<String, u64>,
) -> String {
    let limit = max_bytes(tokens);
    let skills = snapshot.skills();
    let mut trusted: Vec<&SkillEntry> = skills
        .map(AsRef::as_ref)
        .filter(|entry| entry.trusted == Trusted::Yes && entry.has_files())
        .collect();
    let mut out = String::from(INTRODUCTION);
    if trusted.is_empty() {
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
    let total = trusted.len();
    let room = limit.saturating_sub(out.len() + note(total).len());
    let used = |entry: &SkillEntry| use_counts.get(entry.id.as_str()).copied().unwrap_or(0);
    if !use_counts.is_empty() {
        // The order of the ids is kept among skills that are used equally.
        trusted.sort_by_key(|entry| std::cmp::Reverse(used(entry)));
    }
    let mut kept: Vec<(&SkillEntry, String)> = Vec::new();
    let mut size = 0;
    for entry in trusted {
        let line = skill_line(entry);
        if size + line.len() > room {
            break;
        }
        size += line.len();
        kept.push((entry, line));
    }
    kept.sort_by(|a, b| a.0.id.cmp(&b.0.id));
    out.extend(kept.iter().map(|(_, line)| line.as_str()));
    if kept.len() < total {
        out.push_str(&note(total - kept.len()));
    }
    out
}

fn skill_line(entry: &SkillEntry) -> String {
    match &entry.metadata.description {
        None => format!("- {}\n", entry.id),
        Some(description) => format!(
            "- {}: {}\n",
            entry.id,
            truncate_text(&to_single_line(description), 100)
        ),
    }
}

#[cfg(test)]
mod tests {
    use repertoire_registry::{Registry, RegistrySettings};

    use super::*;

    /// If not all skills fit, those that are used most stay, in the usual order.
    #[test]
    fn skills_that_are_used_most_stay_in_short_instructions() {
        let folder = tempfile::tempdir().unwrap();
        for n in 10..50 {
            let place = folder.path().join(format!("skill-{n}"));
            std::fs::create_dir(&place).unwrap();
            let about = "Does one of many things, which takes a line of usual length.";
            let text = format!("---\nname: skill-{n}\ndescription: {about}\n---\n# {n}\n");
            std::fs::write(place.join("SKILL.md"), text).unwrap();
        }
        let settings = RegistrySettings::from_folders([folder.path().into()]);
        let registry = Registry::open(settings).unwrap();
        let snapshot = registry.snapshot();
        let without = build_instructions(&snapshot, 250, &HashMap::new());
        assert!(without.contains("skill-10:") && !without.contains("skill-44:"));
        let used = HashMap::from([("skill-44".to_owned(), 3), ("skill-31".to_owned(), 1)]);
        let with = build_instructions(&snapshot, 250, &used);
        let place = |name: &str| with.find(name).unwrap();
        assert!(place("skill-10:") < place("skill-31:"));
        assert!(place("skill-31:") < place("skill-44:"));
        assert!(with.contains("more, cut to keep this short"), "{with}");
        assert!(with.len() <= max_bytes(250));
    }
}
