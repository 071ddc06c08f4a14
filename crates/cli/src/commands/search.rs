//! `search`: prints the skills that fit a message, with the reason.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use repertoire_core::{markdown::to_single_line, text::terminal_safe};
use repertoire_registry::{
    Snapshot,
    search::{COSINE_THRESHOLD, LEXICAL_THRESHOLD, MatchReason, Recommendation, SkillIndex},
};
use serde_json::json;

use super::{open_registry, setup::index_skills};
use crate::{
    args::SearchArgs,
    output::{DIM, ID, Output, format_count, terminal_width, truncate_to_width},
    settings::CliSettings,
};

/// How long a search may take to embed new skills.
pub(super) const INDEXING_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn run(args: &SearchArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let registry = open_registry(&[], settings, output)?;
    let snapshot = registry.snapshot();
    let finder = index_skills(&registry, &snapshot, settings, INDEXING_TIMEOUT, output)?;
    let message = args.message.join(" ");
    let found = finder.find_skills(&message, args.limit)?;
    let shown: Vec<&Recommendation> = found.iter().filter(|one| args.all || one.fits).collect();
    if output.json {
        output.print_json(&json!({
            "message": message, "by": search_method(&finder), "skills": shown,
            "threshold": {"words": LEXICAL_THRESHOLD, "meaning": COSINE_THRESHOLD},
            "unread": finder.pending_count(),
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &shown {
        output.print_text(&format!("{}\n", format_recommendation(one, &snapshot)))?;
    }
    if shown.is_empty() {
        output.print_note(explain_no_match(&finder, &found));
    }
    if finder.pending_count() > 0 {
        output.print_note(format!(
            "{} not embedded yet and found by words alone: run `repertoire setup embeddings`",
            format_count(finder.pending_count(), "skill")
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn search_method(finder: &SkillIndex) -> &'static str {
    if finder.has_embeddings() {
        "words and meaning"
    } else {
        "words"
    }
}

/// Formats one line about a found skill.
pub(super) fn format_recommendation(one: &Recommendation, snapshot: &Snapshot) -> String {
    let about = snapshot
        .get(&one.id)
        .and_then(|entry| entry.metadata.description.as_deref())
        .unwrap_or_default();
    let line = format!(
        "{:>3.0}%  {ID}{}{ID:#}  {DIM}{}{DIM:#}  {}",
        one.score * 100.0,
        terminal_safe(one.id.as_str()),
        terminal_safe(&match_reason(one)),
        terminal_safe(&to_single_line(about)),
    );
    terminal_width().map_or(line.clone(), |columns| {
        truncate_to_width(&line, columns + 24)
    })
}

/// Explains why no skill fits.
pub(super) fn explain_no_match(finder: &SkillIndex, found: &[Recommendation]) -> String {
    let best = found.first();
    if let Some(cosine) = best.and_then(|best| best.cosine) {
        return format!(
            "nothing fits: the most similar skill has a similarity of {cosine:.2}, and \
             {COSINE_THRESHOLD} is needed (`repertoire search --all` shows them)"
        );
    }
    let best = best.map(|best| format!("; the best is at {:.0}%", best.score * 100.0));
    let embeddings = if finder.has_embeddings() {
        ""
    } else {
        "; `repertoire setup embeddings` adds search by meaning"
    };
    format!(
        "nothing fits: no skill covers {:.0}% of the words of the message{} (`repertoire search \
         --all` shows them{embeddings})",
        LEXICAL_THRESHOLD * 100.0,
        best.unwrap_or_default()
    )
}

fn match_reason(one: &Recommendation) -> String {
    match &one.why {
        MatchReason::Named => "is named".to_owned(),
        MatchReason::Phrase(phrase) => format!("says {phrase:?}"),
        MatchReason::Words => "shares words".to_owned(),
        MatchReason::Meaning => "has a similar meaning".to_owned(),
    }
}
