//! Processes that are killed: the next run finishes, and nothing is half there.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{
    places::Repository,
    user::{User, document},
};

/// How often a process is killed, unless `cargo xtask crash` says how often.
const ROUNDS: u32 = 24;

fn rounds() -> u32 {
    let asked = std::env::var("REPERTOIRE_KILL_ROUNDS").ok();
    asked.and_then(|asked| asked.parse().ok()).unwrap_or(ROUNDS)
}

/// Starts a command and kills it after a while; returns whether it had ended by itself.
fn kill_after(user: &User, args: &[&str], wait: Duration) -> bool {
    let mut child = user
        .command(&user.path("home"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while begun.elapsed() < wait {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::yield_now();
    }
    // It was started here, so it is ended here.
    let _ = child.kill();
    child.wait().unwrap();
    false
}

#[test]
fn t35_a_killed_installation_is_finished_by_the_next_run() {
    let names: Vec<String> = (0..20).map(|n| format!("skill-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let repository = Repository::with_skills(&names);
    let url = repository.file_url();
    // How long it takes, to spread the kills over it.
    let whole = {
        let user = User::new();
        let begun = Instant::now();
        user.run(&["add", &url, "--all"]).ok();
        begun.elapsed()
    };
    let (mut killed, mut done) = (0, 0);
    let rounds = rounds();
    for round in 0..rounds {
        let user = User::new();
        let home = user.path("home");
        let wait = whole * round / rounds;
        if kill_after(&user, &["add", &url, "--all"], wait) {
            done += 1;
        } else {
            killed += 1;
        }
        // Whatever was there: both files are whole, and either everything is stored or nothing.
        let toml = user.account().join("repertoire.toml");
        let stored = user.skills(&home).len();
        assert!(
            stored == 0 || stored == 20,
            "round {round}: {stored} skills"
        );
        if toml.exists() {
            user.run(&["install"]).ok();
            user.run(&["install", "--frozen"]).ok();
        } else {
            assert_eq!(stored, 0, "round {round}: stored and not recorded");
            user.run(&["add", &url, "--all"]).ok();
        }
        assert_eq!(user.skills(&home).len(), 20);
        assert_eq!(
            user.run(&["verify"]).ok().json()["ok"],
            true,
            "round {round}"
        );
        // What a killed git left behind is gone; a folder without a sign of life may be a new one.
        let scratch = user.account().join("cache/fetch");
        let left = scratch.read_dir().into_iter().flatten().flatten();
        for folder in left {
            let mut inside = folder.path().read_dir().unwrap();
            assert!(inside.next().is_none(), "{folder:?}");
        }
    }
    assert!(
        killed >= rounds / 2,
        "{killed} were killed, {done} had ended"
    );
}

#[test]
fn t35_a_killed_update_is_old_or_new() {
    let repository = Repository::with_skills(&["pdf", "mail"]);
    let url = repository.file_url();
    let user = User::new();
    let home = user.path("home");
    user.run(&["add", &url, "--all"]).ok();
    let served =
        || ["pdf", "mail"].map(|name| user.cat(&home, &format!("skill://{name}/SKILL.md")));
    let mut whole = Duration::from_millis(120);
    let rounds = rounds();
    for round in 0..rounds {
        let before = served();
        let body = format!("# Round {round}\n");
        let after = ["pdf", "mail"].map(|name| document(name, &body));
        for (name, text) in ["pdf", "mail"].iter().zip(&after) {
            repository.write(&format!("skills/{name}/SKILL.md"), text);
        }
        repository.commit("next");
        kill_after(&user, &["update"], whole * round / rounds);
        let now = served();
        assert!(now == before || now == after, "round {round}: {now:?}");
        let begun = Instant::now();
        user.run(&["update"]).ok();
        whole = begun.elapsed();
        assert_eq!(served(), after);
        let lock = fs::read_to_string(user.account().join("repertoire.lock")).unwrap();
        assert!(lock.contains("id = \"pdf\"") && lock.contains("id = \"mail\""));
        user.run(&["verify"]).ok();
    }
}
