//! One connection, from its greeting to its end.
//!
//! Reading and writing are separate tasks: a worker that sends much and reads little does not
//! block the hub from reading its messages, and one that reads nothing is dropped.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
use repertoire_app::{Caller, Permission};
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::mpsc::UnboundedReceiver,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Bytes, Error as WsError, Message as Ws,
        error::{CapacityError, ProtocolError},
        protocol::{
            CloseFrame,
            frame::{
                Frame as WsFrame,
                coding::{Data, OpCode},
            },
        },
    },
};

use super::{
    super::{
        bus::{BusResult, CallError},
        protocol::{Frame, HubMessage, TraceContext, message_type, result_text},
    },
    Hub, LISTINGS, MAY_CALL_WORKERS, builtin,
    call_load::{CallLoad, LoadLease},
    incoming::{IncomingMeter, MeteredStream, next_message},
    is_void,
    outbox::{CloseReason, Outbox, QueuedMessage},
    routing_table::{RegistrationRefusal, WorkerId},
};

/// Longer messages are split, because clients limit frames more tightly than messages.
const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// The longest id of a function, a trigger or a trigger type.
const MAX_ID_BYTES: usize = 1024;
/// The supported types of messages, with what a caller must be allowed to do. A call needs what its
/// function needs.
pub(crate) static MESSAGE_TYPES: [(&str, Option<Permission>); 13] = [
    ("invokefunction", None),
    // Only the worker that was called can answer.
    ("invocationresult", None),
    ("registerfunction", Some(Permission::Write)),
    ("unregisterfunction", Some(Permission::Write)),
    ("registertriggertype", Some(Permission::Write)),
    ("unregistertriggertype", Some(Permission::Write)),
    // A subscription makes the hub call a function, of any worker.
    ("registertrigger", Some(Permission::Run)),
    ("unregistertrigger", Some(Permission::Write)),
    ("triggerregistrationresult", Some(Permission::Write)),
    ("reattach", Some(Permission::Write)),
    ("registerservice", None),
    ("ping", None),
    ("pong", None),
];

fn find_message_type(kind: &str) -> Option<&'static (&'static str, Option<Permission>)> {
    MESSAGE_TYPES.iter().find(|(name, _)| *name == kind)
}

/// How long input is discarded after a connection was closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection that a message came from.
#[derive(Clone, Copy)]
struct PeerContext<'a> {
    id: &'a WorkerId,
    outbox: &'a Outbox,
    caller: &'a Caller,
    /// What its calls of the hub's own functions hold.
    load: &'a Arc<CallLoad>,
    /// What has arrived of its next message.
    incoming: &'a IncomingMeter,
}

