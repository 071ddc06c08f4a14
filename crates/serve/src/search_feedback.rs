//! Notices which of the found skills a client then reads or runs.
//!
//! The latest searches of each client are kept for a short time. A client that reads or runs a skill
//! of its own search has chosen it for that message; it is recorded once.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use repertoire_app::{Caller, UseRecorder};
use repertoire_core::SkillId;
use repertoire_registry::search::{ModelKind, Vector};

/// For how long a search waits for a choice.
const LIFETIME: Duration = Duration::from_mins(10);
/// How many searches of one client are kept.
const MAX_SEARCHES_PER_OWNER: usize = 8;
/// How many clients are kept.
const MAX_OWNERS: usize = 256;

/// A search whose results may be chosen from.
#[derive(Debug)]
pub(crate) struct RecentSearch {
    pub(crate) message: String,
    pub(crate) model: ModelKind,
    pub(crate) vector: Vector,
    pub(crate) found: Vec<SkillId>,
    pub(crate) at: Instant,
}

/// The latest searches of every client.
#[derive(Debug, Default)]
pub(crate) struct SearchFeedback {
    by_owner: Mutex<HashMap<String, VecDeque<RecentSearch>>>,
    /// How many clients have searched; read without the lock.
    owners: AtomicUsize,
}

impl SearchFeedback {
    /// Keeps a search of a client.
    pub(crate) fn remember(&self, caller: &Caller, search: RecentSearch) {
        let Some(owner) = caller.usage_owner() else {
            return;
        };
        let mut all = self.lock();
        if all.len() >= MAX_OWNERS && !all.contains_key(owner) {
            let oldest = all
                .iter()
                .min_by_key(|(_, searches)| searches.back().map(|search| search.at));
            if let Some(oldest) = oldest.map(|(owner, _)| owner.clone()) {
                all.remove(&oldest);
            }
        }
        let searches = all.entry(owner.to_owned()).or_default();
        searches.push_back(search);
        if searches.len() > MAX_SEARCHES_PER_OWNER {
            searches.pop_front();
        }
        self.owners.store(all.len(), Ordering::Relaxed);
    }

    /// Whether some client recently found a skill, so that reading it may be a choice.
    pub(crate) fn awaits_choice(&self, id: &SkillId) -> bool {
        self.owners.load(Ordering::Relaxed) > 0
            && self
                .lock()
                .values()
                .flatten()
                .any(|search| search.at.elapsed() < LIFETIME && search.found.contains(id))
    }

    /// Takes the search for which a client now chose a skill.
    fn take_choice(&self, caller: &Caller, id: &SkillId) -> Option<RecentSearch> {
        if self.owners.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut all = self.lock();
        all.retain(|_, searches| {
            searches.retain(|search| search.at.elapsed() < LIFETIME);
            !searches.is_empty()
        });
        self.owners.store(all.len(), Ordering::Relaxed);
        let owner = caller.usage_owner()?;
        let searches = all.get_mut(owner)?;
        let latest = searches
            .iter()
            .rposition(|search| search.found.contains(id))?;
        let chosen = searches.remove(latest);
        if searches.is_empty() {
            all.remove(owner);
            self.owners.store(all.len(), Ordering::Relaxed);
        }
        chosen
    }

    /// Records a choice, if the client recently found the skill.
    pub(crate) async fn record_choice(
        &self,
        caller: &Caller,
        id: &SkillId,
        recorder: &UseRecorder,
    ) {
        let (Some(search), Some(owner)) = (self.take_choice(caller, id), caller.usage_owner())
        else {
            return;
        };
        let (recorder, id) = (recorder.clone(), id.clone());
        let owner: Arc<str> = owner.into();
        // Waited for, because the connection may end with the answer.
        let stored = tokio::task::spawn_blocking(move || {
            recorder.record(&owner, &id, &search.message, search.model, &search.vector);
        });
        // It only fails if the server is shutting down.
        let _ = stored.await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<RecentSearch>>> {
        self.by_owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(found: &str) -> RecentSearch {
        RecentSearch {
            message: "when is high tide".to_owned(),
            model: ModelKind::MiniLm,
            vector: Vector::new(&[1.0]),
            found: vec![found.parse().unwrap()],
            at: Instant::now(),
        }
    }

    #[test]
    fn a_choice_is_taken_once_and_by_its_own_client() {
        let feedback = SearchFeedback::default();
        let (user, anonymous) = (Caller::local_user(), Caller::anonymous());
        let id: SkillId = "tide-tables".parse().unwrap();
        assert!(!feedback.awaits_choice(&id));
        feedback.remember(&user, search("tide-tables"));
        assert!(feedback.awaits_choice(&id));
        assert!(
            feedback
                .take_choice(&user, &"kites".parse().unwrap())
                .is_none()
        );
        assert!(feedback.take_choice(&anonymous, &id).is_none());
        assert!(feedback.take_choice(&user, &id).is_some());
        assert!(feedback.take_choice(&user, &id).is_none());
        assert!(!feedback.awaits_choice(&id));
        // Nothing is kept for callers that cannot be told apart.
        feedback.remember(&anonymous, search("tide-tables"));
        assert!(!feedback.awaits_choice(&id));
        let mut old = search("tide-tables");
        old.at = Instant::now().checked_sub(LIFETIME).unwrap();
        feedback.remember(&user, old);
        assert!(feedback.take_choice(&user, &id).is_none());
    }

    #[test]
    fn few_searches_of_each_client_are_kept() {
        let feedback = SearchFeedback::default();
        for n in 0..100 {
            feedback.remember(&Caller::local_user(), search(&format!("skill-{n}")));
        }
        let kept = feedback.lock().values().map(VecDeque::len).sum::<usize>();
        assert_eq!(kept, MAX_SEARCHES_PER_OWNER);
    }
}
