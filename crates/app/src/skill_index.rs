//! A search index that follows the catalogue.

use std::{
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use repertoire_registry::{
    ItemKind, Registry, Result,
    search::{Recommendation, SentenceEncoder, SkillIndex},
};

/// How many skills are embedded in one batch.
const EMBEDDING_BATCH_SIZE: usize = 4;

/// A search index that follows the catalogue.
#[derive(Debug)]
pub struct LiveSkillIndex {
    registry: Arc<Registry>,
    current: Mutex<IndexState>,
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
        let snapshot = registry.snapshot();
        let finder = SkillIndex::with_encoder(registry, &snapshot, embedder)?;
        let finding = Arc::new(Self {
            registry: registry.clone(),
            current: Mutex::new(IndexState {
                index: finder,
                seq: snapshot.seq(),
            }),
        });
        let follower = Arc::downgrade(&finding);
        // A thread instead of a task, because it reads from disk and computes.
        std::thread::spawn(move || follow_catalogue(&follower));
        Ok(finding)
    }

    /// Finds the skills that fit a message, after applying all pending changes.
    pub fn find_skills(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        let mut current = self.lock_state();
        self.catch_up(&mut current)?;
        current.index.find_skills(message, limit)
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
fn follow_catalogue(finding: &Weak<LiveSkillIndex>) {
    loop {
        let Some(now) = finding.upgrade() else { return };
        let seq = now.lock_state().seq;
        // Short waits, so that the thread ends soon after its index.
        let news = now.registry.wait_events(seq, Duration::from_millis(50));
        let mut current = now.lock_state();
        if news.map_or(true, |events| !events.is_empty())
            && let Err(error) = now.catch_up(&mut current)
        {
            tracing::warn!(%error, "the search index could not be updated");
        }
        let snapshot = now.registry.snapshot();
        let lesson = current
            .index
            .next_batch(&now.registry, &snapshot, EMBEDDING_BATCH_SIZE);
        drop(current);
        // The lock is released, so that searches do not wait for the computation.
        match lesson.map(repertoire_registry::search::EmbeddingBatch::compute_embeddings) {
            Some(Ok(learned)) => drop(now.lock_state().index.insert_embeddings(&learned)),
            Some(Err(error)) => {
                tracing::warn!(%error, "embeddings could not be computed");
                std::thread::park_timeout(Duration::from_secs(10));
            }
            None => {}
        }
    }
}
