//! The queue of messages to one worker.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{
    Notify,
    mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use tokio_util::sync::CancellationToken;

/// Why a connection is closed: the WebSocket close code, and a reason for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CloseReason {
    pub(super) code: u16,
    pub(super) reason: String,
}

impl CloseReason {
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

/// Above this many queued bytes a peer gets no calls, and its messages wait until it has read.
const HIGH_WATER_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
struct OutboxInner {
    queue: UnboundedSender<String>,
    queued: AtomicUsize,
    limit: usize,
    closing: Mutex<Option<CloseReason>>,
    stop: CancellationToken,
    /// Notified when a message was sent.
    drained: Notify,
}

/// The sending end. A worker whose queue grows past the limit is disconnected.
#[derive(Debug, Clone)]
pub(super) struct Outbox(Arc<OutboxInner>);

impl Outbox {
    pub(super) fn new(limit: usize, stop: CancellationToken) -> (Self, UnboundedReceiver<String>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let inner = OutboxInner {
            queue,
            queued: AtomicUsize::new(0),
            limit,
            closing: Mutex::new(None),
            stop,
            drained: Notify::new(),
        };
        (Self(Arc::new(inner)), waiting)
    }

    /// Queues a message.
    pub(super) fn send(&self, text: String) {
        let queued = self.0.queued.fetch_add(text.len(), Ordering::Relaxed) + text.len();
        if queued > self.0.limit {
            let reason = format!("does not read its messages: {queued} bytes are queued");
            self.close(CloseReason::new(1008, reason));
            return;
        }
        // The receiver is dropped only when the connection ends.
        let _ = self.0.queue.send(text);
    }

    /// Records that a message was sent.
    pub(super) fn mark_sent(&self, bytes: usize) {
        self.0.queued.fetch_sub(bytes, Ordering::Relaxed);
        self.0.drained.notify_waiters();
    }

    /// Whether the queue is above the high-water mark.
    pub(super) fn is_backlogged(&self) -> bool {
        self.0.queued.load(Ordering::Relaxed) > HIGH_WATER_BYTES
    }

    /// Waits until the queue is below the high-water mark.
    pub(super) async fn wait_drained(&self) {
        loop {
            let left = self.0.drained.notified();
            if !self.is_backlogged() {
                return;
            }
            left.await;
        }
    }

    /// Closes the connection; the first reason is kept.
    pub(super) fn close(&self, closing: CloseReason) {
        let mut place = self.lock_closing();
        place.get_or_insert(closing);
        self.0.stop.cancel();
    }

    /// Returns the reason if the connection was closed.
    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.lock_closing().clone()
    }

    pub(super) fn stop_token(&self) -> &CancellationToken {
        &self.0.stop
    }

    fn lock_closing(&self) -> std::sync::MutexGuard<'_, Option<CloseReason>> {
        self.0
            .closing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
