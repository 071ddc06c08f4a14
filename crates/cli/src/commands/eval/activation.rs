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
    output.print_text(&format!(
        "{DIM}{}, {} messages that fit one, {} that name one, {} that fit none{DIM:#}\n",
        format_count(report.skills, "skill"),
        first.expected_skill.iter().sum::<usize>(),
        first.named,
        first.expected_none.iter().sum::<usize>(),
    ))?;
    for (name, found, goals) in &report.by {
        output.print_text(&format!("\n{BOLD}{name}{BOLD:#}\n"))?;
        for figure in found.goal_metrics(goals) {
            let goal = match figure.goal {
                None => String::new(),
                Some(goal) if figure.is_missed() => format!("  MISSED: goal {goal}"),
                Some(goal) => format!("  goal {goal} met"),
            };
            output.print_text(&format!(
                "  {:<18} {:.2}{goal}\n",
                figure.name, figure.value
            ))?;
        }
        let [right, another, nothing] = found.expected_skill;
        let [something, none] = found.expected_none;
        output.print_text(&format!(
            "  {DIM}{:<18} {:>6} {:>8} {:>8}{DIM:#}\n  {:<18} {right:>6} {another:>8} \
             {nothing:>8}\n  {:<18} {:>6} {something:>8} {none:>8}\n",
            "expected", "right", "another", "nothing", "a skill", "nothing", "-"
        ))?;
        if !misses {
            continue;
        }
        for miss in &found.misses {
            let text = |key: &str| miss[key].as_str().unwrap_or("nothing").to_owned();
            let fits = if miss["fits"] == json!(true) {
                ""
            } else {
                ", below the threshold"
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
