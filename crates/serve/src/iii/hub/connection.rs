//! One connection, from its greeting to its end.
//!
//! Reading and writing are two tasks: a worker that sends much and reads little does not keep the
//! hub from hearing it, and one that reads nothing is dropped.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, SinkExt, StreamExt, stream::SplitSink, stream::SplitStream};
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
        bus::{Answer, CallError},
        protocol::{Frame, Message, Trace, kind_of, result_text},
    },
    Hub, builtin, is_void,
    outbox::{Closing, Outbox},
    table::{Refusal, WorkerId},
};

/// Longer messages are sent in pieces: clients limit frames more tightly than messages.
const PIECE: usize = 1024 * 1024;
/// The longest id of a function, a trigger or a trigger type.
const MAX_ID: usize = 1024;
/// The kinds of messages that are understood.
const KINDS: [&str; 13] = [
    "invokefunction",
    "invocationresult",
    "registerfunction",
    "unregisterfunction",
    "registertriggertype",
    "unregistertriggertype",
    "registertrigger",
    "unregistertrigger",
    "triggerregistrationresult",
    "reattach",
    "registerservice",
    "ping",
    "pong",
];
/// How long a connection that is closed may go on sending what nobody reads.
const FAREWELL: Duration = Duration::from_secs(1);

impl Hub {
    /// Serves a worker until it goes or is sent away.
    pub(super) async fn attend<S>(
        self: Arc<Self>,
        socket: WebSocketStream<S>,
        unwelcome: impl Future<Output = ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let limit = self.options.max_message * 2 + 16 * 1024 * 1024;
        let (outbox, waiting) = Outbox::new(limit, self.stop.child_token());
        let (sink, stream) = socket.split();
        let id = self.lock().connect(outbox.clone());
        tracing::info!(worker = &*id, "connected");
        self.engine.metrics.workers.inc();
        let writer = Writer {
            sink,
            outbox: outbox.clone(),
            patience: self.options.write_patience,
            ping: self.options.idle / 3,
        };
        let sending = tokio::spawn(writer.run(waiting));
        let listening = self.listen(&id, stream, &outbox);
        tokio::pin!(listening, unwelcome);
        let stream = tokio::select! {
            stream = &mut listening => stream,
            () = unwelcome => {
                outbox.close(Closing::new(1008, "the token no longer counts"));
                listening.await
            }
        };
        // First of all, whoever waits for this worker waits no longer.
        let had_functions = self.lock().disconnect(&id);
        if had_functions {
            self.changed.notify_one();
        }
        self.engine.metrics.workers.dec();
        outbox.stop().cancel();
        tracing::info!(worker = &*id, "gone");
        if let Some(closing) = outbox.closing() {
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
            // Unread bytes would take the reason away from whoever sent them.
            let mut rest = socket.into_inner();
            let mut sink = vec![0; 64 * 1024];
            let drain = async { while rest.read(&mut sink).await.is_ok_and(|n| n > 0) {} };
            let _ = tokio::time::timeout(FAREWELL, drain).await;
        }
    }

