//! Tests of the sidecar client with a misbehaving sidecar and with the real one.
//!
//! `REPERTOIRE_TEST_SIDECAR` is the folder where the test command installs DSPy.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

mod common;
#[path = "../../core/tests/support/part.rs"]
mod part;

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
    ArtifactDispatcher, Error, ExecutionContext, Limits, Model, ModelReply, ModelRequest,
    ModelUsage,
    model::ReplyListener,
    optimize::{Effort, ExampleSplit, Optimizer, TrainingExample, optimize_module},
    run::{RunReport, plan_run, run_plan},
    sidecar::{DspyHandler, DspyModule, Sidecar, SidecarCommand},
};
use serde_json::{Value, json};

use common::{RecordingSkill, ScriptedModel};

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

/// A misbehaving sidecar, with short timeouts.
fn faulty(fault: &str, folder: &Path) -> Arc<Sidecar> {
    Arc::new(Sidecar::new(faulty_program(fault, folder)))
}

fn faulty_program(fault: &str, folder: &Path) -> SidecarCommand {
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::var_os("REPERTOIRE_TEST_PYTHON").map(PathBuf::from))
        .find(|path| path.is_file())
        .expect("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/sidecar.py");
    let args = vec!["-I".into(), script.into(), fault.into()];
    let mut program = SidecarCommand::new(python, args, folder);
    program.start = Duration::from_secs(5);
    program.silence_timeout = Duration::from_millis(500);
    program.max_line = 256 * 1024;
    program
}

async fn go(sidecar: &Arc<Sidecar>, package: &Value, model: Arc<dyn Model>) -> RunReport {
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_handler(Arc::new(DspyHandler::new(
        sidecar.clone(),
        Limits::default(),
    )));
    let skill = RecordingSkill::new(package);
    let mut cx = ExecutionContext::new();
    cx.model = Some(model);
    cx.values.insert("q".into(), json!("hello"));
    let plan = plan_run(&skill, &dispatcher, "", &["Module".to_owned()]).unwrap();
    run_plan(&skill, &dispatcher, &plan, &mut cx, &mut |_| {}).await
}

#[tokio::test]
async fn t33_every_fault_ends_in_the_fallback_or_a_clear_error() {
    for (fault, why) in [
        ("never-starts", "did not start within"),
        ("crash-loop", "no module named dspy"),
        ("other-protocol", "speaks another protocol"),
        ("giant-frame-at-start", "more than 262144 bytes"),
        ("closes-stdout", "did not start"),
        ("question-flood", "it "),
        ("killed-mid-call", "it ended"),
        ("garbage", "no message"),
        ("giant-frame", "more than 262144 bytes"),
        ("silence", "sent nothing for"),
        ("slow-drip", "sent nothing for"),
        ("wrong-answer", "gave no output"),
        ("wrong-id", "sent nothing for"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let sidecar = faulty(fault, folder.path());
        let model = ScriptedModel::new(&["b"; 900]);
        let with = go(
            &sidecar,
            &package(Some("Prompt"), &json!({})),
            model.clone(),
        )
        .await;
        assert_eq!(with.outcome.unwrap().text, "b", "{fault}");
        // Both records are there: the failed execution and its fallback.
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
        // Two startup timeouts, two silence timeouts, and some slack for a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(45), "{fault}");
    }
}

#[tokio::test]
async fn t33_a_crash_loop_pauses_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("crash-loop", folder.path());
    for _ in 0..3 {
        assert!(sidecar.unavailable_reason().is_none());
        let model = ScriptedModel::new(&["b"]);
        let report = go(&sidecar, &package(Some("Prompt"), &json!({})), model).await;
        assert!(report.outcome.is_ok());
    }
    assert!(
        sidecar
            .unavailable_reason()
            .unwrap()
            .to_string()
            .contains("ended 3 times")
    );
    // Now no process is started: the fallback is used at once.
    let report = go(
        &sidecar,
        &package(Some("Prompt"), &json!({})),
        ScriptedModel::new(&["b"]),
    )
    .await;
    assert_eq!(report.records.len(), 1);
    assert_eq!(
        report.records[0].details.fallback_for.as_deref(),
        Some("Module")
    );
}

