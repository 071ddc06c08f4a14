//! What a script may use, and what it has used.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use repertoire_core::Artifact;
use serde::Deserialize;

use crate::{
    dispatch::Notes,
    error::{Error, Result},
    model::Budget,
};

/// What one run of a script may use.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Steps, about one for an instruction of the machine Python runs on.
    pub fuel: u64,
    /// Seconds, with all waiting.
    pub seconds: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes it prints, and bytes it submits.
    pub output: u64,
    /// Calls to the host; each prompt of a batch is one.
    pub host_calls: u64,
    /// Tokens of models, read and written.
    pub tokens: u64,
    /// US dollars.
    pub cost: Option<f64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            fuel: 50_000_000_000,
            seconds: 300,
            memory: 128 << 20,
            output: 1 << 20,
            host_calls: 10_000,
            tokens: 1_000_000,
            cost: None,
        }
    }
}

/// Limits an artifact sets itself.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    fuel: Option<u64>,
    seconds: Option<u64>,
    memory: Option<u64>,
    output: Option<u64>,
    host_calls: Option<u64>,
    tokens: Option<u64>,
    cost: Option<f64>,
}

impl Limits {
    /// The limits of an artifact: what its metadata says under `limits`, and never more than these.
    pub fn of(&self, artifact: &Artifact) -> Result<Self> {
        let own = artifact.metadata.as_ref().and_then(|all| all.get("limits"));
        let Some(own) = own else { return Ok(*self) };
        let own = Own::deserialize(own).map_err(|error| Error::Artifact {
            artifact: artifact.name.clone(),
            reason: format!("metadata.limits: {error}"),
        })?;
        let lower = |most: u64, own: Option<u64>| own.map_or(most, |own| own.min(most));
        Ok(Self {
            fuel: lower(self.fuel, own.fuel),
            seconds: lower(self.seconds, own.seconds),
            memory: lower(self.memory, own.memory),
            output: lower(self.output, own.output),
            host_calls: lower(self.host_calls, own.host_calls),
            tokens: lower(self.tokens, own.tokens),
            cost: match (self.cost, own.cost) {
                (Some(most), Some(own)) => Some(own.min(most)),
                (most, own) => most.or(own),
            },
        })
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// What a run has used.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) fuel: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) output: AtomicU64,
    pub(crate) host_calls: AtomicU64,
}

impl Meter {
    /// Counts calls to the host; says whether there were too many.
    pub(crate) fn count_calls(&self, calls: u64, limits: &Limits) -> Result<()> {
        let before = self.host_calls.fetch_add(calls, Ordering::Relaxed);
        if before.saturating_add(calls) > limits.host_calls {
            let most = limits.host_calls;
            return Err(Error::ScriptLimit(format!(
                "it called the host more than {most} times"
            )));
        }
        Ok(())
    }

    /// Leaves behind what was used.
    pub(crate) fn note(&self, notes: &Notes, limits: &Limits, time: Duration, budget: &Budget) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        notes.used("fuel", read(&self.fuel), Some(limits.fuel));
        notes.used("memory_bytes", read(&self.memory), Some(limits.memory));
        notes.used("output_bytes", read(&self.output), Some(limits.output));
        let calls = read(&self.host_calls);
        notes.used("host_calls", calls, Some(limits.host_calls));
        note_common(notes, limits, time, budget);
    }
}

/// Leaves behind what scripts and programs use alike.
pub(crate) fn note_common(notes: &Notes, limits: &Limits, time: Duration, budget: &Budget) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    notes.used("time_ms", millis(time), Some(millis(limits.time())));
    let used = budget.used();
    notes.used("model_tokens", used.tokens(), Some(limits.tokens));
    if limits.cost.is_some() || used.cost.is_some() {
        let spent = used.cost.map_or(0, micros);
        notes.used("cost_micro_usd", spent, limits.cost.map(micros));
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "what is out of range is shown as the nearest that is not"
)]
fn micros(dollars: f64) -> u64 {
    (dollars * 1e6).round() as u64
}
