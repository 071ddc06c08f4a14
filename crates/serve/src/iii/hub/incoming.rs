//! Counts the bytes of messages that have not arrived completely.
//!
//! A message is kept until its last byte has come, so a peer that starts long messages on many
//! connections and finishes none would hold memory for as long as it likes. When all connections hold
//! too much together, the peer that holds most loses its oldest unfinished message, and the connection
//! with it. Complete messages count nothing.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::{Error as WsError, Message as Ws};
use tokio_util::sync::CancellationToken;

use crate::peer_limits::PeerKey;

/// The bytes of a control frame beside its payload.
const CONTROL_FRAME_BYTES: usize = 6;

/// The bytes of incomplete messages of all connections of a hub.
#[derive(Debug)]
pub(super) struct IncomingBytes {
    /// At least the sum of what the connections hold.
    all: AtomicUsize,
    limit: usize,
    /// How many messages have begun.
    begun: AtomicU64,
    meters: Mutex<HashMap<u64, Weak<IncomingMeter>>>,
    /// Held while room is made.
    evicting: Mutex<()>,
    next_id: AtomicU64,
}

impl IncomingBytes {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            all: AtomicUsize::new(0),
            limit,
            begun: AtomicU64::new(0),
            meters: Mutex::default(),
            evicting: Mutex::default(),
            next_id: AtomicU64::new(0),
        })
    }

    fn is_exceeded(&self) -> bool {
        self.all.load(Ordering::SeqCst) > self.limit
    }

    fn lock_meters(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Weak<IncomingMeter>>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts unfinished messages until the others are within the limit.
    fn make_room(&self) {
        let _turn = self.evicting.lock().unwrap_or_else(PoisonError::into_inner);
        while self.is_exceeded() {
            // The last reference to a meter takes the lock of this table when it is dropped.
            let meters: Vec<_> = self.lock_meters().values().cloned().collect();
            let holding: Vec<_> = meters
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|meter| meter.has_partial_message())
                .collect();
            let mut peers: HashMap<PeerKey, usize> = HashMap::new();
            for meter in &holding {
                *peers.entry(meter.peer).or_default() += meter.own.load(Ordering::SeqCst);
            }
            let Some((most, _)) = peers.into_iter().max_by_key(|(_, bytes)| *bytes) else {
                return;
            };
            let of_peer = holding.iter().filter(|meter| meter.peer == most);
            let Some(oldest) = of_peer.min_by_key(|meter| meter.number.load(Ordering::SeqCst))
            else {
                return;
            };
            oldest.evicted.cancel();
            oldest.finish_message();
        }
    }
}

/// The bytes of the incomplete message of one connection.
#[derive(Debug)]
pub(super) struct IncomingMeter {
    id: u64,
    peer: PeerKey,
    own: AtomicUsize,
    /// The number of the incomplete message, in the order in which they began.
    number: AtomicU64,
    evicted: CancellationToken,
    total: Arc<IncomingBytes>,
}

impl IncomingMeter {
    fn new(total: &Arc<IncomingBytes>, peer: PeerKey) -> Arc<Self> {
        let meter = Arc::new(Self {
            id: total.next_id.fetch_add(1, Ordering::Relaxed),
            peer,
            own: AtomicUsize::new(0),
            number: AtomicU64::new(0),
            evicted: CancellationToken::new(),
            total: total.clone(),
        });
        let mut meters = total.lock_meters();
        meters.insert(meter.id, Arc::downgrade(&meter));
        drop(meters);
        meter
    }

    /// Counts bytes that have arrived.
    fn receive(&self, bytes: usize) {
        // The sum first, so that it is never less than its parts.
        self.total.all.fetch_add(bytes, Ordering::SeqCst);
        if self.own.fetch_add(bytes, Ordering::SeqCst) == 0 {
            let begun = self.total.begun.fetch_add(1, Ordering::SeqCst);
            self.number.store(begun, Ordering::SeqCst);
        }
        if self.total.is_exceeded() {
            self.total.make_room();
        }
    }

    /// The message has arrived.
    fn finish_message(&self) {
        let bytes = self.own.swap(0, Ordering::SeqCst);
        self.total.all.fetch_sub(bytes, Ordering::SeqCst);
    }

    /// A control frame has arrived, which may come in the middle of a message.
    fn finish_control(&self, payload: usize) {
        let frame = payload + CONTROL_FRAME_BYTES;
        let mut released = 0;
        let release = |own: usize| {
            released = frame.min(own);
            Some(own - released)
        };
        // The closure always returns a value, so that the update cannot fail.
        let _ = self
            .own
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, release);
        self.total.all.fetch_sub(released, Ordering::SeqCst);
    }

    /// Whether part of a message has arrived.
    pub(super) fn has_partial_message(&self) -> bool {
        self.own.load(Ordering::SeqCst) > 0
    }

    /// Cancelled when the connection has to be closed, because it and others hold too much.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for IncomingMeter {
    fn drop(&mut self) {
        self.total.lock_meters().remove(&self.id);
        self.finish_message();
    }
}

/// Returns the next message, and stops counting its bytes.
pub(super) async fn next_message<S>(
    stream: &mut S,
    meter: &IncomingMeter,
) -> Option<Result<Ws, WsError>>
where
    S: Stream<Item = Result<Ws, WsError>> + Unpin,
{
    let message = stream.next().await;
    match &message {
        Some(Ok(Ws::Ping(payload) | Ws::Pong(payload))) => meter.finish_control(payload.len()),
        Some(Ok(_)) => meter.finish_message(),
        Some(Err(_)) | None => {}
    }
    message
}

/// A stream whose received bytes are counted.
#[derive(Debug)]
pub(super) struct MeteredStream<S> {
    stream: S,
    meter: Arc<IncomingMeter>,
}

impl<S> MeteredStream<S> {
    pub(super) fn new(stream: S, total: &Arc<IncomingBytes>, peer: PeerKey) -> Self {
        let meter = IncomingMeter::new(total, peer);
        Self { stream, meter }
    }

    pub(super) fn meter(&self) -> &Arc<IncomingMeter> {
        &self.meter
    }

    /// Returns the stream without its meter.
    pub(super) fn into_inner(self) -> S {
        self.stream
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
        if received > 0 {
            self.meter.receive(received);
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

    const MIB: usize = 1024 * 1024;

    #[test]
    fn t42_the_peer_that_holds_most_loses_its_oldest_message() {
        let all = IncomingBytes::new(4 * MIB);
        let hostile = PeerKey::User(Some(7));
        let flood = [(); 4].map(|()| IncomingMeter::new(&all, hostile));
        for meter in &flood {
            meter.receive(MIB);
        }
        let honest = IncomingMeter::new(&all, PeerKey::User(None));
        honest.receive(MIB);
        assert!(flood[0].evicted().is_cancelled());
        assert!(!flood[0].has_partial_message());
        honest.receive(MIB);
        assert!(flood[1].evicted().is_cancelled());
        assert!(!flood[2].evicted().is_cancelled());
        assert!(!honest.evicted().is_cancelled());
        // A peer with one connection has to make room for itself.
        honest.receive(10 * MIB);
        assert!(honest.evicted().is_cancelled());
        drop((flood, honest));
        assert_eq!(all.all.load(Ordering::SeqCst), 0);
        assert!(all.lock_meters().is_empty());
    }

    #[test]
    fn t42_control_frames_do_not_finish_a_message() {
        let meter = IncomingMeter::new(&IncomingBytes::new(MIB), PeerKey::User(None));
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
