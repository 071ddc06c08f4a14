//! A registry that is opened in the background and followed while it is used.
//!
//! A server answers first and indexes afterwards: a handshake needs no catalogue, so it never waits
//! for one. Requests that need the registry wait until it is open.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use repertoire_core::SkillUri;
use repertoire_registry::{Registry, RegistrySettings, WatchHandle};
use tokio::sync::{Semaphore, SetOnce, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long no change must happen before the whole catalogue is looked at.
const QUIET: Duration = Duration::from_millis(100);
/// The longest time between two such looks while changes go on.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// How many files are read at a time before the registry is open.
const MAX_EARLY_READS: usize = 4;

/// Whether changes on disk are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileWatching {
    /// Changes reach the catalogue as they happen.
    On,
    /// The catalogue keeps what was read when it was opened.
    Off,
}

/// Called with the registry after it was opened, and after changes have settled.
pub type OnSettled = Box<dyn FnMut(&Registry) + Send>;

/// A registry, as soon as it is open, and its changes.
#[derive(Debug)]
pub struct LiveRegistry {
    registry: SetOnce<Result<Arc<Registry>, Arc<repertoire_registry::Error>>>,
    /// The number of the last event.
    changes: watch::Sender<u64>,
    /// The settings, until it is open.
    opening: Mutex<Option<Arc<RegistrySettings>>>,
    /// How many files are read before it is open.
    early_reads: Semaphore,
    watcher: Mutex<Option<WatchHandle>>,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

impl LiveRegistry {
    /// Creates a handle without a registry; requests for it wait.
    pub fn new() -> Arc<Self> {
        let stop = CancellationToken::new();
        Arc::new(Self {
            registry: SetOnce::new(),
            changes: watch::Sender::new(0),
            opening: Mutex::new(None),
            early_reads: Semaphore::new(MAX_EARLY_READS),
            watcher: Mutex::new(None),
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        })
    }

    /// Opens a registry on a thread of its own; calls `then` once it is open.
    pub fn open_in_background(
        self: &Arc<Self>,
        settings: RegistrySettings,
        watching: FileWatching,
        on_settled: OnSettled,
        then: impl FnOnce(&Arc<Registry>) + Send + 'static,
    ) {
        let live = self.clone();
        *self.lock_opening() = Some(Arc::new(settings.clone()));
        // A thread instead of a task, because opening blocks on disk reads.
        std::thread::spawn(move || {
            match Registry::open(settings) {
                Ok(registry) => {
                    then(&registry);
                    live.follow(registry, watching, on_settled);
                }
                Err(error) => drop(live.registry.set(Err(Arc::new(error)))),
            }
            *live.lock_opening() = None;
        });
    }

    fn lock_opening(&self) -> MutexGuard<'_, Option<Arc<RegistrySettings>>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a registry for reading one file: the registry, or if it is not open yet, one of the only
    /// folder that the file can be in. Waits for the registry where that is not certain.
    pub async fn registry_for_file(
        &self,
        uri: &SkillUri,
    ) -> Result<Arc<Registry>, Arc<repertoire_registry::Error>> {
        let early = async {
            let permit = self.early_reads.try_acquire().ok()?;
            let settings = self.lock_opening().clone()?;
            let uri = uri.clone();
            let opened =
                tokio::task::spawn_blocking(move || Registry::open_for_file(&settings, &uri));
            let opened = opened.await.ok().flatten();
            drop(permit);
            opened
        };
        tokio::select! {
            biased;
            opened = self.registry() => opened.cloned(),
            Some(early) = early => Ok(early),
        }
    }

    /// Follows an open registry. A second one has no effect.
    pub fn follow(
        &self,
        registry: Arc<Registry>,
        watching: FileWatching,
        mut on_settled: OnSettled,
    ) {
        if watching == FileWatching::On {
            match registry.start_watching() {
                Ok(watch) => {
                    *self.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
                }
                Err(error) => tracing::warn!(%error, "changes on disk are not watched"),
            }
        }
        // Subscribed before any request is answered, so that no later change is missed.
        let mut source = registry.subscribe_changes();
        self.changes.send_replace(*source.borrow_and_update());
        let (weak, changes) = (Arc::downgrade(&registry), self.changes.clone());
        drop(self.registry.set(Ok(registry.clone())));
        on_settled(&registry);
        drop(registry);
        let stop = self.stop.clone();
        // A thread with a runtime of its own: the callback reads the disk, and a registry can be
        // followed outside of any runtime.
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return tracing::warn!(%error, "changes are not followed"),
            };
            let settled = move || {
                let registry = weak.upgrade()?;
                on_settled(&registry);
                Some(())
            };
            let follow = forward_changes(source, changes, settled);
            runtime.block_on(async {
                tokio::select! {
                    () = follow => {}
                    () = stop.cancelled() => {}
                }
            });
        });
    }

    /// Waits until the registry is open and returns it.
    pub async fn registry(&self) -> Result<&Arc<Registry>, Arc<repertoire_registry::Error>> {
        self.registry.wait().await.as_ref().map_err(Arc::clone)
    }

    /// Returns the registry if it is already open.
    pub fn opened(&self) -> Option<&Arc<Registry>> {
        self.registry.get()?.as_ref().ok()
    }

    /// The number of the last event of the catalogue, as it changes.
    pub fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// Forwards the sequence numbers of a catalogue until it is dropped, and calls `settled` after each
/// burst of changes; during a long burst, less often the longer the call takes.
async fn forward_changes(
    mut source: watch::Receiver<u64>,
    changes: watch::Sender<u64>,
    mut settled: impl FnMut() -> Option<()>,
) {
    let mut pause = Duration::from_secs(1);
    while source.changed().await.is_ok() {
        changes.send_replace(*source.borrow_and_update());
        let first = Instant::now();
        loop {
            let quiet = tokio::time::timeout(QUIET, source.changed()).await;
            match quiet {
                Ok(Ok(())) => {
                    changes.send_replace(*source.borrow_and_update());
                    if first.elapsed() > pause.min(MAX_PAUSE) {
                        break;
                    }
                }
                Ok(Err(_)) => return,
                Err(_) => break,
            }
        }
        let start = Instant::now();
        if settled().is_none() {
            return;
        }
        pause = (start.elapsed() * 20).max(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_announced_and_dropping_frees_the_registry() {
        let home = tempfile::tempdir().unwrap();
        let settings = RegistrySettings {
            account: Some(home.path().to_owned()),
            ..RegistrySettings::default()
        };
        let registry = Registry::open(settings).unwrap();
        let weak = Arc::downgrade(&registry);
        let settled = Box::new(|_: &Registry| {});
        let live = LiveRegistry::new();
        live.follow(registry, FileWatching::Off, settled);
        let mut changes = live.subscribe_changes();
        let before = *changes.borrow_and_update();
        let registry = live.registry().await.unwrap();
        registry
            .register_skill(&"demo".parse().unwrap(), "# Demo\n\nA body.\n")
            .unwrap();
        let wait = tokio::time::timeout(Duration::from_secs(10), changes.changed());
        wait.await.unwrap().unwrap();
        assert!(*changes.borrow() > before);
        drop(live);
        let freed = async {
            while weak.upgrade().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), freed)
            .await
            .expect("the registry is freed");
    }
}
