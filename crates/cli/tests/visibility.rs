//! `disable`, `enable` and `serve --only`.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod wire;

use std::fs;

use common::{TestWorkspace, wait_for};
use serde_json::json;
use wire::HttpServer;

fn ids(place: &TestWorkspace, args: &[&str]) -> Vec<String> {
    let answer = place.run_json(&[&["list", "--json"], args].concat());
    let skills = answer["skills"].as_array().unwrap().iter();
    skills
        .map(|skill| skill["id"].as_str().unwrap().to_owned())
        .collect()
}

/// The URIs of `skills/list`.
fn served(http: &HttpServer) -> Vec<String> {
    let answer = http.send_request("skills/list", json!({})).rpc_message();
    let skills = answer["result"]["skills"].as_array().cloned();
    skills
        .unwrap_or_default()
        .iter()
        .map(|skill| skill["uri"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_disabled_skill_is_nowhere_until_it_is_enabled() {
    let place = TestWorkspace::new();
    place.write_skill("src/one", "# One\n");
    place.write_skill("src/two", "# Two\n");
    place.run_ok(&["add", "src", "--scope", "account"]);
    let http = HttpServer::start(&place.home_dir(), &[]);
    wait_for("both", || served(&http).len() == 2);

    place.run_ok(&["disable", "one"]);
    assert_eq!(ids(&place, &[]), ["two"]);
    let all = place.run_json(&["list", "--all", "--json"]);
    assert_eq!(all["skills"][0]["disabled"], true, "{all}");
    // A running server follows.
    wait_for("one", || served(&http) == ["skill://two/SKILL.md"]);
    let read = http.send_request("resources/read", json!({"uri": "skill://one/SKILL.md"}));
    assert!(read.rpc_message()["error"].is_object());
    assert_ne!(place.run(&["cat", "skill://one/SKILL.md"]).exit_code(), 0);
    let found = place.run_json(&["search", "does one", "--json"]);
    assert!(!found.to_string().contains("\"one\""), "{found}");
    // A new revision does not bring it back.
    place.write_skill("src/one", "# Once more\n");
    place.run_ok(&["add", "src/one", "--scope", "account"]);
    assert_eq!(ids(&place, &[]), ["two"]);

    place.run_ok(&["enable", "one"]);
    assert_eq!(ids(&place, &[]), ["one", "two"]);
    wait_for("both again", || served(&http).len() == 2);
    assert_eq!(place.run(&["disable", "missing"]).exit_code(), 3);
}

#[test]
fn a_server_can_serve_only_some_skills() {
    let place = TestWorkspace::new();
    place.write_skill("src/acme/refunds", "# R\n");
    place.write_skill("src/acme-tools", "# T\n");
    place.write_skill("src/one", "# One\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("src");
    let args = [folder.to_str().unwrap(), "--only", "acme,one"];
    let http = HttpServer::start(&place.home_dir(), &args);
    wait_for("some", || {
        served(&http) == ["skill://acme/refunds/SKILL.md", "skill://one/SKILL.md"]
    });
    let read = |uri: &str| {
        let answer = http.send_request("resources/read", json!({"uri": uri}));
        answer.rpc_message()["result"].is_object()
    };
    assert!(read("skill://acme/refunds/SKILL.md"));
    assert!(!read("skill://acme-tools/SKILL.md"));
    assert!(!read("iii://acme-tools"));
}

#[test]
fn a_disabled_skill_is_not_read_through_the_one_around_it() {
    let place = TestWorkspace::new();
    place.write_skill("s/public", "# Public\n");
    place.write_skill("s/public/inner", "# Inner\n");
    place.write_skill("s/evil", "# Evil\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("s");
    let settings = format!("folders = [{:?}]\n", folder.to_str().unwrap());
    fs::write(place.home_dir().join("config.toml"), settings).unwrap();
    place.run_ok(&["disable", "public/inner", "evil"]);
    place.run_ok(&["cat", "skill://public/SKILL.md"]);
    let read = place.run(&["cat", "skill://public/inner/SKILL.md"]);
    assert_ne!(read.exit_code(), 0, "{}", read.stdout());
    // Nor is it in anything that is made of the files of the skill around it.
    let http = HttpServer::start(&place.home_dir(), &["--prompts", "all"]);
    for (method, params) in [
        ("skills/list", json!({})),
        ("skills/get", json!({"uri": "skill://public/SKILL.md"})),
        ("prompts/get", json!({"name": "public"})),
        ("resources/directory/read", json!({"uri": "skill://public"})),
        (
            "completion/complete",
            json!({
                "ref": {"type": "ref/resource", "uri": "skill://{+id}/{+file}"},
                "argument": {"name": "file", "value": ""},
                "context": {"arguments": {"id": "public"}},
            }),
        ),
    ] {
        let answer = http.send_request(method, params).rpc_message();
        assert!(answer["result"].is_object(), "{method}: {answer}");
        let text = answer.to_string().to_lowercase();
        assert!(!text.contains("inner"), "{method}: {answer}");
    }
    place.run_ok(&["link", "./copies"]);
    assert!(place.work_dir().join("copies/public/SKILL.md").is_file());
    assert!(!place.work_dir().join("copies/public/inner").exists());
    // A running server follows.
    place.run_ok(&["enable", "public/inner"]);
    wait_for("the nested skill", || {
        let answer = http.send_request("prompts/get", json!({"name": "public"}));
        String::from_utf8_lossy(&answer.body).contains("Inner")
    });
    place.run_ok(&["disable", "public/inner"]);
    wait_for("no nested skill", || {
        let answer = http.send_request("prompts/get", json!({"name": "public"}));
        !String::from_utf8_lossy(&answer.body).contains("Inner")
    });
    // Another name in the document does not bring it back.
    let renamed = "---\nname: evil-two\ndescription: d\n---\n# Evil\n";
    place.write_file("s/evil/SKILL.md", renamed);
    assert_eq!(ids(&place, &[]), ["public"]);
    assert_eq!(place.run(&["enable", "nope"]).exit_code(), 3);
}

#[test]
fn a_disabled_skill_is_hidden_in_named_folders_too() {
    let place = TestWorkspace::new();
    place.write_skill("s/one", "# One\n");
    place.write_skill("s/two", "# Two\n");
    place.run_ok(&["--from", "s", "disable", "one"]);
    assert_eq!(ids(&place, &["./s"]), ["two"]);
    assert_ne!(
        place
            .run(&["--from", "s", "cat", "skill://one/SKILL.md"])
            .exit_code(),
        0
    );
    let folder = place.work_dir().join("s");
    let http = HttpServer::start(&place.home_dir(), &[folder.to_str().unwrap()]);
    wait_for("one skill", || served(&http) == ["skill://two/SKILL.md"]);
    place.run_ok(&["enable", "one"]);
    wait_for("both", || served(&http).len() == 2);
}

#[test]
fn a_disabled_name_stays_disabled_when_a_second_folder_claims_it() {
    let place = TestWorkspace::new();
    let document = "---\nname: pdf\ndescription: d\n---\n# Pdf\n";
    place.write_file("s/pdf-tools/SKILL.md", document);
    place.write_skill("s/plain", "# Plain\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("s");
    let settings = format!("folders = [{:?}]\n", folder.to_str().unwrap());
    fs::write(place.home_dir().join("config.toml"), settings).unwrap();
    place.run_ok(&["disable", "pdf"]);
    assert_eq!(ids(&place, &[]), ["plain"]);
    // Now neither has the name.
    place.write_file("s/other/SKILL.md", document);
    assert_eq!(ids(&place, &[]), ["plain"]);
    assert_ne!(
        place
            .run(&["cat", "skill://pdf-tools/SKILL.md"])
            .exit_code(),
        0
    );
}
