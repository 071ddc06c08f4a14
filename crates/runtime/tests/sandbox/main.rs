//! Tests of scripts in the sandbox: the available calls, and the limits on untrusted scripts.
//!
//! `REPERTOIRE_TEST_SANDBOX` is the folder where the test command installs the sandbox.

#![cfg(feature = "sandbox")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

#[path = "../common/mod.rs"]
mod common;
mod install;
mod nested;
#[path = "../../../core/tests/support/part.rs"]
mod part;
mod reporting;
mod untrusted;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use proptest::prelude::*;
use repertoire_runtime::{
    ArtifactDispatcher, Error, ExecutionContext, ExecutionRecord, Limits, LoadableSkill, Model,
    ModelReply, ModelRequest, ModelUsage, NestedSkills, Price, SkillLookup, TemplateEngine, Vault,
    model::ReplyListener,
    run::{RunReport, plan_run, run_plan},
    sandbox::ScriptHandler,
};
use serde_json::{Value, json};

use common::RecordingSkill;

fn installed_sandbox() -> Option<PathBuf> {
    part::installed_part("REPERTOIRE_TEST_SANDBOX").map(PathBuf::from)
}

/// One sandbox shared by all tests of the process.
fn shared_dispatcher() -> Option<ArtifactDispatcher> {
    static SHARED: OnceLock<Option<ArtifactDispatcher>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let scripts = ScriptHandler::new(installed_sandbox()?, Limits::default());
        let mut dispatcher = ArtifactDispatcher::default();
        dispatcher.add_handler(Arc::new(scripts));
        Some(dispatcher)
    });
    shared.clone()
}

/// A model that returns the prompt after a delay.
#[derive(Debug)]
struct EchoModel(Duration);

#[async_trait]
impl Model for EchoModel {
    fn id(&self) -> &'static str {
        "test/echo"
    }

    fn price(&self) -> Option<Price> {
        Some(Price {
            input: 1.0,
            output: 1.0,
        })
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        tokio::time::sleep(self.0).await;
        let text = ask.turns.last().unwrap().text.clone();
        let tokens = ask.estimate_tokens();
        Ok(ModelReply {
            usage: ModelUsage {
                input_tokens: Some(tokens),
                output_tokens: Some(tokens),
                cost: Some(Price::cost_for(self.price().unwrap(), tokens, tokens)),
            },
            text,
            cut: false,
        })
    }
}

fn script_skill(code: &str, metadata: &Value) -> RecordingSkill {
    RecordingSkill::new(&json!({
        "name": "S", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code,
                       "metadata": metadata}],
    }))
}

fn script_context(params: &Value) -> ExecutionContext {
    let mut context = ExecutionContext::new();
    context.values = params.as_object().cloned().unwrap_or_default();
    context.model = Some(Arc::new(EchoModel(Duration::ZERO)));
    let vault = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/vault");
    context.engine = TemplateEngine::with_workspace(Arc::new(Vault::open(&vault).unwrap()));
    context
}

async fn run_script(
    dispatcher: &ArtifactDispatcher,
    skill: &RecordingSkill,
    cx: &mut ExecutionContext,
) -> RunReport {
    let plan = plan_run(skill, dispatcher, "", &["Script".to_owned()]).unwrap();
    run_plan(skill, dispatcher, &plan, cx, &mut |_| {}).await
}

async fn submitted_value(dispatcher: &ArtifactDispatcher, code: &str, params: Value) -> Value {
    let mut cx = script_context(&params);
    let report = run_script(dispatcher, &script_skill(code, &json!({})), &mut cx).await;
    report.outcome.unwrap().value.unwrap()
}

