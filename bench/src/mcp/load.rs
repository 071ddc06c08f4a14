//! Load generator: sends requests with a fixed number in flight and times each one.
//!
//! Requests are written as raw bytes and responses are only checked for a result, so that the load
//! generator uses as little CPU as possible.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// The transport of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Http,
    Stdio,
}

/// The results of one round.
pub(crate) struct LoadSample {
    pub(crate) rate: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) cpu_micros: f64,
}

/// Summarises the latencies of a round.
pub(super) fn summarise_latencies(
    mut micros: Vec<f64>,
    time: Duration,
    cpu: Duration,
) -> LoadSample {
    micros.sort_by(f64::total_cmp);
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of a second"
    )]
    let at = |part: f64| {
        let place = (micros.len() as f64 * part) as usize;
        micros
            .get(place.min(micros.len().saturating_sub(1)))
            .copied()
    };
    #[allow(clippy::cast_precision_loss, reason = "counts of a second")]
    let count = micros.len().max(1) as f64;
    LoadSample {
        rate: count / time.as_secs_f64(),
        p50: at(0.50).unwrap_or(f64::NAN),
        p99: at(0.99).unwrap_or(f64::NAN),
        cpu_micros: cpu.as_secs_f64() * 1e6 / count,
    }
}

/// Returns the parameters of a request; requests cycle through the skills.
pub(super) fn request_params(number: usize, request: usize) -> String {
    // A stride that visits every skill in a scattered order.
    let at = request.wrapping_mul(7919) % number;
    format!("\"uri\":\"skill://skill-{at:05}/SKILL.md\"")
}

const META: &str = "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
\"io.modelcontextprotocol/clientInfo\":{\"name\":\"bench\",\"version\":\"1\"},\
\"io.modelcontextprotocol/clientCapabilities\":{}}";

/// One connection over HTTP, kept open.
pub(crate) struct HttpConnection {
    stream: BufReader<TcpStream>,
    path: &'static str,
    id: usize,
    body: Vec<u8>,
}

impl HttpConnection {
    pub(crate) fn connect(port: u16, path: &'static str) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        Ok(Self {
            stream: BufReader::with_capacity(64 * 1024, stream),
            path,
            id: 0,
            body: Vec::new(),
        })
    }

    /// Sends a request and returns the body of the response.
    pub(crate) fn send_request(&mut self, method: &str, params: &str) -> Result<&[u8]> {
        self.id += 1;
        let comma = if params.is_empty() { "" } else { "," };
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"{method}\",\"params\":{{{META}{comma}{params}}}}}",
            self.id
        );
        let name = match method {
            // The header repeats the parameter.
            "resources/read" => params
                .split('"')
                .nth(3)
                .map_or(String::new(), |uri| format!("Mcp-Name: {uri}\r\n")),
            _ => String::new(),
        };
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: {method}\r\n{name}Content-Length: {}\r\n\r\n{body}",
            self.path,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.read_response()?;
        ensure!(
            self.body.windows(9).take(400).any(|w| w == b"\"result\":"),
            "no result: {}",
            String::from_utf8_lossy(&self.body[..self.body.len().min(400)])
        );
        Ok(&self.body)
    }

    fn read_response(&mut self) -> Result<()> {
        let mut line = String::new();
        let mut length = None;
        let mut chunked = false;
        loop {
            line.clear();
            ensure!(
                self.stream.read_line(&mut line)? > 0,
                "the server closed the connection"
            );
            let text = line.trim_end().to_ascii_lowercase();
            if text.is_empty() {
                break;
            }
            if let Some(value) = text.strip_prefix("content-length:") {
                length = Some(value.trim().parse::<usize>()?);
            }
            chunked |= text.starts_with("transfer-encoding:") && text.contains("chunked");
        }
        self.body.clear();
        if let Some(length) = length {
            self.body.resize(length, 0);
            self.stream.read_exact(&mut self.body)?;
            return Ok(());
        }
        ensure!(chunked, "a response without a length");
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim(), 16).context("a chunk's size")?;
            let start = self.body.len();
            self.body.resize(start + size, 0);
            self.stream.read_exact(&mut self.body[start..])?;
            line.clear();
            self.stream.read_line(&mut line)?;
            if size == 0 {
                return Ok(());
            }
        }
    }
}

/// Loads a server over HTTP for a time: one connection for each request in flight.
pub(super) fn load_http(
    port: u16,
    path: &'static str,
    method: &'static str,
    number: usize,
    in_flight: usize,
    time: Duration,
) -> Result<Vec<f64>> {
    let workers: Vec<_> = (0..in_flight)
        .map(|worker| {
            std::thread::spawn(move || -> Result<Vec<f64>> {
                let mut connection = HttpConnection::connect(port, path)?;
                let mut micros = Vec::new();
                let until = Instant::now() + time;
                let mut request = worker * 1_000_003;
                while Instant::now() < until {
                    let params = request_params(number, request);
                    let start = Instant::now();
                    connection.send_request(method, &params)?;
                    micros.push(start.elapsed().as_secs_f64() * 1e6);
                    request += 1;
                }
                Ok(micros)
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        match worker.join() {
            Ok(micros) => all.extend(micros?),
            Err(_) => bail!("a connection failed"),
        }
    }
    Ok(all)
}

/// Loads a server over its pipes for a time.
pub(super) fn load_stdio(
    stdin: &mut impl Write,
    stdout: &mut impl BufRead,
    method: &str,
    number: usize,
    in_flight: usize,
    time: Duration,
) -> Result<Vec<f64>> {
    let mut sent: std::collections::HashMap<usize, Instant> = std::collections::HashMap::new();
    let mut micros = Vec::new();
    let mut line = Vec::new();
    let until = Instant::now() + time;
    let mut request = 0;
    loop {
        while sent.len() < in_flight && Instant::now() < until {
            request += 1;
            let params = request_params(number, request);
            let message = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{request},\"method\":\"{method}\",\"params\":{{{params}}}}}\n"
            );
            sent.insert(request, Instant::now());
            stdin.write_all(message.as_bytes())?;
        }
        if sent.is_empty() {
            return Ok(micros);
        }
        line.clear();
        ensure!(
            stdout.read_until(b'\n', &mut line)? > 0,
            "the server closed the connection"
        );
        // Servers put the id near the start or at the end.
        let text = String::from_utf8_lossy(&line);
        let id = text.find("\"id\":").or_else(|| text.rfind("\"id\":"));
        let Some(at) = id else {
            continue;
        };
        let digits: String = text[at + 5..]
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        if let Some(start) = digits.parse().ok().and_then(|id: usize| sent.remove(&id)) {
            ensure!(text.contains("\"result\""), "no result: {text:.400}");
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
}
