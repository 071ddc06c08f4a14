//! What a script may use, and what it has used.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_core::Artifact;
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    model::Budget,
    record::Used,
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
            cost: self::lower(self.cost, own.cost),
        })
    }

    /// These, and no more than others.
    pub(crate) fn within(self, others: Option<Self>) -> Self {
        let Some(others) = others else { return self };
        Self {
            fuel: self.fuel.min(others.fuel),
            seconds: self.seconds.min(others.seconds),
            memory: self.memory.min(others.memory),
            output: self.output.min(others.output),
            host_calls: self.host_calls.min(others.host_calls),
            tokens: self.tokens.min(others.tokens),
            cost: lower(self.cost, others.cost),
        }
    }

    pub(crate) fn time(&self) -> Duration {
        // Whoever says more means for ever, and a clock has an end.
        Duration::from_secs(self.seconds.min(LONGEST))
    }
}

/// The most seconds: a year.
const LONGEST: u64 = 365 * 24 * 60 * 60;

fn lower(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// What a run has used.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) fuel: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) output: AtomicU64,
    pub(crate) host_calls: AtomicU64,
    /// How long it took, once it is over.
    pub(crate) time: OnceLock<Duration>,
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

    /// Tells what was used so far.
    pub(crate) fn tell(
        &self,
        used: &mut BTreeMap<String, Used>,
        limits: &Limits,
        begun: Instant,
        budget: &Budget,
    ) {
        let mut put = |what: &str, counter: &AtomicU64, limit: u64| {
            tell(used, what, counter.load(Ordering::Relaxed), Some(limit));
        };
        put("fuel", &self.fuel, limits.fuel);
        put("memory_bytes", &self.memory, limits.memory);
        put("output_bytes", &self.output, limits.output);
        put("host_calls", &self.host_calls, limits.host_calls);
        let time = self.time.get().copied().unwrap_or_else(|| begun.elapsed());
        tell_common(used, limits, time, budget);
    }
}

/// Tells how much of something was used.
pub(crate) fn tell(used: &mut BTreeMap<String, Used>, what: &str, many: u64, limit: Option<u64>) {
    used.insert(what.to_owned(), Used { used: many, limit });
}

/// Tells what scripts and programs use alike.
pub(crate) fn tell_common(
    used: &mut BTreeMap<String, Used>,
    limits: &Limits,
    time: Duration,
    budget: &Budget,
) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    tell(used, "time_ms", millis(time), Some(millis(limits.time())));
    let spent = budget.used();
    tell(used, "model_tokens", spent.tokens(), Some(limits.tokens));
    if limits.cost.is_some() || spent.cost.is_some() {
        let cost = spent.cost.map_or(0, micros);
        tell(used, "cost_micro_usd", cost, limits.cost.map(micros));
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
