//! A bus that behaves as real engines do where they are awkward: a hub behind a proxy with quirks.
//!
//! Always on: no `TCP_NODELAY` and no announcement of it; an answer that comes too soon is lost, because
//! the call is noted after it was sent; calls without an answer change places; some `engine::*` functions
//! are unknown; functions have namespaces; long messages come in several frames, and messages past a limit
//! end the connection. On request, by calls of `quirks::*`: a connection drops with writes in flight, or
//! freezes.

mod names;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{
    SinkExt as _, StreamExt as _,
    stream::{SplitSink, SplitStream},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, accept_async, connect_async,
    tungstenite::{
        Message,
        protocol::frame::{
            Frame,
            coding::{Data, OpCode},
        },
    },
};

use names::Namespaces;

/// An answer within this time after its call was sent is lost, once.
const NOTED_AFTER: Duration = Duration::from_millis(4);
/// How long a call without an answer may wait for another one to change places with.
const REORDER_WINDOW: Duration = Duration::from_millis(3);
/// Longer messages come in two frames.
const SPLIT_AFTER: usize = 512;
/// Longer messages of clients end their connection.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// A function that engines of this version do not have.
const UNKNOWN: &str = "engine::trigger-types::list";

/// The proxy. It ends with the runtime it was started on.
pub(crate) struct QuirkyBus {
    pub(crate) url: String,
    seen: Arc<SeenProblems>,
}

/// What a careful client does not cause.
#[derive(Debug, Default)]
struct SeenProblems {
    unknown_calls: AtomicUsize,
}

/// What was asked of the connections of the worker.
#[derive(Debug, Default)]
struct Faults {
    /// The connection ends after so many writes, before their answers.
    drop_after_writes: Mutex<Option<usize>>,
    is_freezing: AtomicBool,
}

impl QuirkyBus {
    /// Starts a proxy in front of a hub.
    pub(crate) async fn start(hub: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let seen = Arc::<SeenProblems>::default();
        let (hub, counting) = (hub.to_owned(), seen.clone());
        tokio::spawn(async move {
            let (faults, names) = (Arc::default(), Arc::default());
            while let Ok((stream, _)) = listener.accept().await {
                // As engines leave it: small messages wait for acknowledgements.
                stream.set_nodelay(false).unwrap();
                let link = Link {
                    hub: hub.clone(),
                    faults: Arc::clone(&faults),
                    names: Arc::clone(&names),
                    seen: counting.clone(),
                };
                tokio::spawn(link.serve(stream));
            }
        });
        Self { url, seen }
    }

    /// How often a function was called that this bus does not have.
    pub(crate) fn unknown_calls(&self) -> usize {
        self.seen.unknown_calls.load(Ordering::SeqCst)
    }
}

/// One client and its connection to the hub.
struct Link {
    hub: String,
    faults: Arc<Faults>,
    names: Arc<Namespaces>,
    seen: Arc<SeenProblems>,
}

/// What both directions of a link share.
#[derive(Default)]
struct LinkState {
    /// Whether this client offers the functions of the registry.
    is_skills_worker: AtomicBool,
    is_frozen: AtomicBool,
    namespace: Mutex<Option<String>>,
    /// When calls were sent to this client whose answers have not come through.
    sent: Mutex<HashMap<String, Instant>>,
}

impl LinkState {
    fn is_worker(&self) -> bool {
        self.is_skills_worker.load(Ordering::SeqCst)
    }
}

