//! One connection to a bus: calls and their answers, and the messages a worker receives.
//!
//! The command line, tests and benches call functions with it. The `skills` worker also offers
//! functions on it and receives calls and subscriptions through a [`PeerHandler`].
//!
//! Messages leave in the order in which they were queued, which keeps events in order.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{
    SinkExt, StreamExt,
    future::BoxFuture,
    stream::{SplitSink, SplitStream},
};
use repertoire_app::StoredWorker;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{
        Message as Ws, client::IntoClientRequest, http::HeaderValue, protocol::WebSocketConfig,
    },
};
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::{
    bus::{Bus, BusResult, CallError},
    protocol::{Frame, HubMessage, TraceContext, invoke_text_in, result_text},
};
use crate::error::{Error, Result};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;
type PendingReplies = Arc<Mutex<HashMap<String, oneshot::Sender<BusResult>>>>;

/// The most bytes of one message. Large, because answers to own calls may be.
const MAX_MESSAGE: usize = 4 << 30;
/// The most bytes that wait to be written. A bus that takes nothing is given up at this size.
const MAX_QUEUED: usize = 256 << 20;
/// How long connecting and the greeting may take, each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a ping is sent. A bus answers each, so that a dead connection is noticed.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How long nothing may arrive, and how long one write may take, before the connection is given up.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// An answer given this soon may reach a bus before it has noted the call, and is lost there. It is sent
/// again after these times; a bus that has it drops the others.
const REPEAT_AFTER: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];
/// A longer answer is not sent twice. It is sent no sooner than this after the call.
const MAX_REPEATED_BYTES: usize = 256 * 1024;
const LONG_ANSWER_DELAY: Duration = Duration::from_millis(5);
/// The header by which our hub names itself: it notes a call before it sends it, and has no namespaces.
pub(super) const HUB_HEADER: &str = "x-repertoire-hub";

/// The identity a bus gave a connection, by which the next connection replaces it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    worker_id: String,
    reattach_token: Option<String>,
}

impl From<&WorkerIdentity> for StoredWorker {
    fn from(identity: &WorkerIdentity) -> Self {
        let identity = identity.clone();
        Self {
            worker_id: identity.worker_id,
            reattach_token: identity.reattach_token,
        }
    }
}

impl From<StoredWorker> for WorkerIdentity {
    fn from(stored: StoredWorker) -> Self {
        Self {
            worker_id: stored.worker_id,
            reattach_token: stored.reattach_token,
        }
    }
}

impl WorkerIdentity {
    /// The message by which a new connection takes over from the one with this identity.
    pub fn reattach_message(&self) -> String {
        let mut message = json!({"type": "reattach", "previous_worker_id": self.worker_id});
        if let Some(token) = &self.reattach_token {
            message["reattach_token"] = token.as_str().into();
        }
        message.to_string()
    }
}

/// Receives the messages of a bus that are not answers to own calls.
///
/// The methods run on the connection's reading task and must not block.
pub trait PeerHandler: Send + Sync {
    /// A function of this worker is called.
    fn on_call(&self, call: IncomingCall);
    /// A function subscribed to a trigger type of this worker.
    fn on_subscribe(&self, trigger_type: &str, id: &str, function: SubscribedFunction);
    /// A subscription ended.
    fn on_unsubscribe(&self, id: &str);
    /// The bus refused to register this worker or one of its functions.
    fn on_rejected(&self, code: &str, function_id: Option<&str>);
}

/// A function that is called when a trigger fires.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscribedFunction {
    /// Its id.
    pub id: String,
    /// Its namespace on the bus, if it is not the default one.
    pub namespace: Option<String>,
}

/// A call of one of this worker's functions.
#[derive(Debug)]
pub struct IncomingCall {
    /// The called function.
    pub function_id: String,
    /// The payload, as JSON.
    pub payload: String,
    /// None for a call that expects no answer.
    invocation_id: Option<String>,
    outgoing: OutgoingQueue,
    /// When it arrived, if the bus may not have noted it yet.
    unnoted_since: Option<Instant>,
}

