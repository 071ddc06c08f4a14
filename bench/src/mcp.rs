//! MCP servers side by side: ours, pmcp, and bare `rmcp` with a constant answer.
//!
//! The three take turns within one run, round by round, so that whatever else the machine does
//! disturbs all of them alike. What is least disturbed is the time a server itself spent on a
//! processor, so that is reported for each request beside throughput and latency.

mod load;
mod peer;

use std::{fs, path::Path, sync::LazyLock, time::Duration};

use anyhow::{Context, Result};

use self::{
    load::{Sample, Wire},
    peer::{Peer, Which},
};

/// How long one server is loaded in one round.
const ROUND: Duration = Duration::from_millis(1500);
/// How often each has its turn; `REPERTOIRE_BENCH=quick` is for a first look.
static ROUNDS: LazyLock<usize> = LazyLock::new(|| if quick() { 2 } else { 5 });

fn quick() -> bool {
    std::env::var("REPERTOIRE_BENCH").is_ok_and(|word| word == "quick")
}
/// The bytes of a skill's document.
pub(crate) const SIZE: usize = 3000;

/// What is asked, and of whom.
struct Case {
    name: &'static str,
    wire: Wire,
    method: &'static str,
    peers: &'static [Which],
}

const CASES: [Case; 3] = [
    Case {
        name: "HTTP resources/read",
        wire: Wire::Http,
        method: "resources/read",
        peers: &[Which::Ours, Which::Bare, Which::Pmcp],
    },
    Case {
        name: "HTTP skills/get",
        wire: Wire::Http,
        method: "skills/get",
        peers: &[Which::Ours, Which::Bare, Which::Pmcp],
    },
    Case {
        name: "stdio resources/read",
        wire: Wire::Stdio,
        method: "resources/read",
        peers: &[Which::Ours, Which::Bare, Which::Pmcp],
    },
];

/// Writes a folder of skills, each with a document and a reference.
fn skills(folder: &Path, number: usize) -> Result<()> {
    for at in 0..number {
        let name = format!("skill-{at:05}");
        let place = folder.join(&name);
        fs::create_dir_all(place.join("references"))?;
        let head = format!(
            "---\nname: {name}\ndescription: Stands for number {at} of many in a benchmark. Use \
             when number {at} is asked for by somebody.\n---\n# Number {at}\n\n"
        );
        let line = "A line of instructions as they are in skills, with `code` and \"quotes\".\n";
        let mut text = head;
        while text.len() + line.len() < SIZE {
            text.push_str(line);
        }
        fs::write(place.join("SKILL.md"), text)?;
        fs::write(place.join("references/more.md"), line.repeat(12))?;
    }
    Ok(())
}

pub(crate) fn run(ours: &Path, pmcp: &Path) -> Result<()> {
    let mut goals = Vec::new();
    let rounds = *ROUNDS;
    println!("ours, pmcp 2.23 and bare rmcp 3.8, {rounds} rounds in turn; medians of the rounds.");
    let sizes: &[usize] = if quick() { &[10_000] } else { &[1_000, 10_000] };
    for &number in sizes {
        let folder = tempfile::tempdir()?;
        let home = tempfile::tempdir()?;
        skills(folder.path(), number)?;
        let peers = peer::Peers {
            ours,
            pmcp,
            folder: folder.path(),
            home: home.path(),
            number,
        };
        println!("\n## {number} skills\n");
        println!("| request | in flight | server | req/s | p50 µs | p99 µs | CPU µs/req |");
        println!("|---|---|---|---|---|---|---|");
        for case in &CASES {
            for in_flight in [1, 8] {
                let rates = measure(&peers, case, in_flight)?;
                goals.extend(judge(case, number, in_flight, &rates));
            }
        }
        goals.extend(enumerate(&peers)?);
        goals.extend(start(&peers)?);
    }
    println!("\n## Goals\n");
    println!("| goal | wanted | measured | |");
    println!("|---|---|---|---|");
    for goal in goals {
        println!("{goal}");
    }
    Ok(())
}

/// The median of numbers.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A row of the table of goals.
fn goal(name: &str, at_least: bool, wanted: f64, measured: f64) -> String {
    let met = if at_least {
        measured >= wanted
    } else {
        measured <= wanted
    };
    let sign = if at_least { "≥" } else { "≤" };
    let word = if met { "met" } else { "MISSED" };
    format!("| {name} | {sign} {wanted} | {measured:.3} | {word} |")
}

/// The medians of one server in one case.
struct Rate {
    which: Which,
    per_second: f64,
    cpu: f64,
}

