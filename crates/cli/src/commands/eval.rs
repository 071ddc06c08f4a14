//! `eval`: how well messages find the skills they mean.

use std::process::ExitCode;

use anyhow::{Context, Result};
use repertoire_core::{Frontmatter, text::terminal_safe};
use repertoire_registry::{
    Registry, Settings as Sources,
    search::{Finder, Recommendation, THRESHOLD},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::open;
use crate::{
    args::EvalArgs,
    failure::{PROBLEMS, Usage},
    output::{BOLD, DIM, Output, count},
    settings::Settings,
};

/// How many of the best are looked at.
const BEST: usize = 5;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    skills: Option<String>,
    #[serde(default)]
    threshold: Option<f64>,
    #[serde(default)]
    goals: Goals,
    activations: Vec<Activation>,
}

/// What has to be reached.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Goals {
    #[serde(default)]
    hit_at_1: Option<f64>,
    #[serde(default)]
    hit_at_5: Option<f64>,
    #[serde(default)]
    named: Option<f64>,
    /// At most this share of what fits nothing may activate something.
    #[serde(default)]
    false_activation: Option<f64>,
}

/// A message, and the skill it means.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Activation {
    message: String,
    expect: String,
    /// Whether the message names the skill.
    #[serde(default)]
    named: bool,
}

/// What was found.
#[derive(Debug, Default)]
struct Found {
    /// Expected a skill: right, another one, nothing.
    fitting: [usize; 3],
    in_best: usize,
    first: usize,
    /// Expected nothing: something, nothing.
    unfitting: [usize; 2],
    named: usize,
    named_first: usize,
    misses: Vec<Value>,
}

pub(crate) fn run(args: &EvalArgs, settings: &Settings, output: &Output) -> Result<ExitCode> {
    let at = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| at.to_string())?;
    let wrong = |reason: String| Usage(format!("{at}: {reason}"));
    let yaml = Frontmatter::parse(&text, 1).map_err(|error| wrong(error.to_string()))?;
    let file: File = serde_json::from_value(Value::Object(yaml.to_json()))
        .map_err(|error| wrong(error.to_string()))?;
    let registry = match &file.skills {
        None => open(&[], settings, output)?,
        Some(folder) => {
            let base = args.file.parent().unwrap_or(std::path::Path::new("."));
            let folder = base.join(folder);
            crate::settings::need_folder(&folder)?;
            Registry::open(Sources::of_folders([folder]))?
        }
    };
    let snapshot = registry.snapshot();
    for activation in file.activations.iter().filter(|a| a.expect != "none") {
        let known = activation
            .expect
            .parse()
            .ok()
            .and_then(|id| snapshot.get(&id));
        if known.is_none() {
            let reason = format!(
                "expects the skill {:?}, which is not there",
                activation.expect
            );
            return Err(wrong(reason).into());
        }
    }
    let finder = output.working("indexing skills", || Finder::new(&registry, &snapshot))?;
    let threshold = file.threshold.unwrap_or(THRESHOLD);
    let mut found = Found::default();
    for activation in &file.activations {
        let best = finder.find(&activation.message, BEST)?;
        found.note(activation, &best, threshold);
    }
    print(args, &file, &found, finder.len(), threshold, output)
}

impl Found {
    fn note(&mut self, activation: &Activation, best: &[Recommendation], threshold: f64) {
        let first = best.first();
        let activated = first.filter(|first| first.score >= threshold);
        let is = |one: &Recommendation| one.id.as_str() == activation.expect;
        let right = match (activation.expect.as_str(), activated) {
            ("none", Some(_)) => {
                self.unfitting[0] += 1;
                false
            }
            ("none", None) => {
                self.unfitting[1] += 1;
                true
            }
            _ if activation.named => {
                self.named += 1;
                let right = first.is_some_and(is);
                self.named_first += usize::from(right);
                right
            }
            (_, activated) => {
                self.first += usize::from(first.is_some_and(is));
                self.in_best += usize::from(best.iter().any(is));
                let place = match activated {
                    Some(one) if is(one) => 0,
                    Some(_) => 1,
                    None => 2,
                };
                self.fitting[place] += 1;
                place == 0
            }
        };
        if !right {
            self.misses.push(json!({
                "message": activation.message, "expect": activation.expect,
                "found": first.map(|one| &one.id), "score": first.map(|one| one.score),
            }));
        }
    }
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    #[allow(clippy::cast_precision_loss, reason = "numbers of messages are small")]
    let share = part as f64 / whole as f64;
    share
}

