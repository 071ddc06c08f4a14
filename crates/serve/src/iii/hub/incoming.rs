//! Counts the bytes of messages that have not arrived completely.
//!
//! A message is kept until its last byte has come, so a peer that starts long messages on many
//! connections and finishes none would hold memory for as long as it likes.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What one connection may always hold, also when all connections hold too much together.
const MIN_INCOMING_BYTES: usize = 1024 * 1024;
/// The bytes of a control frame beside its payload.
const CONTROL_FRAME_BYTES: usize = 6;

/// The bytes of incomplete messages of all connections of a hub.
#[derive(Debug)]
pub(super) struct IncomingBytes {
    all: AtomicUsize,
    limit: usize,
}

impl IncomingBytes {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            all: AtomicUsize::new(0),
            limit,
        })
    }
}

/// The bytes of the incomplete message of one connection.
#[derive(Debug)]
pub(super) struct IncomingMeter {
    own: AtomicUsize,
    total: Arc<IncomingBytes>,
}

impl IncomingMeter {
    pub(super) fn new(total: &Arc<IncomingBytes>) -> Arc<Self> {
        Arc::new(Self {
            own: AtomicUsize::new(0),
            total: total.clone(),
        })
    }

    /// Counts bytes; returns whether the connection holds too much.
    fn receive(&self, bytes: usize) -> bool {
        let own = self.own.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.total.all.fetch_add(bytes, Ordering::Relaxed) + bytes;
        all > self.total.limit && own > MIN_INCOMING_BYTES
    }

    fn release(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.total.all.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The message has arrived.
    pub(super) fn finish_message(&self) {
        self.release(self.own.load(Ordering::Relaxed));
    }

    /// A control frame has arrived, which may come in the middle of a message.
    pub(super) fn finish_control(&self, payload: usize) {
        let frame = payload + CONTROL_FRAME_BYTES;
        self.release(frame.min(self.own.load(Ordering::Relaxed)));
    }

    /// Whether part of a message has arrived.
    pub(super) fn has_partial_message(&self) -> bool {
        self.own.load(Ordering::Relaxed) > 0
    }
}

impl Drop for IncomingMeter {
    fn drop(&mut self) {
        self.finish_message();
    }
}

/// A stream whose received bytes are counted.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    stream: S,
    meter: Arc<IncomingMeter>,
}

impl<S> MeteredStream<S> {
    pub(super) fn new(stream: S, meter: Arc<IncomingMeter>) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MeteredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let received = buffer.filled().len() - before;
        if received > 0 && self.meter.receive(received) {
            let message = "the hub holds too many bytes of unfinished messages";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, message)));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MeteredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t42_unfinished_messages_are_bounded_together_and_given_back() {
        let all = IncomingBytes::new(4 * MIN_INCOMING_BYTES);
        let meters = [(); 4].map(|()| IncomingMeter::new(&all));
        for meter in &meters {
            assert!(!meter.receive(MIN_INCOMING_BYTES));
        }
        assert!(meters[0].receive(1), "more than its share of a full hub");
        let small = IncomingMeter::new(&all);
        assert!(!small.receive(MIN_INCOMING_BYTES), "short messages go on");
        meters[0].finish_message();
        assert!(!meters[0].has_partial_message());
        drop((meters, small));
        assert_eq!(all.all.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn t42_control_frames_do_not_finish_a_message() {
        let meter = IncomingMeter::new(&IncomingBytes::new(MIN_INCOMING_BYTES));
        meter.receive(100);
        meter.receive(CONTROL_FRAME_BYTES + 4);
        meter.finish_control(4);
        assert!(meter.has_partial_message());
        meter.finish_message();
        meter.receive(CONTROL_FRAME_BYTES);
        meter.finish_control(0);
        assert!(!meter.has_partial_message());
    }
}
