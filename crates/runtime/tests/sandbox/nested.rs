//! Skills that scripts run.

use super::*;

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
    // What somebody resumes with is compared with what somebody gave, not with what a script did.
    assert!(!report.records[0].details.values.is_empty());
    assert!(rows.iter().all(|row| row.details.values.is_empty()));

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
