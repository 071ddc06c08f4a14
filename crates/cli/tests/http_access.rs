//! HTTP for a team: authentication, requests refused before their body is read, and a shutdown
//! that finishes every accepted request.
#![allow(
    clippy::match_bool,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

mod common;
mod wire;

use std::{
    fs,
    io::{BufReader, Read, Write},
    process::Command,
    time::Duration,
};

use common::{TestWorkspace, wait_for};
use serde_json::{Value, json};
use wire::{HttpServer, read_response};

fn workspace_with_skill() -> (TestWorkspace, String) {
    let place = TestWorkspace::new();
    place.write_skill("skills/one", "# One\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("skills").to_str().unwrap().to_owned();
    (place, folder)
}

#[test]
fn t28_foreign_hosts_and_origins_are_refused_before_the_body_is_read() {
    let (place, folder) = workspace_with_skill();
    let http = HttpServer::start(
        &place.home_dir(),
        &[
            &folder,
            "--host",
            "skills.test",
            "--origin",
            "https://app.test",
        ],
    );
    let port = http.port;
    // The body is announced and never sent: a server that waits for it never responds.
    let head = |headers: &str| {
        let request = format!(
            "POST /mcp HTTP/1.1\r\n{headers}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nContent-Length: 1000\r\n\r\n"
        );
        let mut stream = http.connect();
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut first = [0; 12];
        match stream.read(&mut first) {
            Ok(12) => String::from_utf8_lossy(&first[9..]).into_owned(),
            _ => "waits".to_owned(),
        }
    };
    for headers in [
        "Host: evil.test\r\n".to_owned(),
        format!("Host: evil.test:{port}\r\n"),
        format!("Host: 127.0.0.1.evil.test:{port}\r\n"),
        format!("Host: localhost@evil.test:{port}\r\n"),
        "Host: 127.0.0.1\r\nHost: evil.test\r\n".to_owned(),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: http://evil.test\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: null\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:1\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: https://app.test.evil.test\r\n"),
        format!(
            "Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nOrigin: http://x.test\r\n"
        ),
    ] {
        assert_eq!(head(&headers), "403", "{headers}");
    }
    assert!(["400", "403"].contains(&head("").as_str()));
    for headers in [
        format!("Host: 127.0.0.1:{port}\r\n"),
        format!("Host: LOCALHOST:{port}\r\n"),
        format!("Host: [::1]:{port}\r\n"),
        "Host: skills.test\r\n".to_owned(),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nOrigin: https://app.test\r\n"),
    ] {
        assert_eq!(head(&headers), "waits", "{headers}");
    }
    for path in ["/healthz", "/metrics"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: evil.test\r\n\r\n");
        assert_eq!(http.send_raw(request.as_bytes()).status, 403, "{path}");
    }
}

#[test]
fn tokens_are_required_and_stop_working_once_revoked() {
    let (place, folder) = workspace_with_skill();
    let made = place.run(&["token", "create", "laptop"]);
    let token = made.stdout().trim().to_owned();
    assert!(token.starts_with("rpt_") && token.len() > 40);
    assert_eq!(place.run(&["token", "create", "laptop"]).exit_code(), 4);
    assert_eq!(place.run(&["token", "create", "bad name"]).exit_code(), 2);
    // Stored only as a hash.
    let store = fs::read(place.home_dir().join("agents.db")).unwrap();
    let wal = fs::read(place.home_dir().join("agents.db-wal")).unwrap_or_default();
    for bytes in [store, wal] {
        assert!(!bytes.windows(token.len()).any(|w| w == token.as_bytes()));
    }
    let log = place.work_dir().join("access.log");
    let http = HttpServer::start(
        &place.home_dir(),
        &[&folder, "-vv", "--access-log", log.to_str().unwrap()],
    );
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let ask = |headers: &str| {
        http.send_request_with(headers, "skills/list", json!({}))
            .status
    };
    assert_eq!(ask(&bearer), 200);
    assert_eq!(ask(""), 401);
    assert_eq!(
        ask("Authorization: Bearer rpt_wrong-secret-of-a-client\r\n"),
        401
    );
    assert_eq!(ask(&format!("Authorization: Basic {token}\r\n")), 401);
    assert_eq!(http.get("/metrics", "").status, 401);
    assert_eq!(http.get("/healthz", "").status, 200);
    let metrics = http.get("/metrics", &bearer);
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(
        text.contains("repertoire_mcp_requests_total{method=\"skills/list\",outcome=\"ok\"} 1"),
        "{text}"
    );
    assert!(text.contains("repertoire_skills 1"), "{text}");

    place.run_ok(&["token", "revoke", "laptop"]);
    wait_for("the revocation", || ask(&bearer) == 401);
    // After the last token is revoked, the server still requires one.
    assert_eq!(ask(""), 401);

    // T27: no log contains the bytes that were sent as a token.
    wait_for("the log", || {
        fs::read_to_string(&log).unwrap().lines().count() >= 8
    });
    let written = fs::read_to_string(&log).unwrap() + &http.stderr_text();
    assert!(
        written.contains("\"token\":\"laptop\"") && written.contains("\"rpc\":\"skills/list\"")
    );
    for secret in [token.as_str(), "wrong-secret"] {
        assert!(!written.contains(secret), "{written}");
    }
    for line in fs::read_to_string(&log).unwrap().lines() {
        assert!(serde_json::from_str::<Value>(line).unwrap()["status"].is_u64());
    }
}

#[test]
fn a_public_address_requires_a_token() {
    let (place, folder) = workspace_with_skill();
    let refused = place.run(&["serve", &folder, "--bind", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.exit_code(), 2);
    assert!(
        refused.stderr().contains("repertoire token create"),
        "{}",
        refused.stderr()
    );
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    let taken = place.run(&["serve", &folder, "--port", &http.port.to_string()]);
    assert_eq!(taken.exit_code(), 2);
    assert!(taken.stderr().contains("is in use"), "{}", taken.stderr());
    place.run_ok(&["token", "create", "short", "--expires", "1d"]);
    let listed = place.run_json(&["token", "list", "--json"]);
    assert!(listed["tokens"][0]["expires_at"].is_string());
    assert!(listed["tokens"][0].get("hash").is_none());
}

#[test]
fn accepted_requests_finish_before_the_server_stops() {
    let (place, folder) = workspace_with_skill();
    let mut http = HttpServer::start(&place.home_dir(), &[&folder]);
    // A request whose second half is not sent yet.
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "skills/list",
        "params": wire::with_modern_meta(json!({}))})
    .to_string();
    let mut half = http.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: skills/list\r\nContent-Length: {}\r\n\r\n{}",
        body.len(),
        &body[..20]
    );
    half.write_all(head.as_bytes()).unwrap();
    // And a subscription without an end.
    let stream = http.listen("");
    let mut events = BufReader::new(stream);
    let mut seen = String::new();
    while !seen.contains("subscriptions/acknowledged") {
        let mut chunk = [0; 512];
        let read = events.read(&mut chunk).unwrap();
        assert!(read > 0, "{seen}");
        seen += &String::from_utf8_lossy(&chunk[..read]);
    }
    let metrics = || String::from_utf8_lossy(&http.get("/metrics", "").body).into_owned();
    wait_for("both requests", || {
        metrics().contains("http_requests_in_flight 2")
    });

    let id = http.child.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status().unwrap();
    wait_for("the shutdown", || {
        http.stderr_text().contains("finishing what was accepted")
    });
    half.write_all(&body.as_bytes()[20..]).unwrap();
    let answer = read_response(&mut BufReader::new(half));
    assert_eq!(answer.status, 200);
    assert!(answer.rpc_message()["result"]["skills"].is_array());
    // The subscription receives its final response.
    events.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("\"id\":9,\"result\""), "{seen}");
    let status = http.child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{}", http.stderr_text());
}

