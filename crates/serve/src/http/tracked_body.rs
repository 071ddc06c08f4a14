//! Response bodies that hold the permit of their request and end with its token.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes};
use http_body::Frame;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{HttpState, guard::TokenWatch};
use crate::peer_limits::BudgetLease;

/// The permit of a request, held from its arrival to the last byte of its response.
pub(super) struct RequestSlot {
    shared: Arc<HttpState>,
    _lease: BudgetLease,
}

impl RequestSlot {
    pub(super) fn new(shared: &Arc<HttpState>, lease: BudgetLease) -> Self {
        shared.service.metrics.in_flight.inc();
        Self {
            shared: shared.clone(),
            _lease: lease,
        }
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.shared.service.metrics.in_flight.dec();
    }
}

/// The maximum size of a body frame; the rest waits until the client has read it.
const MAX_FRAME_BYTES: usize = 64 * 1024;

/// A response body that holds the permit of its request until it is sent.
pub(super) struct TrackedBody {
    body: Body,
    rest: Bytes,
    token_watch: Option<TokenWatch>,
    _slot: Option<RequestSlot>,
    buffer: Option<BudgetLease>,
    deadline: Option<AbortOnDropHandle<()>>,
}

impl TrackedBody {
    pub(super) fn new(
        body: Body,
        slot: Option<RequestSlot>,
        token_watch: Option<TokenWatch>,
    ) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            token_watch,
            _slot: slot,
            buffer: None,
            deadline: None,
        }
    }

    pub(super) fn set_body(&mut self, body: Body) {
        self.body = body;
    }

    /// Counts the bytes of the body until it is sent.
    pub(super) fn hold_buffer(&mut self, lease: Option<BudgetLease>) {
        self.buffer = lease;
    }

    /// Closes the connection unless the body is sent within a time. A timer of its own is needed: a
    /// body is not polled while its peer reads nothing.
    pub(super) fn close_after(&mut self, time: Duration, connection: CancellationToken) {
        let timer = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            connection.cancel();
        });
        self.deadline = Some(AbortOnDropHandle::new(timer));
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(watched) = &mut self.token_watch
            && watched.is_revoked(context)
        {
            return Poll::Ready(None);
        }
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return other,
            }
        }
        let piece = self.rest.len().min(MAX_FRAME_BYTES);
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        // Set the upper bound first: the lower bound must never exceed it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
