//! Scripts and DSPy modules of packages: run, traced, resumed and optimized.
//!
//! The test command installs a sandbox and a sidecar; without them these tests fail.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]
#![cfg(unix)]

#[path = "../../core/tests/support/part.rs"]
mod part;
mod provider_home;

use std::{fs, path::Path, process::Command};

use base64::Engine as _;
use provider_home::{
    FakeProvider, FakeResponse, chat_reply, home_with_provider, parse_stdout, run_cli, to_text,
};
use serde_json::{Value, json};

/// Creates a home with these installed parts, or returns `None` if one is not installed.
fn home_with_parts(fake: &FakeProvider, parts: &[&str]) -> Option<tempfile::TempDir> {
    let home = home_with_provider(fake);
    for part in parts {
        let variable = format!("REPERTOIRE_TEST_{}", part.to_uppercase());
        let folder = part::installed_part(&variable)?;
        std::os::unix::fs::symlink(folder, home.path().join(part)).unwrap();
    }
    Some(home)
}

fn import_package(home: &Path, package: &Value) {
    fs::write(home.join("package.json"), package.to_string()).unwrap();
    let imported = run_cli(home, &["package", "import", "package.json"]);
    assert!(imported.status.success(), "{}", to_text(&imported.stderr));
}

fn repeat_reply(content: &str) -> Vec<FakeResponse> {
    (0..200).map(|_| chat_reply(content)).collect()
}

/// A reply that both a script and a DSPy module can parse.
const FORMATTED_REPLY: &str = "[[ ## reasoning ## ]]\nTwo colours.\n\n[[ ## contradictions ## ]]\n\
                         green eyes, grey eyes\n\n[[ ## completed ## ]]";

