//! A search index that follows the catalogue.

use std::{
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak},
    time::{Duration, Instant},
};

use repertoire_registry::{
    ItemKind, Registry, Result, Snapshot,
    search::{
        EmbeddingBatch, SearchMethod, SearchOutcome, SearchRequest, SentenceEncoder, SkillIndex,
    },
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How many skills are embedded in one batch in the background, between which others get the index.
const EMBEDDING_BATCH_SIZE: usize = 8;
/// The progress of embedding is logged if there are more skills.
const LOGGED_SKILLS: usize = 200;
/// How many skills are embedded in one batch while the user waits.
const FOREGROUND_BATCH_SIZE: usize = 64;
/// How long to wait after embedding failed.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// A search index that follows the catalogue.
#[derive(Debug)]
pub struct LiveSkillIndex {
    registry: Arc<Registry>,
    current: RwLock<IndexState>,
    /// Embeds messages before the index is locked.
    encoder: Option<Arc<SentenceEncoder>>,
    /// Wakes the thread that computes embeddings.
    wake: Arc<Notify>,
    _stop_on_drop: DropGuard,
}

#[derive(Debug)]
struct IndexState {
    index: SkillIndex,
    /// The number of the last event applied to the index.
    seq: u64,
    /// The state of the example messages that the index contains.
    example_changes: i64,
    /// The share of embedded skills that was last logged, in tenths.
    logged_tenths: usize,
}

impl LiveSkillIndex {
    /// Builds the index and keeps it current in the background. Building may take a while.
    pub fn open(
        registry: &Arc<Registry>,
        encoder: Option<Arc<SentenceEncoder>>,
    ) -> Result<Arc<Self>> {
        let changes = registry.subscribe_changes();
        let stop = CancellationToken::new();
        let snapshot = registry.snapshot();
        let example_changes = example_message_changes(registry);
        let wake = Arc::new(Notify::new());
        let index = SkillIndex::with_encoder(registry, &snapshot, encoder.clone())?;
        let live = Arc::new(Self {
            registry: registry.clone(),
            current: RwLock::new(IndexState {
                index,
                seq: snapshot.seq(),
                example_changes,
                logged_tenths: 0,
            }),
            encoder,
            wake: wake.clone(),
            _stop_on_drop: stop.clone().drop_guard(),
        });
        let follow = follow_catalogue(Arc::downgrade(&live), changes, wake, stop);
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
        Ok(live)
    }

    /// Applies pending changes and computes the next batch of embeddings.
    fn update_once(&self) -> Pending {
        let mut current = self.write_state();
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
                let mut current = self.write_state();
                current.index.insert_embeddings(embedded);
                log_progress(&mut current);
                Pending::Batch
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "embeddings could not be computed");
                Pending::Retry
            }
            // The documents could not be read, or their vectors not be stored.
            None if self.read_state().index.pending_count() > 0 => Pending::Retry,
            None => Pending::Nothing,
        }
    }

    /// Searches, after applying all pending changes.
    pub fn search(&self, request: &SearchRequest<'_>) -> Result<SearchOutcome> {
        let computed = match (&self.encoder, request.vector, request.method) {
            (Some(encoder), None, None | Some(SearchMethod::Meaning)) => {
                Some(encoder.encode_message(request.message))
            }
            _ => None,
        };
        let request = SearchRequest {
            vector: request.vector.or(computed.as_ref()),
            ..*request
        };
        let current = self.read_state();
        if self.is_current(&current) {
            return Ok(current.index.search(&request));
        }
        drop(current);
        let mut current = self.write_state();
        self.catch_up(&mut current)?;
        Ok(current.index.search(&request))
    }

    /// The encoder, if there is one.
    pub fn encoder(&self) -> Option<&Arc<SentenceEncoder>> {
        self.encoder.as_ref()
    }

    fn read_state(&self) -> RwLockReadGuard<'_, IndexState> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, IndexState> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_current(&self, current: &IndexState) -> bool {
        self.registry.snapshot().seq() == current.seq
            && example_message_changes(&self.registry) == current.example_changes
    }

    fn catch_up(&self, current: &mut IndexState) -> Result<()> {
        let snapshot = self.registry.snapshot();
        let example_changes = example_message_changes(&self.registry);
        if example_changes != current.example_changes {
            current.index.rebuild_index(&self.registry, &snapshot)?;
            current.seq = snapshot.seq();
            current.example_changes = example_changes;
            self.wake.notify_one();
        }
        if snapshot.seq() == current.seq {
            return Ok(());
        }
        match self.registry.wait_events(current.seq, Duration::ZERO) {
            Ok(events) => {
                let skills = events.iter().filter(|event| event.kind == ItemKind::Skill);
                // An id that cannot be parsed was never in the index.
                let ids = skills.filter_map(|event| event.id.parse().ok()).collect();
                let index = &mut current.index;
                index.update_skills(&self.registry, &snapshot, &ids)?;
            }
            // The event log no longer reaches back that far: rebuild the index.
            Err(_) => current.index.rebuild_index(&self.registry, &snapshot)?,
        }
        current.seq = snapshot.seq();
        Ok(())
    }
}

/// A number that changes with the stored example messages.
fn example_message_changes(registry: &Registry) -> i64 {
    let store = registry.local_store().ok();
    store.map_or(0, |store| store.example_message_changes().unwrap_or(0))
}

/// Logs each further tenth of embedded skills, if there are many.
fn log_progress(current: &mut IndexState) {
    let (all, pending) = (current.index.len(), current.index.pending_count());
    let tenths = (all - pending.min(all)) * 10 / all.max(1);
    if all > LOGGED_SKILLS && tenths > current.logged_tenths {
        current.logged_tenths = tenths;
        tracing::info!("embedded {} of {all} skills for search", all - pending);
    }
}

/// Updates an index and computes missing embeddings until the index is dropped.
async fn follow_catalogue(
    index: Weak<LiveSkillIndex>,
    mut changes: watch::Receiver<u64>,
    wake: Arc<Notify>,
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
                Pending::Nothing => tokio::select! {
                    event = changes.changed() => drop(event),
                    () = wake.notified() => {}
                },
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
        done += index.insert_embeddings(batch.compute_embeddings()?);
        if total > FOREGROUND_BATCH_SIZE {
            on_progress(done, total);
        }
    }
    Ok(index)
}
