//! `catalogue`: prints a summary of the skills for a model, within a token budget.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{SkillId, text::terminal_safe};
use repertoire_registry::{SkillEntry, render_catalogue_text};

use super::{
    open_registry,
    search::{INDEXING_TIMEOUT, explain_no_match},
    setup::index_skills,
};
use crate::{
    args::CatalogueArgs,
    output::{Output, format_count},
    settings::CliSettings,
};

/// How many skills are listed for a message at most.
const MESSAGE_SKILLS: usize = 50;

pub(crate) fn run(
    args: &CatalogueArgs,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let entries: Vec<Arc<SkillEntry>> = match &args.message {
        None => snapshot.skills().cloned().collect(),
        Some(message) => {
            let finder = index_skills(&registry, &snapshot, settings, INDEXING_TIMEOUT, output)?;
            let found = finder.find_skills(message, MESSAGE_SKILLS);
            if found.fitting().is_empty() {
                output.print_note(explain_no_match(&found));
            }
            let fitting = found.fitting().iter();
            fitting
                .filter_map(|one| snapshot.get(&one.id).cloned())
                .collect()
        }
    };
    let catalogue = render_catalogue_text(entries.iter(), args.tokens);
    if output.json {
        output.print_json(&catalogue)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_bytes(catalogue.text.as_bytes())?;
    output.print_note(format!(
        "about {} of {} tokens: {} in full, {} shortened, {} only named, {} cut",
        catalogue.tokens,
        args.tokens,
        format_count(catalogue.whole.len(), "skill"),
        catalogue.shortened.len(),
        catalogue.named.len(),
        catalogue.cut.len()
    ));
    if !catalogue.cut.is_empty() {
        let cut = catalogue.cut.iter().take(10).map(SkillId::as_str);
        let cut: Vec<&str> = cut.collect();
        let more = if catalogue.cut.len() > 10 {
            ", …"
        } else {
            ""
        };
        let cut = terminal_safe(&cut.join(", ")).into_owned();
        output.print_note(format!("cut: {cut}{more} (--json names all)"));
    }
    Ok(ExitCode::SUCCESS)
}
