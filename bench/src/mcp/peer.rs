//! A server under load: starts it, measures it from the outside, and ends it.

use std::{
    fmt, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    DOCUMENT_BYTES,
    load::{self, HttpConnection, LoadSample, Transport},
};

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Ours,
    Bare,
    Pmcp,
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Bare => "bare rmcp",
            Self::Pmcp => "pmcp",
        })
    }
}

/// The programs and folders that the servers are started from.
pub(crate) struct PeerConfig<'a> {
    pub(crate) ours: &'a Path,
    pub(crate) pmcp: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) number: usize,
}

/// A running server; dropping it ends the process.
pub(crate) struct PeerServer {
    child: Child,
    link: PeerLink,
}

enum PeerLink {
    Http(u16, &'static str),
    Stdio(ChildStdin, BufReader<ChildStdout>),
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        // It was started here, so it is ended here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const INITIALIZE_REQUEST: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\
\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\
\"clientInfo\":{\"name\":\"bench\",\"version\":\"1\"}}}\n";
const INITIALIZED_NOTIFICATION: &str =
    "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

impl PeerServer {
    fn build_command(
        peers: &PeerConfig<'_>,
        which: ServerKind,
        wire: Transport,
    ) -> Result<Command> {
        let word = match wire {
            Transport::Http => "http",
            Transport::Stdio => "stdio",
        };
        Ok(match which {
            ServerKind::Ours => {
                let mut command = Command::new(peers.ours);
                match wire {
                    Transport::Http => {
                        command.args(["serve", "--hub", "off", "--port", "0", "--json", "--quiet"])
                    }
                    Transport::Stdio => command.arg("mcp"),
                };
                command.arg(peers.folder).env("REPERTOIRE_HOME", peers.home);
                command
            }
            ServerKind::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bare", word, &DOCUMENT_BYTES.to_string()]);
                command
            }
            ServerKind::Pmcp => {
                let mut command = Command::new(peers.pmcp);
                command.arg(peers.folder).arg(word);
                command
            }
        })
    }

    fn spawn_server(
        peers: &PeerConfig<'_>,
        which: ServerKind,
        wire: Transport,
    ) -> Result<(Child, ChildStdin, BufReader<ChildStdout>)> {
        let mut child = Self::build_command(peers, which, wire)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| which.to_string())?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = child.stdout.take().context("no stdout")?;
        Ok((child, stdin, BufReader::with_capacity(64 * 1024, stdout)))
    }

    /// Starts a server and waits until it answers.
    pub(crate) fn start_server(
        peers: &PeerConfig<'_>,
        which: ServerKind,
        wire: Transport,
    ) -> Result<Self> {
        let (child, mut stdin, mut stdout) = Self::spawn_server(peers, which, wire)?;
        let mut line = String::new();
        let way = match wire {
            Transport::Http => {
                stdout.read_line(&mut line)?;
                let digits = |text: &str| -> String {
                    text.chars().take_while(char::is_ascii_digit).collect()
                };
                let port = match which {
                    ServerKind::Ours => line.split("127.0.0.1:").nth(1).map(digits),
                    ServerKind::Bare | ServerKind::Pmcp => Some(digits(line.trim())),
                };
                let port = port.and_then(|port| port.parse().ok());
                let path = if which == ServerKind::Pmcp {
                    "/"
                } else {
                    "/mcp"
                };
                PeerLink::Http(port.with_context(|| format!("{which}: {line}"))?, path)
            }
            Transport::Stdio => {
                stdin.write_all(INITIALIZE_REQUEST.as_bytes())?;
                stdout.read_line(&mut line)?;
                ensure!(line.contains("protocolVersion"), "{which}: {line}");
                stdin.write_all(INITIALIZED_NOTIFICATION.as_bytes())?;
                PeerLink::Stdio(stdin, stdout)
            }
        };
        Ok(Self { child, link: way })
    }

    /// Returns the time from the start of the process to the `initialize` response.
    pub(crate) fn time_initialize(peers: &PeerConfig<'_>, which: ServerKind) -> Result<Duration> {
        let start = Instant::now();
        let (child, mut stdin, mut stdout) = Self::spawn_server(peers, which, Transport::Stdio)?;
        stdin.write_all(INITIALIZE_REQUEST.as_bytes())?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let time = start.elapsed();
        ensure!(line.contains("protocolVersion"), "{which}: {line}");
        drop(Self {
            child,
            link: PeerLink::Stdio(stdin, stdout),
        });
        Ok(time)
    }

    /// Runs load on the server for a time.
    pub(crate) fn run_load(
        &mut self,
        method: &'static str,
        number: usize,
        in_flight: usize,
        time: Duration,
    ) -> Result<LoadSample> {
        let cpu = self.cpu_time()?;
        let start = Instant::now();
        let micros = match &mut self.link {
            PeerLink::Http(port, path) => {
                load::load_http(*port, path, method, number, in_flight, time)?
            }
            PeerLink::Stdio(stdin, stdout) => {
                load::load_stdio(stdin, stdout, method, number, in_flight, time)?
            }
        };
        let time = start.elapsed();
        Ok(load::summarise_latencies(
            micros,
            time,
            self.cpu_time()?.saturating_sub(cpu),
        ))
    }

    /// Lists every skill with `skills/list`; returns the time, and the CPU time in microseconds.
    pub(crate) fn list_all_skills(&mut self, number: usize) -> Result<(Duration, f64)> {
        let PeerLink::Http(port, path) = self.link else {
            bail!("enumerated over HTTP only");
        };
        let mut connection = HttpConnection::connect(port, path)?;
        let cpu = self.cpu_time()?;
        let start = Instant::now();
        let mut found = 0;
        let mut cursor = String::new();
        loop {
            let body = connection.send_request("skills/list", &cursor)?;
            found += body
                .windows(14)
                .filter(|w| w == b"\"frontmatter\":")
                .count();
            let text = String::from_utf8_lossy(body);
            let next = text.rfind("\"nextCursor\":\"").map(|at| &text[at..]);
            match next.and_then(|text| text.split('"').nth(3)) {
                Some(next) => cursor = format!("\"cursor\":\"{next}\""),
                None => break,
            }
        }
        let time = start.elapsed();
        ensure!(found == number, "{found} skills of {number}");
        Ok((
            time,
            self.cpu_time()?.saturating_sub(cpu).as_secs_f64() * 1e6,
        ))
    }

    /// Returns the CPU time of the server's threads.
    fn cpu_time(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end while its status is read.
            let stat = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            let first = stat.split(' ').next();
            nanos += first.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Returns the resident memory in KiB.
    pub(crate) fn resident_memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().split(' ').next());
        Ok(number.context("no VmRSS")?.parse()?)
    }
}
