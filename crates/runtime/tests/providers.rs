//! Tests of the wire formats of providers and of their failures.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test"
)]

#[path = "common/fake.rs"]
mod fake;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fake::{FakeProvider, FakeResponse};
use repertoire_runtime::{
    ChatTurn, Error, Model, ModelReply, ModelRequest, Price, ProviderConfig, Providers, Result,
    model::ReplyListener,
};
use serde_json::{Value, json};

/// Long enough to be redacted as a key, and used nowhere else.
const KEY: &str = "planted-key-0123456789";

fn configured_providers(kind: &str, url: &str, key: Option<&std::path::Path>) -> Providers {
    let config = ProviderConfig {
        kind: Some(kind.to_owned()),
        base_url: Some(url.to_owned()),
        key_env: None,
        key_file: key.map(Into::into),
    };
    Providers {
        configured: [("there".to_owned(), config)].into(),
        deadline: Duration::from_secs(20),
        ..Providers::default()
    }
}

fn key_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{KEY}\n")).unwrap();
    file
}

fn sample_request() -> ModelRequest {
    ModelRequest {
        system: Some("Be brief.".to_owned()),
        turns: vec![
            ChatTurn::user("q"),
            ChatTurn::assistant("a"),
            ChatTurn::user("and now?"),
        ],
        max_tokens: 77,
        temperature: Some(0.5),
        ..ModelRequest::new("")
    }
}

fn openai_response(text: &str) -> String {
    json!({
        "id": "x", "object": "chat.completion", "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50},
    })
    .to_string()
}

fn test_model(providers: &Providers) -> Arc<dyn Model> {
    providers.resolve_model("there/m-1").unwrap()
}

async fn streamed_reply(model: &Arc<dyn Model>) -> (Result<ModelReply>, String) {
    let said: Arc<Mutex<String>> = Arc::default();
    let into = said.clone();
    let listener: ReplyListener = Arc::new(move |text: &str| into.lock().unwrap().push_str(text));
    let reply = model.send_request(&sample_request(), Some(&listener)).await;
    let said = said.lock().unwrap().clone();
    (reply, said)
}

