//! The hub and the worker as processes: killed, restarted, standing by for each other.

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
use process::{Running, WAIT, command, follow, serve, worker};
use repertoire_serve::iii::client::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;

fn run(home: &Path, url: &str, args: &[&str]) -> Output {
    command(home)
        .args(args)
        .env("III_URL", url)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

async fn call(client: &Client, function: &str, payload: Value) -> Value {
    let answer = client.ask(function, &payload.to_string(), WAIT).await;
    serde_json::from_str(&answer.unwrap()).unwrap()
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let home = tempfile::tempdir().unwrap();
    on_runtime(async {
        for round in 0..200 {
            let (hub, url) = serve(home.path(), &["--hub", "0", "--quiet"]);
            let client = Client::connect(&url, None).await.unwrap();
            if round > 0 {
                let uri = json!({"uri": format!("iii://round-{}", round - 1)});
                let read = call(&client, "skills::resources-read", uri).await;
                let kept = format!("# Round {}", round - 1);
                assert_eq!(read["contents"][0]["text"], kept);
            }
            let skill =
                json!({"id": format!("round-{round}"), "skill": format!("# Round {round}")});
            call(&client, "skills::register", skill).await;
            // Right after the acknowledgement.
            hub.signal("-KILL");
        }
    });
}

#[test]
fn a_standby_takes_over_and_followers_go_on_hearing() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = serve(home.path(), &["--hub", "0", "--bare-hub"]);
    let register = |id: &str| {
        let payload = json!({"id": id, "skill": format!("# {id}")}).to_string();
        run(home.path(), &url, &["call", "skills::register", &payload])
    };
    on_runtime(async {
        let mut before = follow(&url, "f::before");
        let first = worker(&url, home.path());
        first.says("serving");
        let second = worker(&url, home.path());
        second.says("standing by");
        assert!(register("one").status.success());
        before.hears("one").await;
        let killed = Instant::now();
        first.signal("-KILL");
        let mut during = follow(&url, "f::during");
        while !register("two").status.success() {
            assert!(
                killed.elapsed() < Duration::from_secs(5),
                "nobody took over"
            );
        }
        assert!(killed.elapsed() < Duration::from_secs(5));
        second.says("serving");
        // What was acknowledged by the new one was told to whoever followed the old one.
        before.hears("two").await;
        let mut after = follow(&url, "f::after");
        // What was registered before is there, and the state still tells.
        let listed = run(home.path(), &url, &["call", "skills::list", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        assert_eq!(listed["skills"][0]["id"], "one");
        let start = Instant::now();
        loop {
            // Followers may need a moment to be known; from then on they hear everything.
            assert!(register("three").status.success());
            let heard = tokio::time::timeout(Duration::from_secs(1), after.hears("three")).await;
            if heard.is_ok() {
                break;
            }
            assert!(start.elapsed() < WAIT);
        }
        for follower in [&mut before, &mut during, &mut after] {
            assert!(register("four").status.success());
            follower.hears("four").await;
        }
        // Told to end, a worker leaves nothing behind.
        second.signal("-TERM");
        let start = Instant::now();
        loop {
            let functions = run(home.path(), &url, &["functions", "--json"]);
            if !text(&functions.stdout).contains("skills::register") {
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
fn a_worker_waits_for_its_bus_and_comes_back_to_it() {
    let home = tempfile::tempdir().unwrap();
    let (hub, url) = serve(home.path(), &["--hub", "0", "--bare-hub"]);
    let port = url.rsplit(':').next().unwrap().to_owned();
    drop(hub);
    let early = worker(&url, home.path());
    early.says("waiting for the bus");
    for _ in 0..2 {
        let (_hub, _) = serve(home.path(), &["--hub", &port, "--bare-hub"]);
        let start = Instant::now();
        loop {
            let payload = r#"{"id": "back", "skill": "back again"}"#;
            let called = run(home.path(), &url, &["call", "skills::register", payload]);
            if called.status.success() {
                break;
            }
            assert!(start.elapsed() < WAIT, "{}", early.said.lock().unwrap());
        }
    }
}

#[test]
fn files_of_a_worker_start_where_its_settings_are() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = serve(home.path(), &["--hub", "0", "--bare-hub"]);
    let project = home.path().join("project");
    fs::create_dir_all(project.join("docs")).unwrap();
    fs::write(project.join("docs/guide.md"), "# Guide\n\nTells.\n").unwrap();
    fs::write(project.join("docs/Bad Name.md"), "# Bad\n").unwrap();
    // The engine hands over a copy, and says where the original is.
    let copy = home.path().join("copy.yaml");
    fs::write(
        &copy,
        "skills:\n  - docs/*.md\nprompts:\n  - docs/[\nunknown: 1\n",
    )
    .unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_skills"))
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
    let running = Running::over(child);
    running.says("serving");
    let said = running.said.lock().unwrap().clone();
    for words in [
        "loaded skill id=\"guide\"",
        "docs/guide.md",
        "Bad Name.md",
        "1 skills, 0 prompts, 1 skipped",
        "going on without it",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let read = run(
        home.path(),
        &url,
        &["call", "skill::fetch", r#"{"uri": "iii://guide"}"#],
    );
    assert_eq!(text(&read.stdout), "# iii://guide\n\n# Guide\n\nTells.\n\n");
    let functions = run(home.path(), &url, &["functions"]);
    assert!(text(&functions.stdout).contains("skills-of-mine"));
}

#[test]
fn a_port_that_is_taken_is_told_with_the_ways_out() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = serve(home.path(), &["--hub", "0"]);
    let port = url.rsplit(':').next().unwrap();
    let refused = run(home.path(), &url, &["serve", "--port", "0", "--hub", port]);
    assert_eq!(refused.status.code(), Some(2));
    let words = text(&refused.stderr);
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
    let refused = run(home.path(), &url, &["serve", "--port", "0", "--hub", &port]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(!text(&refused.stderr).contains("--join"));
    for wrong in ["nowhere", "70000", "localhost:1"] {
        let refused = run(home.path(), &url, &["serve", "--hub", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
    }
}

#[test]
fn people_can_call_and_look() {
    let home = tempfile::tempdir().unwrap();
    let (_hub, url) = serve(home.path(), &["--hub", "0"]);
    let call = |args: &[&str]| run(home.path(), &url, &[&["call"], args].concat());
    let skill = r##"{"id": "demo", "skill": "# Demo"}"##;
    assert!(call(&["skills::register", skill]).status.success());
    let fetched = call(&["skill::fetch", r#"{"uri": "iii://demo"}"#]);
    assert_eq!(text(&fetched.stdout), "# iii://demo\n\n# Demo\n");
    for (args, code, words) in [
        (&["nobody::has"][..], 3, "not found"),
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
        assert!(text(&called.stderr).contains(words), "{called:?}");
    }
    let functions = run(home.path(), &url, &["functions"]);
    assert_eq!(text(&functions.stdout).lines().count(), 13);
    let all = run(home.path(), &url, &["functions", "--internal", "--json"]);
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert!(all["functions"].as_array().unwrap().len() > 20);
    let mut child = command(home.path())
        .args(["call", "state::set", "-"])
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
fn a_hub_with_tokens_asks_for_one() {
    let home = tempfile::tempdir().unwrap();
    let made = command(home.path())
        .args(["token", "create", "worker", "--write"])
        .output();
    let token = text(&made.unwrap().stdout).trim().to_owned();
    let (_hub, url) = serve(home.path(), &["--hub", "0"]);
    let refused = run(home.path(), &url, &["call", "skills::list"]);
    assert_eq!(refused.status.code(), Some(7));
    assert!(text(&refused.stderr).contains("401"), "{refused:?}");
    let list = |home: &Path| {
        let mut command = command(home);
        command
            .args(["call", "skills::list"])
            .env("III_URL", &url)
            .env("III_TOKEN", &token);
        command.output().unwrap()
    };
    assert!(list(home.path()).status.success());
    // A connection does not outlive its token.
    on_runtime(async {
        let client = Client::connect(&url, Some(&token)).await.unwrap();
        call(&client, "skills::list", json!({})).await;
        let revoked = command(home.path())
            .args(["token", "revoke", "worker"])
            .status();
        assert!(revoked.unwrap().success());
        let start = Instant::now();
        while client.ask("skills::list", "{}", WAIT).await.is_ok() {
            assert!(start.elapsed() < WAIT, "a revoked token still counts");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_hub_that_is_told_to_end_finishes_what_was_accepted() {
    let home = tempfile::tempdir().unwrap();
    let (mut server, url) = serve(home.path(), &["--hub", "0", "--tool", "slow::*"]);
    server.says("workers connect");
    let mcp = server.said.lock().unwrap().clone();
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
        server.signal("-INT");
        let answer = asking.await.unwrap();
        client.shutdown_async().await;
        answer
    });
    assert!(asked.contains("rested"), "{asked}");
    let start = Instant::now();
    while server.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < WAIT, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Calls a tool over HTTP; what comes back, as it is.
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
fn the_worker_says_what_it_is() {
    let out = Command::new(env!("CARGO_BIN_EXE_skills"))
        .arg("--manifest")
        .output()
        .unwrap();
    let manifest: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(manifest["name"], "skills");
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["default_config"]["scopes"]["skills"], "skills");
    assert!(manifest["supported_targets"].is_array() && manifest["description"].is_string());
    let help = Command::new(env!("CARGO_BIN_EXE_skills"))
        .arg("--help")
        .output()
        .unwrap();
    let help = text(&help.stdout);
    for flag in ["--config", "--url", "--manifest"] {
        assert!(help.contains(flag), "{help}");
    }
}

#[test]
fn old_links_are_rewritten_wherever_a_skill_is() {
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
        let done = command(home.path()).args(args).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        text(&done.stdout)
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
    let (_hub, url) = serve(home.path(), &["--hub", "0"]);
    let skill = json!({"id": "registered", "skill": old}).to_string();
    assert!(
        self::run(home.path(), &url, &["call", "skills::register", &skill])
            .status
            .success()
    );
    run(&["lint", "--fix"]);
    assert!(run(&["cat", "skill://in-folder/SKILL.md"]).ends_with(new));
    assert_eq!(run(&["cat", "iii://registered"]), new);
}