impl IncomingCall {
    /// Sends the answer, unless the call expects none.
    pub fn respond(self, outcome: &BusResult) {
        let Some(invocation_id) = &self.invocation_id else {
            return;
        };
        let error = outcome.as_ref().err().map(|error| {
            // Serializing two strings cannot fail.
            serde_json::to_string(error).unwrap_or_default()
        });
        let outcome = match (outcome, &error) {
            (Ok(result), _) => Ok(result.as_str()),
            (Err(_), error) => Err(error.as_deref().unwrap_or("{}")),
        };
        let trace = TraceContext::default();
        let text = result_text(invocation_id, &self.function_id, outcome, trace);
        let queue = self.outgoing;
        // If the connection is gone, the caller has been informed by the bus.
        let taken = self.unnoted_since.map(|since| since.elapsed());
        match taken {
            Some(taken) if text.len() > MAX_REPEATED_BYTES && taken < LONG_ANSWER_DELAY => {
                tokio::spawn(async move {
                    tokio::time::sleep(LONG_ANSWER_DELAY.saturating_sub(taken)).await;
                    let _ = queue.push(text);
                });
            }
            Some(taken) if text.len() <= MAX_REPEATED_BYTES && taken < REPEAT_AFTER[0] => {
                let _ = queue.push(text.clone());
                tokio::spawn(async move {
                    let start = tokio::time::Instant::now();
                    for after in REPEAT_AFTER {
                        tokio::time::sleep_until(start + after).await;
                        let _ = queue.push(text.clone());
                    }
                });
            }
            _ => {
                let _ = queue.push(text);
            }
        }
    }
}

/// The messages that wait to be written, in order.
#[derive(Debug, Clone)]
struct OutgoingQueue {
    sender: mpsc::UnboundedSender<String>,
    queued_bytes: Arc<AtomicUsize>,
    closed: CancellationToken,
}

impl OutgoingQueue {
    fn push(&self, text: String) -> Result<()> {
        let size = text.len();
        let queued = self.queued_bytes.fetch_add(size, Ordering::Relaxed);
        // One message may exceed the limit: it was accepted on the way in.
        if queued > 0 && queued + size > MAX_QUEUED {
            self.closed.cancel();
        }
        if self.closed.is_cancelled() || self.sender.send(text).is_err() {
            return Err(connection_closed());
        }
        Ok(())
    }
}

fn connection_closed() -> Error {
    Error::Transport("the bus closed the connection".to_owned())
}

/// A connection to a bus. Dropping it closes the connection.
#[derive(Debug)]
pub struct BusClient {
    outgoing: OutgoingQueue,
    pending: PendingReplies,
    identity: WorkerIdentity,
    is_hub: bool,
    closed: CancellationToken,
    _close_on_drop: DropGuard,
}

impl BusClient {
    /// Connects and waits for the greeting of the bus.
    pub async fn connect(url: &str, token: Option<&str>) -> Result<Self> {
        Self::connect_with(url, token, None).await
    }

    /// Connects as a worker: `handler` receives calls and subscriptions.
    pub async fn connect_worker(
        url: &str,
        token: Option<&str>,
        handler: Arc<dyn PeerHandler>,
    ) -> Result<Self> {
        Self::connect_with(url, token, Some(handler)).await
    }

    async fn connect_with(
        url: &str,
        token: Option<&str>,
        handler: Option<Arc<dyn PeerHandler>>,
    ) -> Result<Self> {
        let (socket, identity, is_hub) = open_socket(url, token).await?;
        let acks = QuickAcks::new(socket.get_ref());
        let (sink, stream) = socket.split();
        let (sender, messages) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let outgoing = OutgoingQueue {
            sender,
            queued_bytes: Arc::default(),
            closed: closed.clone(),
        };
        let pending = PendingReplies::default();
        tokio::spawn(write_messages(sink, messages, outgoing.clone()));
        let reader = MessageReader {
            outgoing: outgoing.clone(),
            pending: pending.clone(),
            handler,
            is_hub,
        };
        tokio::spawn(reader.read_messages(stream, acks));
        Ok(Self {
            outgoing,
            pending,
            identity,
            is_hub,
            _close_on_drop: closed.clone().drop_guard(),
            closed,
        })
    }

    /// The identity that the bus gave this connection.
    pub fn identity(&self) -> &WorkerIdentity {
        &self.identity
    }

    /// Whether the bus is a hub of this program.
    pub fn is_hub(&self) -> bool {
        self.is_hub
    }

    /// Closes the connection, also if others still hold it.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Queues a text message without changing it.
    pub fn send_text(&self, text: String) -> Result<()> {
        self.outgoing.push(text)
    }

    /// Calls a function in a namespace of the bus without waiting for its answer.
    pub fn fire_in(&self, namespace: Option<&str>, function_id: &str, payload: &Value) {
        let (payload, trace) = (payload.to_string(), TraceContext::default());
        let text = invoke_text_in(namespace, None, function_id, &payload, None, trace);
        // A call without an answer has no caller that could be informed.
        let _ = self.outgoing.push(text);
    }