#[tokio::test]
async fn invalid_host_requests_are_refused_and_the_environment_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let report = go(
        &faulty("questions", folder.path()),
        &package(None, &json!({})),
        ScriptedModel::new(&[]),
    )
    .await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value["a"][0], 6);
    // Python adds `LC_CTYPE` itself.
    let names = value["a"][1].as_array().unwrap().iter();
    let names: Vec<_> = names.filter(|name| **name != "LC_CTYPE").collect();
    let known = "DSPY_CACHEDIR HOME PYTHONUNBUFFERED PYTHONUTF8 TEMP TMP TMPDIR";
    assert_eq!(json!(names), json!(known.split(' ').collect::<Vec<_>>()));
    let loud = faulty("floods-stderr", folder.path());
    let report = go(&loud, &package(None, &json!({})), ScriptedModel::new(&[])).await;
    assert_eq!(
        report.outcome.unwrap().value,
        Some(json!({"a": "still here"}))
    );
}

#[tokio::test]
async fn t31_a_program_with_endless_requests_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("endless-questions", folder.path());
    let model = ScriptedModel::new(&["x"; 300]);
    let report = go(&sidecar, &package(None, &json!({})), model.clone()).await;
    assert_eq!(report.outcome.unwrap_err().code(), "budget_exceeded");
    assert_eq!(model.requests.lock().unwrap().len(), 200);
    assert_eq!(report.records[0].details.used["model_calls"].used, 201);
    assert!(report.records[0].input_tokens.unwrap() > 0);
}

