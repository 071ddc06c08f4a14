//! The catalogue as text for a system prompt, cut to a token budget.

use repertoire_core::{
    SkillId,
    markdown::{to_single_line, truncate_text},
};
use serde::Serialize;

use crate::{catalogue::SkillEntry, origin::Trusted};

/// The approximate number of bytes per token in English prose.
const BYTES_PER_TOKEN: usize = 4;
/// The most characters of a shortened description.
const MAX_SHORT_CHARS: usize = 100;

/// The text that describes the skills to a model, and which skills it omits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CatalogueText {
    /// The text: one line per skill.
    pub text: String,
    /// The approximate number of tokens of the text.
    pub tokens: usize,
    /// Skills with their full descriptions.
    pub whole: Vec<SkillId>,
    /// Skills with shortened descriptions.
    pub shortened: Vec<SkillId>,
    /// Skills with their name only.
    pub named: Vec<SkillId>,
    /// Skills that were omitted.
    pub cut: Vec<SkillId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DetailLevel {
    Named,
    Short,
    Whole,
}

fn render_line(entry: &SkillEntry, level: DetailLevel) -> String {
    let about = to_single_line(entry.metadata.description.as_deref().unwrap_or_default());
    match level {
        _ if about.is_empty() => format!("- {}\n", entry.id),
        DetailLevel::Named => format!("- {}\n", entry.id),
        DetailLevel::Short => format!(
            "- {}: {}\n",
            entry.id,
            truncate_text(&about, MAX_SHORT_CHARS)
        ),
        DetailLevel::Whole => format!("- {}: {about}\n", entry.id),
    }
}

/// Renders skills within a token budget. Earlier entries get more detail: every skill is named
/// before any is described, and every skill gets a short description before any gets a full one.
/// Untrusted skills are omitted.
///
/// ```
/// use repertoire_registry::{Registry, RegistrySettings, render_catalogue_text};
///
/// let registry = Registry::open(RegistrySettings::from_folders(["../../examples/skills".into()]))?;
/// let snapshot = registry.snapshot();
/// let all = render_catalogue_text(snapshot.skills(), 2_000);
/// assert_eq!((all.whole.len(), all.cut.len()), (snapshot.len(), 0));
/// let few = render_catalogue_text(snapshot.skills(), 15);
/// assert!(few.tokens <= 15 && !few.cut.is_empty());
/// # Ok::<(), repertoire_registry::Error>(())
/// ```
pub fn render_catalogue_text<'a, E>(
    entries: impl Iterator<Item = &'a E>,
    tokens: usize,
) -> CatalogueText
where
    E: AsRef<SkillEntry> + 'a,
{
    let entries: Vec<&SkillEntry> = entries
        .map(AsRef::as_ref)
        .filter(|entry| entry.trusted == Trusted::Yes)
        .collect();
    let budget = tokens.saturating_mul(BYTES_PER_TOKEN);
    let sizes = |level| -> Vec<usize> {
        entries
            .iter()
            .map(|e| render_line(e, level).len())
            .collect()
    };
    let mut levels = vec![None; entries.len()];
    let mut used = 0;
    // Name every skill that fits, reserving space for the line that counts the omitted ones.
    let note = |left: usize| format!("… and {left} more\n");
    let named = sizes(DetailLevel::Named);
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
        *level = Some(DetailLevel::Named);
    }
    // Then add descriptions from the first entry on, as long as they fit.
    let mut known = named;
    let mut is_full = levels.contains(&None);
    for next in [DetailLevel::Short, DetailLevel::Whole] {
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
    let mut brief = CatalogueText::default();
    for (entry, level) in entries.iter().zip(&levels) {
        let Some(level) = *level else {
            brief.cut.push(entry.id.clone());
            continue;
        };
        let rendered = render_line(entry, level);
        brief.text.push_str(&rendered);
        // A short description counts as full if it was not shortened.
        let list = if rendered == render_line(entry, DetailLevel::Whole) {
            &mut brief.whole
        } else if level == DetailLevel::Named {
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
