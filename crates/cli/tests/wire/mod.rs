//! MCP servers for tests: the real command over stdio and raw HTTP, and a scripted HTTP server.
#![allow(dead_code, reason = "each test binary uses only some helpers")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_repertoire");
const WAIT: Duration = Duration::from_secs(30);

/// Adds the `_meta` that revision 2026-07-28 requires in every request.
pub(crate) fn with_modern_meta(mut params: Value) -> Value {
    let can = params.pointer("/_meta/io.modelcontextprotocol~1clientCapabilities");
    let can = can.cloned().unwrap_or_else(|| json!({}));
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": can,
    });
    params
}

/// The real command as an MCP server over stdio.
pub(crate) struct StdioServer {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    errors: Arc<Mutex<Vec<u8>>>,
    next: u64,
    era: ProtocolEra,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProtocolEra {
    Legacy,
    Modern,
}

impl StdioServer {
    pub(crate) fn start(home: &Path, args: &[&str], era: ProtocolEra) -> Self {
        let mut child = Command::new(BIN)
            .arg("mcp")
            .args(args)
            .env("REPERTOIRE_HOME", home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().unwrap();
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n') {
                let Ok(line) = line else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let errors = collect_output(child.stderr.take().unwrap());
        let mut server = Self {
            child,
            stdin,
            lines,
            errors,
            next: 0,
            era,
        };
        if era == ProtocolEra::Legacy {
            let hello = server.send_request(
                "initialize",
                json!({
                    "protocolVersion": "2025-11-25", "capabilities": {"sampling": {}},
                    "clientInfo": {"name": "test", "version": "1"},
                }),
            );
            assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
            server.send_line(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        }
        server
    }

    pub(crate) fn send_line(&mut self, line: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line).unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    /// Returns the next message, or `None` if none arrives in time.
    pub(crate) fn read_message(&self, patience: Duration) -> Option<Value> {
        let line = self.lines.recv_timeout(patience).ok()?;
        Some(serde_json::from_slice(&line).unwrap())
    }

    /// Sends a request and returns its response; other messages are skipped.
    pub(crate) fn send_request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let params = match self.era {
            ProtocolEra::Legacy => params,
            ProtocolEra::Modern => with_modern_meta(params),
        };
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send_line(message.to_string().as_bytes());
        let start = Instant::now();
        while start.elapsed() < WAIT {
            let line = self
                .read_message(WAIT)
                .unwrap_or_else(|| panic!("no response: {}", self.stderr_text()));
            // The server numbers its own requests, so an id alone does not identify a response.
            if line["id"] == id && line.get("method").is_none() {
                return line;
            }
        }
        panic!("no response to {method}");
    }

    /// Returns the stderr collected so far.
    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.errors.lock().unwrap()).into_owned()
    }

    pub(crate) fn memory_kib(&self) -> u64 {
        process_memory_kib(self.child.id())
    }
}

impl Drop for StdioServer {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the resident memory of a process in KiB.
pub(crate) fn process_memory_kib(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

fn collect_output(mut from: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keep = heard.clone();
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut chunk) {
            keep.lock().unwrap().extend_from_slice(&chunk[..read]);
        }
    });
    heard
}

/// The real command as an MCP server over HTTP.
pub(crate) struct HttpServer {
    pub(crate) child: Child,
    pub(crate) port: u16,
    hub: Option<String>,
    errors: Arc<Mutex<Vec<u8>>>,
}

/// A parsed HTTP response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: String,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the JSON-RPC message of the body or of the last event of a stream.
    pub(crate) fn rpc_message(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        let data = text.lines().rev().find_map(|l| l.strip_prefix("data: {"));
        match data {
            Some(data) => serde_json::from_str(&format!("{{{data}")).unwrap(),
            None => serde_json::from_slice(&self.body)
                .unwrap_or_else(|_| panic!("{} {text}", self.status)),
        }
    }
}

