//! Skills that other tools installed are adopted with their locks.

use std::fs;

use serde_json::json;

use crate::{
    places::{HubSkill, Repository, WebServer, node_command, start_clawhub},
    user::{User, document, write_file},
};

#[test]
fn skills_that_npx_skills_installed_are_adopted() {
    let (Some(server), Some(mut skills)) = (WebServer::start(), node_command("skills/bin/cli.mjs"))
    else {
        return;
    };
    let repository = Repository::with_skills(&["pdf", "mail"]);
    repository.write("skills/pdf/assets/a-b.txt", "1");
    repository.write("skills/pdf/assets/a_b.txt", "2");
    repository.write("skills/pdf/LICENSE", "x");
    let commit = repository.commit("files to sort");
    let url = server.put_repository("skills.git", &repository);
    let user = User::new();
    let project = user.project("project");
    let installed = skills
        .args(["add", &url, "--skill", "*", "-a", "claude-code", "-y"])
        .env("DISABLE_TELEMETRY", "1")
        .env("HOME", user.path("home"))
        .current_dir(&project)
        .output()
        .unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let lock = fs::read(project.join("skills-lock.json")).unwrap();

    let tried = user.run_in(&project, &["migrate", "--dry-run"]).ok().json();
    assert_eq!(tried["skills"].as_array().unwrap().len(), 2);
    assert_eq!(user.skills(&project), Vec::<String>::new());
    let report = user.run_in(&project, &["migrate", "--private"]).ok().json();
    for row in report["skills"].as_array().unwrap() {
        assert_eq!(row["is_adopted"], true, "{row}");
        // The hash of the other lock holds, and the source still has these files.
        assert_eq!(row["is_verified"], true, "{row}");
        assert_eq!(row["pin"], format!("git:{commit}"), "{row}");
    }
    assert_eq!(user.skills(&project), ["mail", "pdf"]);
    assert_eq!(fs::read(project.join("skills-lock.json")).unwrap(), lock);
    user.run_in(&project, &["verify"]).ok();
    // From now on they are updated here.
    repository.write("skills/pdf/SKILL.md", document("pdf", "# New\n"));
    repository.commit("new");
    server.put_repository("skills.git", &repository);
    user.run_in(&project, &["update", "--private"]).ok();
    assert!(user.cat(&project, "skill://pdf/SKILL.md").contains("# New"));
}

#[test]
fn skills_that_clawhub_installed_are_adopted() {
    let Some(mut clawhub) = node_command("clawhub/bin/clawdhub.js") else {
        return;
    };
    let repository = Repository::with_skills(&["pdf"]);
    let hub = start_clawhub(vec![HubSkill {
        slug: "pdf",
        version: "1.0.0",
        archive: repository.archive("zip", "skills/pdf"),
    }]);
    let user = User::new();
    let project = user.project("project");
    let installed = clawhub
        .args(["--registry", &hub.url, "--site", &hub.url, "--workdir"])
        .arg(&project)
        .args(["install", "@acme/pdf"])
        .env("HOME", user.path("home"))
        .env("CLAWHUB_DISABLE_TELEMETRY", "1")
        .current_dir(&project)
        .output()
        .unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let report = user.run_in(&project, &["migrate", "--private"]).ok().json();
    let row = &report["skills"][0];
    assert_eq!(
        (&row["tool"], &row["is_adopted"]),
        (&json!("clawhub"), &json!(true)),
        "{row}"
    );
    assert_eq!(row["is_verified"], true, "{row}");
    assert!(
        row["pin"].as_str().unwrap().starts_with("artifact:"),
        "{row}"
    );
    assert_eq!(user.skills(&project), ["pdf"]);
    user.run_in(&project, &["verify"]).ok();
}

#[test]
fn changed_skills_and_unknown_locks_are_named() {
    let user = User::new();
    let project = user.project("project");
    write_file(
        &project.join(".agents/skills/pdf/SKILL.md"),
        document("pdf", "Changed.\n"),
    );
    let lock = json!({"version": 1, "skills": {
        "pdf": {"source": "acme/skills", "sourceType": "github", "computedHash": "0".repeat(64)},
        "gone": {"source": "acme/skills", "sourceType": "github"},
    }});
    write_file(&project.join("skills-lock.json"), lock.to_string());
    let report = user.run_in(&project, &["migrate", "--offline"]);
    assert_eq!(report.code, 1);
    let report = report.json();
    assert_eq!(
        report["skills"][0]["note"],
        "the files of gone are not there"
    );
    assert_eq!(report["skills"][1]["is_verified"], false);
    assert_eq!(report["skills"][1]["is_adopted"], true);
    let empty = user.project("empty");
    user.run_in(&empty, &["migrate"])
        .refused("not_found", "lock of another tool");
}
