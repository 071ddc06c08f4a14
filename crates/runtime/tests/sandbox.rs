//! Scripts in the sandbox: what they can do, and what those of strangers cannot.
//!
//! `REPERTOIRE_TEST_SANDBOX` is the folder the test command installs one in.

#![cfg(feature = "sandbox")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

mod common;

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
    ArtifactDispatcher, Ask, Error, ExecutionContext, ExecutionRecord, Limits, Model, Others,
    Price, PromptEngine, Reply, SkillSource, Skills, Usage, Vault,
    model::Listener,
    run::{Report, plan, run},
    sandbox::Scripts,
};
use serde_json::{Value, json};

use common::Spy;

fn installed() -> Option<PathBuf> {
    let folder = std::env::var_os("REPERTOIRE_TEST_SANDBOX").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: REPERTOIRE_TEST_SANDBOX is not set");
    }
    folder
}

/// One sandbox for all tests, as one process has.
fn dispatcher() -> Option<ArtifactDispatcher> {
    static SHARED: OnceLock<Option<ArtifactDispatcher>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| {
        let scripts = Scripts::new(installed()?, Limits::default());
        let mut dispatcher = ArtifactDispatcher::default();
        dispatcher.add(Arc::new(scripts));
        Some(dispatcher)
    });
    shared.clone()
}

/// Says back what it is asked, after a while.
#[derive(Debug)]
struct Echo(Duration);

#[async_trait]
impl Model for Echo {
    fn id(&self) -> &'static str {
        "test/echo"
    }

    fn price(&self) -> Option<Price> {
        Some(Price {
            input: 1.0,
            output: 1.0,
        })
    }

    async fn ask(&self, ask: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        tokio::time::sleep(self.0).await;
        let text = ask.turns.last().unwrap().text.clone();
        let tokens = ask.estimate();
        Ok(Reply {
            usage: Usage {
                input_tokens: Some(tokens),
                output_tokens: Some(tokens),
                cost: Some(Price::of(self.price().unwrap(), tokens, tokens)),
            },
            text,
            cut: false,
        })
    }
}

fn script(code: &str, metadata: &Value) -> Spy {
    Spy::new(&json!({
        "name": "S", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code,
                       "metadata": metadata}],
    }))
}

fn context(params: &Value) -> ExecutionContext {
    let mut context = ExecutionContext::new();
    context.values = params.as_object().cloned().unwrap_or_default();
    context.model = Some(Arc::new(Echo(Duration::ZERO)));
    let vault = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/vault");
    context.engine = PromptEngine::over(Arc::new(Vault::open(&vault).unwrap()));
    context
}

async fn go(dispatcher: &ArtifactDispatcher, skill: &Spy, cx: &mut ExecutionContext) -> Report {
    let plan = plan(skill, dispatcher, "", &["Script".to_owned()]).unwrap();
    run(skill, dispatcher, &plan, cx, &mut |_| {}).await
}

async fn value_of(dispatcher: &ArtifactDispatcher, code: &str, params: Value) -> Value {
    let mut cx = context(&params);
    let report = go(dispatcher, &script(code, &json!({})), &mut cx).await;
    report.outcome.unwrap().value.unwrap()
}

