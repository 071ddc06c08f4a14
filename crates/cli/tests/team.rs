//! HTTP that can face a team: who may ask, what is refused before it is read, and that nothing
//! accepted is lost.
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

use common::{Place, wait_for};
use serde_json::{Value, json};
use wire::{Http, read_answer};

fn served() -> (Place, String) {
    let place = Place::new();
    place.skill("skills/one", "# One\n");
    fs::create_dir_all(place.home()).unwrap();
    let folder = place.work().join("skills").to_str().unwrap().to_owned();
    (place, folder)
}

#[test]
fn t28_foreign_hosts_and_origins_are_refused_before_the_body_is_read() {
    let (place, folder) = served();
    let http = Http::start(
        &place.home(),
        &[
            &folder,
            "--host",
            "skills.test",
            "--origin",
            "https://app.test",
        ],
    );
    let port = http.port;
    // The body is announced and never sent: whoever waits for it waits for ever.
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
        assert_eq!(http.raw(request.as_bytes()).status, 403, "{path}");
    }
}

#[test]
fn tokens_decide_who_may_ask_and_are_worthless_once_revoked() {
    let (place, folder) = served();
    let made = place.run(&["token", "create", "laptop"]);
    let token = made.out().trim().to_owned();
    assert!(token.starts_with("rpt_") && token.len() > 40);
    assert_eq!(place.run(&["token", "create", "laptop"]).code(), 4);
    assert_eq!(place.run(&["token", "create", "bad name"]).code(), 2);
    // Kept as a hash only.
    let store = fs::read(place.home().join("agents.db")).unwrap();
    let wal = fs::read(place.home().join("agents.db-wal")).unwrap_or_default();
    for bytes in [store, wal] {
        assert!(!bytes.windows(token.len()).any(|w| w == token.as_bytes()));
    }
    let log = place.work().join("access.log");
    let http = Http::start(
        &place.home(),
        &[&folder, "-vv", "--access-log", log.to_str().unwrap()],
    );
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let ask = |headers: &str| http.ask_with(headers, "skills/list", json!({})).status;
    assert_eq!(ask(&bearer), 200);
    assert_eq!(ask(""), 401);
    assert_eq!(
        ask("Authorization: Bearer rpt_wrong-secret-of-somebody\r\n"),
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

    place.ok(&["token", "revoke", "laptop"]);
    wait_for("the revocation", || ask(&bearer) == 401);
    // The last token is gone, and the server does not open up again.
    assert_eq!(ask(""), 401);

    // T27: whatever was sent as a token is in no log.
    wait_for("the log", || {
        fs::read_to_string(&log).unwrap().lines().count() >= 8
    });
    let written = fs::read_to_string(&log).unwrap() + &http.said();
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
fn an_address_that_others_can_reach_needs_a_token() {
    let (place, folder) = served();
    let refused = place.run(&["serve", &folder, "--bind", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.err().contains("repertoire token create"),
        "{}",
        refused.err()
    );
    let http = Http::start(&place.home(), &[&folder]);
    let taken = place.run(&["serve", &folder, "--port", &http.port.to_string()]);
    assert_eq!(taken.code(), 2);
    assert!(taken.err().contains("is in use"), "{}", taken.err());
    place.ok(&["token", "create", "short", "--expires", "1d"]);
    let listed = place.json(&["token", "list", "--json"]);
    assert!(listed["tokens"][0]["expires_at"].is_string());
    assert!(listed["tokens"][0].get("hash").is_none());
}

#[test]
fn what_was_accepted_is_finished_before_the_server_ends() {
    let (place, folder) = served();
    let mut http = Http::start(&place.home(), &[&folder]);
    // A request whose second half is still on its way.
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "skills/list",
        "params": wire::modern(json!({}))})
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
    // And a subscription that would go on for ever.
    let listen = json!({"jsonrpc": "2.0", "id": 9, "method": "subscriptions/listen",
        "params": wire::modern(json!({"notifications": {"resourcesListChanged": true}}))})
    .to_string();
    let mut stream = http.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\nContent-Length: {}\r\n\r\n{listen}",
        listen.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
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
        http.said().contains("finishing what was accepted")
    });
    half.write_all(&body.as_bytes()[20..]).unwrap();
    let answer = read_answer(&mut BufReader::new(half));
    assert_eq!(answer.status, 200);
    assert!(answer.message()["result"]["skills"].is_array());
    // The subscription is told that it is over.
    events.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("\"id\":9,\"result\""), "{seen}");
    let status = http.child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{}", http.said());
}

#[test]
fn a_session_belongs_to_its_token() {
    let (place, folder) = served();
    let token = |name: &str| place.ok(&["token", "create", name]).trim().to_owned();
    let (a, b) = (token("a"), token("b"));
    let http = Http::start(&place.home(), &[&folder]);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }})
    .to_string();
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let answer = http.post(&bearer(&a), hello.as_bytes());
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
        http.post(&headers, list).status
    };
    assert_eq!(ask(&b), 404);
    assert_eq!(ask(&a), 200);
}

#[test]
fn a_page_that_may_ask_can_ask() {
    let (place, folder) = served();
    let http = Http::start(&place.home(), &[&folder, "--origin", "https://app.test"]);
    let ask = |origin: &str| {
        let request = format!(
            "OPTIONS /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
        );
        http.raw(request.as_bytes())
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
            place.run(&["serve", &folder, wrong[0], wrong[1]]).code(),
            2,
            "{wrong:?}"
        );
    }
}
