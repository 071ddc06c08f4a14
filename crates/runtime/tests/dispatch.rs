//! Runs of packages: order, variants, fallbacks, severities, records, lazy loading.

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
use common::{Scripted, Spy};
use repertoire_core::{Artifact, ArtifactKind};
use repertoire_runtime::{
    ArtifactDispatcher, ArtifactHandler, ArtifactOutput, Budget, Error, ExecutionContext, Metered,
    Redactor, Role,
    run::{Report, plan, run},
};
use serde_json::{Value, json};

fn context(model: &Arc<Scripted>) -> ExecutionContext {
    let mut context = ExecutionContext::new();
    context.model = Some(model.clone());
    context
}

async fn go(skill: &Spy, names: &[&str], context: &mut ExecutionContext) -> Report {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let dispatcher = ArtifactDispatcher::default();
    let plan = plan(skill, &dispatcher, &context.family(), &names).unwrap();
    run(skill, &dispatcher, &plan, context, &mut |_| {}).await
}

fn checker(assertions: Value) -> Value {
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
async fn one_row_for_each_artifact_and_everything_in_it() {
    let skill = Spy::new(&checker(json!([{"type": "length", "max": 20}])));
    let model = Scripted::new(&["an answer"]);
    let mut context = context(&model);
    context.values.insert("thing".into(), "tea".into());
    context.message = Some("is it hot?".into());
    let report = go(&skill, &[], &mut context).await;
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
    let asked = model.asked.lock().unwrap();
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
            (Role::User, "1+1"),
            (Role::Assistant, "2"),
            (Role::User, "About tea: is it hot?")
        ]
    );
}

