//! Hub and worker processes and change subscribers for tests.
#![allow(dead_code, reason = "each test binary uses only some helpers")]

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use iii_sdk::{
    IIIClient, InitOptions, RegisterFunction, protocol::RegisterTriggerInput, register_worker,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const BIN: &str = env!("CARGO_BIN_EXE_repertoire");
/// The deadline for every condition a test waits for.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A child process that is killed on drop, with its collected stderr.
pub(crate) struct TestProcess {
    pub(crate) child: Child,
    pub(crate) stderr: Arc<Mutex<String>>,
}

impl TestProcess {
    pub(crate) fn from_child(mut child: Child) -> Self {
        let stderr: Arc<Mutex<String>> = Arc::default();
        let (heard, errors) = (stderr.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                *heard.lock().unwrap() += &(line + "\n");
            }
        });
        Self { child, stderr }
    }

    /// Waits until stderr contains the text.
    pub(crate) fn wait_for_stderr(&self, words: &str) {
        let start = Instant::now();
        while !self.stderr.lock().unwrap().contains(words) {
            assert!(
                start.elapsed() < WAIT,
                "{words}: {}",
                self.stderr.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn send_signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn cli_command(home: &Path) -> Command {
    let mut command = Command::new(BIN);
    command
        .env("REPERTOIRE_HOME", home)
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env_remove("III_URL")
        .env_remove("III_ENGINE_URL")
        .current_dir(home);
    command
}

/// Starts a server with a hub and returns it with the URL of the hub.
pub(crate) fn start_server(home: &Path, more: &[&str]) -> (TestProcess, String) {
    let mut child = cli_command(home)
        .args(["serve", "--port", "0", "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let running = TestProcess::from_child(child);
    let said: Value = serde_json::from_str(&line)
        .unwrap_or_else(|_| panic!("{}", running.stderr.lock().unwrap()));
    let url = said["hub"].as_str().unwrap_or_default().to_owned();
    (running, url)
}

/// Returns the `skills` binary, which is a package of its own in this workspace.
pub(crate) fn skills_binary() -> PathBuf {
    let path = Path::new(BIN).with_file_name("skills");
    assert!(
        path.is_file(),
        "{} is not built: run `cargo test --workspace`",
        path.display()
    );
    path
}

/// Starts the worker the way an engine starts it.
pub(crate) fn start_worker(url: &str, home: &Path) -> TestProcess {
    start_worker_in(url, home, "")
}

/// The same in a namespace; an empty one is none.
pub(crate) fn start_worker_in(url: &str, home: &Path, namespace: &str) -> TestProcess {
    let child = Command::new(skills_binary())
        .env("III_URL", url)
        .env("III_NAMESPACE", namespace)
        .env("REPERTOIRE_HOME", home)
        .env("HOME", home)
        .current_dir(home)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    TestProcess::from_child(child)
}

/// Connects an SDK client with telemetry disabled.
pub(crate) fn connect_sdk(url: &str) -> IIIClient {
    let otel = iii_helpers::observability::OtelConfig {
        enabled: Some(false),
        ..Default::default()
    };
    let options = InitOptions {
        otel: Some(otel),
        ..InitOptions::default()
    };
    register_worker(url, options)
}

/// A client that is subscribed to changes of skills.
pub(crate) struct ChangeSubscriber {
    pub(crate) change_ids: mpsc::UnboundedReceiver<Value>,
    pub(crate) client: IIIClient,
}

#[allow(
    deprecated,
    reason = "workers of the original project subscribe this way"
)]
pub(crate) fn subscribe_to_changes(url: &str, id: &str) -> ChangeSubscriber {
    let client = connect_sdk(url);
    let (sender, heard) = mpsc::unbounded_channel();
    let function = RegisterFunction::new(move |event: Value| {
        let _ = sender.send(event["id"].clone());
        Ok::<_, iii_sdk::Error>(Value::Null)
    });
    client.register_function(id, function);
    let input = RegisterTriggerInput::new("skills::on-change", id, json!({}));
    client.register_trigger(input).unwrap();
    ChangeSubscriber {
        change_ids: heard,
        client,
    }
}

impl ChangeSubscriber {
    pub(crate) async fn wait_for_change(&mut self, id: &str) {
        loop {
            let heard = tokio::time::timeout(WAIT, self.change_ids.recv()).await;
            if heard.expect("no change notification arrived").unwrap() == id {
                return;
            }
        }
    }
}