fn measure(peers: &peer::Peers<'_>, case: &Case, in_flight: usize) -> Result<Vec<Rate>> {
    let mut running = Vec::new();
    for which in case.peers {
        let peer = Peer::start(peers, *which, case.wire)?;
        running.push((*which, peer, Vec::<Sample>::new()));
    }
    // Nobody is measured while it still reads its skills.
    for (_, peer, _) in &mut running {
        peer.load(case.method, peers.number, in_flight, ROUND / 3)?;
    }
    for _ in 0..*ROUNDS {
        for (_, peer, samples) in &mut running {
            samples.push(peer.load(case.method, peers.number, in_flight, ROUND)?);
        }
    }
    let mut rates = Vec::new();
    for (which, _, samples) in running {
        let of = |number: fn(&Sample) -> f64| median(samples.iter().map(number).collect());
        let (rate, cpu) = (of(|s| s.rate), of(|s| s.cpu_micros));
        println!(
            "| {} | {in_flight} | {which} | {rate:.0} | {:.0} | {:.0} | {cpu:.1} |",
            case.name,
            of(|s| s.p50),
            of(|s| s.p99),
        );
        rates.push(Rate {
            which,
            per_second: rate,
            cpu,
        });
    }
    Ok(rates)
}

fn judge(case: &Case, number: usize, in_flight: usize, rates: &[Rate]) -> Vec<String> {
    let find = |which| rates.iter().find(|rate| rate.which == which);
    let (Some(ours), Some(bare), Some(pmcp)) =
        (find(Which::Ours), find(Which::Bare), find(Which::Pmcp))
    else {
        return Vec::new();
    };
    let name = |of: &str| {
        format!(
            "{}, {number} skills, {in_flight} in flight: {of}",
            case.name
        )
    };
    let against = |peer: &Rate, wanted: f64, word: &str| {
        let rate = name(&format!("rate / {word}"));
        let cpu = name(&format!("{word}'s CPU / ours"));
        [
            goal(&rate, true, wanted, ours.per_second / peer.per_second),
            goal(&cpu, true, wanted, peer.cpu / ours.cpu),
        ]
    };
    match case.wire {
        Wire::Http => [against(bare, 0.9, "bare"), against(pmcp, 1.0, "pmcp")].concat(),
        Wire::Stdio => against(pmcp, 3.0, "pmcp").into(),
    }
}

/// Every skill, page by page, against the peer's one answer.
fn enumerate(peers: &peer::Peers<'_>) -> Result<Vec<String>> {
    let mut ours = Peer::start(peers, Which::Ours, Wire::Http)?;
    let mut pmcp = Peer::start(peers, Which::Pmcp, Wire::Http)?;
    let mut times = (Vec::new(), Vec::new());
    let mut cpu = (Vec::new(), Vec::new());
    for round in 0..=*ROUNDS {
        let (a, x) = ours.enumerate(peers.number)?;
        let (b, y) = pmcp.enumerate(peers.number)?;
        if round > 0 {
            times.0.push(a.as_secs_f64() * 1e3);
            times.1.push(b.as_secs_f64() * 1e3);
            cpu.0.push(x);
            cpu.1.push(y);
        }
    }
    let (a, b) = (median(times.0), median(times.1));
    let (x, y) = (median(cpu.0), median(cpu.1));
    let memory = (ours.memory()?, pmcp.memory()?);
    println!(
        "\nskills/list of all: ours {a:.1} ms in pages ({x:.0} µs CPU), pmcp {b:.1} ms in one answer ({y:.0} µs CPU)"
    );
    println!(
        "memory afterwards: ours {} KiB, pmcp {} KiB",
        memory.0, memory.1
    );
    if peers.number < 10_000 {
        return Ok(Vec::new());
    }
    #[allow(clippy::cast_precision_loss, reason = "a few hundred thousand")]
    let memory = memory.0 as f64 / memory.1 as f64;
    Ok(vec![
        goal(
            "enumerate 10000 skills: pmcp's time / ours",
            true,
            3.0,
            b / a,
        ),
        goal(
            "enumerate 10000 skills: pmcp's CPU / ours",
            true,
            3.0,
            y / x,
        ),
        goal("memory at 10000 skills: ours / pmcp", false, 0.35, memory),
    ])
}

/// From the start of the process to the answer to `initialize`.
fn start(peers: &peer::Peers<'_>) -> Result<Vec<String>> {
    let mut times = (Vec::new(), Vec::new());
    for round in 0..=*ROUNDS {
        let ours = Peer::hello(peers, Which::Ours).context("ours")?;
        let pmcp = Peer::hello(peers, Which::Pmcp).context("pmcp")?;
        if round > 0 {
            times.0.push(ours.as_secs_f64() * 1e3);
            times.1.push(pmcp.as_secs_f64() * 1e3);
        }
    }
    let (ours, pmcp) = (median(times.0), median(times.1));
    println!("start to initialize answered: ours {ours:.1} ms, pmcp {pmcp:.1} ms");
    if peers.number < 10_000 {
        return Ok(Vec::new());
    }
    let name = "start to initialize, 10000 skills: ours / pmcp";
    Ok(vec![goal(name, false, 0.05, ours / pmcp)])
}
