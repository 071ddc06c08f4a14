//! Hubs, workers and followers as processes and clients of a test.

use std::{
    io::{BufRead, BufReader},
    path::Path,
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
/// How long anything may take that should be there soon.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A process that ends with this value, and what it said.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) said: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn over(mut child: Child) -> Self {
        let said: Arc<Mutex<String>> = Arc::default();
        let (heard, errors) = (said.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                *heard.lock().unwrap() += &(line + "\n");
            }
        });
        Self { child, said }
    }

    /// Waits until it has said something.
    pub(crate) fn says(&self, words: &str) {
        let start = Instant::now();
        while !self.said.lock().unwrap().contains(words) {
            assert!(
                start.elapsed() < WAIT,
                "{words}: {}",
                self.said.lock().unwrap()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(home: &Path) -> Command {
    let mut command = Command::new(BIN);
    command
        .env("REPERTOIRE_HOME", home)
        .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
        .env_remove("III_URL")
        .env_remove("III_ENGINE_URL")
        .current_dir(home);
    command
}

/// Starts a server with a hub; gives it with the hub's address.
pub(crate) fn serve(home: &Path, more: &[&str]) -> (Running, String) {
    let mut child = command(home)
        .args(["serve", "--port", "0", "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    let running = Running::over(child);
    let said: Value =
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", running.said.lock().unwrap()));
    let url = said["hub"].as_str().unwrap_or_default().to_owned();
    (running, url)
}

/// Starts the worker as an engine does.
pub(crate) fn worker(url: &str, home: &Path) -> Running {
    let child = Command::new(env!("CARGO_BIN_EXE_skills"))
        .env("III_URL", url)
        .env("HOME", home)
        .current_dir(home)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Running::over(child)
}

/// A client of the SDK.
pub(crate) fn connect(url: &str) -> IIIClient {
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

/// Somebody who follows the changes of the skills.
pub(crate) struct Follower {
    pub(crate) heard: mpsc::UnboundedReceiver<Value>,
    pub(crate) client: IIIClient,
}

#[allow(deprecated, reason = "this is how the seed's workers follow")]
pub(crate) fn follow(url: &str, id: &str) -> Follower {
    let client = connect(url);
    let (tell, heard) = mpsc::unbounded_channel();
    let function = RegisterFunction::new(move |event: Value| {
        let _ = tell.send(event["id"].clone());
        Ok::<_, iii_sdk::Error>(Value::Null)
    });
    client.register_function(id, function);
    let input = RegisterTriggerInput::new("skills::on-change", id, json!({}));
    client.register_trigger(input).unwrap();
    Follower { heard, client }
}

impl Follower {
    pub(crate) async fn hears(&mut self, id: &str) {
        loop {
            let heard = tokio::time::timeout(WAIT, self.heard.recv()).await;
            if heard.expect("it heard nothing").unwrap() == id {
                return;
            }
        }
    }
}
