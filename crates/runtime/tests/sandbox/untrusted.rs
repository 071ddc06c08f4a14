//! Tests of untrusted scripts.

use super::*;

#[tokio::test]
async fn limits_are_lowered_by_an_artifact_and_never_raised() {
    let artifact = |limits: Value| {
        let package = json!({
            "name": "S", "description": "d",
            "artifacts": [{"kind": "code_template", "name": "Script", "content": "pass",
                           "metadata": {"limits": limits}}],
        });
        let package = repertoire_core::Package::from_json(package.to_string().as_bytes());
        package.unwrap().artifacts[0].clone()
    };
    let host = Limits {
        cost: Some(1.0),
        ..Limits::default()
    };
    let own = json!({"fuel": 5, "memory": u64::MAX, "seconds": 9999, "cost": 5.0, "tokens": 7});
    let limits = host.for_artifact(&artifact(own)).unwrap();
    assert_eq!((limits.fuel, limits.tokens, limits.cost), (5, 7, Some(1.0)));
    assert_eq!((limits.memory, limits.seconds), (host.memory, host.seconds));
}

/// Returns the value of a line `# word: …` of a script.
fn directive<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let begins = format!("# {word}: ");
    code.lines().find_map(|line| line.strip_prefix(&begins))
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn t30_t31_untrusted_scripts_are_contained() {
    let Some(dispatcher) = shared_dispatcher() else {
        return;
    };
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/sandbox");
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "py"))
        .collect();
    files.sort();
    assert!(files.len() > 35);
    let honest = "import repertoire\nrepertoire.submit(6 * 7)";
    submitted_value(&dispatcher, honest, json!({})).await;
    let before = resident_bytes();
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let code = std::fs::read_to_string(file).unwrap();
        let expect = directive(&code, "expect").unwrap();
        let (codes, words) = expect.split_once(' ').unwrap_or((expect, ""));
        let limits: Value = directive(&code, "limits")
            .map_or(json!({}), |text| serde_json::from_str(text).unwrap());
        let params: Value = directive(&code, "params")
            .map_or(json!({}), |text| serde_json::from_str(text).unwrap());
        // Remove the directive lines.
        let source: Vec<&str> = code
            .lines()
            .skip_while(|line| line.starts_with("# ") && line.contains(": "))
            .collect();
        let skill = script_skill(&source.join("\n"), &json!({"limits": limits}));
        let mut cx = script_context(&params);
        let report = run_script(&dispatcher, &skill, &mut cx).await;
        let (found, text) = match &report.outcome {
            Ok(output) => ("ok", output.text.clone()),
            Err(error) => (error.code(), error.to_string()),
        };
        if !codes.split(',').any(|code| code == found) || !text.contains(words) {
            wrong.push(format!(
                "{name}: {found}: {}",
                repertoire_core::markdown::truncate_text(&text, 300)
            ));
        }
        assert_eq!(report.records.len(), 1);
        // The next script is not affected.
        assert_eq!(
            submitted_value(&dispatcher, honest, json!({})).await,
            json!(42),
            "{name}"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Other tests run scripts too; wait until their memory is returned.
    let begun = std::time::Instant::now();
    while resident_bytes().saturating_sub(before) > 64 << 20 {
        let grown = resident_bytes().saturating_sub(before);
        assert!(
            begun.elapsed() < Duration::from_mins(1),
            "{grown} bytes were not returned"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn t30_any_value_arrives_unchanged(
        text in prop_oneof![any::<String>(), "['\"\\\\{}%#\\n\\r ()a-z;\u{0}\u{2028}]{0,40}"],
        number in any::<i64>(),
    ) {
        let Some(dispatcher) = shared_dispatcher() else { return Ok(()) };
        let code = "import repertoire\n\
                    x = ['{{ text }}', \"{{ text }}\", '''{{ text }}''', r'{{ text }}', {{ text }},\n\
                         f'{{ text }}', f'{text}', text, params['text']]  # {{ number }}\n\
                    repertoire.submit([x, {{ number }}, number, {{ [text] | tojson }}])";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let params = json!({"text": text, "number": number});
        let value = runtime.block_on(submitted_value(&dispatcher, code, params));
        let all = vec![json!(text); 9];
        prop_assert_eq!(value, json!([all, number, number, [text]]));
    }
}