#[tokio::test]
async fn t32_invalid_modules_are_refused_before_the_process_starts() {
    let folder = tempfile::tempdir().unwrap();
    // This sidecar never starts, so the errors below come from validation alone.
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
            ScriptedModel::new(&[]),
        )
        .await;
        let error = report.outcome.unwrap_err();
        assert_eq!(error.code(), "invalid_artifact", "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn the_process_is_kept_while_used_and_restarted_after_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let module = package(None, &json!({}));
    let pid = async |sidecar: &Arc<Sidecar>| {
        let report = go(sidecar, &module, ScriptedModel::new(&[])).await;
        report.outcome.unwrap().value.unwrap()["a"].clone()
    };
    let gone = async |sidecar: &Arc<Sidecar>| {
        let begun = Instant::now();
        while sidecar.is_running().await {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "the process is still running"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let well = faulty("well", folder.path());
    assert!(!well.is_running().await, "it starts when it is needed");
    let first = pid(&well).await;
    assert_eq!(pid(&well).await, first);
    // A process that died is replaced,
    let dies = faulty("dies-after-one", folder.path());
    let first = pid(&dies).await;
    gone(&dies).await;
    assert_ne!(pid(&dies).await, first);
    // and so is one that does not answer a ping.
    let hangs = faulty("hangs-after-one", folder.path());
    let first = pid(&hangs).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_ne!(pid(&hangs).await, first);
    // An idle process ends by itself, and its folder is removed.
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
            "it left its folder behind"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_ne!(pid(&idle).await, first);
}

/// A model that never answers the first request.
#[derive(Debug, Default)]
struct LateModel(AtomicUsize);

#[async_trait]
impl Model for LateModel {
    fn id(&self) -> &'static str {
        "test/late"
    }

    async fn send_request(
        &self,
        _: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
        Ok(ModelReply {
            text: "well".to_owned(),
            usage: ModelUsage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn t33_a_process_that_missed_a_deadline_is_pinged_before_reuse() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = faulty("hangs-when-given-up", folder.path());
    let model = Arc::new(LateModel::default());
    let hasty = package(None, &json!({"metadata": {"limits": {"seconds": 1}}}));
    let late = go(&sidecar, &hasty, model.clone()).await;
    let error = late.outcome.unwrap_err().to_string();
    assert!(error.contains("took more than 1s"), "{error}");
    // The next request does not use the process that hangs.
    let next = go(&sidecar, &package(None, &json!({})), model).await;
    assert!(next.outcome.is_ok(), "{:?}", next.outcome);
}

#[tokio::test]
async fn stale_process_folders_are_removed_and_used_ones_are_kept() {
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
        ScriptedModel::new(&[]),
    )
    .await;
    report.outcome.unwrap();
    assert!(!left.exists());
    assert!(used.join("unpacked").is_file());
}

fn installed_sidecar() -> Option<Arc<Sidecar>> {
    let folder = part::installed_part("REPERTOIRE_TEST_SIDECAR").map(PathBuf::from)?;
    let args = vec!["-I".into(), folder.join("main.py").into()];
    let mut program =
        SidecarCommand::new(folder.join("python/bin/python"), args, folder.join("home"));
    program.idle = Duration::from_secs(1);
    Some(Arc::new(Sidecar::new(program)))
}

/// A model that follows the format of a prompt.
#[derive(Debug)]
struct ObedientModel;

#[async_trait]
impl Model for ObedientModel {
    fn id(&self) -> &'static str {
        "test/obedient"
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        let system = ask.system.clone().unwrap_or_default();
        let field = |name: &str, value: &str| format!("[[ ## {name} ## ]]\n{value}\n\n");
        let mut text = String::new();
        for name in ["reasoning", "a"] {
            if system.contains(&format!("`{name}`")) {
                text += &field(name, if name == "a" { "blue" } else { "because" });
            }
        }
        Ok(ModelReply {
            text,
            usage: ModelUsage {
                input_tokens: Some(10),
                output_tokens: Some(5),
                cost: Some(0.01),
            },
            cut: false,
        })
    }
}

#[tokio::test]
async fn a_program_runs_in_dspy_with_the_model_of_the_host() {
    let Some(sidecar) = installed_sidecar() else {
        return;
    };
    let report = go(
        &sidecar,
        &package(None, &json!({})),
        Arc::new(ObedientModel),
    )
    .await;
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
    assert!(sidecar.dspy_version().await.unwrap().starts_with("3."));
    // A process that was stopped when idle, or killed, is started again.
    sidecar.stop().await;
    let report = go(
        &sidecar,
        &package(None, &json!({})),
        Arc::new(ObedientModel),
    )
    .await;
    assert!(report.outcome.is_ok());
}

/// A model that answers program requests and fails judge requests.
#[derive(Debug, Default)]
struct FailingJudgeModel(AtomicUsize);

#[async_trait]
impl Model for FailingJudgeModel {
    fn id(&self) -> &'static str {
        "test/no-judge"
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        to: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        if ask
            .system
            .as_ref()
            .is_some_and(|system| system.contains("`a`"))
        {
            return ObedientModel.send_request(ask, to).await;
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Err(Error::Model("no model is available".to_owned()))
    }
}

#[tokio::test]
async fn a_failing_judge_ends_training_without_a_verdict() {
    let Some(sidecar) = installed_sidecar() else {
        return;
    };
    let judged = json!({"metadata": {"assertions": [
        {"type": "semantic", "check": "llm_eval", "prompt": "Is it a colour?", "expected": "yes"},
    ]}});
    let package = package(None, &judged).to_string();
    let package = repertoire_core::Package::from_json(package.as_bytes()).unwrap();
    let module = &package.artifacts[1];
    let program = DspyModule::from_artifact(module).unwrap();
    let examples = (0..80)
        .map(|n| TrainingExample::from_row(&json!({"q": format!("{n}")}), &program).unwrap());
    let split = ExampleSplit::from_examples(examples.collect()).unwrap();
    let model = Arc::new(FailingJudgeModel::default());
    let mut cx = ExecutionContext::new();
    cx.model = Some(model.clone());
    let how = (Optimizer::Bootstrap, Effort::default());
    let ended = optimize_module(&sidecar, module, &split, how, false, &cx, &|_| {}).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("no model is available"), "{error}");
    // Only the requests already in progress were sent.
    let asked = model.0.load(Ordering::SeqCst);
    assert!(split.held_back.len() > 8);
    assert!((1..=8).contains(&asked), "{asked} were judged");
}
