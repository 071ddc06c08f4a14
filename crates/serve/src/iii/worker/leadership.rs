//! How a standby notices that the worker that serves does not answer any more.

use std::time::Duration;

/// Counts the calls that the leader did not answer.
#[derive(Debug, Default)]
pub(super) struct LeaderProbe {
    silent: u32,
}

impl LeaderProbe {
    /// How long a leader may take for an answer.
    pub(super) const PATIENCE: Duration = Duration::from_secs(1);
    /// So many calls without an answer, one after the other, and the leader counts as stopped.
    const LIMIT: u32 = 2;

    /// Records a call; returns whether the leader counts as stopped.
    pub(super) fn record(&mut self, is_silent: bool) -> bool {
        self.silent = if is_silent { self.silent + 1 } else { 0 };
        self.silent >= Self::LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calls_in_a_row_without_an_answer_end_a_leader() {
        let mut probe = LeaderProbe::default();
        let seen = [true, false, true, true].map(|is_silent| probe.record(is_silent));
        assert_eq!(seen, [false, false, false, true]);
    }
}
