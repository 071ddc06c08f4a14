//! Live reload: applies changes on disk and in the stores to the catalogue.
//!
//! A burst of changes is applied atomically: the watcher waits until the disk has been quiet for a
//! moment, then reconciles all paths of the burst. Lost events cause one full rescan. Where the
//! system cannot watch (too many folders), the roots are rescanned every second.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use notify::{EventKind, RecursiveMode, Watcher};

use crate::{
    error::{Error, Result},
    registry::Registry,
};

/// How long the disk must be quiet before a burst ends.
const QUIET_PERIOD: Duration = Duration::from_millis(40);
/// The longest duration of a burst.
const MAX_BURST: Duration = Duration::from_millis(500);
/// How often the stores are polled for writes of other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A handle to the watcher; dropping it stops watching.
#[derive(Debug)]
pub struct WatchHandle {
    stop: Option<mpsc::Sender<WatchSignal>>,
    thread: Option<JoinHandle<()>>,
    /// Why the system's file notifications could not be used, if they could not.
    pub fallback: Option<String>,
}

#[derive(Debug)]
enum WatchSignal {
    Changed(Vec<PathBuf>),
    EventsLost,
    Stop,
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(WatchSignal::Stop);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Registry {
    /// Keeps the catalogue up to date until the watch is dropped.
    pub fn start_watching(self: &Arc<Self>) -> Result<WatchHandle> {
        let (signals, inbox) = mpsc::channel();
        let roots = self.watched_roots();
        let started = start_watcher(&roots, signals.clone());
        let (watcher, fallback) = match started {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let registry = Arc::clone(self);
        let again = signals.clone();
        let thread = std::thread::Builder::new()
            .name("repertoire-watch".to_owned())
            .spawn(move || run_watch_loop(&registry, &inbox, &again, watcher))
            .map_err(|e| Error::from_io("watch", e))?;
        // Catch up with changes between opening the registry and starting the watcher.
        let _ = signals.send(WatchSignal::EventsLost);
        Ok(WatchHandle {
            stop: Some(signals),
            thread: Some(thread),
            fallback,
        })
    }
}

fn start_watcher(
    roots: &[PathBuf],
    signals: mpsc::Sender<WatchSignal>,
) -> notify::Result<notify::RecommendedWatcher> {
    // Symbolic links are not followed, because their targets are outside the root. Read accesses
    // are not reported, because the registry's own reads would trigger events.
    let config = notify::Config::default()
        .with_follow_symlinks(false)
        .with_event_kinds(notify::EventKindMask::CORE);
    let handler = move |event: notify::Result<notify::Event>| {
        let signal = match event {
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => return,
            Ok(event) if event.need_rescan() => WatchSignal::EventsLost,
            Ok(event) => WatchSignal::Changed(event.paths),
            Err(_) => WatchSignal::EventsLost,
        };
        let _ = signals.send(signal);
    };
    let mut watcher = notify::RecommendedWatcher::new(handler, config)?;
    for root in roots {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    Ok(watcher)
}

fn run_watch_loop(
    registry: &Registry,
    inbox: &Receiver<WatchSignal>,
    signals: &mpsc::Sender<WatchSignal>,
    mut watcher: Option<notify::RecommendedWatcher>,
) {
    let mut last_poll = Instant::now();
    let mut places = root_identities(registry);
    loop {
        match inbox.recv_timeout(POLL_INTERVAL) {
            Ok(WatchSignal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(first) => {
                let Some((paths, missed)) = collect_burst(inbox, first) else {
                    return;
                };
                if missed {
                    registry.rescan_files();
                } else {
                    registry.reconcile_paths(&paths);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if watcher.is_none() && last_poll.elapsed() >= Duration::from_secs(1) {
                    registry.rescan_files();
                    last_poll = Instant::now();
                }
            }
        }
        // A root that was deleted and recreated is a new folder that is not watched yet.
        let now = root_identities(registry);
        if now != places {
            let there = now.iter().filter(|(_, identity)| identity.is_some());
            let roots: Vec<PathBuf> = there.map(|(root, _)| root.clone()).collect();
            watcher = start_watcher(&roots, signals.clone()).ok();
            registry.rescan_files();
            places = now;
        }
        if let Err(error) = registry.sync_stores() {
            tracing::warn!(%error, "a store could not be synchronised");
        }
    }
}

/// Returns the roots with the inode of the folder at each of them.
fn root_identities(registry: &Registry) -> Vec<(PathBuf, Option<u64>)> {
    let identity = |root: &PathBuf| {
        let metadata = root.metadata().ok()?;
        #[cfg(unix)]
        return Some(std::os::unix::fs::MetadataExt::ino(&metadata));
        #[cfg(not(unix))]
        return metadata.is_dir().then_some(0);
    };
    let roots = registry.watched_roots();
    roots
        .into_iter()
        .map(|root| (root.clone(), identity(&root)))
        .collect()
}

/// Collects all paths of a burst until the disk is quiet. Returns `None` on a stop signal.
fn collect_burst(
    inbox: &Receiver<WatchSignal>,
    first: WatchSignal,
) -> Option<(Vec<PathBuf>, bool)> {
    let deadline = Instant::now() + MAX_BURST;
    let mut paths = BTreeSet::new();
    let mut missed = false;
    let mut next = first;
    loop {
        match next {
            WatchSignal::Stop => return None,
            WatchSignal::EventsLost => missed = true,
            WatchSignal::Changed(changed) => paths.extend(changed),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some((paths.into_iter().collect(), missed));
        }
        match inbox.recv_timeout(QUIET_PERIOD.min(left)) {
            Ok(signal) => next = signal,
            Err(_) => return Some((paths.into_iter().collect(), missed)),
        }
    }
}
