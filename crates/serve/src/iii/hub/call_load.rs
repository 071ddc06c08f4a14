//! What unfinished calls of the hub's own functions hold in memory.
//!
//! A write waits for the disk, and its notification for the followers. Until then its data is kept,
//! so it is counted: for each connection, and for the hub. A connection above its bound is not read
//! until some of it is done.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// A count of unfinished calls and of the bytes they hold.
#[derive(Debug, Default)]
pub(super) struct CallLoad {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    released: Notify,
    /// What all connections hold together.
    total: Option<Arc<CallLoad>>,
}

impl CallLoad {
    /// The load of one connection, which counts for the hub, too.
    pub(super) fn of_connection(total: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            total: Some(total.clone()),
            ..Self::default()
        })
    }

    /// Counts a call until the lease is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> LoadLease {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        LoadLease {
            load: self.clone(),
            bytes,
            _total: self.total.as_ref().map(|total| Box::new(total.hold(bytes))),
        }
    }

    /// Whether anything is held.
    pub(super) fn is_held(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0
    }

    /// The number of unfinished calls.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Waits until at most this many bytes are held.
    pub(super) async fn wait_below(&self, limit: usize) {
        loop {
            let released = self.released.notified();
            if self.bytes.load(Ordering::Relaxed) <= limit {
                return;
            }
            released.await;
        }
    }
}

/// A call that is not finished.
#[derive(Debug)]
pub(super) struct LoadLease {
    load: Arc<CallLoad>,
    bytes: usize,
    _total: Option<Box<LoadLease>>,
}

impl Drop for LoadLease {
    fn drop(&mut self) {
        self.load.calls.fetch_sub(1, Ordering::Relaxed);
        self.load.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.load.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn t46_a_load_counts_for_its_connection_and_for_the_hub() {
        let hub = Arc::<CallLoad>::default();
        let (one, two) = (CallLoad::of_connection(&hub), CallLoad::of_connection(&hub));
        let held = [one.hold(5), two.hold(6)];
        assert_eq!((one.calls(), two.calls(), hub.calls()), (1, 1, 2));
        assert!(one.wait_below(5).now_or_never().is_some());
        assert!(hub.wait_below(10).now_or_never().is_none());
        drop(held);
        assert!(hub.wait_below(0).now_or_never().is_some());
        assert_eq!(hub.calls(), 0);
    }
}
