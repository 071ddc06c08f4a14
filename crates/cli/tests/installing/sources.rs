//! Every kind of source, with real programs on the other end.

use std::fs;

use repertoire_core::Digest;
use serde_json::json;

use crate::{
    places::{Repository, WebServer},
    user::{User, document, write_file},
};

#[test]
fn skills_of_a_repository_are_listed_shown_and_added() {
    let repository = Repository::with_skills(&["pdf", "mail"]);
    let commit = repository.commit("more");
    let user = User::new();
    let place = user.path("home");
    let url = repository.file_url();
    let listed = user.run(&["add", "--list", &url]).ok().json();
    let names = &listed["sources"][0]["skills"];
    assert_eq!(
        (&names[0]["name"], &names[1]["name"]),
        (&json!("mail"), &json!("pdf"))
    );
    user.has_nothing(&place);
    let several = user
        .run(&["add", &url])
        .refused("several_skills", "has 2 skills");
    assert!(several.err.contains("--skill"), "{several:?}");
    user.run(&["add", &url, "--skill", "fax"])
        .refused("not_found", "it has mail, pdf");

    let added = user.run(&["add", &url, "--skill", "pdf"]).ok().json();
    let pdf = &added["skills"][0];
    assert_eq!(pdf["pin"], format!("git:{commit}"));
    assert_eq!(
        (&pdf["approved"], &pdf["signer"]),
        (&json!(true), &json!(null))
    );
    assert_eq!(user.skills(&place), ["pdf"]);
    assert_eq!(
        user.cat(&place, "skill://pdf/scripts/run.sh"),
        "#!/bin/sh\necho run\n"
    );
    // Once more changes nothing; the other one of the same place is added beside it.
    let again = user.run(&["add", &url, "--skill", "pdf"]).ok().json();
    assert_eq!(again["skills"][0]["change"], "unchanged");
    user.run(&["add", &url, "--all"]).ok();
    assert_eq!(user.skills(&place), ["mail", "pdf"]);
    let lock = fs::read_to_string(user.account().join("repertoire.lock")).unwrap();
    assert!(lock.contains(&format!("pin = \"git:{commit}\"")) && lock.contains("unsigned = true"));
}

#[test]
fn branches_tags_commits_and_folders_of_a_repository_are_found() {
    let repository = Repository::with_skills(&["pdf"]);
    repository.git(&["tag", "-a", "v1.0", "-m", "one"]);
    let first = repository.git(&["rev-parse", "HEAD"]);
    repository.write("skills/pdf/SKILL.md", document("pdf", "# Two\n"));
    repository.write("extra/deep/tool/SKILL.md", document("tool", "# Tool\n"));
    let second = repository.commit("two");
    let url = repository.file_url();
    for (source, pin) in [
        (format!("{url}#v1.0"), &first),
        (format!("{url}#main"), &second),
        (format!("{url}#{first}"), &first),
    ] {
        let user = User::new();
        let added = user.run(&["add", &source, "--skill", "pdf"]).ok().json();
        assert_eq!(added["skills"][0]["pin"], format!("git:{pin}"), "{source}");
    }
    let user = User::new();
    user.run(&["add", &format!("{url}#nowhere")])
        .refused("not_found", "nowhere");
    user.run(&["add", &format!("file://{}", user.path("none").display())])
        .refused("not_found", "repository");
    user.has_nothing(&user.path("home"));
}

#[test]
fn repositories_are_read_over_http_from_a_stock_server() {
    let Some(server) = WebServer::start() else {
        return;
    };
    let repository = Repository::with_skills(&["pdf", "mail"]);
    let commit = repository.commit("more");
    let url = server.put_repository("skills.git", &repository);
    let user = User::new();
    let added = user.run(&["add", &url, "--skill", "pdf"]).ok().json();
    assert_eq!(added["skills"][0]["pin"], format!("git:{commit}"));
    let missing = format!("{}/git/none.git", server.url);
    user.run(&["add", &missing])
        .refused("not_found", "repository");
}

#[test]
fn plugins_and_marketplaces_name_skills() {
    let repository = Repository::with_skills(&[]);
    repository.write("plugins/office/tools/fax/SKILL.md", document("fax", ""));
    repository.write("elsewhere/deep/down/here/pen/SKILL.md", document("pen", ""));
    repository.write(
        ".claude-plugin/marketplace.json",
        json!({"name": "m", "owner": {"name": "a"}, "plugins": [
            {"name": "office", "source": "./plugins/office", "skills": ["./tools/fax"]},
            {"name": "far", "source": {"source": "github", "repo": "acme/far"}},
        ]})
        .to_string(),
    );
    repository.write(
        "elsewhere/deep/plugin.json",
        json!({"name": "deep", "skills": "./down/here"}).to_string(),
    );
    repository.commit("plugins");
    let user = User::new();
    let listed = user
        .run(&["add", "--list", &repository.file_url()])
        .ok()
        .json();
    let source = &listed["sources"][0];
    assert_eq!(source["skills"][0]["name"], "fax");
    assert_eq!(source["skills"][0]["plugin"], "office");
    assert_eq!(source["skills"].as_array().unwrap().len(), 1);
    assert!(
        source["problems"][0]["subject"]
            .as_str()
            .unwrap()
            .contains("far")
    );
}

