//! How a skill is named on the command line, and which one is then meant.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;

use common::{CommandOutput, TestWorkspace, example_workspace};
use serde_json::json;

#[test]
fn shells_are_offered_the_skills_that_exist() {
    let place = example_workspace();
    let complete = |words: &[&str]| {
        let mut command = place.command(&[&["--", "repertoire"], words].concat());
        command.env("REPERTOIRE_COMPLETE", "bash").envs([
            ("_CLAP_IFS", "\n"),
            ("_CLAP_COMPLETE_COMP_TYPE", "9"),
            ("_CLAP_COMPLETE_SPACE", "true"),
            ("_CLAP_COMPLETE_INDEX", &(words.len().to_string())),
        ]);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    place.run_ok(&["add", "examples/hello-world"]);
    assert_eq!(complete(&["show", "hel"]), "hello-world");
    assert_eq!(complete(&["history", "account:hel"]), "account:hello-world");
    assert_eq!(complete(&["run", "zzz"]), "");
    assert!(complete(&["show", "./exam"]).contains("./examples"));
    assert!(complete(&["rollb"]).contains("rollback"));
}

#[test]
fn a_change_goes_to_the_store_that_the_name_says() {
    let place = example_workspace();
    place.run_ok(&["init"]);
    place.run_ok(&["add", "examples/hello-world", "--scope", "account"]);
    place.run_ok(&["fork", "account:hello-world"]);
    place.write_file("note.txt", "Be kind.");
    let put = |skill: &str, more: &[&str]| {
        let base = [
            "artifact", "put", skill, "Note", "note.txt", "--kind", "approach",
        ];
        place.run(&[&base[..], more].concat())
    };
    let revisions = |skill: &str| {
        let history = place.run_json(&["history", skill, "--json"]);
        history["revisions"].as_array().unwrap().len()
    };
    assert_eq!(put("account:hello-world", &[]).exit_code(), 0);
    assert_eq!(
        (
            revisions("account:hello-world"),
            revisions("workspace:hello-world")
        ),
        (2, 1)
    );
    // A folder is changed by its files, whatever a store has under the same id.
    let refused = put("./examples/hello-world", &[]);
    assert_eq!(refused.exit_code(), 2, "{}", refused.stderr());
    for contradiction in [
        put("account:hello-world", &["--scope", "workspace"]),
        place.run(&["remove", "account:hello-world", "--scope", "workspace"]),
        place.run(&[
            "rollback",
            "workspace:hello-world",
            "1",
            "--scope",
            "account",
        ]),
        place.run(&["history", "workspace:hello-world", "--scope", "account"]),
    ] {
        assert_eq!(contradiction.exit_code(), 2, "{}", contradiction.stderr());
    }
    assert_eq!(
        (
            revisions("account:hello-world"),
            revisions("workspace:hello-world")
        ),
        (2, 1)
    );
}

#[test]
fn a_removed_skill_is_not_mistaken_for_another_of_its_name() {
    let place = TestWorkspace::new();
    let package = |text: &str| {
        json!({
            "name": "Greet", "description": "Greets. Use when greeted.",
            "artifacts": [{"kind": "description", "name": "Overview", "content": text}],
        })
    };
    place.write_file("old.json", package("Old.\n").to_string());
    place.run_ok(&["package", "import", "old.json"]);
    place.run_ok(&["remove", "greet"]);
    place.run_ok(&["package", "unpack", "old.json", "-o", "acme/greet"]);
    place.run_ok(&["add", "acme/greet/", "--id", "acme/greet"]);
    assert!(place.run_ok(&["show", "Greet"]).contains("acme/greet"));
    assert!(place.run_ok(&["history", "greet"]).contains("remove"));
    place.run_ok(&["remove", "--purge", "greet"]);
    assert!(place.run_ok(&["list"]).contains("acme/greet"));
}

#[test]
fn folders_of_an_untrusted_workspace_are_not_run_by_their_path() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.work_dir().join(".repertoire")).unwrap();
    place.write_skill("deploy", "Do as it says.");
    // A link to the outside does not help, nor does another working directory.
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("away")).unwrap();
    let document = "---\nname: away\ndescription: d\n---\n# x\n";
    fs::write(outside.path().join("away/SKILL.md"), document).unwrap();
    std::os::unix::fs::symlink(outside.path().join("away"), place.work_dir().join("away")).unwrap();
    let absolute = place.work_dir().join("deploy");
    let absolute = absolute.to_str().unwrap();
    for name in ["./deploy", "deploy/", absolute, "./away"] {
        place.run_ok(&["show", name]);
        let mut command = place.command(&["run", name, "--dry-run", "--message", "x"]);
        if name == absolute {
            command.current_dir(outside.path());
        }
        let refused = CommandOutput(command.output().unwrap());
        assert_eq!(refused.exit_code(), 6, "{name}: {}", refused.stderr());
        assert!(
            refused.stderr().contains("untrusted"),
            "{}",
            refused.stderr()
        );
    }
}

