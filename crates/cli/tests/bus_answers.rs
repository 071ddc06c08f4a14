//! The answers of the hub to requests whose answers were recorded on a real engine.
//!
//! `corpus/bus/answers.json` has each request with the answer of an engine. `REPERTOIRE_RECORD=1` with
//! `III_ENGINE_WS_URL` records them again. Identities and times are left out; the hub may say more than
//! the engine, not less. Where it differs on purpose, `hub` has its answer and `why` the reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests"
)]

mod process;

use std::{path::PathBuf, sync::Arc, time::Duration};

use repertoire_serve::iii::{
    CallError,
    bus_client::{BusClient, IncomingCall, PeerHandler, SubscribedFunction},
};
use serde_json::{Value, json};

const WAIT: Duration = Duration::from_secs(20);

/// A worker with three functions and a trigger type.
struct Differ;

impl PeerHandler for Differ {
    fn on_call(&self, call: IncomingCall) {
        let answer = match call.function_id.as_str() {
            "diff::hello" => Ok("{\"text\":\"hello\"}".to_owned()),
            "diff::none" => Ok("null".to_owned()),
            _ => Err(CallError::new("out_of_ideas", "nothing comes to mind")),
        };
        call.respond(&answer);
    }

    fn on_subscribe(&self, _: &str, _: &str, _: SubscribedFunction) {}

    fn on_unsubscribe(&self, _: &str) {}

    fn on_rejected(&self, code: &str, _: Option<&str>) {
        panic!("{code}");
    }
}

/// The fields that differ from run to run.
const IDENTITIES: [&str; 10] = [
    "doc_url",
    "connected_at_ms",
    "ip_address",
    "latest_metrics",
    "worker_id",
    "pid",
    "active_invocations",
    "os",
    "message",
    "stacktrace",
];

/// Leaves out what differs from run to run.
fn normalize(value: Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(name, value)| !IDENTITIES.contains(&name.as_str()) && !value.is_null())
            .map(|(name, value)| (name, normalize(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(normalize).collect(),
        Value::String(text) if uuid::Uuid::parse_str(&text).is_ok() => "<uuid>".into(),
        other => other,
    }
}

/// Whether an answer has everything that is expected.
fn contains(answer: &Value, expected: &Value) -> bool {
    match (answer, expected) {
        (Value::Object(answer), Value::Object(expected)) => expected.iter().all(|(name, value)| {
            answer
                .get(name)
                .is_some_and(|answer| contains(answer, value))
        }),
        (Value::Array(answer), Value::Array(expected)) => {
            answer.len() == expected.len()
                && answer.iter().zip(expected).all(|(a, e)| contains(a, e))
        }
        (answer, expected) => answer == expected,
    }
}

async fn connect(url: &str) -> BusClient {
    let client = BusClient::connect_worker(url, None, Arc::new(Differ)).await;
    let client = client.unwrap();
    let send = |message: Value| client.send_text(message.to_string()).unwrap();
    send(json!({
        "type": "invokefunction", "function_id": "engine::workers::register",
        "action": {"type": "void"},
        "data": {"name": "differ", "runtime": "rust", "version": "1.2.3", "description": "Differs."},
    }));
    send(json!({
        "type": "registerfunction", "id": "diff::hello", "description": "Says hello.",
        "request_format": {"type": "object"}, "response_format": {"type": "string"},
        "metadata": {"mood": "friendly"},
    }));
    for id in ["diff::none", "diff::fails"] {
        send(json!({"type": "registerfunction", "id": id}));
    }
    send(json!({
        "type": "registertriggertype", "id": "diff::asked", "description": "Fires when asked.",
    }));
    send(json!({
        "type": "registertrigger", "id": "diff-trigger", "trigger_type": "diff::asked",
        "function_id": "diff::hello", "config": {"often": true}, "metadata": {"why": "a test"},
    }));
    // Everything is registered when the last one is listed.
    let listed = || client.call_json("engine::registered-triggers::list", "{}", WAIT);
    let start = std::time::Instant::now();
    while !listed().await.unwrap().contains("diff-trigger") {
        assert!(start.elapsed() < WAIT);
    }
    client
}

#[test]
fn the_hub_answers_as_an_engine_does() {
    let home = tempfile::tempdir().unwrap();
    let engine = std::env::var("III_ENGINE_WS_URL").ok();
    let is_recording = std::env::var_os("REPERTOIRE_RECORD").is_some();
    let (_hub, url) = if let Some(url) = engine.clone() {
        (None, url)
    } else {
        let (hub, url) = process::start_server(home.path(), &["--hub", "0"]);
        (Some(hub), url)
    };
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../corpus/bus/answers.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut requests: Vec<Value> = serde_json::from_str(&text).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut differences = Vec::new();
    runtime.block_on(async {
        let client = connect(&url).await;
        for request in &mut requests {
            let function = request["call"].as_str().unwrap().to_owned();
            let data = request["data"].to_string();
            let answer = match client.call_json(&function, &data, WAIT).await {
                Ok(text) => json!({"result": serde_json::from_str::<Value>(&text).unwrap()}),
                Err(error) => json!({"error": {"code": error.code}}),
            };
            let answer = normalize(answer);
            if is_recording {
                request["engine"] = answer;
                continue;
            }
            let ours = request.get("hub").filter(|_| engine.is_none());
            let expected = ours.unwrap_or(&request["engine"]);
            if !contains(&answer, expected) {
                differences.push(format!(
                    "{function} {data}\n  got    {answer}\n  wanted {expected}"
                ));
            }
        }
    });
    if is_recording {
        let text = serde_json::to_string_pretty(&requests).unwrap();
        std::fs::write(&file, text + "\n").unwrap();
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
