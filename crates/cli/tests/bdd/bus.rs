//! The bus that all scenarios share: our own hub, or an engine that our worker joins.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, OnceLock},
    time::{Duration, Instant},
};

use iii_sdk::{IIIClient, protocol::TriggerRequest};
use serde_json::{Value, json};

use crate::{
    process::{self, TestProcess},
    quirky_bus::QuirkyBus,
};

/// The deadline for every condition a step waits for.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

pub(crate) struct SharedBus {
    pub(crate) client: IIIClient,
    pub(crate) files: PathBuf,
    /// The quirks, if this bus has them, in front of a hub of its own.
    pub(crate) quirks: Option<QuirkyBus>,
    hub: Mutex<Option<TestProcess>>,
    mcp: String,
    server: Mutex<Child>,
    _home: tempfile::TempDir,
}

static SHARED_BUS: OnceLock<SharedBus> = OnceLock::new();

pub(crate) fn shared_bus() -> &'static SharedBus {
    SHARED_BUS
        .get()
        .expect("the scenario is not tagged @engine")
}

/// Whether the scenarios run on the quirky bus.
pub(crate) fn has_quirks() -> bool {
    std::env::var_os("REPERTOIRE_TEST_QUIRKY_BUS").is_some()
}

const SETTINGS: &str = r#"
skills = ["files/skills/**/*.md", "files/more/{a,b}/*.md"]
prompts = ["files/prompts/*.md"]
"#;

pub(crate) async fn start() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), SETTINGS).unwrap();
    let files = home.path().join("files");
    for folder in ["skills", "more", "prompts"] {
        std::fs::create_dir_all(files.join(folder)).unwrap();
    }
    let (mut quirks, mut hub) = (None, None);
    let mut engine = std::env::var("III_ENGINE_WS_URL").ok();
    if has_quirks() {
        let account = home.path().join("hub");
        std::fs::create_dir_all(&account).unwrap();
        let (process, url) = process::start_server(&account, &["--hub", "0", "--bare-hub"]);
        let bus = QuirkyBus::start(&url).await;
        engine = Some(bus.url.clone());
        (quirks, hub) = (Some(bus), Some(process));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_repertoire"));
    command.args([
        "serve", "--port", "0", "--json", "--quiet", "--tool", "demo::*",
    ]);
    match &engine {
        Some(url) => command.args(["--join", url]),
        None => command.args(["--hub", "0"]),
    };
    let mut server = command
        .env("REPERTOIRE_HOME", home.path())
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env_remove("III_URL")
        .current_dir(home.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).expect("the server did not start");
    let url = engine.unwrap_or_else(|| said["hub"].as_str().unwrap().to_owned());
    let shared = SharedBus {
        client: process::connect_sdk(&url),
        files,
        quirks,
        hub: Mutex::new(hub),
        mcp: said["url"].as_str().unwrap().to_owned(),
        server: Mutex::new(server),
        _home: home,
    };
    // A bus without a response is a failure, never a pass.
    let start = Instant::now();
    loop {
        let asked = call_on(&shared.client, "skills::resources-templates", json!({}));
        match asked.await {
            Ok(_) => break,
            Err(error) if start.elapsed() > Duration::from_secs(20) => {
                let _ = shared.server.lock().unwrap().kill();
                panic!("{url} does not answer: {error:?}");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    assert!(SHARED_BUS.set(shared).is_ok());
}

pub(crate) fn stop() {
    if let Some(shared) = SHARED_BUS.get() {
        let mut server = shared.server.lock().unwrap();
        let _ = server.kill();
        let _ = server.wait();
        // A static is never dropped, so the process is ended here.
        drop(shared.hub.lock().unwrap().take());
    }
}

/// The error of a failed call.
#[derive(Debug, Clone)]
pub(crate) struct CallError {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) stacktrace: Option<String>,
}

pub(crate) async fn call_function(function: &str, payload: Value) -> Result<Value, CallError> {
    call_on(&shared_bus().client, function, payload).await
}

async fn call_on(client: &IIIClient, function: &str, payload: Value) -> Result<Value, CallError> {
    let request = TriggerRequest {
        function_id: function.to_owned(),
        payload,
        action: None,
        timeout_ms: Some(10_000),
    };
    client.trigger(request).await.map_err(|error| match error {
        iii_sdk::Error::Remote {
            code,
            message,
            stacktrace,
        } => CallError {
            code,
            message,
            stacktrace,
        },
        other => CallError {
            code: String::new(),
            message: other.to_string(),
            stacktrace: None,
        },
    })
}

/// Sends an MCP request in the newest revision.
pub(crate) async fn send_mcp_request(method: &str, mut params: Value) -> Result<Value, CallError> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "bdd", "version": "1"},
    });
    let name = params.get("uri").or_else(|| params.get("name"));
    let name = name.and_then(Value::as_str);
    let name = name.map_or(String::new(), |name| format!("Mcp-Name: {name}\r\n"));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let address = shared_bus().mcp.trim_start_matches("http://");
    let address = address.split('/').next().unwrap().to_owned();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: \
         {method}\r\n{name}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let answer = answer.await.unwrap();
    let start = answer
        .find("{\"jsonrpc\"")
        .unwrap_or_else(|| panic!("{answer}"));
    let mut stream = serde_json::Deserializer::from_str(&answer[start..]).into_iter::<Value>();
    let mut answer = stream.next().unwrap().unwrap();
    if answer["error"].is_object() {
        return Err(CallError {
            code: answer["error"]["code"].to_string(),
            message: answer["error"]["message"].as_str().unwrap().to_owned(),
            stacktrace: None,
        });
    }
    Ok(answer["result"].take())
}
