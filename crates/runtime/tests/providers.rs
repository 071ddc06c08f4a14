//! The wire formats of providers, and what becomes of their failures.

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

use fake::{Fake, Says};
use repertoire_runtime::{
    Ask, Error, Model, Price, ProviderConfig, Providers, Reply, Result, Turn, model::Listener,
};
use serde_json::{Value, json};

/// Long enough to be taken for a key, and nowhere else.
const KEY: &str = "planted-key-0123456789";

fn providers(kind: &str, url: &str, key: Option<&std::path::Path>) -> Providers {
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

fn ask() -> Ask {
    Ask {
        system: Some("Be brief.".to_owned()),
        turns: vec![
            Turn::user("q"),
            Turn::assistant("a"),
            Turn::user("and now?"),
        ],
        max_tokens: 77,
        temperature: Some(0.5),
        schema: None,
    }
}

fn openai(text: &str) -> String {
    json!({
        "id": "x", "object": "chat.completion", "model": "m", "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 30, "completion_tokens": 20, "total_tokens": 50},
    })
    .to_string()
}

fn model(providers: &Providers) -> Arc<dyn Model> {
    providers.model("there/m-1").unwrap()
}

async fn heard(model: &Arc<dyn Model>) -> (Result<Reply>, String) {
    let said: Arc<Mutex<String>> = Arc::default();
    let into = said.clone();
    let listener: Listener = Arc::new(move |text: &str| into.lock().unwrap().push_str(text));
    let reply = model.ask(&ask(), Some(&listener)).await;
    let said = said.lock().unwrap().clone();
    (reply, said)
}

#[tokio::test]
async fn openai_speaks_chat_completions() {
    let key = key_file();
    let fake = Fake::start(vec![Says::Json(200, openai("fine"))]);
    let mut there = providers("openai", &format!("{}/v1", fake.url), Some(key.path()));
    let price = Price {
        input: 100_000.0,
        output: 200_000.0,
    };
    there.prices.insert("there/m-1".to_owned(), price);
    let mut asked = ask();
    asked.schema = Some(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    let reply = model(&there).ask(&asked, None).await.unwrap();
    assert_eq!(reply.text, "fine");
    assert_eq!(
        (reply.usage.input_tokens, reply.usage.output_tokens),
        (Some(30), Some(20))
    );
    assert_eq!(reply.usage.cost, Some(7.0));
    let request = &fake.asked()[0];
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
    let fake = Fake::start(vec![Says::Json(200, answer.to_string())]);
    let there = providers("anthropic", &fake.url, Some(key.path()));
    let reply = model(&there).ask(&ask(), None).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.usage.tokens()), ("fine", 5));
    let request = &fake.asked()[0];
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
    let fake = Fake::start(vec![
        Says::Json(200, whole),
        Says::Events("application/x-ndjson", stream),
    ]);
    let there = providers("ollama", &fake.url, None);
    let model = model(&there);
    let reply = model.ask(&ask(), None).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.usage.tokens()), ("fine", 5));
    let (reply, said) = heard(&model).await;
    assert_eq!(
        (reply.unwrap().text, said),
        ("fine".to_owned(), "fine".to_owned())
    );
    let asked = fake.asked();
    assert_eq!(asked[0].path, "/api/chat");
    assert_eq!(asked[0].body["options"]["num_predict"], 77);
    assert_eq!(asked[0].body["stream"], false);
    assert_eq!(asked[0].header("authorization"), None);
    assert_eq!(asked[1].body["stream"], true);
}

