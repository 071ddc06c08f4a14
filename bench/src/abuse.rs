//! Abuse of a running server, on loopback and bounded, while honest clients go on.
//!
//! Each phase loads the server in one hostile way. In all of them one client over HTTP and one on the
//! hub keep asking, and their latency is compared with that of the idle server. Attackers and honest
//! clients run as the same user on the same two cores, which is the hardest case: they share the
//! limits of one peer.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use repertoire_serve::iii::bus_client::BusClient;
use serde_json::{Value, json};

use crate::mcp::load::HttpConnection;

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct AbusePlan {
    half_open: usize,
    slow_readers: usize,
    subscribers: usize,
    registrations: usize,
    malformed: usize,
    /// How long the connections of the first two phases are held.
    hold: Duration,
    soak: Duration,
    /// How long memory may take to come back.
    settle: Duration,
}

/// A file of this size is read by the slow readers.
const LARGE_FILE_BYTES: usize = 12 * 1024 * 1024;
/// Honest clients ask this often.
const HONEST_PAUSE: Duration = Duration::from_millis(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The load is bounded: attackers and server share two cores, and what saturates them delays everyone.
const NOTIFY_PAUSE: Duration = Duration::from_millis(100);
const REGISTRATIONS_IN_FLIGHT: usize = 8;

/// Runs everything against a program. With `soak` the run takes that long and longer, without it a few
/// seconds.
pub(crate) fn run(program: &Path, soak: Option<Duration>) -> Result<()> {
    let plan = match soak {
        Some(soak) => AbusePlan {
            half_open: 1024,
            slow_readers: 100,
            subscribers: 2000,
            registrations: 10_000,
            malformed: 100_000,
            hold: Duration::from_secs(20),
            soak,
            settle: Duration::from_mins(6),
        },
        None => AbusePlan {
            half_open: 1024,
            slow_readers: 20,
            subscribers: 200,
            registrations: 300,
            malformed: 3_000,
            hold: Duration::from_secs(1),
            soak: Duration::from_secs(4),
            settle: Duration::from_secs(20),
        },
    };
    let folder = tempfile::tempdir()?;
    write_skills(folder.path())?;
    let server = ServerProcess::start(program, folder.path())?;
    let honest = HonestClients::start(&server)?;
    let mut report = Report::default();
    println!("| phase | requests | p50 µs | p99 µs | p99 / idle | failed | resident MiB |");
    println!("|---|---|---|---|---|---|---|");
    // Everything is used once first, so that what is measured as idle is warm.
    warm_up(&server, &plan)?;
    report.measure(&server, &honest, "idle", || {
        std::thread::sleep(Duration::from_secs(3).max(plan.hold / 4));
        Ok(())
    })?;
    report.measure(&server, &honest, "half-open connections", || {
        hold_half_open(&server, &plan);
        Ok(())
    })?;
    report.measure(&server, &honest, "unread large answers", || {
        hold_slow_readers(&server, &plan)
    })?;
    report.measure(&server, &honest, "subscribers", || {
        notify_subscribers(&server, &plan)
    })?;
    report.measure(&server, &honest, "registrations", || {
        register_many(&server, &plan)
    })?;
    report.measure(&server, &honest, "malformed requests and frames", || {
        send_malformed(&server, &plan)
    })?;
    report.measure(&server, &honest, "soak", || {
        soak_server(&server, folder.path(), &plan)
    })?;
    let before = report.memory_before;
    report.measure(&server, &honest, "idle afterwards", || {
        wait_settled(&server, before, &plan);
        Ok(())
    })?;
    honest.stop();
    report.print_end(&server)?;
    Ok(())
}

/// Does a little of everything: what a server needs once is not growth.
fn warm_up(server: &ServerProcess, plan: &AbusePlan) -> Result<()> {
    let little = AbusePlan {
        half_open: 16,
        slow_readers: 2,
        subscribers: 100,
        registrations: 200,
        malformed: 200,
        hold: Duration::from_secs(1),
        ..*plan
    };
    hold_half_open(server, &little);
    hold_slow_readers(server, &little)?;
    notify_subscribers(server, &little)?;
    register_many(server, &little)?;
    send_malformed(server, &little)
}

fn write_skills(folder: &Path) -> Result<()> {
    for n in 0..500 {
        write_skill(folder, n, "as it is")?;
    }
    fs::write(
        folder.join("skill-00000/large.txt"),
        vec![b'x'; LARGE_FILE_BYTES],
    )?;
    Ok(())
}

fn write_skill(folder: &Path, n: usize, word: &str) -> Result<()> {
    let name = format!("skill-{n:05}");
    let place = folder.join(&name);
    fs::create_dir_all(&place)?;
    let text = format!(
        "---\nname: {name}\ndescription: Stands for number {n} of many, {word}. Use when number {n} \
         is asked for.\n---\n# Number {n}\n\n{}",
        "A line of instructions.\n".repeat(100)
    );
    fs::write(place.join("SKILL.md"), text)?;
    Ok(())
}

/// The server under load; dropping it ends the process.
struct ServerProcess {
    child: Child,
    http: SocketAddr,
    hub: SocketAddr,
    home: tempfile::TempDir,
}

impl ServerProcess {
    fn start(program: &Path, skills: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let mut child = Command::new(program)
            .args(["serve", "--port", "0", "--hub", "0", "--json", "--quiet"])
            .arg(skills)
            .env("REPERTOIRE_HOME", home.path())
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            // Refusals are logged; there are many.
            .env("RUST_LOG", "off")
            .current_dir(home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let out = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let addresses: Value = serde_json::from_str(&line).context("the server did not start")?;
        let address = |name: &str| -> Result<SocketAddr> {
            let url = addresses[name].as_str().context("no address")?;
            let rest = url.split("//").nth(1).context("no host")?;
            Ok(rest.split('/').next().unwrap_or_default().parse()?)
        };
        Ok(Self {
            http: address("url")?,
            hub: address("hub")?,
            child,
            home,
        })
    }

    /// Returns the resident memory in KiB.
    fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        number.unwrap_or(0)
    }

    fn connect_http(&self) -> Result<TcpStream> {
        connect(self.http)
    }

    /// Connects to the hub and completes the handshake.
    fn connect_hub(&self) -> Result<TcpStream> {
        let mut stream = connect(self.hub)?;
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.hub
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = [0; 1024];
        let read = stream.read(&mut answer)?;
        ensure!(answer[..read].starts_with(b"HTTP/1.1 101"), "not upgraded");
        Ok(stream)
    }

    fn bus_client(&self) -> Result<(tokio::runtime::Runtime, BusClient)> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let url = format!("ws://{}", self.hub);
        let client = runtime.block_on(BusClient::connect(&url, None));
        let client = client.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok((runtime, client))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CALL_TIMEOUT)?;
    stream.set_read_timeout(Some(CALL_TIMEOUT))?;
    stream.set_write_timeout(Some(CALL_TIMEOUT))?;
    Ok(stream)
}