impl Hub {
    /// Serves a worker until it disconnects or its connection is closed.
    pub(super) async fn serve_connection<S>(
        self: Arc<Self>,
        socket: WebSocketStream<MeteredStream<S>>,
        caller: Caller,
        revoked: impl Future<Output = ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = self.options.max_message * 2 + 16 * 1024 * 1024;
        let (outbox, waiting) = Outbox::new(limit, self.queued.clone(), self.stop.child_token());
        let incoming = socket.get_ref().meter().clone();
        let (sink, stream) = socket.split();
        let id = self.lock_table().add_worker(outbox.clone());
        tracing::info!(worker = &*id, "connected");
        self.service.metrics.workers.inc();
        let writer = ConnectionWriter {
            sink,
            outbox: outbox.clone(),
            write_timeout: self.options.write_timeout,
            ping_interval: self.options.idle_timeout / 3,
        };
        let sending = tokio::spawn(writer.write_messages(waiting));
        let peer = PeerContext {
            id: &id,
            outbox: &outbox,
            caller: &caller,
            load: &CallLoad::of_connection(&self.load),
            incoming: &incoming,
        };
        let listening = self.read_messages(peer, stream);
        tokio::pin!(listening, revoked);
        let stream = tokio::select! {
            stream = &mut listening => stream,
            () = revoked => {
                outbox.close(CloseReason::new(1008, "the token is no longer valid"));
                listening.await
            }
        };
        // Before anything else, calls that wait for this worker fail.
        let had_functions = self.lock_table().remove_worker(&id);
        if had_functions {
            self.functions_changed.notify_one();
        }
        self.service.metrics.workers.dec();
        outbox.stop_token().cancel();
        tracing::info!(worker = &*id, "disconnected");
        if let Some(closing) = outbox.close_reason() {
            tracing::info!(
                worker = &*id,
                code = closing.code,
                reason = closing.reason,
                "closed"
            );
        }
        if let Ok(Some(sink)) = sending.await
            && let Ok(socket) = stream.reunite(sink)
        {
            // Unread bytes would reset the connection before the peer reads the close reason. They are
            // not kept, so they do not count.
            let mut rest = socket.into_inner().into_inner();
            let mut sink = vec![0; 64 * 1024];
            let drain = async { while rest.read(&mut sink).await.is_ok_and(|n| n > 0) {} };
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, drain).await;
        }
    }

    /// Reads messages until the worker disconnects; returns the stream.
    async fn read_messages<S>(
        self: &Arc<Self>,
        peer: PeerContext<'_>,
        mut stream: SplitStream<WebSocketStream<S>>,
    ) -> SplitStream<WebSocketStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let outbox = peer.outbox;
        let mut partial_since: Option<Instant> = None;
        loop {
            // A worker with a full queue has to read it before its next message is handled, and what
            // it asked the hub to do has to be done up to a bound in bytes.
            tokio::select! {
                // What follows a refused message is not handled, also if it has arrived already.
                biased;
                () = outbox.stop_token().cancelled() => return stream,
                () = async {
                    outbox.wait_drained().await;
                    peer.load.wait_below(self.options.max_pending_bytes / 4).await;
                    // Others go on: one of them may have the answer that everyone waits for.
                    if peer.load.is_held() {
                        self.load.wait_below(self.options.max_pending_bytes).await;
                    }
                } => {}
            }
            let heard = tokio::select! {
                biased;
                () = outbox.stop_token().cancelled() => return stream,
                () = peer.incoming.evicted().cancelled() => {
                    let reason = "the hub holds too many bytes of unfinished messages";
                    outbox.close(CloseReason::new(1013, reason));
                    return stream;
                }
                heard = tokio::time::timeout(
                    self.options.idle_timeout,
                    next_message(&mut stream, peer.incoming),
                ) => heard,
            };
            let message = match heard {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(WsError::Capacity(CapacityError::MessageTooLong { .. })))) => {
                    let reason =
                        format!("a message has at most {} bytes", self.options.max_message);
                    outbox.close(CloseReason::new(1009, reason));
                    return stream;
                }
                Ok(Some(Err(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)))) => {
                    return stream;
                }
                Ok(Some(Err(WsError::Protocol(error)))) => {
                    outbox.close(CloseReason::new(1002, error.to_string()));
                    return stream;
                }
                Ok(Some(Err(WsError::Utf8(error)))) => {
                    outbox.close(CloseReason::new(1007, error));
                    return stream;
                }
                Ok(Some(Err(_)) | None) => return stream,
                Err(_) => {
                    outbox.close(CloseReason::new(1001, "timed out: nothing received"));
                    return stream;
                }
            };
            match &message {
                Ws::Ping(_) | Ws::Pong(_) => {
                    // They keep a connection alive, but not a message that never ends.
                    if peer.incoming.has_partial_message() {
                        let since = *partial_since.get_or_insert_with(Instant::now);
                        if since.elapsed() > 2 * self.options.idle_timeout {
                            let reason = "timed out: a message was not finished";
                            outbox.close(CloseReason::new(1001, reason));
                            return stream;
                        }
                    } else {
                        // What followed was another control frame that arrived with this one.
                        partial_since = None;
                    }
                }
                _ => partial_since = None,
            }
            let handled = match &message {
                Ws::Text(text) => self.handle_message(peer, text.as_str()),
                Ws::Binary(bytes) if is_telemetry(bytes) => Ok(()),
                Ws::Binary(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => self.handle_message(peer, text),
                    Err(_) => Err("not UTF-8".to_owned()),
                },
                Ws::Close(_) => return stream,
                Ws::Ping(_) | Ws::Pong(_) | Ws::Frame(_) => Ok(()),
            };
            if let Err(reason) = handled {
                outbox.close(CloseReason::new(1007, reason));
                return stream;
            }
        }
    }

    /// Handles one message; returns the reason if it is malformed.
    fn handle_message(self: &Arc<Self>, peer: PeerContext<'_>, text: &str) -> Result<(), String> {
        let PeerContext {
            id, outbox, caller, ..
        } = peer;
        let frame = match Frame::parse(text) {
            Ok(frame) => frame,
            Err(reason) => {
                // Messages of an unknown type may have any fields.
                return match message_type(text) {
                    Some(kind) if find_message_type(&kind).is_none() => Ok(()),
                    _ => Err(reason),
                };
            }
        };
        if let Some((_, Some(permission))) = find_message_type(&frame.kind)
            && let Err(error) = caller.require(*permission)
        {
            outbox.close(CloseReason::new(1008, error.to_string()));
            return Ok(());
        }
        let need = |what: &str, value: Option<&str>| match value {
            Some("") => Err(format!("{}: `{what}` is empty", frame.kind)),
            Some(value) if value.len() > MAX_ID_BYTES => {
                Err(format!("{}: `{what}` is too long", frame.kind))
            }
            Some(value) => Ok(value.to_owned()),
            None => Err(format!("{}: `{what}` is missing", frame.kind)),
        };
        match &*frame.kind {
            "invokefunction" => {
                let function = need("function_id", frame.function_id.as_deref())?;
                self.handle_invocation(peer, &frame, &function);
            }
            "invocationresult" => self.deliver_result(id, &frame),
            "registerfunction" => {
                let function = need("id", frame.id.as_deref())?;
                self.handle_registration(id, outbox, &frame, &function);
            }
            "unregisterfunction" => {
                let function = need("id", frame.id.as_deref())?;
                if self.lock_table().unregister_function(id, &function) {
                    self.functions_changed.notify_one();
                }
            }
            "registertriggertype" => {
                let kind = need("id", frame.id.as_deref())?;
                let about = frame.description.as_deref().unwrap_or_default();
                let provided = self.lock_table().provide_type(id, &kind, about);
                if let Err(refusal) = provided {
                    let error = refusal.to_call_error("trigger type", &kind);
                    tracing::warn!(worker = &**id, %error, "refused");
                }
            }
            "unregistertriggertype" => {
                let kind = need("id", frame.id.as_deref())?;
                self.lock_table().withdraw_type(id, &kind);
            }
            "registertrigger" => {
                let trigger = need("id", frame.id.as_deref())?;
                let kind = need("trigger_type", frame.trigger_type.as_deref())?;
                let function = need("function_id", frame.function_id.as_deref())?;
                let (config, metadata) = (frame.config, frame.metadata);
                let mut table = self.lock_table();
                let taken = table.subscribe(id, &trigger, &kind, &function, config, metadata);
                drop(table);
                if let Err(refusal) = taken {
                    let error = refusal.to_call_error("trigger", &trigger);
                    let error = serde_json::value::to_raw_value(&error);
                    if let Ok(error) = error {
                        let message = HubMessage::TriggerRegistrationResult {
                            id: &trigger,
                            trigger_type: &kind,
                            function_id: &function,
                            error: &error,
                        };
                        outbox.send(message.to_json());
                    }
                }
            }
            "unregistertrigger" => {
                let trigger = need("id", frame.id.as_deref())?;
                self.lock_table().unsubscribe_own(id, &trigger);
            }
            "triggerregistrationresult" => {
                if let (Some(trigger), Some(error)) = (frame.id.as_deref(), frame.error) {
                    self.lock_table()
                        .report_failed_subscription(id, trigger, error);
                }
            }
            "reattach" => self.handle_reattach(id, &frame),
            "ping" => outbox.send(HubMessage::Pong.to_json()),
            "registerservice" | "pong" => {}
            other => tracing::debug!(worker = &**id, kind = other, "unknown message type"),
        }
        Ok(())
    }

    fn handle_invocation(
        self: &Arc<Self>,
        peer: PeerContext<'_>,
        frame: &Frame<'_>,
        function: &str,
    ) {
        let PeerContext {
            id,
            outbox,
            caller,
            load,
            ..
        } = peer;
        let action = frame.action.as_ref().map(|action| &*action.kind);
        let waits = frame.invocation_id.as_deref().filter(|_| !is_void(frame));
        let limit = self.options.max_message;
        let reply = |answer: &BusResult| {
            if let Some(invocation) = waits {
                outbox.send(answer_text(invocation, function, answer, limit));
            }
        };
        if let Err(error) = caller.require(self.function_permission(function)) {
            let message = format!("{function}: {error}");
            return reply(&Err(CallError::new("forbidden", message)));
        }
        if !caller.may(Permission::Run) && self.calls_other_function(function, frame.data) {
            let error = repertoire_app::Error::PermissionDenied(Permission::Run);
            let message = format!("{function}: {error}");
            return reply(&Err(CallError::new("forbidden", message)));
        }
        if action == Some("enqueue") {
            let message = format!("{function}: there are no queues on this hub");
            return reply(&Err(CallError::new("enqueue_error", message)));
        }
        if !self.is_native(function) {
            if let Err(error) = self.route_call(id, frame, function) {
                reply(&Err(error));
            }
            return;
        }
        if load.calls() >= self.options.max_calls {
            let message = format!("more than {} calls at a time", self.options.max_calls);
            return reply(&Err(CallError::new("too_many_calls", message)));
        }
        let input = frame.data.map_or(0, |data| data.get().len());
        let held = load.hold(input + self.write_result_bytes(function, frame.data));
        let waits = waits.map(str::to_owned);
        // A peer that does not read gets no more long answers built.
        let is_busy = outbox.is_backlogged() || load.calls() > MAX_READS;
        if function == "state::list" || (is_busy && LISTINGS.contains(&function)) {
            let call = ListingCall {
                caller: id.clone(),
                function: function.to_owned(),
                data: frame.data.map(ToOwned::to_owned),
                waits,
                outbox: outbox.clone(),
                held,
            };
            tokio::spawn(self.clone().answer_listing(call));
            return;
        }
        let mut answer = self.call_native(id.clone(), function, frame.data);
        // Most answers are ready at once; only the others need a task.
        if let Some(answer) = (&mut answer).now_or_never() {
            if let Some(invocation) = waits {
                outbox.send(answer_text(&invocation, function, &answer, limit));
            }
            return;
        }
        let (outbox, function, load) = (outbox.clone(), function.to_owned(), load.clone());
        tokio::spawn(async move {
            let answer = answer.await;
            if let Some(invocation) = waits {
                let text = answer_text(&invocation, &function, &answer, limit);
                drop(answer);
                let _answer = load.hold(text.len());
                send_drained(&outbox, text).await;
            }
            drop(held);
        });
    }

    /// Answers a call whose answer is long, when the peer has read what it got before.
    async fn answer_listing(self: Arc<Self>, call: ListingCall) {
        let answering = async {
            loop {
                call.outbox.wait_drained().await;
                // Content may wait for a worker that reads content itself, so it takes no permit.
                let permit = if MAY_CALL_WORKERS.contains(&&*call.function) {
                    None
                } else {
                    self.listings.acquire().await.ok()
                };
                // Others of the same peer may have been faster.
                if call.outbox.is_backlogged() {
                    continue;
                }
                let answer = self
                    .call_native(call.caller.clone(), &call.function, call.data.as_deref())
                    .await;
                drop(permit);
                if let Some(invocation) = &call.waits {
                    let limit = self.options.max_message;
                    let text = answer_text(invocation, &call.function, &answer, limit);
                    call.outbox.send(text);
                }
                return;
            }
        };
        tokio::select! {
            () = answering => {}
            () = call.outbox.stop_token().cancelled() => {}
        }
        drop(call.held);
    }

    fn handle_registration(
        &self,
        id: &WorkerId,
        outbox: &Outbox,
        frame: &Frame<'_>,
        function: &str,
    ) {
        let taken = if self.is_native(function) || builtin::is_reserved(function) {
            Err(RegistrationRefusal::Taken(self.id.clone()))
        } else {
            self.lock_table().register_function(id, frame)
        };
        match taken {
            Ok(()) => self.functions_changed.notify_one(),
            Err(RegistrationRefusal::Taken(owner)) => {
                tracing::info!(
                    worker = &**id,
                    function,
                    owner = &*owner,
                    "refused: another worker owns the function"
                );
                let message = HubMessage::RegistrationRejected {
                    code: "FUNCTION_NAMESPACE_CONFLICT",
                    namespace: super::routing_table::NAMESPACE,
                    function_id: function,
                    owner_worker_id: &owner,
                };
                outbox.send(message.to_json());
            }
            // A function has no configuration.
            Err(RegistrationRefusal::TooMany | RegistrationRefusal::Config(_)) => {
                let most = self.options.max_registrations;
                outbox.close(CloseReason::new(
                    1008,
                    format!("more than {most} functions"),
                ));
            }
            Err(RegistrationRefusal::TooLarge) => {
                let reason = "the schemas and descriptions of its functions are too large";
                outbox.close(CloseReason::new(1008, reason));
            }
        }
    }

    /// Replaces the previous connection of a worker that reconnects.
    fn handle_reattach(&self, id: &WorkerId, frame: &Frame<'_>) {
        let previous = frame.previous_worker_id.as_deref().unwrap_or_default();
        let token = frame.reattach_token.as_deref().unwrap_or_default();
        let mut table = self.lock_table();
        if let Some((old, outbox)) = table.find_previous(previous, token)
            && old != *id
        {
            if table.remove_worker(&old) {
                self.functions_changed.notify_one();
            }
            outbox.close(CloseReason::new(
                1001,
                "the worker has reconnected on another connection",
            ));
        }
    }
}

