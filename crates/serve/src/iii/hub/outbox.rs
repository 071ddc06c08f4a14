//! The queue of messages to one worker.
//!
//! A long payload that goes to many workers is kept once: a message has a head of its own, and may
//! share its payload with others.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{
    Notify,
    mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use tokio_tungstenite::tungstenite::Bytes;
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

/// A message that waits to be sent.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) head: String,
    /// What follows the head, shared with other messages; then comes the tail.
    pub(super) shared: Option<(Bytes, &'static str)>,
}

impl QueuedMessage {
    pub(super) fn len(&self) -> usize {
        let shared = self.shared.as_ref();
        self.head.len() + shared.map_or(0, |(body, tail)| body.len() + tail.len())
    }
}

impl From<String> for QueuedMessage {
    fn from(head: String) -> Self {
        Self { head, shared: None }
    }
}

/// A payload that several messages share. It counts once, until the last of them is sent.
struct SharedPayload {
    data: String,
    all: Arc<QueuedBytes>,
}

impl AsRef<[u8]> for SharedPayload {
    fn as_ref(&self) -> &[u8] {
        self.data.as_bytes()
    }
}

impl Drop for SharedPayload {
    fn drop(&mut self) {
        self.all.all.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

/// The bytes that wait in all queues of a hub; what messages share is counted once.
#[derive(Debug)]
pub(super) struct QueuedBytes {
    all: AtomicUsize,
    limit: usize,
}

impl QueuedBytes {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            all: AtomicUsize::new(0),
            limit,
        })
    }

    /// Counts a payload until its last copy is dropped.
    pub(super) fn share(self: &Arc<Self>, data: String) -> Bytes {
        self.all.fetch_add(data.len(), Ordering::Relaxed);
        Bytes::from_owner(SharedPayload {
            data,
            all: self.clone(),
        })
    }
}

/// What a queue may always hold, also when the queues of a hub are full together.
const MIN_QUEUE_BYTES: usize = 1024 * 1024;
/// Above this many queued bytes a peer gets no calls, and its messages wait until it has read.
const HIGH_WATER_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug)]
struct OutboxInner {
    queue: UnboundedSender<QueuedMessage>,
    queued: AtomicUsize,
    all: Arc<QueuedBytes>,
    /// What this queue adds to the bytes of all queues.
    own: AtomicUsize,
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
    pub(super) fn new(
        limit: usize,
        all: Arc<QueuedBytes>,
        stop: CancellationToken,
    ) -> (Self, UnboundedReceiver<QueuedMessage>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let inner = OutboxInner {
            queue,
            queued: AtomicUsize::new(0),
            all,
            own: AtomicUsize::new(0),
            limit,
            closing: Mutex::new(None),
            stop,
            drained: Notify::new(),
        };
        (Self(Arc::new(inner)), waiting)
    }

    /// Queues a message.
    pub(super) fn send(&self, message: impl Into<QueuedMessage>) {
        let message = message.into();
        let (bytes, own) = (message.len(), message.head.len());
        let queued = self.0.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.0.own.fetch_add(own, Ordering::Relaxed);
        let all = self.0.all.all.fetch_add(own, Ordering::Relaxed) + own;
        // What waited before counts: a peer that reads is not dropped for one large message.
        let is_full = all > self.0.all.limit && queued - bytes > MIN_QUEUE_BYTES;
        if queued > self.0.limit || is_full {
            let reason = format!("does not read its messages: {queued} bytes are queued");
            self.close(CloseReason::new(1008, reason));
            return;
        }
        // The receiver is dropped only when the connection ends.
        let _ = self.0.queue.send(message);
    }

    /// Records that a message was sent: all its bytes, and those of its head.
    pub(super) fn mark_sent(&self, bytes: usize, own: usize) {
        self.0.queued.fetch_sub(bytes, Ordering::Relaxed);
        self.0.own.fetch_sub(own, Ordering::Relaxed);
        self.0.all.all.fetch_sub(own, Ordering::Relaxed);
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

impl Drop for OutboxInner {
    fn drop(&mut self) {
        // Messages that were never sent are dropped with the queue.
        let left = self.own.load(Ordering::Relaxed);
        self.all.all.fetch_sub(left, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t46_queues_that_are_full_together_drop_those_who_do_not_read() {
        let all = QueuedBytes::new(3 * MIN_QUEUE_BYTES);
        let open = || Outbox::new(usize::MAX, all.clone(), CancellationToken::new());
        let long = || "x".repeat(2 * MIN_QUEUE_BYTES);
        let (first, _kept) = open();
        let (second, _also) = open();
        first.send(long());
        assert_eq!(first.close_reason(), None);
        second.send(long());
        assert_eq!(second.close_reason(), None, "a queue that was empty");
        second.send(long());
        assert!(second.close_reason().is_some(), "above the bound of all");
        let (third, _more) = open();
        third.send("short".to_owned());
        assert_eq!(third.close_reason(), None, "short queues go on");
        drop((second, third));
        first.mark_sent(2 * MIN_QUEUE_BYTES, 2 * MIN_QUEUE_BYTES);
        assert_eq!(all.all.load(Ordering::Relaxed), 0, "all is given back");
    }

    #[test]
    fn t46_a_shared_payload_is_counted_once() {
        let all = QueuedBytes::new(8 * MIN_QUEUE_BYTES);
        let body = all.share("x".repeat(4 * MIN_QUEUE_BYTES));
        let (outbox, waiting) = Outbox::new(usize::MAX, all.clone(), CancellationToken::new());
        for _ in 0..10 {
            outbox.send(QueuedMessage {
                head: "head".to_owned(),
                shared: Some((body.clone(), "}")),
            });
        }
        assert_eq!(outbox.close_reason(), None);
        assert_eq!(all.all.load(Ordering::Relaxed), 4 * MIN_QUEUE_BYTES + 40);
        drop((outbox, waiting, body));
        assert_eq!(all.all.load(Ordering::Relaxed), 0);
    }
}
