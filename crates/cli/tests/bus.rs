//! Hub and worker as processes: killed, restarted, and on standby for each other.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod process;

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use iii_sdk::{InitOptions, RegisterFunction, register_worker};
use process::{
    TestProcess, WAIT, cli_command, skills_binary, start_server, start_worker, subscribe_to_changes,
};
use repertoire_serve::iii::bus_client::BusClient;
use serde_json::{Value, json};
use tokio::sync::mpsc;

fn run_with_bus(home: &Path, url: &str, args: &[&str]) -> Output {
    cli_command(home)
        .args(args)
        .env("III_URL", url)
        .output()
        .unwrap()
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn call_function(client: &BusClient, function: &str, payload: Value) -> Value {
    let answer = client.call_json(function, &payload.to_string(), WAIT).await;
    serde_json::from_str(&answer.unwrap()).unwrap()
}

#[test]
fn join_without_an_address_takes_that_of_the_hub() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_bus, url) = process::start_server(one.path(), &["--hub", "0", "--bare-hub"]);
    let place = url.trim_start_matches("ws://");
    let (_joined, joined) = process::start_server(two.path(), &["--join", "--hub", place]);
    assert_eq!(joined, url);
}

#[test]
fn acknowledged_registrations_survive_a_kill() {
    let home = tempfile::tempdir().unwrap();
    on_runtime(async {
        for round in 0..200 {
            let (hub, url) = start_server(home.path(), &["--hub", "0", "--quiet"]);
            let client = BusClient::connect(&url, None).await.unwrap();
            if round > 0 {
                let uri = json!({"uri": format!("iii://round-{}", round - 1)});
                let read = call_function(&client, "skills::resources-read", uri).await;
                let kept = format!("# Round {}", round - 1);
                assert_eq!(read["contents"][0]["text"], kept);
            }
            let skill =
                json!({"id": format!("round-{round}"), "skill": format!("# Round {round}")});
            call_function(&client, "skills::register", skill).await;
            // Right after the acknowledgement.
            hub.send_signal("-KILL");
        }
    });
}

#[test]
fn a_standby_takes_over_and_subscribers_stay_notified() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = start_server(home.path(), &["--hub", "0", "--bare-hub"]);
    let register = |id: &str| {
        let payload = json!({"id": id, "skill": format!("# {id}")}).to_string();
        run_with_bus(
            home.path(),
            &url,
            &["bus", "call", "skills::register", &payload],
        )
    };
    on_runtime(async {
        let mut before = subscribe_to_changes(&url, "f::before");
        let first = start_worker(&url, home.path());
        first.wait_for_stderr("serving");
        let second = start_worker(&url, home.path());
        second.wait_for_stderr("standing by");
        assert!(register("one").status.success());
        before.wait_for_change("one").await;
        let killed = Instant::now();
        first.send_signal("-KILL");
        let mut during = subscribe_to_changes(&url, "f::during");
        while !register("two").status.success() {
            assert!(
                killed.elapsed() < Duration::from_secs(5),
                "the standby did not take over"
            );
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
        second.wait_for_stderr("serving");
        // Subscribers of the killed worker are notified of a registration at the new one.
        before.wait_for_change("two").await;
        let mut after = subscribe_to_changes(&url, "f::after");
        // Earlier registrations are still listed, and the state still sends notifications.
        let listed = run_with_bus(
            home.path(),
            &url,
            &["bus", "call", "skills::list", "--json"],
        );
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["skills"][0]["id"], "one");
        let start = Instant::now();
        loop {
            // A subscription takes a moment to register; from then on it gets every change.
            assert!(register("three").status.success());
            let heard =
                tokio::time::timeout(Duration::from_secs(1), after.wait_for_change("three")).await;
            if heard.is_ok() {
                break;
            }
            assert!(start.elapsed() < WAIT);
        }
        for follower in [&mut before, &mut during, &mut after] {
            assert!(register("four").status.success());
            follower.wait_for_change("four").await;
        }
        // A worker that is terminated unregisters its functions.
        second.send_signal("-TERM");
        let start = Instant::now();
        loop {
            let functions = run_with_bus(home.path(), &url, &["bus", "functions", "--json"]);
            if !to_text(&functions.stdout).contains("skills::register") {
                break;
            }
            assert!(start.elapsed() < WAIT);
        }
        for follower in [before, during, after] {
            follower.client.shutdown_async().await;
        }
    });
}

#[test]
fn a_worker_waits_for_its_bus_and_reconnects() {
    let home = tempfile::tempdir().unwrap();
    let (hub, url) = start_server(home.path(), &["--hub", "0", "--bare-hub"]);
    let port = url.rsplit(':').next().unwrap().to_owned();
    drop(hub);
    let early = start_worker(&url, home.path());
    early.wait_for_stderr("waiting for the bus");
    for _ in 0..2 {
        let (_hub, _) = start_server(home.path(), &["--hub", &port, "--bare-hub"]);
        let start = Instant::now();
        loop {
            let payload = r#"{"id": "back", "skill": "back again"}"#;
            let called = run_with_bus(
                home.path(),
                &url,
                &["bus", "call", "skills::register", payload],
            );
            if called.status.success() {
                break;
            }
            assert!(start.elapsed() < WAIT, "{}", early.stderr.lock().unwrap());
        }
    }
}

