//! The functions of the registry on the hub, compared with the hub's own state in the same run.
//!
//! The state is the baseline: a call through the same socket to the same store. The calls take
//! turns, round by round, at growing numbers of skills.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use repertoire_serve::iii::bus_client::BusClient;
use serde_json::{Value, json};

use crate::measure::{format_duration, median, print_round_comparison};

const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const IN_FLIGHT: [usize; 2] = [1, 8];
/// The bytes of a body.
const BODY_BYTES: usize = 4096;
const CALL_TIMEOUT: Duration = Duration::from_mins(1);

fn round_count() -> usize {
    let quick = std::env::var("REPERTOIRE_BENCH").is_ok_and(|word| word == "quick");
    if quick { 3 } else { 11 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BusCall {
    Get,
    Set,
    Read,
    Register,
    List,
    Resources,
    Index,
}

/// The number of skills that larger numbers are compared with.
const BASELINE_SKILLS: usize = 1_000;

/// The index comes last: its responses are megabytes and would slow down the next call.
const BUS_CALLS: [BusCall; 7] = [
    BusCall::Get,
    BusCall::Set,
    BusCall::Read,
    BusCall::Register,
    BusCall::List,
    BusCall::Resources,
    BusCall::Index,
];

impl BusCall {
    fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        match self {
            Self::Get => "state::get",
            Self::Set => "durable state::set",
            Self::Read => "skills::resources-read",
            Self::Register => "skills::register",
            Self::List => "skills::list, 100 rows",
            Self::Resources => "skills::resources-list, 100 rows",
            Self::Index => "iii://skills",
        }
    }

    /// Returns the duration of one round.
    fn round_duration(self) -> Duration {
        match self {
            Self::Index => Duration::from_millis(100),
            _ => Duration::from_millis(250),
        }
    }

    /// Returns the function and the payload of the n-th call among this many skills.
    fn build_request(self, n: usize, skills: usize) -> (&'static str, String) {
        // A stride, so that consecutive calls do not read neighbouring rows.
        let any = n.wrapping_mul(7919) % skills;
        match self {
            Self::Get => {
                let row = json!({"scope": "baseline", "key": skill_id(any)});
                ("state::get", row.to_string())
            }
            Self::Set => ("state::set", state_value(any).to_string()),
            Self::Read => {
                let uri = json!({"uri": format!("iii://{}", skill_id(any))});
                ("skills::resources-read", uri.to_string())
            }
            Self::Register => {
                let skill = json!({"id": skill_id(any), "skill": skill_body(any)});
                ("skills::register", skill.to_string())
            }
            Self::List => ("skills::list", json!({"limit": 100}).to_string()),
            Self::Resources => ("skills::resources-list", json!({"limit": 100}).to_string()),
            Self::Index => {
                let uri = json!({"uri": "iii://skills"});
                ("skills::resources-read", uri.to_string())
            }
        }
    }
}

/// An id without a `/`, which workers of early versions refuse.
fn skill_id(n: usize) -> String {
    format!("team-{}-skill-{n:06}", n % 97)
}

/// Returns a state value for the baseline, with the same content as a skill.
fn state_value(n: usize) -> Value {
    let value =
        json!({"id": skill_id(n), "skill": skill_body(n), "registered_at": "2026-01-01T00:00:00Z"});
    json!({"scope": "baseline", "key": skill_id(n), "value": value})
}

fn skill_body(n: usize) -> String {
    let mut text = format!("# Skill {n}\n\nStands for number {n} of many in a benchmark.\n\n");
    let line = "A line of instructions as they are in skills, with `code` and \"quotes\".\n";
    while text.len() + line.len() <= BODY_BYTES {
        text.push_str(line);
    }
    text
}

/// A hub in its own process; dropping it ends the process.
struct HubProcess(Child, String);

impl HubProcess {
    fn start(program: &Path, home: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["serve", "--port", "0", "--hub", "0", "--json", "--quiet"])
            .env("REPERTOIRE_HOME", home)
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
            .current_dir(home)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let out = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let addresses: Value = serde_json::from_str(&line).context("the hub did not start")?;
        let url = addresses["hub"].as_str().context("no hub")?.to_owned();
        Ok(Self(child, url))
    }

    fn resident_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kib.unwrap_or(0)
    }
}

impl Drop for HubProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &Path) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure_hub(program))
}