type HubSocket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Link {
    async fn serve(self, stream: TcpStream) {
        let Ok(client) = accept_async(stream).await else {
            return;
        };
        let Ok((hub, _)) = connect_async(&self.hub).await else {
            return;
        };
        let (client_sink, client_stream) = client.split();
        let (hub_sink, hub_stream) = hub.split();
        let (to_client, client_queue) = mpsc::unbounded_channel();
        let state = Arc::<LinkState>::default();
        let writer = tokio::spawn(write_to_client(client_sink, client_queue));
        let down = tokio::spawn(pass_down(
            hub_stream,
            to_client.clone(),
            state.clone(),
            self.names.clone(),
        ));
        self.pass_up(client_stream, hub_sink, to_client, &state)
            .await;
        down.abort();
        writer.abort();
    }

    /// Passes messages of the client on to the hub, until the connection ends.
    async fn pass_up(
        &self,
        mut client: SplitStream<WebSocketStream<TcpStream>>,
        mut hub: SplitSink<HubSocket, Message>,
        to_client: UnboundedSender<Value>,
        state: &LinkState,
    ) {
        // A call without an answer that waits to change places with the next one.
        let mut held: Option<Value> = None;
        loop {
            let next = match &held {
                Some(_) => tokio::time::timeout(REORDER_WINDOW, client.next()).await,
                None => Ok(client.next().await),
            };
            while state.is_frozen.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let message = match next {
                Ok(Some(Ok(Message::Text(text)))) if text.len() <= MAX_MESSAGE => {
                    serde_json::from_str::<Value>(&text).unwrap()
                }
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
                Ok(_) => return,
                Err(_) => {
                    send_text(&mut hub, held.take()).await;
                    continue;
                }
            };
            let Some(message) = self.change_message(message, &to_client, state) else {
                continue;
            };
            if is_void(&message) {
                // The later one of two goes first.
                let earlier = held.replace(message);
                if earlier.is_some() {
                    send_text(&mut hub, held.take()).await;
                    send_text(&mut hub, earlier).await;
                }
                continue;
            }
            send_text(&mut hub, held.take()).await;
            let is_write = message["function_id"] == "state::set" && state.is_worker();
            send_text(&mut hub, Some(message)).await;
            if is_write && self.takes_last_write() {
                // The write is on its way; its answer never arrives.
                return;
            }
        }
    }

    /// Counts a write; returns whether the connection ends now.
    fn takes_last_write(&self) -> bool {
        let mut left = self.faults.drop_after_writes.lock().unwrap();
        match &mut *left {
            Some(0 | 1) => {
                *left = None;
                true
            }
            Some(writes) => {
                *writes -= 1;
                false
            }
            None => false,
        }
    }

    /// Applies the quirks to a message of the client; `None` if it goes no further.
    fn change_message(
        &self,
        mut message: Value,
        to_client: &UnboundedSender<Value>,
        state: &LinkState,
    ) -> Option<Value> {
        let kind = message["type"].as_str().unwrap_or_default().to_owned();
        let function = message["function_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let answer = |result: Value| {
            let id = message["invocation_id"].clone();
            let mut answer = json!({
                "type": "invocationresult", "invocation_id": id, "function_id": function,
            });
            answer
                .as_object_mut()
                .unwrap()
                .extend(result.as_object().unwrap().clone());
            let _ = to_client.send(answer);
        };
        match (kind.as_str(), function.as_str()) {
            ("invokefunction", UNKNOWN) => {
                self.seen.unknown_calls.fetch_add(1, Ordering::SeqCst);
                let error = json!({"code": "function_not_found", "message": "Function not found"});
                answer(json!({"error": error}));
                return None;
            }
            ("invokefunction", "quirks::drop-worker") => {
                let writes = message["data"]["after_writes"].as_u64().unwrap_or(1);
                let writes = usize::try_from(writes).unwrap();
                *self.faults.drop_after_writes.lock().unwrap() = Some(writes);
                answer(json!({}));
                return None;
            }
            ("invokefunction", "quirks::freeze-worker") => {
                self.faults.is_freezing.store(true, Ordering::SeqCst);
                answer(json!({}));
                return None;
            }
            ("invocationresult", _) => {
                let id = message["invocation_id"].as_str().unwrap_or_default();
                let mut sent = state.sent.lock().unwrap();
                let at = sent.get(id).copied();
                let is_noted = at.is_some_and(|at| at.elapsed() >= NOTED_AFTER);
                if state.is_skills_worker.load(Ordering::SeqCst) && !is_noted {
                    // Too soon, or for the second time.
                    return None;
                }
                sent.remove(id);
            }
            ("registerfunction", _) if message["id"] == "skills::register" => {
                state.is_skills_worker.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
        if state.is_worker() && self.faults.is_freezing.swap(false, Ordering::SeqCst) {
            state.is_frozen.store(true, Ordering::SeqCst);
        }
        let mut namespace = state.namespace.lock().unwrap();
        self.names.qualify_outgoing(&mut message, &mut namespace);
        Some(message)
    }
}

fn is_void(message: &Value) -> bool {
    message["type"] == "invokefunction" && message["invocation_id"].is_null()
}

async fn send_text(sink: &mut SplitSink<HubSocket, Message>, message: Option<Value>) {
    if let Some(message) = message {
        let _ = sink.send(Message::text(message.to_string())).await;
    }
}

/// Passes messages of the hub on to the client.
async fn pass_down(
    mut hub: SplitStream<HubSocket>,
    to_client: UnboundedSender<Value>,
    state: Arc<LinkState>,
    names: Arc<Namespaces>,
) {
    while let Some(Ok(message)) = hub.next().await {
        let Message::Text(text) = message else {
            continue;
        };
        if state.is_frozen.load(Ordering::SeqCst) {
            // Read and thrown away, so that the hub sees nothing of it.
            continue;
        }
        let mut message: Value = serde_json::from_str(&text).unwrap();
        if message["type"] == "invokefunction"
            && let Some(id) = message["invocation_id"].as_str()
        {
            state
                .sent
                .lock()
                .unwrap()
                .insert(id.to_owned(), Instant::now());
        }
        names.simplify_incoming(&mut message);
        if to_client.send(message).is_err() {
            return;
        }
    }
}

/// Writes messages, long ones in two frames.
async fn write_to_client(
    mut sink: SplitSink<WebSocketStream<TcpStream>, Message>,
    mut messages: UnboundedReceiver<Value>,
) {
    while let Some(message) = messages.recv().await {
        let text = message.to_string();
        let sent = if text.len() > SPLIT_AFTER {
            let mut first = text.into_bytes();
            let rest = first.split_off(SPLIT_AFTER / 2);
            let frame = |bytes, kind, is_last| {
                Message::Frame(Frame::message(bytes, OpCode::Data(kind), is_last))
            };
            let begun = sink.send(frame(first, Data::Text, false)).await;
            match begun {
                Ok(()) => sink.send(frame(rest, Data::Continue, true)).await,
                failed => failed,
            }
        } else {
            sink.send(Message::text(text)).await
        };
        if sent.is_err() {
            return;
        }
    }
}
