//! Running, asking and evaluating through the library, without the command line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helper functions of tests may panic"
)]

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use repertoire_app::{
    AskProgress, AskRequest, Error, OptimizeRequest, OutputCase, RunRequest, Runner,
    RunnerSettings, TrainingSource, last_session, load_conversation,
};
use repertoire_registry::{
    Registry, RegistrySettings, StoreScope, search::SkillIndex, store::TraceFilter,
};
use repertoire_runtime::{
    ChatTurn, Model, ModelReply, ModelRequest, ModelUsage,
    model::ReplyListener,
    optimize::{Effort, Optimizer},
    sidecar::{Sidecar, SidecarCommand},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// A model that returns its answers in order and records the requests.
#[derive(Debug, Default)]
struct ScriptedModel {
    answers: Mutex<Vec<String>>,
    requests: Mutex<Vec<ModelRequest>>,
}

impl ScriptedModel {
    fn new(answers: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(
                answers
                    .iter()
                    .rev()
                    .map(|text| (*text).to_owned())
                    .collect(),
            ),
            requests: Mutex::default(),
        })
    }

    fn texts_of_request(&self, number: usize) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let turns = requests[number].turns.iter();
        turns.map(|turn| turn.text.clone()).collect()
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn id(&self) -> &'static str {
        "test/scripted"
    }

    async fn send_request(
        &self,
        request: &ModelRequest,
        _listener: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        self.requests.lock().unwrap().push(request.clone());
        let text = self.answers.lock().unwrap().pop();
        Ok(ModelReply {
            text: text.expect("an answer is left"),
            usage: ModelUsage {
                input_tokens: Some(10),
                output_tokens: Some(5),
                cost: None,
            },
            cut: false,
        })
    }
}

fn write_skill(root: &Path, name: &str, description: &str) {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    let text =
        format!("---\nname: {name}\ndescription: {description}\n---\n# {name}\n\nBe kind.\n");
    fs::write(folder.join("SKILL.md"), text).unwrap();
}

/// A registry over one folder of skills, with an account store.
fn open_registry(home: &Path) -> Arc<Registry> {
    let skills = home.join("skills");
    write_skill(
        &skills,
        "greeting",
        "Greets people by name. Use when a person says hello.",
    );
    write_skill(
        &skills,
        "farewell",
        "Says goodbye to people. Use when a person leaves.",
    );
    let mut settings = RegistrySettings::from_folders([skills]);
    settings.account = Some(home.join("account"));
    Registry::open(settings).unwrap()
}

fn new_runner(registry: Arc<Registry>, model: &Arc<ScriptedModel>) -> Runner {
    let settings = RunnerSettings {
        model: Some(model.clone()),
        ..RunnerSettings::default()
    };
    Runner::new(registry, settings)
}

fn with_message(message: &str) -> RunRequest {
    RunRequest {
        message: Some(message.to_owned()),
        ..RunRequest::default()
    }
}

#[tokio::test]
async fn a_run_is_planned_executed_and_traced() {
    let home = tempfile::tempdir().unwrap();
    let model = ScriptedModel::new(&["Hello, Mira!"]);
    let runner = new_runner(open_registry(home.path()), &model);
    let skill = "greeting".parse().unwrap();

    let (steps, _) = runner.dry_run(&skill, &with_message("I am Mira")).unwrap();
    let texts: Vec<&str> = steps.iter().map(|step| &*step.text).collect();
    assert!(texts.last().unwrap().contains("I am Mira"), "{texts:?}");
    assert!(model.requests.lock().unwrap().is_empty());

    let report = runner
        .run(&skill, &with_message("I am Mira"))
        .await
        .unwrap();
    assert_eq!(report.outcome.unwrap().text, "Hello, Mira!");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    let traces = runner.registry().traces(&TraceFilter::default()).unwrap();
    assert!(!traces.is_empty());
    assert!(
        traces
            .iter()
            .all(|trace| trace.session_id == report.session_id)
    );

    let resumed = RunRequest {
        resume: Some("no-such-session".to_owned()),
        ..with_message("I am Mira")
    };
    let error = runner.run(&skill, &resumed).await.unwrap_err();
    assert_eq!(error.code(), "unknown_session");
    let error = runner
        .run(&"absent".parse().unwrap(), &with_message(""))
        .await;
    assert_eq!(error.unwrap_err().code(), "not_found");
}

#[tokio::test]
async fn a_run_without_a_model_is_refused_before_anything_happens() {
    let home = tempfile::tempdir().unwrap();
    let runner = Runner::new(open_registry(home.path()), RunnerSettings::default());
    let error = runner
        .run(&"greeting".parse().unwrap(), &with_message("hello"))
        .await
        .unwrap_err();
    assert_eq!(error.code(), "unknown_model");
    assert!(
        runner
            .registry()
            .traces(&TraceFilter::default())
            .unwrap()
            .is_empty()
    );
}

fn decision(decision: &str, skill: &str, text: &str) -> String {
    json!({
        "decision": decision, "skill": skill, "artifacts": [], "text": text, "reason": "it fits",
    })
    .to_string()
}

