//! Every call of a model leaves a trace, and traces form trees that other tools can read.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod provider_home;

use std::{fs, path::Path, process::Output};

use provider_home::{
    FakeProvider, FakeResponse, KEY, chat_reply, examples_dir, home_with_provider, parse_stdout,
    run_cli, to_text,
};
use serde_json::{Value, json};

fn decision_reply(decision: &str) -> FakeResponse {
    let reply =
        json!({"decision": decision, "skill": "", "artifacts": [], "text": "", "reason": "so"});
    chat_reply(&reply.to_string())
}

fn import_checker(home: &Path) {
    let package = examples_dir().join("packages/consistency-checker.json");
    let imported = run_cli(home, &["package", "import", package.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", to_text(&imported.stderr));
}

fn list_traces(home: &Path) -> Value {
    parse_stdout(&run_cli(home, &["trace", "list", "--json"]))
}

/// Runs the command with further variables of the environment.
fn run_with(home: &Path, args: &[&str], variables: &[(&str, &str)]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(args)
        .env("REPERTOIRE_HOME", home)
        .env("PLANTED_API_KEY", KEY)
        .envs(variables.iter().copied())
        .current_dir(home)
        .output()
        .unwrap()
}

#[test]
fn an_answer_without_a_skill_leaves_a_trace() {
    let fake = FakeProvider::start(vec![
        decision_reply("respond"),
        chat_reply("Penguins cannot fly."),
    ]);
    let home = home_with_provider(&fake);
    let asked = run_cli(home.path(), &["ask", "do penguins fly?", "--json"]);
    assert!(asked.status.success(), "{}", to_text(&asked.stderr));
    let listed = list_traces(home.path());
    assert_eq!(listed["traces"], json!([]), "no artifact was executed");
    let calls = listed["calls"].as_array().unwrap();
    let purposes: Vec<_> = calls.iter().map(|call| &call["purpose"]).collect();
    assert_eq!(purposes, ["answer", "decision"]);
    for call in calls {
        assert_eq!(call["input_tokens"], 400, "{call}");
        assert!(call["cost"].as_f64().unwrap() > 0.0, "{call}");
        assert_eq!(
            (&call["run"], &call["model_id"]),
            (&json!("ask"), &json!("there/m"))
        );
    }
    // People see the same rows.
    let listed = to_text(&run_cli(home.path(), &["trace", "list"]).stdout);
    assert!(
        listed.contains("ask / decision") && listed.contains("450 tokens"),
        "{listed}"
    );
    let stats = parse_stdout(&run_cli(home.path(), &["trace", "stats", "--json"]));
    let tokens: u64 = stats["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["tokens"].as_u64().unwrap())
        .sum();
    assert_eq!(tokens, 900);
    // The session has the message, both prompts and both replies.
    let session = parse_stdout(&asked)["session"].as_str().unwrap().to_owned();
    let tree = parse_stdout(&run_cli(
        home.path(),
        &["trace", "show", &session, "--json"],
    ));
    let root = &tree["spans"][0];
    assert_eq!(
        (&root["name"], &root["input"]),
        (&json!("ask"), &json!("do penguins fly?"))
    );
    assert_eq!(root["children"][1]["output"], "Penguins cannot fly.");
    assert!(
        root["children"][1]["input"]
            .to_string()
            .contains("do penguins fly?")
    );
}

#[test]
fn every_request_to_a_provider_has_exactly_one_span() {
    let contradictions = r#"{"contradictions": []}"#;
    let decision = json!({
        "decision": "activate", "skill": "consistency-checker", "artifacts": ["DSPy Checker"],
        "text": "", "reason": "fits",
    });
    let fake = FakeProvider::start(vec![
        chat_reply(&decision.to_string()),
        chat_reply(r#"{"entity_name": "Mira"}"#),
        chat_reply(contradictions),
        chat_reply("yes"),
    ]);
    let home = home_with_provider(&fake);
    import_checker(home.path());
    let message = "Are there any contradictions about Mira?";
    let asked = run_cli(home.path(), &["ask", message, "--json"]);
    assert!(asked.status.success(), "{}", to_text(&asked.stderr));
    let session = parse_stdout(&asked)["session"].as_str().unwrap().to_owned();
    let tree = parse_stdout(&run_cli(
        home.path(),
        &["trace", "show", &session, "--json"],
    ));
    let mut seen = Vec::new();
    collect(&tree["spans"], "", &mut seen);
    assert_eq!(
        seen,
        [
            "/run ask",
            "/run ask/model_call decision",
            "/run ask/model_call values",
            "/run ask/run consistency-checker",
            "/run ask/run consistency-checker/artifact Overview",
            "/run ask/run consistency-checker/artifact Check Prompt",
            "/run ask/run consistency-checker/artifact Check Prompt/model_call prompt",
            "/run ask/run consistency-checker/artifact Check Prompt/model_call judge",
        ]
    );
    let sent = fake.recorded_requests().len();
    assert_eq!(
        seen.iter()
            .filter(|path| path.contains("model_call"))
            .count(),
        sent
    );
    // Runs name the version of the skill.
    let run = &tree["spans"][0]["children"][2];
    assert!(
        run["digest"].as_str().unwrap().starts_with("sha256:"),
        "{run}"
    );
    let history = run_cli(home.path(), &["history", "consistency-checker", "--json"]);
    let newest = parse_stdout(&history)["revisions"][0]["revision"].clone();
    assert_eq!(run["revision"], newest, "{run}");
    let listed = list_traces(home.path());
    let details = &listed["traces"][0]["details"];
    assert_eq!(details["revision"], newest, "{listed}");
    assert_eq!(details["digest"], run["digest"], "{listed}");

    // The drawing has a line for each span, and the details of the chosen one.
    let shown = to_text(&run_cli(home.path(), &["trace", "show", &session]).stdout);
    assert_eq!(shown.lines().count(), seen.len(), "{shown}");
    assert!(shown.contains("├ decision there/m"), "{shown}");
    assert!(shown.contains("    └ judge there/m"), "{shown}");
    let judge = find(&tree["spans"], "judge").unwrap();
    let shown = to_text(&run_cli(home.path(), &["trace", "show", &judge]).stdout);
    assert!(shown.contains("kind         model_call"), "{shown}");
    let missing = run_cli(home.path(), &["trace", "show", "no-such-id"]);
    assert_eq!(missing.status.code(), Some(3));

    // Deleting traces deletes the spans, too.
    run_cli(home.path(), &["trace", "forget", "--older-than", "1ms"]);
    assert_eq!(list_traces(home.path())["calls"], json!([]));
}

fn collect(nodes: &Value, above: &str, seen: &mut Vec<String>) {
    for node in nodes.as_array().into_iter().flatten() {
        let text = |key: &str| node[key].as_str().unwrap().to_owned();
        let path = format!("{above}/{} {}", text("kind"), text("name"));
        seen.push(path.clone());
        collect(&node["children"], &path, seen);
    }
}

fn find(nodes: &Value, name: &str) -> Option<String> {
    nodes.as_array().into_iter().flatten().find_map(|node| {
        let is_it = node["name"] == name;
        let id = is_it.then(|| node["id"].as_str().unwrap().to_owned());
        id.or_else(|| find(&node["children"], name))
    })
}

#[test]
fn eval_and_folders_without_a_store_leave_traces() {
    let fake = FakeProvider::start(vec![chat_reply("Hello there.")]);
    let home = home_with_provider(&fake);
    let skills = examples_dir().join("skills");
    let skills = skills.to_str().unwrap();
    // The model of the settings is used, although only this folder is served.
    let run = run_cli(
        home.path(),
        &["--from", skills, "run", "hello-world", "-m", "hi", "--json"],
    );
    assert!(run.status.success(), "{}", to_text(&run.stderr));
    let listed = list_traces(home.path());
    assert_eq!(
        listed["traces"][0]["details"]["skill"], "hello-world",
        "{listed}"
    );

    let file = home.path().join("outputs.yaml");
    let written = "outputs:\n  - skill: hello-world\n    message: hi\n    expect:\n      \
                   - {type: length, check: char_range, min: 1, max: 100}\n";
    fs::write(&file, written).unwrap();
    let file = file.to_str().unwrap();
    let measured = run_cli(home.path(), &["--from", skills, "eval", file]);
    assert!(measured.status.success(), "{}", to_text(&measured.stderr));
    let calls = list_traces(home.path())["calls"].clone();
    assert_eq!(
        (&calls[0]["run"], &calls[0]["purpose"]),
        (&json!("eval"), &json!("baseline"))
    );
}

#[test]
fn spans_are_pushed_to_a_collector_as_a_tree() {
    let fake = FakeProvider::start(vec![
        decision_reply("respond"),
        chat_reply("Penguins cannot fly."),
        decision_reply("respond"),
        chat_reply("Penguins cannot fly."),
    ]);
    let collector = FakeProvider::start(vec![FakeResponse::Json(200, "{}".to_owned())]);
    let home = home_with_provider(&fake);
    let push = |content: &str| {
        let asked = run_with(
            home.path(),
            &["ask", "do penguins fly?"],
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url),
                ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=birds"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
                ("OTEL_SERVICE_NAME", "aviary"),
                (
                    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT",
                    content,
                ),
            ],
        );
        assert!(asked.status.success(), "{}", to_text(&asked.stderr));
        let requests = collector.recorded_requests();
        let spans = requests.iter().flat_map(|request| {
            assert_eq!(request.path, "/v1/traces");
            assert_eq!(request.header("x-team"), Some("birds"));
            let resource = &request.body["resourceSpans"][0];
            assert!(resource["resource"].to_string().contains("aviary"));
            resource["scopeSpans"][0]["spans"]
                .as_array()
                .unwrap()
                .clone()
        });
        let spans: Vec<Value> = spans.collect();
        collector.requests.lock().unwrap().clear();
        spans
    };
    let spans = push("false");
    let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap();
    let root = named("invoke_agent ask");
    assert_eq!(root["parentSpanId"], Value::Null);
    let chats: Vec<_> = spans
        .iter()
        .filter(|span| span["name"] == "chat m")
        .collect();
    assert_eq!(chats.len(), 2, "{spans:?}");
    for chat in chats {
        assert_eq!(chat["parentSpanId"], root["spanId"]);
        assert_eq!(chat["traceId"], root["traceId"]);
        let text = chat["attributes"].to_string();
        assert!(text.contains(r#"{"key":"gen_ai.usage.input_tokens","value":{"intValue":"400"}}"#));
        assert!(
            text.contains("gen_ai.provider.name") && !text.contains("penguins"),
            "{text}"
        );
    }
    assert!(
        !json!(spans).to_string().contains("penguins"),
        "content was not asked for"
    );
    let spans = json!(push("true")).to_string();
    assert!(spans.contains("gen_ai.output.messages") && spans.contains("Penguins cannot fly."));
    assert!(!spans.contains(KEY));
}

#[test]
fn a_collector_that_is_away_changes_nothing_but_a_warning() {
    let fake = FakeProvider::start(vec![decision_reply("respond"), chat_reply("No.")]);
    let home = home_with_provider(&fake);
    // A port that nothing listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/?key=hidden-value", free.local_addr().unwrap());
    drop(free);
    let variables = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*url)];
    let asked = run_with(home.path(), &["ask", "do penguins fly?"], &variables);
    assert!(asked.status.success());
    assert_eq!(to_text(&asked.stdout), "No.\n");
    let warned = to_text(&asked.stderr);
    assert!(warned.contains("traces cannot be exported"), "{warned}");
    assert!(!warned.contains("hidden-value"), "{warned}");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "not a url")];
    let ran = run_with(home.path(), &["ask", "do penguins fly?"], &variables);
    let warned = to_text(&ran.stderr);
    assert!(warned.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{warned}");
}

#[test]
fn t27_secrets_are_in_no_span_however_they_are_written() {
    const SECRET: &str = "sk-planted0123456789abcdefghij";
    let fake = FakeProvider::start(vec![decision_reply("respond"), chat_reply("Noted.")]);
    let home = home_with_provider(&fake);
    // At the beginning of a line, where JSON writes a letter before it.
    let message = format!("keep this:\n{SECRET}\nplease");
    let asked = run_cli(home.path(), &["ask", &message]);
    assert!(asked.status.success(), "{}", to_text(&asked.stderr));
    let exported = run_cli(home.path(), &["trace", "export", "--format", "jsonl"]);
    let exported = to_text(&exported.stdout);
    assert!(
        exported.contains("keep this") && exported.contains("[redacted]"),
        "{exported}"
    );
    assert!(!exported.contains(SECRET), "{exported}");
    // Nor anywhere else in the account, such as the conversation.
    for entry in fs::read_dir(home.path()).unwrap().flatten() {
        let bytes = fs::read(entry.path()).unwrap_or_default();
        let found = bytes
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes());
        assert!(!found, "{}", entry.path().display());
    }
}

