//! The tools that search and run skills: off by default, and their behaviour when offered.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

#[path = "../../runtime/tests/common/fake.rs"]
mod fake;
#[path = "../../core/tests/support/part.rs"]
mod part;
mod wire;

use std::{fs, path::Path, process::Command, time::Duration};

use fake::{FakeProvider, FakeResponse};
use serde_json::{Value, json};
use wire::{ProtocolEra, StdioServer};

fn home_with_skill(config: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("config.toml"), config).unwrap();
    let skill = json!({
        "name": "Colour Picker", "description": "Names the colour that suits a mood.",
        "trigger_phrases": ["which colour"],
        "artifacts": [
            {"kind": "description", "name": "Overview", "content": "Picks a colour."},
            {"kind": "prompt_template", "name": "Pick", "ordinal": 1,
             "content": "A colour for {{ mood }}? {{ message }}",
             "metadata": {"assertions": [{"type": "pattern", "check": "regex_match",
                                          "pattern": "red|green|blue"}]}},
        ],
    });
    fs::write(home.path().join("skill.json"), skill.to_string()).unwrap();
    let imported = run_cli(home.path(), &["package", "import", "skill.json"]);
    assert!(imported.status.success());
    home
}

fn run_cli(home: &Path, args: &[&str]) -> std::process::Output {
    Command::new(wire::BIN)
        .args(args)
        .env("REPERTOIRE_HOME", home)
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .current_dir(home)
        .output()
        .unwrap()
}

