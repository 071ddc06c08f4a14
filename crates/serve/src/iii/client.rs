//! Asking a bus from outside: one connection, calls and their answers.
//!
//! For people at a terminal, for tests and benches, and for a worker that has to read more at
//! once than its SDK lets through.

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
    bus::{Answer, Bus, CallError},
    protocol::{Frame, Trace, invoke_text},
};
use crate::error::{Error, Result};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;
type Waiting = Arc<Mutex<HashMap<String, oneshot::Sender<Answer>>>>;

/// The most bytes of one answer: this side asked for it.
const MAX_ANSWER: usize = 4 << 30;

/// A connection to a bus.
#[derive(Debug)]
pub struct Client {
    sink: Arc<tokio::sync::Mutex<SplitSink<Socket, Ws>>>,
    waiting: Waiting,
    reading: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Client {
    /// Connects, and waits to be greeted.
    pub async fn connect(url: &str, token: Option<&str>) -> Result<Self> {
        let refuse = |reason: &dyn std::fmt::Display| {
            Error::Transport(format!("{url}: no bus answers there ({reason})"))
        };
        let mut request = url.into_client_request().map_err(|e| refuse(&e))?;
        if let Some(token) = token {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let value = value.map_err(|_| Error::Transport("the token is no token".to_owned()))?;
            request.headers_mut().insert("authorization", value);
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_ANSWER))
            .max_frame_size(Some(MAX_ANSWER));
        let connected = connect_async_with_config(request, Some(config), true);
        let patience = Duration::from_secs(10);
        let connected = tokio::time::timeout(patience, connected).await;
        let (mut socket, _) = connected
            .map_err(|_| refuse(&"it does not answer"))?
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
            return Err(refuse(&"it does not greet"));
        }
        let (sink, mut stream) = socket.split();
        let waiting = Waiting::default();
        let answers = waiting.clone();
        let reading = tokio::spawn(async move {
            while let Some(Ok(message)) = stream.next().await {
                if let Ws::Text(text) = message {
                    take(&answers, &text);
                }
            }
            let gone = CallError::new("disconnected", "the bus closed the connection");
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, tell) in answers.drain() {
                let _ = tell.send(Err(gone.clone()));
            }
        });
        Ok(Self {
            sink: Arc::new(tokio::sync::Mutex::new(sink)),
            waiting,
            reading,
        })
    }

    /// Sends a text as it is.
    pub async fn send(&self, text: String) -> Result<()> {
        let sent = self.sink.lock().await.send(Ws::text(text)).await;
        sent.map_err(|error| Error::Transport(error.to_string()))
    }

    /// Calls a function with a payload that is JSON.
    pub async fn ask(&self, function_id: &str, payload: &str, deadline: Duration) -> Answer {
        let invocation = Uuid::new_v4().to_string();
        let (tell, told) = oneshot::channel();
        let lock = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        lock().insert(invocation.clone(), tell);
        let none = Trace::default();
        let text = invoke_text(Some(&invocation), function_id, payload, None, none);
        let asked = async {
            let sent = self.send(text).await;
            sent.map_err(|error| CallError::new("disconnected", error.to_string()))?;
            if self.reading.is_finished() {
                lock().remove(&invocation);
                let message = "the bus closed the connection";
                return Err(CallError::new("disconnected", message));
            }
            told.await.unwrap_or_else(|_| {
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

/// Gives an answer to whoever waits for it.
fn take(waiting: &Waiting, text: &str) {
    let Ok(frame) = Frame::read(text) else {
        return;
    };
    if frame.kind != "invocationresult" {
        return;
    }
    let id = frame.invocation_id.as_deref().unwrap_or_default();
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tell) = waiting.remove(id) {
        let _ = tell.send(match frame.error {
            None => Ok(frame.result.map_or("null", |raw| raw.get()).to_owned()),
            Some(error) => Err(repertoire_core::json::from_str(error.get())
                .unwrap_or_else(|_| CallError::new("invocation_failed", error.get()))),
        });
    }
}

impl Bus for Client {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(async move { self.ask(function_id, &payload.to_string(), deadline).await })
    }

    fn fire(&self, function_id: &str, payload: &Value) {
        let text = invoke_text(
            None,
            function_id,
            &payload.to_string(),
            None,
            Trace::default(),
        );
        let sink = self.sink.clone();
        tokio::spawn(async move {
            let _ = sink.lock().await.send(Ws::text(text)).await;
        });
    }
}