#[test]
fn the_consistency_checker_runs_its_script_and_its_module() {
    let fake = FakeProvider::start(repeat_reply(FORMATTED_REPLY));
    let Some(home) = home_with_parts(&fake, &["sandbox", "sidecar"]) else {
        return;
    };
    let well = to_text(&run_cli(home.path(), &["doctor"]).stdout);
    assert!(
        well.contains("ok    sandbox    runs scripts, in "),
        "{well}"
    );
    assert!(well.contains("ok    sidecar    DSPy 3."), "{well}");
    // It is a system skill, so it needs no import.
    let done = run_cli(home.path(), &["run", "consistency-checker", "--json"]);
    let report = parse_stdout(&done);
    assert_eq!(report["error"], Value::Null, "{report}");
    assert_eq!(
        report["value"],
        json!({"contradictions": "green eyes, grey eyes"})
    );
    assert_eq!(report["warnings"], json!([]));
    let rows = report["traces"].as_array().unwrap();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| row["artifact_kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["description", "code_template", "dspy_module"]);
    let (script, module) = (&rows[1], &rows[2]);
    // The script queried the model for each page; its submitted value is the input of the module.
    let used = &script["details"]["used"];
    assert!(
        used["fuel"]["used"].as_u64().unwrap() > 1_000_000,
        "{script}"
    );
    assert!(
        used["host_calls"]["used"].as_u64().unwrap() >= 4,
        "{script}"
    );
    assert!(
        used["model_tokens"]["used"].as_u64().unwrap() >= 450,
        "{script}"
    );
    assert!(
        used["cost_micro_usd"]["used"].as_u64().unwrap() >= 500,
        "{script}"
    );
    assert!(script["estimated_cost"].as_f64().unwrap() > 0.0);
    assert_eq!(script["model_id"], "there/m");
    assert!(
        script["rendered_input"]
            .as_str()
            .unwrap()
            .contains("kind = 'person'")
    );
    let claims: Value = serde_json::from_str(script["raw_output"].as_str().unwrap()).unwrap();
    let given: Value = serde_json::from_str(module["rendered_input"].as_str().unwrap()).unwrap();
    assert_eq!(given["claims"], claims["claims"]);
    assert_eq!(module["details"]["used"]["model_calls"]["used"], 1);
    assert_eq!(
        (&module["input_tokens"], &module["output_tokens"]),
        (&json!(400), &json!(50))
    );
    assert!(module["estimated_cost"].as_f64().unwrap() > 0.0);
    let shown = run_cli(
        home.path(),
        &["trace", "show", script["id"].as_str().unwrap()],
    );
    let shown = to_text(&shown.stdout);
    assert!(
        shown.contains("fuel") && shown.contains("host_calls"),
        "{shown}"
    );
}

#[test]
fn without_the_sidecar_the_fallback_runs_or_an_error_names_it() {
    let fake = FakeProvider::start(repeat_reply("{\"contradictions\": []}"));
    let Some(home) = home_with_parts(&fake, &["sandbox"]) else {
        return;
    };
    let args = [
        "run",
        "consistency-checker",
        "-p",
        "entity_name=Mira",
        "--json",
    ];
    let report = parse_stdout(&run_cli(home.path(), &args));
    assert_eq!(report["error"], Value::Null, "{report}");
    let last = report["traces"].as_array().unwrap().last().unwrap();
    assert_eq!(last["artifact_kind"], "prompt_template");
    assert_eq!(last["details"]["fallback_for"], "DSPy Checker");
    import_package(
        home.path(),
        &json!({
            "name": "Alone", "description": "d", "artifacts": [
                {"kind": "dspy_module", "name": "Only", "ordinal": 1,
                 "content": "{\"template_id\": \"predict\", \"signature\": \"q -> a\"}"}],
        }),
    );
    let refused = run_cli(home.path(), &["run", "alone", "-p", "q=x"]);
    let said = to_text(&refused.stderr);
    assert!(said.contains("requires the Python sidecar"), "{said}");
    assert!(said.contains("repertoire setup sidecar"), "{said}");
}

#[test]
fn a_script_resumes_at_its_checkpoint_and_runs_other_skills() {
    let fake = FakeProvider::start(repeat_reply("noted"));
    let Some(home) = home_with_parts(&fake, &["sandbox"]) else {
        return;
    };
    let code = "import repertoire\n\
                note = repertoire.checkpoint('note', lambda: repertoire.llm_query('ask'))\n\
                if not params.get('enough'): raise RuntimeError('not yet')\n\
                repertoire.submit([note, repertoire.run_skill('Other One', {'n': 20})])";
    import_package(
        home.path(),
        &json!({"name": "Long Job", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Script", "ordinal": 1, "content": code}]}),
    );
    import_package(
        home.path(),
        &json!({"name": "Other One", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Double", "ordinal": 1,
             "content": "import repertoire\nrepertoire.submit(n * 2)"}]}),
    );
    let failed = parse_stdout(&run_cli(home.path(), &["run", "long-job", "--json"]));
    assert_eq!(failed["error"]["code"], "script_error", "{failed}");
    let session = failed["session"].as_str().unwrap();
    let args = [
        "run",
        "long-job",
        "-p",
        "enough:=true",
        "--resume",
        session,
        "--json",
    ];
    let resumed = run_cli(home.path(), &args);
    let said = to_text(&resumed.stderr);
    assert!(said.contains("with another --param"), "{said}");
    let done = parse_stdout(&resumed);
    assert_eq!(done["value"], json!(["noted", 40]), "{done}");
    // An unknown session and a session of another skill are both refused.
    for (skill, session) in [("long-job", "nonsense"), ("consistency-checker", session)] {
        let refused = run_cli(home.path(), &["run", skill, "--resume", session]);
        let said = to_text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains("was not run in a session"), "{said}");
    }
    assert_eq!(fake.recorded_requests().len(), 1);
    let listed = parse_stdout(&run_cli(
        home.path(),
        &["trace", "list", "--session", session, "--json"],
    ));
    let rows = listed["traces"].as_array().unwrap();
    let names = rows
        .iter()
        .map(|row| row["details"]["artifact"].as_str().unwrap());
    assert_eq!(
        names.filter(|name| *name == "Double").count(),
        1,
        "{listed}"
    );
    let again = to_text(&run_cli(home.path(), &args).stderr);
    assert!(!again.contains("with another --param"), "{again}");
}

#[test]
fn artifact_put_refuses_content_that_cannot_run() {
    let fake = FakeProvider::start(Vec::new());
    let home = home_with_parts(&fake, &[]).unwrap();
    let put = |name: &str, kind: &str, content: &str| {
        fs::write(home.path().join("content"), content).unwrap();
        let args = [
            "artifact",
            "put",
            "consistency-checker",
            name,
            "content",
            "--kind",
            kind,
        ];
        let refused = run_cli(home.path(), &args);
        assert!(!refused.status.success());
        to_text(&refused.stderr)
    };
    let module = "{\"template_id\": \"predict\", \"signature\": \"q: evilmod.T -> a\"}";
    assert!(put("M", "dspy_module", module).contains("evilmod.T"));
    assert!(put("C", "code_template", "x = {{ y").contains("template"));
}

