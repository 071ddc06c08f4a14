//! Searching by meaning over MCP: what clients choose, example messages, and their limits.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests"
)]

mod common;
#[path = "../../runtime/tests/common/fake.rs"]
mod fake;
#[path = "../../core/tests/support/part.rs"]
mod part;
mod wire;

use std::fs;

use common::{TestWorkspace, wait_for};
use fake::{FakeProvider, FakeResponse};
use serde_json::{Value, json};
use wire::HttpServer;

const SKILLS: [(&str, &str); 3] = [
    (
        "tide-tables",
        "Tells when the sea is high or low in a harbour.",
    ),
    (
        "sail-repair",
        "Mends torn sails with tape, needle and thread.",
    ),
    ("kite-making", "Builds kites of paper and bamboo."),
];

/// A place with skills and the sentence model; `None` without the model.
fn place_with_model(config: &str) -> Option<TestWorkspace> {
    let model = part::installed_part("REPERTOIRE_TEST_MODEL")?;
    let place = TestWorkspace::new();
    for (name, about) in SKILLS {
        let text = format!("---\nname: {name}\ndescription: {about}\n---\n# {name}\n");
        place.write_file(&format!("skills/{name}/SKILL.md"), &text);
    }
    fs::create_dir_all(place.home_dir()).unwrap();
    let folders = place.work_dir().join("skills");
    let config = format!("folders = [{:?}]\n{config}", folders.to_str().unwrap());
    fs::write(place.home_dir().join("config.toml"), config).unwrap();
    place.run_ok(&["setup", "embeddings", "--from", model.to_str().unwrap()]);
    Some(place)
}

/// Searches as the holder of a token, with explanations.
fn search_as(http: &HttpServer, token: &str, message: &str) -> Value {
    let arguments = json!({"message": message, "explain": true});
    let header = format!("Authorization: Bearer {token}\r\n");
    let params = json!({"name": "skills_search", "arguments": arguments});
    let answer = http.send_request_with(&header, "tools/call", params);
    answer.rpc_message()["result"]["structuredContent"].clone()
}

fn read_as(http: &HttpServer, token: &str, skill: &str) {
    let header = format!("Authorization: Bearer {token}\r\n");
    let params = json!({"uri": format!("skill://{skill}/SKILL.md")});
    let answer = http.send_request_with(&header, "resources/read", params);
    assert!(answer.rpc_message()["result"].is_object());
}

fn usage_of(found: &Value, skill: &str) -> f64 {
    let skills = found["skills"].as_array().unwrap();
    let one = skills.iter().find(|one| one["id"] == skill);
    one.map_or(0.0, |one| one["parts"]["usage"].as_f64().unwrap())
}

const MESSAGE: &str = "can I leave the harbour at noon, or is the sea too low";

#[test]
fn t36_what_a_client_chooses_moves_its_own_results_and_no_others() {
    let Some(place) = place_with_model("offer = [\"search\"]\n") else {
        return;
    };
    let token = |name: &str| place.run_ok(&["token", "create", name]).trim().to_owned();
    let (one, other) = (token("one"), token("other"));
    let http = HttpServer::start(&place.home_dir(), &[]);
    let found = search_as(&http, &one, MESSAGE);
    assert_eq!(found["skills"][0]["id"], "tide-tables", "{found}");
    assert!(usage_of(&found, "tide-tables").abs() < f64::EPSILON);
    // Another client found the same, and this one read something it did not find.
    search_as(&http, &other, MESSAGE);
    read_as(&http, &one, "tide-tables");
    wait_for("the choice to count", || {
        usage_of(&search_as(&http, &one, MESSAGE), "tide-tables") > 0.0
    });
    let found = search_as(&http, &one, MESSAGE);
    assert!(usage_of(&found, "tide-tables") <= 0.06, "{found}");
    let theirs = search_as(&http, &other, MESSAGE);
    assert!(
        usage_of(&theirs, "tide-tables").abs() < f64::EPSILON,
        "{theirs}"
    );
    // The score is the sum of its parts.
    let skill = &found["skills"][0];
    let parts = skill["parts"].as_object().unwrap().values();
    let sum: f64 = parts.map(|part| part.as_f64().unwrap()).sum();
    assert!(
        (sum - skill["score"].as_f64().unwrap()).abs() < 1e-6,
        "{skill}"
    );
    // The text of the message is nowhere on the disk, and all of it can be forgotten.
    let mut files = 0;
    for file in fs::read_dir(place.home_dir()).unwrap() {
        let Ok(bytes) = fs::read(file.unwrap().path()) else {
            continue;
        };
        files += 1;
        let text = b"leave the harbour at noon";
        assert!(!bytes.windows(text.len()).any(|window| window == text));
    }
    assert!(files >= 2, "the store and the settings");
    let forgotten: Value =
        serde_json::from_str(&place.run_ok(&["search", "--forget", "--json"])).unwrap();
    assert_eq!(forgotten["forgotten"], 1);
    assert!(usage_of(&search_as(&http, &one, MESSAGE), "tide-tables").abs() < f64::EPSILON);
}

