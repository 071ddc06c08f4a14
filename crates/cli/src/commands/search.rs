//! `search`: the skills that fit a message, and why.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use repertoire_core::{markdown::one_line, text::terminal_safe};
use repertoire_registry::{
    Snapshot,
    search::{Finder, MEANING_THRESHOLD, Recommendation, THRESHOLD, Why},
};
use serde_json::json;

use super::{open, setup::finder};
use crate::{
    args::SearchArgs,
    output::{DIM, ID, Output, count, fit, width},
    settings::Settings,
};

/// How long somebody waits for skills that were never read.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &SearchArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let registry = open(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let finder = finder(&registry, &snapshot, settings, PATIENCE, output)?;
    let message = args.message.join(" ");
    let found = finder.find(&message, args.limit)?;
    let shown: Vec<&Recommendation> = found.iter().filter(|one| args.all || one.fits).collect();
    if output.json {
        output.print_json(&json!({
            "message": message, "by": method(&finder), "skills": shown,
            "threshold": {"words": THRESHOLD, "meaning": MEANING_THRESHOLD},
            "unread": finder.wanting(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &shown {
        output.print(&format!("{}\n", line(one, &snapshot)))?;
    }
    if shown.is_empty() {
        output.note(nothing(&finder, &found));
    }
    if finder.wanting() > 0 {
        output.note(format!(
            "{} not read yet and found by words alone: `repertoire setup embeddings` reads them",
            count(finder.wanting(), "skill")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn method(finder: &Finder) -> &'static str {
    if finder.understands() {
        "words and meaning"
    } else {
        "words"
    }
}

/// One line about a skill that was found.
pub(super) fn line(one: &Recommendation, snapshot: &Snapshot) -> String {
    let about = snapshot
        .get(&one.id)
        .and_then(|entry| entry.head.description.as_deref())
        .unwrap_or_default();
    let line = format!(
        "{:>3.0}%  {ID}{}{ID:#}  {DIM}{}{DIM:#}  {}",
        one.score * 100.0,
        terminal_safe(one.id.as_str()),
        terminal_safe(&reason(one)),
        terminal_safe(&one_line(about)),
    );
    width().map_or(line.clone(), |columns| fit(&line, columns + 24))
}

/// Why nothing fits.
pub(super) fn nothing(finder: &Finder, found: &[Recommendation]) -> String {
    let best = found.first();
    if let Some(cosine) = best.and_then(|best| best.cosine) {
        return format!(
            "nothing fits: the likest skill means something like it by {cosine:.2}, and \
             {MEANING_THRESHOLD} is needed (`repertoire search --all` shows them)"
        );
    }
    let best = best.map(|best| format!("; the best is at {:.0}%", best.score * 100.0));
    let embeddings = if finder.understands() {
        ""
    } else {
        "; `repertoire setup embeddings` also looks at what it means"
    };
    format!(
        "nothing fits: no skill speaks of {:.0}% of what the message says{} (`repertoire search \
         --all` shows them{embeddings})",
        THRESHOLD * 100.0,
        best.unwrap_or_default()
    )
}

fn reason(one: &Recommendation) -> String {
    match &one.why {
        Why::Named => "is named".to_owned(),
        Why::Phrase(phrase) => format!("says {phrase:?}"),
        Why::Words => "speaks of it".to_owned(),
        Why::Meaning => "means something like it".to_owned(),
    }
}