    /// Calls a function with a JSON payload.
    pub async fn call_json(
        &self,
        function_id: &str,
        payload: &str,
        deadline: Duration,
    ) -> BusResult {
        self.call_json_in(None, function_id, payload, deadline)
            .await
    }

    /// Calls a function in a namespace of the bus.
    pub async fn call_json_in(
        &self,
        namespace: Option<&str>,
        function_id: &str,
        payload: &str,
        deadline: Duration,
    ) -> BusResult {
        let invocation = Uuid::new_v4().to_string();
        let (sender, receiver) = oneshot::channel();
        let lock = || self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(invocation.clone(), sender);
        let trace = TraceContext::default();
        let call = Some(invocation.as_str());
        let text = invoke_text_in(namespace, call, function_id, payload, None, trace);
        let disconnected = || CallError::new("disconnected", "the bus closed the connection");
        // A connection that ends after this check drops the sender.
        if self.outgoing.push(text).is_err() || self.closed.is_cancelled() {
            lock().remove(&invocation);
            return Err(disconnected());
        }
        let Ok(answer) = tokio::time::timeout(deadline, receiver).await else {
            lock().remove(&invocation);
            return Err(CallError::timeout(function_id, deadline));
        };
        answer.unwrap_or_else(|_| Err(disconnected()))
    }
}

/// Acknowledges received data at once.
///
/// A bus that keeps Nagle's algorithm on sends its second small message only when the first one is
/// acknowledged, and the system delays that by 40 ms while this side has nothing to send: each write of
/// the state would take that long, because its answer and its event are two messages.
#[derive(Debug)]
struct QuickAcks {
    #[cfg(target_os = "linux")]
    socket: Option<std::os::fd::OwnedFd>,
}

impl QuickAcks {
    #[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
    fn new(stream: &MaybeTlsStream<TcpStream>) -> Self {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsFd as _;
            let socket = match stream {
                MaybeTlsStream::Plain(stream) => stream.as_fd().try_clone_to_owned().ok(),
                _ => None,
            };
            let acks = Self { socket };
            acks.renew();
            acks
        }
        #[cfg(not(target_os = "linux"))]
        Self {}
    }

    /// Asks for it again: the system turns it off by itself.
    #[cfg_attr(not(target_os = "linux"), allow(clippy::unused_self))]
    fn renew(&self) {
        #[cfg(target_os = "linux")]
        if let Some(socket) = &self.socket {
            // Without it the connection is slower, and works.
            let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
        }
    }
}

/// Opens the socket and waits for the greeting. Returns whether it leads to a hub of this program, too.
async fn open_socket(url: &str, token: Option<&str>) -> Result<(Socket, WorkerIdentity, bool)> {
    let refuse = |reason: &dyn std::fmt::Display| {
        Error::Transport(format!("{url}: no bus answers there ({reason})"))
    };
    let mut request = url.into_client_request().map_err(|e| refuse(&e))?;
    if let Some(token) = token {
        let value = HeaderValue::from_str(&format!("Bearer {token}"));
        let value = value.map_err(|_| Error::Transport("invalid token".to_owned()))?;
        request.headers_mut().insert("authorization", value);
    }
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let connected = connect_async_with_config(request, Some(config), true);
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connected).await;
    let (mut socket, response) = connected
        .map_err(|_| refuse(&"the connection timed out"))?
        .map_err(|error| match error {
            tokio_tungstenite::tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                let body: Value = repertoire_core::json::from_slice(body).unwrap_or_default();
                let message = body["error"]["message"].as_str().unwrap_or_default();
                Error::Transport(format!("{url}: {}: {message}", response.status()))
            }
            other => refuse(&other),
        })?;
    let is_hub = response.headers().contains_key(HUB_HEADER);
    let greeting = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Ws::Text(text) = message
                && let Ok(frame) = Frame::parse(&text)
                && frame.kind == "workerregistered"
            {
                return Some(WorkerIdentity {
                    worker_id: frame.worker_id.unwrap_or_default().into_owned(),
                    reattach_token: frame.reattach_token.map(std::borrow::Cow::into_owned),
                });
            }
        }
        None
    };
    let greeting = tokio::time::timeout(CONNECT_TIMEOUT, greeting).await;
    let identity = greeting.ok().flatten();
    let identity = identity.ok_or_else(|| refuse(&"no greeting received"))?;
    Ok((socket, identity, is_hub))
}

