//! The catalogue for a system prompt: as much as a budget of tokens allows, and what was cut.

use repertoire_core::{
    SkillId,
    markdown::{cut, one_line},
};
use serde::Serialize;

use crate::{catalogue::Entry, origin::Trusted};

/// Bytes a token has, about, in English prose.
const BYTES_PER_TOKEN: usize = 4;
/// The most characters of a description that is shortened.
const SHORT: usize = 100;

/// What a model is told of skills, and what it is not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Brief {
    /// The text: one line a skill.
    pub text: String,
    /// About how many tokens that is.
    pub tokens: usize,
    /// Skills with their whole descriptions.
    pub whole: Vec<SkillId>,
    /// Skills with shortened descriptions.
    pub shortened: Vec<SkillId>,
    /// Skills that are only named.
    pub named: Vec<SkillId>,
    /// Skills that are left out.
    pub cut: Vec<SkillId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Named,
    Short,
    Whole,
}

fn line(entry: &Entry, level: Level) -> String {
    let about = one_line(entry.head.description.as_deref().unwrap_or_default());
    match level {
        _ if about.is_empty() => format!("- {}\n", entry.id),
        Level::Named => format!("- {}\n", entry.id),
        Level::Short => format!("- {}: {}\n", entry.id, cut(&about, SHORT)),
        Level::Whole => format!("- {}: {about}\n", entry.id),
    }
}

/// Tells of skills within a budget. What comes first is told best: every skill is named before one
/// is described, and described shortly before one is described in full. What nobody trusts is not
/// told of.
///
/// ```
/// use repertoire_registry::{Registry, Settings, brief};
///
/// let registry = Registry::open(Settings::of_folders(["../../examples/skills".into()]))?;
/// let snapshot = registry.snapshot();
/// let all = brief(snapshot.skills(), 2_000);
/// assert_eq!((all.whole.len(), all.cut.len()), (snapshot.len(), 0));
/// let few = brief(snapshot.skills(), 15);
/// assert!(few.tokens <= 15 && !few.cut.is_empty());
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
pub fn brief<'a, E>(entries: impl Iterator<Item = &'a E>, tokens: usize) -> Brief
where
    E: AsRef<Entry> + 'a,
{
    let entries: Vec<&Entry> = entries
        .map(AsRef::as_ref)
        .filter(|entry| entry.trusted == Trusted::Yes)
        .collect();
    let budget = tokens.saturating_mul(BYTES_PER_TOKEN);
    let sizes = |level| -> Vec<usize> { entries.iter().map(|e| line(e, level).len()).collect() };
    let mut levels = vec![None; entries.len()];
    let mut used = 0;
    // Every skill is named, as far as there is room for that and for saying how many are not.
    let note = |left: usize| format!("… and {left} more\n");
    let named = sizes(Level::Named);
    let all: usize = named.iter().sum();
    let room = if all <= budget {
        budget
    } else {
        budget.saturating_sub(note(entries.len()).len())
    };
    for (level, size) in levels.iter_mut().zip(&named) {
        if used + size > room {
            break;
        }
        used += size;
        *level = Some(Level::Named);
    }
    // Then as much as fits is said of each, from the first on.
    let mut known = named;
    let mut is_full = levels.contains(&None);
    for next in [Level::Short, Level::Whole] {
        for (at, size) in sizes(next).into_iter().enumerate() {
            let more = size.saturating_sub(known[at]);
            is_full |= used + more > room;
            if is_full {
                break;
            }
            used += more;
            known[at] = size;
            levels[at] = Some(next);
        }
    }
    let mut brief = Brief::default();
    for (entry, level) in entries.iter().zip(&levels) {
        let Some(level) = *level else {
            brief.cut.push(entry.id.clone());
            continue;
        };
        let told = line(entry, level);
        brief.text.push_str(&told);
        // A short description is whole where there is nothing to shorten.
        let list = if told == line(entry, Level::Whole) {
            &mut brief.whole
        } else if level == Level::Named {
            &mut brief.named
        } else {
            &mut brief.shortened
        };
        list.push(entry.id.clone());
    }
    if !brief.cut.is_empty() && !brief.text.is_empty() {
        brief.text.push_str(&note(brief.cut.len()));
    }
    brief.tokens = brief.text.len().div_ceil(BYTES_PER_TOKEN);
    brief
}