/// The latencies of honest clients since they were last taken, and what failed.
#[derive(Debug, Default)]
struct HonestSample {
    micros: Vec<f64>,
    failed: Vec<String>,
}

struct HonestClients {
    sample: Arc<Mutex<HonestSample>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl HonestClients {
    fn start(server: &ServerProcess) -> Result<Self> {
        let sample = Arc::<Mutex<HonestSample>>::default();
        let stop = Arc::<AtomicBool>::default();
        let port = server.http.port();
        let mut http = HttpConnection::connect(port, "/mcp")?;
        let over_http = {
            let mut n = 0usize;
            move || -> Result<()> {
                n += 1;
                let uri = format!("\"uri\":\"skill://skill-{:05}/SKILL.md\"", n % 400 + 1);
                let method = ["skills/get", "resources/read"][n % 2];
                let done = http.send_request(method, &uri).map(drop);
                if done.is_err() {
                    http = HttpConnection::connect(port, "/mcp")?;
                }
                done
            }
        };
        let (runtime, client) = server.bus_client()?;
        let on_hub = move || -> Result<()> {
            let call = client.call_json("engine::health", "{}", CALL_TIMEOUT);
            let answer = runtime.block_on(call);
            answer.map(drop).map_err(|e| anyhow::anyhow!("{e}"))
        };
        let threads = vec![
            spawn_honest(over_http, &sample, &stop),
            spawn_honest(on_hub, &sample, &stop),
        ];
        Ok(Self {
            sample,
            stop,
            threads,
        })
    }

    fn take(&self) -> HonestSample {
        let mut sample = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *sample)
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

fn spawn_honest(
    mut ask: impl FnMut() -> Result<()> + Send + 'static,
    sample: &Arc<Mutex<HonestSample>>,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    let (sample, stop) = (sample.clone(), stop.clone());
    std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let start = Instant::now();
            let done = ask();
            let micros = start.elapsed().as_secs_f64() * 1e6;
            {
                let mut sample = sample.lock().unwrap_or_else(PoisonError::into_inner);
                match done {
                    Ok(()) => sample.micros.push(micros),
                    Err(error) => sample.failed.push(format!("{error:#}")),
                }
            }
            std::thread::sleep(HONEST_PAUSE);
        }
    })
}

