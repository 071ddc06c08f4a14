//! The functions of the registry on the hub, against the hub's own state in the same run.
//!
//! The state is the floor: a call that goes through the same socket to the same store. Everything
//! takes turns, round by round, at growing numbers of skills.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use repertoire_serve::iii::client::Client;
use serde_json::{Value, json};

use crate::measure::{compare, median, shown};

const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const IN_FLIGHT: [usize; 2] = [1, 8];
/// The bytes of a body.
const BODY: usize = 4096;
/// How many values the floor takes turns with.
const FLOOR: usize = 1_000;
const PATIENCE: Duration = Duration::from_mins(1);

fn rounds() -> usize {
    let quick = std::env::var("REPERTOIRE_BENCH").is_ok_and(|word| word == "quick");
    if quick { 2 } else { 5 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Get,
    Set,
    Read,
    Register,
    List,
    Resources,
    Index,
}

const OPS: [Op; 7] = [
    Op::Get,
    Op::Set,
    Op::Read,
    Op::Register,
    Op::List,
    Op::Resources,
    Op::Index,
];

impl Op {
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

    /// How long one round of it takes.
    fn time(self) -> Duration {
        match self {
            Self::Index => Duration::from_millis(150),
            _ => Duration::from_millis(400),
        }
    }

    /// The function and what it is called with, for the n-th call among so many skills.
    fn call(self, n: usize, skills: usize) -> (&'static str, String) {
        // Far apart, so that neighbours in the store are not neighbours in time.
        let any = n.wrapping_mul(7919) % skills;
        let row = |value: Value| json!({"scope": "floor", "key": format!("k{}", n * 31 % FLOOR), "value": value});
        match self {
            Self::Get => ("state::get", row(Value::Null).to_string()),
            Self::Set => {
                let value = json!({"id": "x", "skill": body(n), "registered_at": "now"});
                ("state::set", row(value).to_string())
            }
            Self::Read => {
                let uri = json!({"uri": format!("iii://{}", id(any))});
                ("skills::resources-read", uri.to_string())
            }
            Self::Register => {
                let skill = json!({"id": id(any), "skill": body(any)});
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

fn id(n: usize) -> String {
    format!("team-{}/skill-{n:06}", n % 97)
}

fn body(n: usize) -> String {
    let mut text = format!("# Skill {n}\n\nStands for number {n} of many in a benchmark.\n\n");
    let line = "A line of instructions as they are in skills, with `code` and \"quotes\".\n";
    while text.len() + line.len() <= BODY {
        text.push_str(line);
    }
    text
}

/// A hub in a process of its own, which ends with this value.
struct Hub(Child, String);

impl Hub {
    fn start(program: &Path, home: &Path) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["serve", "--port", "0", "--hub", "0", "--json", "--quiet"])
            .env("REPERTOIRE_HOME", home)
            .current_dir(home)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let out = child.stdout.take().context("no stdout")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("the hub did not start")?;
        let url = said["hub"].as_str().context("no hub")?.to_owned();
        Ok(Self(child, url))
    }

    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        kib.unwrap_or(0)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &Path) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(measure(program))
}

async fn measure(program: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let hub = Hub::start(program, home.path())?;
    let client = Arc::new(Client::connect(&hub.1, None).await?);
    for n in 0..FLOOR {
        let value = json!({"id": "x", "skill": body(n), "registered_at": "now"});
        let row = json!({"scope": "floor", "key": format!("k{n}"), "value": value});
        client.ask("state::set", &row.to_string(), PATIENCE).await?;
    }
    println!("| skills | in flight | {} |", OPS.map(Op::name).join(" | "));
    println!("|---|---|{}", "---|".repeat(OPS.len()));
    let mut there = 0;
    let mut all: Vec<(usize, usize, [Duration; OPS.len()])> = Vec::new();
    let mut largest = 0;
    for size in SIZES {
        fill(&client, there, size).await?;
        there = size;
        for in_flight in IN_FLIGHT {
            let mut times: [Vec<Duration>; OPS.len()] = Default::default();
            for round in 0..rounds() {
                for (at, op) in OPS.into_iter().enumerate() {
                    let (time, most) = load(&client, op, size, in_flight, round).await?;
                    times[at].push(time);
                    largest = largest.max(most);
                }
            }
            let medians = times.map(median);
            let cells = medians.map(shown).join(" | ");
            println!("| {size} | {in_flight} | {cells} |");
            all.push((size, in_flight, medians));
        }
    }
    println!("\n| what | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|");
    let at = |op: Op| OPS.iter().position(|o| *o == op).unwrap_or(0);
    let of = |size: usize, in_flight: usize, op: Op| {
        let row = all.iter().find(|row| (row.0, row.1) == (size, in_flight));
        row.map_or(Duration::ZERO, |row| row.2[at(op)])
    };
    for size in SIZES {
        for in_flight in IN_FLIGHT {
            let goal = Some(1.5);
            let name = |op: Op| format!("{} at {size}, {in_flight} in flight", op.name());
            for (ours, floor) in [(Op::Read, Op::Get), (Op::Register, Op::Set)] {
                let (a, b) = (of(size, in_flight, ours), of(size, in_flight, floor));
                compare(&name(ours), a, floor.name(), b, goal);
            }
        }
    }
    let [.., large] = SIZES;
    for in_flight in IN_FLIGHT {
        for op in [Op::Read, Op::Register, Op::List, Op::Resources] {
            let what = format!("{} at {large}, {in_flight} in flight", op.name());
            let (a, b) = (of(large, in_flight, op), of(1_000, in_flight, op));
            compare(&what, a, "the same at 1000", b, Some(1.5));
        }
    }
    println!(
        "\nlargest answer: {} bytes; memory of the hub: {} MiB",
        largest,
        hub.memory() / 1024
    );
    Ok(())
}

/// Registers skills until there are so many.
async fn fill(client: &Arc<Client>, from: usize, to: usize) -> Result<()> {
    let mut waiting = tokio::task::JoinSet::new();
    for n in from..to {
        if waiting.len() == 128 {
            waiting.join_next().await.context("nothing to wait for")??;
        }
        let client = client.clone();
        waiting.spawn(async move {
            let skill = json!({"id": id(n), "skill": body(n)}).to_string();
            // One that cannot be registered shows when it is read.
            let _ = client.ask("skills::register", &skill, PATIENCE).await;
        });
    }
    while let Some(done) = waiting.join_next().await {
        done?;
    }
    Ok(())
}

/// Calls one function again and again; gives the time one call takes, and the largest answer.
async fn load(
    client: &Arc<Client>,
    op: Op,
    skills: usize,
    in_flight: usize,
    round: usize,
) -> Result<(Duration, usize)> {
    let until = Instant::now() + op.time();
    let start = Instant::now();
    let callers = (0..in_flight).map(|caller| {
        let client = client.clone();
        tokio::spawn(async move {
            let (mut calls, mut largest) = (0usize, 0);
            while calls == 0 || Instant::now() < until {
                let n = round * 100_003 + caller * 10_007 + calls;
                let (function, payload) = op.call(n, skills);
                let answer = client.ask(function, &payload, PATIENCE).await?;
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
    // The time a caller waits, not the time between answers.
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok((start.elapsed() * number(in_flight) / number(calls), largest))
}