impl HttpServer {
    pub(crate) fn start(home: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(BIN)
            .args(["serve", "--port", "0", "--json"])
            .args(args)
            // A flag of the test wins.
            .env("REPERTOIRE_HUB", "off")
            .env("REPERTOIRE_HOME", home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(home)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = collect_output(child.stderr.take().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let said: Value = serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&errors.lock().unwrap())));
        let url = said["url"].as_str().unwrap();
        let port = url.rsplit(':').next().unwrap().split('/').next().unwrap();
        Self {
            port: port.parse().unwrap(),
            hub: said["hub"].as_str().map(str::to_owned),
            child,
            errors,
        }
    }

    /// Like [`start`](Self::start), with a hub; returns its port, too.
    pub(crate) fn start_with_hub(home: &Path, args: &[&str]) -> (Self, u16) {
        let server = Self::start(home, &[&["--hub", "0"], args].concat());
        let hub = server.hub.as_deref().unwrap();
        let port = hub.rsplit(':').next().unwrap().parse().unwrap();
        (server, port)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends the bytes unchanged and reads the response.
    pub(crate) fn send_raw(&self, request: &[u8]) -> HttpResponse {
        let mut stream = self.connect();
        // A server that refuses a body may respond before it has read it.
        let _ = stream.write_all(request);
        read_response(&mut BufReader::new(stream))
    }

    /// Posts a message with these headers in addition to the usual ones.
    pub(crate) fn post_message(&self, headers: &str, body: &[u8]) -> HttpResponse {
        let mut request = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\
             Connection: close\r\n{headers}\r\n",
            self.port,
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.send_raw(&request)
    }

    /// Sends a request in revision 2026-07-28.
    pub(crate) fn send_request(&self, method: &str, params: Value) -> HttpResponse {
        self.send_request_with("", method, params)
    }

    pub(crate) fn send_request_with(
        &self,
        more: &str,
        method: &str,
        params: Value,
    ) -> HttpResponse {
        let name = match method {
            "resources/read" => params["uri"].as_str(),
            "prompts/get" | "tools/call" => params["name"].as_str(),
            _ => None,
        };
        let name = name.map_or(String::new(), |name| format!("Mcp-Name: {name}\r\n"));
        let headers =
            format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}{more}");
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": with_modern_meta(params)});
        self.post_message(&headers, body.to_string().as_bytes())
    }

    /// Subscribes to changes of the resources with request 9; the events come on the stream.
    pub(crate) fn listen(&self, more: &str) -> TcpStream {
        let params = with_modern_meta(json!({"notifications": {"resourcesListChanged": true}}));
        let listen = json!({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen",
            "params": params})
        .to_string();
        let mut stream = self.connect();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: subscriptions/listen\r\n{more}Content-Length: {}\r\n\r\n{listen}",
            listen.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    /// Initializes a session in revision 2025-11-25 and returns its headers.
    pub(crate) fn session(&self) -> String {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }});
        let answer = self.post_message("", hello.to_string().as_bytes());
        let session = answer.headers.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("mcp-session-id")
                .then(|| value.trim().to_owned())
        });
        let headers = format!(
            "Mcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n",
            session.unwrap()
        );
        let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(self.post_message(&headers, ready).status, 202);
        headers
    }

    pub(crate) fn send_legacy_request(&self, session: &str, method: &str, params: &Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        self.post_message(session, body.to_string().as_bytes())
            .rpc_message()
    }

    /// Returns the stderr collected so far.
    pub(crate) fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.errors.lock().unwrap()).into_owned()
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> HttpResponse {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n");
        self.send_raw(request.as_bytes())
    }
}

impl HttpServer {
    /// Asks the server to end, as a service manager does, and waits until it has.
    #[cfg(unix)]
    pub(crate) fn end_orderly(mut self) {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status();
        assert!(sent.unwrap().success());
        let ended = self.child.wait().unwrap();
        assert!(ended.code().is_some(), "{ended}");
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn read_response(stream: &mut impl BufRead) -> HttpResponse {
    let mut headers = String::new();
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
            break;
        }
        headers.push_str(&line);
    }
    let status = headers.split(' ').nth(1).and_then(|s| s.parse().ok());
    let lower = headers.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|l| l.strip_prefix("content-length:"))
        .and_then(|l| l.trim().parse::<usize>().ok());
    let mut body = Vec::new();
    if let Some(length) = length {
        body.resize(length, 0);
        stream.read_exact(&mut body).unwrap();
    } else if lower.contains("chunked") {
        loop {
            line.clear();
            if stream.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            let start = body.len();
            body.resize(start + size, 0);
            stream.read_exact(&mut body[start..]).unwrap();
            line.clear();
            let _ = stream.read_line(&mut line);
            if size == 0 {
                break;
            }
        }
    }
    HttpResponse {
        status: status.unwrap_or(0),
        headers,
        body,
    }
}

/// Maps request headers and message to the status, headers and body of the response.
pub(crate) type ResponseScript = dyn Fn(&str, &Value) -> (u16, String, Vec<u8>) + Send + Sync;

/// An HTTP server whose responses are computed by the test.
pub(crate) struct ScriptedServer {
    pub(crate) url: String,
    /// The headers and the message of every request.
    pub(crate) requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl ScriptedServer {
    pub(crate) fn start(script: Arc<ResponseScript>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let log = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (script, log) = (script.clone(), log.clone());
                std::thread::spawn(move || serve_connection(stream, &*script, &log));
            }
        });
        Self { url, requests }
    }

    pub(crate) fn request_count(&self, method: &str) -> usize {
        let seen = self.requests.lock().unwrap();
        seen.iter().filter(|(_, m)| m["method"] == method).count()
    }
}

fn serve_connection(stream: TcpStream, script: &ResponseScript, log: &Mutex<Vec<(String, Value)>>) {
    let mut out = stream.try_clone().unwrap();
    let mut stream = BufReader::new(stream);
    loop {
        let request = read_response(&mut stream);
        if request.headers.is_empty() {
            return;
        }
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        log.lock()
            .unwrap()
            .push((request.headers.clone(), message.clone()));
        let (status, headers, body) = script(&request.headers, &message);
        let mut answer = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        )
        .into_bytes();
        answer.extend(body);
        // One write: two writes would wait for the acknowledgement of the first.
        if out.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Builds a successful JSON response to a message.
pub(crate) fn json_response(message: &Value, result: &Value) -> (u16, String, Vec<u8>) {
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    let headers = "Content-Type: application/json\r\n".to_owned();
    (200, headers, body.to_string().into_bytes())
}