#[test]
fn archives_documents_and_indexes_come_from_a_stock_web_server() {
    let Some(server) = WebServer::start() else {
        return;
    };
    let repository = Repository::with_skills(&["pdf", "mail"]);
    let zip = repository.archive("zip", "skills/pdf");
    let tar = repository.archive("tar.gz", "skills/mail");
    let text = document("note", "# Note\n");
    let zip_url = server.put("files/pdf.zip", &zip);
    let tar_url = server.put("files/mail.tar.gz", &tar);
    let note_url = server.put("files/note/SKILL.md", &text);
    let digest = |bytes: &[u8]| Digest::hash_bytes(bytes).to_string();
    let index = json!({
        "$schema": "https://schemas.agentskills.io/discovery/0.2.0/schema.json",
        "skills": [
            {"name": "pdf", "type": "archive", "description": "P.", "url": zip_url,
             "digest": digest(&zip)},
            {"name": "mail", "type": "archive", "description": "M.", "url": "/files/mail.tar.gz",
             "digest": digest(&tar)},
            {"name": "note", "type": "skill-md", "description": "N.",
             "url": "../../../files/note/SKILL.md", "digest": digest(text.as_bytes())},
            {"name": "later", "type": "hologram", "description": "L.", "url": "x",
             "digest": digest(b"")},
            {"name": "Bad Name", "type": "archive", "description": "", "url": "x", "digest": ""},
        ],
    });
    server.put(
        "site/.well-known/agent-skills/index.json",
        index.to_string(),
    );
    let old = json!({"skills": [
        {"name": "pdf", "description": "P.", "files": ["SKILL.md", "scripts/run.sh"]},
    ]});
    server.put("old/.well-known/skills/index.json", old.to_string());
    server.put(
        "old/.well-known/skills/pdf/SKILL.md",
        document("pdf", "# One\n\nText.\n"),
    );
    server.put(
        "old/.well-known/skills/pdf/scripts/run.sh",
        "#!/bin/sh\necho run\n",
    );

    // The same skill has the same digest, whatever carried it.
    let add = |source: &str, more: &[&str]| {
        let user = User::new();
        let args: Vec<&str> = ["add", source].iter().chain(more).copied().collect();
        let added = user.run(&args).ok().json();
        added["skills"][0]["digest"].as_str().unwrap().to_owned()
    };
    let from_git = add(&repository.file_url(), &["--skill", "pdf"]);
    let site = format!("{}/site", server.url);
    let old = format!("{}/old", server.url);
    assert_eq!(add(&zip_url, &[]), from_git);
    assert_eq!(add(&site, &["--skill", "pdf"]), from_git);
    assert_eq!(add(&old, &[]), from_git);
    assert_eq!(add(&tar_url, &[]), add(&site, &["--skill", "mail"]));
    assert_eq!(add(&note_url, &[]), add(&site, &["--skill", "note"]));

    let user = User::new();
    let listed = user.run(&["add", "--list", &site]).ok().json();
    let source = &listed["sources"][0];
    assert_eq!(source["skills"].as_array().unwrap().len(), 3);
    assert_eq!(source["problems"].as_array().unwrap().len(), 2);
    let shown = user.run(&["show", &zip_url]).ok().json();
    assert_eq!(shown["digest"], from_git);
    user.has_nothing(&user.path("home"));
    user.run(&["add", &format!("{}/nothing", server.url)])
        .refused("not_found", ".well-known");
}

#[test]
fn archives_and_packages_of_this_machine_become_copies_of_the_user() {
    let repository = Repository::with_skills(&["pdf"]);
    let user = User::new();
    let place = user.project("project");
    let zip = user.path("pdf.zip");
    fs::write(&zip, repository.archive("zip", "skills/pdf")).unwrap();
    user.run_in(&place, &["add", zip.to_str().unwrap()]).ok();
    assert_eq!(user.skills(&place), ["pdf"]);
    // A project names no file of one machine, so an installation leaves it alone.
    assert!(!place.join("repertoire.toml").exists());
    let package = user.path("tone.json");
    write_file(
        &package,
        json!({"name": "tone", "description": "Checks the tone.", "artifacts": [
            {"kind": "description", "name": "A", "content": "x"},
        ]})
        .to_string(),
    );
    user.run_in(&place, &["add", package.to_str().unwrap()])
        .ok();
    assert_eq!(user.skills(&place), ["pdf", "tone"]);
}

#[test]
fn github_being_unreachable_is_an_error_with_the_address() {
    let user = User::new();
    // The name cannot be resolved in tests; where it can, the repository is not there.
    let answer = user.run(&["add", "repertoire-test-no-such-owner/none@pdf"]);
    assert_ne!(answer.code, 0);
    assert!(
        answer
            .err
            .contains("https://github.com/repertoire-test-no-such-owner/none.git"),
        "{answer:?}"
    );
    user.has_nothing(&user.path("home"));
}