#[test]
fn errors_that_quote_a_prompt_are_not_exported_without_it() {
    let body = json!({"error": {"message": "cannot answer: do penguins fly?"}}).to_string();
    let fake = FakeProvider::start(vec![FakeResponse::Json(400, body)]);
    let collector = FakeProvider::start(vec![FakeResponse::Json(200, "{}".to_owned())]);
    let home = home_with_provider(&fake);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
    ];
    let asked = run_with(home.path(), &["ask", "do penguins fly?"], &variables);
    assert!(!asked.status.success());
    let sent: Vec<Value> = collector
        .recorded_requests()
        .into_iter()
        .map(|r| r.body)
        .collect();
    let sent = json!(sent).to_string();
    assert!(
        sent.contains("error.type") && !sent.contains("penguins"),
        "{sent}"
    );
}

#[test]
fn calls_of_a_run_that_was_killed_are_listed() {
    // The second request is never answered.
    let fake = FakeProvider::start(vec![decision_reply("respond"), FakeResponse::NoResponse]);
    let home = home_with_provider(&fake);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["ask", "do penguins fly?"])
        .env("REPERTOIRE_HOME", home.path())
        .env("PLANTED_API_KEY", KEY)
        .current_dir(home.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fake.recorded_requests().len() < 2 {
        assert!(
            std::time::Instant::now() < deadline,
            "the model was not asked"
        );
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let calls = list_traces(home.path())["calls"].clone();
    assert_eq!(
        (
            &calls[0]["run"],
            &calls[0]["purpose"],
            &calls[0]["input_tokens"]
        ),
        (&json!("unfinished"), &json!("decision"), &json!(400))
    );
}