#[derive(Debug, Default)]
struct Report {
    idle_p99: f64,
    /// The resident memory before the abuse, in KiB.
    memory_before: u64,
    worst_ratio: f64,
    failed: Vec<String>,
}

impl Report {
    /// Runs a phase and prints what honest clients saw meanwhile.
    fn measure(
        &mut self,
        server: &ServerProcess,
        honest: &HonestClients,
        name: &str,
        phase: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        drop(honest.take());
        phase().with_context(|| name.to_owned())?;
        let mut sample = honest.take();
        sample.micros.sort_by(f64::total_cmp);
        let count = sample.micros.len();
        let at = |percent: usize| sample.micros.get(count * percent / 100).copied();
        let (p50, p99) = (at(50).unwrap_or(f64::NAN), at(99).unwrap_or(f64::NAN));
        let memory = server.resident_kib();
        if name == "idle" {
            self.idle_p99 = p99;
            self.memory_before = memory;
        }
        let ratio = p99 / self.idle_p99;
        if name != "idle afterwards" {
            self.worst_ratio = self.worst_ratio.max(ratio);
        }
        let failed = sample.failed.len();
        println!(
            "| {name} | {count} | {p50:.0} | {p99:.0} | {ratio:.1} | {failed} | {} |",
            memory / 1024
        );
        self.failed.append(&mut sample.failed);
        ensure!(count > 0, "{name}: no honest request was answered");
        Ok(())
    }

    fn print_end(&self, server: &ServerProcess) -> Result<()> {
        let verdict = |met| if met { "met" } else { "MISSED" };
        let growth = mebibytes(server.resident_kib()) / mebibytes(self.memory_before).max(0.1);
        println!("\n| goal | wanted | measured | |\n|---|---|---|---|");
        println!(
            "| honest p99 under abuse / idle | ≤ 5 | {:.1} | {} |",
            self.worst_ratio,
            verdict(self.worst_ratio <= 5.0)
        );
        println!(
            "| resident memory after / before | ≤ 1.3 | {growth:.2} | {} |",
            verdict(growth <= 1.3)
        );
        println!("\nfiles of the account afterwards:");
        for (path, bytes) in files_below(server.home.path()) {
            println!("- {}: {} KiB", path.display(), bytes / 1024);
        }
        ensure!(
            self.failed.is_empty(),
            "{} honest requests failed, the first: {}",
            self.failed.len(),
            self.failed[0]
        );
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes for people")]
fn mebibytes(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn files_below(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return all;
    };
    for entry in entries.flatten() {
        match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                let name = PathBuf::from(entry.file_name());
                let inside = files_below(&entry.path()).into_iter();
                all.extend(inside.map(|(path, bytes)| (name.join(path), bytes)));
            }
            Ok(metadata) => all.push((entry.file_name().into(), metadata.len())),
            Err(_) => {}
        }
    }
    all.sort();
    all
}

