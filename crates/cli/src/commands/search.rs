//! `search`: the skills that fit a message, and why.

use std::process::ExitCode;

use anyhow::Result;
use repertoire_core::{markdown::one_line, text::terminal_safe};
use repertoire_registry::search::{Finder, Recommendation, THRESHOLD, Why};
use serde_json::json;

use super::open;
use crate::{
    args::SearchArgs,
    output::{DIM, ID, Output, fit, width},
    settings::Settings,
};

pub(crate) fn run(args: &SearchArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let finder = output.working("indexing skills", || Finder::new(&registry, &snapshot))?;
    let message = args.message.join(" ");
    let mut found = finder.find(&message, args.limit)?;
    let best = found.first().map(|one| one.score);
    if !args.all {
        found.retain(|one| one.score >= THRESHOLD);
    }
    if output.json {
        output.print_json(&json!({
            "message": message, "threshold": THRESHOLD, "skills": found,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &found {
        let entry = snapshot.get(&one.id);
        let about = entry
            .and_then(|entry| entry.head.description.as_deref())
            .unwrap_or_default();
        let line = format!(
            "{:>3.0}%  {ID}{}{ID:#}  {DIM}{}{DIM:#}  {}",
            one.score * 100.0,
            terminal_safe(one.id.as_str()),
            terminal_safe(&reason(one)),
            terminal_safe(&one_line(about)),
        );
        let line = width().map_or(line.clone(), |columns| fit(&line, columns + 24));
        output.print(&format!("{line}\n"))?;
    }
    if found.is_empty() {
        let best = best.map(|score| format!("; the best is at {:.0}%", score * 100.0));
        output.note(format!(
            "nothing fits: no skill speaks of {:.0}% of what the message says{} (--all shows them)",
            THRESHOLD * 100.0,
            best.unwrap_or_default()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn reason(one: &Recommendation) -> String {
    match &one.why {
        Why::Named => "is named".to_owned(),
        Why::Phrase(phrase) => format!("says {phrase:?}"),
        Why::Words => "speaks of it".to_owned(),
    }
}
