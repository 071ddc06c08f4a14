//! A client for calling a bus from outside: one connection, calls and their answers.
//!
//! Used by the command line, by tests and benches, and by a worker that has to read an answer
//! larger than its SDK accepts.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{SinkExt, StreamExt, future::BoxFuture, stream::SplitSink};
use serde_json::Value;
use tokio::{net::TcpStream, sync::oneshot, task::JoinHandle};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{
        Message as Ws, client::IntoClientRequest, http::HeaderValue, protocol::WebSocketConfig,
    },
};
use uuid::Uuid;

use super::{
    bus::{Bus, BusResult, CallError},
    protocol::{Frame, TraceContext, invoke_text},
};
use crate::error::{Error, Result};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;
type PendingReplies = Arc<Mutex<HashMap<String, oneshot::Sender<BusResult>>>>;

/// The most bytes of one answer. Large, because only answers to own calls are read.
const MAX_ANSWER: usize = 4 << 30;

/// A connection to a bus.
#[derive(Debug)]
pub struct Client {
    sink: Arc<tokio::sync::Mutex<SplitSink<Socket, Ws>>>,
    waiting: PendingReplies,
    reading: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Client {
    /// Connects and waits for the greeting of the bus.
    pub async fn connect(url: &str, token: Option<&str>) -> Result<Self> {
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
            .max_message_size(Some(MAX_ANSWER))
            .max_frame_size(Some(MAX_ANSWER));
        let connected = connect_async_with_config(request, Some(config), true);
        let patience = Duration::from_secs(10);
        let connected = tokio::time::timeout(patience, connected).await;
        let (mut socket, _) = connected
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
        let greeted = async {
            while let Some(Ok(message)) = socket.next().await {
                if let Ws::Text(text) = message
                    && Frame::parse(&text).is_ok_and(|f| f.kind == "workerregistered")
                {
                    return true;
                }
            }
            false
        };
        if !tokio::time::timeout(patience, greeted)
            .await
            .unwrap_or(false)
        {
            return Err(refuse(&"no greeting received"));
        }
        let (sink, mut stream) = socket.split();
        let waiting = PendingReplies::default();
        let answers = waiting.clone();
        let reading = tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                if let Ws::Text(text) = message {
                    resolve_reply(&answers, &text);
                }
            }
            let gone = CallError::new("disconnected", "the bus closed the connection");
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, sender) in answers.drain() {
                let _ = sender.send(Err(gone.clone()));
            }
        });
        Ok(Self {
            sink: Arc::new(tokio::sync::Mutex::new(sink)),
            waiting,
            reading,
        })
    }

    /// Sends a text message without changing it.
    pub async fn send_text(&self, text: String) -> Result<()> {
        let sent = self.sink.lock().await.send(Ws::text(text)).await;
        sent.map_err(|error| Error::Transport(error.to_string()))
    }

    /// Calls a function with a JSON payload.
    pub async fn ask(&self, function_id: &str, payload: &str, deadline: Duration) -> BusResult {
        let invocation = Uuid::new_v4().to_string();
        let (sender, receiver) = oneshot::channel();
        let lock = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(invocation.clone(), sender);
        let none = TraceContext::default();
        let text = invoke_text(Some(&invocation), function_id, payload, None, none);
        let asked = async {
            let sent = self.send_text(text).await;
            sent.map_err(|error| CallError::new("disconnected", error.to_string()))?;
            if self.reading.is_finished() {
                lock().remove(&invocation);
                let message = "the bus closed the connection";
                return Err(CallError::new("disconnected", message));
            }
            receiver.await.unwrap_or_else(|_| {
                let message = "the bus closed the connection";
                Err(CallError::new("disconnected", message))
            })
        };
        let Ok(answer) = tokio::time::timeout(deadline, asked).await else {
            lock().remove(&invocation);
            return Err(CallError::timeout(function_id, deadline));
        };
        answer
    }
}

/// Passes an answer to the call that waits for it.
fn resolve_reply(waiting: &PendingReplies, text: &str) {
    let Ok(frame) = Frame::parse_any_depth(text) else {
        return;
    };
    if frame.kind != "invocationresult" {
        return;
    }
    let id = frame.invocation_id.as_deref().unwrap_or_default();
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(sender) = waiting.remove(id) {
        let _ = sender.send(match frame.error {
            None => Ok(frame.result.map_or("null", |raw| raw.get()).to_owned()),
            Some(error) => Err(repertoire_core::json::from_str(error.get())
                .unwrap_or_else(|_| CallError::new("invocation_failed", error.get()))),
        });
    }
}

impl Bus for Client {
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult> {
        Box::pin(async move { self.ask(function_id, &payload.to_string(), deadline).await })
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
        let text = invoke_text(
            None,
            function_id,
            &payload.to_string(),
            None,
            TraceContext::default(),
        );
        let sink = self.sink.clone();
        tokio::spawn(async move {
            let _ = sink.lock().await.send(Ws::text(text)).await;
        });
    }
}