#[tokio::test]
async fn scripts_query_the_workspace_and_the_model() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let code = r#"
import inklings, repertoire
assert inklings is repertoire
page = inklings.get_page(inklings.search("harbour")[0]["slug"])
assert inklings.workspace_search("harbour") == inklings.search("harbour")
assert page["text"] and page["slug"] == inklings.page(page["title"])["slug"]
assert inklings.get_page("nowhere") is None
assert [p["slug"] for p in inklings.get_pages([page["slug"], "nowhere"])] == [page["slug"]]
people = inklings.get_pages_by_type("person")
tags = inklings.get_tags()
links = inklings.get_references(page["slug"])
history = inklings.get_history(page["slug"], limit=3)
one = inklings.llm_query("one", max_tokens=5)
many = inklings.llm_query_batched(["a", "b", "c"])
inklings.submit({"people": len(people), "tags": len(tags), "links": sorted(links), "one": one,
                 "many": many, "history": history})
raise AssertionError("submit ends a script")
"#;
    let mut cx = script_context(&json!({}));
    let report = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
    let record = &report.records[0];
    let value = report.outcome.unwrap().value.unwrap();
    assert!(value["people"].as_u64().unwrap() >= 2, "{value}");
    assert_eq!(value["links"], json!(["backlinks", "links", "missing"]));
    assert_eq!(
        (&value["one"], &value["many"]),
        (&json!("one"), &json!(["a", "b", "c"]))
    );
    let used = &record.details.used;
    assert!(used["fuel"].used > 1_000_000 && used["fuel"].limit.is_some());
    assert!(used["host_calls"].used >= 14, "{used:?}");
    assert!(used["memory_bytes"].used > 0 && used["time_ms"].limit == Some(300_000));
    assert_eq!(record.model_id.as_deref(), Some("test/echo"));
    assert_eq!(record.input_tokens, Some(4));
    assert_eq!(used["model_tokens"].used, 8);
    assert!(record.estimated_cost.unwrap() > 0.0);
}

#[tokio::test]
async fn a_script_in_the_style_of_the_package_format_runs() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    // The value is used both in a template tag and as a variable; the code uses one-space indents.
    let code = "import inklings\n\nfound = inklings.search('{{ entity_type }}')\nfacts = []\n\
                for page in found:\n body = inklings.get_page(page['slug'])\n \
                facts.extend(inklings.llm_query(f'- About {entity_type}: {body}'))\n\
                inklings.submit({'entity_type': '{{ entity_type }}', 'facts': facts})";
    let value = submitted_value(&dispatcher, code, json!({"entity_type": "harbour"})).await;
    assert_eq!(value["entity_type"], "harbour");
    let facts = value["facts"].as_array().unwrap();
    let about = |fact: &Value| fact.as_str().unwrap().starts_with("About harbour:");
    assert!(facts.iter().any(about), "{value}");
}

#[tokio::test]
async fn answers_are_text_and_lists_of_items() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    // The model of these tests answers with the prompt.
    let code = r#"
import inklings
seen = {}
for name, answer in {
    "json": '["one", "two"]', "fenced": '```json\n["one", "two"]\n```',
    "object": '{"claims": ["one", "two"]}', "bullets": "Here they are:\n- one\n* two\n",
    "numbers": "1. one\n2) two",
}.items():
    found = []
    found.extend(inklings.llm_query(answer))
    seen[name] = found
text = inklings.llm_query("- one\n- two")
assert text == "- one\n- two" and text.upper().startswith("- ONE") and len(text) == 11
assert isinstance(text, str) and "one" in text and f"{text}" == text
schema = {"type": "array", "items": {"type": "string"}}
assert inklings.llm_query('["a"]', schema=schema) == ["a"]
assert inklings.llm_query_batched(['["a"]', '["b"]'], schema=schema) == [["a"], ["b"]]
assert inklings.checkpoint("kept", text) == text
seen["plain"] = list(inklings.llm_query("no list\n\nat all"))
seen["plain"] += list(inklings.llm_query("no list"))
inklings.submit(seen)
"#;
    let mut cx = script_context(&json!({}));
    let report = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
    let value = report.outcome.unwrap().value.unwrap();
    for form in ["json", "fenced", "object", "bullets", "numbers"] {
        assert_eq!(value[form], json!(["one", "two"]), "{form}");
    }
    assert_eq!(value["plain"], json!(["no list", "at all", "no list"]));
    // One warning, and only for the answers that were no lists.
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert!(report.warnings[0].contains("where a list was expected"));
    assert_eq!(report.records[0].details.warnings.len(), 1);
}