#[tokio::test]
async fn a_hard_failure_ends_the_run_and_a_soft_one_does_not() {
    let package = |severity: &str| {
        let mut package = checker(json!([
            {"type": "pattern", "pattern": "^yes", "severity": severity},
            {"type": "length", "min": 1},
        ]));
        package["artifacts"].as_array_mut().unwrap().push(json!(
            {"kind": "prompt_template", "name": "Next", "ordinal": 2, "content": "{{ outputs.Ask }}!"}
        ));
        package
    };
    for (severity, rows, asked) in [("hard", 4, 1), ("soft", 5, 2)] {
        let skill = Spy::new(&package(severity));
        let model = Scripted::new(&["no", "then"]);
        let mut context = context(&model);
        context.values = json!({"thing": "t", "message": "m"})
            .as_object()
            .unwrap()
            .clone();
        let report = go(&skill, &[], &mut context).await;
        assert_eq!(report.records.len(), rows, "{severity}");
        assert_eq!(model.asked.lock().unwrap().len(), asked);
        let checked = &report.records[3];
        assert_eq!((checked.assertions_run, checked.assertions_passed), (2, 1));
        // What came out is kept, whatever was found of it.
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

fn with_module(fallback: Option<&str>) -> Value {
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

/// A sidecar that is there or not.
#[derive(Debug)]
struct Sidecar(bool);

#[async_trait]
impl ArtifactHandler for Sidecar {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    fn lacks(&self) -> Option<Error> {
        (!self.0).then(|| Error::Sidecar("not there".into()))
    }

    async fn execute(
        &self,
        artifact: &Artifact,
        _: &ExecutionContext,
    ) -> repertoire_runtime::Result<ArtifactOutput> {
        assert!(artifact.content.contains("template_id"));
        Ok(ArtifactOutput::text("from the sidecar"))
    }
}

#[tokio::test]
async fn a_missing_sidecar_is_stood_in_for_by_the_fallback() {
    let skill = Spy::new(&with_module(Some("Prompt")));
    let model = Scripted::named("anthropic/claude-x", &["from the prompt"]);
    let mut cx = context(&model);
    let report = go(&skill, &[], &mut cx).await;
    assert_eq!(report.outcome.unwrap().text, "from the prompt");
    // One row for what was executed; the module's content was never loaded.
    assert_eq!(skill.loaded(), ["Overview", "Promptanthropic"]);
    let last = report.records.last().unwrap();
    assert_eq!(last.artifact_kind, ArtifactKind::PromptTemplate);
    assert_eq!(last.details.fallback_for.as_deref(), Some("Module"));
    assert!(report.warnings[0].contains("Prompt stood in for it"));

    let skill = Spy::new(&with_module(Some("Prompt")));
    for available in [false, true] {
        let model = Scripted::new(&["from the prompt"]);
        let mut cx = context(&model);
        let mut dispatcher = ArtifactDispatcher::default();
        dispatcher.add(Arc::new(Sidecar(available)));
        let plan = plan(&skill, &dispatcher, "", &[]).unwrap();
        let report = run(&skill, &dispatcher, &plan, &mut cx, &mut |_| {}).await;
        let want = if available {
            "from the sidecar"
        } else {
            "from the prompt"
        };
        assert_eq!(report.outcome.unwrap().text, want);
    }
}

#[tokio::test]
async fn without_a_fallback_the_error_says_what_is_needed() {
    let skill = Spy::new(&with_module(None));
    let model = Scripted::new(&["x"]);
    let report = go(&skill, &["Module"], &mut context(&model)).await;
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
        let skill = Spy::new(&package);
        let scripted = Scripted::named(model, &["ok"]);
        let report = go(&skill, &[], &mut context(&scripted)).await;
        assert_eq!(
            report.records[0].rendered_input.as_deref(),
            Some(want),
            "{model}"
        );
        assert_eq!(skill.loaded().len(), 1);
    }
}

#[tokio::test]
async fn only_what_was_asked_for_is_loaded() {
    let mut package = checker(json!([]));
    for n in 0..20 {
        package["artifacts"].as_array_mut().unwrap().push(json!(
            {"kind": "prompt_template", "name": format!("P{n}"), "ordinal": n, "content": "x"}
        ));
    }
    let skill = Spy::new(&package);
    let dispatcher = ArtifactDispatcher::default();
    let planned = plan(&skill, &dispatcher, "", &["p7".to_owned()]).unwrap();
    assert!(skill.loaded().is_empty(), "planning loads nothing");
    let model = Scripted::new(&["ok"]);
    let report = run(
        &skill,
        &dispatcher,
        &planned,
        &mut context(&model),
        &mut |_| {},
    )
    .await;
    assert!(report.outcome.is_ok());
    assert_eq!(skill.loaded(), ["Overview", "Way", "Shown", "P7"]);
    let missing = plan(&skill, &dispatcher, "", &["nope".to_owned()]).unwrap_err();
    assert!(
        missing.to_string().contains("it has Overview, Way"),
        "{missing}"
    );
}

#[tokio::test]
async fn what_cannot_be_run_is_said() {
    let overview = json!({"kind": "description", "name": "Overview", "content": "o"});
    let script = json!({"kind": "code_template", "name": "Script", "content": "print(1)"});
    let prompt = json!({"kind": "prompt_template", "name": "Ask", "content": "x"});
    let of = |artifacts: &[&Value]| {
        Spy::new(&json!({"name": "C", "description": "d", "artifacts": artifacts}))
    };
    let model = Scripted::new(&["done"]);
    // Beside something that can be done, it is left out.
    let skill = of(&[&overview, &script, &prompt]);
    let report = go(&skill, &[], &mut context(&model)).await;
    assert_eq!(
        report.warnings,
        ["Script: nothing here runs a code_template (this build is without the feature `sandbox`)"]
    );
    assert_eq!(report.outcome.unwrap().text, "done");
    // Named, or with nothing else to do, it fails.
    let alone = of(&[&overview, &script]);
    for (skill, names) in [(&skill, &["Script"][..]), (&alone, &[])] {
        let report = go(skill, names, &mut context(&model)).await;
        assert_eq!(report.outcome.unwrap_err().code(), "no_handler");
        assert_eq!(report.records.len(), 2);
    }
    // A prompt without a model.
    let skill = Spy::new(&checker(json!([])));
    let report = go(&skill, &[], &mut ExecutionContext::new()).await;
    assert_eq!(report.outcome.unwrap_err().code(), "unknown_model");
}

#[tokio::test]
async fn budgets_end_a_run() {
    let package = json!({
        "name": "B", "description": "d", "artifacts": [
            {"kind": "prompt_template", "name": "A", "ordinal": 1, "content": "x"},
            {"kind": "prompt_template", "name": "B", "ordinal": 2, "content": "y"},
        ],
    });
    for (tokens, cost) in [(Some(15), None), (None, Some(0.2))] {
        let skill = Spy::new(&package);
        let model = Scripted::new(&["one", "two"]);
        let budget = Arc::new(Budget::new(tokens, cost));
        let mut cx = ExecutionContext::new();
        cx.model = Some(Arc::new(Metered::new(model.clone(), budget.clone())));
        let report = go(&skill, &[], &mut cx).await;
        assert_eq!(report.outcome.unwrap_err().code(), "budget_exceeded");
        assert_eq!(model.asked.lock().unwrap().len(), 1);
        assert_eq!(budget.used().tokens(), 15);
    }
}

#[tokio::test]
async fn a_limit_nobody_can_keep_is_refused_before_anything_is_spent() {
    let skill = Spy::new(&checker(json!([])));
    let mut model = Scripted::new(&["never"]);
    Arc::get_mut(&mut model).unwrap().price = None;
    let mut cx = ExecutionContext::new();
    cx.values = json!({"thing": "t", "message": "m"})
        .as_object()
        .unwrap()
        .clone();
    let budget = Arc::new(Budget::new(None, Some(1.0)));
    cx.model = Some(Arc::new(Metered::new(model.clone(), budget)));
    let error = go(&skill, &[], &mut cx).await.outcome.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no price is known for test/model"),
        "{error}"
    );
    assert!(model.asked.lock().unwrap().is_empty());
}

/// A sidecar that never answers.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl ArtifactHandler for Silent {
    fn kind(&self) -> ArtifactKind {
        ArtifactKind::DspyModule
    }

    async fn execute(
        &self,
        _: &Artifact,
        context: &ExecutionContext,
    ) -> repertoire_runtime::Result<ArtifactOutput> {
        context.notes.input("what it was working on");
        context.stop.cancel();
        std::future::pending().await
    }
}

