//! Fits the decision whether any skill fits a message, and prints its precision and recall.
//!
//! A logistic function of the features of each message in the tuning set: near misses weigh one and
//! a half times, other messages without a skill twice, and messages whose skill is not among the first
//! five not at all. Coefficients that would reverse the direction
//! of a feature are set to zero.

use std::path::Path;

use anyhow::Result;
use repertoire_app::{ActivationCase, CaseKind, ratio};
use repertoire_registry::search::{
    GateModel, MINILM_GATE, MPNET_GATE, ModelKind, SearchMethod, SearchRequest, SkillIndex,
    WORDS_GATE,
};

use crate::ranking::Corpus;

/// The share of messages with a fitting skill for which the gate is to open.
const WANTED_RECALL: f64 = 0.93;
/// How many of the best results count.
const TOP_RESULTS: usize = 5;
const STEPS: usize = 20_000;
const RATE: f64 = 0.5;
/// Pulls coefficients of standardised features to zero.
const SHRINKAGE: f64 = 0.0005;

/// One message: its features, whether a skill fits, and its weight.
struct Sample {
    kind: CaseKind,
    values: Vec<f64>,
    fits: f64,
    weight: f64,
}

fn samples(index: &SkillIndex, cases: &[ActivationCase], method: SearchMethod) -> Vec<Sample> {
    // Names open the gate whatever the features are.
    let cases = cases.iter().filter(|case| case.kind() != CaseKind::Named);
    cases
        .map(|case| {
            let found = index.search(&SearchRequest::new(&case.message, TOP_RESULTS).by(method));
            let is_found = found.skills.iter().any(|one| case.accepts(one.id.as_str()));
            let (fits, weight) = match case.kind() {
                CaseKind::Hard => (0.0, 1.5),
                CaseKind::Easy | CaseKind::Chitchat => (0.0, 2.0),
                // Showing the wrong skills does not help, and hiding them is not to be learned.
                _ if !is_found => (1.0, 0.0),
                _ => (1.0, 1.0),
            };
            Sample {
                kind: case.kind(),
                values: found.features.values(),
                fits,
                weight,
            }
        })
        .collect()
}

/// The coefficients of a fit, the intercept last.
fn fit(samples: &[Sample], signs: &[f64]) -> Vec<f64> {
    let count = signs.len();
    let all = ratio(samples.len(), 1);
    let mean: Vec<f64> = (0..count)
        .map(|at| samples.iter().map(|one| one.values[at]).sum::<f64>() / all)
        .collect();
    let spread: Vec<f64> = (0..count)
        .map(|at| {
            let squares = samples
                .iter()
                .map(|one| (one.values[at] - mean[at]).powi(2));
            (squares.sum::<f64>() / all).sqrt().max(1e-9)
        })
        .collect();
    let total: f64 = samples.iter().map(|one| one.weight).sum();
    let mut fitted = vec![0.0; count + 1];
    for _ in 0..STEPS {
        let mut gradient = vec![0.0; count + 1];
        for one in samples {
            let scaled = |at: usize| (one.values[at] - mean[at]) / spread[at];
            let sum: f64 = (0..count).map(|at| fitted[at] * scaled(at)).sum();
            let error = 1.0 / (1.0 + (-(sum + fitted[count])).exp()) - one.fits;
            for (at, slope) in gradient.iter_mut().enumerate() {
                let value = if at < count { scaled(at) } else { 1.0 };
                *slope += one.weight * error * value / total;
            }
        }
        for at in 0..=count {
            let shrink = if at < count {
                SHRINKAGE * fitted[at]
            } else {
                0.0
            };
            fitted[at] -= RATE * (gradient[at] + shrink);
            if at < count && fitted[at] * signs[at] < 0.0 {
                fitted[at] = 0.0;
            }
        }
    }
    let mut intercept = fitted[count];
    let mut coefficients = Vec::new();
    for at in 0..count {
        coefficients.push(fitted[at] / spread[at]);
        intercept -= fitted[at] * mean[at] / spread[at];
    }
    coefficients.push(intercept);
    coefficients
}

