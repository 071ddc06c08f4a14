//! Scripts and DSPy modules of packages: run, traced, resumed, made better.
//!
//! The test command installs a sandbox and a sidecar; without them these tests say so.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]
#![cfg(unix)]

mod at_home;

use std::{fs, path::Path, process::Command};

use at_home::{Fake, Says, answer, home_with, json_of, run, text};
use base64::Engine as _;
use serde_json::{Value, json};

/// A home with these parts of what the test command installed, if it has.
fn home(fake: &Fake, parts: &[&str]) -> Option<tempfile::TempDir> {
    let home = home_with(fake);
    for part in parts {
        let variable = format!("REPERTOIRE_TEST_{}", part.to_uppercase());
        let Some(folder) = std::env::var_os(&variable) else {
            eprintln!("{variable} is not set: skipped");
            return None;
        };
        std::os::unix::fs::symlink(folder, home.path().join(part)).unwrap();
    }
    Some(home)
}

fn import(home: &Path, package: &Value) {
    fs::write(home.join("package.json"), package.to_string()).unwrap();
    let imported = run(home, &["import", "package.json"]);
    assert!(imported.status.success(), "{}", text(&imported.stderr));
}

fn many(content: &str) -> Vec<Says> {
    (0..200).map(|_| answer(content)).collect()
}

/// What both a script and a DSPy module can make something of.
const FORMATTED: &str = "[[ ## reasoning ## ]]\nTwo colours.\n\n[[ ## contradictions ## ]]\n\
                         green eyes, grey eyes\n\n[[ ## completed ## ]]";

#[test]
fn the_consistency_checker_runs_its_script_and_its_module() {
    let fake = Fake::start(many(FORMATTED));
    let Some(home) = home(&fake, &["sandbox", "sidecar"]) else {
        return;
    };
    let well = text(&run(home.path(), &["doctor"]).stdout);
    assert!(
        well.contains("ok    sandbox    runs scripts, in "),
        "{well}"
    );
    assert!(well.contains("ok    sidecar    DSPy 3."), "{well}");
    // It came with the product.
    let done = run(home.path(), &["run", "consistency-checker", "--json"]);
    let report = json_of(&done);
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
    // The script asked about each page it found, and what it submitted went into the module.
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
    let shown = run(
        home.path(),
        &["trace", "show", script["id"].as_str().unwrap()],
    );
    let shown = text(&shown.stdout);
    assert!(
        shown.contains("fuel") && shown.contains("host_calls"),
        "{shown}"
    );
}

#[test]
fn without_the_sidecar_the_fallback_stands_in_or_the_error_says_so() {
    let fake = Fake::start(many("{\"contradictions\": []}"));
    let Some(home) = home(&fake, &["sandbox"]) else {
        return;
    };
    let args = [
        "run",
        "consistency-checker",
        "-p",
        "entity_name=Mira",
        "--json",
    ];
    let report = json_of(&run(home.path(), &args));
    assert_eq!(report["error"], Value::Null, "{report}");
    let last = report["traces"].as_array().unwrap().last().unwrap();
    assert_eq!(last["artifact_kind"], "prompt_template");
    assert_eq!(last["details"]["fallback_for"], "DSPy Checker");
    import(
        home.path(),
        &json!({
            "name": "Alone", "description": "d", "artifacts": [
                {"kind": "dspy_module", "name": "Only", "ordinal": 1,
                 "content": "{\"template_id\": \"predict\", \"signature\": \"q -> a\"}"}],
        }),
    );
    let refused = run(home.path(), &["run", "alone", "-p", "q=x"]);
    let said = text(&refused.stderr);
    assert!(said.contains("requires the Python sidecar"), "{said}");
    assert!(said.contains("repertoire setup sidecar"), "{said}");
}

