//! `run` and `trace`: from a package to an answer and its trace rows.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test"
)]

#[path = "../../core/tests/support/part.rs"]
mod part;
mod provider_home;

use std::{fs, process::Command};

use provider_home::{
    FakeProvider, FakeResponse, KEY, chat_reply, examples_dir, home_with_provider, parse_stdout,
    run_cli, to_text,
};
use serde_json::{Value, json};

/// Creates a home with a provider and the imported Consistency Checker.
fn home_with_checker(fake: &FakeProvider) -> tempfile::TempDir {
    let home = home_with_provider(fake);
    let package = examples_dir().join("packages/consistency-checker.json");
    let imported = run_cli(
        home.path(),
        &["package", "import", package.to_str().unwrap()],
    );
    assert!(imported.status.success(), "{}", to_text(&imported.stderr));
    home
}

const CONTRADICTIONS_REPLY: &str = r#"{"contradictions": [{"pages": ["Mira", "Grey Harbour"],
    "statements": ["green eyes", "grey eyes"], "why": "one pair of eyes"}]}"#;

#[test]
fn the_consistency_checker_runs_on_the_vault_and_stores_its_traces() {
    let fake = FakeProvider::start(vec![chat_reply(CONTRADICTIONS_REPLY), chat_reply("yes")]);
    let home = home_with_checker(&fake);
    let done = run_cli(
        home.path(),
        &[
            "run",
            "consistency-checker",
            "-p",
            "entity_name=Mira",
            "--json",
        ],
    );
    assert!(done.status.success(), "{}", to_text(&done.stderr));
    let report = parse_stdout(&done);
    assert_eq!(
        report["value"]["contradictions"][0]["why"],
        "one pair of eyes"
    );
    // The script needs the sandbox, the module the sidecar: the warnings name both.
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("repertoire setup sandbox"), "{warnings}");
    assert!(
        warnings.contains("Check Prompt stood in for it"),
        "{warnings}"
    );
    let asked = fake.recorded_requests();
    let prompt = asked[0].body["messages"][1]["content"].as_str().unwrap();
    for words in [
        "[[Mira Oskarsdottir]]",
        "green eyes",
        "grey eyes everybody",
        "\"Mira\"",
    ] {
        assert!(prompt.contains(words), "{words}: {prompt}");
    }
    assert_eq!(asked[0].body["response_format"]["type"], "json_schema");
    // The stored traces.
    let session = report["session"].as_str().unwrap();
    let listed = parse_stdout(&run_cli(
        home.path(),
        &["trace", "list", "--session", session, "--json"],
    ));
    let rows = listed["traces"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let row = rows
        .iter()
        .find(|row| row["artifact_kind"] == "prompt_template")
        .unwrap();
    assert_eq!(row["details"]["fallback_for"], "DSPy Checker");
    assert_eq!(
        (&row["assertions_run"], &row["assertions_passed"]),
        (&json!(3), &json!(3))
    );
    // Tokens of the prompt and of the judge.
    assert_eq!(
        (&row["input_tokens"], &row["output_tokens"]),
        (&json!(800), &json!(100))
    );
    assert_eq!(row["model_id"], "there/m");
    assert!((row["estimated_cost"].as_f64().unwrap() - 0.001).abs() < 1e-9);
    assert!(
        row["rendered_input"]
            .as_str()
            .unwrap()
            .contains("green eyes")
    );
    let id = &row["id"].as_str().unwrap()[..8];
    let shown = to_text(&run_cli(home.path(), &["trace", "show", id]).stdout);
    assert!(shown.contains("stood in for DSPy Checker"), "{shown}");
    assert!(
        shown.contains("✓ the output fits its JSON schema"),
        "{shown}"
    );
    let stats = parse_stdout(&run_cli(home.path(), &["trace", "stats", "--json"]));
    let of = |name: &str| {
        let rows = stats["artifacts"].as_array().unwrap();
        rows.iter()
            .find(|row| row["artifact"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(of("Check Prompt")["assertions_passed"], 3);
    assert_eq!(of("Overview")["runs"], 1);
    // Export for other tools.
    let exported = to_text(&run_cli(home.path(), &["trace", "export"]).stdout);
    let example: Value = serde_json::from_str(exported.trim()).unwrap();
    assert_eq!(
        (&example["passed"], &example["output"]),
        (&json!(true), &json!(CONTRADICTIONS_REPLY))
    );
    let spans = parse_stdout(&run_cli(
        home.path(),
        &["trace", "export", "--format", "otel"],
    ));
    let spans = &spans["resourceSpans"][0]["scopeSpans"][0]["spans"];
    // The run, two artifacts, the prompt and the judge.
    assert_eq!(spans.as_array().unwrap().len(), 5);
    assert_eq!(spans[0]["traceId"], spans[4]["traceId"]);
    assert_eq!(spans[0]["traceId"].as_str().unwrap().len(), 32);
}

#[test]
fn an_output_that_fails_its_schema_exits_with_1() {
    let fake = FakeProvider::start(vec![chat_reply("There are none.")]);
    let home = home_with_checker(&fake);
    let args = [
        "run",
        "consistency-checker",
        "-p",
        "entity_name=Mira",
        "-a",
        "check prompt",
    ];
    let done = run_cli(home.path(), &args);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        to_text(&done.stderr).contains("the output is not JSON"),
        "{}",
        to_text(&done.stderr)
    );
    let listed = to_text(&run_cli(home.path(), &["trace", "list"]).stdout);
    assert!(
        listed.contains("error: artifact \"Check Prompt\""),
        "{listed}"
    );
}

#[test]
fn a_dry_run_shows_the_prompt_and_calls_no_model() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    let claims = r#"claims:=[{"page_name": "A", "text": "x"}]"#;
    let args = [
        "run",
        "consistency-checker",
        "-a",
        "Check Prompt",
        "-p",
        "entity_name=Q",
        "-p",
        claims,
        "--dry-run",
    ];
    let done = run_cli(home.path(), &args);
    let shown = to_text(&done.stdout);
    assert!(
        shown.contains("Statement 1, on [[A]]: x"),
        "{shown} {}",
        to_text(&done.stderr)
    );
    assert!(fake.recorded_requests().is_empty());
    let missing = run_cli(
        home.path(),
        &[
            "run",
            "consistency-checker",
            "-a",
            "Check Prompt",
            "--dry-run",
        ],
    );
    assert_eq!(missing.status.code(), Some(2));
    let error = to_text(&missing.stderr);
    assert!(
        error.contains("line 1: `entity_name` is not defined"),
        "{error}"
    );
    let none = run_cli(home.path(), &["trace", "list"]);
    assert!(to_text(&none.stderr).contains("nothing has been run yet"));
}

#[test]
fn a_plain_skill_sends_its_document_and_the_message() {
    let fake = FakeProvider::start(vec![chat_reply("Ahoy!")]);
    let home = home_with_checker(&fake);
    let skill = home.path().join("skills/greet");
    fs::create_dir_all(&skill).unwrap();
    let document =
        "---\nname: greet\ndescription: Greets like a sailor.\n---\nSay it as a sailor would.\n";
    fs::write(skill.join("SKILL.md"), document).unwrap();
    let done = run_cli(
        home.path(),
        &["run", "greet", "-m", "hello {{ not a template }}"],
    );
    assert_eq!(
        to_text(&done.stdout),
        "Ahoy!\n",
        "{}",
        to_text(&done.stderr)
    );
    let messages = &fake.recorded_requests()[0].body["messages"];
    assert_eq!(
        messages[0]["content"][0]["text"],
        "Say it as a sailor would.\n"
    );
    assert_eq!(messages[1]["content"], "hello {{ not a template }}");
}

#[test]
fn t27_planted_keys_are_in_no_trace_and_no_error() {
    let echo = json!({"error": {"message": format!("key {KEY} is bad")}}).to_string();
    let fake = FakeProvider::start(vec![FakeResponse::Json(401, echo)]);
    let home = home_with_checker(&fake);
    let about = format!("entity_name=about {KEY}");
    let args = [
        "run",
        "consistency-checker",
        "-p",
        &about,
        "-a",
        "Check Prompt",
    ];
    let done = run_cli(home.path(), &args);
    assert_eq!(done.status.code(), Some(7));
    let said = to_text(&done.stderr);
    assert!(
        said.contains("answered 401: key [redacted] is bad"),
        "{said}"
    );
    let traces = to_text(&run_cli(home.path(), &["trace", "list", "--json"]).stdout);
    assert!(traces.contains("about [redacted]"), "{traces}");
    let store = fs::read(home.path().join("agents.db")).unwrap();
    for kept in [said, traces, to_text(&store)] {
        assert!(!kept.contains(KEY));
    }
    // The key was sent to the provider.
    assert_eq!(
        fake.recorded_requests()[0].header("authorization"),
        Some(&*format!("Bearer {KEY}"))
    );
}

#[test]
fn invalid_runs_are_reported_with_their_exit_code() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    for (args, code, words) in [
        (&["run", "absent"][..], 3, "skill \"absent\" not found"),
        (
            &["run", "consistency-checker", "--model", "x"],
            2,
            "PROVIDER/MODEL",
        ),
        (
            &["run", "consistency-checker", "--model", "absent/x"],
            2,
            "no provider \"absent\"",
        ),
        (
            &["run", "consistency-checker", "-a", "Nope"],
            3,
            "it has Overview",
        ),
        (&["run", "consistency-checker", "-p", "x"], 2, "NAME=TEXT"),
        (&["run", "consistency-checker", "-p", "x:={"], 2, "x: "),
        (
            &["run", "consistency-checker", "-p", "x=@nowhere"],
            3,
            "nowhere",
        ),
        (
            &["run", "consistency-checker", "-a", "Cross-Reference Script"],
            4,
            "repertoire setup sandbox",
        ),
        (&["trace", "show", "zzzz"], 3, "trace \"zzzz\" not found"),
        (&["trace", "stats", "--since", "soon"], 2, "30d"),
    ] {
        let done = run_cli(home.path(), args);
        let said = to_text(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn search_finds_the_consistency_checker_by_trigger_phrase() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    let found = parse_stdout(&run_cli(
        home.path(),
        &["search", "--json", "are", "there", "any", "contradictions?"],
    ));
    assert_eq!(found["skills"][0]["id"], "consistency-checker");
    assert_eq!(
        found["skills"][0]["why"]["phrase"],
        "are there any contradictions"
    );
    let nothing = run_cli(home.path(), &["search", "a joke about penguins"]);
    assert!(nothing.status.success() && nothing.stdout.is_empty());
    assert!(to_text(&nothing.stderr).contains("nothing fits"));
    assert!(fake.recorded_requests().is_empty(), "the model was called");
}

#[test]
fn eval_measures_activation_and_fails_on_missed_goals() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    let corpus = examples_dir().join("../corpus/activation/held-out.yaml");
    let measured = run_cli(home.path(), &["eval", corpus.to_str().unwrap(), "--json"]);
    assert!(measured.status.success(), "{}", to_text(&measured.stdout));
    let report = parse_stdout(&measured);
    let by_words = &report["activations"]["by"]["words"];
    assert_eq!(by_words["figures"]["named"]["value"], 1.0);
    assert!(by_words["figures"]["near miss"]["value"].is_number());
    // A missed goal sets the exit code.
    let file = home.path().join("strict.yaml");
    let strict = "goals:\n  hit_at_1: 1.0\nactivations:\n  - message: \"a joke\"\n    expect: \
                  consistency-checker\n";
    fs::write(&file, strict).unwrap();
    let missed = run_cli(home.path(), &["eval", "strict.yaml", "--misses"]);
    assert_eq!(missed.status.code(), Some(1));
    assert!(
        to_text(&missed.stdout).contains("MISSED"),
        "{}",
        to_text(&missed.stdout)
    );
    fs::write(&file, "activations:\n  - message: x\n    expect: absent\n").unwrap();
    let wrong = run_cli(home.path(), &["eval", "strict.yaml"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(to_text(&wrong.stderr).contains("\"absent\", which is not there"));
}

#[test]
fn with_embeddings_search_finds_skills_by_meaning() {
    let Some(model) = part::installed_part("REPERTOIRE_TEST_MODEL") else {
        return;
    };
    let model = model.to_str().unwrap();
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    let nothing = run_cli(home.path(), &["setup"]);
    assert!(to_text(&nothing.stdout).contains("not installed"));
    // Files of another model are refused, and nothing is left behind.
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("vocab.txt"), "[UNK]").unwrap();
    fs::write(other.path().join("model.safetensors"), "no").unwrap();
    let from = other.path().to_str().unwrap();
    let wrong = run_cli(home.path(), &["setup", "embeddings", "--from", from]);
    assert_eq!(wrong.status.code(), Some(2), "{}", to_text(&wrong.stderr));
    assert!(to_text(&wrong.stderr).contains("not the file that was expected"));
    assert_eq!(fs::read_dir(home.path().join("models")).unwrap().count(), 0);

    let set_up = run_cli(home.path(), &["setup", "embeddings", "--from", model]);
    assert!(set_up.status.success(), "{}", to_text(&set_up.stderr));
    assert!(to_text(&set_up.stderr).contains("can be found by what a message means"));
    let well = to_text(&run_cli(home.path(), &["doctor"]).stdout);
    assert!(
        well.contains("ok    embeddings all-MiniLM-L6-v2, in "),
        "{well}"
    );
    let message = "do my notes disagree with each other?";
    let found = parse_stdout(&run_cli(home.path(), &["search", "--json", message]));
    assert_eq!(found["skills"][0]["id"], "consistency-checker");
    assert_eq!(found["skills"][0]["why"], "meaning");
    // With and without embeddings, each with its goals.
    let corpus = examples_dir().join("../corpus/activation/held-out.yaml");
    let measured = run_cli(home.path(), &["eval", corpus.to_str().unwrap(), "--json"]);
    assert!(measured.status.success(), "{}", to_text(&measured.stdout));
    let by = &parse_stdout(&measured)["activations"]["by"];
    let figure = |by: &Value, name: &str| by["figures"][name]["value"].as_f64().unwrap();
    for name in ["hit@1", "hit@5"] {
        let (words, meaning) = (
            figure(&by["words"], name),
            figure(&by["with_meaning"], name),
        );
        assert!(meaning > words, "{name}: {words} {meaning}");
    }
    // A broken model file is reported, and search falls back to words.
    fs::write(
        home.path()
            .join("models/all-MiniLM-L6-v2/model.int8.safetensors"),
        "no",
    )
    .unwrap();
    let broken = run_cli(home.path(), &["search", "contradictions"]);
    assert!(broken.status.success() && !broken.stdout.is_empty());
    assert!(to_text(&broken.stderr).contains("found by their words alone"));
    let removed = run_cli(home.path(), &["setup", "embeddings", "--remove"]);
    assert!(to_text(&removed.stderr).contains("removed"));
}

#[test]
fn a_system_skill_is_forked_and_edited_in_the_workspace_only() {
    let home = tempfile::tempdir().unwrap();
    let desk = home.path().join("desk");
    fs::create_dir_all(&desk).unwrap();
    let at_desk = |args: &[&str]| {
        let desk = ["--workspace", desk.to_str().unwrap()];
        run_cli(home.path(), &[&desk, args].concat())
    };
    let ok = |args: &[&str]| {
        let done = at_desk(args);
        assert!(done.status.success(), "{args:?}: {}", to_text(&done.stderr));
        to_text(&done.stdout)
    };
    ok(&["init", desk.to_str().unwrap()]);
    assert!(ok(&["list"]).contains("consistency-checker"), "it ships");
    let refused = at_desk(&["artifact", "put", "consistency-checker", "Overview", "x"]);
    let said = to_text(&refused.stderr);
    assert!(
        said.contains("repertoire fork consistency-checker"),
        "{said}"
    );
    ok(&["fork", "consistency-checker"]);
    let again = at_desk(&["fork", "consistency-checker"]);
    assert!(to_text(&again.stderr).contains("already in the workspace"));

    let prompt = home.path().join("prompt.j2");
    fs::write(&prompt, "Only say: {{ message }}").unwrap();
    let prompt = prompt.to_str().unwrap();
    let put = ["artifact", "put", "consistency-checker"];
    ok(&[&put[..], &["Check Prompt", prompt]].concat());
    let new = at_desk(&[&put[..], &["Manner", prompt]].concat());
    assert!(
        to_text(&new.stderr).contains("--kind"),
        "{}",
        to_text(&new.stderr)
    );
    let broken = home.path().join("broken.j2");
    fs::write(&broken, "Only {{ say").unwrap();
    let broken = [&put[..], &["Check Prompt", broken.to_str().unwrap()]].concat();
    assert_eq!(at_desk(&broken).status.code(), Some(4));
    ok(&[&put[..], &["Manner", prompt, "--kind", "approach"]].concat());
    let show = ["artifact", "show", "consistency-checker", "check prompt"];
    assert_eq!(ok(&show), "Only say: {{ message }}");
    let listed = ok(&["artifact", "list", "consistency-checker"]);
    assert!(
        listed.contains("Manner") && listed.contains("dspy_module"),
        "{listed}"
    );
    ok(&["artifact", "remove", "consistency-checker", "Manner"]);
    let gone = at_desk(&["artifact", "show", "consistency-checker", "Manner"]);
    assert_eq!(gone.status.code(), Some(3));
    // The account still has the shipped version.
    let shipped = [
        "artifact",
        "show",
        "account:consistency-checker",
        "Check Prompt",
    ];
    assert!(!ok(&shipped).contains("Only say"));
    // A removal that would leave a package unable to run is refused.
    let fallback = at_desk(&["artifact", "remove", "consistency-checker", "Check Prompt"]);
    assert!(!fallback.status.success(), "{}", to_text(&fallback.stdout));
    assert_eq!(ok(&show), "Only say: {{ message }}");

    let bare = tempfile::tempdir().unwrap();
    let listed = run_cli(bare.path(), &["--no-system-skills", "list"]);
    assert!(!to_text(&listed.stdout).contains("consistency-checker"));
}

#[test]
fn ask_searches_decides_fills_parameters_runs_and_explains() {
    let decision = json!({
        "decision": "activate", "skill": "consistency-checker", "artifacts": ["DSPy Checker"],
        "text": "", "reason": "it looks for contradictions",
    });
    let fake = FakeProvider::start(vec![
        chat_reply(&decision.to_string()),
        chat_reply(r#"{"entity_name": "Mira"}"#),
        chat_reply(CONTRADICTIONS_REPLY),
        chat_reply("yes"),
    ]);
    let home = home_with_checker(&fake);
    let message = "Are there any contradictions about Mira?";
    let done = run_cli(home.path(), &["ask", message]);
    let (said, why) = (to_text(&done.stdout), to_text(&done.stderr));
    assert!(done.status.success(), "{why}");
    assert!(said.contains("one pair of eyes"), "{said}");
    for words in [
        "says \"are there any contradictions\"",
        "activate consistency-checker with DSPy Checker",
        "it looks for contradictions",
        "Check Prompt stood in for it",
        "repertoire trace list --session",
    ] {
        assert!(why.contains(words), "{words}: {why}");
    }
    let asked = fake.recorded_requests();
    let decided = asked[0].body["messages"].to_string();
    assert!(decided.contains("consistency-checker"), "{decided}");
    let prompt = asked[2].body["messages"][1]["content"].as_str().unwrap();
    assert!(
        prompt.contains("\"Mira\"") && prompt.contains("green eyes"),
        "{prompt}"
    );
    let rows = parse_stdout(&run_cli(home.path(), &["trace", "list", "--json"]));
    assert!(!rows["traces"].as_array().unwrap().is_empty());
}

#[test]
fn a_decision_can_be_respond_research_or_clarify() {
    let decide = |decision: &str, words: &str| {
        let reason = "so";
        chat_reply(
            &json!({"decision": decision, "skill": "", "artifacts": [], "text": words,
                    "reason": reason})
            .to_string(),
        )
    };
    let fake = FakeProvider::start(vec![
        decide("respond", ""),
        chat_reply("Penguins cannot fly."),
        decide("research", "Mira eyes"),
        chat_reply("Green, says [[Mira Oskarsdottir]]."),
        decide("clarify", "Which page do you mean?"),
        decide("respond", ""),
    ]);
    let home = home_with_checker(&fake);
    let ask = |args: &[&str]| {
        let done = run_cli(home.path(), &[&["ask"], args].concat());
        assert!(done.status.success(), "{}", to_text(&done.stderr));
        done
    };
    let respond = ask(&["do penguins fly?"]);
    assert_eq!(to_text(&respond.stdout), "Penguins cannot fly.\n");
    assert!(to_text(&respond.stderr).contains("nothing fits"));
    let research = ask(&["what colour are the eyes of Mira?"]);
    assert!(to_text(&research.stdout).contains("Green"));
    let asked = fake.recorded_requests();
    let pages = asked[3].body["messages"].to_string();
    assert!(pages.contains("green eyes"), "{pages}");
    let clarify = ask(&["check it"]);
    assert_eq!(to_text(&clarify.stdout), "Which page do you mean?\n");
    let only = parse_stdout(&ask(&["hello", "--decide-only", "--json"]));
    assert_eq!(only["decided"]["decision"], "respond");
    let rows = parse_stdout(&run_cli(home.path(), &["trace", "list", "--json"]));
    assert_eq!(rows["traces"], json!([]), "nothing was executed");
    let bare = tempfile::tempdir().unwrap();
    let none = run_cli(bare.path(), &["ask", "hello"]);
    assert_eq!(none.status.code(), Some(2), "{}", to_text(&none.stderr));
    assert!(to_text(&none.stderr).contains("--model PROVIDER/MODEL"));
}

#[test]
fn eval_compares_outputs_with_and_without_a_skill() {
    let fake = FakeProvider::start(vec![
        chat_reply(CONTRADICTIONS_REPLY),
        chat_reply("yes"),
        chat_reply("I do not know your notes."),
        chat_reply("[]"),
        chat_reply("[]"),
    ]);
    let home = home_with_checker(&fake);
    let file = home.path().join("outputs.yaml");
    let written = "outputs:\n  - skill: consistency-checker\n    message: Check Mira\n    \
                   params: {entity_name: Mira}\n    expect:\n      - {type: structural, check: \
                   json_schema, schema: {required: [contradictions]}}\n";
    fs::write(&file, written).unwrap();
    let done = run_cli(home.path(), &["eval", "outputs.yaml", "--json"]);
    assert!(
        done.status.success(),
        "{} {}",
        to_text(&done.stdout),
        to_text(&done.stderr)
    );
    let case = &parse_stdout(&done)["outputs"][0];
    assert_eq!(
        (&case["with"]["passed"], &case["without"]["passed"]),
        (&json!(1), &json!(0))
    );
    assert!(
        case["with"]["usage"]["input_tokens"].as_u64()
            > case["without"]["usage"]["input_tokens"].as_u64()
    );
    assert!(case["without"]["usage"]["cost"].as_f64().unwrap() > 0.0);
    // A missed expectation sets the exit code.
    let missed = run_cli(home.path(), &["eval", "outputs.yaml"]);
    assert_eq!(missed.status.code(), Some(1));
    assert!(
        to_text(&missed.stdout).contains("MISSED"),
        "{}",
        to_text(&missed.stdout)
    );
    // An invalid expectation is refused before any model call.
    let before = fake.recorded_requests().len();
    fs::write(
        &file,
        written.replace("json_schema, schema", "psychic, schema"),
    )
    .unwrap();
    let wrong = run_cli(home.path(), &["eval", "outputs.yaml"]);
    assert!(!wrong.status.success());
    assert_eq!(fake.recorded_requests().len(), before);
}

#[test]
fn the_catalogue_fits_its_token_budget_and_lists_what_was_cut() {
    let home = tempfile::tempdir().unwrap();
    let skills = examples_dir().join("../corpus/activation/skills");
    let from = ["--from", skills.to_str().unwrap(), "catalogue"];
    let at =
        |args: &[&str]| parse_stdout(&run_cli(home.path(), &[&from, args, &["--json"]].concat()));
    let whole = at(&["--tokens", "60000"]);
    assert_eq!(whole["whole"].as_array().unwrap().len(), 436);
    assert_eq!(whole["cut"], json!([]));
    let some = at(&["--tokens", "3000"]);
    assert!(
        some["tokens"].as_u64().unwrap() <= 3000,
        "{}",
        some["tokens"]
    );
    assert!(!some["shortened"].as_array().unwrap().is_empty());
    let few = at(&["--tokens", "100"]);
    let cut = few["cut"].as_array().unwrap().len();
    let text_of = few["text"].as_str().unwrap();
    assert!(
        text_of.ends_with(&format!("… and {cut} more\n")),
        "{text_of}"
    );
    assert!(few["tokens"].as_u64().unwrap() <= 100);
    let fitting = at(&["--message", "which commit broke the build"]);
    assert!(fitting["whole"].as_array().unwrap().len() < 100);
    let people = run_cli(home.path(), &[&from[..], &["--tokens", "100"]].concat());
    assert!(
        to_text(&people.stderr).contains("cut"),
        "{}",
        to_text(&people.stderr)
    );
}

#[test]
fn an_interrupted_run_stores_its_trace_and_exits_with_130() {
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_checker(&fake);
    let mut child = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["run", "consistency-checker", "-p", "entity_name=Mira"])
        .env("REPERTOIRE_HOME", home.path())
        .env("PLANTED_API_KEY", KEY)
        .current_dir(home.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    while fake.recorded_requests().is_empty() {
        assert!(start.elapsed().as_secs() < 30, "the model was not called");
        std::thread::yield_now();
    }
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rows = parse_stdout(&run_cli(home.path(), &["trace", "list", "--json"]));
    let rows = rows["traces"].as_array().unwrap();
    let stopped = rows.iter().find(|row| row["error"] == "interrupted");
    let stopped = stopped.unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!(stopped["artifact_kind"], "prompt_template");
    let input = stopped["rendered_input"].as_str().unwrap();
    assert!(input.contains("Mira"), "{input}");
}

#[test]
fn doctor_contacts_the_server_of_the_model() {
    let list = |ids: &[&str]| {
        let models: Vec<Value> = ids
            .iter()
            .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "me"}))
            .collect();
        FakeResponse::Json(200, json!({"object": "list", "data": models}).to_string())
    };
    let denied = json!({"error": {"message": format!("bad key {KEY}"), "type": "auth"}});
    for (answer, is_good, words) in [
        (list(&["m", "other"]), true, "there/m is there"),
        (list(&["other"]), false, "the server has other"),
        (
            FakeResponse::Json(404, "{}".to_owned()),
            true,
            "its server answers",
        ),
        (
            FakeResponse::Json(401, denied.to_string()),
            false,
            "answered 401: bad key [redacted]",
        ),
    ] {
        let fake = FakeProvider::start(vec![answer]);
        let home = home_with_provider(&fake);
        let checked = parse_stdout(&run_cli(home.path(), &["doctor", "--json"]));
        let checks = checked["checks"].as_array().unwrap();
        let check = checks
            .iter()
            .find(|check| check["check"] == "model")
            .unwrap();
        assert_eq!(check["ok"], is_good, "{check}");
        assert!(check["detail"].as_str().unwrap().contains(words), "{check}");
        let requests = fake.recorded_requests();
        assert_eq!(requests.len(), 1, "one request, and none that costs money");
        assert_eq!(requests[0].path, "/v1/models");
        assert!(!checked.to_string().contains(KEY));
    }
    // A server that is not there.
    let fake = FakeProvider::start(vec![FakeResponse::NoResponse]);
    let home = home_with_provider(&fake);
    let config = fs::read_to_string(home.path().join("config.toml")).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    fs::write(
        home.path().join("config.toml"),
        config.replace(&fake.url, &away),
    )
    .unwrap();
    let checked = run_cli(home.path(), &["doctor"]);
    assert_eq!(checked.status.code(), Some(1));
    let text = to_text(&checked.stdout);
    assert!(text.contains("FAIL  model"), "{text}");
}
