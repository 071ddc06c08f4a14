//! What is installed, and what is made of it.

use super::*;

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