fn chunk(delta: Value, finish: Option<&str>) -> String {
    let mut choice = json!({"index": 0, "delta": delta});
    if let Some(finish) = finish {
        choice["finish_reason"] = json!(finish);
    }
    let chunk =
        json!({"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]});
    format!("data: {chunk}\n\n")
}

#[tokio::test]
async fn answers_are_heard_as_they_come_and_a_broken_one_is_told() {
    let whole = chunk(json!({"role": "assistant", "content": "he"}), None)
        + &chunk(json!({"content": "llo"}), None)
        + &chunk(json!({}), Some("stop"))
        + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2,\"total_tokens\":6}}\n\n\
           data: [DONE]\n\n";
    let fake = Fake::start(vec![Says::Events("text/event-stream", whole)]);
    let there = providers("openai", &fake.url, None);
    let (reply, said) = heard(&model(&there)).await;
    let reply = reply.unwrap();
    assert_eq!((reply.text.as_str(), said.as_str()), ("hello", "hello"));
    assert_eq!(reply.usage.tokens(), 6);
    assert_eq!(fake.asked()[0].body["stream"], true);

    for broken in [
        Says::Cut(chunk(json!({"content": "he"}), None)),
        Says::Events("text/event-stream", chunk(json!({"content": "he"}), None)),
    ] {
        let fake = Fake::start(vec![broken]);
        let there = providers("openai", &fake.url, None);
        let (reply, said) = heard(&model(&there)).await;
        assert_eq!(reply.unwrap_err().code(), "provider_error");
        // It was heard once: whoever listens does not hear the beginning again.
        assert_eq!((said.as_str(), fake.asked().len()), ("he", 1));
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
    let body = |text: &str| json!({"error": {"message": text}}).to_string();
    let fake = Fake::start(vec![
        Says::With(429, "Retry-After: 0", body("slow down")),
        Says::Json(500, body("oops")),
        Says::Json(200, openai("at last")),
    ]);
    let there = providers("openai", &fake.url, None);
    let reply = model(&there).ask(&ask(), None).await.unwrap();
    assert_eq!((reply.text.as_str(), fake.asked().len()), ("at last", 3));

    for (status, code) in [
        (400, "provider_error"),
        (401, "provider_auth"),
        (404, "provider_error"),
    ] {
        let fake = Fake::start(vec![Says::Json(status, body("the reason"))]);
        let there = providers("openai", &fake.url, None);
        let error = model(&there).ask(&ask(), None).await.unwrap_err();
        assert_eq!((error.code(), fake.asked().len()), (code, 1), "{error}");
        assert_eq!(
            error.to_string(),
            format!("there: answered {status}: the reason")
        );
    }
}

#[tokio::test]
async fn silence_and_garbage_end_in_an_error() {
    let fake = Fake::start(vec![Says::Nothing]);
    let mut there = providers("openai", &fake.url, None);
    there.deadline = Duration::from_millis(300);
    let start = Instant::now();
    let error = model(&there).ask(&ask(), None).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));

    for says in [
        Says::Json(200, "<html>".to_owned()),
        Says::Json(200, "{\"choices\": []}".to_owned()),
    ] {
        let fake = Fake::start(vec![says]);
        let there = providers("openai", &fake.url, None);
        let error = model(&there).ask(&ask(), None).await.unwrap_err();
        assert_eq!(error.code(), "provider_error", "{error}");
    }
    let fake = Fake::start(vec![Says::Garbage]);
    let mut there = providers("openai", &fake.url, None);
    there.deadline = Duration::from_secs(3);
    assert!(model(&there).ask(&ask(), None).await.is_err());
    // Nobody there at all.
    let mut there = providers("openai", "http://127.0.0.1:1/v1", None);
    there.deadline = Duration::from_secs(3);
    assert!(model(&there).ask(&ask(), None).await.is_err());
}

#[tokio::test]
async fn t27_keys_are_in_no_error_and_go_nowhere_else() {
    let key = key_file();
    let echo = json!({"error": {"message": format!("bad key {KEY} given")}}).to_string();
    let elsewhere = Fake::start(vec![Says::Json(200, openai("stolen"))]);
    let to: &'static str = Box::leak(format!("Location: {}", elsewhere.url).into_boxed_str());
    for says in [Says::Json(400, echo), Says::With(302, to, String::new())] {
        let fake = Fake::start(vec![says]);
        let there = providers("openai", &fake.url, Some(key.path()));
        let error = model(&there).ask(&ask(), None).await.unwrap_err();
        let shown = format!("{error} {error:?} {there:?} {:?}", model(&there));
        assert!(!shown.contains(KEY), "{shown}");
    }
    assert!(elsewhere.asked().is_empty(), "a redirect was followed");
}

#[test]
fn what_is_not_set_up_is_said() {
    let none = Providers::default();
    let error = |providers: &Providers, id: &str| providers.model(id).unwrap_err().to_string();
    assert!(error(&none, "llama").contains("PROVIDER/MODEL"));
    assert!(error(&none, "nobody/x").contains("there are anthropic, ollama, openai, groq"));
    let mut there = providers("openai", "http://127.0.0.1:1", None);
    there.configured.get_mut("there").unwrap().key_env = Some("NOT_SET_ANYWHERE".to_owned());
    assert!(error(&there, "there/x").contains("NOT_SET_ANYWHERE is not set"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let key = key_file();
        std::fs::set_permissions(key.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
        let there = providers("openai", "http://127.0.0.1:1", Some(key.path()));
        assert!(error(&there, "there/x").contains("others may read it"));
    }
}
