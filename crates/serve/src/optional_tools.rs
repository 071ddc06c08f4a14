//! Which tools beyond reading are offered to hosts, and their state.

use std::sync::{Arc, Mutex, PoisonError};

use repertoire_app::{LiveSkillIndex, RunnerSettings, UsagePolicy};
use repertoire_registry::{Registry, Result, search::SentenceEncoder};
use tokio::sync::Semaphore;

use crate::{mcp::ParkedRuns, search_feedback::SearchFeedback};

/// The maximum number of concurrent runs.
const MAX_CONCURRENT_RUNS: usize = 4;

/// The optional tools; each is off by default.
#[derive(Debug, Default)]
pub struct OptionalTools {
    /// Offer `skills_search`.
    pub search: bool,
    /// Offer `skill_run`. Without a model in the settings, the host's own is used where it offers
    /// one.
    pub run: Option<RunnerSettings>,
    /// The encoder for semantic search; without one the search is lexical only.
    pub embedder: Option<Arc<SentenceEncoder>>,
    /// What is kept of the skills that clients choose after a search.
    pub usage: UsagePolicy,
}

/// The state of the optional tools.
#[derive(Debug)]
pub(crate) struct OptionalToolState {
    pub(crate) options: OptionalTools,
    pub(crate) run_permits: Arc<Semaphore>,
    /// Runs that wait for the host's answer.
    pub(crate) parked_runs: ParkedRuns,
    /// Searches whose results may be chosen from.
    pub(crate) feedback: SearchFeedback,
    skill_index: Mutex<Option<Arc<LiveSkillIndex>>>,
}

impl OptionalToolState {
    pub(crate) fn new(options: OptionalTools) -> Self {
        Self {
            options,
            run_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_RUNS)),
            parked_runs: ParkedRuns::default(),
            feedback: SearchFeedback::default(),
            skill_index: Mutex::default(),
        }
    }

    /// Returns the index; the first call builds it, which may take a while.
    pub(crate) fn skill_index(&self, registry: &Arc<Registry>) -> Result<Arc<LiveSkillIndex>> {
        let mut finding = self
            .skill_index
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*finding {
            return Ok(known.clone());
        }
        let new = LiveSkillIndex::open(registry, self.options.embedder.clone())?;
        *finding = Some(new.clone());
        Ok(new)
    }
}
