//! Tests of runs of packages: order, variants, fallbacks, severities, records, lazy loading.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "a test"
)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use common::{RecordingSkill, ScriptedModel};
use repertoire_core::{Artifact, ArtifactKind};
use repertoire_runtime::{
    ArtifactDispatcher, ArtifactHandler, ArtifactOutput, Budget, ChatRole, Error, ExecutionContext,
    MeteredModel, Redactor,
    assertion::{Assertion, AssertionFailure},
    run::{RunReport, plan_run, run_plan},
};
use serde_json::{Value, json};

fn context_with_model(model: &Arc<ScriptedModel>) -> ExecutionContext {
    let mut context = ExecutionContext::new();
    context.model = Some(model.clone());
    context
}

async fn run_skill(
    skill: &RecordingSkill,
    names: &[&str],
    context: &mut ExecutionContext,
) -> RunReport {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let dispatcher = ArtifactDispatcher::default();
    let plan = plan_run(skill, &dispatcher, &context.model_family(), &names).unwrap();
    run_plan(skill, &dispatcher, &plan, context, &mut |_| {}).await
}

fn checker_package(assertions: Value) -> Value {
    json!({
        "name": "Checker", "description": "Checks.", "artifacts": [
            {"kind": "description", "name": "Overview", "ordinal": 0, "content": "About it."},
            {"kind": "approach", "name": "Way", "ordinal": 9, "content": "Step by step."},
            {"kind": "example", "name": "Shown", "ordinal": 9,
             "content": "[{\"input\": \"1+1\", \"output\": \"2\"}]"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1,
             "content": "About {{ thing }}: {{ message }}", "metadata": {"assertions": assertions}},
        ],
    })
}

#[tokio::test]
async fn each_artifact_leaves_one_complete_record() {
    let skill = RecordingSkill::new(&checker_package(json!([{"type": "length", "max": 20}])));
    let model = ScriptedModel::new(&["an answer"]);
    let mut context = context_with_model(&model);
    context.values.insert("thing".into(), "tea".into());
    context.message = Some("is it hot?".into());
    let report = run_skill(&skill, &[], &mut context).await;
    assert_eq!(report.outcome.unwrap().text, "an answer");
    let kinds: Vec<_> = report
        .records
        .iter()
        .map(|r| r.artifact_kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["description", "approach", "example", "prompt_template"]
    );
    let ids: std::collections::HashSet<_> = report.records.iter().map(|r| &r.artifact_id).collect();
    assert_eq!(ids.len(), 4);
    for record in &report.records {
        assert_eq!(record.session_id, report.session_id);
        assert_eq!(record.skill_id, report.records[0].skill_id);
        assert!(record.completed_at.is_some() && record.duration_ms.is_some());
        assert_eq!(record.error, None);
    }
    let last = &report.records[3];
    assert_eq!(
        last.rendered_input.as_deref(),
        Some("About tea: is it hot?")
    );
    assert_eq!(last.raw_output.as_deref(), Some("an answer"));
    assert_eq!((last.input_tokens, last.output_tokens), (Some(10), Some(5)));
    assert_eq!(last.estimated_cost, Some(0.25));
    assert_eq!(last.model_id.as_deref(), Some("test/model"));
    assert_eq!((last.assertions_run, last.assertions_passed), (1, 1));
    let asked = model.requests.lock().unwrap();
    assert_eq!(
        asked[0].system.as_deref(),
        Some("About it.\n\nStep by step.")
    );
    let turns: Vec<_> = asked[0]
        .turns
        .iter()
        .map(|t| (t.role, t.text.as_str()))
        .collect();
    assert_eq!(
        turns,
        [
            (ChatRole::User, "1+1"),
            (ChatRole::Assistant, "2"),
            (ChatRole::User, "About tea: is it hot?")
        ]
    );
}