#[tokio::test]
async fn what_is_interrupted_leaves_its_row_too() {
    let skill = Spy::new(&with_module(None));
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(Arc::new(Silent));
    let plan = plan(&skill, &dispatcher, "", &["Module".to_owned()]).unwrap();
    let mut cx = ExecutionContext::new();
    let mut told = 0;
    let report = run(&skill, &dispatcher, &plan, &mut cx, &mut |_| told += 1).await;
    assert_eq!(report.outcome.unwrap_err(), Error::Interrupted);
    assert_eq!(told, 2);
    let last = &report.records[1];
    assert_eq!(
        last.rendered_input.as_deref(),
        Some("what it was working on")
    );
    assert_eq!(last.details.code.as_deref(), Some("interrupted"));
}

#[tokio::test]
async fn t27_keys_in_prompts_and_answers_are_not_kept() {
    let secret = "planted-secret-value";
    let skill = Spy::new(&checker(json!([{"type": "pattern", "pattern": "^never"}])));
    let model = Scripted::new(&[&format!("the key is {secret}")]);
    let mut cx = context(&model);
    cx.redactor = Redactor::new([secret.to_owned()]);
    cx.values.insert("thing".into(), secret.into());
    cx.message = Some("m".into());
    let report = go(&skill, &[], &mut cx).await;
    let kept = serde_json::to_string(&report.records).unwrap();
    assert!(!kept.contains(secret), "{kept}");
    assert!(kept.contains("[redacted]"));
}