#[test]
fn a_session_belongs_to_its_token() {
    let (place, folder) = workspace_with_skill();
    let token = |name: &str| place.run_ok(&["token", "create", name]).trim().to_owned();
    let (a, b) = (token("a"), token("b"));
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
    .to_string();
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let answer = http.post_message(&bearer(&a), hello.as_bytes());
    let session = answer
        .headers
        .lines()
        .find_map(|l| {
            l.to_ascii_lowercase()
                .strip_prefix("mcp-session-id:")
                .map(str::to_owned)
        })
        .unwrap();
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let ask = |token: &str| {
        let headers = format!("{}Mcp-Session-Id:{session}\r\n", bearer(token));
        http.post_message(&headers, list).status
    };
    assert_eq!(ask(&b), 404);
    assert_eq!(ask(&a), 200);
}

#[test]
fn an_allowed_origin_passes_the_cors_preflight() {
    let (place, folder) = workspace_with_skill();
    let http = HttpServer::start(
        &place.home_dir(),
        &[&folder, "--origin", "https://app.test"],
    );
    let ask = |origin: &str| {
        let request = format!(
            "OPTIONS /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
        );
        http.send_raw(request.as_bytes())
    };
    let allowed = ask("https://app.test");
    assert_eq!(allowed.status, 204);
    let headers = allowed.headers.to_ascii_lowercase();
    assert!(
        headers.contains("access-control-allow-origin: https://app.test"),
        "{headers}"
    );
    assert!(headers.contains("mcp-protocol-version"), "{headers}");
    assert_eq!(ask("https://evil.test").status, 403);
    for wrong in [
        ["--origin", "garbage"],
        ["--host", "http://x/"],
        ["--prompts", "all,none"],
    ] {
        assert_eq!(
            place
                .run(&["serve", &folder, wrong[0], wrong[1]])
                .exit_code(),
            2,
            "{wrong:?}"
        );
    }
}