    /// Hears a worker until it goes; gives back the stream.
    async fn listen<S>(
        self: &Arc<Self>,
        id: &WorkerId,
        mut stream: SplitStream<WebSocketStream<S>>,
        outbox: &Outbox,
    ) -> SplitStream<WebSocketStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            // Whoever asks for much reads it before it asks for more.
            tokio::select! {
                () = outbox.lowered() => {}
                () = outbox.stop().cancelled() => return stream,
            }
            let heard = tokio::select! {
                heard = tokio::time::timeout(self.options.idle, stream.next()) => heard,
                () = outbox.stop().cancelled() => return stream,
            };
            let message = match heard {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(WsError::Capacity(CapacityError::MessageTooLong { .. })))) => {
                    let reason =
                        format!("a message has at most {} bytes", self.options.max_message);
                    outbox.close(Closing::new(1009, reason));
                    return stream;
                }
                Ok(Some(Err(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)))) => {
                    return stream;
                }
                Ok(Some(Err(WsError::Protocol(error)))) => {
                    outbox.close(Closing::new(1002, error.to_string()));
                    return stream;
                }
                Ok(Some(Err(WsError::Utf8(error)))) => {
                    outbox.close(Closing::new(1007, error));
                    return stream;
                }
                Ok(Some(Err(_)) | None) => return stream,
                Err(_) => {
                    outbox.close(Closing::new(1001, "nothing was heard for too long"));
                    return stream;
                }
            };
            let told = match &message {
                Ws::Text(text) => self.hear(id, outbox, text.as_str()),
                Ws::Binary(bytes) if is_telemetry(bytes) => Ok(()),
                Ws::Binary(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) => self.hear(id, outbox, text),
                    Err(_) => Err("not UTF-8".to_owned()),
                },
                Ws::Close(_) => return stream,
                Ws::Ping(_) | Ws::Pong(_) | Ws::Frame(_) => Ok(()),
            };
            if let Err(reason) = told {
                outbox.close(Closing::new(1007, reason));
                return stream;
            }
        }
    }

    /// Acts on one message; one that cannot be understood is told why.
    fn hear(self: &Arc<Self>, id: &WorkerId, outbox: &Outbox, text: &str) -> Result<(), String> {
        let frame = match Frame::parse(text) {
            Ok(frame) => frame,
            Err(reason) => {
                // What is not known may look like anything.
                return match kind_of(text) {
                    Some(kind) if !KINDS.contains(&kind.as_str()) => Ok(()),
                    _ => Err(reason),
                };
            }
        };
        let need = |what: &str, value: Option<&str>| match value {
            Some("") => Err(format!("{}: `{what}` is empty", frame.kind)),
            Some(value) if value.len() > MAX_ID => {
                Err(format!("{}: `{what}` is too long", frame.kind))
            }
            Some(value) => Ok(value.to_owned()),
            None => Err(format!("{}: `{what}` is missing", frame.kind)),
        };
        match &*frame.kind {
            "invokefunction" => {
                let function = need("function_id", frame.function_id.as_deref())?;
                self.invoke(id, outbox, &frame, &function);
            }
            "invocationresult" => self.answered(id, &frame),
            "registerfunction" => {
                let function = need("id", frame.id.as_deref())?;
                self.register(id, outbox, &frame, &function);
            }
            "unregisterfunction" => {
                let function = need("id", frame.id.as_deref())?;
                if self.lock().unregister(id, &function) {
                    self.changed.notify_one();
                }
            }
            "registertriggertype" => {
                let kind = need("id", frame.id.as_deref())?;
                let about = frame.description.as_deref().unwrap_or_default();
                let provided = self.lock().provide_type(id, &kind, about);
                if let Err(refusal) = provided {
                    let error = refusal.error("trigger type", &kind);
                    tracing::warn!(worker = &**id, %error, "refused");
                }
            }
            "unregistertriggertype" => {
                let kind = need("id", frame.id.as_deref())?;
                self.lock().withdraw_type(id, &kind);
            }
            "registertrigger" => {
                let trigger = need("id", frame.id.as_deref())?;
                let kind = need("trigger_type", frame.trigger_type.as_deref())?;
                let function = need("function_id", frame.function_id.as_deref())?;
                let (config, metadata) = (frame.config, frame.metadata);
                let mut table = self.lock();
                let taken = table.subscribe(id, &trigger, &kind, &function, config, metadata);
                drop(table);
                if let Err(refusal) = taken {
                    let error = refusal.error("trigger", &trigger);
                    let error = serde_json::value::to_raw_value(&error);
                    if let Ok(error) = error {
                        let message = Message::TriggerRegistrationResult {
                            id: &trigger,
                            trigger_type: &kind,
                            function_id: &function,
                            error: &error,
                        };
                        outbox.send(message.text());
                    }
                }
            }
            "unregistertrigger" => {
                let trigger = need("id", frame.id.as_deref())?;
                self.lock().unsubscribe_own(id, &trigger);
            }
            "triggerregistrationresult" => {
                if let (Some(trigger), Some(error)) = (frame.id.as_deref(), frame.error) {
                    self.lock().subscription_failed(id, trigger, error);
                }
            }
            "reattach" => self.reattach(id, &frame),
            "ping" => outbox.send(Message::Pong.text()),
            "registerservice" | "pong" => {}
            other => tracing::debug!(worker = &**id, kind = other, "a message of no known kind"),
        }
        Ok(())
    }

    fn invoke(self: &Arc<Self>, id: &WorkerId, outbox: &Outbox, frame: &Frame<'_>, function: &str) {
        let action = frame.action.as_ref().map(|action| &*action.kind);
        let waits = frame.invocation_id.as_deref().filter(|_| !is_void(frame));
        let limit = self.options.max_message;
        let reply = |answer: &Answer| {
            if let Some(invocation) = waits {
                outbox.send(answer_text(invocation, function, answer, limit));
            }
        };
        if action == Some("enqueue") {
            let message = format!("{function}: there are no queues on this hub");
            return reply(&Err(CallError::new("enqueue_error", message)));
        }
        if !self.is_native(function) {
            if let Err(error) = self.route(id, frame, function) {
                reply(&Err(error));
            }
            return;
        }
        let mut answer = self.native(id.clone(), function, frame.data);
        // Most answers are at hand; only what has to wait becomes a task of its own.
        if let Some(answer) = (&mut answer).now_or_never() {
            return reply(&answer);
        }
        let (outbox, function) = (outbox.clone(), function.to_owned());
        let waits = waits.map(str::to_owned);
        tokio::spawn(async move {
            let answer = answer.await;
            let Some(invocation) = waits else {
                return;
            };
            let text = answer_text(&invocation, &function, &answer, limit);
            if text.len() > PIECE {
                // Several long answers at once are read one after the other.
                tokio::select! {
                    () = outbox.lowered() => {}
                    () = outbox.stop().cancelled() => return,
                }
            }
            outbox.send(text);
        });
    }

    fn register(&self, id: &WorkerId, outbox: &Outbox, frame: &Frame<'_>, function: &str) {
        let taken = if self.is_native(function) || builtin::is_reserved(function) {
            Err(Refusal::Taken(self.id.clone()))
        } else {
            self.lock().register(id, frame)
        };
        match taken {
            Ok(()) => self.changed.notify_one(),
            Err(Refusal::Taken(owner)) => {
                tracing::info!(
                    worker = &**id,
                    function,
                    owner = &*owner,
                    "belongs to another"
                );
                let message = Message::RegistrationRejected {
                    code: "FUNCTION_NAMESPACE_CONFLICT",
                    namespace: super::table::NAMESPACE,
                    function_id: function,
                    owner_worker_id: &owner,
                };
                outbox.send(message.text());
            }
            // A function has no configuration.
            Err(Refusal::TooMany | Refusal::Config(_)) => {
                let most = self.options.max_registrations;
                outbox.close(Closing::new(1008, format!("more than {most} functions")));
            }
        }
    }

    /// A worker that comes back takes the place of the connection it had before.
    fn reattach(&self, id: &WorkerId, frame: &Frame<'_>) {
        let previous = frame.previous_worker_id.as_deref().unwrap_or_default();
        let token = frame.reattach_token.as_deref().unwrap_or_default();
        let mut table = self.lock();
        if let Some((old, outbox)) = table.previous(previous, token)
            && old != *id
        {
            if table.disconnect(&old) {
                self.changed.notify_one();
            }
            outbox.close(Closing::new(
                1001,
                "the worker has come back on another connection",
            ));
        }
    }
}

