//! A server under load: started, asked, measured from the outside, ended.

use std::{
    fmt, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::{
    SIZE,
    load::{self, Http, Sample, Wire},
};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Ours,
    Bare,
    Pmcp,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "ours",
            Self::Bare => "bare rmcp",
            Self::Pmcp => "pmcp",
        })
    }
}

/// What every server is started from.
pub(crate) struct Peers<'a> {
    pub(crate) ours: &'a Path,
    pub(crate) pmcp: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) home: &'a Path,
    pub(crate) number: usize,
}

/// A running server; it ends with this value.
pub(crate) struct Peer {
    child: Child,
    link: Link,
}

enum Link {
    Http(u16, &'static str),
    Stdio(ChildStdin, BufReader<ChildStdout>),
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It was started here, so it is ended here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const HELLO: &str = "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\
\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\
\"clientInfo\":{\"name\":\"bench\",\"version\":\"1\"}}}\n";
const READY: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n";

impl Peer {
    fn command(peers: &Peers<'_>, which: Which, wire: Wire) -> Result<Command> {
        let word = match wire {
            Wire::Http => "http",
            Wire::Stdio => "stdio",
        };
        Ok(match which {
            Which::Ours => {
                let mut command = Command::new(peers.ours);
                match wire {
                    Wire::Http => {
                        command.args(["serve", "--hub", "off", "--port", "0", "--json", "--quiet"])
                    }
                    Wire::Stdio => command.arg("mcp"),
                };
                command.arg(peers.folder).env("REPERTOIRE_HOME", peers.home);
                command
            }
            Which::Bare => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["bare", word, &SIZE.to_string()]);
                command
            }
            Which::Pmcp => {
                let mut command = Command::new(peers.pmcp);
                command.arg(peers.folder).arg(word);
                command
            }
        })
    }

    fn spawn(
        peers: &Peers<'_>,
        which: Which,
        wire: Wire,
    ) -> Result<(Child, ChildStdin, BufReader<ChildStdout>)> {
        let mut child = Self::command(peers, which, wire)?
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
    pub(crate) fn start(peers: &Peers<'_>, which: Which, wire: Wire) -> Result<Self> {
        let (child, mut stdin, mut stdout) = Self::spawn(peers, which, wire)?;
        let mut line = String::new();
        let way = match wire {
            Wire::Http => {
                stdout.read_line(&mut line)?;
                let digits = |text: &str| -> String {
                    text.chars().take_while(char::is_ascii_digit).collect()
                };
                let port = match which {
                    Which::Ours => line.split("127.0.0.1:").nth(1).map(digits),
                    Which::Bare | Which::Pmcp => Some(digits(line.trim())),
                };
                let port = port.and_then(|port| port.parse().ok());
                let path = if which == Which::Pmcp { "/" } else { "/mcp" };
                Link::Http(port.with_context(|| format!("{which}: {line}"))?, path)
            }
            Wire::Stdio => {
                stdin.write_all(HELLO.as_bytes())?;
                stdout.read_line(&mut line)?;
                ensure!(line.contains("protocolVersion"), "{which}: {line}");
                stdin.write_all(READY.as_bytes())?;
                Link::Stdio(stdin, stdout)
            }
        };
        Ok(Self { child, link: way })
    }

    /// The time from the start of the process to the answer to `initialize`.
    pub(crate) fn hello(peers: &Peers<'_>, which: Which) -> Result<Duration> {
        let start = Instant::now();
        let (child, mut stdin, mut stdout) = Self::spawn(peers, which, Wire::Stdio)?;
        stdin.write_all(HELLO.as_bytes())?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let time = start.elapsed();
        ensure!(line.contains("protocolVersion"), "{which}: {line}");
        drop(Self {
            child,
            link: Link::Stdio(stdin, stdout),
        });
        Ok(time)
    }

    /// Loads the server for a time.
    pub(crate) fn load(
        &mut self,
        method: &'static str,
        number: usize,
        in_flight: usize,
        time: Duration,
    ) -> Result<Sample> {
        let cpu = self.cpu()?;
        let start = Instant::now();
        let micros = match &mut self.link {
            Link::Http(port, path) => load::http(*port, path, method, number, in_flight, time)?,
            Link::Stdio(stdin, stdout) => {
                load::stdio(stdin, stdout, method, number, in_flight, time)?
            }
        };
        let time = start.elapsed();
        Ok(load::sample(micros, time, self.cpu()?.saturating_sub(cpu)))
    }

    /// Every skill through `skills/list`: the time, and the microseconds of processor.
    pub(crate) fn enumerate(&mut self, number: usize) -> Result<(Duration, f64)> {
        let Link::Http(port, path) = self.link else {
            bail!("enumerated over HTTP only");
        };
        let mut connection = Http::connect(port, path)?;
        let cpu = self.cpu()?;
        let start = Instant::now();
        let mut found = 0;
        let mut cursor = String::new();
        loop {
            let body = connection.ask("skills/list", &cursor)?;
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
        Ok((time, self.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6))
    }

    /// The time the server's threads spent on a processor.
    fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may end while it is looked at.
            let stat = fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            let first = stat.split(' ').next();
            nanos += first.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident memory, in KiB.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().split(' ').next());
        Ok(number.context("no VmRSS")?.parse()?)
    }
}