#[tokio::test]
async fn a_hard_failure_ends_the_run_and_a_soft_one_does_not() {
    let package = |severity: &str| {
        let mut package = checker_package(json!([
            {"type": "pattern", "pattern": "^yes", "severity": severity},
            {"type": "length", "min": 1},
        ]));
        package["artifacts"].as_array_mut().unwrap().push(json!(
            {"kind": "prompt_template", "name": "Next", "ordinal": 2, "content": "{{ outputs.Ask }}!"}
        ));
        package
    };
    for (severity, rows, asked) in [("hard", 4, 1), ("soft", 5, 2)] {
        let skill = RecordingSkill::new(&package(severity));
        let model = ScriptedModel::new(&["no", "then"]);
        let mut context = context_with_model(&model);
        context.values = json!({"thing": "t", "message": "m"})
            .as_object()
            .unwrap()
            .clone();
        let report = run_skill(&skill, &[], &mut context).await;
        assert_eq!(report.records.len(), rows, "{severity}");
        assert_eq!(model.requests.lock().unwrap().len(), asked);
        let checked = &report.records[3];
        assert_eq!((checked.assertions_run, checked.assertions_passed), (2, 1));
        // The output is kept even if an assertion fails.
        assert_eq!(checked.raw_output.as_deref(), Some("no"));
        if severity == "hard" {
            assert_eq!(report.outcome.unwrap_err().code(), "assertion_failed");
            assert_eq!(checked.details.code.as_deref(), Some("assertion_failed"));
        } else {
            assert_eq!(report.outcome.unwrap().text, "then");
            assert_eq!(report.records[4].rendered_input.as_deref(), Some("no!"));
            assert!(
                report.warnings[0].contains("/^yes/"),
                "{:?}",
                report.warnings
            );
        }
    }
}

fn module_package(fallback: Option<&str>) -> Value {
    let mut module = json!({
        "kind": "dspy_module", "name": "Module", "ordinal": 3,
        "content": "{\"template_id\": \"chain_of_thought\", \"signature\": \"a -> b\"}",
    });
    if let Some(name) = fallback {
        module["metadata"] = json!({"fallback_artifact": name});
    }
    json!({
        "name": "M", "description": "d", "artifacts": [
            {"kind": "description", "name": "Overview", "content": "o"},
            {"kind": "prompt_template", "name": "Prompt", "ordinal": 1, "content": "default"},
            {"kind": "prompt_template", "name": "Prompt", "ordinal": 1, "content": "for claude",
             "model_variant": "anthropic"},
            module,
        ],
    })
}

/// A sidecar that is available or not.
#[derive(Debug)]
struct FakeSidecar(bool);

#[async_trait]
impl ArtifactHandler for FakeSidecar {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    fn unavailable_reason(&self) -> Option<Error> {
        (!self.0).then(|| Error::Sidecar("not available".into()))
    }

    async fn execute_artifact(
        &self,
        artifact: &Artifact,
        _: &ExecutionContext,
    ) -> repertoire_runtime::Result<ArtifactOutput> {
        assert!(artifact.content.contains("template_id"));
        Ok(ArtifactOutput::from_text("from the sidecar"))
    }
}

#[tokio::test]
async fn a_missing_sidecar_is_replaced_by_the_fallback_prompt() {
    let skill = RecordingSkill::new(&module_package(Some("Prompt")));
    let model = ScriptedModel::with_id("anthropic/claude-x", &["from the prompt"]);
    let mut cx = context_with_model(&model);
    let report = run_skill(&skill, &[], &mut cx).await;
    assert_eq!(report.outcome.unwrap().text, "from the prompt");
    // One record for the executed artifact; the module's content was never loaded.
    assert_eq!(skill.loaded(), ["Overview", "Promptanthropic"]);
    let last = report.records.last().unwrap();
    assert_eq!(last.artifact_kind, ArtifactKind::PromptTemplate);
    assert_eq!(last.details.fallback_for.as_deref(), Some("Module"));
    assert!(report.warnings[0].contains("Prompt stood in for it"));

    let skill = RecordingSkill::new(&module_package(Some("Prompt")));
    for available in [false, true] {
        let model = ScriptedModel::new(&["from the prompt"]);
        let mut cx = context_with_model(&model);
        let mut dispatcher = ArtifactDispatcher::default();
        dispatcher.add_handler(Arc::new(FakeSidecar(available)));
        let plan = plan_run(&skill, &dispatcher, "", &[]).unwrap();
        let report = run_plan(&skill, &dispatcher, &plan, &mut cx, &mut |_| {}).await;
        let want = if available {
            "from the sidecar"
        } else {
            "from the prompt"
        };
        assert_eq!(report.outcome.unwrap().text, want);
    }
}

