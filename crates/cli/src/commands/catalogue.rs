//! `catalogue`: what to tell a model of the skills there are, within a budget.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use repertoire_core::{SkillId, text::terminal_safe};
use repertoire_registry::{Entry, brief};

use super::{
    open,
    search::{PATIENCE, nothing},
    setup::finder,
};
use crate::{
    args::CatalogueArgs,
    output::{Output, count},
    settings::Settings,
};

pub(crate) fn run(args: &CatalogueArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let entries: Vec<Arc<Entry>> = match &args.message {
        None => snapshot.skills().cloned().collect(),
        Some(message) => {
            let finder = finder(&registry, &snapshot, settings, PATIENCE, output)?;
            let found = finder.find(message, snapshot.len().max(1))?;
            if !found.iter().any(|one| one.fits) {
                output.note(nothing(&finder, &found));
            }
            let fits = found.into_iter().filter(|one| one.fits);
            fits.filter_map(|one| snapshot.get(&one.id).cloned())
                .collect()
        }
    };
    let told = brief(entries.iter(), args.tokens);
    if output.json {
        output.print_json(&told)?;
        return Ok(ExitCode::SUCCESS);
    }
    output.print_bytes(told.text.as_bytes())?;
    output.note(format!(
        "about {} of {} tokens: {} in full, {} shortened, {} only named, {} cut",
        told.tokens,
        args.tokens,
        count(told.whole.len(), "skill"),
        told.shortened.len(),
        told.named.len(),
        told.cut.len()
    ));
    if !told.cut.is_empty() {
        let cut = told.cut.iter().take(10).map(SkillId::as_str);
        let cut: Vec<&str> = cut.collect();
        let more = if told.cut.len() > 10 { ", …" } else { "" };
        let cut = terminal_safe(&cut.join(", ")).into_owned();
        output.note(format!("cut: {cut}{more} (--json names all)"));
    }
    Ok(ExitCode::SUCCESS)
}