/// A package with a module whose output is checked by an assertion.
fn colours_package() -> Value {
    json!({
        "name": "Colours", "description": "Names colours.", "artifacts": [
            {"kind": "prompt_template", "name": "Ask", "ordinal": 1,
             "content": "Which colour has {{ thing }}?"},
            {"kind": "dspy_module", "name": "Name It", "ordinal": 2,
             "content": "{\"template_id\": \"chain_of_thought\", \"signature\": \"thing -> colour\"}",
             "metadata": {"fallback_artifact": "Ask", "assertions": [
                 {"type": "pattern", "pattern": "blue|green|red", "severity": "soft"}]}}],
    })
}

const COLOUR_REPLY: &str = "[[ ## reasoning ## ]]\nSeen.\n\n[[ ## colour ## ]]\nblue\n\n\
                      [[ ## proposed_instruction ## ]]\nName the colour.\n\n[[ ## completed ## ]]";

#[test]
fn a_module_is_optimized_from_traces_and_the_next_run_uses_it() {
    let fake = FakeProvider::start((0..3000).map(|_| chat_reply(COLOUR_REPLY)).collect());
    let Some(home) = home_with_parts(&fake, &["sidecar"]) else {
        return;
    };
    import_package(home.path(), &colours_package());
    let nothing = run_cli(home.path(), &["optimize", "colours"]);
    let said = to_text(&nothing.stderr);
    assert!(said.contains("no trace of \"Name It\""), "{said}");
    for thing in ["sky", "sea", "jay", "ink", "jeans", "ice"] {
        let param = format!("thing={thing}");
        let done = run_cli(home.path(), &["run", "colours", "-p", &param]);
        assert!(done.status.success(), "{}", to_text(&done.stderr));
    }
    let asked = fake.recorded_requests().len();
    let learned = run_cli(home.path(), &["optimize", "colours", "--json"]);
    let learned = parse_stdout(&learned);
    assert_eq!(learned["kept"], true, "{learned}");
    let improvement = &learned["improvement"];
    assert_eq!(
        (&improvement["before"], &improvement["after"]),
        (&json!(1.0), &json!(1.0))
    );
    assert_eq!(
        (&improvement["training"], &improvement["held_back"]),
        (&json!(5), &json!(1))
    );
    assert!(
        improvement["learning"]["cost"].as_f64().unwrap() > 0.0,
        "{learned}"
    );
    assert!(fake.recorded_requests().len() > asked);
    // The new state is used: its examples precede the question.
    let messages_of_a_run = || {
        let before = fake.recorded_requests().len();
        let done = run_cli(home.path(), &["run", "colours", "-p", "thing=lake"]);
        assert!(done.status.success(), "{}", to_text(&done.stderr));
        fake.recorded_requests()[before].body["messages"].clone()
    };
    let messages = messages_of_a_run();
    assert!(messages.as_array().unwrap().len() > 2, "{messages}");
    // The old state is in the history and can be rolled back to.
    let history = parse_stdout(&run_cli(home.path(), &["history", "colours", "--json"]));
    let ops = history["revisions"].as_array().unwrap().iter();
    let ops: Vec<_> = ops.map(|one| &one["op"]).collect();
    assert_eq!(ops, ["optimize", "put"], "{history}");
    assert!(
        run_cli(home.path(), &["rollback", "colours", "1"])
            .status
            .success()
    );
    let messages = messages_of_a_run();
    assert_eq!(messages.as_array().unwrap().len(), 2, "{messages}");
    // From a file, and with the other optimizers.
    let rows = ["sky", "sea", "jay", "ink", "jeans", "ice"]
        .map(|thing| json!({"thing": thing, "colour": "blue"}).to_string())
        .join("\n");
    fs::write(home.path().join("rows.jsonl"), rows).unwrap();
    for with in ["random-search", "mipro", "gepa"] {
        let args = [
            "optimize",
            "colours",
            "--examples",
            "rows.jsonl",
            "--with",
            with,
            "--candidates",
            "2",
            "--trials",
            "2",
            "--judgements",
            "10",
            "--json",
        ];
        let learned = parse_stdout(&run_cli(home.path(), &args));
        assert_eq!(learned["improvement"]["after"], 1.0, "{with}: {learned}");
    }
}

