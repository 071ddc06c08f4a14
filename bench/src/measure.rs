//! Times, medians and lines of the report.

use std::time::{Duration, Instant};

/// Measures how long one call takes.
pub(crate) fn time_call<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Returns the median, which one disturbed round does not move.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Prints one line of the report, with the ratio and the goal.
pub(crate) fn print_comparison(
    what: &str,
    ours: Duration,
    peer: &str,
    theirs: Duration,
    goal: Option<f64>,
) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    let goal = match goal {
        Some(goal) if ratio <= goal => format!("goal ≤ {goal}× met"),
        Some(goal) => format!("goal ≤ {goal}× MISSED"),
        None => String::new(),
    };
    println!(
        "| {what} | {} | {peer} | {} | {ratio:.2}× | {goal} |",
        format_duration(ours),
        format_duration(theirs)
    );
}

/// Prints one line for measurements that took turns. The ratio is the median of the rounds' ratios,
/// so that a temporarily slow machine affects both sides.
pub(crate) fn print_round_comparison(
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
        format_duration(median(ours.to_vec())),
        format_duration(median(theirs.to_vec()))
    );
}

pub(crate) fn format_duration(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1000.0 {
        format!("{micros:.1} µs")
    } else {
        format!("{:.1} ms", micros / 1000.0)
    }
}

/// Returns a field of this process's status in KiB, such as `VmRSS`.
pub(crate) fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}