/// A module whose program fails, as with an answer that it cannot parse.
#[derive(Debug)]
struct FailingProgram(Error);

#[async_trait]
impl ArtifactHandler for FailingProgram {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    async fn execute_artifact(
        &self,
        _: &Artifact,
        _: &ExecutionContext,
    ) -> repertoire_runtime::Result<ArtifactOutput> {
        Err(self.0.clone())
    }
}

#[tokio::test]
async fn a_program_that_fails_is_replaced_by_the_fallback_prompt() {
    let program = Error::Program {
        code: "AdapterParseError".into(),
        message: "the answer has no field `verdict`".into(),
    };
    let budget = Error::Budget("no tokens are left".into());
    for (error, replaced) in [
        (program, true),
        (Error::Sidecar("it ended".into()), true),
        (budget, false),
    ] {
        let skill = RecordingSkill::new(&module_package(Some("Prompt")));
        let model = ScriptedModel::new(&["from the prompt"]);
        let mut cx = context_with_model(&model);
        let mut dispatcher = ArtifactDispatcher::default();
        dispatcher.add_handler(Arc::new(FailingProgram(error.clone())));
        let plan = plan_run(&skill, &dispatcher, "", &[]).unwrap();
        let report = run_plan(&skill, &dispatcher, &plan, &mut cx, &mut |_| {}).await;
        if !replaced {
            assert_eq!(report.outcome.unwrap_err(), error);
            continue;
        }
        assert_eq!(report.outcome.unwrap().text, "from the prompt");
        // Both the failure and what stood in leave a record.
        let [.., failed, second] = report.records.as_slice() else {
            panic!("{:?}", report.records)
        };
        assert!(failed.error.is_some(), "{failed:?}");
        assert_eq!(second.details.fallback_for.as_deref(), Some("Module"));
    }
}

#[tokio::test]
async fn without_a_fallback_the_error_says_what_is_needed() {
    let skill = RecordingSkill::new(&module_package(None));
    let model = ScriptedModel::new(&["x"]);
    let report = run_skill(&skill, &["Module"], &mut context_with_model(&model)).await;
    let error = report.outcome.unwrap_err();
    assert_eq!(error, Error::NeedsSidecar("Module".into()));
    assert!(error.to_string().contains("requires the Python sidecar"));
    assert_eq!(report.records[1].artifact_kind, ArtifactKind::DspyModule);
    assert!(report.records[1].error.is_some());
}

#[tokio::test]
async fn variants_are_chosen_for_the_model_and_only_that_one_is_loaded() {
    let package = json!({
        "name": "V", "description": "d", "artifacts": [
            {"kind": "prompt_template", "name": "P", "ordinal": 5, "content": "openai",
             "model_variant": "openai"},
            {"kind": "prompt_template", "name": "P", "ordinal": 4, "content": "claude",
             "model_variant": "anthropic"},
            {"kind": "prompt_template", "name": "P", "ordinal": 6, "content": "default"},
        ],
    });
    for (model, want) in [
        ("openai/gpt-4o", "openai"),
        ("anthropic/claude-1", "claude"),
        ("ollama/llama3", "default"),
    ] {
        let skill = RecordingSkill::new(&package);
        let scripted = ScriptedModel::with_id(model, &["ok"]);
        let report = run_skill(&skill, &[], &mut context_with_model(&scripted)).await;
        assert_eq!(
            report.records[0].rendered_input.as_deref(),
            Some(want),
            "{model}"
        );
        assert_eq!(skill.loaded().len(), 1);
    }
}