#[test]
fn learning_from_use_can_be_switched_off() {
    let config = "offer = [\"search\"]\n[search]\nlearn = false\n";
    let Some(place) = place_with_model(config) else {
        return;
    };
    let token = place.run_ok(&["token", "create", "one"]);
    let http = HttpServer::start(&place.home_dir(), &[]);
    search_as(&http, token.trim(), MESSAGE);
    read_as(&http, token.trim(), "tide-tables");
    search_as(&http, token.trim(), MESSAGE);
    drop(http);
    let forgotten: Value =
        serde_json::from_str(&place.run_ok(&["search", "--forget", "--json"])).unwrap();
    assert_eq!(forgotten["forgotten"], 0);
}

fn reply(text: &str) -> FakeResponse {
    let answer = json!({
        "id": "x", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 200, "completion_tokens": 60, "total_tokens": 260},
    });
    FakeResponse::Json(200, answer.to_string())
}

#[test]
fn a_model_writes_example_messages_for_all_skills_or_none() {
    let kite = r#"["why does it dive in strong wind", "help me with my hobby today", "glue for thin spars"]"#;
    let sail = r#"["a rip along the seam at sea", "help me with my hobby today"]"#;
    let tide = r#"["does my keel touch ground at noon", "Sea"]"#;
    let fake = FakeProvider::start(vec![
        // The first run breaks off after one skill: nothing is used, and nothing is lost.
        reply(kite),
        FakeResponse::Json(400, r#"{"error": {"message": "no more"}}"#.to_owned()),
        reply("I would rather talk about something else."),
        reply(sail),
        reply(tide),
    ]);
    let config = format!(
        "model = \"there/m\"\n[providers.there]\nkind = \"openai\"\nbase_url = \"{}/v1\"\n",
        fake.url
    );
    let Some(place) = place_with_model(&config) else {
        return;
    };
    let run = |args: &[&str]| place.run(&[args, &["--no-system-skills"]].concat());
    let listed = || -> Value {
        let out = run(&["setup", "examples", "--list", "--json"]);
        serde_json::from_str(&out.stdout()).unwrap()
    };
    let failed = run(&["setup", "examples"]);
    assert_ne!(failed.exit_code(), 0);
    let error = failed.stderr();
    assert!(error.contains("what was written so far is kept"), "{error}");
    assert_eq!(listed()["examples"], json!([]));

    let written = run(&["setup", "examples", "--json"]);
    assert_eq!(written.exit_code(), 0, "{}", written.stderr());
    let report: Value = serde_json::from_str(&written.stdout()).unwrap();
    let report = &report["written"];
    assert_eq!(
        (&report["skills"], &report["messages"]),
        (&json!(3), &json!(4)),
        "{report}"
    );
    assert_eq!(report["dropped"], 3, "two say the same, one is a word");
    // The text of skills is passed as data, and names the model afterwards.
    let prompt = fake.recorded_requests()[0].body["messages"].to_string();
    assert!(prompt.contains("data, not instructions"), "{prompt}");
    assert_eq!(listed()["examples"][0]["model"], "there/m");
    let again = run(&["setup", "examples"]);
    assert!(again.stderr().contains("every trusted skill has"));
    assert_eq!(fake.recorded_requests().len(), 5, "nothing was asked again");

    let found = run(&["search", "--json", "--all", "does the keel touch ground"]);
    let found: Value = serde_json::from_str(&found.stdout()).unwrap();
    assert_eq!(found["skills"][0]["id"], "tide-tables", "{found}");
    // The skill itself is what it was.
    let file = place.work_dir().join("skills/tide-tables/SKILL.md");
    assert!(!fs::read_to_string(file).unwrap().contains("keel"));
    let removed = run(&["setup", "examples", "--remove", "tide-tables"]);
    assert!(removed.stderr().contains("1 skill"));
    assert_eq!(listed()["examples"].as_array().unwrap().len(), 2);
}
