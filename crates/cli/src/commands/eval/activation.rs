//! Prints how well search finds the expected skills.

use anyhow::Result;
use repertoire_app::ActivationReport;
use repertoire_core::text::terminal_safe;
use serde_json::json;

use crate::output::{BOLD, DIM, Output, format_count};

/// Prints the metrics of each search method.
pub(super) fn print_report(
    report: &ActivationReport<'_>,
    misses: bool,
    output: &Output,
) -> Result<()> {
    let Some((_, first, _)) = report.by.first() else {
        return Ok(());
    };
    let counts = first.kinds.iter();
    let counts: Vec<String> = counts
        .map(|(kind, tally)| format!("{} {}", tally.cases, kind.as_str()))
        .collect();
    output.print_text(&format!(
        "{DIM}{}; messages: {}{DIM:#}\n",
        format_count(report.skills, "skill"),
        counts.join(", "),
    ))?;
    for (name, found, goals) in &report.by {
        output.print_text(&format!("\n{BOLD}{name}{BOLD:#}\n"))?;
        for figure in found.goal_metrics(goals) {
            let goal = match figure.goal {
                None => String::new(),
                Some(goal) if figure.is_unmeasured() => {
                    format!("  MISSED: goal {goal}, and no message measures it")
                }
                Some(goal) if figure.is_missed() => format!("  MISSED: goal {goal}"),
                Some(goal) => format!("  goal {goal} met"),
            };
            output.print_text(&format!(
                "  {:<18} {:.2}{goal}\n",
                figure.name, figure.value
            ))?;
        }
        output.print_text(&format!(
            "  {DIM}{:<18} {:>6} {:>6} {:>6} {:>6}{DIM:#}\n",
            "messages", "all", "first", "top 5", "shown"
        ))?;
        for (kind, tally) in &found.kinds {
            output.print_text(&format!(
                "  {:<18} {:>6} {:>6} {:>6} {:>6}\n",
                kind.as_str(),
                tally.cases,
                tally.first,
                tally.in_top,
                tally.shown
            ))?;
        }
        if !misses {
            continue;
        }
        for miss in &found.misses {
            let text = |key: &str| miss[key].as_str().unwrap_or("nothing").to_owned();
            let fits = if miss["shown"] == json!(true) {
                ""
            } else {
                ", not shown"
            };
            let line = format!(
                "  {} → {} ({:.2}{fits}), expected {}",
                text("message"),
                text("found"),
                miss["score"].as_f64().unwrap_or(0.0),
                text("expect")
            );
            output.print_text(&format!("{}\n", terminal_safe(&line)))?;
        }
    }
    Ok(())
}
