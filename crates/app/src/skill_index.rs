//! A search index that follows the catalogue.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use repertoire_core::SkillId;
use repertoire_registry::{
    ItemKind, Registry, Result, Snapshot,
    search::{EmbeddingBatch, Recommendation, SentenceEncoder, SkillIndex},
};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How many skills are embedded in one batch in the background, between which others get the index.
const EMBEDDING_BATCH_SIZE: usize = 4;
/// How many skills are embedded in one batch while the user waits.
const FOREGROUND_BATCH_SIZE: usize = 16;
/// How long to wait after embedding failed.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// A search index that follows the catalogue.
#[derive(Debug)]
pub struct LiveSkillIndex {
    registry: Arc<Registry>,
    current: Mutex<IndexState>,
    _stop_on_drop: DropGuard,
}

#[derive(Debug)]
struct IndexState {
    index: SkillIndex,
    /// The number of the last event applied to the index.
    seq: u64,
}

impl LiveSkillIndex {
    /// Builds the index and keeps it current in the background. Building may take a while.
    pub fn open(
        registry: &Arc<Registry>,
        embedder: Option<Arc<SentenceEncoder>>,
    ) -> Result<Arc<Self>> {
        let changes = registry.subscribe_changes();
        let stop = CancellationToken::new();
        let snapshot = registry.snapshot();
        let finder = SkillIndex::with_encoder(registry, &snapshot, embedder)?;
        let finding = Arc::new(Self {
            registry: registry.clone(),
            current: Mutex::new(IndexState {
                index: finder,
                seq: snapshot.seq(),
            }),
            _stop_on_drop: stop.clone().drop_guard(),
        });
        let follow = follow_catalogue(Arc::downgrade(&finding), changes, stop);
        // A thread instead of a task, because it reads from disk and computes.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            match runtime {
                Ok(runtime) => runtime.block_on(follow),
                Err(error) => tracing::warn!(%error, "the search index is not kept current"),
            }
        });
        Ok(finding)
    }

    /// Applies pending changes and computes the next batch of embeddings.
    fn update_once(&self) -> Pending {
        let mut current = self.lock_state();
        if let Err(error) = self.catch_up(&mut current) {
            tracing::warn!(%error, "the search index could not be updated");
        }
        let snapshot = self.registry.snapshot();
        let batch = current
            .index
            .next_batch(&self.registry, &snapshot, EMBEDDING_BATCH_SIZE);
        drop(current);
        // The lock is released, so that searches do not wait for the computation.
        match batch.map(EmbeddingBatch::compute_embeddings) {
            Some(Ok(embedded)) => {
                self.lock_state().index.insert_embeddings(&embedded);
                Pending::Batch
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "embeddings could not be computed");
                Pending::Retry
            }
            None => Pending::Nothing,
        }
    }

    /// Finds the skills that fit a message, after applying all pending changes.
    pub fn find_skills(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        let mut current = self.lock_state();
        self.catch_up(&mut current)?;
        current.index.find_skills(message, limit)
    }

    /// Finds the skills that fit a message among some skills, after applying all pending changes.
    pub fn find_skills_among(
        &self,
        message: &str,
        limit: usize,
        is_wanted: impl Fn(&SkillId) -> bool + Sync,
    ) -> Result<Vec<Recommendation>> {
        let mut current = self.lock_state();
        self.catch_up(&mut current)?;
        current.index.find_skills_among(message, limit, is_wanted)
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, IndexState> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn catch_up(&self, current: &mut IndexState) -> Result<()> {
        let snapshot = self.registry.snapshot();
        if snapshot.seq() == current.seq {
            return Ok(());
        }
        match self.registry.wait_events(current.seq, Duration::ZERO) {
            Ok(events) => {
                let skills = events.iter().filter(|event| event.kind == ItemKind::Skill);
                // An id that cannot be parsed was never in the index.
                let ids = skills.filter_map(|event| event.id.parse().ok()).collect();
                let finder = &mut current.index;
                finder.update_skills(&self.registry, &snapshot, &ids)?;
            }
            // The event log no longer reaches back that far: rebuild the index.
            Err(_) => current.index.rebuild_index(&self.registry, &snapshot)?,
        }
        current.seq = snapshot.seq();
        Ok(())
    }
}

/// Updates an index and computes missing embeddings until the index is dropped.
async fn follow_catalogue(
    index: Weak<LiveSkillIndex>,
    mut changes: watch::Receiver<u64>,
    stop: CancellationToken,
) {
    loop {
        let is_pending = {
            let Some(index) = index.upgrade() else { return };
            index.update_once()
        };
        // While embeddings are missing, the next batch follows at once.
        let wait = async {
            match is_pending {
                Pending::Batch => {}
                Pending::Retry => tokio::time::sleep(RETRY_PAUSE).await,
                Pending::Nothing => drop(changes.changed().await),
            }
        };
        tokio::select! {
            () = wait => {}
            () = stop.cancelled() => return,
        }
        if changes.has_changed().is_err() {
            return;
        }
        changes.mark_unchanged();
    }
}

/// What an index still has to do.
enum Pending {
    /// More skills have to be embedded.
    Batch,
    /// Embedding failed; the next attempt waits.
    Retry,
    Nothing,
}

/// Builds an index over all skills, with embeddings if there is an encoder. New skills are embedded
/// until `patience` has passed; `on_progress` receives the numbers of done and of all new skills.
pub fn build_skill_index(
    registry: &Arc<Registry>,
    snapshot: &Snapshot,
    encoder: Option<Arc<SentenceEncoder>>,
    patience: Duration,
    on_progress: &mut dyn FnMut(usize, usize),
) -> Result<SkillIndex> {
    let mut index = SkillIndex::with_encoder(registry, snapshot, encoder)?;
    let started = Instant::now();
    let total = index.pending_count();
    let mut done = 0;
    if total > FOREGROUND_BATCH_SIZE {
        on_progress(done, total);
    }
    // Each batch is stored, so that an interruption loses nothing.
    while started.elapsed() < patience
        && let Some(batch) = index.next_batch(registry, snapshot, FOREGROUND_BATCH_SIZE)
    {
        done += index.insert_embeddings(&batch.compute_embeddings()?);
        if total > FOREGROUND_BATCH_SIZE {
            on_progress(done, total);
        }
    }
    Ok(index)
}