/// A call whose answer may be long.
struct ListingCall {
    caller: WorkerId,
    function: String,
    data: Option<Box<RawValue>>,
    /// The id that the caller gave the call, if it waits for an answer.
    waits: Option<String>,
    outbox: Outbox,
    held: LoadLease,
}

/// How many unfinished calls a peer may have before its long answers wait for each other.
const MAX_READS: usize = 4;

/// Sends an answer; a long one waits until the peer has read what it got before.
async fn send_drained(outbox: &Outbox, text: String) {
    if text.len() > MAX_FRAME_BYTES {
        tokio::select! {
            () = outbox.wait_drained() => {}
            () = outbox.stop_token().cancelled() => return,
        }
    }
    outbox.send(text);
}

/// Whether a message is telemetry, which some SDKs send on the connection for workers.
fn is_telemetry(bytes: &[u8]) -> bool {
    [b"OTLP", b"MTRC", b"LOGS"]
        .iter()
        .any(|kind| bytes.starts_with(*kind))
}

fn answer_text(invocation: &str, function: &str, answer: &BusResult, limit: usize) -> String {
    let none = TraceContext::default();
    match answer {
        Ok(result) if result.len() + 4096 > limit => {
            let message = format!(
                "{function}: too large: {} bytes in one answer",
                result.len()
            );
            let error = serde_json::json!(CallError::new("too_large", message)).to_string();
            result_text(invocation, function, Err(&error), none)
        }
        Ok(result) => result_text(invocation, function, Ok(result), none),
        Err(error) => {
            let error = serde_json::json!(error).to_string();
            result_text(invocation, function, Err(&error), none)
        }
    }
}

