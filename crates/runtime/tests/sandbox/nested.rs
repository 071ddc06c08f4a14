//! Tests of nested skills.

use super::*;

struct SingleSkillLookup(Arc<RecordingSkill>);

impl SkillLookup for SingleSkillLookup {
    fn open_skill(&self, name: &str) -> repertoire_runtime::Result<Arc<dyn LoadableSkill>> {
        (name == "s")
            .then(|| self.0.clone() as Arc<dyn LoadableSkill>)
            .ok_or_else(|| Error::InvalidCall {
                call: "run_skill".into(),
                reason: format!("there is no skill {name:?}"),
            })
    }
}

#[tokio::test]
async fn scripts_run_nested_skills_up_to_a_depth_limit() {
    let Some(dispatcher) = shared_dispatcher() else {
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
    let skill = Arc::new(script_skill(code, &json!({})));
    let kept: Arc<std::sync::Mutex<Vec<ExecutionRecord>>> = Arc::default();
    let keeper = kept.clone();
    let others = Arc::new(NestedSkills {
        skills: Arc::new(SingleSkillLookup(skill.clone())),
        dispatcher: dispatcher.clone(),
        save_record: Arc::new(move |record| keeper.lock().unwrap().push(record.clone())),
    });
    let mut cx = script_context(&json!({"depth": 0}));
    cx.nested_skills = Some(others.clone());
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value[0], "inner");
    assert_eq!(value[2], "invalid_call", "{value}");
    let rows = kept.lock().unwrap().clone();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.session_id == cx.session_id));
    // Only values given by the caller are compared on resume, not those given by a script.
    assert!(!report.records[0].details.values.is_empty());
    assert!(rows.iter().all(|row| row.details.values.is_empty()));

    let mut cx = script_context(&json!({"depth": 10}));
    cx.nested_skills = Some(others);
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert!(error.to_string().contains("at most 4 deep"), "{error}");
}

/// A script that can be run as a nested skill, also by itself.
fn nestable_script(
    dispatcher: &ArtifactDispatcher,
    code: &str,
    metadata: &Value,
    params: &Value,
) -> (Arc<RecordingSkill>, ExecutionContext) {
    let skill = Arc::new(script_skill(code, metadata));
    let mut cx = script_context(params);
    cx.nested_skills = Some(Arc::new(NestedSkills {
        skills: Arc::new(SingleSkillLookup(skill.clone())),
        dispatcher: dispatcher.clone(),
        save_record: Arc::new(|_| {}),
    }));
    (skill, cx)
}

#[tokio::test]
async fn t31_nested_skills_share_the_remaining_limits_of_the_caller() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    // Each run stays within the limits; together they exceed them.
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
    let (skill, mut cx) = nestable_script(&dispatcher, code, &limits, &json!({"inner": 0}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let message = report.outcome.unwrap_err().to_string();
    assert!(message.contains("called the host more than"), "{message}");
    let used = &report.records[0].details.used;
    assert!(used["host_calls"].used >= 180, "{used:?}");

    let one = json!({"limits": {"fuel": 1_000_000_000}});
    let (skill, mut cx) = nestable_script(&dispatcher, code, &one, &json!({"inner": 1}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let fuel = report.records[0].details.used["fuel"].used;
    assert!(report.outcome.is_ok());
    // Enough for a few runs, but not for all.
    let few = json!({"limits": {"fuel": fuel * 5}});
    let (skill, mut cx) = nestable_script(&dispatcher, code, &few, &json!({"inner": 0}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert!(error.to_string().contains("steps"), "{error}");
}

#[tokio::test]
async fn nested_skills_keep_separate_checkpoints() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let code = r#"
import repertoire
if page:
    repertoire.submit(repertoire.checkpoint("summary", lambda: repertoire.llm_query(page)))
both = [repertoire.run_skill("s", {"page": page}, "Script") for page in ("one", "two", "one")]
repertoire.submit(both)
"#;
    let (skill, mut cx) = nestable_script(&dispatcher, code, &json!({}), &json!({"page": ""}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    // Their usage is included, although they have records of their own.
    assert_eq!(report.usage().input_tokens, Some(2));
    assert_eq!(report.records[0].input_tokens, None);
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value, json!(["one", "two", "one"]));
}

#[tokio::test]
async fn a_limit_of_a_nested_skill_is_reported_to_the_calling_script() {
    let Some(dispatcher) = shared_dispatcher() else {
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
    // The outer script runs out of fuel together with the nested one.
    let limits = json!({"limits": {"fuel": 2_000_000_000}});
    let (skill, mut cx) = nestable_script(&dispatcher, code, &limits, &json!({"inner": 0}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let message = report.outcome.unwrap_err().to_string();
    assert!(message.contains("steps"), "{message}");

    let outer = script_skill(code, &json!({}));
    let (_, mut cx) = nestable_script(
        &dispatcher,
        code,
        &json!({"limits": {"seconds": 1}}),
        &json!({"inner": 0}),
    );
    let report = run_script(&dispatcher, &outer, &mut cx).await;
    let value = report.outcome.unwrap().value.unwrap();
    assert_eq!(value[0], "invalid_call");
    assert!(
        value[1].as_str().unwrap().contains("more than 1 s"),
        "{value}"
    );
}
