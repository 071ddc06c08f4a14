//! Steps about what was found on real engines.

use std::time::{Duration, Instant};

use cucumber::{given, then, when};
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::{
    bus::{self, WAIT, call_function, shared_bus},
    steps::World,
};

/// Calls a function for each payload, some at a time; returns the answers.
async fn call_at_once(
    function: &str,
    payloads: impl Iterator<Item = Value>,
    at_a_time: usize,
) -> Vec<Result<Value, bus::CallError>> {
    futures::stream::iter(payloads)
        .map(|payload| call_function(function, payload))
        .buffered(at_a_time)
        .collect()
        .await
}

fn skill(id: &str) -> Value {
    json!({"id": id, "skill": format!("# {id}\n")})
}

#[when(regex = r"^(\d+) skills are registered, (\d+) at a time, within (\d+) seconds$")]
async fn register_many(_: &mut World, number: usize, at_a_time: usize, seconds: u64) {
    let start = Instant::now();
    let payloads = (0..number).map(|n| skill(&format!("many/skill-{n:05}")));
    for answer in call_at_once("skills::register", payloads, at_a_time).await {
        answer.unwrap();
    }
    // Generous: where each write waits for a delayed acknowledgement it takes five times as long.
    let taken = start.elapsed();
    assert!(taken < Duration::from_secs(seconds), "{taken:?}");
}

#[then(regex = r#"^(\d+) calls of "([^"]*)", (\d+) at a time, are all answered$"#)]
async fn all_are_answered(_: &mut World, number: usize, function: String, at_a_time: usize) {
    let payloads = std::iter::repeat_n(json!({}), number);
    for answer in call_at_once(&function, payloads, at_a_time).await {
        answer.unwrap();
    }
}

#[then(regex = r#"^(\d+) reads of "([^"]*)", (\d+) at a time, are all answered$"#)]
async fn all_reads_are_answered(_: &mut World, number: usize, uri: String, at_a_time: usize) {
    let payloads = std::iter::repeat_n(json!({"uri": uri}), number);
    for answer in call_at_once("skills::resources-read", payloads, at_a_time).await {
        answer.unwrap();
    }
}

#[when(regex = r#"^the skill "([^"]*)" is registered and removed (\d+) times$"#)]
async fn register_and_remove(_: &mut World, id: String, times: usize) {
    for _ in 0..times {
        call_function("skills::register", skill(&id)).await.unwrap();
        call_function("skills::unregister", json!({"id": id}))
            .await
            .unwrap();
    }
}

#[then(regex = r#"^the subscriber hears of "([^"]*)" (\d+) times, in turns$"#)]
async fn hears_in_turns(world: &mut World, id: String, times: usize) {
    for n in 0..times {
        let event = world.next_event().await;
        let op = if n % 2 == 0 { "register" } else { "unregister" };
        assert_eq!(event, json!({"op": op, "id": id}), "event {n}");
    }
}

#[then(regex = r#"^the result does not mention "([^"]*)"$"#)]
fn result_does_not_mention(world: &mut World, text: String) {
    let result = world.result().to_string();
    assert!(!result.contains(&text), "{result}");
}

#[then(regex = r#"^the result at "([^"]*)" is the same as at "([^"]*)"$"#)]
fn results_are_equal(world: &mut World, one: String, other: String) {
    let result = world.result();
    let at = |path: &str| {
        result
            .pointer(path)
            .filter(|value| value.is_string())
            .cloned()
    };
    assert!(at(&one).is_some(), "{result}");
    assert_eq!(at(&one), at(&other), "{result}");
}

#[given(regex = r"^the bus drops the worker after (\d+) writes$")]
async fn drop_worker(_: &mut World, writes: usize) {
    let payload = json!({"after_writes": writes});
    call_function("quirks::drop-worker", payload).await.unwrap();
}

#[when(regex = r"^(\d+) skills are registered at the same time, of which some may fail$")]
async fn register_with_failures(world: &mut World, number: usize) {
    let start = Instant::now();
    let payloads = (0..number).map(|n| skill(&format!("dropped/skill-{n}")));
    let answers = call_at_once("skills::register", payloads, number).await;
    // A call does not wait for a connection that is gone.
    assert!(start.elapsed() < Duration::from_secs(8), "{answers:?}");
    let ids = answers.into_iter().flatten();
    world.acknowledged = ids.map(|answer| answer["id"].clone()).collect();
}

#[then(regex = r#"^eventually the skill "([^"]*)" can be registered$"#)]
async fn eventually_registers(_: &mut World, id: String) {
    let start = Instant::now();
    while let Err(error) = call_function("skills::register", skill(&id)).await {
        assert!(start.elapsed() < WAIT, "{error:?}");
    }
}

#[then("every skill whose registration was acknowledged is listed")]
async fn acknowledged_are_listed(world: &mut World) {
    let listed = call_function("skills::list", json!({})).await.unwrap();
    let rows = listed["skills"].as_array().unwrap();
    for id in &world.acknowledged {
        assert!(rows.iter().any(|row| row["id"] == *id), "{id}: {listed}");
    }
}

#[then("the worker calls no function that is not there")]
async fn no_unknown_calls(_: &mut World) {
    let quirks = shared_bus().quirks.as_ref().unwrap();
    // The owner check runs every second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(quirks.unknown_calls(), 0);
}
