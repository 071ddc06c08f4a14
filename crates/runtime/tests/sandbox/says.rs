//! What is said of scripts: what went wrong, what they printed.

use super::*;

#[tokio::test]
async fn errors_name_the_line_and_refusals_keep_their_reason() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    for (code, told) in [
        (
            "x = 1\nx.nothing",
            "script, line 2: AttributeError: 'int' object has no attribute 'nothing'",
        ),
        ("x = (", "script, line 1: SyntaxError: '(' was never closed"),
        (
            "print(1)\ncharacter.title()",
            "script, line 2: NameError: name 'character' is not defined: if it is a value of the \
             skill, give it with --param character=…",
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
        let mut cx = context(&json!({}));
        let report = go(&dispatcher, &script(code, &json!({})), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert_eq!(error.to_string(), told);
        assert_eq!(error.code(), "script_error");
    }
    let mut cx = context(&json!({}));
    cx.model = None;
    let asks = "import repertoire\nrepertoire.llm_query('x')";
    let report = go(&dispatcher, &script(asks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "unknown_model");
    cx.engine = PromptEngine::new();
    let looks = "import repertoire\nrepertoire.get_tags()";
    let report = go(&dispatcher, &script(looks, &json!({})), &mut cx).await;
    assert_eq!(report.outcome.unwrap_err().code(), "workspace_error");
    for (metadata, told) in [
        (json!({"limits": {"fule": 1}}), "fule"),
        (json!({"limits": 3}), "metadata.limits"),
        (json!({"constants": 3}), "metadata.constants"),
    ] {
        let report = go(&dispatcher, &script("pass", &metadata), &mut cx).await;
        let error = report.outcome.unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[tokio::test]
async fn a_script_that_nobody_waits_for_is_stopped_and_leaves_its_row() {
    let Some(folder) = installed() else { return };
    let scripts = Scripts::new(folder, Limits::default()).idle(Duration::from_millis(20));
    let scripts = Arc::new(scripts);
    let mut dispatcher = ArtifactDispatcher::default();
    dispatcher.add(scripts.clone());
    let skill = script(
        "import repertoire\nprint('so far')\nrepertoire.llm_query('x')\nwhile True: pass",
        &json!({}),
    );
    let mut cx = context(&json!({}));
    let (stop, notes) = (cx.stop.clone(), cx.notes.clone());
    tokio::spawn(async move {
        // Once it has asked the model, it is at work.
        while notes.spent().tokens() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
    });
    let report = go(&dispatcher, &skill, &mut cx).await;
    assert_eq!(report.outcome.unwrap_err(), Error::Interrupted);
    assert_eq!(report.records[0].input_tokens, Some(1));
    let details = &report.records[0].details;
    assert_eq!(details.printed.as_deref(), Some("so far\n"));
    let used = &details.used;
    assert_eq!(used["host_calls"].used, 1, "{used:?}");
    assert!(used["fuel"].used > 0, "{used:?}");
    assert_eq!(used["output_bytes"].used, 7, "{used:?}");
    // It is let go only once nothing runs in it.
    let begun = std::time::Instant::now();
    while scripts.is_loaded() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it runs on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_a_stopped_script_has_burnt_is_known_without_a_call() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let burnt = |report: &Report| {
        let used = &report.records[0].details.used;
        used.get("fuel").map_or(0, |fuel| fuel.used)
    };
    let mut cx = context(&json!({}));
    let nothing = go(&dispatcher, &script("pass", &json!({})), &mut cx).await;
    let nothing = burnt(&nothing);
    // It is left to work for a while; on a slow machine, for longer.
    for wait in [100, 1000, 10_000] {
        let mut cx = context(&json!({}));
        let stop = cx.stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            stop.cancel();
        });
        let endless = script("while True: pass", &json!({}));
        let endless = go(&dispatcher, &endless, &mut cx).await;
        let burnt = burnt(&endless);
        assert_eq!(endless.outcome.unwrap_err(), Error::Interrupted);
        if burnt > 2 * nothing {
            return;
        }
    }
    panic!("nobody knows what it has burnt");
}

/// Fails at one prompt, once others are under way; counts what it is asked.
#[derive(Debug, Default)]
struct Failing(AtomicUsize);

#[async_trait]
impl Model for Failing {
    fn id(&self) -> &'static str {
        "test/failing"
    }

    async fn ask(&self, ask: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
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
        // Those that were begun with it.
        tokio::task::yield_now().await;
        Ok(Reply {
            text: "yes".into(),
            usage: Usage::default(),
            cut: false,
        })
    }
}

#[tokio::test]
async fn a_batch_in_which_one_fails_begins_no_more() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    for (prompt, told) in [
        ("bad", "test, prompt 2 of 100: this one never works"),
        ("late", "test, prompt 2 of 100: no answer within 60 s"),
    ] {
        let code = format!(
            "import repertoire\nrepertoire.llm_query_batched(['good', '{prompt}'] + ['good'] * 98)"
        );
        let model = Arc::new(Failing::default());
        let mut cx = context(&json!({}));
        cx.model = Some(model.clone());
        let report = go(&dispatcher, &script(&code, &json!({})), &mut cx).await;
        assert_eq!(report.outcome.unwrap_err().to_string(), told);
        let asked = model.0.load(Ordering::SeqCst);
        assert!((1..=8).contains(&asked), "{asked} were asked");
    }
}

#[tokio::test]
async fn what_a_script_prints_besides_its_result_is_kept() {
    let Some(dispatcher) = dispatcher() else {
        return;
    };
    let says = |code: &str| script(code, &json!({}));
    let mut cx = context(&json!({}));
    let code = "import repertoire\nprint('on the way')\nrepertoire.submit(1)";
    let printed = |report: &Report| report.records[0].details.printed.clone();
    let submits = go(&dispatcher, &says(code), &mut cx).await;
    assert_eq!(printed(&submits).as_deref(), Some("on the way\n"));
    assert_eq!(submits.outcome.unwrap().text, "1");
    let failed = go(&dispatcher, &says("print('so far')\n1/0"), &mut cx).await;
    assert_eq!(printed(&failed).as_deref(), Some("so far\n"));
    let only = go(&dispatcher, &says("print('all')"), &mut cx).await;
    assert_eq!(printed(&only), None);
    let endless = "print('first')\nprint('second')\nwhile True: pass";
    let endless = script(endless, &json!({"limits": {"fuel": 100_000_000}}));
    let stopped = go(&dispatcher, &endless, &mut cx).await;
    assert_eq!(printed(&stopped).as_deref(), Some("first\nsecond\n"));
    assert_eq!(stopped.outcome.unwrap_err().code(), "script_limit");
    assert_eq!(only.outcome.unwrap().text, "all\n");
}
