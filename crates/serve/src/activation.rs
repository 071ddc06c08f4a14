//! Skills found and run for hosts: what is offered, and an index that follows the catalogue.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use repertoire_registry::{
    Kind, Registry, Result,
    search::{Embedder, Finder, Recommendation},
};
use repertoire_runtime::{ArtifactDispatcher, Model, Redactor, Workspace};
use tokio::sync::Semaphore;

use crate::mcp::Parked;

/// How many skills run at a time.
const RUNS: usize = 4;
/// How many skills are read in one go while nobody waits.
const AT_ONCE: usize = 4;

/// How skills are run for hosts.
#[derive(Clone)]
pub struct Runs {
    /// The model that is asked. None: the host's own, where it offers one.
    pub model: Option<Arc<dyn Model>>,
    /// What templates can search.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// Who runs which kind of artifact.
    pub dispatcher: ArtifactDispatcher,
    /// Takes secrets out of traces.
    pub redactor: Redactor,
    /// The most tokens of one run.
    pub max_tokens: Option<u64>,
    /// The most US dollars of one run.
    pub max_cost: Option<f64>,
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runs")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// The tools beyond reading, each off unless it is asked for.
#[derive(Debug, Default)]
pub struct Activation {
    /// Offer `skills_search`.
    pub search: bool,
    /// Offer `skill_run`.
    pub run: Option<Runs>,
    /// Find skills by what a message means too.
    pub embedder: Option<Arc<Embedder>>,
}

/// What is offered, with what it takes.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) offered: Activation,
    pub(crate) room: Arc<Semaphore>,
    /// Runs that wait for their host to come back with an answer.
    pub(crate) parked: Parked,
    finding: Mutex<Option<Arc<Finding>>>,
}

impl Active {
    pub(crate) fn new(offered: Activation) -> Self {
        Self {
            offered,
            room: Arc::new(Semaphore::new(RUNS)),
            parked: Parked::default(),
            finding: Mutex::default(),
        }
    }

    /// The index, built when it is first asked for. It may take a while.
    pub(crate) fn finding(&self, registry: &Arc<Registry>) -> Result<Arc<Finding>> {
        let mut finding = self.finding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*finding {
            return Ok(known.clone());
        }
        let new = Finding::open(registry, self.offered.embedder.clone())?;
        *finding = Some(new.clone());
        Ok(new)
    }
}

/// An index that follows the catalogue.
#[derive(Debug)]
pub(crate) struct Finding {
    registry: Arc<Registry>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    finder: Finder,
    /// The number of the last event that is in it.
    seq: u64,
}

impl Finding {
    fn open(registry: &Arc<Registry>, embedder: Option<Arc<Embedder>>) -> Result<Arc<Self>> {
        let snapshot = registry.snapshot();
        let finder = Finder::with(registry, &snapshot, embedder)?;
        let finding = Arc::new(Self {
            registry: registry.clone(),
            current: Mutex::new(Current {
                finder,
                seq: snapshot.seq(),
            }),
        });
        let follower = Arc::downgrade(&finding);
        // Not a task: it reads the disk, and computes.
        std::thread::spawn(move || follow(&follower));
        Ok(finding)
    }

    /// The skills that fit a message; whatever has happened before is in it.
    pub(crate) fn find(&self, message: &str, limit: usize) -> Result<Vec<Recommendation>> {
        let mut current = self.lock();
        self.catch_up(&mut current)?;
        current.finder.find(message, limit)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn catch_up(&self, current: &mut Current) -> Result<()> {
        let snapshot = self.registry.snapshot();
        if snapshot.seq() == current.seq {
            return Ok(());
        }
        match self.registry.wait_events(current.seq, Duration::ZERO) {
            Ok(events) => {
                let skills = events.iter().filter(|event| event.kind == Kind::Skill);
                // An id that cannot be parsed was never in the index.
                let ids = skills.filter_map(|event| event.id.parse().ok()).collect();
                let finder = &mut current.finder;
                finder.update_all(&self.registry, &snapshot, &ids)?;
            }
            // Too much has happened to know what: everything is looked at.
            Err(_) => current.finder.rebuild(&self.registry, &snapshot)?,
        }
        current.seq = snapshot.seq();
        Ok(())
    }
}

/// Brings an index up to date, and reads what was never read, until nobody has it any more.
fn follow(finding: &Weak<Finding>) {
    loop {
        let Some(now) = finding.upgrade() else { return };
        let seq = now.lock().seq;
        // Short waits, so that the thread ends soon after its index.
        let news = now.registry.wait_events(seq, Duration::from_millis(50));
        let mut current = now.lock();
        if news.map_or(true, |events| !events.is_empty())
            && let Err(error) = now.catch_up(&mut current)
        {
            tracing::warn!(%error, "skills are not found as they are now");
        }
        let snapshot = now.registry.snapshot();
        let lesson = current.finder.lesson(&now.registry, &snapshot, AT_ONCE);
        drop(current);
        // Nobody has to wait for the index while it computes.
        match lesson.map(repertoire_registry::search::Lesson::read) {
            Some(Ok(learned)) => drop(now.lock().finder.learn(&learned)),
            Some(Err(error)) => {
                tracing::warn!(%error, "skills cannot be read for what they mean");
                std::thread::park_timeout(Duration::from_secs(10));
            }
            None => {}
        }
    }
}