/// The writing half of a connection.
struct ConnectionWriter<S> {
    sink: SplitSink<WebSocketStream<S>, Ws>,
    outbox: Outbox,
    write_timeout: Duration,
    ping_interval: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionWriter<S> {
    /// Sends queued messages until the connection is closed; returns the sink if it still works.
    async fn write_messages(
        mut self,
        mut waiting: UnboundedReceiver<QueuedMessage>,
    ) -> Option<SplitSink<WebSocketStream<S>, Ws>> {
        let stop = self.outbox.stop_token().clone();
        let mut ping = tokio::time::interval(self.ping_interval);
        ping.tick().await;
        let mut batch = Vec::with_capacity(64);
        loop {
            let alive = tokio::select! {
                taken = waiting.recv_many(&mut batch, 64) => {
                    if taken == 0 {
                        break;
                    }
                    self.send_batch(&mut batch, &stop).await
                }
                _ = ping.tick() => {
                    let sent = self.sink.send(Ws::Ping(Bytes::new()));
                    tokio::time::timeout(self.write_timeout, sent).await.is_ok_and(|s| s.is_ok())
                }
                () = stop.cancelled() => break,
            };
            if !alive {
                self.outbox
                    .close(CloseReason::new(1008, "does not read its messages"));
                return None;
            }
        }
        let closing = self.outbox.close_reason();
        let closing = closing.unwrap_or_else(|| CloseReason::new(1001, "the hub is shutting down"));
        let frame = CloseFrame {
            code: closing.code.into(),
            reason: closing.reason.into(),
        };
        let farewell = self.sink.send(Ws::Close(Some(frame)));
        let sent = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
        sent.is_ok_and(|sent| sent.is_ok()).then_some(self.sink)
    }

    /// Sends a batch; returns whether the connection still works.
    async fn send_batch(
        &mut self,
        batch: &mut Vec<QueuedMessage>,
        stop: &tokio_util::sync::CancellationToken,
    ) -> bool {
        for message in batch.drain(..) {
            let (bytes, own) = (message.len(), message.head.len());
            let sending = async {
                if message.shared.is_none() && bytes <= MAX_FRAME_BYTES {
                    let fed = self.sink.feed(Ws::text(message.head));
                    return tokio::time::timeout(self.write_timeout, fed).await;
                }
                let mut parts = vec![Bytes::from(message.head)];
                if let Some((body, tail)) = message.shared {
                    parts.extend([body, Bytes::from_static(tail.as_bytes())]);
                }
                parts.retain(|part| !part.is_empty());
                let mut kind = Data::Text;
                let last = parts.len().saturating_sub(1);
                for (at, mut rest) in parts.into_iter().enumerate() {
                    while !rest.is_empty() {
                        let piece = rest.split_to(rest.len().min(MAX_FRAME_BYTES));
                        let is_final = at == last && rest.is_empty();
                        let frame = WsFrame::message(piece, OpCode::Data(kind), is_final);
                        kind = Data::Continue;
                        let sent = self.sink.send(Ws::Frame(frame));
                        let sent = tokio::time::timeout(self.write_timeout, sent).await;
                        if !matches!(sent, Ok(Ok(()))) {
                            return sent;
                        }
                    }
                }
                Ok(Ok(()))
            };
            let sent = tokio::select! {
                sent = sending => sent,
                () = stop.cancelled() => return true,
            };
            self.outbox.mark_sent(bytes, own);
            if !sent.is_ok_and(|sent| sent.is_ok()) {
                return false;
            }
        }
        let flushed = tokio::time::timeout(self.write_timeout, self.sink.flush()).await;
        flushed.is_ok_and(|flushed| flushed.is_ok())
    }
}