#[tokio::test]
async fn only_requested_artifacts_are_loaded() {
    let mut package = checker_package(json!([]));
    for n in 0..20 {
        package["artifacts"].as_array_mut().unwrap().push(json!(
            {"kind": "prompt_template", "name": format!("P{n}"), "ordinal": n, "content": "x"}
        ));
    }
    let skill = RecordingSkill::new(&package);
    let dispatcher = ArtifactDispatcher::default();
    let planned = plan_run(&skill, &dispatcher, "", &["p7".to_owned()]).unwrap();
    assert!(skill.loaded().is_empty(), "planning loads nothing");
    let model = ScriptedModel::new(&["ok"]);
    let report = run_plan(
        &skill,
        &dispatcher,
        &planned,
        &mut context_with_model(&model),
        &mut |_| {},
    )
    .await;
    assert!(report.outcome.is_ok());
    assert_eq!(skill.loaded(), ["Overview", "Way", "Shown", "P7"]);
    let missing = plan_run(&skill, &dispatcher, "", &["nope".to_owned()]).unwrap_err();
    assert!(
        missing.to_string().contains("it has Overview, Way"),
        "{missing}"
    );
}

#[tokio::test]
async fn artifacts_that_cannot_run_are_reported() {
    let overview = json!({"kind": "description", "name": "Overview", "content": "o"});
    let script = json!({"kind": "code_template", "name": "Script", "content": "print(1)"});
    let prompt = json!({"kind": "prompt_template", "name": "Ask", "content": "x"});
    let of = |artifacts: &[&Value]| {
        RecordingSkill::new(&json!({"name": "C", "description": "d", "artifacts": artifacts}))
    };
    let model = ScriptedModel::new(&["done"]);
    // If another artifact can run, it is skipped.
    let skill = of(&[&overview, &script, &prompt]);
    let report = run_skill(&skill, &[], &mut context_with_model(&model)).await;
    assert_eq!(
        report.skipped[0].to_string(),
        "Script: no handler is available for a code_template"
    );
    assert_eq!((report.skipped.len(), report.warnings.len()), (1, 0));
    assert_eq!(report.outcome.unwrap().text, "done");
    // If it is named, or is the only artifact, the run fails.
    let alone = of(&[&overview, &script]);
    for (skill, names) in [(&skill, &["Script"][..]), (&alone, &[])] {
        let report = run_skill(skill, names, &mut context_with_model(&model)).await;
        assert_eq!(report.outcome.unwrap_err().code(), "no_handler");
        assert_eq!(report.records.len(), 2);
    }
    // A prompt without a model.
    let skill = RecordingSkill::new(&checker_package(json!([])));
    let report = run_skill(&skill, &[], &mut ExecutionContext::new()).await;
    assert_eq!(report.outcome.unwrap_err().code(), "unknown_model");
}

#[tokio::test]
async fn an_exceeded_budget_ends_the_run() {
    let package = json!({
        "name": "B", "description": "d", "artifacts": [
            {"kind": "prompt_template", "name": "A", "ordinal": 1, "content": "x"},
            {"kind": "prompt_template", "name": "B", "ordinal": 2, "content": "y"},
        ],
    });
    for (tokens, cost) in [(Some(15), None), (None, Some(0.2))] {
        let skill = RecordingSkill::new(&package);
        let model = ScriptedModel::new(&["one", "two"]);
        let budget = Arc::new(Budget::new(tokens, cost));
        let mut cx = ExecutionContext::new();
        cx.model = Some(Arc::new(MeteredModel::new(model.clone(), budget.clone())));
        let report = run_skill(&skill, &[], &mut cx).await;
        assert_eq!(report.outcome.unwrap_err().code(), "budget_exceeded");
        assert_eq!(model.requests.lock().unwrap().len(), 1);
        assert_eq!(budget.total_usage().total_tokens(), 15);
    }
}

#[tokio::test]
async fn a_cost_limit_without_a_known_price_is_refused_before_any_call() {
    let skill = RecordingSkill::new(&checker_package(json!([])));
    let mut model = ScriptedModel::new(&["never"]);
    Arc::get_mut(&mut model).unwrap().price = None;
    let mut cx = ExecutionContext::new();
    cx.values = json!({"thing": "t", "message": "m"})
        .as_object()
        .unwrap()
        .clone();
    let budget = Arc::new(Budget::new(None, Some(1.0)));
    cx.model = Some(Arc::new(MeteredModel::new(model.clone(), budget)));
    let error = run_skill(&skill, &[], &mut cx).await.outcome.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no price is known for test/model"),
        "{error}"
    );
    assert!(model.requests.lock().unwrap().is_empty());
}

