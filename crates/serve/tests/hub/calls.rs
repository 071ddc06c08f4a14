//! Calls, ownership of functions, and the end of a connection.

use std::time::{Duration, Instant};

use repertoire_serve::iii::HubOptions;
use serde_json::{Value, json};

use crate::test_hub::{RawPeer, WAIT, invoke_message, start};

#[tokio::test(flavor = "multi_thread")]
async fn calls_carry_the_caller_id_and_return_the_result() {
    let place = start(HubOptions::default()).await;
    let mut worker = RawPeer::connect(&place).await;
    worker.register_function("demo::echo").await;
    worker.wait_round_trip().await;
    let mut caller = RawPeer::connect(&place).await;
    let forged = json!({"a": 1, "_caller_worker_id": "forged"});
    let mut call = invoke_message("c1", "demo::echo", forged);
    call["traceparent"] = json!("00-1-2-03");
    call["metadata"] = json!({"m": 1});
    caller.send(call).await;
    let mut given = worker.next_message().await;
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
    // Another worker cannot answer the call.
    let mut other_worker = RawPeer::connect(&place).await;
    let mut answer = json!({
        "type": "invocationresult", "invocation_id": invocation, "function_id": "demo::echo",
        "result": "forged",
    });
    other_worker.send(answer.clone()).await;
    other_worker.wait_round_trip().await;
    answer["result"] = json!({"ok": true});
    worker.send(answer).await;
    assert_eq!(
        caller.next_message().await,
        json!({
            "type": "invocationresult", "invocation_id": "c1", "function_id": "demo::echo",
            "result": {"ok": true},
        })
    );
    // A null result is omitted; an error is forwarded unchanged.
    let error = json!({"error": {"code": "x", "message": "m", "stacktrace": "s"}});
    for (reply_fields, want) in [(json!({"result": null}), json!({})), (error.clone(), error)] {
        caller
            .send(invoke_message("c2", "demo::echo", Value::Null))
            .await;
        let given = worker.next_message().await;
        assert_eq!(given["data"], Value::Null);
        let mut reply =
            json!({"type": "invocationresult", "invocation_id": given["invocation_id"]});
        let reply = reply.as_object_mut().unwrap();
        reply.extend(reply_fields.as_object().unwrap().clone());
        worker.send(json!(reply)).await;
        let mut heard = caller.next_message().await;
        let heard = heard.as_object_mut().unwrap();
        for key in ["type", "invocation_id", "function_id"] {
            heard.remove(key).unwrap();
        }
        assert_eq!(json!(heard), want);
    }
    // A void call gets no answer, and no error if the function does not exist.
    for function in ["demo::echo", "missing::function", "state::get"] {
        let mut void = invoke_message("c3", function, json!({"v": 1}));
        void["action"] = json!({"type": "void"});
        caller.send(void).await;
    }
    assert_eq!(worker.next_message().await.get("invocation_id"), None);
    caller.wait_round_trip().await;
    caller
        .send(invoke_message("c4", "missing::function", json!({})))
        .await;
    assert_eq!(
        caller.next_message().await["error"]["code"],
        "function_not_found"
    );
    let mut queued = invoke_message("c5", "demo::echo", json!({}));
    queued["action"] = json!({"type": "enqueue", "queue": "q"});
    caller.send(queued).await;
    assert_eq!(
        caller.next_message().await["error"]["code"],
        "enqueue_error"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_end_with_the_connection_and_return_on_reconnect() {
    let place = start(HubOptions::default()).await;
    let mut follower = RawPeer::connect(&place).await;
    follower
        .register_trigger("t1", "demo::on-thing", "f::heard")
        .await;
    follower.wait_round_trip().await;
    for round in 0..3 {
        let mut worker = RawPeer::connect(&place).await;
        worker.provide_trigger_type("demo::on-thing").await;
        // A pending subscription is delivered each time a provider connects.
        assert_eq!(
            worker.next_message().await,
            json!({
                "type": "registertrigger", "id": "t1", "trigger_type": "demo::on-thing",
                "function_id": "f::heard", "config": {},
            })
        );
        worker.register_function("demo::slow").await;
        worker.wait_round_trip().await;
        let mut caller = RawPeer::connect(&place).await;
        caller
            .send(invoke_message("c", "demo::slow", json!({})))
            .await;
        worker.next_message().await;
        let start = Instant::now();
        drop(worker);
        let heard = caller.next_message().await;
        assert_eq!(
            heard["error"]["code"], "invocation_stopped",
            "round {round}"
        );
        assert!(start.elapsed() < Duration::from_secs(1));
        let listed = place
            .call_function("engine::functions::list", json!({}))
            .await;
        let rows = listed["functions"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["function_id"] != "demo::slow"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_has_one_owner() {
    let place = start(HubOptions::default()).await;
    let mut first = RawPeer::connect(&place).await;
    // The same worker may register a function twice.
    first.register_function("demo::f").await;
    first.register_function("demo::f").await;
    first.provide_trigger_type("demo::t").await;
    first.wait_round_trip().await;
    let mut second = RawPeer::connect(&place).await;
    let taken = [
        "demo::f",
        "skills::register",
        "skill::fetch",
        "state::set",
        "engine::any",
    ];
    for function in taken {
        second.register_function(function).await;
        let heard = second.next_message().await;
        assert_eq!(heard["type"], "registrationrejected");
        assert_eq!(heard["code"], "FUNCTION_NAMESPACE_CONFLICT");
        assert_eq!(heard["function_id"], function);
        assert_eq!(heard["namespace"], "default");
        assert!(heard["owner_worker_id"].is_string());
    }
    // The connection stays open, and cannot remove a function of another worker.
    second
        .send(json!({"type": "unregisterfunction", "id": "demo::f"}))
        .await;
    second.wait_round_trip().await;
    second.send(invoke_message("c", "demo::f", json!({}))).await;
    assert_eq!(first.next_message().await["function_id"], "demo::f");
    // A trigger type keeps its first provider.
    second.provide_trigger_type("demo::t").await;
    second.register_trigger("t", "demo::t", "x").await;
    assert_eq!(first.next_message().await["id"], "t");
    // Disconnecting ends the subscriptions.
    drop(second);
    assert_eq!(
        first.next_message().await,
        json!({"type": "unregistertrigger", "id": "t", "trigger_type": "demo::t"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reattach_needs_the_token_of_the_old_connection() {
    let place = start(HubOptions::default()).await;
    let mut old = RawPeer::connect(&place).await;
    old.register_function("demo::f").await;
    old.wait_round_trip().await;
    let back = |old: &RawPeer, token: &Value| json!({"type": "reattach", "previous_worker_id": old.id(), "reattach_token": token});
    let mut thief = RawPeer::connect(&place).await;
    thief.send(back(&old, &json!("guess"))).await;
    thief.register_function("demo::f").await;
    assert_eq!(thief.next_message().await["type"], "registrationrejected");
    let mut new = RawPeer::connect(&place).await;
    new.send(back(&old, &old.greeting["reattach_token"])).await;
    new.register_function("demo::f").await;
    new.wait_round_trip().await;
    assert_eq!(old.wait_closed().await.0, 1001);
    thief.send(invoke_message("c", "demo::f", json!({}))).await;
    assert_eq!(new.next_message().await["function_id"], "demo::f");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_subscription_is_reported_to_the_subscriber() {
    let place = start(HubOptions::default()).await;
    let mut provider = RawPeer::connect(&place).await;
    provider.provide_trigger_type("demo::t").await;
    provider.wait_round_trip().await;
    let mut subscriber = RawPeer::connect(&place).await;
    subscriber.register_trigger("t", "demo::t", "x").await;
    provider.next_message().await;
    let refusal = json!({
        "type": "triggerregistrationresult", "id": "t", "trigger_type": "demo::t",
        "function_id": "x", "error": {"code": "trigger_registration_failed", "message": "bad"},
    });
    provider.send(refusal.clone()).await;
    assert_eq!(subscriber.next_message().await, refusal);
}

#[tokio::test(flavor = "multi_thread")]
async fn t14_content_that_reads_itself_is_stopped() {
    let place = start(HubOptions::default()).await;
    let mut worker = RawPeer::connect(&place).await;
    worker.register_function("demo::self").await;
    worker.wait_round_trip().await;
    let client = place.client().await;
    let uri = json!({"uri": "iii://fn/demo/self"});
    let reading = tokio::spawn(async move {
        let uri = r#"{"uri":"iii://fn/demo/self"}"#;
        client.call_json("skill::fetch", uri, WAIT).await
    });
    let mut rounds = 0;
    while !reading.is_finished() {
        let heard = tokio::time::timeout(Duration::from_secs(1), worker.next_message()).await;
        let Ok(heard) = heard else { break };
        let id = heard["invocation_id"].as_str().unwrap();
        if heard["type"] == "invokefunction" {
            // The function requests its own content again.
            rounds += 1;
            worker
                .send(invoke_message(id, "skill::fetch", uri.clone()))
                .await;
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
    place.assert_still_serves().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t14_slow_content_times_out() {
    let mut options = HubOptions::default();
    options.functions.deadline = Duration::from_millis(200);
    let place = start(options).await;
    let mut worker = RawPeer::connect(&place).await;
    worker.register_function("demo::never").await;
    worker.wait_round_trip().await;
    let client = place.client().await;
    let start = Instant::now();
    let uri = r#"{"uri":"iii://fn/demo/never"}"#;
    let read = client.call_json("skills::resources-read", uri, WAIT).await;
    assert_eq!(read.unwrap_err().code, "timeout");
    assert!(start.elapsed() < Duration::from_secs(2));
    // A late answer is ignored.
    let given = worker.next_message().await;
    let id = &given["invocation_id"];
    worker
        .send(json!({"type": "invocationresult", "invocation_id": id, "result": "late"}))
        .await;
    worker.wait_round_trip().await;
}
