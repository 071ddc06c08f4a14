//! The behaviour of the functions on a bus, specified in feature files.
//!
//! `cargo test --test bdd -- --tags @pure` needs nothing. Everything else starts a hub, or uses
//! the engine that `III_ENGINE_WS_URL` names; one that cannot be reached fails the run.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::needless_pass_by_value,
    clippy::trivial_regex,
    clippy::struct_excessive_bools,
    clippy::match_bool,
    clippy::single_match_else,
    clippy::used_underscore_binding,
    clippy::unused_async,
    reason = "a test"
)]

mod bus;
mod engines;
#[path = "../process/mod.rs"]
mod process;
#[path = "../quirky_bus/mod.rs"]
mod quirky_bus;
mod report;
mod standby;
mod steps;

use std::process::ExitCode;

use cucumber::{
    World as _, WriterExt as _, cli,
    gherkin::{Feature, Rule, Scenario},
    parser, runner,
    tag::Ext as _,
    writer,
};
use futures::{FutureExt as _, StreamExt as _};

use report::ScenarioReport;
use steps::World;

const FEATURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/features");

/// The flags that `cargo test` passes to every test, so that `cargo test -- …` works.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
struct LibtestArgs {
    /// Only scenarios whose name contains one of these
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    #[arg(long, hide = true)]
    skip: Vec<String>,
    #[arg(long, hide = true)]
    exact: bool,
    #[arg(long, hide = true)]
    list: bool,
    #[arg(long, hide = true)]
    ignored: bool,
    #[arg(long, hide = true)]
    include_ignored: bool,
    #[arg(long, hide = true, alias = "no-capture")]
    nocapture: bool,
    #[arg(long, hide = true)]
    show_output: bool,
    #[arg(long, hide = true)]
    test_threads: Option<usize>,
    #[arg(long, hide = true)]
    format: Option<String>,
    #[arg(short = 'Z', hide = true)]
    unstable: Vec<String>,
    #[arg(long, short, hide = true)]
    quiet: bool,
}

type Opts = cli::Opts<parser::basic::Cli, runner::basic::Cli, writer::basic::Cli, LibtestArgs>;

fn scenario_tags<'a>(
    feature: &'a Feature,
    rule: Option<&'a Rule>,
    scenario: &'a Scenario,
) -> impl Iterator<Item = &'a String> + Clone {
    let rule = rule.into_iter().flat_map(|rule| &rule.tags);
    feature.tags.iter().chain(rule).chain(&scenario.tags)
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut opts = Opts::parsed();
    let libtest = std::mem::take(&mut opts.custom);
    // Cucumber would let these replace the closure below.
    let (name, expression) = (opts.re_filter.take(), opts.tags_filter.take());
    let (filters, skip, exact) = (libtest.filters.clone(), libtest.skip, libtest.exact);
    let hit = move |filter: &String, name: &str| match exact {
        true => name == filter,
        false => name.contains(filter.as_str()),
    };
    let pick = move |feature: &Feature, rule: Option<&Rule>, scenario: &Scenario| {
        // Not every bus can be made to fail.
        let needs_quirks = scenario_tags(feature, rule, scenario).any(|tag| tag == "quirks");
        (!needs_quirks || bus::has_quirks())
            && expression
                .as_ref()
                .is_none_or(|expression| expression.eval(scenario_tags(feature, rule, scenario)))
            && name
                .as_ref()
                .is_none_or(|name| name.is_match(&scenario.name))
            && (filters.is_empty() || filters.iter().any(|f| hit(f, &scenario.name)))
            && !skip.iter().any(|f| hit(f, &scenario.name))
    };
    let (mut selected, mut needs_bus) = (Vec::new(), false);
    let mut features = cucumber::Parser::parse(parser::Basic::new(), FEATURES, opts.parser.clone());
    while let Some(feature) = features.next().await {
        // A feature that cannot be parsed is reported by the run itself.
        let Ok(feature) = feature else { continue };
        for scenario in feature.scenarios.iter().filter(|s| pick(&feature, None, s)) {
            // A mistyped keyword is parsed as prose, so the scenario has no steps.
            assert!(!scenario.steps.is_empty(), "{}: no steps", scenario.name);
            needs_bus |= scenario_tags(&feature, None, scenario).any(|tag| tag == "engine");
            selected.push(format!("{}: {}", feature.name, scenario.name));
        }
    }
    if libtest.list {
        for name in &selected {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    if libtest.ignored || (selected.is_empty() && !libtest.filters.is_empty()) {
        return ExitCode::SUCCESS;
    }
    if needs_bus {
        bus::start().await;
    }
    let quiet = opts.writer.verbose == 0 || libtest.quiet;
    let writer = World::cucumber::<&str>()
        // All scenarios share one registry.
        .max_concurrent_scenarios(1)
        .after(|_, _, _, _, world| {
            async move {
                if let Some(world) = world {
                    world.clean_up().await;
                }
            }
            .boxed_local()
        })
        .with_writer(ScenarioReport::new(quiet).fail_on_skipped())
        .with_cli(opts)
        .filter_run(FEATURES, pick)
        .await;
    bus::stop();
    let ScenarioReport {
        passed,
        failed,
        errors,
        ..
    } = writer.inner_writer();
    let bad = *failed + *errors;
    let word = if bad == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {bad} failed; 0 ignored");
    // A tag that selects nothing is a mistake, not a success.
    ExitCode::from(u8::from(bad > 0 || passed + failed == 0))
}
