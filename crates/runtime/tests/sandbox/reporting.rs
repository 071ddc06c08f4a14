//! Tests of the errors and the printed output of scripts.

use super::*;

#[tokio::test]
async fn errors_name_the_line_and_refusals_keep_their_reason() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    for (code, expected) in [
        (
            "x = 1\nx.nothing",
            "script, line 2: AttributeError: 'int' object has no attribute 'nothing'",
        ),
        ("x = (", "script, line 1: SyntaxError: '(' was never closed"),
        (
            "print(1)\ncharacter.title()",
            "script, line 2: NameError: name 'character' is not defined: if it is a value of the \
             skill, it was not given",
        ),
        (
            "def f():\n    return 1 / 0\n\nf()",
            "script, line 2: ZeroDivisionError: division by zero",
        ),
        (
            "e = SyntaxError()\ne.filename, e.msg = 'skill.py', 5\nraise e",
            "script: SyntaxError: 5",
        ),
        ("raise SystemExit('no')", "script, line 1: SystemExit: no"),
    ] {
        let mut cx = script_context(&json!({}));
        let report = run_script(&dispatcher, &script_skill(code, &json!({})), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.code(), "script_error");
    }
    let mut cx = script_context(&json!({}));
    cx.model = None;
    let asks = "import repertoire\nrepertoire.llm_query('x')";
    let report = run_script(&dispatcher, &script_skill(asks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "unknown_model");
    cx.engine = TemplateEngine::new();
    let looks = "import repertoire\nrepertoire.get_tags()";
    let report = run_script(&dispatcher, &script_skill(looks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "workspace_error");
    for (metadata, expected) in [
        (json!({"limits": {"fule": 1}}), "fule"),
        (json!({"limits": 3}), "metadata.limits"),
        (json!({"constants": 3}), "metadata.constants"),
    ] {
        let report = run_script(&dispatcher, &script_skill("pass", &metadata), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_cancelled_script_is_stopped_and_leaves_its_record() {
    let Some(folder) = installed_sandbox() else {
        return;
    };
    let scripts =
        ScriptHandler::new(folder, Limits::default()).with_idle_timeout(Duration::from_millis(20));
    let scripts = Arc::new(scripts);
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add_handler(scripts.clone());
    let skill = script_skill(
        "import repertoire\nprint('so far')\nrepertoire.llm_query('x')\nwhile True: pass",
        &json!({}),
    );
    let mut cx = script_context(&json!({}));
    let (stop, notes) = (cx.stop.clone(), cx.notes.clone());
    tokio::spawn(async move {
        // It is running once it has called the model.
        while notes.usage_so_far().total_tokens() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
    });
    let report = run_script(&dispatcher, &skill, &mut cx).await;
    assert_eq!(report.outcome.unwrap_err(), Error::Interrupted);
    assert_eq!(report.records[0].input_tokens, Some(1));
    let details = &report.records[0].details;
    assert_eq!(details.printed.as_deref(), Some("so far\n"));
    let used = &details.used;
    assert_eq!(used["host_calls"].used, 1, "{used:?}");
    assert!(used["fuel"].used > 0, "{used:?}");
    assert_eq!(used["output_bytes"].used, 7, "{used:?}");
    // The sandbox is unloaded only when no script runs in it.
    let begun = std::time::Instant::now();
    while scripts.is_loaded() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "the script still runs"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn fuel_of_a_cancelled_script_is_recorded_without_host_calls() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let burnt = |report: &RunReport| {
        let used = &report.records[0].details.used;
        used.get("fuel").map_or(0, |fuel| fuel.used)
    };
    let mut cx = script_context(&json!({}));
    let nothing = run_script(&dispatcher, &script_skill("pass", &json!({})), &mut cx).await;
    let nothing = burnt(&nothing);
    // Let it run for a while; longer on a slow machine.
    for wait in [100, 1000, 10_000] {
        let mut cx = script_context(&json!({}));
        let stop = cx.stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            stop.cancel();
        });
        let endless = script_skill("while True: pass", &json!({}));
        let endless = run_script(&dispatcher, &endless, &mut cx).await;
        let burnt = burnt(&endless);
        assert_eq!(endless.outcome.unwrap_err(), Error::Interrupted);
        if burnt > 2 * nothing {
            return;
        }
    }
    panic!("the fuel use is not recorded");
}

/// A model that fails for some prompts and counts the requests.
#[derive(Debug, Default)]
struct FailingModel(AtomicUsize);

#[async_trait]
impl Model for FailingModel {
    fn id(&self) -> &'static str {
        "test/failing"
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if ask.turns.last().unwrap().text == "bad" {
            return Err(Error::Provider {
                provider: "test".to_owned(),
                status: Some(500),
                charged: false,
                reason: "this one never works".to_owned(),
            });
        }
        if ask.turns.last().unwrap().text == "late" {
            return Err(Error::Timeout {
                provider: "test".to_owned(),
                after: Duration::from_mins(1),
            });
        }
        // Let the other calls of the batch start.
        tokio::task::yield_now().await;
        Ok(ModelReply {
            text: "yes".into(),
            usage: ModelUsage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn a_batch_starts_no_more_prompts_after_a_failure() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    for (prompt, expected) in [
        ("bad", "test, prompt 2 of 100: this one never works"),
        ("late", "test, prompt 2 of 100: no answer within 60 s"),
    ] {
        let code = format!(
            "import repertoire\nrepertoire.llm_query_batched(['good', '{prompt}'] + ['good'] * 98)"
        );
        let model = Arc::new(FailingModel::default());
        let mut cx = script_context(&json!({}));
        cx.model = Some(model.clone());
        let report = run_script(&dispatcher, &script_skill(&code, &json!({})), &mut cx).await;
        assert_eq!(report.outcome.unwrap_err().to_string(), expected);
        let asked = model.0.load(Ordering::SeqCst);
        assert!((1..=8).contains(&asked), "{asked} prompts were sent");
    }
}

#[tokio::test]
async fn printed_output_besides_the_result_is_recorded() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let says = |code: &str| script_skill(code, &json!({}));
    let mut cx = script_context(&json!({}));
    let code = "import repertoire\nprint('on the way')\nrepertoire.submit(1)";
    let printed = |report: &RunReport| report.records[0].details.printed.clone();
    let submits = run_script(&dispatcher, &says(code), &mut cx).await;
    assert_eq!(printed(&submits).as_deref(), Some("on the way\n"));
    assert_eq!(submits.outcome.unwrap().text, "1");
    let failed = run_script(&dispatcher, &says("print('so far')\n1/0"), &mut cx).await;
    assert_eq!(printed(&failed).as_deref(), Some("so far\n"));
    let only = run_script(&dispatcher, &says("print('all')"), &mut cx).await;
    assert_eq!(printed(&only), None);
    let endless = "print('first')\nprint('second')\nwhile True: pass";
    let endless = script_skill(endless, &json!({"limits": {"fuel": 100_000_000}}));
    let stopped = run_script(&dispatcher, &endless, &mut cx).await;
    assert_eq!(printed(&stopped).as_deref(), Some("first\nsecond\n"));
    assert_eq!(stopped.outcome.unwrap_err().code(), "script_limit");
    assert_eq!(only.outcome.unwrap().text, "all\n");
}