#[tokio::test]
async fn scripts_ask_the_workspace_and_the_model() {
    let Some(dispatcher) = dispatcher() else {
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
    let mut cx = context(&json!({}));
    let report = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
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
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    // The value is used both as a template's and as a variable, and the text is short-indented.
    let code = "import inklings\n\nfound = inklings.search('{{ entity_type }}')\nfacts = []\n\
                for page in found:\n body = inklings.get_page(page['slug'])\n \
                facts.extend(inklings.llm_query(f'About {entity_type}: {body}').split()[:2])\n\
                inklings.submit({'entity_type': '{{ entity_type }}', 'facts': facts})";
    let value = value_of(&dispatcher, code, json!({"entity_type": "harbour"})).await;
    assert_eq!(value["entity_type"], "harbour");
    assert!(
        value["facts"]
            .as_array()
            .unwrap()
            .contains(&json!("harbour:")),
        "{value}"
    );
}

#[tokio::test]
async fn what_a_script_keeps_is_there_when_it_is_resumed() {
    let Some(dispatcher) = dispatcher() else {
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
    let skill = script(code, &json!({}));
    let mut cx = context(&json!({}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert_eq!(
        error.to_string(),
        "script, line 8: ValueError: the power went"
    );
    assert_eq!(report.records[0].input_tokens, Some(2));
    let mut again = context(&json!({}));
    again.session_id.clone_from(&cx.session_id);
    again.checkpoints = cx.checkpoints.clone();
    let report = go(&dispatcher, &skill, &mut again).await;
    // What was kept was not asked for again.
    assert_eq!(report.records[0].input_tokens, None);
    assert_eq!(report.outcome.unwrap().value, Some(json!([1, "asked"])));
}

struct Shelf(Arc<Spy>);

impl Skills for Shelf {
    fn open(&self, name: &str) -> repertoire_runtime::Result<Arc<dyn SkillSource>> {
        (name == "s")
            .then(|| self.0.clone() as Arc<dyn SkillSource>)
            .ok_or_else(|| Error::Call {
                call: "run_skill".into(),
                reason: format!("there is no skill {name:?}"),
            })
    }
}

#[tokio::test]
async fn scripts_run_other_skills_and_not_for_ever() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = r#"
import repertoire
if depth < 2:
    repertoire.submit(["inner"] + repertoire.run_skill("s", {"depth": depth + 1}, "Script"))
elif depth < 9:
    try:
        repertoire.run_skill("elsewhere")
    except repertoire.Error as error:
        repertoire.submit([error.code, str(error)])
else:
    repertoire.run_skill("s", {"depth": depth + 1})
"#;
    let skill = Arc::new(script(code, &json!({})));
    let kept: Arc<std::sync::Mutex<Vec<ExecutionRecord>>> = Arc::default();
    let keeper = kept.clone();
    let others = Arc::new(Others {
        skills: Arc::new(Shelf(skill.clone())),
        dispatcher: dispatcher.clone(),
        keep: Arc::new(move |record| keeper.lock().unwrap().push(record.clone())),
    });
    let mut cx = context(&json!({"depth": 0}));
    cx.others = Some(others.clone());
    let report = go(&dispatcher, &skill, &mut cx).await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value[0], "inner");
    assert_eq!(value[2], "invalid_call", "{value}");
    let rows = kept.lock().unwrap().clone();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.session_id == cx.session_id));

    let mut cx = context(&json!({"depth": 10}));
    cx.others = Some(others);
    let report = go(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert!(error.to_string().contains("at most 4 deep"), "{error}");
}

/// A script that others, and itself, can run, with the metadata it has.
fn shelved(
    dispatcher: &ArtifactDispatcher,
    code: &str,
    metadata: &Value,
    params: &Value,
) -> (Arc<Spy>, ExecutionContext) {
    let skill = Arc::new(script(code, metadata));
    let mut cx = context(params);
    cx.others = Some(Arc::new(Others {
        skills: Arc::new(Shelf(skill.clone())),
        dispatcher: dispatcher.clone(),
        keep: Arc::new(|_| {}),
    }));
    (skill, cx)
}

#[tokio::test]
async fn t31_what_a_script_runs_has_what_the_script_has_left() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    // Each of them makes some calls and steps, which together are more than one may.
    let code = r#"
import repertoire
if not inner:
    for n in range(20):
        repertoire.run_skill("s", {"inner": n + 1}, "Script")
for _ in range(20): repertoire.checkpoint("x")
for _ in range(200_000): pass
repertoire.submit(1)
"#;
    let limits = json!({"limits": {"host_calls": 200}});
    let (skill, mut cx) = shelved(&dispatcher, code, &limits, &json!({"inner": 0}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let told = report.outcome.unwrap_err().to_string();
    assert!(told.contains("called the host more than"), "{told}");
    let used = &report.records[0].details.used;
    assert!(used["host_calls"].used >= 180, "{used:?}");

    let one = json!({"limits": {"fuel": 1_000_000_000}});
    let (skill, mut cx) = shelved(&dispatcher, code, &one, &json!({"inner": 1}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let fuel = report.records[0].details.used["fuel"].used;
    assert!(report.outcome.is_ok());
    // Enough for a few, and not for all.
    let few = json!({"limits": {"fuel": fuel * 5}});
    let (skill, mut cx) = shelved(&dispatcher, code, &few, &json!({"inner": 0}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert!(error.to_string().contains("steps"), "{error}");
}

#[tokio::test]
async fn what_a_script_runs_keeps_values_of_its_own() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = r#"
import repertoire
if page:
    repertoire.submit(repertoire.checkpoint("summary", lambda: repertoire.llm_query(page)))
both = [repertoire.run_skill("s", {"page": page}, "Script") for page in ("one", "two", "one")]
repertoire.submit(both)
"#;
    let (skill, mut cx) = shelved(&dispatcher, code, &json!({}), &json!({"page": ""}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    // What they cost is told, although it is on rows of their own.
    assert_eq!(report.usage().input_tokens, Some(2));
    assert_eq!(report.records[0].input_tokens, None);
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value, json!(["one", "two", "one"]));
}

#[tokio::test]
async fn a_limit_of_what_it_runs_is_a_refusal_to_a_script() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = r#"
import repertoire
if inner:
    while True: pass
try:
    repertoire.run_skill("s", {"inner": 1}, "Script")
except repertoire.Error as error:
    repertoire.submit([error.code, str(error)])
"#;
    // The inner one would take the outer one's time, so that it is stopped in time to say so.
    let limits = json!({"limits": {"fuel": 2_000_000_000}});
    let (skill, mut cx) = shelved(&dispatcher, code, &limits, &json!({"inner": 0}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let told = report.outcome.unwrap_err().to_string();
    assert!(told.contains("steps"), "{told}");

    let outer = script(code, &json!({}));
    let (_, mut cx) = shelved(
        &dispatcher,
        code,
        &json!({"limits": {"seconds": 1}}),
        &json!({"inner": 0}),
    );
    let report = go(&dispatcher, &outer, &mut cx).await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value[0], "invalid_call");
    assert!(
        value[1].as_str().unwrap().contains("more than 1 s"),
        "{value}"
    );
}

#[tokio::test]
async fn errors_name_the_line_and_refusals_keep_their_reason() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    for (code, told) in [
        ("x = 1\nx.nothing", "script, line 2: AttributeError"),
        ("x = (", "script, line 1: SyntaxError"),
        (
            "def f():\n    return 1 / 0\n\nf()",
            "script, line 2: ZeroDivisionError",
        ),
        ("raise SystemExit('no')", "script, line 1: SystemExit: no"),
    ] {
        let mut cx = context(&json!({}));
        let report = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert!(error.to_string().starts_with(told), "{error}");
        assert_eq!(error.code(), "script_error");
    }
    let mut cx = context(&json!({}));
    cx.model = None;
    let asks = "import repertoire\nrepertoire.llm_query('x')";
    let report = go(&dispatcher, &script(asks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "unknown_model");
    cx.engine = PromptEngine::new();
    let looks = "import repertoire\nrepertoire.get_tags()";
    let report = go(&dispatcher, &script(looks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "workspace_error");
    for (metadata, told) in [
        (json!({"limits": {"fule": 1}}), "fule"),
        (json!({"limits": 3}), "metadata.limits"),
        (json!({"constants": 3}), "metadata.constants"),
    ] {
        let report = go(&dispatcher, &script("pass", &metadata), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn a_script_that_nobody_waits_for_is_stopped_and_leaves_its_row() {
    let Some(folder) = installed() else { return };
    let scripts = Scripts::new(folder, Limits::default()).idle(Duration::from_millis(20));
    let scripts = Arc::new(scripts);
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(scripts.clone());
    let skill = script(
        "import repertoire\nrepertoire.llm_query('x')\nwhile True: pass",
        &json!({}),
    );
    let mut cx = context(&json!({}));
    let (stop, notes) = (cx.stop.clone(), cx.notes.clone());
    tokio::spawn(async move {
        // Once it has asked the model, it is at work.
        while notes.spent().tokens() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
    });
    let report = go(&dispatcher, &skill, &mut cx).await;
    assert_eq!(report.outcome.unwrap_err(), Error::Interrupted);
    assert_eq!(report.records[0].input_tokens, Some(1));
    let used = &report.records[0].details.used;
    assert_eq!(used["host_calls"].used, 1, "{used:?}");
    assert!(used["fuel"].used > 0, "{used:?}");
    // It is let go only once nothing runs in it.
    let begun = std::time::Instant::now();
    while scripts.is_loaded() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it runs on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn limits_are_lowered_by_an_artifact_and_never_raised() {
    let artifact = |limits: Value| {
        let package = json!({
            "name": "S", "description": "d",
            "artifacts": [{"kind": "code_template", "name": "Script", "content": "pass",
                           "metadata": {"limits": limits}}],
        });
        let package = repertoire_core::Package::from_json(package.to_string().as_bytes());
        package.unwrap().artifacts[0].clone()
    };
    let host = Limits {
        cost: Some(1.0),
        ..Limits::default()
    };
    let own = json!({"fuel": 5, "memory": u64::MAX, "seconds": 9999, "cost": 5.0, "tokens": 7});
    let limits = host.of(&artifact(own)).unwrap();
    assert_eq!((limits.fuel, limits.tokens, limits.cost), (5, 7, Some(1.0)));
    assert_eq!((limits.memory, limits.seconds), (host.memory, host.seconds));
}

/// A line `# word: …` of a script.
fn told<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let begins = format!("# {word}: ");
    code.lines().find_map(|line| line.strip_prefix(&begins))
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn t30_t31_scripts_of_strangers_are_contained() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/sandbox");
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "py"))
        .collect();
    files.sort();
    assert!(files.len() > 35);
    let honest = "import repertoire\nrepertoire.submit(6 * 7)";
    value_of(&dispatcher, honest, json!({})).await;
    let before = resident();
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let code = std::fs::read_to_string(file).unwrap();
        let expect = told(&code, "expect").unwrap();
        let (codes, words) = expect.split_once(' ').unwrap_or((expect, ""));
        let limits: Value =
            told(&code, "limits").map_or(json!({}), |text| serde_json::from_str(text).unwrap());
        let params: Value =
            told(&code, "params").map_or(json!({}), |text| serde_json::from_str(text).unwrap());
        // What is said about it is not part of it.
        let source: Vec<&str> = code
            .lines()
            .skip_while(|line| line.starts_with("# ") && line.contains(": "))
            .collect();
        let skill = script(&source.join("\n"), &json!({"limits": limits}));
        let mut cx = context(&params);
        let report = go(&dispatcher, &skill, &mut cx).await;
        let (found, text) = match &report.outcome {
            Ok(output) => ("ok", output.text.clone()),
            Err(error) => (error.code(), error.to_string()),
        };
        if !codes.split(',').any(|code| code == found) || !text.contains(words) {
            wrong.push(format!(
                "{name}: {found}: {}",
                repertoire_core::markdown::cut(&text, 300)
            ));
        }
        assert_eq!(report.records.len(), 1);
        // Whatever it did, the next one runs as if it had not.
        assert_eq!(
            value_of(&dispatcher, honest, json!({})).await,
            json!(42),
            "{name}"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Other tests have scripts of their own; once those are over, the memory is back.
    let begun = std::time::Instant::now();
    while resident().saturating_sub(before) > 64 << 20 {
        let grown = resident().saturating_sub(before);
        assert!(
            begun.elapsed() < Duration::from_mins(1),
            "{grown} bytes were not given back"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn t30_any_value_arrives_unchanged(
        text in prop_oneof![any::<String>(), "['\"\\\\{}%#\\n\\r ()a-z;\u{0}\u{2028}]{0,40}"],
        number in any::<i64>(),
    ) {
        let Some(dispatcher) = dispatcher() else { return Ok(()) };
        let code = "import repertoire\n\
                    x = ['{{ text }}', \"{{ text }}\", '''{{ text }}''', r'{{ text }}', {{ text }},\n\
                         f'{{ text }}', f'{text}', text, params['text']]  # {{ number }}\n\
                    repertoire.submit([x, {{ number }}, number, {{ [text] | tojson }}])";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let params = json!({"text": text, "number": number});
        let value = runtime.block_on(value_of(&dispatcher, code, params));
        let all = vec![json!(text); 9];
        prop_assert_eq!(value, json!([all, number, number, [text]]));
    }
}

/// Counts how many wait for it at a time.
#[derive(Debug, Default)]
struct Counting(AtomicUsize, AtomicUsize);

#[async_trait]
impl Model for Counting {
    fn id(&self) -> &'static str {
        "test/counting"
    }

    async fn ask(&self, _: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        let now = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        self.1.fetch_max(now, Ordering::SeqCst);
        // Nobody is answered before everybody has asked, or it takes too long.
        let begun = std::time::Instant::now();
        while self.1.load(Ordering::SeqCst) < 100 && begun.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.0.fetch_sub(1, Ordering::SeqCst);
        Ok(Reply {
            text: "yes".into(),
            usage: Usage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn what_one_skill_keeps_no_other_sees() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = "import repertoire\nrepertoire.submit([repertoire.checkpoint('x'), \
                repertoire.checkpoint('x', name)])";
    let mut cx = context(&json!({"name": "first"}));
    let one = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
    assert_eq!(one.outcome.unwrap().value, Some(json!([null, "first"])));
    // The same session and names, another skill.
    let mut other = json!({
        "name": "Other", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code}],
    });
    other["id"] = json!("550e8400-e29b-41d4-a716-446655440001");
    let two = go(&dispatcher, &Spy::new(&other), &mut cx).await;
    assert_eq!(two.outcome.unwrap().value, Some(json!([null, "first"])));
    let again = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
    assert_eq!(
        again.outcome.unwrap().value,
        Some(json!(["first", "first"]))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_scripts_wait_at_once() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = "import repertoire\nfor _ in range(2): repertoire.llm_query(name)\n\
                repertoire.submit(name)";
    let skill = Arc::new(script(code, &json!({})));
    let model = Arc::new(Counting::default());
    let all = (0..100).map(|n| {
        let (dispatcher, skill, model) = (dispatcher.clone(), skill.clone(), model.clone());
        tokio::spawn(async move {
            let mut cx = context(&json!({"name": format!("run {n}")}));
            cx.model = Some(model);
            let report = go(&dispatcher, &skill, &mut cx).await;
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

/// Fails at one prompt, once others are under way; counts what it is asked.
#[derive(Debug, Default)]
struct Failing(AtomicUsize);

#[async_trait]
impl Model for Failing {
    fn id(&self) -> &'static str {
        "test/failing"
    }

    async fn ask(&self, ask: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if ask.turns.last().unwrap().text == "bad" {
            return Err(Error::Model("this one never works".to_owned()));
        }
        // Those that were begun with it.
        tokio::task::yield_now().await;
        Ok(Reply {
            text: "yes".into(),
            usage: Usage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn a_batch_in_which_one_fails_begins_no_more() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let code = "import repertoire\nrepertoire.llm_query_batched(['bad'] + ['good'] * 99)";
    let model = Arc::new(Failing::default());
    let mut cx = context(&json!({}));
    cx.model = Some(model.clone());
    let report = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
    let error = report.outcome.unwrap_err().to_string();
    assert!(error.contains("this one never works"), "{error}");
    let asked = model.0.load(Ordering::SeqCst);
    assert!((1..=8).contains(&asked), "{asked} were asked");
}

#[tokio::test]
async fn what_a_script_prints_besides_its_result_is_kept() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let says = |code: &str| script(code, &json!({}));
    let mut cx = context(&json!({}));
    let code = "import repertoire\nprint('on the way')\nrepertoire.submit(1)";
    let printed = |report: &Report| report.records[0].details.printed.clone();
    let submits = go(&dispatcher, &says(code), &mut cx).await;
    assert_eq!(printed(&submits).as_deref(), Some("on the way\n"));
    assert_eq!(submits.outcome.unwrap().text, "1");
    let failed = go(&dispatcher, &says("print('so far')\n1/0"), &mut cx).await;
    assert_eq!(printed(&failed).as_deref(), Some("so far\n"));
    let only = go(&dispatcher, &says("print('all')"), &mut cx).await;
    assert_eq!(printed(&only), None);
    assert_eq!(only.outcome.unwrap().text, "all\n");
}

#[tokio::test]
async fn a_sandbox_nobody_uses_is_let_go_and_loaded_again() {
    let Some(folder) = installed() else { return };
    let scripts = Scripts::new(folder, Limits::default()).idle(Duration::from_millis(20));
    let scripts = Arc::new(scripts);
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(scripts.clone());
    for _ in 0..2 {
        let code = "import repertoire\nrepertoire.submit(repertoire.llm_query('x'))";
        let mut cx = context(&json!({}));
        // Longer than it is kept idle: one that runs is not idle.
        cx.model = Some(Arc::new(Echo(Duration::from_millis(100))));
        let report = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
        assert_eq!(report.outcome.unwrap().value, Some(json!("x")));
        tokio::time::timeout(Duration::from_secs(30), async {
            while scripts.is_loaded() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("it stays loaded");
    }
}

#[tokio::test]
async fn a_missing_sandbox_says_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(Arc::new(Scripts::new(empty.path(), Limits::default())));
    let skill = script("pass", &json!({}));
    let mut cx = context(&json!({}));
    let report = go(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert_eq!(error.code(), "needs_sandbox");
    assert!(error.hint().unwrap().contains("repertoire setup sandbox"));
    // Beside something else to do, it is left out, and what to do is said.
    let both = Spy::new(&json!({
        "name": "S", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Script", "content": "pass"},
            {"kind": "prompt_template", "name": "Ask", "content": "x"},
        ],
    }));
    let plan = plan(&both, &dispatcher, "", &[]).unwrap();
    assert!(
        plan.skipped[0].contains("repertoire setup sandbox"),
        "{:?}",
        plan.skipped
    );
}

#[test]
fn a_compiled_guest_others_can_write_to_is_not_loaded() {
    let Some(folder) = installed() else { return };
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(copy.path(), open).unwrap();
        let refused = repertoire_runtime::sandbox::Sandbox::open(copy.path()).unwrap_err();
        assert!(
            refused.to_string().contains("others can write"),
            "{refused}"
        );
    }
}