#[tokio::test]
async fn checkpoints_are_available_when_a_run_resumes() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let code = r#"
import repertoire
before = repertoire.checkpoint("step")
assert repertoire.checkpoint("nothing", None) is None
first = repertoire.checkpoint("first", lambda: repertoire.llm_query("asked"))
repertoire.checkpoint("step", (before or 0) + 1)
if before is None:
    raise ValueError("the power went")
repertoire.submit([before, first])
"#;
    let skill = script_skill(code, &json!({}));
    let mut cx = script_context(&json!({}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert_eq!(
        error.to_string(),
        "script, line 8: ValueError: the power went"
    );
    assert_eq!(report.records[0].input_tokens, Some(2));
    let mut again = script_context(&json!({}));
    again.session_id.clone_from(&cx.session_id);
    again.checkpoints = cx.checkpoints.clone();
    let report = run_script(&dispatcher, &skill, &mut again).await;
    // The checkpoint was loaded, so the model was not called again.
    assert_eq!(report.records[0].input_tokens, None);
    assert_eq!(report.outcome.unwrap().value, Some(json!([1, "asked"])));
}

#[tokio::test]
async fn checkpoints_are_private_to_one_skill() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let code = "import repertoire\nrepertoire.submit([repertoire.checkpoint('x'), \
                repertoire.checkpoint('x', name)])";
    let mut cx = script_context(&json!({"name": "first"}));
    let one = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
    assert_eq!(one.outcome.unwrap().value, Some(json!([null, "first"])));
    // The same session and names, another skill.
    let mut other = json!({
        "name": "Other", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code}],
    });
    other["id"] = json!("550e8400-e29b-41d4-a716-446655440001");
    let two = run_script(&dispatcher, &RecordingSkill::new(&other), &mut cx).await;
    assert_eq!(two.outcome.unwrap().value, Some(json!([null, "first"])));
    let again = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
    assert_eq!(
        again.outcome.unwrap().value,
        Some(json!(["first", "first"]))
    );
}

/// A model that counts its concurrent calls.
#[derive(Debug, Default)]
struct CountingModel(AtomicUsize, AtomicUsize);

#[async_trait]
impl Model for CountingModel {
    fn id(&self) -> &'static str {
        "test/counting"
    }

    async fn send_request(
        &self,
        _: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        // No call returns before all calls have started, or a timeout passes.
        let begun = std::time::Instant::now();
        while self.1.load(Ordering::SeqCst) < 100 && begun.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        Ok(ModelReply {
            text: "yes".into(),
            usage: ModelUsage::default(),
            cut: false,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_scripts_wait_for_the_model_concurrently() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let code = "import repertoire\nfor _ in range(2): repertoire.llm_query(name)\n\
                repertoire.submit(name)";
    let skill = Arc::new(script_skill(code, &json!({})));
    let model = Arc::new(CountingModel::default());
    let all = (0..100).map(|n| {
        let (dispatcher, skill, model) = (dispatcher.clone(), skill.clone(), model.clone());
        tokio::spawn(async move {
            let mut cx = script_context(&json!({"name": format!("run {n}")}));
            cx.model = Some(model);
            let report = run_script(&dispatcher, &skill, &mut cx).await;
            assert_eq!(
                report.outcome.unwrap().value,
                Some(json!(format!("run {n}")))
            );
        })
    });
    for done in futures::future::join_all(all).await {
        done.unwrap();
    }
    assert_eq!(model.1.load(Ordering::SeqCst), 100);
}
