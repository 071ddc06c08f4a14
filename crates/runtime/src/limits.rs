//! The resource limits of a script, and its resource use.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_core::{Artifact, ResourceUse};
use serde::Deserialize;

use crate::{
    error::{Error, Result},
    model::Budget,
};

/// The resource limits of one script run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Fuel: about one unit per WebAssembly instruction.
    pub fuel: u64,
    /// Seconds, including waiting.
    pub seconds: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of printed and submitted output.
    pub output: u64,
    /// Host calls; each prompt of a batch counts as one.
    pub host_calls: u64,
    /// Model tokens, input and output.
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

/// Limits in the metadata of an artifact.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArtifactLimits {
    fuel: Option<u64>,
    seconds: Option<u64>,
    memory: Option<u64>,
    output: Option<u64>,
    host_calls: Option<u64>,
    tokens: Option<u64>,
    cost: Option<f64>,
}

impl Limits {
    /// The limits of an artifact: those under `limits` in its metadata, capped by these.
    pub fn for_artifact(&self, artifact: &Artifact) -> Result<Self> {
        let own = artifact.metadata.as_ref().and_then(|all| all.get("limits"));
        let Some(own) = own else { return Ok(*self) };
        let own = ArtifactLimits::deserialize(own).map_err(|error| Error::Artifact {
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
            cost: self::lower_cost(self.cost, own.cost),
        })
    }

    /// These limits, capped by others.
    pub(crate) fn capped_by(self, others: Option<Self>) -> Self {
        let Some(others) = others else { return self };
        Self {
            fuel: self.fuel.min(others.fuel),
            seconds: self.seconds.min(others.seconds),
            memory: self.memory.min(others.memory),
            output: self.output.min(others.output),
            host_calls: self.host_calls.min(others.host_calls),
            tokens: self.tokens.min(others.tokens),
            cost: lower_cost(self.cost, others.cost),
        }
    }

    pub(crate) fn time(&self) -> Duration {
        // Cap it, because adding a huge duration to a clock overflows.
        Duration::from_secs(self.seconds.min(MAX_SECONDS))
    }
}

/// The maximum number of seconds: a year.
const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

fn lower_cost(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The resource use of a run.
#[derive(Debug, Default)]
pub(crate) struct UsageMeter {
    pub(crate) fuel: AtomicU64,
    pub(crate) memory: AtomicU64,
    pub(crate) output: AtomicU64,
    pub(crate) host_calls: AtomicU64,
    /// The elapsed time, set when the run ends.
    pub(crate) time: OnceLock<Duration>,
}

impl UsageMeter {
    /// Counts host calls; fails if there are too many.
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

    /// Reports the resource use so far.
    pub(crate) fn report_usage(
        &self,
        used: &mut BTreeMap<String, ResourceUse>,
        limits: &Limits,
        begun: Instant,
        budget: &Budget,
    ) {
        let mut put = |what: &str, counter: &AtomicU64, limit: u64| {
            record_use(used, what, counter.load(Ordering::Relaxed), Some(limit));
        };
        put("fuel", &self.fuel, limits.fuel);
        put("memory_bytes", &self.memory, limits.memory);
        put("output_bytes", &self.output, limits.output);
        put("host_calls", &self.host_calls, limits.host_calls);
        let time = self.time.get().copied().unwrap_or_else(|| begun.elapsed());
        record_common_use(used, limits, time, budget);
    }
}

/// Records the use of one resource.
pub(crate) fn record_use(
    used: &mut BTreeMap<String, ResourceUse>,
    what: &str,
    many: u64,
    limit: Option<u64>,
) {
    used.insert(what.to_owned(), ResourceUse { used: many, limit });
}

/// Records the resources that scripts and programs share.
pub(crate) fn record_common_use(
    used: &mut BTreeMap<String, ResourceUse>,
    limits: &Limits,
    time: Duration,
    budget: &Budget,
) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    record_use(used, "time_ms", millis(time), Some(millis(limits.time())));
    let spent = budget.total_usage();
    record_use(
        used,
        "model_tokens",
        spent.total_tokens(),
        Some(limits.tokens),
    );
    if limits.cost.is_some() || spent.cost.is_some() {
        let cost = spent.cost.map_or(0, to_micro_usd);
        record_use(used, "cost_micro_usd", cost, limits.cost.map(to_micro_usd));
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates for values out of range"
)]
fn to_micro_usd(dollars: f64) -> u64 {
    (dollars * 1e6).round() as u64
}