/// A provider whose replies are good before optimization and bad afterwards.
fn worsening_provider() -> FakeProvider {
    let good = (0..5).map(|_| chat_reply(COLOUR_REPLY));
    let bad = (0..400).map(|_| chat_reply("[[ ## reasoning ## ]]\nx\n\n[[ ## colour ## ]]\nmud"));
    FakeProvider::start(good.chain(bad).collect())
}

fn import_with_examples(home: &Path) {
    import_package(home, &colours_package());
    let rows: Vec<Value> = (0..8)
        .map(|n| json!({"thing": format!("thing {n}"), "colour": "blue"}))
        .collect();
    fs::write(home.join("rows.json"), json!(rows).to_string()).unwrap();
}

#[test]
fn a_worse_module_state_is_kept_with_force() {
    let fake = worsening_provider();
    let Some(home) = home_with_parts(&fake, &["sidecar"]) else {
        return;
    };
    import_with_examples(home.path());
    let args = [
        "optimize",
        "colours",
        "--examples",
        "rows.json",
        "--force",
        "--json",
    ];
    let forced = run_cli(home.path(), &args);
    assert!(forced.status.success(), "{}", to_text(&forced.stderr));
    let report = parse_stdout(&forced);
    assert_eq!(report["kept"], true);
    let score = |key: &str| report["improvement"][key].as_f64().unwrap();
    assert!(score("after") < score("before"), "{report}");
    let history = parse_stdout(&run_cli(home.path(), &["history", "colours", "--json"]));
    assert_eq!(history["revisions"].as_array().unwrap().len(), 2);
}

#[test]
fn a_worse_module_state_is_not_kept() {
    let fake = worsening_provider();
    let Some(home) = home_with_parts(&fake, &["sidecar"]) else {
        return;
    };
    import_with_examples(home.path());
    let worse = run_cli(
        home.path(),
        &["optimize", "colours", "--examples", "rows.json", "--json"],
    );
    assert_eq!(worse.status.code(), Some(1), "{}", to_text(&worse.stderr));
    let report = parse_stdout(&worse);
    assert_eq!(
        (&report["kept"], &report["improvement"]["before"]),
        (&json!(false), &json!(1.0))
    );
    let history = parse_stdout(&run_cli(home.path(), &["history", "colours", "--json"]));
    assert_eq!(history["revisions"].as_array().unwrap().len(), 1);
    let args = [
        "optimize",
        "colours",
        "--examples",
        "rows.json",
        "--max-tokens",
        "2000",
        "--json",
    ];
    let refused = run_cli(home.path(), &args);
    let said = to_text(&refused.stderr);
    assert!(said.contains("budget"), "{said}");
    fs::write(home.path().join("few.json"), "[{\"thing\": \"sky\"}]").unwrap();
    let few = run_cli(
        home.path(),
        &["optimize", "colours", "--examples", "few.json"],
    );
    assert!(
        to_text(&few.stderr).contains("it takes 4"),
        "{}",
        to_text(&few.stderr)
    );
}

