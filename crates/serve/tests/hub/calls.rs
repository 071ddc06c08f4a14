//! Who calls whom, who has what, and what happens when somebody goes.

use std::time::{Duration, Instant};

use repertoire_serve::iii::HubOptions;
use serde_json::{Value, json};

use crate::peer::{Raw, WAIT, invoke, start};

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_passed_on_with_who_calls_and_answered() {
    let place = start(HubOptions::default()).await;
    let mut worker = Raw::connect(&place).await;
    worker.function("demo::echo").await;
    worker.settle().await;
    let mut caller = Raw::connect(&place).await;
    let forged = json!({"a": 1, "_caller_worker_id": "forged"});
    let mut call = invoke("c1", "demo::echo", forged);
    call["traceparent"] = json!("00-1-2-03");
    call["metadata"] = json!({"m": 1});
    caller.send(call).await;
    let mut given = worker.hear().await;
    let invocation = given["invocation_id"].take();
    assert!(uuid::Uuid::parse_str(invocation.as_str().unwrap()).is_ok());
    assert_eq!(
        given,
        json!({
            "type": "invokefunction", "invocation_id": null, "function_id": "demo::echo",
            "traceparent": "00-1-2-03", "metadata": {"m": 1},
            "data": {"a": 1, "_caller_worker_id": caller.id()},
        })
    );
    // Somebody else cannot answer for the worker.
    let mut stranger = Raw::connect(&place).await;
    let mut answer = json!({
        "type": "invocationresult", "invocation_id": invocation, "function_id": "demo::echo",
        "result": "forged",
    });
    stranger.send(answer.clone()).await;
    stranger.settle().await;
    answer["result"] = json!({"ok": true});
    worker.send(answer).await;
    assert_eq!(
        caller.hear().await,
        json!({
            "type": "invocationresult", "invocation_id": "c1", "function_id": "demo::echo",
            "result": {"ok": true},
        })
    );
    // A null result is an absent one; an error goes through as it is.
    let error = json!({"error": {"code": "x", "message": "m", "stacktrace": "s"}});
    for (said, want) in [(json!({"result": null}), json!({})), (error.clone(), error)] {
        caller.send(invoke("c2", "demo::echo", Value::Null)).await;
        let given = worker.hear().await;
        assert_eq!(given["data"], Value::Null);
        let mut reply =
            json!({"type": "invocationresult", "invocation_id": given["invocation_id"]});
        let reply = reply.as_object_mut().unwrap();
        reply.extend(said.as_object().unwrap().clone());
        worker.send(json!(reply)).await;
        let mut heard = caller.hear().await;
        let heard = heard.as_object_mut().unwrap();
        for key in ["type", "invocation_id", "function_id"] {
            heard.remove(key).unwrap();
        }
        assert_eq!(json!(heard), want);
    }
    // Nobody waits for a void call, and nobody is told when it leads nowhere.
    for function in ["demo::echo", "nobody::has", "state::get"] {
        let mut void = invoke("c3", function, json!({"v": 1}));
        void["action"] = json!({"type": "void"});
        caller.send(void).await;
    }
    assert_eq!(worker.hear().await.get("invocation_id"), None);
    caller.settle().await;
    caller.send(invoke("c4", "nobody::has", json!({}))).await;
    assert_eq!(caller.hear().await["error"]["code"], "function_not_found");
    let mut queued = invoke("c5", "demo::echo", json!({}));
    queued["action"] = json!({"type": "enqueue", "queue": "q"});
    caller.send(queued).await;
    assert_eq!(caller.hear().await["error"]["code"], "enqueue_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_takes_everything_with_it_and_brings_it_back() {
    let place = start(HubOptions::default()).await;
    let mut follower = Raw::connect(&place).await;
    follower.follow("t1", "demo::on-thing", "f::heard").await;
    follower.settle().await;
    for round in 0..3 {
        let mut worker = Raw::connect(&place).await;
        worker.provide("demo::on-thing").await;
        // What was parked is delivered each time there is a provider.
        assert_eq!(
            worker.hear().await,
            json!({
                "type": "registertrigger", "id": "t1", "trigger_type": "demo::on-thing",
                "function_id": "f::heard", "config": {},
            })
        );
        worker.function("demo::slow").await;
        worker.settle().await;
        let mut caller = Raw::connect(&place).await;
        caller.send(invoke("c", "demo::slow", json!({}))).await;
        worker.hear().await;
        let start = Instant::now();
        drop(worker);
        let heard = caller.hear().await;
        assert_eq!(
            heard["error"]["code"], "invocation_stopped",
            "round {round}"
        );
        assert!(start.elapsed() < Duration::from_secs(1));
        let listed = place.call("engine::functions::list", json!({})).await;
        let rows = listed["functions"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["function_id"] != "demo::slow"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_has_one_owner() {
    let place = start(HubOptions::default()).await;
    let mut first = Raw::connect(&place).await;
    // The same worker may say it twice.
    first.function("demo::f").await;
    first.function("demo::f").await;
    first.provide("demo::t").await;
    first.settle().await;
    let mut second = Raw::connect(&place).await;
    let taken = [
        "demo::f",
        "skills::register",
        "skill::fetch",
        "state::set",
        "engine::any",
    ];
    for function in taken {
        second.function(function).await;
        let heard = second.hear().await;
        assert_eq!(heard["type"], "registrationrejected");
        assert_eq!(heard["code"], "FUNCTION_NAMESPACE_CONFLICT");
        assert_eq!(heard["function_id"], function);
        assert_eq!(heard["namespace"], "default");
        assert!(heard["owner_worker_id"].is_string());
    }
    // The connection stays open, and cannot take away what is not its own.
    second
        .send(json!({"type": "unregisterfunction", "id": "demo::f"}))
        .await;
    second.settle().await;
    second.send(invoke("c", "demo::f", json!({}))).await;
    assert_eq!(first.hear().await["function_id"], "demo::f");
    // A trigger type that somebody provides stays theirs.
    second.provide("demo::t").await;
    second.follow("t", "demo::t", "x").await;
    assert_eq!(first.hear().await["id"], "t");
    // Leaving is unsubscribing.
    drop(second);
    assert_eq!(
        first.hear().await,
        json!({"type": "unregistertrigger", "id": "t", "trigger_type": "demo::t"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_back_takes_its_own_place_and_no_other() {
    let place = start(HubOptions::default()).await;
    let mut old = Raw::connect(&place).await;
    old.function("demo::f").await;
    old.settle().await;
    let back = |old: &Raw, token: &Value| json!({"type": "reattach", "previous_worker_id": old.id(), "reattach_token": token});
    let mut thief = Raw::connect(&place).await;
    thief.send(back(&old, &json!("guess"))).await;
    thief.function("demo::f").await;
    assert_eq!(thief.hear().await["type"], "registrationrejected");
    let mut new = Raw::connect(&place).await;
    new.send(back(&old, &old.greeting["reattach_token"])).await;
    new.function("demo::f").await;
    new.settle().await;
    assert_eq!(old.closed().await.0, 1001);
    thief.send(invoke("c", "demo::f", json!({}))).await;
    assert_eq!(new.hear().await["function_id"], "demo::f");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_refuses_is_heard_by_the_subscriber() {
    let place = start(HubOptions::default()).await;
    let mut provider = Raw::connect(&place).await;
    provider.provide("demo::t").await;
    provider.settle().await;
    let mut subscriber = Raw::connect(&place).await;
    subscriber.follow("t", "demo::t", "x").await;
    provider.hear().await;
    let refusal = json!({
        "type": "triggerregistrationresult", "id": "t", "trigger_type": "demo::t",
        "function_id": "x", "error": {"code": "trigger_registration_failed", "message": "bad"},
    });
    provider.send(refusal.clone()).await;
    assert_eq!(subscriber.hear().await, refusal);
}

#[tokio::test(flavor = "multi_thread")]
async fn t14_content_that_reads_itself_comes_to_an_end() {
    let place = start(HubOptions::default()).await;
    let mut worker = Raw::connect(&place).await;
    worker.function("demo::self").await;
    worker.settle().await;
    let client = place.client().await;
    let uri = json!({"uri": "iii://fn/demo/self"});
    let reading = tokio::spawn(async move {
        let uri = r#"{"uri":"iii://fn/demo/self"}"#;
        client.ask("skill::fetch", uri, WAIT).await
    });
    let mut rounds = 0;
    while !reading.is_finished() {
        let heard = tokio::time::timeout(Duration::from_secs(1), worker.hear()).await;
        let Ok(heard) = heard else { break };
        let id = heard["invocation_id"].as_str().unwrap();
        if heard["type"] == "invokefunction" {
            // Asked for content, it asks for its own.
            rounds += 1;
            worker.send(invoke(id, "skill::fetch", uri.clone())).await;
        } else {
            let error = &heard["error"];
            worker
                .send(json!({"type": "invocationresult", "invocation_id": id, "error": error}))
                .await;
        }
    }
    let error = reading.await.unwrap().unwrap_err();
    assert!(error.message.contains("its own address"), "{error:?}");
    assert_eq!(rounds, 64);
    place.still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t14_slow_content_has_a_deadline() {
    let mut options = HubOptions::default();
    options.functions.deadline = Duration::from_millis(200);
    let place = start(options).await;
    let mut worker = Raw::connect(&place).await;
    worker.function("demo::never").await;
    worker.settle().await;
    let client = place.client().await;
    let start = Instant::now();
    let uri = r#"{"uri":"iii://fn/demo/never"}"#;
    let read = client.ask("skills::resources-read", uri, WAIT).await;
    assert_eq!(read.unwrap_err().code, "timeout");
    assert!(start.elapsed() < Duration::from_secs(2));
    // Its late answer is nobody's any more.
    let given = worker.hear().await;
    let id = &given["invocation_id"];
    worker
        .send(json!({"type": "invocationresult", "invocation_id": id, "result": "late"}))
        .await;
    worker.settle().await;
}
