//! What a terminal shows of hostile text: of skills, models, traces and servers (T8).
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod provider_home;
mod wire;

use std::{fs, io::Read as _, path::Path, process::Command, sync::Arc};

use provider_home::{FakeProvider, chat_reply, home_with_provider, parse_stdout, run_cli};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use wire::{ScriptedServer, json_response};

/// Escape sequences, a bell, text that runs backwards, and a carriage return.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{202e}\r\u{9b}31m";

/// Runs a command on a terminal and returns what it shows, stdout and stderr.
fn screen_of(home: &Path, args: &[&str]) -> String {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let open = || {
        let mut options = fs::File::options();
        options.read(true).write(true);
        options.open(name.to_str().unwrap()).unwrap()
    };
    let mut reading = fs::File::from(screen);
    let reader = std::thread::spawn(move || {
        let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = reading.read(&mut chunk) {
            shown.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8_lossy(&shown).into_owned()
    });
    let mut child = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(args)
        .env("REPERTOIRE_HOME", home)
        .env("PLANTED_API_KEY", provider_home::KEY)
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env("NO_COLOR", "1")
        .env("TERM", "dumb")
        .env_remove("REPERTOIRE_MODEL")
        .current_dir(home)
        .stdin(std::process::Stdio::null())
        .stdout(open())
        .stderr(open())
        .spawn()
        .unwrap();
    let ended = child.wait().unwrap();
    let shown = reader.join().unwrap();
    assert!(
        ended.code().is_some_and(|code| code < 100),
        "{args:?}: {shown}"
    );
    shown
}

fn assert_harmless(args: &[&str], shown: &str) {
    // A terminal adds a carriage return before each line feed.
    let shown = shown.replace("\r\n", "\n");
    let bad = ['\u{1b}', '\u{7}', '\u{202e}', '\r', '\u{9b}'];
    assert!(!shown.contains(bad), "{args:?}: {shown:?}");
}

#[test]
fn t8_hostile_text_never_reaches_a_terminal_in_any_command() {
    let reply = format!("Done {HOSTILE} really.");
    let replies = (0..6).map(|_| chat_reply(&reply)).collect();
    let fake = FakeProvider::start(replies);
    let home = home_with_provider(&fake);
    let package = json!({
        "name": "evil", "description": format!("Sorts invoices {HOSTILE}. Use when invoices are sorted."),
        "tags": [format!("tag{HOSTILE}")],
        "artifacts": [{"kind": "prompt_template", "name": "Sort",
                       "content": format!("Sort {HOSTILE} this: {{{{ user_input }}}}")}],
    });
    fs::write(home.path().join("evil.json"), package.to_string()).unwrap();
    let added = run_cli(home.path(), &["package", "import", "evil.json"]);
    assert!(added.status.success(), "{added:?}");
    let description = format!("Reads files {HOSTILE}. Use when files are read.");
    let server = ScriptedServer::start(Arc::new(move |_, message| {
        let answer = match message["method"].as_str() {
            Some("server/discover") => json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "serverInfo": {"name": format!("server{HOSTILE}"), "version": HOSTILE},
                "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}},
            }),
            Some("skills/list") => json!({"skills": [
                {"uri": "skill://reader/SKILL.md", "resources": [],
                 "frontmatter": {"name": "reader", "description": description}},
                {"uri": format!("skill://odd{HOSTILE}/SKILL.md"), "resources": [],
                 "frontmatter": {"name": format!("odd{HOSTILE}"), "description": description}},
            ]}),
            _ => json!({}),
        };
        json_response(message, &answer)
    }));
    for args in [
        &["add", "mcp", "acme", server.url.as_str()][..],
        &["remote", "list"],
        &["remote", "refresh"],
        &["list", "--all"],
        &["show", "evil"],
        &["search", "sort invoices"],
        &["search", "read files"],
        &["search", "sort invoices", "--explain"],
        &["run", "evil", "--dry-run", "-m", "x"],
        &["run", "evil", "-m", "x"],
        &["ask", "sort my invoices"],
        &["artifact", "list", "evil"],
        &["trace", "list"],
        &["doctor"],
    ] {
        let shown = screen_of(home.path(), args);
        assert!(!shown.is_empty(), "{args:?}");
        assert_harmless(args, &shown);
    }
    let traces = parse_stdout(&run_cli(home.path(), &["trace", "list", "--json"]));
    let traces = traces["traces"]
        .as_array()
        .unwrap_or_else(|| panic!("{traces}"))
        .clone();
    assert!(!traces.is_empty());
    for trace in &traces {
        let id = trace["id"].as_str().unwrap();
        let args = ["trace", "show", id];
        let shown = screen_of(home.path(), &args);
        assert!(shown.contains("evil"), "{shown}");
        assert_harmless(&args, &shown);
    }
}
