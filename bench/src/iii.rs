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

use crate::measure::{compare_rounds, median, shown};

const SIZES: [usize; 4] = [100, 1_000, 10_000, 100_000];
const IN_FLIGHT: [usize; 2] = [1, 8];
/// The bytes of a body.
const BODY: usize = 4096;
const PATIENCE: Duration = Duration::from_mins(1);

fn rounds() -> usize {
    let quick = std::env::var("REPERTOIRE_BENCH").is_ok_and(|word| word == "quick");
    if quick { 3 } else { 11 }
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

/// The size everything is held against.
const SMALL: usize = 1_000;

/// The index comes last: its answers are megabytes, and the next call would pay for them.
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
    fn at(self) -> usize {
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

    /// How long one round of it takes.
    fn time(self) -> Duration {
        match self {
            Self::Index => Duration::from_millis(100),
            _ => Duration::from_millis(250),
        }
    }

    /// The function and what it is called with, for the n-th call among so many skills.
    fn call(self, n: usize, skills: usize) -> (&'static str, String) {
        // Far apart, so that neighbours in the store are not neighbours in time.
        let any = n.wrapping_mul(7919) % skills;
        match self {
            Self::Get => {
                let row = json!({"scope": "floor", "key": id(any)});
                ("state::get", row.to_string())
            }
            Self::Set => ("state::set", value(any).to_string()),
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

/// A value of the floor, which is what a skill is to the store.
fn value(n: usize) -> Value {
    let value = json!({"id": id(n), "skill": body(n), "registered_at": "2026-01-01T00:00:00Z"});
    json!({"scope": "floor", "key": id(n), "value": value})
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
            .env("REPERTOIRE_NO_SYSTEM_SKILLS", "1")
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

/// The times of every call, round by round.
type Times = [Vec<Duration>; OPS.len()];

/// One hub and what was measured of it.
struct Side {
    hub: Hub,
    client: Arc<Client>,
    skills: usize,
    _home: tempfile::TempDir,
}

impl Side {
    async fn start(program: &Path) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let hub = Hub::start(program, home.path())?;
        let client = Arc::new(Client::connect(&hub.1, None).await?);
        Ok(Self {
            hub,
            client,
            skills: 0,
            _home: home,
        })
    }

    async fn grow(&mut self, to: usize) -> Result<()> {
        fill(&self.client, self.skills, to).await?;
        self.skills = to;
        Ok(())
    }
}

async fn measure(program: &Path) -> Result<()> {
    let mut ours = Side::start(program).await?;
    // What everything costs at a thousand, at the same time as at more.
    let mut small = Side::start(program).await?;
    small.grow(SMALL).await?;
    println!("| skills | in flight | {} |", OPS.map(Op::name).join(" | "));
    println!("|---|---|{}", "---|".repeat(OPS.len()));
    let mut ratios = Vec::new();
    let mut largest = 0;
    for size in SIZES {
        ours.grow(size).await?;
        for in_flight in IN_FLIGHT {
            let sides = if size == SIZES[SIZES.len() - 1] {
                vec![&ours, &small]
            } else {
                vec![&ours]
            };
            let (times, most) = rounds_of(&sides, in_flight).await?;
            largest = largest.max(most);
            let cells = times[0]
                .clone()
                .map(|times| shown(median(times)))
                .join(" | ");
            println!("| {size} | {in_flight} | {cells} |");
            let name = |op: Op| format!("{} at {size}, {in_flight} in flight", op.name());
            for (op, floor) in [(Op::Read, Op::Get), (Op::Register, Op::Set)] {
                let pair = (times[0][op.at()].clone(), times[0][floor.at()].clone());
                ratios.push((name(op), floor.name(), pair));
            }
            if let [large, small] = &times[..] {
                for op in [Op::Read, Op::Register, Op::List, Op::Resources] {
                    let pair = (large[op.at()].clone(), small[op.at()].clone());
                    ratios.push((name(op), "the same at 1000", pair));
                }
            }
        }
    }
    println!("\n| what | ours | peer | theirs | ratio | goal |\n|---|---|---|---|---|---|");
    for (what, peer, (ours, theirs)) in &ratios {
        compare_rounds(what, ours, peer, theirs, 1.5);
    }
    println!(
        "\nlargest answer: {} bytes; memory of the hub: {} MiB",
        largest,
        ours.hub.memory() / 1024
    );
    Ok(())
}

/// Measures every call on every side, taking turns; gives the largest answer too.
async fn rounds_of(sides: &[&Side], in_flight: usize) -> Result<(Vec<Times>, usize)> {
    let mut times: Vec<Times> = vec![Times::default(); sides.len()];
    let mut largest = 0;
    let (index, others): (Vec<Op>, Vec<Op>) = OPS.into_iter().partition(|op| *op == Op::Index);
    for ops in [others, index] {
        for round in 0..rounds() {
            for op in &ops {
                for (side, times) in sides.iter().zip(&mut times) {
                    let (client, skills) = (&side.client, side.skills);
                    let (time, most) = load(client, *op, skills, in_flight, round).await?;
                    times[op.at()].push(time);
                    largest = largest.max(most);
                }
            }
        }
    }
    Ok((times, largest))
}

/// Registers skills until there are so many, and sets as many values for the floor.
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
            let value = value(n).to_string();
            let _ = client.ask("state::set", &value, PATIENCE).await;
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
