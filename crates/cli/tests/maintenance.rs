//! `gc`, `backup`, `restore`, and what takes space.
#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers of tests")]

mod common;
mod wire;

use std::fs;

use common::{TestWorkspace, wait_for};
use serde_json::json;
use wire::HttpServer;

fn add_skill(place: &TestWorkspace, name: &str, body: &str) {
    place.write_skill(&format!("sources/{name}"), body);
    place.run_ok(&["add", &format!("sources/{name}"), "--scope", "account"]);
}

#[test]
fn t47_superseded_revisions_go_and_current_skills_stay() {
    let place = TestWorkspace::new();
    for n in 0..30 {
        add_skill(&place, "notes", &format!("Version {n}."));
    }
    // Without --yes it only reports.
    let plan = place.run_json(&["gc", "--history", "1ms", "--json"]);
    assert_eq!(plan["deleted"], false);
    let shown = place.run(&["gc", "--history", "1ms"]);
    assert!(
        shown.stdout().contains("10 superseded revisions"),
        "{}",
        shown.stdout()
    );
    assert!(shown.stderr().contains("--yes"), "{}", shown.stderr());
    let revisions = || {
        let history = place.run_json(&["history", "notes", "--json"]);
        history["revisions"].as_array().unwrap().len()
    };
    assert_eq!(revisions(), 30);
    place.run_ok(&["gc", "--history", "1ms", "--yes"]);
    assert_eq!(revisions(), 20);
    assert!(
        place
            .run_ok(&["cat", "skill://notes/SKILL.md"])
            .contains("Version 29.")
    );
    let none = place.run(&["gc", "--history", "1ms", "--yes"]);
    assert!(
        none.stderr().contains("nothing to delete"),
        "{}",
        none.stderr()
    );
    // Sizes are shown.
    let doctor = place.run(&["doctor"]).stdout();
    assert!(doctor.contains("account store:"), "{doctor}");
    assert!(doctor.contains("revisions: "), "{doctor}");
}

#[test]
fn a_backup_is_made_and_restored_while_a_server_runs() {
    let place = TestWorkspace::new();
    add_skill(&place, "first", "One.");
    let server = HttpServer::start(&place.home_dir(), &[]);
    let listed = |name: &str| {
        let all = server.send_request("skills/list", json!({})).rpc_message();
        all.to_string().contains(name)
    };
    place.run_ok(&["backup", "copy.db"]);
    assert_eq!(place.run(&["backup", "copy.db"]).exit_code(), 4);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(place.work_dir().join("copy.db"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    add_skill(&place, "second", "Two.");
    place.run_ok(&["remove", "first"]);
    wait_for("the change", || listed("second") && !listed("first"));
    let refused = place.run(&["restore", "copy.db"]);
    assert_eq!(refused.exit_code(), 2, "{}", refused.stderr());
    let restored = place.run(&["restore", "copy.db", "--yes"]);
    assert_eq!(restored.exit_code(), 0, "{}", restored.stderr());
    assert!(
        restored.stderr().contains("before-restore"),
        "{}",
        restored.stderr()
    );
    wait_for("the server to notice", || {
        listed("first") && !listed("second")
    });
    place.write_file("odd.db", "not a store");
    let odd = place.run(&["restore", "odd.db", "--yes"]);
    assert_eq!(odd.exit_code(), 5, "{}", odd.stderr());
    assert!(place.run_ok(&["list"]).contains("first"));
}

#[test]
fn a_damaged_store_is_replaced_by_a_backup_and_kept() {
    let place = TestWorkspace::new();
    add_skill(&place, "first", "One.");
    place.run_ok(&["backup", "copy.db"]);
    let store = place.home_dir().join("agents.db");
    fs::write(&store, "damaged").unwrap();
    place.write_file("odd.db", "not a store");
    for args in [
        ["restore", "odd.db", "--yes"],
        ["restore", "copy.db", "--json"],
    ] {
        assert_eq!(place.run(&args).exit_code(), 5);
        assert_eq!(fs::read_to_string(&store).unwrap(), "damaged");
    }
    let restored = place.run(&["restore", "copy.db", "--yes"]);
    assert_eq!(restored.exit_code(), 0, "{}", restored.stderr());
    assert!(place.run_ok(&["list"]).contains("first"));
    let kept = fs::read_dir(place.home_dir()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().contains(".damaged-")
    });
    assert_eq!(kept.count(), 1);
    // A store that has nothing but what comes with the program is replaced without a question of
    // its own.
    fs::remove_file(&store).unwrap();
    place.run_ok(&["list"]);
    place.run_ok(&["restore", "copy.db", "--yes"]);
    assert!(place.run_ok(&["list"]).contains("first"));
}

#[test]
fn t47_a_long_journal_does_not_stay_after_the_server_ends() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.home_dir()).unwrap();
    let (server, hub) = HttpServer::start_with_hub(&place.home_dir(), &[]);
    let url = format!("ws://127.0.0.1:{hub}");
    let wal = place.home_dir().join("agents.db-wal");
    let body = format!("# Large\n\n{}\n", "x".repeat(200_000));
    for n in 0..40 {
        let payload = json!({"id": format!("large-{n}"), "skill": body}).to_string();
        place.write_file("payload.json", payload);
        let mut call = place.command(&["bus", "call", "skills::register", "-", "--url", &url]);
        let input = fs::File::open(place.work_dir().join("payload.json")).unwrap();
        let done = call.stdin(input).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let during = fs::metadata(&wal).unwrap().len();
    assert!(during < 16 * 1024 * 1024, "{during} bytes while it runs");
    server.end_orderly();
    let left = fs::metadata(&wal).map_or(0, |m| m.len());
    assert_eq!(left, 0, "the journal is empty or gone after the end");
}