/// Opens connections that send one byte, and once a second opens closed ones again.
fn hold_half_open(server: &ServerProcess, plan: &AbusePlan) {
    let end = Instant::now() + plan.hold;
    let open = |address| -> Option<TcpStream> {
        let mut stream = connect(address).ok()?;
        stream.write_all(b"P").ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let mut held: Vec<Option<TcpStream>> = (0..plan.half_open)
        .map(|n| open(if n % 4 == 0 { server.hub } else { server.http }))
        .collect();
    while Instant::now() < end {
        for (n, slot) in held.iter_mut().enumerate() {
            let closed = slot.as_mut().is_none_or(|stream| {
                !matches!(stream.read(&mut [0; 16]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
            });
            if closed {
                *slot = open(if n % 4 == 0 { server.hub } else { server.http });
            }
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn read_request(uri: &str) -> String {
    let meta = "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
                \"io.modelcontextprotocol/clientCapabilities\":{}}";
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{{\"uri\":\"{uri}\",{meta}}}}}"
    );
    format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: \
         resources/read\r\nMcp-Name: {uri}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Asks for large answers and reads none of them.
fn hold_slow_readers(server: &ServerProcess, plan: &AbusePlan) -> Result<()> {
    let request = read_request("skill://skill-00000/large.txt");
    let mut held = Vec::new();
    for _ in 0..plan.slow_readers {
        let mut stream = server.connect_http()?;
        stream.write_all(request.as_bytes())?;
        held.push(stream);
    }
    std::thread::sleep(plan.hold);
    Ok(())
}

/// Follows the state with many subscriptions, and changes it.
fn notify_subscribers(server: &ServerProcess, plan: &AbusePlan) -> Result<()> {
    let mut followers = Vec::new();
    let per_connection = 100;
    for n in 0..plan.subscribers.div_ceil(per_connection) {
        let mut stream = server.connect_hub()?;
        let function = format!("abuse::follow-{n}");
        write_text(
            &mut stream,
            &json!({"type": "registerfunction", "id": function}).to_string(),
        )?;
        for at in 0..per_connection {
            let trigger = json!({
                "type": "registertrigger", "id": format!("follow-{n}-{at}"),
                "trigger_type": "state", "function_id": function, "config": {"scope": "abuse"},
            });
            write_text(&mut stream, &trigger.to_string())?;
        }
        // Read everything that comes, so that the connection stays.
        let mut reading = stream.try_clone()?;
        reading.set_read_timeout(Some(Duration::from_mins(10)))?;
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while reading.read(&mut buffer).is_ok_and(|n| n > 0) {}
        });
        followers.push(stream);
    }
    let (runtime, client) = server.bus_client()?;
    for n in 0..50 {
        let size = if n % 10 == 0 { 20_000 } else { 200 };
        let value = json!({"scope": "abuse", "key": "k", "value": "x".repeat(size)});
        let payload = value.to_string();
        let call = client.call_json("state::set", &payload, CALL_TIMEOUT);
        let answer = runtime.block_on(call);
        answer.map_err(|error| anyhow::anyhow!("{error}"))?;
        std::thread::sleep(NOTIFY_PAUSE);
    }
    for stream in &followers {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
    Ok(())
}

/// Registers many skills and removes them again.
fn register_many(server: &ServerProcess, plan: &AbusePlan) -> Result<()> {
    let (runtime, client) = server.bus_client()?;
    let client = Arc::new(client);
    let body = "A line of a registered body.\n".repeat(20);
    for function in ["skills::register", "skills::unregister"] {
        let mut waiting = tokio::task::JoinSet::new();
        runtime.block_on(async {
            for n in 0..plan.registrations {
                if waiting.len() >= REGISTRATIONS_IN_FLIGHT {
                    check_answer(waiting.join_next().await)?;
                }
                let payload = match function {
                    "skills::register" => json!({"id": format!("many/skill-{n}"), "skill": body}),
                    _ => json!({"id": format!("many/skill-{n}")}),
                };
                let client = client.clone();
                waiting.spawn(async move {
                    let text = payload.to_string();
                    client
                        .call_json(function, &text, CALL_TIMEOUT)
                        .await
                        .map(drop)
                });
            }
            while let Some(answer) = waiting.join_next().await {
                check_answer(Some(answer))?;
            }
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

fn check_answer<E: std::fmt::Display>(
    answer: Option<Result<Result<(), E>, tokio::task::JoinError>>,
) -> Result<()> {
    match answer {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(anyhow::anyhow!("{error}")),
        Some(Err(error)) => Err(error.into()),
    }
}

/// Writes a text frame, masked with zeros as the protocol demands.
fn write_text(stream: &mut TcpStream, text: &str) -> Result<()> {
    write_frame(stream, 0x81, text.as_bytes())
}

fn write_frame(stream: &mut TcpStream, first: u8, bytes: &[u8]) -> Result<()> {
    let mut frame = vec![first];
    match bytes.len() {
        0..=125 => frame.push(0x80 | u8::try_from(bytes.len())?),
        126..=65_535 => {
            frame.push(0xfe);
            frame.extend(u16::try_from(bytes.len())?.to_be_bytes());
        }
        _ => {
            frame.push(0xff);
            frame.extend((bytes.len() as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend_from_slice(bytes);
    stream.write_all(&frame)?;
    Ok(())
}

const MALFORMED_BODIES: [&str; 8] = [
    "{",
    "[]",
    "[{}]",
    "null",
    "{\"jsonrpc\":\"2.0\",\"id\":1}",
    "{\"jsonrpc\":\"1.0\",\"id\":{},\"method\":5}",
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":7}}",
    "\u{feff}x",
];

/// Sends requests and frames that are no messages, half over HTTP and half to the hub.
fn send_malformed(server: &ServerProcess, plan: &AbusePlan) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut stream = server.connect_http()?;
    for n in 0..plan.malformed / 2 {
        let garbage: String = (0..random.usize(0..200))
            .map(|_| random.char(' '..'~'))
            .collect();
        let body = match n % 10 {
            0 => garbage.as_str(),
            n => MALFORMED_BODIES[n % MALFORMED_BODIES.len()],
        };
        let request = match n % 50 {
            // Not even HTTP.
            1 => format!("{garbage}\r\n\r\n"),
            _ => format!(
                "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                 Accept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
        };
        let mut answer = [0; 4096];
        let sent = stream.write_all(request.as_bytes());
        let answered = sent.and_then(|()| stream.read(&mut answer));
        if !matches!(answered, Ok(read) if read > 0 && n % 50 != 1) {
            stream = server.connect_http()?;
        }
    }
    let mut stream = server.connect_hub()?;
    let mut left = 0;
    for n in 0..plan.malformed / 2 {
        let garbage: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        let sent = match n % 4 {
            0 => write_text(&mut stream, MALFORMED_BODIES[n % MALFORMED_BODIES.len()]),
            1 => write_frame(&mut stream, 0x82, &garbage),
            2 => write_text(
                &mut stream,
                "{\"type\":\"invokefunction\",\"function_id\":\"no::such\"}",
            ),
            _ => stream.write_all(&garbage).map_err(Into::into),
        };
        left += 1;
        // The hub closes at the first malformed frame; a few more are sent into the void.
        if sent.is_err() || left >= 4 {
            left = 0;
            stream = server.connect_hub()?;
        }
    }
    Ok(())
}

/// Churn of skills, workers, sessions and files for a long time.
fn soak_server(server: &ServerProcess, folder: &Path, plan: &AbusePlan) -> Result<()> {
    let end = Instant::now() + plan.soak;
    let first_error = Mutex::new(None);
    let run = |work: &(dyn Fn(usize) -> Result<()> + Sync)| {
        let mut n = 0;
        while Instant::now() < end {
            if let Err(error) = work(n) {
                let mut place = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                place.get_or_insert(error);
                return;
            }
            n += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let (runtime, client) = server.bus_client()?;
    let churn_skills = |n: usize| -> Result<()> {
        let id = format!("soak/skill-{}", n % 100);
        let (function, payload) = match n % 7 {
            6 => ("skills::unregister", json!({"id": id})),
            _ => (
                "skills::register",
                json!({"id": id, "skill": format!("# Number {n}\n")}),
            ),
        };
        let payload = payload.to_string();
        let call = client.call_json(function, &payload, CALL_TIMEOUT);
        let answer = runtime.block_on(call);
        answer.map(drop).map_err(|error| anyhow::anyhow!("{error}"))
    };
    let churn_workers = |n: usize| -> Result<()> {
        let mut stream = server.connect_hub()?;
        for at in 0..20 {
            let function = json!({
                "type": "registerfunction", "id": format!("soak::worker-{n}-{at}"),
                "request_format": {"type": "object", "description": "x".repeat(200)},
            });
            write_text(&mut stream, &function.to_string())?;
        }
        Ok(())
    };
    let churn_sessions = |n: usize| -> Result<()> {
        let mut stream = server.connect_http()?;
        let body = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":\
                    {\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\"clientInfo\":\
                    {\"name\":\"soak\",\"version\":\"1\"}}}";
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: \
             application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = vec![0; 16 * 1024];
        let read = stream.read(&mut answer)?;
        let text = String::from_utf8_lossy(&answer[..read]).to_lowercase();
        let session = text
            .lines()
            .find_map(|line| line.strip_prefix("mcp-session-id: "));
        // Some are ended, others are left behind.
        if let (Some(session), true) = (session, !n.is_multiple_of(4)) {
            let end = format!(
                "DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nMcp-Session-Id: {}\r\n\
                 MCP-Protocol-Version: 2025-11-25\r\n\r\n",
                session.trim()
            );
            stream.write_all(end.as_bytes())?;
            let _ = stream.read(&mut answer)?;
        }
        Ok(())
    };
    let churn_files = |n: usize| -> Result<()> {
        let at = 450 + n % 50;
        if n % 5 == 4 {
            fs::remove_dir_all(folder.join(format!("skill-{at:05}")))?;
        }
        write_skill(folder, at, &format!("changed {n} times"))
    };
    std::thread::scope(|scope| {
        for work in [
            &churn_skills as &(dyn Fn(usize) -> Result<()> + Sync),
            &churn_workers,
            &churn_sessions,
            &churn_files,
        ] {
            scope.spawn(move || run(work));
        }
    });
    let error = first_error.into_inner();
    match error.unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Waits until the memory is back, or the time for that is over.
fn wait_settled(server: &ServerProcess, before: u64, plan: &AbusePlan) {
    let end = Instant::now() + plan.settle;
    while Instant::now() < end && server.resident_kib() > before * 13 / 10 {
        std::thread::sleep(Duration::from_millis(500));
    }
    std::thread::sleep(Duration::from_secs(2));
}
