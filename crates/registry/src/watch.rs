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
        let poll = watcher.is_none() && !roots.is_empty();
        let thread = std::thread::Builder::new()
            .name("repertoire-watch".to_owned())
            .spawn(move || {
                run(&registry, &inbox, poll);
                drop(watcher);
            })
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
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let signal = match event {
            Ok(event) if matches!(event.kind, EventKind::Access(_)) => return,
            Ok(event) if event.need_rescan() => Signal::Missed,
            Ok(event) => Signal::Changed(event.paths),
            Err(_) => Signal::Missed,
        };
        let _ = signals.send(signal);
    })?;
    for root in roots {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    Ok(watcher)
}

fn run(registry: &Registry, inbox: &Receiver<Signal>, poll: bool) {
    let mut last_poll = Instant::now();
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
                if poll && last_poll.elapsed() >= Duration::from_secs(1) {
                    registry.rescan();
                    last_poll = Instant::now();
                }
            }
        }
        if let Err(error) = registry.sync() {
            tracing::warn!(%error, "a store could not be followed");
        }
    }
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
        match inbox.recv_timeout(QUIET.min(left)) {
            Ok(signal) => next = signal,
            Err(_) => return Some((paths.into_iter().collect(), missed)),
        }
    }
}
