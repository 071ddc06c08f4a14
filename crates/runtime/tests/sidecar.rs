//! The sidecar: one that misbehaves in every way, and the real one.
//!
//! `REPERTOIRE_TEST_SIDECAR` is the folder the test command installs DSPy in.

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
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use repertoire_runtime::{
    ArtifactDispatcher, Ask, Error, ExecutionContext, Limits, Model, Reply, Usage,
    model::Listener,
    optimise::{Effort, Example, Optimizer, Split, optimise},
    run::{Report, plan, run},
    sidecar::{Module, Modules, Program, Sidecar},
};
use serde_json::{Value, json};

use common::{Scripted, Spy};

fn package(fallback: Option<&str>, more: &Value) -> Value {
    let mut module = json!({
        "kind": "dspy_module", "name": "Module", "ordinal": 2,
        "content": "{\"template_id\": \"chain_of_thought\", \"signature\": \"q -> a\"}",
    });
    if let Some(name) = fallback {
        module["metadata"] = json!({"fallback_artifact": name});
    }
    for (key, value) in more.as_object().unwrap() {
        module[key] = value.clone();
    }
    json!({
        "name": "M", "description": "d", "artifacts": [
            {"kind": "prompt_template", "name": "Prompt", "ordinal": 1, "content": "Say {{ q }}"},
            module,
        ],
    })
}

/// A sidecar that misbehaves, with little patience for it.
fn faulty(fault: &str, folder: &Path) -> Arc<Sidecar> {
    Arc::new(Sidecar::new(faulty_program(fault, folder)))
}

fn faulty_program(fault: &str, folder: &Path) -> Program {
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::var_os("REPERTOIRE_TEST_PYTHON").map(PathBuf::from))
        .find(|path| path.is_file())
        .expect("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/sidecar.py");
    let args = vec!["-I".into(), script.into(), fault.into()];
    let mut program = Program::new(python, args, folder);
    program.start = Duration::from_secs(5);
    program.quiet = Duration::from_millis(500);
    program.max_line = 256 * 1024;
    program
}

async fn go(sidecar: &Arc<Sidecar>, package: &Value, model: Arc<dyn Model>) -> Report {
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(Arc::new(Modules::new(sidecar.clone(), Limits::default())));
    let skill = Spy::new(package);
    let mut cx = ExecutionContext::new();
    cx.model = Some(model);
    cx.values.insert("q".into(), json!("hello"));
    let plan = plan(&skill, &dispatcher, "", &["Module".to_owned()]).unwrap();
    run(&skill, &dispatcher, &plan, &mut cx, &mut |_| {}).await
}

