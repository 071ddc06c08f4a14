//! Prints how well skills perform, with each and without it.

use std::sync::Arc;

use anyhow::Result;
use repertoire_app::{CaseOutcome, CaseResult, OutputCase};
use repertoire_core::text::terminal_safe;
use repertoire_registry::Registry;
use serde_json::{Value, json};

use super::super::{
    run::{ModelUse, build_runner},
    serve::build_runtime,
};
use crate::{
    args::ModelArgs,
    output::{BOLD, DIM, Output},
    settings::CliSettings,
};

fn format_summary(outcome: &CaseOutcome) -> String {
    let cost = outcome.usage.cost.map(|cost| format!(" ${cost:.6}"));
    format!(
        "{}/{}  {:>6} tokens{}",
        outcome.passed,
        outcome.of,
        outcome.usage.total_tokens(),
        cost.unwrap_or_default()
    )
}

/// The results of all cases.
#[derive(Debug, Default)]
pub(super) struct OutputReport {
    cases: Vec<CaseResult>,
}

impl OutputReport {
    /// Runs every case.
    pub(super) fn run_cases(
        registry: &Arc<Registry>,
        cases: &[OutputCase],
        model: &ModelArgs,
        settings: &CliSettings,
        output: &Output,
    ) -> Result<Self> {
        let mut report = Self::default();
        if cases.is_empty() {
            return Ok(report);
        }
        let runner = build_runner(registry.clone(), model, ModelUse::Calls, settings)?;
        let runtime = build_runtime()?;
        for (number, case) in (1..).zip(cases) {
            let what = format!(
                "case {number} of {}: {}",
                cases.len(),
                terminal_safe(&case.skill)
            );
            let result = output.with_spinner(&what, || runtime.block_on(runner.evaluate(case)))?;
            report.cases.push(result);
        }
        Ok(report)
    }

    pub(super) fn is_missed(&self) -> bool {
        self.cases.iter().any(|case| !case.with.is_passed())
    }

    pub(super) fn to_json(&self) -> Value {
        json!(self.cases)
    }

    pub(super) fn print_results(&self, output: &Output) -> Result<()> {
        if self.cases.is_empty() {
            return Ok(());
        }
        output.print_text(&format!("\n{BOLD}outputs{BOLD:#}\n"))?;
        for CaseResult {
            case,
            with,
            without,
        } in &self.cases
        {
            let verdict = if with.is_passed() { "" } else { "  MISSED" };
            output.print_text(&format!(
                "  {}{verdict}\n    {:<8} {}\n    {DIM}{:<8} {}{DIM:#}\n",
                terminal_safe(case),
                "with",
                format_summary(with),
                "without",
                format_summary(without)
            ))?;
            for problem in &with.problems {
                output.print_text(&format!("    {}\n", terminal_safe(problem)))?;
            }
        }
        Ok(())
    }
}
