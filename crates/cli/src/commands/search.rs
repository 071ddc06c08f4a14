//! `search`: prints the skills that fit a message, with the reason.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use repertoire_app::{install::FetchOptions, uses_of};
use repertoire_core::{
    SkillId,
    markdown::{to_single_line, truncate_text},
    text::terminal_safe,
};
use repertoire_registry::{
    Snapshot, Trusted,
    search::{
        GateFeatures, MatchReason, Recommendation, SearchMethod, SearchOutcome, SearchRequest,
        SkillIndex,
    },
};
use serde_json::json;

use super::{install::open_installer, open_registry, setup::index_skills};
use crate::{
    args::{ScopeArg, SearchArgs},
    failure::UsageError,
    output::{DIM, ID, Output, format_count, terminal_width, truncate_to_width},
    settings::CliSettings,
};

/// How long a search may take to embed new skills.
pub(super) const INDEXING_TIMEOUT: Duration = Duration::from_secs(3);
/// The most characters of a description in a line.
const MAX_ABOUT_CHARS: usize = 240;
/// The owner of what the user of this machine chooses.
const LOCAL_OWNER: &str = "user";

/// Searches a ClawHub registry.
fn search_remote(args: &SearchArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    let options = FetchOptions {
        private: args.private,
        ..FetchOptions::default()
    };
    let installer = open_installer(Some(ScopeArg::Account), options, settings, output)?;
    let registry = args.registry.as_deref().unwrap_or_default();
    let words = args.message.join(" ");
    let found = output.with_spinner("searching", || {
        installer.search(registry, &words, args.limit)
    })?;
    if output.json {
        let rows: Vec<_> = found
            .iter()
            .map(|one| {
                json!({
                    "source": one.source, "title": one.title, "summary": one.summary,
                    "version": one.version,
                })
            })
            .collect();
        output.print_json(&json!({"skills": rows}))?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in &found {
        let about = truncate_text(&to_single_line(&one.summary), MAX_ABOUT_CHARS);
        output.print_text(&format!(
            "{ID}{}{ID:#}  {}  {DIM}{}{DIM:#}\n",
            terminal_safe(&one.source),
            terminal_safe(&about),
            terminal_safe(one.version.as_deref().unwrap_or_default())
        ))?;
    }
    match found.first() {
        None => output.print_note("the registry has no such skill"),
        Some(first) => output.print_note(format!(
            "look at one with `repertoire show {}`, add it with `repertoire add`",
            terminal_safe(&first.source)
        )),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &SearchArgs, settings: &CliSettings, output: &Output) -> Result<ExitCode> {
    if args.remote {
        return search_remote(args, settings, output);
    }
    let registry = open_registry(&[], settings, output)?;
    if args.forget {
        let forgotten = registry.local_store()?.forget_skill_uses(None)?;
        output.print_note(format!("forgot {}", format_count(forgotten, "choice")));
        if output.json {
            output.print_json(&json!({"forgotten": forgotten}))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let snapshot = registry.snapshot();
    let index = index_skills(&registry, &snapshot, settings, INDEXING_TIMEOUT, output)?;
    let message = args.message.join(" ");
    if message.trim().is_empty() {
        return Err(UsageError("the message is empty".to_owned()).into());
    }
    let encoder = index.encoder();
    let uses = uses_of(&registry, encoder.as_deref(), LOCAL_OWNER, settings.usage);
    let found = index.search(&SearchRequest {
        uses: &uses,
        ..SearchRequest::new(&message, args.limit)
    });
    let shown = if args.all {
        &found.skills
    } else {
        found.fitting()
    };
    if output.json {
        output.print_json(&json!({
            "message": message, "by": found.method.as_str(), "skills": shown,
            "decision": found.decision, "features": found.features, "pending": found.pending,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for one in shown {
        output.print_text(&format!("{}\n", format_recommendation(one, &snapshot)))?;
        if args.explain {
            output.print_text(&format!("      {DIM}{}{DIM:#}\n", explain_score(one)))?;
        }
    }
    if args.explain {
        output.print_note(explain_decision(&found));
    } else if found.fitting().is_empty() {
        output.print_note(explain_no_match(&found));
    }
    note_method(&index, &found, output);
    Ok(ExitCode::SUCCESS)
}

/// Says why skills are found by words alone.
fn note_method(index: &SkillIndex, found: &SearchOutcome, output: &Output) {
    if found.pending > 0 {
        let how = match found.method {
            SearchMethod::Words => "so that this search compared words only",
            SearchMethod::Meaning => "and found by words alone",
        };
        output.print_note(format!(
            "{} not embedded yet, {how}: run `repertoire setup embeddings`",
            format_count(found.pending, "skill")
        ));
    } else if !index.has_embeddings() && found.fitting().is_empty() {
        output.print_note("`repertoire setup embeddings` adds search by meaning");
    }
}

/// Formats one line about a found skill.
pub(super) fn format_recommendation(one: &Recommendation, snapshot: &Snapshot) -> String {
    let about = snapshot
        .get(&one.id)
        .and_then(|entry| entry.metadata.description.as_deref())
        .unwrap_or_default();
    let also = match one.also.as_slice() {
        [] => String::new(),
        others => {
            let others: Vec<&str> = others.iter().take(3).map(SkillId::as_str).collect();
            format!("; nearly the same: {}", terminal_safe(&others.join(", ")))
        }
    };
    let is_trusted = snapshot
        .get(&one.id)
        .is_none_or(|entry| entry.trusted == Trusted::Yes);
    let label = if is_trusted { "" } else { " [untrusted]" };
    let line = format!(
        "{:>3.0}%  {ID}{}{ID:#}{label}  {DIM}{}{also}{DIM:#}  {}",
        one.score * 100.0,
        terminal_safe(one.id.as_str()),
        terminal_safe(&match_reason(one)),
        terminal_safe(&truncate_text(&to_single_line(about), MAX_ABOUT_CHARS)),
    );
    terminal_width().map_or(line.clone(), |columns| {
        truncate_to_width(&line, columns + 24)
    })
}

/// Formats what a score is made of.
fn explain_score(one: &Recommendation) -> String {
    let parts = [
        ("name", one.parts.name),
        ("phrase", one.parts.phrase),
        ("words", one.parts.words),
        ("meaning", one.parts.meaning),
        ("used before", one.parts.usage),
        ("vague or untrusted", one.parts.loss),
    ];
    let parts = parts.iter().filter(|(_, part)| part.abs() >= 0.0005);
    let parts: Vec<String> = parts
        .map(|(name, part)| format!("{name} {:+.1}", part * 100.0))
        .collect();
    parts.join(", ")
}

/// Formats what the decision whether anything fits is made of.
fn explain_decision(found: &SearchOutcome) -> String {
    let GateFeatures {
        best_cosine,
        tenth_cosine,
        best_share,
        unknown_terms,
        ..
    } = found.features;
    let features = match best_cosine.zip(tenth_cosine) {
        Some((best, tenth)) => format!("similarity {best:.2}, of the tenth skill {tenth:.2}"),
        None => format!("{:.0}% of the words are covered", best_share * 100.0),
    };
    format!(
        "the confidence that something fits is {:.0}%, and {:.0}% is needed ({features}, {:.0}% of \
         the words are in no skill)",
        found.decision.confidence * 100.0,
        found.decision.threshold * 100.0,
        unknown_terms * 100.0
    )
}

/// Explains why no skill fits.
pub(super) fn explain_no_match(found: &SearchOutcome) -> String {
    if found.skills.is_empty() {
        return "nothing fits: no skill shares a word with the message".to_owned();
    }
    format!(
        "nothing fits: the confidence that any skill does is {:.0}%, and {:.0}% is needed \
         (`repertoire search --all` shows the best skills)",
        found.decision.confidence * 100.0,
        found.decision.threshold * 100.0
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