#[tokio::test]
async fn t33_every_fault_ends_in_the_fallback_or_a_clear_error() {
    for (fault, why) in [
        ("never-starts", "did not start within"),
        ("crash-loop", "no module named dspy"),
        ("other-protocol", "speaks something else"),
        ("giant-frame-at-start", "more than 262144 bytes"),
        ("closes-stdout", "did not start"),
        ("question-flood", "it "),
        ("killed-mid-call", "it ended"),
        ("garbage", "no message"),
        ("giant-frame", "more than 262144 bytes"),
        ("silence", "said nothing for"),
        ("slow-drip", "said nothing for"),
        ("wrong-answer", "gave no output"),
        ("somebody-else", "said nothing for"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let sidecar = faulty(fault, folder.path());
        let model = Scripted::new(&["b"; 900]);
        let with = go(
            &sidecar,
            &package(Some("Prompt"), &json!({})),
            model.clone(),
        )
        .await;
        assert_eq!(with.outcome.unwrap().text, "b", "{fault}");
        // Both rows are there: what failed and why, and what stood in for it.
        let rows: Vec<_> = with
            .records
            .iter()
            .map(|row| &*row.details.artifact)
            .collect();
        assert_eq!(rows, ["Module", "Prompt"], "{fault}");
        let error = with.records[0].error.as_deref().unwrap();
        assert!(error.contains(why), "{fault}: {error}");
        assert_eq!(
            with.records[1].details.fallback_for.as_deref(),
            Some("Module")
        );
        assert!(
            with.warnings.iter().any(|warning| warning.contains(why)),
            "{fault}"
        );

        let sidecar = faulty(fault, folder.path());
        let without = go(&sidecar, &package(None, &json!({})), model).await;
        let error = without.outcome.unwrap_err();
        assert_eq!(error.code(), "sidecar_error", "{fault}");
        assert!(error.to_string().contains(why), "{fault}: {error}");
        // Two starts, two silences, and a machine that has other things to do.
        assert!(begun.elapsed() < Duration::from_secs(45), "{fault}");
    }
}

#[tokio::test]
async fn t33_a_crash_loop_is_left_alone_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("crash-loop", folder.path());
    for _ in 0..3 {
        assert!(sidecar.lacks().is_none());
        let model = Scripted::new(&["b"]);
        let report = go(&sidecar, &package(Some("Prompt"), &json!({})), model).await;
        assert!(report.outcome.is_ok());
    }
    assert!(
        sidecar
            .lacks()
            .unwrap()
            .to_string()
            .contains("ended 3 times")
    );
    // From now on nothing is started: the fallback stands in at once.
    let report = go(
        &sidecar,
        &package(Some("Prompt"), &json!({})),
        Scripted::new(&["b"]),
    )
    .await;
    assert_eq!(report.records.len(), 1);
    assert_eq!(
        report.records[0].details.fallback_for.as_deref(),
        Some("Module")
    );
}

#[tokio::test]
async fn questions_that_make_no_sense_are_refused_and_the_environment_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let report = go(
        &faulty("questions", folder.path()),
        &package(None, &json!({})),
        Scripted::new(&[]),
    )
    .await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value["a"][0], 6);
    // Python itself adds the one for its locale.
    let names = value["a"][1].as_array().unwrap().iter();
    let names: Vec<_> = names.filter(|name| **name != "LC_CTYPE").collect();
    let known = "DSPY_CACHEDIR HOME PYTHONUNBUFFERED PYTHONUTF8 TEMP TMP TMPDIR";
    assert_eq!(json!(names), json!(known.split(' ').collect::<Vec<_>>()));
    let loud = faulty("floods-stderr", folder.path());
    let report = go(&loud, &package(None, &json!({})), Scripted::new(&[])).await;
    assert_eq!(
        report.outcome.unwrap().value,
        Some(json!({"a": "still here"}))
    );
}

#[tokio::test]
async fn t31_a_program_that_asks_for_ever_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("endless-questions", folder.path());
    let model = Scripted::new(&["x"; 300]);
    let report = go(&sidecar, &package(None, &json!({})), model.clone()).await;
    assert_eq!(report.outcome.unwrap_err().code(), "budget_exceeded");
    assert_eq!(model.asked.lock().unwrap().len(), 200);
    assert_eq!(report.records[0].details.used["model_calls"].used, 201);
    assert!(report.records[0].input_tokens.unwrap() > 0);
}

