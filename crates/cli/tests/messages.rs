//! What commands say beside their result: where a skill lives, what is served where, how to go on.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

use common::TestWorkspace;
use repertoire_app::{HOSTS, HostScope};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// A server whose messages are collected; dropping it ends the process.
struct Server {
    child: Child,
    addresses: Value,
}

impl Server {
    fn start(place: &TestWorkspace, args: &[&str]) -> Self {
        let mut child = place
            .command(&[&["serve", "--json"], args].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        Self {
            child,
            addresses: serde_json::from_str(&line).unwrap(),
        }
    }

    /// Waits for a line that begins so; returns everything that was said until then.
    fn wait_for_line(&mut self, start: &str) -> Vec<String> {
        let mut said = Vec::new();
        let errors = BufReader::new(self.child.stderr.as_mut().unwrap());
        for line in errors.lines() {
            said.push(line.unwrap());
            if said.last().unwrap().starts_with(start) {
                return said;
            }
        }
        panic!("{start:?} was not said: {said:?}");
    }

    fn is_healthy(&self) -> bool {
        let url = self.addresses["url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.starts_with("HTTP/1.1 ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn serve_says_its_address_first_and_last_and_sums_up_what_it_skipped() {
    let place = TestWorkspace::new();
    place.write_skill("skills/good", "# Good\n");
    for bad in ["one", "two"] {
        place.write_file(&format!("skills/{bad}/SKILL.md"), "---\nname: [\n");
    }
    let mut server = Server::start(&place, &["skills", "--port", "0", "--hub", "off"]);
    let url = server.addresses["url"].as_str().unwrap().to_owned();
    let said = server.wait_for_line("serving ");
    let first = format!("listening on {url} ");
    assert!(said[0].starts_with(&first), "{said:?}");
    assert!(
        said.last().unwrap().ends_with(&format!(" on {url}")),
        "{said:?}"
    );
    let skipped: Vec<&String> = said
        .iter()
        .filter(|line| line.contains("list --all"))
        .collect();
    assert_eq!(skipped.len(), 1, "one line sums up: {said:?}");
}

#[test]
fn a_second_server_with_a_hub_works_beside_the_first() {
    let (first, second) = (TestWorkspace::new(), TestWorkspace::new());
    let one = Server::start(&first, &[]);
    let two = Server::start(&second, &[]);
    assert_ne!(one.addresses["url"], two.addresses["url"]);
    assert_ne!(one.addresses["hub"], two.addresses["hub"]);
    assert!(two.addresses["hub"].is_string(), "{}", two.addresses);
    assert!(one.is_healthy() && two.is_healthy());
}

#[test]
fn adding_to_a_workspace_says_where_the_skill_lives() {
    let place = TestWorkspace::new();
    place.run_ok(&["init", "--trust"]);
    place.write_skill("sources/notes", "# Notes\n");
    let added = place.run(&["add", "sources/notes"]);
    let said = added.stderr();
    assert!(said.contains("in the workspace store"), "{said}");
    assert!(said.contains("it stays out of git"), "{said}");
    let kept_out = place.work_dir().join(".repertoire/.gitignore");
    let kept_out = std::fs::read_to_string(kept_out).unwrap();
    assert!(kept_out.contains("agents.db"), "{kept_out}");
}

#[test]
fn lint_reports_yaml_that_hosts_refuse_and_text_that_lost_its_encoding() {
    let place = TestWorkspace::new();
    place.write_file(
        "skills/odd/SKILL.md",
        "---\nname: odd\ndescription: &about Does odd things. Use when asked.\n---\n# Odd\n\n\
         It doesn\u{e2}\u{80}\u{99}t matter.\n",
    );
    let found = place.run(&["lint", "skills/odd", "--json"]).stdout();
    for rule in ["yaml-subset", "garbled-text"] {
        assert!(found.contains(rule), "{rule}: {found}");
    }
}

#[test]
fn mcp_typed_by_hand_explains_itself() {
    let place = TestWorkspace::new();
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let typed = std::fs::File::open(name.to_str().unwrap()).unwrap();
    let mut child = place
        .command(&["mcp"])
        .stdin(typed)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("repertoire connect"), "{line}");
}

#[test]
fn the_settings_that_connect_writes_for_each_host() {
    use std::fmt::Write as _;
    let place = TestWorkspace::new();
    let program = env!("CARGO_BIN_EXE_repertoire");
    let mut shown = String::new();
    for host in HOSTS {
        for (scope, flag) in [
            (HostScope::Project, "--project"),
            (HostScope::User, "--user"),
        ] {
            if host.config_file(scope, &place.work_dir()).is_none() {
                continue;
            }
            for more in [&[][..], &["--url", "http://127.0.0.1:7/mcp"]] {
                let args = [&["connect", host.id, flag, "--print"], more].concat();
                let mut command = place.command(&args);
                command.env("HOME", place.home_dir());
                let printed = common::CommandOutput(command.output().unwrap());
                let text = match printed.exit_code() {
                    0 => printed.stdout(),
                    _ => printed.stderr(),
                };
                let text = text.replace(program, "REPERTOIRE");
                let text = text.replace(place.home_dir().to_str().unwrap(), "HOME");
                // Writing to a string cannot fail.
                let _ = writeln!(shown, "== {}\n{}", args[1..].join(" "), text.trim_end());
            }
        }
    }
    insta::assert_snapshot!(shown);
}