fn tool_names(server: &mut StdioServer) -> Vec<String> {
    let listed = server.send_request("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).collect()
}

fn call_tool(server: &mut StdioServer, name: &str, arguments: &Value) -> Value {
    let params = json!({"name": name, "arguments": arguments});
    server.send_request("tools/call", params)["result"].clone()
}

#[test]
fn no_tool_is_offered_by_default() {
    let home = home_with_skill("");
    for era in [ProtocolEra::Legacy, ProtocolEra::Modern] {
        let mut server = StdioServer::start(home.path(), &[], era);
        assert_eq!(tool_names(&mut server), ["skills_list", "skill__fetch"]);
        let params = json!({"name": "skill_run", "arguments": {"skill": "colour-picker"}});
        let refused = server.send_request("tools/call", params);
        assert!(
            refused["error"]["message"]
                .as_str()
                .unwrap()
                .contains("not found")
        );
        let mut server = StdioServer::start(home.path(), &["--offer", "search"], era);
        assert_eq!(tool_names(&mut server)[2..], ["skills_search"]);
    }
}

#[test]
fn skills_search_finds_existing_and_newly_added_skills() {
    let home = home_with_skill("offer = [\"search\"]\n");
    let mut server = StdioServer::start(home.path(), &[], ProtocolEra::Modern);
    let ask = |server: &mut StdioServer, message: &str| {
        let found = call_tool(server, "skills_search", &json!({"message": message}));
        found["structuredContent"]["skills"].clone()
    };
    let found = ask(&mut server, "which colour for tonight?");
    assert_eq!(found[0]["id"], "colour-picker", "{found}");
    assert_eq!(ask(&mut server, "a joke about penguins"), json!([]));
    let none = call_tool(
        &mut server,
        "skills_search",
        &json!({"message": "penguins"}),
    );
    assert_eq!(none["content"][0]["text"], "No skill fits.");
    for (wrong, words) in [
        (json!({}), "`message` must be given"),
        (json!({"message": 7}), "must be a string"),
        (json!({"message": "x", "limit": 0}), "from 1 to 20"),
    ] {
        let refused = call_tool(&mut server, "skills_search", &wrong);
        assert_eq!(refused["isError"], true);
        assert!(refused.to_string().contains(words), "{refused}");
    }
    // Another process adds one.
    let folder = home.path().join("penguin-facts");
    fs::create_dir(&folder).unwrap();
    let text = "---\nname: penguin-facts\ndescription: Tells facts about penguins.\n---\n# Facts\n";
    fs::write(folder.join("SKILL.md"), text).unwrap();
    let added = run_cli(home.path(), &["add", folder.to_str().unwrap()]);
    assert!(added.status.success());
    let start = std::time::Instant::now();
    loop {
        let found = ask(&mut server, "some facts about penguins");
        if found[0]["id"] == "penguin-facts" {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{found}");
    }
}

#[test]
fn a_skill_runs_with_the_servers_model_and_stores_a_trace() {
    let answer = json!({
        "id": "x", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "blue"},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42},
    });
    let fake = FakeProvider::start(vec![FakeResponse::Json(200, answer.to_string())]);
    let home = home_with_skill(&format!(
        "offer = [\"run\"]\nmodel = \"there/m\"\n[providers.there]\nkind = \"openai\"\n\
         base_url = \"{}/v1\"\n",
        fake.url
    ));
    let mut server = StdioServer::start(home.path(), &[], ProtocolEra::Modern);
    let arguments = json!({"skill": "colour-picker", "message": "Now", "params": {"mood": "dusk"}});
    let done = call_tool(&mut server, "skill_run", &arguments);
    assert_eq!(done["content"][0]["text"], "blue", "{done}");
    let about = &done["structuredContent"];
    assert_eq!(about["usage"]["input_tokens"], 40);
    assert_eq!(about["artifacts"][1]["assertions_passed"], 1);
    let prompt = &fake.recorded_requests()[0].body["messages"][1]["content"];
    assert_eq!(prompt, "A colour for dusk? Now");
    let listed = run_cli(home.path(), &["trace", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["traces"].as_array().unwrap().len(), 2, "{listed}");
    for (wrong, words) in [
        (json!({}), "`skill` must be given"),
        (json!({"skill": "absent"}), "not found"),
        (
            json!({"skill": "colour-picker"}),
            "`mood` must be given in `params`",
        ),
        (
            json!({"skill": "colour-picker", "artifacts": ["No"]}),
            "artifact \\\"No\\\" not found",
        ),
        (
            json!({"skill": "colour-picker", "params": []}),
            "must be an object",
        ),
    ] {
        let refused = call_tool(&mut server, "skill_run", &wrong);
        assert_eq!(refused["isError"], true, "{refused}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
}

#[test]
fn without_its_own_model_the_server_samples_from_the_host() {
    let home = home_with_skill("offer = [\"run\"]\n");
    let mut server = StdioServer::start(home.path(), &[], ProtocolEra::Legacy);
    let arguments = json!({"skill": "colour-picker", "message": "Now", "params": {"mood": "dusk"}});
    let run = json!({"jsonrpc": "2.0", "id": 50, "method": "tools/call",
                     "params": {"name": "skill_run", "arguments": arguments}});
    let patience = Duration::from_secs(20);
    let next = |server: &StdioServer, wanted: &dyn Fn(&Value) -> bool| loop {
        let line = server
            .read_message(patience)
            .unwrap_or_else(|| panic!("{}", server.stderr_text()));
        if wanted(&line) {
            return line;
        }
    };
    server.send_line(run.to_string().as_bytes());
    let question = next(&server, &|line| line["method"] == "sampling/createMessage");
    let asked = &question["params"];
    assert_eq!(
        asked["messages"][0]["content"]["text"],
        "A colour for dusk? Now"
    );
    assert_eq!(asked["systemPrompt"], "Picks a colour.");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {
        "role": "assistant", "content": {"type": "text", "text": "green"}, "model": "theirs",
        "stopReason": "endTurn"}});
    server.send_line(answer.to_string().as_bytes());
    let done = next(&server, &|line| {
        line["id"] == 50 && line.get("method").is_none()
    });
    assert_eq!(done["result"]["content"][0]["text"], "green", "{done}");
    let listed = run_cli(home.path(), &["trace", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(listed.to_string().contains("host/theirs"), "{listed}");
    // The user may refuse.
    server.send_line(run.to_string().replace("50", "51").as_bytes());
    let question = next(&server, &|line| line["method"] == "sampling/createMessage");
    let refusal = json!({"jsonrpc": "2.0", "id": question["id"],
                         "error": {"code": -1, "message": "the user said no"}});
    server.send_line(refusal.to_string().as_bytes());
    let refused = next(&server, &|line| {
        line["id"] == 51 && line.get("method").is_none()
    });
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(
        refused.to_string().contains("the user said no"),
        "{refused}"
    );
}

#[test]
fn without_sessions_the_host_sends_the_model_answer_in_a_second_call() {
    let home = home_with_skill("offer = [\"run\"]\n");
    let mut server = StdioServer::start(home.path(), &[], ProtocolEra::Modern);
    let arguments = json!({"skill": "colour-picker", "message": "Now", "params": {"mood": "dusk"}});
    let can = json!({"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}});
    let run = |server: &mut StdioServer, more: Value| {
        let mut params = json!({"name": "skill_run", "arguments": arguments, "_meta": can});
        let fields = params.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        server.send_request("tools/call", params)["result"].clone()
    };
    let question = run(&mut server, json!({}));
    assert_eq!(question["resultType"], "input_required", "{question}");
    let asked = &question["inputRequests"]["model"];
    assert_eq!(asked["method"], "sampling/createMessage");
    let text = &asked["params"]["messages"][0]["content"]["text"];
    assert_eq!(text, "A colour for dusk? Now");
    let answer = |text: &str| {
        json!({"model": {"role": "assistant", "content": {"type": "text", "text": text},
                         "model": "theirs"}})
    };
    let back = |question: &Value, answers: Value| json!({"requestState": question["requestState"], "inputResponses": answers});
    let done = run(&mut server, back(&question, answer("green")));
    assert_eq!(done["content"][0]["text"], "green", "{done}");
    // A request state is valid for one answer, and only for the same arguments.
    let again = run(&mut server, back(&question, answer("red")));
    assert!(
        again.to_string().contains("no run waits for that"),
        "{again}"
    );
    let question = run(&mut server, json!({}));
    let mut other = back(&question, answer("red"));
    other["arguments"] = json!({"skill": "colour-picker"});
    let other = run(&mut server, other);
    assert!(
        other.to_string().contains("no run waits for that"),
        "{other}"
    );
    // A host that returns no answer has refused.
    let question = run(&mut server, json!({}));
    let none = run(&mut server, back(&question, json!({})));
    assert_eq!(none["isError"], true, "{none}");
    // Without the sampling capability the host is not asked for a completion.
    let none = call_tool(&mut server, "skill_run", &json!({"skill": "colour-picker"}));
    assert!(none.to_string().contains("no model to ask"), "{none}");
}

#[cfg(unix)]
#[test]
fn a_script_without_model_calls_needs_no_model() {
    let Some(sandbox) = part::installed_part("REPERTOIRE_TEST_SANDBOX") else {
        return;
    };
    let home = home_with_skill("");
    std::os::unix::fs::symlink(sandbox, home.path().join("sandbox")).unwrap();
    let script = "import repertoire\nrepertoire.submit(40 + more)";
    let sums = json!({"name": "Sums", "description": "Adds.", "artifacts": [
        {"kind": "code_template", "name": "Add", "content": script},
    ]});
    fs::write(home.path().join("sums.json"), sums.to_string()).unwrap();
    let imported = run_cli(home.path(), &["package", "import", "sums.json"]);
    assert!(imported.status.success());
    let mut server = StdioServer::start(home.path(), &["--offer", "run"], ProtocolEra::Modern);
    let arguments = json!({"skill": "sums", "params": {"more": 2}});
    let done = call_tool(&mut server, "skill_run", &arguments);
    assert_eq!(done["structuredContent"]["value"], 42, "{done}");
}