#[test]
fn worker_file_globs_are_relative_to_the_original_config() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = start_server(home.path(), &["--hub", "0", "--bare-hub"]);
    let project = home.path().join("project");
    fs::create_dir_all(project.join("docs")).unwrap();
    fs::write(project.join("docs/guide.md"), "# Guide\n\nTells.\n").unwrap();
    fs::write(project.join("docs/Bad Name.md"), "# Bad\n").unwrap();
    // The engine passes a copy of the config and the path of the original.
    let copy = home.path().join("copy.yaml");
    fs::write(
        &copy,
        "skills:\n  - docs/*.md\nprompts:\n  - docs/[\nunknown: 1\n",
    )
    .unwrap();
    let child = Command::new(skills_binary())
        .arg("--config")
        .arg(&copy)
        .env("III_ENGINE_URL", &url)
        .env_remove("III_URL")
        .env("III_CONFIG_PATH", project.join("config.yaml"))
        .env("III_WORKER_NAME", "skills-of-mine")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let running = TestProcess::from_child(child);
    running.wait_for_stderr("serving");
    let said = running.stderr.lock().unwrap().clone();
    for words in [
        "loaded skill id=\"guide\"",
        "docs/guide.md",
        "Bad Name.md",
        "1 skills, 0 prompts, 1 skipped",
        "going on without it",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let read = run_with_bus(
        home.path(),
        &url,
        &["bus", "call", "skill::fetch", r#"{"uri": "iii://guide"}"#],
    );
    assert_eq!(
        to_text(&read.stdout),
        "# iii://guide\n\n# Guide\n\nTells.\n\n"
    );
    let functions = run_with_bus(home.path(), &url, &["bus", "functions"]);
    assert!(to_text(&functions.stdout).contains("skills-of-mine"));
}

#[test]
fn a_port_in_use_is_reported_with_the_alternatives() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = start_server(home.path(), &["--hub", "0"]);
    let port = url.rsplit(':').next().unwrap();
    let refused = run_with_bus(home.path(), &url, &["serve", "--port", "0", "--hub", port]);
    assert_eq!(refused.status.code(), Some(2));
    let words = to_text(&refused.stderr);
    for way in [
        "iii engine or another hub",
        "--join",
        "--hub PORT",
        "--hub off",
    ] {
        assert!(words.contains(way), "{words}");
    }
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let refused = run_with_bus(home.path(), &url, &["serve", "--port", "0", "--hub", &port]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(!to_text(&refused.stderr).contains("--join"));
    for wrong in ["nowhere", "70000", "localhost:1"] {
        let refused = run_with_bus(home.path(), &url, &["serve", "--hub", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn call_and_functions_commands_work_on_a_hub() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = start_server(home.path(), &["--hub", "0"]);
    let call = |args: &[&str]| run_with_bus(home.path(), &url, &[&["bus", "call"], args].concat());
    let skill = r##"{"id": "demo", "skill": "# Demo"}"##;
    assert!(call(&["skills::register", skill]).status.success());
    let fetched = call(&["skill::fetch", r#"{"uri": "iii://demo"}"#]);
    assert_eq!(to_text(&fetched.stdout), "# iii://demo\n\n# Demo\n");
    for (args, code, words) in [
        (&["absent::run"][..], 3, "not found"),
        (&["skills::register", "{}"], 4, "missing field"),
        (&["skills::register", "{bad"], 2, "not JSON"),
        (&["skills::list", "{}", "--timeout", "soon"], 2, "30s"),
        (
            &["skills::list", "--url", "ws://127.0.0.1:1"],
            7,
            "no bus answers",
        ),
    ] {
        let called = call(args);
        assert_eq!(called.status.code(), Some(code), "{args:?}: {called:?}");
        assert!(to_text(&called.stderr).contains(words), "{called:?}");
    }
    let functions = run_with_bus(home.path(), &url, &["bus", "functions"]);
    assert_eq!(to_text(&functions.stdout).lines().count(), 13);
    let all = run_with_bus(
        home.path(),
        &url,
        &["bus", "functions", "--internal", "--json"],
    );
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert!(all["functions"].as_array().unwrap().len() > 20);
    let mut child = cli_command(home.path())
        .args(["bus", "call", "state::set", "-"])
        .env("III_URL", &url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let payload = r#"{"scope": "s", "key": "k", "value": 5}"#;
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), payload.as_bytes()).unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(out.contains("\"new_value\": 5"), "{out}");
}

#[test]
fn t39_a_hub_that_requires_tokens_refuses_its_own_user_without_one() {
    let home = tempfile::tempdir().unwrap();
    let made = cli_command(home.path())
        .args(["token", "create", "worker", "--write"])
        .output();
    let token = to_text(&made.unwrap().stdout).trim().to_owned();
    let (_hub, url) = start_server(home.path(), &["--hub", "0", "--require-token"]);
    let other = tempfile::tempdir().unwrap();
    let refused = run_with_bus(other.path(), &url, &["bus", "call", "skills::list"]);
    assert_eq!(refused.status.code(), Some(7));
    assert!(to_text(&refused.stderr).contains("401"), "{refused:?}");
    // The commands of the user read the user's own token, which no other user can.
    let file = home.path().join("local-token");
    let bits = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).unwrap());
    assert_eq!(bits & 0o777, 0o600);
    let listed = run_with_bus(home.path(), &url, &["bus", "call", "skills::list"]);
    assert!(listed.status.success(), "{listed:?}");
    let list = |home: &Path| {
        let mut command = cli_command(home);
        command
            .args(["bus", "call", "skills::list"])
            .env("III_URL", &url)
            .env("III_TOKEN", &token);
        command.output().unwrap()
    };
    assert!(list(home.path()).status.success());
    // Revoking a token closes its connections.
    on_runtime(async {
        let client = BusClient::connect(&url, Some(&token)).await.unwrap();
        call_function(&client, "skills::list", json!({})).await;
        let revoked = cli_command(home.path())
            .args(["token", "revoke", "worker"])
            .status();
        assert!(revoked.unwrap().success());
        let start = Instant::now();
        while client.call_json("skills::list", "{}", WAIT).await.is_ok() {
            assert!(start.elapsed() < WAIT, "a revoked token is still accepted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_hub_finishes_accepted_calls_before_it_stops() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, url) = start_server(home.path(), &["--hub", "0", "--tool", "slow::*"]);
    server.wait_for_stderr("workers connect");
    let mcp = server.stderr.lock().unwrap().clone();
    let address = mcp
        .split("http://")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    let asked = on_runtime(async {
        let client = register_worker(&url, InitOptions::default());
        let (begun, mut begins) = mpsc::unbounded_channel();
        let nap = RegisterFunction::new_async(move |_: Value| {
            let begun = begun.clone();
            async move {
                let _ = begun.send(());
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, iii_sdk::Error>(json!("rested"))
            }
        });
        client.register_function("slow::nap", nap);
        let asking = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            loop {
                let answer = call_tool(&address, "slow__nap");
                if !answer.contains("not found") || start.elapsed() > WAIT {
                    return answer;
                }
            }
        });
        tokio::time::timeout(WAIT, begins.recv()).await.unwrap();
        server.send_signal("-INT");
        let answer = asking.await.unwrap();
        client.shutdown_async().await;
        answer
    });
    assert!(asked.contains("rested"), "{asked}");
    let start = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < WAIT, "the server does not exit");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Calls a tool over HTTP and returns the raw response.
fn call_tool(address: &str, name: &str) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    });
    let params = json!({"name": name, "arguments": {}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let body = body.to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: \
         tools/call\r\nMcp-Name: {name}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn repertoire_worker_prints_the_same_manifest() {
    let home = tempfile::tempdir().unwrap();
    let manifest = |mut command: Command| {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        serde_json::from_slice::<Value>(&out.stdout).unwrap()
    };
    let mut ours = cli_command(home.path());
    ours.args(["worker", "--manifest"]);
    let mut skills = Command::new(skills_binary());
    skills.arg("--manifest");
    assert_eq!(manifest(ours), manifest(skills));
}

#[test]
fn lint_fix_rewrites_old_links_in_folders_and_stores() {
    let home = tempfile::tempdir().unwrap();
    let old = "See [more](iii://demo/demo::guide).\n";
    let new = "See [more](iii://fn/demo/guide).\n";
    let front = |name: &str| {
        format!("---\nname: {name}\ndescription: Shows it. Use when asked.\n---\n# {name}\n\n")
    };
    let folder = home.path().join("desk/in-folder");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("SKILL.md"), front("in-folder") + old).unwrap();
    let run = |args: &[&str]| {
        let done = cli_command(home.path()).args(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        to_text(&done.stdout)
    };
    let found = run(&["lint", "./desk"]);
    assert!(found.contains("old-function-link"), "{found}");
    run(&["lint", "--fix", "./desk"]);
    let fixed = fs::read_to_string(folder.join("SKILL.md")).unwrap();
    assert_eq!(fixed, front("in-folder") + new);
    assert!(!run(&["lint", "./desk"]).contains("old-function-link"));
    // In a store, with its history, and registered at run time.
    fs::write(folder.join("SKILL.md"), front("in-folder") + old).unwrap();
    run(&["add", "./desk/in-folder"]);
    let (_hub, url) = start_server(home.path(), &["--hub", "0"]);
    let skill = json!({"id": "registered", "skill": old}).to_string();
    assert!(
        self::run_with_bus(
            home.path(),
            &url,
            &["bus", "call", "skills::register", &skill]
        )
        .status
        .success()
    );
    run(&["lint", "--fix"]);
    assert!(run(&["cat", "skill://in-folder/SKILL.md"]).ends_with(new));
    assert_eq!(run(&["cat", "iii://registered"]), new);
}
