//! A small real model on loopback: runs, assertions, traces and decisions.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

#[path = "../../core/tests/support/part.rs"]
mod part;
mod provider_home;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use provider_home::{parse_stdout, run_cli};
use serde_json::{Value, json};

/// The model server; it exits when its stdin closes.
struct ModelServer(Child, String);

impl ModelServer {
    /// Starts the server, if the test command has installed one.
    fn start() -> Option<Self> {
        let python = part::installed_part("REPERTOIRE_TEST_PYTHON");
        let script = std::env::var_os("REPERTOIRE_TEST_SERVER");
        let (Some(python), Some(script)) = (python, script) else {
            return None;
        };
        let mut child = Command::new(python)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert!(line.starts_with("http://127.0.0.1:"), "{line:?}");
        Some(Self(child, line.trim().to_owned()))
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_model_run_is_checked_and_its_tokens_are_traced() {
    let Some(server) = ModelServer::start() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "model = \"local/smollm2\"\n[providers.local]\nkind = \"openai\"\nbase_url = \"{}/v1\"\n\
         [prices.\"local/smollm2\"]\ninput = 0.1\noutput = 0.2\n",
        server.1
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    let schema = json!({
        "type": "object", "required": ["colour", "warmth"], "additionalProperties": false,
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green", "blue"]},
            "warmth": {"type": "integer", "minimum": 1, "maximum": 5},
        },
    });
    let package = json!({
        "name": "Colour Picker",
        "description": "Names the colour that suits a mood. Use for questions about colours.",
        "trigger_phrases": ["which colour"],
        "artifacts": [
            {"kind": "description", "name": "Overview", "content": "Picks a colour for a mood."},
            {"kind": "prompt_template", "name": "Pick", "ordinal": 1,
             "content": "Which colour suits this: {{ message }}? Answer as JSON.",
             "metadata": {"temperature": 0.0, "assertions": [
                 {"type": "structural", "check": "json_schema", "schema": schema},
                 {"type": "length", "check": "char_range", "min": 10, "max": 400},
             ]}},
        ],
    });
    fs::write(home.path().join("picker.json"), package.to_string()).unwrap();
    let imported = run_cli(home.path(), &["package", "import", "picker.json"]);
    assert!(imported.status.success());

    let args = ["run", "colour-picker", "-m", "a calm evening", "--json"];
    let done = parse_stdout(&run_cli(home.path(), &args));
    assert_eq!(done["error"], Value::Null, "{done}");
    let colour = done["value"]["colour"].as_str().unwrap();
    assert!(["red", "green", "blue"].contains(&colour), "{done}");
    let listed = parse_stdout(&run_cli(home.path(), &["trace", "list", "--json"]));
    let rows = listed["traces"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{listed}");
    let asked = rows
        .iter()
        .find(|row| row["artifact_kind"] == "prompt_template")
        .unwrap();
    assert!(asked["input_tokens"].as_u64().unwrap() > 10, "{asked}");
    assert!(asked["output_tokens"].as_u64().unwrap() > 3, "{asked}");
    assert!(asked["estimated_cost"].as_f64().unwrap() > 0.0, "{asked}");
    assert_eq!(asked["model_id"], "local/smollm2");
    assert_eq!(
        (&asked["assertions_run"], &asked["assertions_passed"]),
        (&json!(2), &json!(2))
    );

    // Both phases: the decision of so small a model is arbitrary, but must be a valid one.
    let vault = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/vault");
    let message = "which colour for a calm evening?";
    let args = [
        "ask",
        message,
        "--json",
        "--answer-tokens",
        "60",
        "--vault",
        vault,
    ];
    let answer = run_cli(home.path(), &args);
    let asked = parse_stdout(&answer);
    assert_eq!(
        asked["recommendations"][0]["id"], "colour-picker",
        "{asked}"
    );
    let decision = asked["decided"]["decision"].as_str().unwrap();
    assert!(
        ["activate", "respond", "research", "clarify"].contains(&decision),
        "{asked}"
    );
    assert!(
        asked["decided"]["usage"]["input_tokens"].as_u64().unwrap() > 50,
        "{asked}"
    );

    // A budget applies to a real model, too.
    let args = [
        "run",
        "colour-picker",
        "-m",
        "dusk",
        "--max-tokens",
        "5",
        "--json",
    ];
    let refused = parse_stdout(&run_cli(home.path(), &args));
    assert_eq!(refused["error"]["code"], "budget_exceeded");
}

#[cfg(unix)]
#[test]
fn a_module_is_optimized_with_a_real_model_and_the_next_run_uses_it() {
    let Some(sidecar) = part::installed_part("REPERTOIRE_TEST_SIDECAR") else {
        return;
    };
    let Some(server) = ModelServer::start() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(sidecar, home.path().join("sidecar")).unwrap();
    let config = format!(
        "model = \"local/smollm2\"\n[providers.local]\nkind = \"openai\"\nbase_url = \"{}/v1\"\n",
        server.1
    );
    fs::write(home.path().join("config.toml"), config).unwrap();
    let package = json!({
        "name": "Moods", "description": "Says whether a remark is glad or sad.", "artifacts": [
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1,
             "content": "Is this glad or sad: {{ remark }}"},
            {"kind": "dspy_module", "name": "Judge", "ordinal": 2,
             "content": "{\"template_id\": \"predict\", \"signature\": \"remark -> mood\"}",
             "metadata": {"fallback_artifact": "Ask"}}],
    });
    fs::write(home.path().join("moods.json"), package.to_string()).unwrap();
    assert!(
        run_cli(home.path(), &["package", "import", "moods.json"])
            .status
            .success()
    );
    let remarks = [
        ("what a lovely day", "glad"),
        ("I lost my keys", "sad"),
        ("we won the game", "glad"),
        ("it rained on my picnic", "sad"),
        ("the cake was perfect", "glad"),
        ("no one came", "sad"),
    ];
    let rows = remarks.map(|(remark, mood)| json!({"remark": remark, "mood": mood}).to_string());
    fs::write(home.path().join("moods.jsonl"), rows.join("\n")).unwrap();
    // The reply of so small a model is arbitrary, so the test compares prompt sizes.
    let asked = || {
        let args = [
            "run",
            "moods",
            "-p",
            "remark=hello",
            "--answer-tokens",
            "40",
            "--json",
        ];
        let report = parse_stdout(&run_cli(home.path(), &args));
        let row = &report["traces"][0];
        assert_eq!(row["artifact_kind"], "dspy_module", "{report}");
        let calls = row["details"]["used"]["model_calls"]["used"]
            .as_u64()
            .unwrap();
        row["input_tokens"].as_u64().unwrap() / calls
    };
    let before = asked();
    let args = [
        "optimize",
        "moods",
        "--examples",
        "moods.jsonl",
        "--with",
        "bootstrap",
        "--force",
        "--answer-tokens",
        "40",
        "--json",
    ];
    let learned = parse_stdout(&run_cli(home.path(), &args));
    assert_eq!(learned["kept"], true, "{learned}");
    assert!(
        learned["improvement"]["learning"]["input_tokens"]
            .as_u64()
            .unwrap()
            > 100
    );
    let after = asked();
    // The learned examples are in the prompt now.
    assert!(after > before + 50, "{before} tokens before, {after} after");
}