#[test]
fn a_folder_that_is_no_skill_is_refused_with_the_reason() {
    let place = TestWorkspace::new();
    place.write_file("bad/SKILL.md", [0xff, 0xfe]);
    let shown = place.run(&["show", "./bad"]);
    assert!(
        shown.stderr().contains("not valid UTF-8"),
        "{}",
        shown.stderr()
    );
    assert!(
        !place.home_dir().join("agents.db").exists(),
        "looking creates no account"
    );
}

#[test]
fn skills_are_named_by_id_origin_package_name_or_folder() {
    let place = example_workspace();
    let package = json!({
        "name": "Tone Check", "description": "Checks the tone. Use when asked.",
        "artifacts": [{"kind": "description", "name": "Overview", "content": "Kindly.\n"}],
    });
    place.write_file("tone.json", package.to_string());
    place.run_ok(&["package", "import", "tone.json"]);
    for name in [
        "tone-check",
        "account:tone-check",
        "Tone Check",
        "tone check",
    ] {
        assert!(
            place.run_ok(&["show", name]).contains("tone-check"),
            "{name}"
        );
        assert!(
            place
                .run_ok(&["artifact", "list", name])
                .contains("Overview"),
            "{name}"
        );
        assert!(place.run_ok(&["history", name]).contains("put"), "{name}");
        assert!(
            place
                .run_ok(&["package", "export", name])
                .contains("Kindly"),
            "{name}"
        );
        assert!(
            place.run_ok(&["cat", "--prompt", name]).contains("Kindly"),
            "{name}"
        );
        place.run_ok(&["lint", name]);
    }
    for name in ["./examples/hello-world", "examples/hello-world/"] {
        assert!(
            place.run_ok(&["show", name]).contains("hello-world"),
            "{name}"
        );
        assert!(
            place.run_ok(&["package", "export", name]).contains("Hello"),
            "{name}"
        );
        assert_eq!(place.run(&["remove", name]).exit_code(), 2, "{name}");
    }
    for command in ["show", "history", "remove", "fork"] {
        let missing = place.run(&[command, "No Such Name"]);
        assert_eq!(missing.exit_code(), 3, "{command}: {}", missing.stderr());
        assert_eq!(
            place.run(&[command, "mars:rover"]).exit_code(),
            2,
            "{command}"
        );
    }
    place.run_ok(&["remove", "Tone Check"]);
    // Its history is still there under its id.
    assert!(place.run_ok(&["history", "tone-check"]).contains("remove"));
}

#[test]
fn t15_look_alikes_are_reported_when_skills_come_in() {
    let place = TestWorkspace::new();
    place.write_skill("mine/code-review", "# Mine\n");
    place.run_ok(&["add", "mine/code-review"]);
    place.write_skill("theirs/code-reveiw", "# Theirs\n");
    place.write_skill("theirs/code-style", "# Theirs\n");
    let added = place.run(&["add", "theirs/code-reveiw", "theirs/code-style"]);
    assert_eq!(added.exit_code(), 0, "{}", added.stderr());
    let said = added.stderr();
    assert!(
        said.contains("code-reveiw looks like code-review"),
        "{said}"
    );
    assert_eq!(said.matches("looks like").count(), 1, "{said}");
    let package = serde_json::json!({
        "name": "code-review-official", "description": "Reviews. Use when asked.",
        "artifacts": [{"kind": "description", "name": "Overview", "content": "x"}],
    });
    place.write_file("official.json", package.to_string());
    let imported = place.run_json(&["package", "import", "official.json", "--json"]);
    assert_eq!(
        imported["similar"][0]["looks_like"], "code-review",
        "{imported}"
    );
    // The same skill again resembles nothing.
    assert!(
        !place
            .run(&["add", "mine/code-review"])
            .stderr()
            .contains("looks like")
    );
}
