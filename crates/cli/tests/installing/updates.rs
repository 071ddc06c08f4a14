//! Updates: what the source changed and what the user changed.

use std::fs;

use serde_json::json;

use crate::{
    places::Repository,
    user::{User, document, write_file},
};

const LINES: &str = "one\n\ntwo\n\nthree\n\nfour\n\nfive\n";

/// A user who changed an installed skill whose source goes on.
fn edited_skill(mine: &str, theirs: &str) -> (Repository, User) {
    let repository = Repository::with_skills(&[]);
    repository.write("skills/pdf/SKILL.md", document("pdf", LINES));
    repository.write("skills/pdf/notes.md", "note\n");
    repository.write("skills/mail/SKILL.md", document("mail", "One.\n"));
    repository.commit("one");
    let user = User::new();
    user.run(&["add", &repository.file_url(), "--all"]).ok();
    write_file(&user.path("edit/pdf/SKILL.md"), document("pdf", mine));
    write_file(&user.path("edit/pdf/notes.md"), "note\n");
    user.run(&["add", "edit/pdf"]).ok();
    repository.write("skills/pdf/SKILL.md", document("pdf", theirs));
    repository.write("skills/mail/SKILL.md", document("mail", "Two.\n"));
    repository.commit("two");
    (repository, user)
}

#[test]
fn updates_keep_what_the_user_changed() {
    let mine = LINES.replace("one", "mine");
    let theirs = LINES.replace("five", "theirs");
    let (_repository, user) = edited_skill(&mine, &theirs);
    let home = user.path("home");
    let outdated = user.run(&["outdated"]);
    assert_eq!(outdated.code, 1);
    assert_eq!(outdated.json()["skills"][0]["is_outdated"], true);
    let tried = user.run(&["update", "--dry-run"]).ok().json();
    assert_eq!(tried["skills"][1]["change"], "merged");
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("five"));
    let report = user.run(&["update"]).ok().json();
    assert_eq!(report["skills"][0]["change"], "updated");
    assert_eq!(report["skills"][1]["change"], "merged");
    let merged = LINES.replace("one", "mine").replace("five", "theirs");
    assert_eq!(
        user.cat(&home, "skill://pdf/SKILL.md"),
        document("pdf", &merged)
    );
    assert_eq!(
        user.run(&["outdated"]).ok().json()["skills"][1]["is_outdated"],
        false
    );
    // The edit is seen, and named.
    let verified = user.run(&["verify"]);
    assert_eq!(verified.code, 1);
    assert_eq!(verified.json()["skills"][1]["files"], json!(["SKILL.md"]));
    user.run(&["verify", "--edits"]).ok();
    assert_eq!(
        user.run(&["update"]).ok().json()["skills"][1]["change"],
        "unchanged"
    );
}

#[test]
fn conflicts_pause_the_whole_update_until_everything_is_decided() {
    let mine = LINES.replace("three", "mine");
    let theirs = LINES.replace("three", "theirs");
    let (repository, user) = edited_skill(&mine, &theirs);
    repository.write("skills/pdf/notes.md", "their note\n");
    repository.commit("three");
    write_file(&user.path("edit/pdf/notes.md"), "my note\n");
    user.run(&["add", "edit/pdf"]).ok();
    let home = user.path("home");
    let lock = user.account().join("repertoire.lock");
    let locked = fs::read_to_string(&lock).unwrap();
    let paused = user.run(&["update"]);
    assert_eq!(paused.code, 1);
    let paths: Vec<_> = paused.json()["conflicts"][0]["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].clone())
        .collect();
    assert_eq!(paths, ["SKILL.md", "notes.md"]);
    // Nothing was changed, not even the skill without a conflict; no mark is served.
    let nothing_changed = || {
        assert!(user.cat(&home, "skill://mail/SKILL.md").contains("One."));
        let served = user.cat(&home, "skill://pdf/SKILL.md");
        assert!(served.contains("mine") && !served.contains("<<<<<<<"));
        assert_eq!(fs::read_to_string(&lock).unwrap(), locked);
    };
    nothing_changed();
    let shown = user.see(&home, &["update"]);
    assert!(
        shown.out.contains("<<<<<<<") && shown.err.contains("--take-remote pdf:"),
        "{shown:?}"
    );
    user.run(&["update", "--keep-local", "pdf:other.md"])
        .refused("no_conflict", "pdf/other.md");
    user.run(&["update", "--keep-local", "mail"]);
    // The first decision is kept, the second one ends it.
    let half = user.run(&["update", "--take-remote", "pdf:SKILL.md"]);
    assert_eq!(half.code, 1);
    assert_eq!(
        half.json()["conflicts"][0]["files"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    nothing_changed();
    user.run(&["update", "--keep-local", "pdf:notes.md"]).ok();
    assert_eq!(
        user.cat(&home, "skill://pdf/SKILL.md"),
        document("pdf", &theirs)
    );
    assert_eq!(user.cat(&home, "skill://pdf/notes.md"), "my note\n");
    assert!(user.cat(&home, "skill://mail/SKILL.md").contains("Two."));
    user.run(&["update", "--keep-local", "pdf"])
        .refused("no_conflict", "no update waits");
}

#[test]
fn decisions_hold_for_the_states_they_were_made_for() {
    let mine = LINES.replace("three", "mine");
    let theirs = LINES.replace("three", "theirs");
    let (_repository, user) = edited_skill(&mine, &theirs);
    let home = user.path("home");
    assert_eq!(user.run(&["update"]).code, 1);
    // The user goes on editing, so the decision would be about something else.
    write_file(
        &user.path("edit/pdf/SKILL.md"),
        document("pdf", &LINES.replace("three", "again")),
    );
    user.run(&["add", "edit/pdf"]).ok();
    assert_eq!(user.run(&["update"]).code, 1);
    user.run(&["update", "--abort"]).ok();
    user.run(&["update", "--keep-local", "pdf"])
        .refused("no_conflict", "no update waits");
    assert_eq!(user.run(&["update", "--dry-run"]).code, 1);
    assert_eq!(user.run(&["update"]).code, 1);
    user.run(&["update", "--keep-local", "pdf"]).ok();
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("again"));
}

#[test]
fn t24_a_tag_that_moved_is_refused() {
    let repository = Repository::with_skills(&["pdf"]);
    repository.git(&["tag", "v1.2"]);
    let user = User::new();
    let source = format!("{}#v1.2", repository.file_url());
    user.run(&["add", &source]).ok();
    repository.write("skills/pdf/SKILL.md", document("pdf", "Evil.\n"));
    repository.commit("evil");
    repository.git(&["tag", "--force", "v1.2"]);
    let report = user.run(&["update"]);
    assert_eq!(report.code, 1);
    assert_eq!(report.json()["failed"][0]["code"], "moved_version");
    let home = user.path("home");
    assert!(!user.cat(&home, "skill://pdf/SKILL.md").contains("Evil"));
    // What is pinned is still there, and is what is installed elsewhere.
    fs::remove_dir_all(user.account().join("cache")).unwrap();
    user.run(&["remove", "pdf", "--purge"]).ok();
    user.run(&["add", &source, "--dry-run"]).ok();
    user.run(&["add", &source]).ok();
    user.run(&["update", "--allow-moved"]).ok();
    assert!(user.cat(&home, "skill://pdf/SKILL.md").contains("Evil"));
}
