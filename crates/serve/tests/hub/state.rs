//! The `state::*` functions, and long listings.

use repertoire_serve::iii::HubOptions;
use serde_json::{Value, json};

use crate::test_hub::{WAIT, start};

#[tokio::test(flavor = "multi_thread")]
async fn state_functions_behave_like_the_engine() {
    let place = start(HubOptions::default()).await;
    let row = |key: &str| json!({"scope": "s", "key": key});
    let set = |key: &str, value: Value| json!({"scope": "s", "key": key, "value": value});
    assert_eq!(
        place.call_function("state::get", row("k")).await,
        Value::Null
    );
    assert_eq!(
        place
            .call_function("state::set", set("k", json!({"n": 1})))
            .await,
        json!({"old_value": null, "new_value": {"n": 1}})
    );
    let again = place.call_function("state::set", set("k", json!(2))).await;
    assert_eq!(again["old_value"], json!({"n": 1}));
    place
        .call_function("state::set", set("j", json!("x")))
        .await;
    let list = |more: Value| {
        let mut payload = json!({"scope": "s"});
        let fields = payload.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        place.call_function("state::list", payload)
    };
    assert_eq!(list(json!({})).await, json!(["x", 2]));
    assert_eq!(
        list(json!({"limit": 1})).await,
        json!({"items": [{"key": "j", "value": "x"}], "next_cursor": "j"})
    );
    assert_eq!(
        list(json!({"limit": 1, "cursor": "j"})).await,
        json!({"items": [{"key": "k", "value": 2}]})
    );
    let groups = place.call_function("state::list_groups", json!({})).await;
    assert_eq!(groups, json!({"groups": ["s"]}));
    let ops = json!([{"type": "increment", "path": "", "by": 3}]);
    let update = json!({"scope": "s", "key": "k", "ops": ops});
    assert_eq!(
        place.call_function("state::update", update).await,
        json!({"old_value": 2, "new_value": 5})
    );
    assert_eq!(
        place.call_function("state::delete", row("k")).await,
        json!(5)
    );
    assert_eq!(
        place.call_function("state::delete", row("k")).await,
        Value::Null
    );
    // Numbers keep their original text.
    let client = place.client().await;
    let number = "123456789012345678901234567890.10";
    let exact = format!(r#"{{"scope":"s","key":"n","value":{number}}}"#);
    client.call_json("state::set", &exact, WAIT).await.unwrap();
    let got = client.call_json("state::get", &exact, WAIT).await.unwrap();
    assert_eq!(got, number);
    // As engines do, input in a wrong form has a code of its own.
    let (form, value) = ("deserialization_error", "invalid_request");
    for (function, wrong, code) in [
        (
            "state::set",
            json!({"scope": "", "key": "k", "value": 1}),
            value,
        ),
        (
            "state::set",
            json!({"scope": "s", "key": "x".repeat(2000), "value": 1}),
            value,
        ),
        ("state::set", json!({"key": "k"}), form),
        ("state::list", json!({"scope": "s", "limit": 0}), value),
        (
            "state::update",
            json!({"scope": "s", "key": "k", "ops": [{"type": "explode"}]}),
            form,
        ),
    ] {
        let error = client.call_json(function, &wrong.to_string(), WAIT).await;
        assert_eq!(error.unwrap_err().code, code, "{function} {wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_do_not_grow_with_body_size() {
    let place = start(HubOptions::default()).await;
    let client = place.client().await;
    for n in 0..100 {
        let body = format!("# {n}\n\nLarge.\n{}", "x".repeat(256 * 1024 - 32));
        let payload = json!({"id": format!("big/{n}"), "skill": body}).to_string();
        client
            .call_json("skills::register", &payload, WAIT)
            .await
            .unwrap();
    }
    for function in ["skills::list", "skills::resources-list"] {
        let listed = client.call_json(function, "{}", WAIT).await.unwrap();
        assert!(
            listed.len() < 64 * 1024,
            "{function}: {} bytes",
            listed.len()
        );
        let listed: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(listed.get("next_cursor"), None);
    }
    let uri = r#"{"uri":"iii://skills"}"#;
    let index = client.call_json("skills::resources-read", uri, WAIT).await;
    assert!(index.unwrap().len() < 64 * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_listings_are_paged_without_a_limit() {
    let place = start(HubOptions::default()).await;
    let client = place.client().await;
    // Long ids fill a listing with few rows.
    let id = |n: usize| format!("{n:06}/{}", vec!["x".repeat(63); 15].join("/"));
    let register = async |n: usize| {
        let payload = json!({"id": id(n), "skill": "# x"}).to_string();
        client
            .call_json("skills::register", &payload, WAIT)
            .await
            .unwrap();
    };
    let all = 8200;
    for start in (0..all).step_by(100) {
        let group = (start..(start + 100).min(all)).map(&register);
        futures::future::join_all(group).await;
    }
    let (mut seen, mut pages, mut cursor) = (0, 0, Value::Null);
    loop {
        let payload = json!({"cursor": cursor}).to_string();
        let listed = client
            .call_json("skills::list", &payload, WAIT)
            .await
            .unwrap();
        assert!(listed.len() <= 8 * 1024 * 1024);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        for row in listed["skills"].as_array().unwrap() {
            assert_eq!(row["id"], id(seen));
            seen += 1;
        }
        pages += 1;
        match listed.get("next_cursor") {
            Some(next) => cursor = next.clone(),
            None => break,
        }
    }
    assert_eq!(seen, all);
    assert_eq!(pages, 2);
}