fn print(
    args: &EvalArgs,
    file: &File,
    found: &Found,
    skills: usize,
    threshold: f64,
    output: &Output,
) -> Result<ExitCode> {
    let fitting: usize = found.fitting.iter().sum();
    let unfitting: usize = found.unfitting.iter().sum();
    let figures = [
        (
            "hit@1",
            share(found.first, fitting),
            file.goals.hit_at_1,
            true,
        ),
        (
            "hit@5",
            share(found.in_best, fitting),
            file.goals.hit_at_5,
            true,
        ),
        (
            "named",
            share(found.named_first, found.named),
            file.goals.named,
            true,
        ),
        (
            "false activation",
            share(found.unfitting[0], unfitting),
            file.goals.false_activation,
            false,
        ),
    ];
    let missed = |value: f64, goal: Option<f64>, more: bool| {
        goal.is_some_and(|goal| if more { value < goal } else { value > goal })
    };
    let any_missed = figures
        .iter()
        .any(|(_, value, goal, more)| missed(*value, *goal, *more));
    if output.json {
        let figures: serde_json::Map<String, Value> = figures
            .iter()
            .map(|(name, value, goal, _)| {
                ((*name).to_owned(), json!({"value": value, "goal": goal}))
            })
            .collect();
        output.print_json(&json!({
            "skills": skills, "threshold": threshold, "figures": figures, "misses": found.misses,
            "confusion": {
                "expected_skill": {
                    "right": found.fitting[0], "another": found.fitting[1],
                    "nothing": found.fitting[2],
                },
                "expected_nothing": {
                    "something": found.unfitting[0], "nothing": found.unfitting[1],
                },
            },
        }))?;
    } else {
        output.print(&format!(
            "{DIM}{}, {fitting} messages that fit one, {} that name one, {unfitting} that fit none, \
             threshold {threshold}{DIM:#}\n\n",
            count(skills, "skill"),
            found.named,
        ))?;
        for (name, value, goal, more) in figures {
            let goal = match goal {
                None => String::new(),
                Some(wanted) if missed(value, goal, more) => format!("  MISSED: goal {wanted}"),
                Some(wanted) => format!("  goal {wanted} met"),
            };
            output.print(&format!("{BOLD}{name:<18}{BOLD:#} {value:.2}{goal}\n"))?;
        }
        let [right, another, nothing] = found.fitting;
        let [something, none] = found.unfitting;
        output.print(&format!(
            "\n{DIM}{:<18} {:>6} {:>8} {:>8}{DIM:#}\n{:<18} {right:>6} {another:>8} {nothing:>8}\n\
             {:<18} {:>6} {something:>8} {none:>8}\n",
            "expected", "right", "another", "nothing", "a skill", "nothing", "-"
        ))?;
        if args.misses {
            output.print("\n")?;
            for miss in &found.misses {
                let text = |key: &str| miss[key].as_str().unwrap_or("nothing").to_owned();
                let line = format!(
                    "{} → {} ({:.2}), expected {}",
                    text("message"),
                    text("found"),
                    miss["score"].as_f64().unwrap_or(0.0),
                    text("expect")
                );
                output.print(&format!("{}\n", terminal_safe(&line)))?;
            }
        }
    }
    Ok(if any_missed {
        ExitCode::from(PROBLEMS)
    } else {
        ExitCode::SUCCESS
    })
}