#[test]
fn a_browser_gets_a_page_and_a_program_does_not() {
    let (place, folder) = workspace_with_skill();
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    wait_for("the catalogue", || http.get("/healthz", "").status == 200);
    for path in ["/", "/mcp"] {
        let page = http.get(path, "Accept: text/html,application/xhtml+xml\r\n");
        let text = String::from_utf8_lossy(&page.body).into_owned();
        assert_eq!(page.status, 200, "{text}");
        assert!(text.starts_with("<!doctype html>"), "{text}");
        assert!(text.contains("1 skill<"), "{text}");
        assert!(text.contains("repertoire connect claude-code"), "{text}");
    }
    let stream = http.get("/mcp", "Accept: text/event-stream\r\n");
    assert_ne!(stream.status, 200);
    let missing = http.get("/missing", "Accept: text/html\r\n");
    assert_eq!(missing.status, 404);
}

#[test]
fn a_page_for_strangers_does_not_count_skills() {
    let (place, folder) = workspace_with_skill();
    place.run_ok(&["token", "create", "team"]);
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    wait_for("the catalogue", || http.get("/healthz", "").status == 200);
    let page = http.get("/", "Accept: text/html\r\n");
    let text = String::from_utf8_lossy(&page.body).into_owned();
    assert_eq!(page.status, 200);
    assert!(!text.contains("1 skill"), "{text}");
}

#[test]
fn a_second_server_takes_a_free_port_and_names_the_first() {
    let (place, folder) = workspace_with_skill();
    // Whether the port was free or not, it is in use now.
    let taken = std::net::TcpListener::bind(("127.0.0.1", 8321));
    let mut child = place
        .command(&["serve", &folder, "--json", "--hub", "off"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    let url = said["url"].as_str().unwrap().to_owned();
    assert!(!url.contains(":8321/"), "{url}");
    child.kill().unwrap();
    let mut errors = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    child.wait().unwrap();
    assert!(errors.contains("port 8321 is in use"), "{errors}");
    assert!(errors.contains(&format!("listening on {url}")), "{errors}");
    if taken.is_ok() {
        let here = format!("by process {}", std::process::id());
        assert!(errors.contains(&here), "{errors}");
    }
    // A port that was named is not exchanged.
    let refused = place.run(&["serve", &folder, "--port", "8321", "--hub", "off"]);
    assert_ne!(refused.exit_code(), 0);
    assert!(refused.stderr().contains("8321"), "{}", refused.stderr());
}