fn confidence(coefficients: &[f64], values: &[f64]) -> f64 {
    let (intercept, coefficients) = coefficients.split_last().unwrap_or((&0.0, &[]));
    let terms = coefficients.iter().zip(values);
    let sum: f64 = terms.map(|(coefficient, value)| coefficient * value).sum();
    1.0 / (1.0 + (-(sum + intercept)).exp())
}

/// The share of messages of some kinds for which the gate is open.
fn open_share(samples: &[Sample], kinds: &[CaseKind], is_open: impl Fn(&Sample) -> bool) -> f64 {
    let of_kind = || samples.iter().filter(|one| kinds.contains(&one.kind));
    ratio(
        of_kind().filter(|one| is_open(one)).count(),
        of_kind().count(),
    )
}

const CONTENT: [CaseKind; 3] = [CaseKind::Ordinary, CaseKind::Avoid, CaseKind::Noisy];

fn print_curve(set: &str, samples: &[Sample], score: impl Fn(&Sample) -> f64, chosen: f64) {
    println!(
        "\n| {set}, threshold | shown | shown, easy | hard | chit-chat | precision |\n\
         |---|---|---|---|---|---|"
    );
    let mut thresholds: Vec<f64> = (1..=19).map(|n| f64::from(n) * 0.05).collect();
    thresholds.retain(|one| (one - chosen).abs() > 0.01);
    thresholds.push(chosen);
    thresholds.sort_by(f64::total_cmp);
    for threshold in thresholds {
        let is_open = |one: &Sample| score(one) >= threshold;
        let right = samples
            .iter()
            .filter(|one| is_open(one) && one.fits > 0.5)
            .count();
        let open = samples.iter().filter(|one| is_open(one)).count();
        let mark = if (threshold - chosen).abs() < 1e-9 {
            " (used)"
        } else {
            ""
        };
        println!(
            "| {threshold:.3}{mark} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            open_share(samples, &CONTENT, is_open),
            open_share(samples, &[CaseKind::Easy], is_open),
            open_share(samples, &[CaseKind::Hard], is_open),
            open_share(samples, &[CaseKind::Chitchat], is_open),
            ratio(right, open),
        );
    }
}

pub(crate) fn run(model: &Path) -> Result<()> {
    let corpus = Corpus::open(model)?;
    let index = corpus.build_index()?;
    let gates: [(&str, SearchMethod, &[f64], &GateModel); 2] = [
        (
            "with embeddings: best cosine, tenth cosine, unknown terms, length",
            SearchMethod::Meaning,
            &[1.0, 1.0, -1.0, 1.0],
            match corpus.encoder.kind() {
                ModelKind::MiniLm => &MINILM_GATE,
                ModelKind::Mpnet => &MPNET_GATE,
            },
        ),
        (
            "by words: best share, the same weighted by length, unknown terms",
            SearchMethod::Words,
            &[1.0, 1.0, -1.0],
            &WORDS_GATE,
        ),
    ];
    for (name, method, signs, built_in) in gates {
        let tuning = samples(&index, &corpus.tuning, method);
        let fitted = fit(&tuning, signs);
        let mut scores: Vec<f64> = tuning
            .iter()
            .filter(|one| one.fits > 0.5 && one.weight > 0.0)
            .map(|one| confidence(&fitted, &one.values))
            .collect();
        scores.sort_by(f64::total_cmp);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in a list"
        )]
        let place = ((1.0 - WANTED_RECALL) * ratio(scores.len(), 1)) as usize;
        let threshold = scores.get(place).copied().unwrap_or_default();
        println!("\n## {name}\n\nfitted: {fitted:.2?}, threshold {threshold:.3}");
        println!("built in: {built_in:?}");
        let held_out = samples(&index, &corpus.held_out, method);
        for (set, all) in [("tuning", &tuning), ("held out", &held_out)] {
            let score = |one: &Sample| confidence(&fitted, &one.values);
            print_curve(set, all, score, threshold);
        }
    }
    Ok(())
}
