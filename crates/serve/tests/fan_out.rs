//! The memory of an event with many followers; alone in its process, because it is measured.
#![cfg(target_os = "linux")]
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

#[path = "hub/test_hub.rs"]
mod test_hub;

use repertoire_serve::iii::HubOptions;
use serde_json::json;
use test_hub::{RawPeer, invoke_message, start};

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_long_answers_that_are_not_read_are_not_built() {
    let place = start(HubOptions::default()).await;
    for key in ["a", "b"] {
        let value = json!({"scope": "long", "key": key, "value": "x".repeat(10 * 1024 * 1024)});
        place.call_function("state::set", value).await;
    }
    let before = resident_kib();
    let mut raw = RawPeer::connect(&place).await;
    for n in 0..60 {
        let data = json!({"scope": "long"});
        raw.send(invoke_message(&n.to_string(), "state::list", data))
            .await;
    }
    // Another client is served meanwhile, and reads its own answer.
    let listed = place
        .call_function("state::list", json!({"scope": "long"}))
        .await;
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 400 * 1024, "{grown} KiB for 60 answers of 20 MiB");
    // A peer that reads gets all of them.
    for _ in 0..60 {
        let answer = raw.next_message().await;
        assert!(answer["error"].is_null());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_a_large_value_with_many_followers_is_kept_once() {
    let place = start(HubOptions::default()).await;
    let mut followers = Vec::new();
    for n in 0..100 {
        let mut raw = RawPeer::connect(&place).await;
        let function = format!("demo::follow-{n}");
        raw.register_function(&function).await;
        raw.send(json!({
            "type": "registertrigger", "id": format!("follow-{n}"), "trigger_type": "state",
            "function_id": function, "config": {"scope": "large"},
        }))
        .await;
        raw.wait_round_trip().await;
        followers.push(raw);
    }
    let before = resident_kib();
    let value = json!({"scope": "large", "key": "k", "value": "x".repeat(4 * 1024 * 1024)});
    place.call_function("state::set", value).await;
    // Another writer goes on, and the followers that do not read hold one copy together.
    let small = json!({"scope": "small", "key": "k", "value": 1});
    place.call_function("state::set", small).await;
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 200 * 1024, "{grown} KiB for 100 followers");
    // Each of them gets the whole event when it reads.
    for raw in followers.iter_mut().take(3) {
        let event = raw.next_message().await;
        assert_eq!(event["data"]["event_type"], "state:created");
        let new = event["data"]["new_value"].as_str().unwrap();
        assert_eq!(new.len(), 4 * 1024 * 1024);
    }
}
