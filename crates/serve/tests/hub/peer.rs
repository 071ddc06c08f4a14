//! A hub in this process, and peers that say what they like.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt};
use repertoire_registry::{Registry, Settings};
use repertoire_serve::{
    Engine, Options,
    http::{Auth, Names},
    iii::{Hub, HubOptions, client::Client, hub::HubListener},
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

pub(crate) const WAIT: Duration = Duration::from_secs(10);

pub(crate) struct Place {
    engine: Arc<Engine>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) address: SocketAddr,
    _home: tempfile::TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hub.stop();
        self.engine.shut_down();
    }
}

pub(crate) async fn start(options: HubOptions) -> Place {
    start_with(options, |_| Auth::Open).await
}

pub(crate) async fn start_with(options: HubOptions, auth: impl FnOnce(&Registry) -> Auth) -> Place {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings {
        account: Some(home.path().to_owned()),
        ..Settings::default()
    };
    let registry = Registry::open(settings).unwrap();
    let auth = Arc::new(auth(&registry));
    let engine = Engine::over(registry, Options::default());
    let listener = HubListener::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.address();
    let hub = Hub::start(&engine, options);
    tokio::spawn(listener.serve(hub.clone(), Names::default(), auth));
    Place {
        engine,
        hub,
        address,
        _home: home,
    }
}

impl Place {
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url(), None).await.unwrap()
    }

    pub(crate) async fn call(&self, function: &str, payload: Value) -> Value {
        let client = self.client().await;
        let answer = client.ask(function, &payload.to_string(), WAIT).await;
        serde_json::from_str(&answer.unwrap()).unwrap()
    }

    /// The hub still does what it is for.
    pub(crate) async fn still_serves(&self) {
        let skill = json!({"id": "alive", "skill": "# Alive"});
        self.call("skills::register", skill).await;
        let uri = json!({"uri": "iii://alive"});
        let read = self.call("skills::resources-read", uri).await;
        assert_eq!(read["contents"][0]["text"], "# Alive");
    }
}

pub(crate) struct Raw {
    pub(crate) socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) greeting: Value,
}

impl Raw {
    pub(crate) async fn connect(place: &Place) -> Self {
        let (mut socket, response) = connect_async(place.url()).await.unwrap();
        assert_eq!(response.headers()["x-iii-capabilities"], "tcp-nodelay");
        let Message::Text(first) = socket.next().await.unwrap().unwrap() else {
            panic!("no greeting");
        };
        let greeting: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(greeting["type"], "workerregistered");
        Self { socket, greeting }
    }

    pub(crate) fn id(&self) -> &str {
        self.greeting["worker_id"].as_str().unwrap()
    }

    pub(crate) async fn send(&mut self, message: Value) {
        let message = Message::text(message.to_string());
        self.socket.send(message).await.unwrap();
    }

    /// The next message.
    pub(crate) async fn hear(&mut self) -> Value {
        loop {
            let heard = tokio::time::timeout(WAIT, self.socket.next()).await;
            match heard.expect("nothing was heard").unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn function(&mut self, id: &str) {
        let message = json!({"type": "registerfunction", "id": id});
        self.send(message).await;
    }

    pub(crate) async fn provide(&mut self, kind: &str) {
        let message = json!({"type": "registertriggertype", "id": kind, "description": "d"});
        self.send(message).await;
    }

    pub(crate) async fn follow(&mut self, id: &str, kind: &str, function: &str) {
        let message = json!({
            "type": "registertrigger", "id": id, "trigger_type": kind, "function_id": function,
            "config": {},
        });
        self.send(message).await;
    }

    /// A round trip, after which everything sent before has been acted on.
    pub(crate) async fn settle(&mut self) {
        self.send(json!({"type": "ping"})).await;
        assert_eq!(self.hear().await, json!({"type": "pong"}));
    }

    /// Why the hub closes the connection.
    pub(crate) async fn closed(mut self) -> (u16, String) {
        loop {
            let heard = tokio::time::timeout(WAIT, self.socket.next()).await;
            match heard.expect("it was not closed") {
                Some(Ok(Message::Close(Some(frame)))) => {
                    return (frame.code.into(), frame.reason.to_string());
                }
                Some(Ok(_)) => {}
                other => panic!("closed without a reason: {other:?}"),
            }
        }
    }

    /// The connection beneath.
    pub(crate) fn stream(self) -> TcpStream {
        match self.socket.into_inner() {
            MaybeTlsStream::Plain(stream) => stream,
            _ => panic!("not a plain stream"),
        }
    }
}

pub(crate) fn invoke(id: &str, function: &str, data: Value) -> Value {
    json!({"type": "invokefunction", "invocation_id": id, "function_id": function, "data": data})
}