/// Returns the state of the module as exported, and the whole package.
fn module_state(home: &Path) -> (Value, Value) {
    let packed = run_cli(home, &["package", "export", "colours"]);
    let package: Value = serde_json::from_slice(&packed.stdout)
        .unwrap_or_else(|_| panic!("{} {}", to_text(&packed.stdout), to_text(&packed.stderr)));
    let module = package["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["kind"] == "dspy_module");
    let blob = module.unwrap()["state_blob"].as_str().unwrap();
    let blob = base64::engine::general_purpose::STANDARD
        .decode(blob)
        .unwrap();
    (serde_json::from_slice(&blob).unwrap(), package)
}

#[test]
fn states_of_an_older_dspy_are_reoptimized_in_the_background() {
    let fake = FakeProvider::start((0..3000).map(|_| chat_reply(COLOUR_REPLY)).collect());
    let Some(home) = home_with_parts(&fake, &["sidecar"]) else {
        return;
    };
    import_package(home.path(), &colours_package());
    for thing in ["sky", "sea", "jay", "ink"] {
        let param = format!("thing={thing}");
        assert!(
            run_cli(home.path(), &["run", "colours", "-p", &param])
                .status
                .success()
        );
    }
    assert!(
        run_cli(home.path(), &["optimize", "colours"])
            .status
            .success()
    );
    // Rewrite the state as if an older DSPy had written it.
    let (mut old, mut package) = module_state(home.path());
    let now = old["metadata"]["dependency_versions"]["dspy"].clone();
    assert!(now.as_str().unwrap().starts_with("3."), "{old}");
    old["metadata"]["dependency_versions"]["dspy"] = json!("2.0.0");
    let blob = base64::engine::general_purpose::STANDARD.encode(old.to_string());
    package["artifacts"][1]["state_blob"] = json!(blob);
    import_package(home.path(), &package);
    assert_eq!(
        module_state(home.path()).0["metadata"]["dependency_versions"]["dspy"],
        "2.0.0"
    );
    let mut server = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["serve", "--port", "0", "--hub", "0"])
        .env("REPERTOIRE_HOME", home.path())
        .env("PLANTED_API_KEY", provider_home::KEY)
        .current_dir(home.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let renewed = loop {
        let state = module_state(home.path()).0;
        if state["metadata"]["dependency_versions"]["dspy"] == now {
            break true;
        }
        if begun.elapsed() > std::time::Duration::from_mins(1) {
            break false;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(renewed, "{}", module_state(home.path()).0);
}

#[test]
fn a_terminal_shows_the_value_of_a_script() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::Read as _;

    let fake = FakeProvider::start(Vec::new());
    let Some(home) = home_with_parts(&fake, &["sandbox"]) else {
        return;
    };
    import_package(
        home.path(),
        &json!({"name": "Sums", "description": "Adds.", "artifacts": [
            {"kind": "code_template", "name": "Add",
             "content": "import repertoire\nrepertoire.submit({'sum': 40 + 2})"},
        ]}),
    );
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let terminal = fs::File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["run", "sums"])
        .env("REPERTOIRE_HOME", home.path())
        .env("PLANTED_API_KEY", provider_home::KEY)
        .current_dir(home.path())
        .stdout(terminal)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", to_text(&done.stderr));
    // The child has exited: read what is buffered until the terminal reports end of file.
    let (mut shown, mut chunk) = (Vec::new(), [0; 1024]);
    let mut screen = fs::File::from(screen);
    while let Ok(read @ 1..) = screen.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..read]);
    }
    assert_eq!(to_text(&shown).trim(), "{\"sum\":42}");
}

#[test]
fn a_script_only_skill_fails_without_the_sandbox() {
    let fake = FakeProvider::start(Vec::new());
    let home = home_with_parts(&fake, &[]).unwrap();
    let package = json!({"name": "Sums", "description": "Adds.", "artifacts": [
        {"kind": "description", "name": "About", "content": "Adds numbers."},
        {"kind": "code_template", "name": "Add", "ordinal": 1, "content": "print(1)",
         "metadata": {"limits": {"second": 1}}},
    ]});
    fs::write(home.path().join("sums.json"), package.to_string()).unwrap();
    let imported = run_cli(home.path(), &["package", "import", "sums.json"]);
    let said = to_text(&imported.stderr);
    assert!(
        said.contains("will fail when it is run") && said.contains("second"),
        "{said}"
    );
    let failed = run_cli(home.path(), &["run", "sums", "--json"]);
    assert!(!failed.status.success());
    let report = parse_stdout(&failed);
    assert_eq!(report["error"]["code"], "needs_sandbox", "{report}");
    assert_eq!(report["traces"][1]["details"]["code"], "needs_sandbox");
}

#[test]
fn traces_without_assertions_are_not_used_for_optimization() {
    let fake = FakeProvider::start(repeat_reply(COLOUR_REPLY));
    let Some(home) = home_with_parts(&fake, &["sidecar"]) else {
        return;
    };
    let mut package = colours_package();
    let metadata = package["artifacts"][1]["metadata"].as_object_mut().unwrap();
    metadata.remove("assertions");
    import_package(home.path(), &package);
    for n in 0..5 {
        let param = format!("thing={n}");
        let done = run_cli(home.path(), &["run", "colours", "-p", &param]);
        assert!(done.status.success(), "{}", to_text(&done.stderr));
    }
    let asked = fake.recorded_requests().len();
    let refused = run_cli(home.path(), &["optimize", "colours"]);
    let said = to_text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("give it assertions"), "{said}");
    assert_eq!(fake.recorded_requests().len(), asked);
}
