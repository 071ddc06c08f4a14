//! Times, medians and lines of the report.

use std::time::{Duration, Instant};

/// How long one call takes.
pub(crate) fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// The middle of several measurements: one disturbed round does not move it.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// One line of the report: what, against what, the ratio, the goal.
pub(crate) fn compare(what: &str, ours: Duration, peer: &str, theirs: Duration, goal: Option<f64>) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let goal = match goal {
        Some(goal) if ratio <= goal => format!("goal ≤ {goal}× met"),
        Some(goal) => format!("goal ≤ {goal}× MISSED"),
        None => String::new(),
    };
    println!(
        "| {what} | {} | {peer} | {} | {ratio:.2}× | {goal} |",
        shown(ours),
        shown(theirs)
    );
}

/// The same for measurements that took turns: the ratio is the middle of the rounds' ratios, so that
/// a machine that is slower for a while is slower for both.
pub(crate) fn compare_rounds(
    what: &str,
    ours: &[Duration],
    peer: &str,
    theirs: &[Duration],
    goal: f64,
) {
    let pairs = ours.iter().zip(theirs);
    let mut ratios: Vec<f64> = pairs
        .map(|(ours, theirs)| ours.as_secs_f64() / theirs.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
    let met = if ratio <= goal { "met" } else { "MISSED" };
    println!(
        "| {what} | {} | {peer} | {} | {ratio:.2}× | goal ≤ {goal}× {met} |",
        shown(median(ours.to_vec())),
        shown(median(theirs.to_vec()))
    );
}

pub(crate) fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else {
        format!("{:.1} ms", micros / 1000.0)
    }
}

/// A field of this process's status in KiB, such as `VmRSS`.
pub(crate) fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
