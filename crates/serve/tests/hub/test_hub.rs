//! A hub in this process, and peers that send arbitrary messages.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt};
use repertoire_registry::{Registry, RegistrySettings};
use repertoire_serve::{
    ServeOptions, SkillService,
    http::{AllowedHosts, Auth},
    iii::{Hub, HubOptions, bus_client::BusClient, hub::HubListener},
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async, tungstenite::Message};

pub(crate) const WAIT: Duration = Duration::from_secs(10);

pub(crate) struct TestHub {
    service: Arc<SkillService>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) address: SocketAddr,
    _home: tempfile::TempDir,
}

impl Drop for TestHub {
    fn drop(&mut self) {
        self.hub.stop();
        self.service.shut_down();
    }
}

pub(crate) async fn start(options: HubOptions) -> TestHub {
    start_hub_with(options, |_| Auth::Open).await
}

pub(crate) async fn start_hub_with(
    options: HubOptions,
    auth: impl FnOnce(&Registry) -> Auth,
) -> TestHub {
    let home = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        account: Some(home.path().to_owned()),
        ..RegistrySettings::default()
    };
    let registry = Registry::open(settings).unwrap();
    let auth = Arc::new(auth(&registry));
    let engine = SkillService::with_registry(registry, ServeOptions::default());
    let listener = HubListener::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.address();
    let hub = Hub::start(&engine, options);
    tokio::spawn(listener.serve(hub.clone(), AllowedHosts::default(), auth));
    TestHub {
        service: engine,
        hub,
        address,
        _home: home,
    }
}

impl TestHub {
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    pub(crate) async fn client(&self) -> BusClient {
        BusClient::connect(&self.url(), None).await.unwrap()
    }

    pub(crate) async fn call_function(&self, function: &str, payload: Value) -> Value {
        let client = self.client().await;
        let answer = client.call_json(function, &payload.to_string(), WAIT).await;
        serde_json::from_str(&answer.unwrap()).unwrap()
    }

    /// Checks that the hub still registers and reads a skill.
    pub(crate) async fn assert_still_serves(&self) {
        let skill = json!({"id": "alive", "skill": "# Alive"});
        self.call_function("skills::register", skill).await;
        let uri = json!({"uri": "iii://alive"});
        let read = self.call_function("skills::resources-read", uri).await;
        assert_eq!(read["contents"][0]["text"], "# Alive");
    }
}

pub(crate) struct RawPeer {
    pub(crate) socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) greeting: Value,
}

impl RawPeer {
    pub(crate) async fn connect(place: &TestHub) -> Self {
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

    /// Returns the next message.
    pub(crate) async fn next_message(&mut self) -> Value {
        loop {
            let heard = tokio::time::timeout(WAIT, self.socket.next()).await;
            match heard.expect("no message in time").unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn register_function(&mut self, id: &str) {
        let message = json!({"type": "registerfunction", "id": id});
        self.send(message).await;
    }

    pub(crate) async fn provide_trigger_type(&mut self, kind: &str) {
        let message = json!({"type": "registertriggertype", "id": kind, "description": "d"});
        self.send(message).await;
    }

    pub(crate) async fn register_trigger(&mut self, id: &str, kind: &str, function: &str) {
        let message = json!({
            "type": "registertrigger", "id": id, "trigger_type": kind, "function_id": function,
            "config": {},
        });
        self.send(message).await;
    }

    /// Waits for a round trip, after which the hub has handled everything sent before.
    pub(crate) async fn wait_round_trip(&mut self) {
        self.send(json!({"type": "ping"})).await;
        assert_eq!(self.next_message().await, json!({"type": "pong"}));
    }

    /// Returns the code and the reason with which the hub closes the connection.
    pub(crate) async fn wait_closed(mut self) -> (u16, String) {
        loop {
            let heard = tokio::time::timeout(WAIT, self.socket.next()).await;
            match heard.expect("the connection was not closed") {
                Some(Ok(Message::Close(Some(frame)))) => {
                    return (frame.code.into(), frame.reason.to_string());
                }
                Some(Ok(_)) => {}
                other => panic!("closed without a reason: {other:?}"),
            }
        }
    }

    /// Returns the underlying TCP stream.
    pub(crate) fn stream(self) -> TcpStream {
        match self.socket.into_inner() {
            MaybeTlsStream::Plain(stream) => stream,
            _ => panic!("not a plain stream"),
        }
    }
}

pub(crate) fn invoke_message(id: &str, function: &str, data: Value) -> Value {
    json!({"type": "invokefunction", "invocation_id": id, "function_id": function, "data": data})
}