async fn ask(
    runner: &Runner,
    message: &str,
    session: Option<&str>,
    conversation: Vec<ChatTurn>,
) -> Result<repertoire_app::AskOutcome, Error> {
    let registry = runner.registry();
    let snapshot = registry.snapshot();
    let index = SkillIndex::new(registry, &snapshot).unwrap();
    let shortlist = runner.shortlist(&index, &snapshot, message, 3).unwrap();
    let request = AskRequest {
        message: message.to_owned(),
        session: session.map(str::to_owned),
        conversation,
        ..AskRequest::default()
    };
    let mut decided = 0;
    let mut on_progress = |progress: AskProgress<'_>| {
        decided += usize::from(matches!(progress, AskProgress::Decided(_)));
    };
    let outcome = runner.ask(shortlist, request, &mut on_progress).await;
    if outcome.is_ok() {
        assert_eq!(decided, 1);
    }
    outcome
}

#[tokio::test]
async fn asking_activates_a_skill_and_a_session_is_continued() {
    let home = tempfile::tempdir().unwrap();
    let activate = decision("activate", "greeting", "");
    let respond = decision("respond", "", "");
    let model = ScriptedModel::new(&[&activate, "Hello, Mira!", &respond, "Your name is Mira."]);
    let runner = new_runner(open_registry(home.path()), &model);

    let first = ask(&runner, "say hello to Mira, a person", None, Vec::new());
    let first = first.await.unwrap();
    assert_eq!(first.report.outcome.as_ref().unwrap().text, "Hello, Mira!");
    assert!(!first.report.records.is_empty());
    assert_eq!(first.usage.input_tokens, Some(20));
    let session = first.report.session_id;
    assert_eq!(
        last_session(runner.registry()).unwrap().as_ref(),
        Some(&session)
    );

    let second = ask(&runner, "what is my name?", Some(&session), Vec::new());
    let second = second.await.unwrap();
    assert_eq!(second.report.outcome.unwrap().text, "Your name is Mira.");
    assert_eq!(second.report.session_id, session);
    // Both the decision and the answer see the conversation so far.
    for number in [2, 3] {
        let texts = model.texts_of_request(number);
        assert_eq!(texts[..2], ["say hello to Mira, a person", "Hello, Mira!"]);
        assert!(texts[2].contains("what is my name?"), "{texts:?}");
    }
    let stored = load_conversation(runner.registry(), &session).unwrap();
    assert_eq!(stored.unwrap().len(), 4);
    let unknown = ask(&runner, "and now?", Some("no-such-session"), Vec::new());
    assert_eq!(unknown.await.unwrap_err().code(), "unknown_session");
}

#[tokio::test]
async fn a_conversation_of_the_caller_reaches_the_decision() {
    let home = tempfile::tempdir().unwrap();
    let clarify = decision("clarify", "", "Whom do you mean?");
    let model = ScriptedModel::new(&[&clarify]);
    let runner = new_runner(open_registry(home.path()), &model);
    let before = vec![ChatTurn::user("hello"), ChatTurn::assistant("Hello!")];
    let outcome = ask(&runner, "greet them too", None, before).await.unwrap();
    assert_eq!(outcome.report.outcome.unwrap().text, "Whom do you mean?");
    assert_eq!(model.texts_of_request(0)[..2], ["hello", "Hello!"]);
}

#[tokio::test]
async fn a_case_is_evaluated_with_its_skill_and_without() {
    let home = tempfile::tempdir().unwrap();
    let model = ScriptedModel::new(&["Hello, Mira!", "Hi."]);
    let runner = new_runner(open_registry(home.path()), &model);
    let case: OutputCase = serde_json::from_value::<OutputCase>(json!({
        "skill": "greeting", "message": "I am Mira",
        "expect": [{"type": "pattern", "check": "regex_match", "pattern": "Mira"}],
    }))
    .unwrap();
    let result = runner.evaluate(&case).await.unwrap();
    assert!(result.with.is_passed(), "{:?}", result.with);
    assert!(!result.without.is_passed(), "{:?}", result.without);
    assert_eq!(result.with.of, 1);
}

#[tokio::test]
async fn optimizing_checks_the_module_before_any_model_is_called() {
    let home = tempfile::tempdir().unwrap();
    let model = ScriptedModel::new(&[]);
    let runner = new_runner(open_registry(home.path()), &model);
    let sidecar = Sidecar::new(SidecarCommand::new("absent", Vec::new(), "."));
    let skill = "greeting".parse().unwrap();
    let request = OptimizeRequest {
        skill: &skill,
        artifact: None,
        optimizer: Optimizer::Bootstrap,
        effort: Effort::default(),
        source: TrainingSource::Traces,
        scope: (None, StoreScope::Account),
        keep_worse: false,
        stop: CancellationToken::new(),
        on_progress: &|_| {},
        on_usage: &|_| {},
    };
    let error = runner.optimize(&sidecar, request).await.unwrap_err();
    assert_eq!(error.code(), "no_module");
    assert!(error.to_string().contains("greeting"), "{error}");
    assert_eq!(model.requests.lock().unwrap().len(), 0);
}