/// The times of every call, round by round.
type CallTimes = [Vec<Duration>; BUS_CALLS.len()];

/// One hub with its client and its number of skills.
struct HubUnderTest {
    hub: HubProcess,
    client: Arc<BusClient>,
    skills: usize,
    _home: tempfile::TempDir,
}

impl HubUnderTest {
    async fn start(program: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let hub = HubProcess::start(program, home.path())?;
        let client = Arc::new(BusClient::connect(&hub.1, None).await?);
        Ok(Self {
            hub,
            client,
            skills: 0,
            _home: home,
        })
    }

    async fn grow_to(&mut self, to: usize) -> Result<()> {
        register_skills(&self.client, self.skills, to).await?;
        self.skills = to;
        Ok(())
    }
}

async fn measure_hub(program: &Path) -> Result<()> {
    let mut ours = HubUnderTest::start(program).await?;
    // A second hub with a thousand skills, measured at the same time.
    let mut small = HubUnderTest::start(program).await?;
    small.grow_to(BASELINE_SKILLS).await?;
    println!(
        "| skills | in flight | {} |",
        BUS_CALLS.map(BusCall::name).join(" | ")
    );
    println!("|---|---|{}", "---|".repeat(BUS_CALLS.len()));
    let mut ratios = Vec::new();
    let mut largest = 0;
    for size in SIZES {
        ours.grow_to(size).await?;
        for in_flight in IN_FLIGHT {
            let sides = if size == SIZES[SIZES.len() - 1] {
                vec![&ours, &small]
            } else {
                vec![&ours]
            };
            let (times, most) = measure_rounds(&sides, in_flight).await?;
            largest = largest.max(most);
            let cells = times[0]
                .clone()
                .map(|times| format_duration(median(times)))
                .join(" | ");
            println!("| {size} | {in_flight} | {cells} |");
            let name = |op: BusCall| format!("{} at {size}, {in_flight} in flight", op.name());
            for (op, floor) in [
                (BusCall::Read, BusCall::Get),
                (BusCall::Register, BusCall::Set),
            ] {
                let pair = (
                    times[0][op.index()].clone(),
                    times[0][floor.index()].clone(),
                );
                ratios.push((name(op), floor.name(), pair));
            }
            if let [large, small] = &times[..] {
                for op in [
                    BusCall::Read,
                    BusCall::Register,
                    BusCall::List,
                    BusCall::Resources,
                ] {
                    let pair = (large[op.index()].clone(), small[op.index()].clone());
                    ratios.push((name(op), "the same at 1000", pair));
                }
            }
        }
    }
    println!("\n| what | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|");
    for (what, peer, (ours, theirs)) in &ratios {
        print_round_comparison(what, ours, peer, theirs, 1.5);
    }
    println!(
        "\nlargest answer: {} bytes; memory of the hub: {} MiB",
        largest,
        ours.hub.resident_memory() / 1024
    );
    Ok(())
}

/// Measures every call on every hub in turns; returns the largest response too.
async fn measure_rounds(
    sides: &[&HubUnderTest],
    in_flight: usize,
) -> Result<(Vec<CallTimes>, usize)> {
    let mut times: Vec<CallTimes> = vec![CallTimes::default(); sides.len()];
    let mut largest = 0;
    let (index, others): (Vec<BusCall>, Vec<BusCall>) =
        BUS_CALLS.into_iter().partition(|op| *op == BusCall::Index);
    for ops in [others, index] {
        for round in 0..round_count() {
            for op in &ops {
                for (side, times) in sides.iter().zip(&mut times) {
                    let (client, skills) = (&side.client, side.skills);
                    let (time, most) = measure_call(client, *op, skills, in_flight, round).await?;
                    times[op.index()].push(time);
                    largest = largest.max(most);
                }
            }
        }
    }
    Ok((times, largest))
}