#[test]
fn a_script_is_resumed_where_it_was_and_runs_other_skills() {
    let fake = Fake::start(many("told"));
    let Some(home) = home(&fake, &["sandbox"]) else {
        return;
    };
    let code = "import repertoire\n\
                told = repertoire.checkpoint('told', lambda: repertoire.llm_query('tell'))\n\
                if not params.get('enough'): raise RuntimeError('not yet')\n\
                repertoire.submit([told, repertoire.run_skill('Other One', {'n': 20})])";
    import(
        home.path(),
        &json!({"name": "Long Job", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Script", "ordinal": 1, "content": code}]}),
    );
    import(
        home.path(),
        &json!({"name": "Other One", "description": "d", "artifacts": [
            {"kind": "code_template", "name": "Double", "ordinal": 1,
             "content": "import repertoire\nrepertoire.submit(n * 2)"}]}),
    );
    let failed = json_of(&run(home.path(), &["run", "long-job", "--json"]));
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
    let resumed = run(home.path(), &args);
    let said = text(&resumed.stderr);
    assert!(said.contains("with another --param"), "{said}");
    let done = json_of(&resumed);
    assert_eq!(done["value"], json!(["told", 40]), "{done}");
    // A session nobody knows is not begun, and one of another skill is none of its.
    for (skill, session) in [("long-job", "nonsense"), ("consistency-checker", session)] {
        let refused = run(home.path(), &["run", skill, "--resume", session]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("was not run in a session"), "{said}");
    }
    assert_eq!(fake.asked().len(), 1);
    let listed = json_of(&run(
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
    let again = text(&run(home.path(), &args).stderr);
    assert!(!again.contains("with another --param"), "{again}");
}

#[test]
fn what_would_only_fail_when_it_runs_is_not_put() {
    let fake = Fake::start(Vec::new());
    let home = home(&fake, &[]).unwrap();
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
        let refused = run(home.path(), &args);
        assert!(!refused.status.success());
        text(&refused.stderr)
    };
    let module = "{\"template_id\": \"predict\", \"signature\": \"q: evilmod.T -> a\"}";
    assert!(put("M", "dspy_module", module).contains("evilmod.T"));
    assert!(put("C", "code_template", "x = {{ y").contains("template"));
}

/// A package with a module that has something to hold it to.
fn colours() -> Value {
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

const COLOUR: &str = "[[ ## reasoning ## ]]\nSeen.\n\n[[ ## colour ## ]]\nblue\n\n\
                      [[ ## proposed_instruction ## ]]\nName the colour.\n\n[[ ## completed ## ]]";

#[test]
fn a_module_learns_from_its_traces_and_the_next_run_uses_it() {
    let fake = Fake::start((0..3000).map(|_| answer(COLOUR)).collect());
    let Some(home) = home(&fake, &["sidecar"]) else {
        return;
    };
    import(home.path(), &colours());
    let nothing = run(home.path(), &["optimize", "colours"]);
    let said = text(&nothing.stderr);
    assert!(said.contains("no trace of \"Name It\""), "{said}");
    for thing in ["sky", "sea", "jay", "ink", "jeans", "ice"] {
        let param = format!("thing={thing}");
        let done = run(home.path(), &["run", "colours", "-p", &param]);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    let asked = fake.asked().len();
    let learned = run(home.path(), &["optimize", "colours", "--json"]);
    let learned = json_of(&learned);
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
    assert!(fake.asked().len() > asked);
    // The new state is used: its examples stand before the question.
    let messages_of_a_run = || {
        let before = fake.asked().len();
        let done = run(home.path(), &["run", "colours", "-p", "thing=lake"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        fake.asked()[before].body["messages"].clone()
    };
    let messages = messages_of_a_run();
    assert!(messages.as_array().unwrap().len() > 2, "{messages}");
    // The old one is in the history, and comes back.
    let history = json_of(&run(home.path(), &["history", "colours", "--json"]));
    let ops = history["revisions"].as_array().unwrap().iter();
    let ops: Vec<_> = ops.map(|one| &one["op"]).collect();
    assert_eq!(ops, ["optimize", "put"], "{history}");
    assert!(
        run(home.path(), &["rollback", "colours", "1"])
            .status
            .success()
    );
    let messages = messages_of_a_run();
    assert_eq!(messages.as_array().unwrap().len(), 2, "{messages}");
    // Of a file, and by others.
    let rows = ["sky", "sea", "jay", "ink", "jeans", "ice"]
        .map(|thing| json!({"thing": thing, "colour": "blue"}).to_string())
        .join("\n");
    fs::write(home.path().join("rows.jsonl"), rows).unwrap();
    for with in ["random-search", "mipro", "gepa"] {
        let args = [
            "optimize",
            "colours",
            "--from",
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
        let learned = json_of(&run(home.path(), &args));
        assert_eq!(learned["improvement"]["after"], 1.0, "{with}: {learned}");
    }
}

/// A provider that is good until something was learned, and bad from then on.
fn worsening() -> Fake {
    let good = (0..5).map(|_| answer(COLOUR));
    let bad = (0..400).map(|_| answer("[[ ## reasoning ## ]]\nx\n\n[[ ## colour ## ]]\nmud"));
    Fake::start(good.chain(bad).collect())
}

fn with_rows(home: &Path) {
    import(home, &colours());
    let rows: Vec<Value> = (0..8)
        .map(|n| json!({"thing": format!("thing {n}"), "colour": "blue"}))
        .collect();
    fs::write(home.join("rows.json"), json!(rows).to_string()).unwrap();
}

#[test]
fn what_is_worse_is_kept_if_it_is_forced() {
    let fake = worsening();
    let Some(home) = home(&fake, &["sidecar"]) else {
        return;
    };
    with_rows(home.path());
    let args = [
        "optimize",
        "colours",
        "--from",
        "rows.json",
        "--force",
        "--json",
    ];
    let forced = run(home.path(), &args);
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    let told = json_of(&forced);
    assert_eq!(told["kept"], true);
    let score = |key: &str| told["improvement"][key].as_f64().unwrap();
    assert!(score("after") < score("before"), "{told}");
    let history = json_of(&run(home.path(), &["history", "colours", "--json"]));
    assert_eq!(history["revisions"].as_array().unwrap().len(), 2);
}

#[test]
fn what_is_worse_is_not_kept() {
    let fake = worsening();
    let Some(home) = home(&fake, &["sidecar"]) else {
        return;
    };
    with_rows(home.path());
    let worse = run(
        home.path(),
        &["optimize", "colours", "--from", "rows.json", "--json"],
    );
    assert_eq!(worse.status.code(), Some(1), "{}", text(&worse.stderr));
    let told = json_of(&worse);
    assert_eq!(
        (&told["kept"], &told["improvement"]["before"]),
        (&json!(false), &json!(1.0))
    );
    let history = json_of(&run(home.path(), &["history", "colours", "--json"]));
    assert_eq!(history["revisions"].as_array().unwrap().len(), 1);
    let args = [
        "optimize",
        "colours",
        "--from",
        "rows.json",
        "--max-tokens",
        "2000",
        "--json",
    ];
    let refused = run(home.path(), &args);
    let said = text(&refused.stderr);
    assert!(said.contains("budget"), "{said}");
    fs::write(home.path().join("few.json"), "[{\"thing\": \"sky\"}]").unwrap();
    let few = run(home.path(), &["optimize", "colours", "--from", "few.json"]);
    assert!(
        text(&few.stderr).contains("it takes 4"),
        "{}",
        text(&few.stderr)
    );
}

/// The state of the module, as the package has it.
fn state(home: &Path) -> (Value, Value) {
    let packed = run(home, &["export", "colours"]);
    let package: Value = serde_json::from_slice(&packed.stdout)
        .unwrap_or_else(|_| panic!("{} {}", text(&packed.stdout), text(&packed.stderr)));
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
fn states_of_another_dspy_are_learned_anew_in_the_background() {
    let fake = Fake::start((0..3000).map(|_| answer(COLOUR)).collect());
    let Some(home) = home(&fake, &["sidecar"]) else {
        return;
    };
    import(home.path(), &colours());
    for thing in ["sky", "sea", "jay", "ink"] {
        let param = format!("thing={thing}");
        assert!(
            run(home.path(), &["run", "colours", "-p", &param])
                .status
                .success()
        );
    }
    assert!(run(home.path(), &["optimize", "colours"]).status.success());
    // As if it had been long ago.
    let (mut old, mut package) = state(home.path());
    let now = old["metadata"]["dependency_versions"]["dspy"].clone();
    assert!(now.as_str().unwrap().starts_with("3."), "{old}");
    old["metadata"]["dependency_versions"]["dspy"] = json!("2.0.0");
    let blob = base64::engine::general_purpose::STANDARD.encode(old.to_string());
    package["artifacts"][1]["state_blob"] = json!(blob);
    import(home.path(), &package);
    assert_eq!(
        state(home.path()).0["metadata"]["dependency_versions"]["dspy"],
        "2.0.0"
    );
    let mut server = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["serve", "--port", "0", "--hub", "0"])
        .env("REPERTOIRE_HOME", home.path())
        .env("PLANTED_API_KEY", at_home::KEY)
        .current_dir(home.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let renewed = loop {
        let state = state(home.path()).0;
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
    assert!(renewed, "{}", state(home.path()).0);
}

#[test]
fn a_terminal_shows_what_a_script_gives() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::Read as _;

    let fake = Fake::start(Vec::new());
    let Some(home) = home(&fake, &["sandbox"]) else {
        return;
    };
    import(
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
        .env("PLANTED_API_KEY", at_home::KEY)
        .current_dir(home.path())
        .stdout(terminal)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    // The other end is closed by now: what there is, is read until that is noticed.
    let (mut shown, mut chunk) = (Vec::new(), [0; 1024]);
    let mut screen = fs::File::from(screen);
    while let Ok(read @ 1..) = screen.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..read]);
    }
    assert_eq!(text(&shown).trim(), "{\"sum\":42}");
}

#[test]
fn a_skill_that_is_nothing_but_a_script_fails_without_the_sandbox() {
    let fake = Fake::start(Vec::new());
    let home = home(&fake, &[]).unwrap();
    let package = json!({"name": "Sums", "description": "Adds.", "artifacts": [
        {"kind": "description", "name": "About", "content": "Adds numbers."},
        {"kind": "code_template", "name": "Add", "ordinal": 1, "content": "print(1)",
         "metadata": {"limits": {"second": 1}}},
    ]});
    fs::write(home.path().join("sums.json"), package.to_string()).unwrap();
    let imported = run(home.path(), &["import", "sums.json"]);
    let said = text(&imported.stderr);
    assert!(
        said.contains("will fail when it is run") && said.contains("second"),
        "{said}"
    );
    let failed = run(home.path(), &["run", "sums", "--json"]);
    assert!(!failed.status.success());
    let report = json_of(&failed);
    assert_eq!(report["error"]["code"], "needs_sandbox", "{report}");
    assert_eq!(report["traces"][1]["details"]["code"], "needs_sandbox");
}

#[test]
fn traces_that_nothing_has_judged_are_not_learned_from() {
    let fake = Fake::start(many(COLOUR));
    let Some(home) = home(&fake, &["sidecar"]) else {
        return;
    };
    let mut package = colours();
    let metadata = package["artifacts"][1]["metadata"].as_object_mut().unwrap();
    metadata.remove("assertions");
    import(home.path(), &package);
    for n in 0..5 {
        let param = format!("thing={n}");
        let done = run(home.path(), &["run", "colours", "-p", &param]);
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    let asked = fake.asked().len();
    let refused = run(home.path(), &["optimize", "colours"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("give it assertions"), "{said}");
    assert_eq!(fake.asked().len(), asked);
}
