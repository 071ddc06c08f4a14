//! Tests the hub with the iii SDKs: each worker of the quickstart, in every language and version,
//! seen by an MCP client; and runs the features against a worker instead of the hub itself.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    commands::{CheckCount, build_program, cargo_command, project_dir, run_checked, run_counted},
    install,
};

/// The timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server with a hub; dropping it ends the process.
struct HubServer {
    child: Child,
    mcp: String,
    url: String,
    home: PathBuf,
}

impl HubServer {
    fn start_server(program: &Path, name: &str, more: &[&str]) -> Result<Self> {
        let home = project_dir().join("target/xtask/bus").join(name);
        let _ = fs::remove_dir_all(&home);
        fs::create_dir_all(&home)?;
        let mut child = Command::new(program)
            .args(["serve", "--port", "0", "--hub", "0", "--json", "--quiet"])
            .args(more)
            .env("REPERTOIRE_HOME", &home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(&home)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let addresses: Value = serde_json::from_str(&line).context("the server did not start")?;
        let text = |key: &str| addresses[key].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            child,
            mcp: text("url"),
            url: text("hub"),
            home,
        })
    }

    /// Sends an MCP request; returns the result, or the message of the error.
    fn send_request(&self, method: &str, mut params: Value) -> Result<Result<Value, String>> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "xtask", "version": "1"},
        });
        let name = params.get("uri").or_else(|| params.get("name"));
        let name = name.and_then(Value::as_str).unwrap_or_default();
        let name = match name {
            "" => String::new(),
            name => format!("Mcp-Name: {name}\r\n"),
        };
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let body = body.to_string();
        // A server that requires a token keeps one for the user's own programs.
        let token = fs::read_to_string(self.home.join("local-token"));
        let token = token.map_or(String::new(), |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let address = self.mcp.trim_start_matches("http://");
        let address = address.split('/').next().unwrap_or_default();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nAccept: \
             application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{name}{token}Connection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let start = answer.find("{\"jsonrpc\"").context("no answer")?;
        let mut answers = serde_json::Deserializer::from_str(&answer[start..]).into_iter();
        let mut answer: Value = answers.next().context("no answer")??;
        if let Some(words) = answer["error"]["message"].as_str() {
            return Ok(Err(words.to_owned()));
        }
        Ok(Ok(answer["result"].take()))
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        // It was started here, so it is ended here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program on one of the SDKs.
struct SdkWorker {
    name: &'static str,
    command: Command,
    origin: WorkerOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerOrigin {
    /// An example of ours, which handles the signal to end and reads the user's own token.
    Example,
    /// A program as the seed shows it.
    Seed,
}

/// Builds the workers and installs their dependencies.
fn build_workers() -> Result<Vec<SdkWorker>> {
    let target = "target/xtask/iii-0.11";
    let manifest = "interop/iii/rust-0.11/Cargo.toml";
    let old = [
        "build",
        "--quiet",
        "--manifest-path",
        manifest,
        "--target-dir",
        target,
    ];
    run_checked(&mut cargo_command(&old))?;
    let new = ["build", "--quiet", "--workspace", "--example", "iii_worker"];
    run_checked(&mut cargo_command(&new))?;
    let built = |path: &str| Command::new(project_dir().join(path));
    let node = |from: &str, place: &str| -> Result<Command> {
        let (folder, _) = install::install_npm(from, place)?;
        let mut command = Command::new("node");
        command.arg(install::copy_script(
            &format!("{from}/worker.mjs"),
            &folder,
        )?);
        Ok(command)
    };
    let requirements = "examples/workers/python/requirements.txt";
    let mut python = Command::new(install::install_python(requirements, "bus/python")?);
    python.arg(project_dir().join("examples/workers/python/worker.py"));
    let worker = |name, command, origin| SdkWorker {
        name,
        command,
        origin,
    };
    Ok(vec![
        worker(
            "Rust 0.25",
            built("target/debug/examples/iii_worker"),
            WorkerOrigin::Example,
        ),
        worker(
            "Rust 0.11.3",
            built("target/xtask/iii-0.11/debug/worker-on-0-11"),
            WorkerOrigin::Seed,
        ),
        worker(
            "Node 0.22.1",
            node("examples/workers/node", "bus/node-22")?,
            WorkerOrigin::Example,
        ),
        worker(
            "Node 0.9.0",
            node("interop/iii/node-0.9", "bus/node-09")?,
            WorkerOrigin::Seed,
        ),
        worker("Python 0.25.0", python, WorkerOrigin::Example),
    ])
}

pub(crate) fn test_iii_sdks() -> Result<CheckCount> {
    let program = build_program()?;
    let mut count = CheckCount::default();
    for worker in build_workers()? {
        let name = worker.name;
        let mut args = vec!["--tool", "tea::*"];
        if worker.origin == WorkerOrigin::Example {
            args.push("--require-token");
        }
        let hub = HubServer::start_server(&program, &name.replace(' ', "-"), &args)?;
        let tried = try_worker(&hub, worker);
        if tried.is_ok() {
            println!("ok {name}: skill, section, slash-command and tool; gone with the worker");
        }
        count.add(CheckCount::from_result(name, tried));
    }
    Ok(count)
}

/// Starts a worker, checks it over MCP, and ends it.
fn try_worker(hub: &HubServer, mut worker: SdkWorker) -> Result<()> {
    let command = &mut worker.command;
    command
        .env("III_URL", &hub.url)
        .env("REPERTOIRE_HOME", &hub.home)
        .env("OTEL_ENABLED", "false");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let seen = check_features(hub, &mut child);
    let pid = child.id().to_string();
    // It was started here, so it is ended here.
    let _ = Command::new("kill").args(["-TERM", &pid]).status();
    let ended = wait_for_exit(&mut child);
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    seen?;
    let status = ended?;
    if worker.origin == WorkerOrigin::Example {
        ensure!(status.success(), "it ended with {status}");
    }
    // Its registered skills stay; its functions are gone.
    let start = Instant::now();
    loop {
        match hub.send_request("resources/read", json!({"uri": "iii://fn/tea/guide"}))? {
            Err(words) if words.contains("not found") => break,
            _ if start.elapsed() > TIMEOUT => bail!("its functions stay when it is gone"),
            _ => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    let kept = hub.send_request("resources/read", json!({"uri": "iii://tea"}))?;
    ensure!(kept.is_ok(), "its registered skill is gone too");
    Ok(())
}

fn wait_for_exit(child: &mut Child) -> Result<std::process::ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        ensure!(start.elapsed() < TIMEOUT, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks everything that a worker provides, as an MCP client.
fn check_features(hub: &HubServer, child: &mut Child) -> Result<()> {
    let out = child.stdout.take().context("no stdout")?;
    let mut lines = BufReader::new(out).lines();
    loop {
        match lines.next() {
            Some(Ok(line)) if line == "ready" => break,
            Some(Ok(_)) => {}
            _ => bail!("it ended before it was ready"),
        }
    }
    // Drain the worker's further output, so that it does not block.
    std::thread::spawn(move || lines.for_each(drop));
    let read = |uri: &str| -> Result<String> {
        let read = hub.send_request("resources/read", json!({"uri": uri}))?;
        let read = read.map_err(|words| anyhow::anyhow!("{uri}: {words}"))?;
        let text = read["contents"][0]["text"].as_str();
        Ok(text.unwrap_or_default().to_owned())
    };
    ensure!(
        read("iii://tea")?.starts_with("# Tea\n\nMakes tea."),
        "another skill"
    );
    ensure!(
        read("skill://tea/SKILL.md")?.starts_with("---\nname: tea\n"),
        "no document"
    );
    ensure!(
        read("iii://fn/tea/guide")?.contains("80 degrees"),
        "another section"
    );
    let prompt = json!({"name": "order-tea", "arguments": {"kind": "green"}});
    let prompt = hub.send_request("prompts/get", prompt)?;
    let prompt = prompt.map_err(|words| anyhow::anyhow!("prompts/get: {words}"))?;
    let text = &prompt["messages"][0]["content"]["text"];
    ensure!(
        text == "Make one cup of green tea.",
        "another prompt: {text}"
    );
    let missing = hub.send_request("prompts/get", json!({"name": "order-tea", "arguments": {}}))?;
    ensure!(
        missing.is_err_and(|words| words.contains("required")),
        "not validated"
    );
    let start = Instant::now();
    loop {
        let tools = hub
            .send_request("tools/list", json!({}))?
            .unwrap_or_default();
        let tools = tools["tools"].as_array().cloned().unwrap_or_default();
        if tools.iter().any(|tool| tool["name"] == "tea__order") {
            break;
        }
        ensure!(start.elapsed() < TIMEOUT, "it is no tool");
        std::thread::sleep(Duration::from_millis(20));
    }
    let call = json!({"name": "tea__order", "arguments": {"kind": "white"}});
    let called = hub.send_request("tools/call", call)?.unwrap_or_default();
    let text = &called["structuredContent"]["content"];
    ensure!(
        text == "Make one cup of white tea.",
        "another answer: {called}"
    );
    Ok(())
}

/// Runs the features against a worker, on a bus without the registry's functions.
pub(crate) fn test_worker() -> Result<CheckCount> {
    let program = build_program()?;
    let bus = HubServer::start_server(&program, "bare", &["--bare-hub"])?;
    let mut command = cargo_command(&["test", "--workspace", "--test", "bdd"]);
    run_counted(command.env("III_ENGINE_WS_URL", &bus.url))
}

/// Runs the features against a worker on a bus that does what real engines do.
pub(crate) fn test_quirky_bus() -> Result<CheckCount> {
    // The worker that an engine starts is used too.
    build_program()?;
    let mut command = cargo_command(&["test", "--workspace", "--test", "bdd"]);
    run_counted(command.env("REPERTOIRE_TEST_QUIRKY_BUS", "1"))
}