/// Telemetry that some SDKs send on the connection for workers.
fn is_telemetry(bytes: &[u8]) -> bool {
    [b"OTLP", b"MTRC", b"LOGS"]
        .iter()
        .any(|kind| bytes.starts_with(*kind))
}

fn answer_text(invocation: &str, function: &str, answer: &Answer, limit: usize) -> String {
    let none = Trace::default();
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
struct Writer<S> {
    sink: SplitSink<WebSocketStream<S>, Ws>,
    outbox: Outbox,
    patience: Duration,
    ping: Duration,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    /// Sends what is queued until the connection is closed; gives the sink back if it still works.
    async fn run(
        mut self,
        mut waiting: UnboundedReceiver<String>,
    ) -> Option<SplitSink<WebSocketStream<S>, Ws>> {
        let stop = self.outbox.stop().clone();
        let mut ping = tokio::time::interval(self.ping);
        ping.tick().await;
        let mut batch = Vec::with_capacity(64);
        loop {
            let alive = tokio::select! {
                taken = waiting.recv_many(&mut batch, 64) => {
                    if taken == 0 {
                        break;
                    }
                    self.send(&mut batch, &stop).await
                }
                _ = ping.tick() => {
                    let sent = self.sink.send(Ws::Ping(Bytes::new()));
                    tokio::time::timeout(self.patience, sent).await.is_ok_and(|s| s.is_ok())
                }
                () = stop.cancelled() => break,
            };
            if !alive {
                self.outbox
                    .close(Closing::new(1008, "does not read what is sent"));
                return None;
            }
        }
        let closing = self.outbox.closing();
        let closing = closing.unwrap_or_else(|| Closing::new(1001, "the hub is shutting down"));
        let frame = CloseFrame {
            code: closing.code.into(),
            reason: closing.reason.into(),
        };
        let farewell = self.sink.send(Ws::Close(Some(frame)));
        let sent = tokio::time::timeout(FAREWELL, farewell).await;
        sent.is_ok_and(|sent| sent.is_ok()).then_some(self.sink)
    }

    /// Sends a batch; says whether the connection is still alive.
    async fn send(
        &mut self,
        batch: &mut Vec<String>,
        stop: &tokio_util::sync::CancellationToken,
    ) -> bool {
        for text in batch.drain(..) {
            let bytes = text.len();
            let sending = async {
                if bytes <= PIECE {
                    let fed = self.sink.feed(Ws::text(text));
                    return tokio::time::timeout(self.patience, fed).await;
                }
                let mut rest = Bytes::from(text);
                let mut kind = Data::Text;
                while !rest.is_empty() {
                    let piece = rest.split_to(rest.len().min(PIECE));
                    let frame = WsFrame::message(piece, OpCode::Data(kind), rest.is_empty());
                    kind = Data::Continue;
                    let sent = self.sink.send(Ws::Frame(frame));
                    let sent = tokio::time::timeout(self.patience, sent).await;
                    if !matches!(sent, Ok(Ok(()))) {
                        return sent;
                    }
                }
                Ok(Ok(()))
            };
            let sent = tokio::select! {
                sent = sending => sent,
                () = stop.cancelled() => return true,
            };
            self.outbox.sent(bytes);
            if !sent.is_ok_and(|sent| sent.is_ok()) {
                return false;
            }
        }
        let flushed = tokio::time::timeout(self.patience, self.sink.flush()).await;
        flushed.is_ok_and(|flushed| flushed.is_ok())
    }
}
