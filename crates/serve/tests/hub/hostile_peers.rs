//! Hostile peers, and many peers at once.

use std::time::{Duration, Instant};

use futures::{FutureExt, SinkExt, StreamExt};
use repertoire_core::Digest;
use repertoire_registry::{StoreScope, store::StoredToken};
use repertoire_serve::{
    http::{Auth, OwnUser},
    iii::{HubOptions, bus_client::BusClient},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

use crate::test_hub::{RawPeer, WAIT, invoke_message, start, start_hub_with};

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_close_the_connection_with_a_reason() {
    let options = HubOptions {
        max_message: 64 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let nest = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    let deep = format!("{{\"type\":\"ping\",\"data\":{}}}", nest(5000));
    for (frame, code, reason) in [
        (Message::text("{bad"), 1007, "not a message"),
        (Message::text("[]"), 1007, "not a message"),
        (Message::text("{\"no\":\"type\"}"), 1007, "type"),
        (
            Message::text("{\"type\":\"registerfunction\"}"),
            1007,
            "`id` is missing",
        ),
        (
            Message::text("{\"type\":\"registerfunction\",\"id\":\"\"}"),
            1007,
            "`id` is empty",
        ),
        (Message::text(deep), 1007, "nested deeper than 128"),
        (
            Message::text(
                "{\"type\":\"ping\",\"data\":{\"\\u0024serde_json::private::RawValue\":\"[]\"}}",
            ),
            1007,
            "reserved",
        ),
        (Message::binary(vec![0xff, 0xfe]), 1007, "UTF-8"),
        (Message::text("x".repeat(64 * 1024 + 1)), 1009, "65536"),
    ] {
        let mut raw = RawPeer::connect(&place).await;
        raw.socket.send(frame).await.unwrap();
        let (found, words) = raw.wait_closed().await;
        assert_eq!(found, code, "{words}");
        assert!(words.contains(reason), "{words}");
    }
    // The size limit also applies to a message that is split into frames.
    let mut raw = RawPeer::connect(&place).await;
    for n in 0..6 {
        let kind = if n == 0 { Data::Text } else { Data::Continue };
        let piece = Frame::message(vec![b' '; 16 * 1024], OpCode::Data(kind), false);
        if raw.socket.send(Message::Frame(piece)).await.is_err() {
            break;
        }
    }
    assert_eq!(raw.wait_closed().await.0, 1009);
    // Unknown message types are ignored, and telemetry is not parsed.
    let mut raw = RawPeer::connect(&place).await;
    raw.send(json!({"type": "fromthefuture", "x": 1})).await;
    raw.send(json!({"type": "registerservice", "id": "x"}))
        .await;
    for bytes in [&b"OTLP\xff{"[..], b"{\"type\":\"ping\"}"] {
        raw.socket
            .send(Message::binary(bytes.to_vec()))
            .await
            .unwrap();
    }
    assert_eq!(raw.next_message().await, json!({"type": "pong"}));
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_frames_and_requests_time_out() {
    let options = HubOptions {
        idle_timeout: Duration::from_millis(600),
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut stream = RawPeer::connect(&place).await.stream();
    // The first bytes of a frame that announces more.
    let half = [0x81, 0xfe, 0x10, 0x00, 1, 2, 3, 4, 5];
    stream.write_all(&half).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(WAIT, stream.read_to_end(&mut rest)).await;
    ended.expect("the hub kept waiting").unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("nothing received"));
    // An incomplete HTTP request times out too.
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let half = b"GET / HTTP/1.1\r\nHost: localhost\r\n";
    stream.write_all(half).await.unwrap();
    let patience = Duration::from_secs(20);
    let ended = tokio::time::timeout(patience, stream.read_to_end(&mut rest)).await;
    ended.expect("the hub kept waiting").unwrap();
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_that_does_not_read_is_dropped() {
    let options = HubOptions {
        max_message: 1024 * 1024,
        write_timeout: Duration::from_millis(500),
        ..HubOptions::default()
    };
    let place = start(options).await;
    let client = place.client().await;
    let mut deaf = RawPeer::connect(&place).await;
    deaf.register_function("deaf::hear").await;
    deaf.register_trigger("t", "state", "deaf::hear").await;
    deaf.wait_round_trip().await;
    assert_eq!(place.hub.worker_count(), 2);
    let value = "x".repeat(200_000);
    let large = json!({"scope": "s", "key": "k", "value": value}).to_string();
    let start = Instant::now();
    while place.hub.worker_count() > 1 {
        // Other clients do not wait for it.
        client.call_json("state::set", &large, WAIT).await.unwrap();
        assert!(
            start.elapsed() < Duration::from_mins(1),
            "the hub kept waiting"
        );
    }
    place.assert_still_serves().await;
    drop(deaf);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_are_split_into_frames() {
    let place = start(HubOptions::default()).await;
    let client = place.client().await;
    let value = "x".repeat(5_000_000);
    let set = json!({"scope": "s", "key": "k", "value": value}).to_string();
    client.call_json("state::set", &set, WAIT).await.unwrap();
    let mut stream = RawPeer::connect(&place).await.stream();
    let asked = invoke_message("c", "state::get", json!({"scope": "s", "key": "k"})).to_string();
    let mut frame = vec![0x81, 0xfe];
    frame.extend(u16::try_from(asked.len()).unwrap().to_be_bytes());
    // A mask of zeros leaves every byte unchanged.
    frame.extend([0; 4]);
    frame.extend(asked.bytes());
    stream.write_all(&frame).await.unwrap();
    let (mut bytes, mut frames) = (0, 0);
    loop {
        let mut head = [0; 2];
        stream.read_exact(&mut head).await.unwrap();
        let length = match head[1] {
            126 => usize::from(stream.read_u16().await.unwrap()),
            127 => usize::try_from(stream.read_u64().await.unwrap()).unwrap(),
            short => usize::from(short),
        };
        assert!(length <= 1024 * 1024, "{length}");
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        bytes += length;
        frames += 1;
        if head[0] & 0x80 != 0 {
            break;
        }
    }
    assert!(bytes > 5_000_000 && frames >= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn t28_foreign_origins_and_hosts_are_refused_before_the_upgrade() {
    let place = start(HubOptions::default()).await;
    let port = place.address.port();
    let ask = async |headers: &str| {
        let mut stream = TcpStream::connect(place.address).await.unwrap();
        let request = format!(
            "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: \
             13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 1024];
        let read = stream.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..read]).into_owned()
    };
    let own = format!("Host: localhost:{port}\r\n");
    for (headers, status) in [
        (format!("Host: 127.0.0.1:{port}\r\n"), "101"),
        (own.clone(), "101"),
        (format!("{own}Origin: http://localhost:{port}\r\n"), "101"),
        (format!("{own}Origin: https://evil.example\r\n"), "403"),
        (format!("{own}Origin: null\r\n"), "403"),
        (format!("Host: evil.example:{port}\r\n"), "403"),
        (format!("{own}Host: evil.example\r\n"), "403"),
        (String::new(), "403"),
    ] {
        let answer = ask(&headers).await;
        let start = format!("HTTP/1.1 {status}");
        assert!(answer.starts_with(&start), "{headers}: {answer}");
    }
    let mut stream = TcpStream::connect(place.address).await.unwrap();
    let plain = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(plain).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.contains("426") && answer.contains("WebSocket"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t40_a_token_does_on_the_bus_only_what_it_allows() {
    let place = start_hub_with(HubOptions::default(), |registry| {
        let store = registry.store(StoreScope::Account).unwrap();
        for (secret, permissions, prefixes) in [
            ("may-read", "read", ""),
            ("may-run", "run", ""),
            ("may-write", "read,write", ""),
            ("some-skills", "admin", "acme/**"),
        ] {
            let token = StoredToken {
                name: secret.to_owned(),
                hash: Digest::hash_bytes(secret.as_bytes()),
                permissions: permissions.parse().unwrap(),
                prefixes: prefixes.split(' ').filter_map(|p| p.parse().ok()).collect(),
                tools: Vec::new(),
                lost_run: false,
                created_at: "2026-01-01T00:00:00.000Z".to_owned(),
                expires_at: None,
            };
            store.add_token(&token).unwrap();
        }
        Auth::from_store(store.clone(), OwnUser::NeedsToken)
    })
    .await;
    for (token, status) in [
        (None, "401"),
        (Some("wrong"), "401"),
        (Some("some-skills"), "403"),
    ] {
        let refused = BusClient::connect(&place.url(), token).await.unwrap_err();
        assert!(refused.to_string().contains(status), "{refused}");
    }
    let register = r##"{"id": "demo", "skill": "# Demo"}"##;
    for (token, list, write, state) in [
        ("may-read", true, false, false),
        ("may-run", false, false, false),
        ("may-write", true, true, true),
    ] {
        let client = BusClient::connect(&place.url(), Some(token)).await.unwrap();
        for (function, payload, allowed) in [
            ("skills::list", "{}", list),
            ("engine::functions::list", "{}", list),
            ("skills::register", register, write),
            ("state::get", r#"{"scope": "s", "key": "k"}"#, state),
            // Calling functions through content needs `run`.
            (
                "skills::resources-read",
                r#"{"uri": "iii://fn/a/b"}"#,
                false,
            ),
            (
                "skill::fetch",
                r#"{"uris": ["iii://skills", "iii://fn/a/b"]}"#,
                false,
            ),
            ("skills::resources-read", r#"{"uri": "iii://skills"}"#, list),
        ] {
            let answer = client.call_json(function, payload, WAIT).await;
            match answer {
                Ok(_) => assert!(allowed, "{token} called {function}"),
                Err(error) => {
                    assert!(!allowed, "{token}: {function}: {error}");
                    assert_eq!(error.code, "forbidden", "{function}: {error}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hub_accepts_its_own_user_without_a_token() {
    let place = start_hub_with(HubOptions::default(), |registry| {
        let store = registry.store(StoreScope::Account).unwrap();
        Auth::from_store(store.clone(), OwnUser::Recognised)
    })
    .await;
    let client = BusClient::connect(&place.url(), None).await.unwrap();
    let listed = client.call_json("skills::list", "{}", WAIT).await;
    listed.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_what_one_connection_registers_has_a_bound_in_bytes() {
    let place = start(HubOptions::default()).await;
    let mut peer = RawPeer::connect(&place).await;
    let subscribe = |n: usize, bytes: usize| {
        json!({
            "type": "registertrigger", "id": format!("t{n}"), "trigger_type": "skills::on-change",
            "function_id": "mine::hear", "config": {}, "metadata": "x".repeat(bytes),
        })
    };
    // One that is too long by itself.
    peer.send(subscribe(0, 30 * 1024 * 1024)).await;
    let refused = peer.next_message().await;
    assert_eq!(refused["error"]["code"], "invalid_config", "{refused}");
    // Many that are too long together.
    for n in 1..=100 {
        peer.send(subscribe(n, 200 * 1024)).await;
    }
    let refused = peer.next_message().await;
    assert_eq!(refused["type"], "triggerregistrationresult", "{refused}");
    assert_eq!(refused["error"]["code"], "too_large", "{refused}");
    // What was removed makes room, and others are not affected.
    for n in 1..=100 {
        let id = format!("t{n}");
        peer.send(json!({"type": "unregistertrigger", "id": id}))
            .await;
    }
    let mut other = RawPeer::connect(&place).await;
    other.send(subscribe(1000, 200 * 1024)).await;
    other.register_function("other::works").await;
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_trigger_types_of_one_connection_have_a_bound_in_bytes() {
    let place = start(HubOptions::default()).await;
    let mut peer = RawPeer::connect(&place).await;
    for n in 0..4000 {
        let message = json!({
            "type": "registertriggertype", "id": format!("kind::{n}"),
            "description": "x".repeat(8 * 1024),
        });
        peer.send(message).await;
    }
    peer.wait_round_trip().await;
    let listed = place
        .call_function("engine::trigger-types::list", json!({}))
        .await;
    let kinds = listed["trigger_types"].as_array().unwrap();
    let kept = kinds
        .iter()
        .filter(|kind| kind["id"].as_str().unwrap().starts_with("kind::"));
    let kept = kept.count();
    assert!((1..2100).contains(&kept), "{kept} of 4000 are kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_short_calls_with_long_answers_are_bounded() {
    let options = HubOptions {
        max_pending_bytes: 4 * 1024 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let long =
        json!({"scope": "s", "key": "k", "value": {"text": "x".repeat(1024 * 1024), "n": 0}});
    place.call_function("state::set", long).await;
    let mut peer = RawPeer::connect(&place).await;
    let ops = json!([{"type": "increment", "path": "n"}]);
    for n in 0..50 {
        let update = json!({"scope": "s", "key": "k", "ops": ops});
        peer.send(invoke_message(&n.to_string(), "state::update", update))
            .await;
    }
    // Each holds three megabytes, so that one is done at a time, in order, and none is refused.
    for n in 0..50 {
        let answer = peer.next_message().await;
        assert_eq!(
            answer["result"]["new_value"]["n"],
            n + 1,
            "{}",
            answer["error"]
        );
    }
    let many = vec![json!({"type": "increment", "path": "n"}); 1001];
    let update = json!({"scope": "s", "key": "k", "ops": many});
    peer.send(invoke_message("many", "state::update", update))
        .await;
    let refused = peer.next_message().await;
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("at most 1000"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn t42_pings_do_not_keep_an_unfinished_message() {
    let options = HubOptions {
        idle_timeout: Duration::from_millis(300),
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut peer = RawPeer::connect(&place).await;
    let part = Frame::message("{\"type\":", OpCode::Data(Data::Text), false);
    peer.socket.send(Message::Frame(part)).await.unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WAIT, "the connection is still open");
        if peer.socket.send(Message::Ping("".into())).await.is_err() {
            return;
        }
        match tokio::time::timeout(Duration::from_millis(50), peer.socket.next()).await {
            Ok(Some(Ok(Message::Close(Some(frame))))) => {
                assert!(frame.reason.contains("not finished"), "{frame}");
                return;
            }
            Ok(Some(Ok(_))) | Err(_) => {}
            Ok(Some(Err(_)) | None) => panic!("closed without a reason"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t42_unfinished_messages_of_many_connections_are_bounded_together() {
    let options = HubOptions {
        max_incoming_bytes: 8 * 1024 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut flood = Vec::new();
    for _ in 0..8 {
        let mut peer = RawPeer::connect(&place).await;
        let part = "x".repeat(2 * 1024 * 1024);
        let part = Frame::message(part, OpCode::Data(Data::Text), false);
        let _ = peer.socket.send(Message::Frame(part)).await;
        flood.push(peer);
    }
    // The oldest make room, also for a long message of another peer, which is handled.
    let long = json!({"scope": "s", "key": "k", "value": "x".repeat(1024 * 1024)});
    place.call_function("state::set", long).await;
    for peer in flood.drain(..4) {
        let (code, reason) = peer.wait_closed().await;
        assert_eq!(code, 1013, "{reason}");
    }
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t42_telemetry_that_has_arrived_does_not_count() {
    let options = HubOptions {
        max_incoming_bytes: 1024 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let url = format!("{}/otel", place.url());
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
    for _ in 0..400 {
        let telemetry = [b"OTLP".as_slice(), &[0; 16 * 1024]].concat();
        socket.send(Message::binary(telemetry)).await.unwrap();
    }
    // The answer shows that everything before has been read.
    socket.send(Message::Ping("read".into())).await.unwrap();
    loop {
        let heard = tokio::time::timeout(WAIT, socket.next()).await;
        if let Message::Pong(_) = heard.expect("no answer").unwrap().unwrap() {
            break;
        }
    }
    let long = json!({"scope": "s", "key": "k", "value": "x".repeat(512 * 1024)});
    place.call_function("state::set", long).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_workers_do_not_delay_fifty_busy_ones() {
    let place = start(HubOptions::default()).await;
    let mut idle = Vec::new();
    for n in 0..1000 {
        let mut raw = RawPeer::connect(&place).await;
        raw.register_function(&format!("idle::f{n}")).await;
        idle.push(raw);
    }
    let mut worker = RawPeer::connect(&place).await;
    worker.register_function("busy::echo").await;
    worker.wait_round_trip().await;
    let served = tokio::spawn(async move {
        while let Some(Ok(message)) = worker.socket.next().await {
            let Message::Text(text) = message else {
                continue;
            };
            let given: Value = serde_json::from_str(&text).unwrap();
            let (id, n) = (&given["invocation_id"], &given["data"]["n"]);
            let answer = json!({"type": "invocationresult", "invocation_id": id, "result": n});
            if worker
                .socket
                .send(Message::text(answer.to_string()))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    let busy = (0..50).map(|n| {
        let url = place.url();
        tokio::spawn(async move {
            let client = BusClient::connect(&url, None).await.unwrap();
            let mut slowest = Duration::ZERO;
            for round in 0..40 {
                let start = Instant::now();
                let key = format!("k{n}");
                let set = json!({"scope": "busy", "key": key, "value": round}).to_string();
                client.call_json("state::set", &set, WAIT).await.unwrap();
                let got = client.call_json("state::get", &set, WAIT).await.unwrap();
                assert_eq!(got, round.to_string());
                let payload = json!({"n": round}).to_string();
                let echo = client.call_json("busy::echo", &payload, WAIT).await;
                assert_eq!(echo.unwrap(), round.to_string());
                slowest = slowest.max(start.elapsed());
            }
            slowest
        })
    });
    for done in futures::future::join_all(busy).await {
        // No client had to wait for all the others.
        assert!(done.unwrap() < WAIT);
    }
    for raw in &mut idle {
        raw.wait_round_trip().await;
    }
    assert!(place.hub.worker_count() >= 1001);
    served.abort();
}

/// A pseudo-random generator that gives the same numbers in every run.
struct FrameRandom(u64);

impl FrameRandom {
    fn next_below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % below as u64).unwrap()
    }

    fn pick_one<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.next_below(from.len())]
    }
}

const FUZZ_TYPES: [&str; 15] = [
    "registerfunction",
    "unregisterfunction",
    "registertriggertype",
    "unregistertriggertype",
    "registertrigger",
    "unregistertrigger",
    "triggerregistrationresult",
    "invokefunction",
    "invocationresult",
    "registerservice",
    "reattach",
    "ping",
    "pong",
    "unknown",
    "",
];
const FUZZ_KEYS: [&str; 16] = [
    "id",
    "invocation_id",
    "function_id",
    "trigger_type",
    "config",
    "data",
    "result",
    "error",
    "action",
    "metadata",
    "description",
    "request_format",
    "previous_worker_id",
    "reattach_token",
    "namespace",
    "traceparent",
];
const FUZZ_NAMES: [&str; 12] = [
    "a",
    "a::b",
    "state::set",
    "state::get",
    "skills::register",
    "skills::list",
    "engine::workers::register",
    "skills::on-change",
    "state",
    "",
    "\u{0}",
    "é\u{202e}",
];

/// Returns a frame with random fields; some frames are malformed.
fn fuzzed_frame(dice: &mut FrameRandom) -> Message {
    let mut frame = json!({"type": dice.pick_one(&FUZZ_TYPES)});
    // Most frames have the fields their type requires, so that they pass the first check.
    if dice.next_below(4) > 0 {
        for key in ["id", "function_id", "trigger_type"] {
            frame[key] = json!(dice.pick_one(&FUZZ_NAMES[..9]));
        }
    }
    for _ in 0..dice.next_below(5) {
        let value = match dice.next_below(9) {
            0 => Value::Null,
            1 => json!(dice.next_below(1000)),
            2 => json!({"scope": "s", "key": "k", "value": dice.next_below(9)}),
            3 => json!({"type": "void"}),
            4 => json!({"id": "fuzz", "skill": "# x"}),
            5 => json!([]),
            _ => json!(dice.pick_one(&FUZZ_NAMES)),
        };
        frame[dice.pick_one(&FUZZ_KEYS)] = value;
    }
    let mut text = frame.to_string();
    match dice.next_below(200) {
        0 => {
            let end = text
                .char_indices()
                .nth(dice.next_below(8))
                .map_or(0, |c| c.0);
            text.truncate(end);
            Message::text(text)
        }
        1 => {
            let mut bytes = text.into_bytes();
            let at = dice.next_below(bytes.len());
            bytes[at] = u8::try_from(dice.next_below(256)).unwrap();
            Message::binary(bytes)
        }
        _ => Message::text(text),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_still_serves_after_a_hundred_thousand_fuzzed_frames() {
    let options = HubOptions {
        max_message: 256 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut dice = FrameRandom(0x9e37_79b9_7f4a_7c15);
    let mut raw = RawPeer::connect(&place).await;
    let mut closed = 0;
    for n in 0..100_000 {
        let frame = fuzzed_frame(&mut dice);
        // The hub must close for this one, so wait for it: the count does not depend on the load.
        let must_close = serde_json::from_slice::<Value>(&frame.clone().into_data()).is_err();
        let mut alive = raw.socket.feed(frame).await.is_ok();
        if must_close && alive {
            alive = raw.socket.flush().await.is_ok();
            while alive {
                let heard = tokio::time::timeout(WAIT, raw.socket.next()).await;
                let heard = heard.expect("not closed in time");
                alive = matches!(heard, Some(Ok(Message::Text(_) | Message::Ping(_))));
            }
        }
        if alive && n % 16 == 0 {
            alive &= raw.socket.flush().await.is_ok();
            // Answers have to be read, or the hub would drop this peer.
            while let Some(heard) = raw.socket.next().now_or_never() {
                alive &= matches!(heard, Some(Ok(Message::Text(_) | Message::Ping(_))));
                if !alive {
                    break;
                }
            }
        }
        if !alive {
            raw = RawPeer::connect(&place).await;
            closed += 1;
        }
        if n % 10_000 == 0 {
            place.assert_still_serves().await;
        }
    }
    drop(raw);
    assert!(closed > 100, "too few frames were refused: {closed}");
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_unfinished_calls_of_one_connection_are_bounded() {
    let options = HubOptions {
        max_calls: 4,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut raw = RawPeer::connect(&place).await;
    let write = |n: usize| json!({"scope": "s", "key": format!("k{n}"), "value": n});
    for n in 0..200 {
        raw.send(invoke_message(&n.to_string(), "state::set", write(n)))
            .await;
    }
    let (mut done, mut refused) = (0, 0);
    for _ in 0..200 {
        let answer = raw.next_message().await;
        if answer["error"].is_null() {
            done += 1;
        } else {
            assert_eq!(answer["error"]["code"], "too_many_calls", "{answer}");
            refused += 1;
        }
    }
    assert!(done >= 4 && refused > 0, "{done} done, {refused} refused");
    // Afterwards there is room again.
    raw.send(invoke_message("again", "state::set", write(0)))
        .await;
    assert!(raw.next_message().await["error"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_large_writes_wait_for_each_other_and_keep_their_order() {
    let options = HubOptions {
        max_pending_bytes: 256 * 1024,
        ..HubOptions::default()
    };
    let place = start(options).await;
    let mut raw = RawPeer::connect(&place).await;
    let filler = "x".repeat(100 * 1024);
    for n in 0..60 {
        let value = json!({"scope": "s", "key": "k", "value": {"n": n, "filler": filler}});
        raw.send(invoke_message(&n.to_string(), "state::set", value))
            .await;
    }
    for n in 0..60 {
        let answer = raw.next_message().await;
        assert_eq!(
            answer["invocation_id"],
            n.to_string(),
            "answers keep their order"
        );
        assert_eq!(answer["result"]["new_value"]["n"], n);
        let old = &answer["result"]["old_value"]["n"];
        assert_eq!(*old, if n == 0 { Value::Null } else { json!(n - 1) });
    }
}
