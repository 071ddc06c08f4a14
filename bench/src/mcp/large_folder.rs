//! The first read of a server with ten thousand folders, and its memory while it watches them.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{goal_row, median_number};

const SKILLS: usize = 10_000;
const ROUNDS: usize = 5;
/// The goals: milliseconds to the first answer, and resident memory.
const FIRST_READ_MS: f64 = 100.0;
const MEMORY_MB: f64 = 50.0;

/// A server over stdio; dropping it ends the process.
struct StdioServer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StdioServer {
    fn start(program: &Path, home: &Path, skills: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .arg("mcp")
            .arg(skills)
            .env("REPERTOIRE_HOME", home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut server = Self {
            child,
            input,
            output,
        };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"}});
        server.send_request("initialize", &hello)?;
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(server)
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        writeln!(self.input, "{message}")?;
        self.input.flush()?;
        Ok(())
    }

    fn send_request(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            ensure!(self.output.read_line(&mut line)? > 0, "the server ended");
            let answer: Value = serde_json::from_str(&line)?;
            if answer["id"] == 1 {
                ensure!(answer["result"].is_object(), "{answer}");
                return Ok(answer);
            }
        }
    }

    fn resident_mb(&self) -> f64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok());
        kib.unwrap_or(f64::NAN) * 1024.0 / 1e6
    }
}

impl Drop for StdioServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts servers with and without a cached index; returns the rows of the goals.
pub(super) fn measure_large_folder(program: &Path) -> Result<Vec<String>> {
    let folder = tempfile::tempdir()?;
    super::write_skills(folder.path(), SKILLS)?;
    for at in 0..SKILLS {
        let script = folder.path().join(format!("skill-{at:05}/run.sh"));
        fs::write(script, format!("echo number {at}\n"))?;
    }
    let (mut without_index, mut with_index, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let home = tempfile::tempdir()?;
        for times in [&mut without_index, &mut with_index] {
            let mut server = StdioServer::start(program, home.path(), folder.path())?;
            let start = Instant::now();
            let uri = format!("skill://skill-{:05}/SKILL.md", 1000 * round + 7);
            server.send_request("resources/read", &json!({"uri": uri}))?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            // Answered when everything is loaded; then the server goes on watching.
            server.send_request("skills/list", &json!({}))?;
            std::thread::sleep(Duration::from_secs(2));
            memory.push(server.resident_mb());
        }
    }
    let name = |what: &str| format!("first read of {SKILLS} skills with three files, {what}, ms");
    let row = |what, times| goal_row(&name(what), false, FIRST_READ_MS, median_number(times));
    Ok(vec![
        row("without a cached index", without_index),
        row("with a cached index", with_index),
        goal_row(
            "memory of that server while it watches, MB",
            false,
            MEMORY_MB,
            median_number(memory),
        ),
    ])
}
