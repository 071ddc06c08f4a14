//! Live reload: changes on disk and in the stores reach the catalogue by themselves.
//!
//! A burst of changes is one atomic step: the watcher waits until the disk has been quiet for a
//! moment, then reconciles the paths of the whole burst. Events that were lost lead to one full
//! look. Where the system cannot watch (too many folders), the roots are looked at every second.

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

/// How long the disk has to be quiet before a burst is over.
const QUIET: Duration = Duration::from_millis(40);
/// How long a burst may last at most.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often stores are asked what other processes wrote.
const TICK: Duration = Duration::from_millis(250);

/// Watching goes on until this is dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Option<mpsc::Sender<Signal>>,
    thread: Option<JoinHandle<()>>,
    /// Why the system's own notifications could not be used, if so.
    pub fallback: Option<String>,
}

#[derive(Debug)]
enum Signal {
    Changed(Vec<PathBuf>),
    Missed,
    Stop,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(Signal::Stop);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Registry {
    /// Keeps the catalogue up to date until the watch is dropped.
    pub fn watch(self: &Arc<Self>) -> Result<Watch> {
        let (signals, inbox) = mpsc::channel();
        let roots = self.roots();
        let started = start_watcher(&roots, signals.clone());
        let (watcher, fallback) = match started {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let registry = Arc::clone(self);
        let again = signals.clone();
        let thread = std::thread::Builder::new()
            .name("repertoire-watch".to_owned())
            .spawn(move || run(&registry, &inbox, &again, watcher))
            .map_err(|e| Error::io("watch", e))?;
        // Whatever changed between opening and watching is caught up with once.
        let _ = signals.send(Signal::Missed);
        Ok(Watch {
            stop: Some(signals),
            thread: Some(thread),
            fallback,
        })
    }
}

fn start_watcher(
    roots: &[PathBuf],
    signals: mpsc::Sender<Signal>,
) -> notify::Result<notify::RecommendedWatcher> {
    // A link is watched as a link: what it leads to is none of ours.
    // Reading is nothing to be told of, least of all our own.
    let config = notify::Config::default()
        .with_follow_symlinks(false)
        .with_event_kinds(notify::EventKindMask::CORE);
    let handler = move |event: notify::Result<notify::Event>| {
        let signal = match event {
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => return,
            Ok(event) if event.need_rescan() => Signal::Missed,
            Ok(event) => Signal::Changed(event.paths),
            Err(_) => Signal::Missed,
        };
        let _ = signals.send(signal);
    };
    let mut watcher = notify::RecommendedWatcher::new(handler, config)?;
    for root in roots {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    Ok(watcher)
}

fn run(
    registry: &Registry,
    inbox: &Receiver<Signal>,
    signals: &mpsc::Sender<Signal>,
    mut watcher: Option<notify::RecommendedWatcher>,
) {
    let mut last_poll = Instant::now();
    let mut places = identities(registry);
    loop {
        match inbox.recv_timeout(TICK) {
            Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(first) => {
                let Some((paths, missed)) = burst(inbox, first) else {
                    return;
                };
                if missed {
                    registry.rescan();
                } else {
                    registry.reconcile(&paths);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if watcher.is_none() && last_poll.elapsed() >= Duration::from_secs(1) {
                    registry.rescan();
                    last_poll = Instant::now();
                }
            }
        }
        // A root that was deleted and made again is another folder, which nobody watches yet.
        let now = identities(registry);
        if now != places {
            let there = now.iter().filter(|(_, identity)| identity.is_some());
            let roots: Vec<PathBuf> = there.map(|(root, _)| root.clone()).collect();
            watcher = start_watcher(&roots, signals.clone()).ok();
            registry.rescan();
            places = now;
        }
        if let Err(error) = registry.sync() {
            tracing::warn!(%error, "a store could not be followed");
        }
    }
}

/// The roots, and which folder stands at each of them.
fn identities(registry: &Registry) -> Vec<(PathBuf, Option<u64>)> {
    let identity = |root: &PathBuf| {
        let metadata = root.metadata().ok()?;
        #[cfg(unix)]
        return Some(std::os::unix::fs::MetadataExt::ino(&metadata));
        #[cfg(not(unix))]
        return metadata.is_dir().then_some(0);
    };
    let roots = registry.roots();
    roots
        .into_iter()
        .map(|root| (root.clone(), identity(&root)))
        .collect()
}

/// Collects a burst: all paths until the disk is quiet. `None` when asked to stop.
fn burst(inbox: &Receiver<Signal>, first: Signal) -> Option<(Vec<PathBuf>, bool)> {
    let deadline = Instant::now() + PATIENCE;
    let mut paths = BTreeSet::new();
    let mut missed = false;
    let mut next = first;
    loop {
        match next {
            Signal::Stop => return None,
            Signal::Missed => missed = true,
            Signal::Changed(changed) => paths.extend(changed),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some((paths.into_iter().collect(), missed));
        }
        match inbox.recv_timeout(QUIET.min(left)) {
            Ok(signal) => next = signal,
            Err(_) => return Some((paths.into_iter().collect(), missed)),
        }
    }
}