/// The functions that every worker of this kind has.
const COMPARED_CALLS: [BusCall; 5] = [
    BusCall::Get,
    BusCall::Register,
    BusCall::Read,
    BusCall::List,
    BusCall::Index,
];
/// How many skills there are while buses are compared.
const COMPARED_SKILLS: usize = 1_000;
/// After this time an answer counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// Measures the functions on buses at some addresses in turns, the first of them against the others, and
/// then counts the answers that get lost.
pub(crate) fn compare_buses(urls: &[&str], calls: usize) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let mut clients = Vec::new();
            for url in urls {
                let client = Arc::new(BusClient::connect(url, None).await?);
                register_skills(&client, 0, COMPARED_SKILLS).await?;
                clients.push(client);
            }
            println!("| call | in flight | times | ratios |");
            println!("|---|---|---|---|");
            for op in COMPARED_CALLS {
                for in_flight in IN_FLIGHT {
                    compare_call(&clients, op, in_flight).await?;
                }
            }
            for (client, url) in clients.iter().zip(urls) {
                for op in COMPARED_CALLS {
                    let lost = count_lost(client, op, calls).await?;
                    println!("{url}: {} of {calls} answers lost: {lost}", op.name());
                }
            }
            Ok(())
        })
}

async fn compare_call(clients: &[Arc<BusClient>], op: BusCall, in_flight: usize) -> Result<()> {
    let mut times = vec![Vec::new(); clients.len()];
    for round in 0..round_count() {
        for (client, times) in clients.iter().zip(&mut times) {
            let (time, _) = measure_call(client, op, COMPARED_SKILLS, in_flight, round).await?;
            times.push(time);
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(median).collect();
    let shown: Vec<String> = medians.iter().map(|time| format_duration(*time)).collect();
    let ratios: Vec<String> = medians[1..]
        .iter()
        .map(|other| format!("{:.2}", other.as_secs_f64() / medians[0].as_secs_f64()))
        .collect();
    println!(
        "| {} | {in_flight} | {} | {} |",
        op.name(),
        shown.join(", "),
        ratios.join(", ")
    );
    Ok(())
}

/// Calls a function often, eight at a time, and counts the calls without an answer.
async fn count_lost(client: &Arc<BusClient>, op: BusCall, calls: usize) -> Result<usize> {
    let next = Arc::new(AtomicUsize::new(0));
    let callers = (0..8).map(|_| {
        let (client, next) = (client.clone(), next.clone());
        tokio::spawn(async move {
            let mut lost = 0;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= calls {
                    return lost;
                }
                let (function, payload) = op.build_request(n, COMPARED_SKILLS);
                let answer = client.call_json(function, &payload, LOST_AFTER).await;
                lost += usize::from(matches!(answer, Err(error) if error.code == "timeout"));
            }
        })
    });
    let mut lost = 0;
    for caller in callers.collect::<Vec<_>>() {
        lost += caller.await?;
    }
    Ok(lost)
}

/// Registers skills up to this number, and sets as many values for the baseline.
async fn register_skills(client: &Arc<BusClient>, from: usize, to: usize) -> Result<()> {
    let mut waiting = tokio::task::JoinSet::new();
    for n in from..to {
        if waiting.len() == 128 {
            waiting.join_next().await.context("nothing to wait for")??;
        }
        let client = client.clone();
        waiting.spawn(async move {
            let skill = json!({"id": skill_id(n), "skill": skill_body(n)}).to_string();
            // A failed registration shows when the skill is read.
            let _ = client
                .call_json("skills::register", &skill, CALL_TIMEOUT)
                .await;
            let value = state_value(n).to_string();
            let _ = client.call_json("state::set", &value, CALL_TIMEOUT).await;
        });
    }
    while let Some(done) = waiting.join_next().await {
        done?;
    }
    Ok(())
}

/// Calls one function repeatedly; returns the time of one call and the largest response.
async fn measure_call(
    client: &Arc<BusClient>,
    op: BusCall,
    skills: usize,
    in_flight: usize,
    round: usize,
) -> Result<(Duration, usize)> {
    let until = Instant::now() + op.round_duration();
    let start = Instant::now();
    let callers = (0..in_flight).map(|caller| {
        let client = client.clone();
        tokio::spawn(async move {
            let (mut calls, mut largest) = (0usize, 0);
            while calls == 0 || Instant::now() < until {
                let n = round * 100_003 + caller * 10_007 + calls;
                let (function, payload) = op.build_request(n, skills);
                let answer = client.call_json(function, &payload, CALL_TIMEOUT).await?;
                largest = answer.len().max(largest);
                calls += 1;
            }
            anyhow::Ok((calls, largest))
        })
    });
    let (mut calls, mut largest) = (0, 0);
    for caller in callers.collect::<Vec<_>>() {
        let (made, most) = caller.await??;
        calls += made;
        largest = largest.max(most);
    }
    // The time a caller waits, not the time between responses.
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok((start.elapsed() * number(in_flight) / number(calls), largest))
}