/// Writes queued messages until the connection ends. One flush covers all that are waiting.
async fn write_messages(
    mut sink: SplitSink<Socket, Ws>,
    mut messages: mpsc::UnboundedReceiver<String>,
    queue: OutgoingQueue,
) {
    // Ends the connection also if this task panics.
    let _closed = queue.closed.clone().drop_guard();
    let mut pings = tokio::time::interval(PING_INTERVAL);
    let work = async {
        loop {
            let text = tokio::select! {
                text = messages.recv() => text?,
                _ = pings.tick() => {
                    in_time(sink.send(Ws::Ping(Bytes::new()))).await?;
                    continue;
                }
            };
            let mut next = Some(text);
            while let Some(text) = next {
                let size = text.len();
                in_time(sink.feed(Ws::text(text))).await?;
                queue.queued_bytes.fetch_sub(size, Ordering::Relaxed);
                next = messages.try_recv().ok();
            }
            in_time(sink.flush()).await?;
        }
    };
    let _: Option<()> = tokio::select! {
        ended = work => ended,
        () = queue.closed.cancelled() => None,
    };
    queue.closed.cancel();
    // The peer may be gone already.
    let _ = tokio::time::timeout(Duration::from_secs(1), sink.close()).await;
}

/// The result of a write, if it succeeded in time.
async fn in_time<T, E>(write: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(IDLE_TIMEOUT, write).await.ok()?.ok()
}

/// Reads the messages of one connection.
struct MessageReader {
    outgoing: OutgoingQueue,
    pending: PendingReplies,
    handler: Option<Arc<dyn PeerHandler>>,
    is_hub: bool,
}

impl MessageReader {
    /// Reads messages until the connection ends, then fails the calls that wait.
    async fn read_messages(self, mut stream: SplitStream<Socket>, acks: QuickAcks) {
        // Ends the connection also if this task panics.
        let _closed = self.outgoing.closed.clone().drop_guard();
        loop {
            let message = tokio::select! {
                message = tokio::time::timeout(IDLE_TIMEOUT, stream.next()) => message,
                () = self.outgoing.closed.cancelled() => break,
            };
            acks.renew();
            match message.ok().flatten() {
                Some(Ok(Ws::Text(text))) => self.handle_message(&text),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break,
            }
        }
        self.outgoing.closed.cancel();
        // Dropping the senders informs the callers.
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.clear();
    }

    /// Passes one message to the call or the handler it is for.
    fn handle_message(&self, text: &str) {
        let Ok(frame) = Frame::parse_any_depth(text) else {
            return;
        };
        let outgoing = &self.outgoing;
        let function_id = frame.function_id.as_deref();
        let id = frame.id.as_deref().unwrap_or_default();
        match (&*frame.kind, self.handler.as_deref()) {
            ("invocationresult", _) => resolve_reply(&self.pending, &frame),
            ("ping", _) => drop(outgoing.push(HubMessage::Pong.to_json())),
            ("invokefunction", Some(handler)) => handler.on_call(IncomingCall {
                function_id: function_id.unwrap_or_default().to_owned(),
                payload: frame.data.map_or("null", |raw| raw.get()).to_owned(),
                invocation_id: frame.invocation_id.map(std::borrow::Cow::into_owned),
                outgoing: outgoing.clone(),
                unnoted_since: (!self.is_hub).then(Instant::now),
            }),
            ("registertrigger", Some(handler)) => {
                let kind = frame.trigger_type.as_deref().unwrap_or_default();
                let function_id = function_id.unwrap_or_default();
                let function = SubscribedFunction {
                    id: function_id.to_owned(),
                    namespace: frame.namespace.map(std::borrow::Cow::into_owned),
                };
                handler.on_subscribe(kind, id, function);
                let accepted = json!({
                    "type": "triggerregistrationresult", "id": id, "trigger_type": kind,
                    "function_id": function_id,
                });
                let _ = outgoing.push(accepted.to_string());
            }
            ("unregistertrigger", Some(handler)) => handler.on_unsubscribe(id),
            ("registrationrejected", Some(handler)) => {
                handler.on_rejected(frame.code.as_deref().unwrap_or_default(), function_id);
            }
            _ => {}
        }
    }
}

/// Passes an answer to the call that waits for it.
fn resolve_reply(pending: &PendingReplies, frame: &Frame<'_>) {
    let id = frame.invocation_id.as_deref().unwrap_or_default();
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = pending.remove(id) {
        let _ = sender.send(match frame.error {
            None => Ok(frame.result.map_or("null", |raw| raw.get()).to_owned()),
            Some(error) => Err(repertoire_core::json::from_str(error.get())
                .unwrap_or_else(|_| CallError::new("invocation_failed", error.get()))),
        });
    }
}

impl Bus for BusClient {
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult> {
        Box::pin(async move {
            self.call_json(function_id, &payload.to_string(), deadline)
                .await
        })
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
        self.fire_in(None, function_id, payload);
    }
}