#[tokio::test]
async fn openai_speaks_chat_completions() {
    let key = key_file();
    let fake = FakeProvider::start(vec![FakeResponse::Json(200, openai_response("fine"))]);
    let mut there = configured_providers("openai", &format!("{}/v1", fake.url), Some(key.path()));
    let price = Price {
        input: 100_000.0,
        output: 200_000.0,
    };
    there.prices.insert("there/m-1".to_owned(), price);
    let mut asked = sample_request();
    asked.schema = Some(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    let reply = test_model(&there).send_request(&asked, None).await.unwrap();
    assert_eq!(reply.text, "fine");
    assert_eq!(
        (reply.usage.input_tokens, reply.usage.output_tokens),
        (Some(30), Some(20))
    );
    assert_eq!(reply.usage.cost, Some(7.0));
    let request = &fake.recorded_requests()[0];
    assert_eq!(request.path, "/v1/chat/completions");
    assert_eq!(
        request.header("authorization"),
        Some(&*format!("Bearer {KEY}"))
    );
    let body = &request.body;
    assert_eq!(body["model"], "m-1");
    assert_eq!(body["max_tokens"], 77);
    assert_eq!(body["temperature"], 0.5);
    assert_eq!(body["response_format"]["type"], "json_schema");
    let roles: Vec<&str> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert_eq!(body["messages"][3]["content"], "and now?");
}

#[tokio::test]
async fn anthropic_speaks_messages() {
    let key = key_file();
    let answer = json!({
        "type": "message", "id": "m", "model": "m", "role": "assistant",
        "content": [{"type": "text", "text": "fine"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    });
    let fake = FakeProvider::start(vec![FakeResponse::Json(200, answer.to_string())]);
    let there = configured_providers("anthropic", &fake.url, Some(key.path()));
    let reply = test_model(&there)
        .send_request(&sample_request(), None)
        .await
        .unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.usage.total_tokens()),
        ("fine", 5)
    );
    let request = &fake.recorded_requests()[0];
    assert_eq!(request.path, "/v1/messages");
    assert_eq!(request.header("x-api-key"), Some(KEY));
    assert!(request.header("anthropic-version").is_some());
    assert_eq!(request.body["max_tokens"], 77);
    assert_eq!(request.body["system"][0]["text"], "Be brief.");
    assert_eq!(request.body["messages"][0]["role"], "user");
    assert_eq!(request.body["messages"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn ollama_speaks_chat() {
    let line = |text: &str, done: bool| {
        let mut line = json!({"message": {"role": "assistant", "content": text}, "done": done});
        if done {
            line["done_reason"] = json!("stop");
            line["prompt_eval_count"] = json!(3);
            line["eval_count"] = json!(2);
        }
        format!("{line}\n")
    };
    let whole = line("fine", true);
    let stream = line("fi", false) + &line("ne", false) + &line("", true);
    let fake = FakeProvider::start(vec![
        FakeResponse::Json(200, whole),
        FakeResponse::Events("application/x-ndjson", stream),
    ]);
    let there = configured_providers("ollama", &fake.url, None);
    let model = test_model(&there);
    let reply = model.send_request(&sample_request(), None).await.unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.usage.total_tokens()),
        ("fine", 5)
    );
    let (reply, said) = streamed_reply(&model).await;
    assert_eq!(
        (reply.unwrap().text, said),
        ("fine".to_owned(), "fine".to_owned())
    );
    let asked = fake.recorded_requests();
    assert_eq!(asked[0].path, "/api/chat");
    assert_eq!(asked[0].body["options"]["num_predict"], 77);
    assert_eq!(asked[0].body["stream"], false);
    assert_eq!(asked[0].header("authorization"), None);
    assert_eq!(asked[1].body["stream"], true);
}

fn stream_chunk(delta: Value, finish: Option<&str>) -> String {
    let mut choice = json!({"index": 0, "delta": delta});
    if let Some(finish) = finish {
        choice["finish_reason"] = json!(finish);
    }
    let chunk =
        json!({"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

#[tokio::test]
async fn replies_are_streamed_and_a_broken_stream_is_an_error() {
    let whole = stream_chunk(json!({"role": "assistant", "content": "he"}), None)
        + &stream_chunk(json!({"content": "llo"}), None)
        + &stream_chunk(json!({}), Some("stop"))
        + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\"total_tokens\":6}}\n\n\
           data: [DONE]\n\n";
    let fake = FakeProvider::start(vec![FakeResponse::Events("text/event-stream", whole)]);
    let there = configured_providers("openai", &fake.url, None);
    let (reply, said) = streamed_reply(&test_model(&there)).await;
    let reply = reply.unwrap();
    assert_eq!((reply.text.as_str(), said.as_str()), ("hello", "hello"));
    assert_eq!(reply.usage.total_tokens(), 6);
    assert_eq!(fake.recorded_requests()[0].body["stream"], true);

    for broken in [
        FakeResponse::Truncated(stream_chunk(json!({"content": "he"}), None)),
        FakeResponse::Events(
            "text/event-stream",
            stream_chunk(json!({"content": "he"}), None),
        ),
    ] {
        let fake = FakeProvider::start(vec![broken]);
        let there = configured_providers("openai", &fake.url, None);
        let (reply, said) = streamed_reply(&test_model(&there)).await;
        assert_eq!(reply.unwrap_err().code(), "provider_error");
        // No retry after the first piece: the listener must not receive the beginning again.
        assert_eq!((said.as_str(), fake.recorded_requests().len()), ("he", 1));
    }
}

#[tokio::test]
async fn transient_failures_are_retried_and_permanent_ones_are_not() {
    let body = |text: &str| json!({"error": {"message": text}}).to_string();
    let fake = FakeProvider::start(vec![
        FakeResponse::JsonWithHeader(429, "Retry-After: 0", body("slow down")),
        FakeResponse::Json(500, body("oops")),
        FakeResponse::Json(200, openai_response("at last")),
    ]);
    let there = configured_providers("openai", &fake.url, None);
    let reply = test_model(&there)
        .send_request(&sample_request(), None)
        .await
        .unwrap();
    assert_eq!(
        (reply.text.as_str(), fake.recorded_requests().len()),
        ("at last", 3)
    );

    for (status, code) in [
        (400, "provider_error"),
        (401, "provider_auth"),
        (404, "provider_error"),
    ] {
        let fake = FakeProvider::start(vec![FakeResponse::Json(status, body("the reason"))]);
        let there = configured_providers("openai", &fake.url, None);
        let error = test_model(&there)
            .send_request(&sample_request(), None)
            .await
            .unwrap_err();
        assert_eq!(
            (error.code(), fake.recorded_requests().len()),
            (code, 1),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            format!("there: answered {status}: the reason")
        );
    }
}

#[tokio::test]
async fn silent_and_malformed_responses_are_errors() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let mut there = configured_providers("openai", &fake.url, None);
    there.deadline = Duration::from_millis(300);
    let start = Instant::now();
    let error = test_model(&there)
        .send_request(&sample_request(), None)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));

    for says in [
        FakeResponse::Json(200, "<html>".to_owned()),
        FakeResponse::Json(200, "{\"choices\": []}".to_owned()),
    ] {
        let fake = FakeProvider::start(vec![says]);
        let there = configured_providers("openai", &fake.url, None);
        let error = test_model(&there)
            .send_request(&sample_request(), None)
            .await
            .unwrap_err();
        assert_eq!(error.code(), "provider_error", "{error}");
    }
    let fake = FakeProvider::start(vec![FakeResponse::Garbage]);
    let mut there = configured_providers("openai", &fake.url, None);
    there.deadline = Duration::from_secs(3);
    assert!(
        test_model(&there)
            .send_request(&sample_request(), None)
            .await
            .is_err()
    );
    // No server is listening.
    let mut there = configured_providers("openai", "http://127.0.0.1:1/v1", None);
    there.deadline = Duration::from_secs(3);
    assert!(
        test_model(&there)
            .send_request(&sample_request(), None)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn t27_keys_are_never_in_errors_or_sent_to_another_host() {
    let key = key_file();
    let echo = json!({"error": {"message": format!("bad key {KEY} given")}}).to_string();
    // What is cut off is not the end of the key.
    let long = format!("{} {KEY} given", "x".repeat(300 - KEY.len() / 2));
    let long = json!({"error": {"message": long}}).to_string();
    let elsewhere = FakeProvider::start(vec![FakeResponse::Json(200, openai_response("stolen"))]);
    let to: &'static str = Box::leak(format!("Location: {}", elsewhere.url).into_boxed_str());
    for says in [
        FakeResponse::Json(400, echo),
        FakeResponse::Json(400, long),
        FakeResponse::JsonWithHeader(302, to, String::new()),
    ] {
        let fake = FakeProvider::start(vec![says]);
        let there = configured_providers("openai", &fake.url, Some(key.path()));
        let error = test_model(&there)
            .send_request(&sample_request(), None)
            .await
            .unwrap_err();
        let shown = format!("{error} {error:?} {there:?} {:?}", test_model(&there));
        assert!(!shown.contains(&KEY[..KEY.len() / 4]), "{shown}");
    }
    assert!(
        elsewhere.recorded_requests().is_empty(),
        "a redirect was followed"
    );
}

#[test]
fn missing_configuration_is_reported() {
    let none = Providers::default();
    let error =
        |providers: &Providers, id: &str| providers.resolve_model(id).unwrap_err().to_string();
    assert!(error(&none, "llama").contains("PROVIDER/MODEL"));
    assert!(error(&none, "unknown/x").contains("there are anthropic, ollama, openai, groq"));
    let mut there = configured_providers("openai", "http://127.0.0.1:1", None);
    there.configured.get_mut("there").unwrap().key_env = Some("NOT_SET_ANYWHERE".to_owned());
    assert!(error(&there, "there/x").contains("NOT_SET_ANYWHERE is not set"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let key = key_file();
        std::fs::set_permissions(key.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let there = configured_providers("openai", "http://127.0.0.1:1", Some(key.path()));
        assert!(error(&there, "there/x").contains("others may read it"));
    }
}