#[tokio::test]
async fn t32_what_a_module_may_not_say_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    // It would never answer: nothing below gets so far.
    let sidecar = faulty("never-starts", folder.path());
    let content = |template: &str, signature: &str| {
        let content = json!({"template_id": template, "signature": signature});
        json!({"content": content.to_string()})
    };
    for (more, why) in [
        (content("predict", "q: evilmod.T -> a"), "evilmod.T"),
        (content("exec", "q -> a"), "no template `exec`"),
        (json!({"content": "import os"}), "is JSON"),
        (
            json!({"content": "{\"template_id\": \"predict\", \"signature\": \"q -> a\", \
                            \"code\": \"import os\"}"}),
            "code",
        ),
        (
            json!({"state_blob": "gASVcGlja2xl"}),
            "pickles are not read",
        ),
        (json!({"state_blob": "e30="}), "is missing"),
    ] {
        let report = go(
            &sidecar,
            &package(Some("Prompt"), &more),
            Scripted::new(&[]),
        )
        .await;
        let error = report.outcome.unwrap_err();
        assert_eq!(error.code(), "invalid_artifact", "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn it_is_kept_while_it_is_needed_and_started_anew_when_it_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let module = package(None, &json!({}));
    let pid = async |sidecar: &Arc<Sidecar>| {
        let report = go(sidecar, &module, Scripted::new(&[])).await;
        report.outcome.unwrap().value.unwrap()["a"].clone()
    };
    let gone = async |sidecar: &Arc<Sidecar>| {
        let begun = Instant::now();
        while sidecar.is_running().await {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it is still there"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let well = faulty("well", folder.path());
    assert!(!well.is_running().await, "it starts when it is needed");
    let first = pid(&well).await;
    assert_eq!(pid(&well).await, first);
    // One that died is replaced,
    let dies = faulty("dies-after-one", folder.path());
    let first = pid(&dies).await;
    gone(&dies).await;
    assert_ne!(pid(&dies).await, first);
    // and so is one that does not answer when it is asked how it is.
    let hangs = faulty("hangs-after-one", folder.path());
    let first = pid(&hangs).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_ne!(pid(&hangs).await, first);
    // One that nobody needs ends by itself, and so does the folder it had.
    let own = tempfile::tempdir().unwrap();
    let mut idle = faulty_program("well", own.path());
    idle.idle = Duration::from_millis(200);
    let idle = Arc::new(Sidecar::new(idle));
    let first = pid(&idle).await;
    gone(&idle).await;
    let begun = Instant::now();
    while std::fs::read_dir(own.path()).unwrap().count() > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it left something"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_ne!(pid(&idle).await, first);
}

/// Leaves the first question unanswered.
#[derive(Debug, Default)]
struct Late(AtomicUsize);

#[async_trait]
impl Model for Late {
    fn id(&self) -> &'static str {
        "test/late"
    }

    async fn ask(&self, _: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        Ok(Reply {
            text: "well".to_owned(),
            usage: Usage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn t33_one_that_missed_a_deadline_is_asked_how_it_is_before_it_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("hangs-when-given-up", folder.path());
    let model = Arc::new(Late::default());
    let hasty = package(None, &json!({"metadata": {"limits": {"seconds": 1}}}));
    let late = go(&sidecar, &hasty, model.clone()).await;
    let error = late.outcome.unwrap_err().to_string();
    assert!(error.contains("took more than 1s"), "{error}");
    // Whoever is next is not handed to one that hangs.
    let next = go(&sidecar, &package(None, &json!({})), model).await;
    assert!(next.outcome.is_ok(), "{:?}", next.outcome);
}

#[tokio::test]
async fn what_a_killed_process_left_goes_and_what_is_used_stays() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let place = folder.path().join(name);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("unpacked"), "much").unwrap();
        let lock = std::fs::File::create(place.join("lock")).unwrap();
        (place, lock)
    };
    let (left, _) = place("process-left");
    let (used, lock) = place("process-used");
    lock.lock().unwrap();
    let report = go(
        &faulty("well", folder.path()),
        &package(None, &json!({})),
        Scripted::new(&[]),
    )
    .await;
    report.outcome.unwrap();
    assert!(!left.exists());
    assert!(used.join("unpacked").is_file());
}

fn real() -> Option<Arc<Sidecar>> {
    let Some(folder) = std::env::var_os("REPERTOIRE_TEST_SIDECAR").map(PathBuf::from) else {
        eprintln!("skipped: REPERTOIRE_TEST_SIDECAR is not set");
        return None;
    };
    let args = vec!["-I".into(), folder.join("main.py").into()];
    let mut program = Program::new(folder.join("python/bin/python"), args, folder.join("home"));
    program.idle = Duration::from_secs(1);
    Some(Arc::new(Sidecar::new(program)))
}

/// Follows the format of a prompt.
#[derive(Debug)]
struct Obedient;

#[async_trait]
impl Model for Obedient {
    fn id(&self) -> &'static str {
        "test/obedient"
    }

    async fn ask(&self, ask: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        let system = ask.system.clone().unwrap_or_default();
        let field = |name: &str, value: &str| format!("[[ ## {name} ## ]]\n{value}\n\n");
        let mut text = String::new();
        for name in ["reasoning", "a"] {
            if system.contains(&format!("`{name}`")) {
                text += &field(name, if name == "a" { "blue" } else { "because" });
            }
        }
        Ok(Reply {
            text,
            usage: Usage {
                input_tokens: Some(10),
                output_tokens: Some(5),
                cost: Some(0.01),
            },
            cut: false,
        })
    }
}

#[tokio::test]
async fn a_program_runs_in_dspy_and_its_model_is_ours() {
    let Some(sidecar) = real() else { return };
    let report = go(&sidecar, &package(None, &json!({})), Arc::new(Obedient)).await;
    let row = &report.records[0];
    assert_eq!(report.outcome.unwrap().value, Some(json!({"a": "blue"})));
    assert_eq!(row.rendered_input.as_deref(), Some("{\"q\":\"hello\"}"));
    assert_eq!(
        (row.input_tokens, row.model_id.as_deref()),
        (Some(10), Some("test/obedient"))
    );
    assert_eq!(row.details.used["model_calls"].used, 1);
    let manifest = sidecar.manifest().await.unwrap();
    assert_eq!(manifest["templates"].as_array().unwrap().len(), 4);
    assert!(sidecar.dspy().await.unwrap().starts_with("3."));
    // One that stopped because nobody needed it, or was killed, is started anew.
    sidecar.stop().await;
    let report = go(&sidecar, &package(None, &json!({})), Arc::new(Obedient)).await;
    assert!(report.outcome.is_ok());
}

/// Answers questions, and refuses to judge.
#[derive(Debug, Default)]
struct NoJudge(AtomicUsize);

#[async_trait]
impl Model for NoJudge {
    fn id(&self) -> &'static str {
        "test/no-judge"
    }

    async fn ask(&self, ask: &Ask, to: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        if ask.system.as_ref().is_some_and(|told| told.contains("`a`")) {
            return Obedient.ask(ask, to).await;
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::Model("nobody is at home".to_owned()))
    }
}

#[tokio::test]
async fn a_judge_who_cannot_be_asked_ends_learning_and_is_no_verdict() {
    let Some(sidecar) = real() else { return };
    let judged = json!({"metadata": {"assertions": [
        {"type": "semantic", "check": "llm_eval", "prompt": "Is it a colour?", "expected": "yes"},
    ]}});
    let package = package(None, &judged).to_string();
    let package = repertoire_core::Package::from_json(package.as_bytes()).unwrap();
    let module = &package.artifacts[1];
    let program = Module::read(module).unwrap();
    let examples = (0..80).map(|n| Example::read(&json!({"q": format!("{n}")}), &program).unwrap());
    let split = Split::of(examples.collect()).unwrap();
    let model = Arc::new(NoJudge::default());
    let mut cx = ExecutionContext::new();
    cx.model = Some(model.clone());
    let how = (Optimizer::Bootstrap, Effort::default());
    let ended = optimise(&sidecar, module, &split, how, false, &cx, &|_| {}).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("nobody is at home"), "{error}");
    // Those that were begun with it, and no others.
    let asked = model.0.load(Ordering::SeqCst);
    assert!(split.held_back.len() > 8);
    assert!((1..=8).contains(&asked), "{asked} were judged");
}
