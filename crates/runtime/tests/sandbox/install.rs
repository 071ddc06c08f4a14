//! Tests of the installed sandbox.

use super::*;

#[tokio::test]
async fn an_idle_sandbox_is_unloaded_and_loaded_again() {
    let Some(folder) = installed_sandbox() else {
        return;
    };
    let scripts =
        ScriptHandler::new(folder, Limits::default()).with_idle_timeout(Duration::from_millis(20));
    let scripts = Arc::new(scripts);
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_handler(scripts.clone());
    for _ in 0..2 {
        let code = "import repertoire\nrepertoire.submit(repertoire.llm_query('x'))";
        let mut cx = script_context(&json!({}));
        // Longer than the idle time: a running script must keep the sandbox loaded.
        cx.model = Some(Arc::new(EchoModel(Duration::from_millis(100))));
        let report = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
        assert_eq!(report.outcome.unwrap().value, Some(json!("x")));
        tokio::time::timeout(Duration::from_secs(30), async {
            while scripts.is_loaded() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the sandbox stays loaded");
    }
}

#[tokio::test]
async fn scripts_without_a_sandbox_fail_or_are_skipped_with_that_reason() {
    let empty = tempfile::tempdir().unwrap();
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_handler(Arc::new(ScriptHandler::new(
        empty.path(),
        Limits::default(),
    )));
    let skill = script_skill("pass", &json!({}));
    let mut cx = script_context(&json!({}));
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    let error = report.outcome.unwrap_err();
    assert_eq!(error.code(), "needs_sandbox");
    // If another artifact can run, it is skipped with the same reason.
    let both = RecordingSkill::new(&json!({
        "name": "S", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Script", "content": "pass"},
            {"kind": "prompt_template", "name": "Ask", "content": "x"},
        ],
    }));
    let plan = plan_run(&both, &dispatcher, "", &[]).unwrap();
    assert_eq!(plan.skipped[0].name, "Script");
    assert_eq!(plan.skipped[0].reason, error);
}

#[test]
fn a_compiled_guest_that_others_can_write_to_is_refused() {
    let Some(folder) = installed_sandbox() else {
        return;
    };
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
