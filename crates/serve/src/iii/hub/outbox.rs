//! What is queued for one worker.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{
    Notify,
    mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use tokio_util::sync::CancellationToken;

/// Why a connection is closed: the code of the protocol, and a reason for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closing {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl Closing {
    pub(super) fn new(code: u16, reason: impl Into<String>) -> Self {
        let mut reason = reason.into();
        // A close frame has room for 123 bytes.
        let end = (0..=120.min(reason.len()))
            .rev()
            .find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or(0));
        Self { code, reason }
    }
}

/// From here on a peer is given no more calls, and is heard only when it has read.
const HIGH: usize = 16 * 1024 * 1024;

#[derive(Debug)]
struct Inner {
    queue: UnboundedSender<String>,
    queued: AtomicUsize,
    limit: usize,
    closing: Mutex<Option<Closing>>,
    stop: CancellationToken,
    /// Rung when something has left.
    left: Notify,
}

/// The sending end. A worker that lets too much pile up is closed.
#[derive(Debug, Clone)]
pub(super) struct Outbox(Arc<Inner>);

impl Outbox {
    pub(super) fn new(limit: usize, stop: CancellationToken) -> (Self, UnboundedReceiver<String>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let inner = Inner {
            queue,
            queued: AtomicUsize::new(0),
            limit,
            closing: Mutex::new(None),
            stop,
            left: Notify::new(),
        };
        (Self(Arc::new(inner)), waiting)
    }

    /// Queues a message.
    pub(super) fn send(&self, text: String) {
        let queued = self.0.queued.fetch_add(text.len(), Ordering::Relaxed) + text.len();
        if queued > self.0.limit {
            let reason = format!("does not read: {queued} bytes are waiting");
            self.close(Closing::new(1008, reason));
            return;
        }
        // The receiver is gone only when the connection is.
        let _ = self.0.queue.send(text);
    }

    /// A message has left.
    pub(super) fn sent(&self, bytes: usize) {
        self.0.queued.fetch_sub(bytes, Ordering::Relaxed);
        self.0.left.notify_waiters();
    }

    /// Whether much is waiting to be read.
    pub(super) fn is_high(&self) -> bool {
        self.0.queued.load(Ordering::Relaxed) > HIGH
    }

    /// Waits until not much is waiting any more.
    pub(super) async fn lowered(&self) {
        loop {
            let left = self.0.left.notified();
            if !self.is_high() {
                return;
            }
            left.await;
        }
    }

    /// Asks for the connection to be closed; the first reason stays.
    pub(super) fn close(&self, closing: Closing) {
        let mut place = self.lock();
        place.get_or_insert(closing);
        self.0.stop.cancel();
    }

    /// Why it is closed, if it is.
    pub(super) fn closing(&self) -> Option<Closing> {
        self.lock().clone()
    }

    pub(super) fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Closing>> {
        self.0
            .closing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
