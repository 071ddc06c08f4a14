//! What a store holds in numbers, and what of the past is kept.

use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// How long the past is kept. Current content is kept whatever its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Older traces are deleted.
    pub traces: Duration,
    /// Older superseded revisions are deleted, and the history of skills that were removed earlier.
    pub history: Duration,
    /// The newest revisions of each skill are kept whatever their age.
    pub min_revisions: u32,
}

impl Default for RetentionPolicy {
    fn default() -> Self {
        Self {
            traces: 90 * DAY,
            history: 90 * DAY,
            min_revisions: 20,
        }
    }
}

/// What a cleanup deletes from a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct GarbageReport {
    /// Traces.
    pub traces: u64,
    /// Other parts of runs, such as calls of a model.
    pub spans: u64,
    /// Superseded revisions of skills.
    pub revisions: u64,
    /// Superseded values of registered content.
    pub registered_revisions: u64,
    /// Values stored by scripts.
    pub checkpoints: u64,
    /// Embeddings that were not used for long.
    pub vectors: u64,
    /// Skills that were chosen in searches long ago.
    pub uses: u64,
    /// Files that no revision needs any more.
    pub files: u64,
    /// The bytes of those files.
    pub file_bytes: u64,
}

impl GarbageReport {
    /// Whether there is nothing to delete.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a store holds, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreUsage {
    /// The bytes of the store.
    pub bytes: u64,
    /// The bytes of its journal.
    pub journal_bytes: u64,
    /// Skills and packages.
    pub skills: u64,
    /// Revisions of skills, current ones included.
    pub revisions: u64,
    /// Values of the state.
    pub state_values: u64,
    /// The bytes of those values.
    pub state_bytes: u64,
    /// Superseded values of registered content.
    pub registered_revisions: u64,
    /// Traces.
    pub traces: u64,
    /// Embeddings.
    pub vectors: u64,
    /// Skills that were chosen in searches.
    pub uses: u64,
    /// Skills with example messages.
    pub example_messages: u64,
}