/// A sidecar handler that never returns.
#[derive(Debug)]
struct SilentHandler;

#[async_trait]
impl ArtifactHandler for SilentHandler {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    async fn execute_artifact(
        &self,
        _: &Artifact,
        context: &ExecutionContext,
    ) -> repertoire_runtime::Result<ArtifactOutput> {
        context.notes.set_input("the current input");
        context.stop.cancel();
        std::future::pending().await
    }
}

#[tokio::test]
async fn an_interrupted_execution_leaves_its_record() {
    let skill = RecordingSkill::new(&module_package(None));
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_handler(Arc::new(SilentHandler));
    let plan = plan_run(&skill, &dispatcher, "", &["Module".to_owned()]).unwrap();
    let mut cx = ExecutionContext::new();
    let mut reported = 0;
    let report = run_plan(&skill, &dispatcher, &plan, &mut cx, &mut |_| reported += 1).await;
    assert_eq!(report.outcome.unwrap_err(), Error::Interrupted);
    assert_eq!(reported, 2);
    let last = &report.records[1];
    assert_eq!(last.rendered_input.as_deref(), Some("the current input"));
    assert_eq!(last.details.code.as_deref(), Some("interrupted"));
}

#[tokio::test]
async fn t27_keys_in_prompts_and_answers_are_redacted() {
    let secret = "planted-secret-value";
    let skill = RecordingSkill::new(&checker_package(
        json!([{"type": "pattern", "pattern": "^never"}]),
    ));
    let model = ScriptedModel::new(&[&format!("the key is {secret}")]);
    let mut cx = context_with_model(&model);
    cx.redactor = Redactor::new([secret.to_owned()]);
    cx.values.insert("thing".into(), secret.into());
    cx.message = Some("m".into());
    let report = run_skill(&skill, &[], &mut cx).await;
    let kept = serde_json::to_string(&report.records).unwrap();
    assert!(!kept.contains(secret), "{kept}");
    assert!(kept.contains("[redacted]"));
}

/// A check that an application adds.
#[derive(Debug)]
struct NoShouting;

#[async_trait]
impl Assertion for NoShouting {
    fn description(&self) -> &'static str {
        "the output does not shout"
    }

    async fn evaluate(
        &self,
        output: &ArtifactOutput,
        _: &ExecutionContext,
    ) -> Result<(), AssertionFailure> {
        let shouts = output.text.ends_with('!');
        (!shouts)
            .then_some(())
            .ok_or_else(|| AssertionFailure::new("it ends with an exclamation mark"))
    }
}

#[tokio::test]
async fn an_application_adds_its_own_assertions() {
    let skill = RecordingSkill::new(&json!({
        "name": "C", "description": "d", "artifacts": [
            {"kind": "description", "name": "Overview", "content": "Loud!"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1, "content": "x"},
        ],
    }));
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_assertion(Arc::new(NoShouting));
    let plan = plan_run(&skill, &dispatcher, "", &[]).unwrap();
    for (answer, passes) in [("Fine.", true), ("No!", false)] {
        let model = ScriptedModel::new(&[answer]);
        let mut context = context_with_model(&model);
        let report = run_plan(&skill, &dispatcher, &plan, &mut context, &mut |_| {}).await;
        // The description is shown to the model as it is and is not an output.
        let checked: Vec<u64> = report.records.iter().map(|r| r.assertions_run).collect();
        assert_eq!(checked, [0, 1]);
        assert_eq!(report.records[1].assertions_passed, u64::from(passes));
        match report.outcome {
            Ok(_) => assert!(passes),
            Err(error) => {
                assert!(!passes);
                assert_eq!(error.code(), "assertion_failed");
                assert!(error.to_string().contains("does not shout"), "{error}");
            }
        }
    }
}
