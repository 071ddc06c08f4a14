//! MCP servers side by side: ours, pmcp, and bare `rmcp` with a constant answer.
//!
//! The three take turns within one run, round by round, so that other load on the machine affects
//! all of them alike. The CPU time of a server is affected least, so it is reported per request
//! beside throughput and latency.

mod large_folder;
pub(crate) mod load;
mod peer;

use std::{fs, path::Path, sync::LazyLock, time::Duration};

use anyhow::{Context, Result};

use self::{
    load::{LoadSample, Transport},
    peer::{PeerServer, ServerKind},
};

/// How long one server is loaded in one round.
const ROUND_DURATION: Duration = Duration::from_millis(1500);
/// The number of rounds; `REPERTOIRE_BENCH=quick` is for a first look.
static ROUND_COUNT: LazyLock<usize> = LazyLock::new(|| if is_quick() { 2 } else { 5 });

fn is_quick() -> bool {
    std::env::var("REPERTOIRE_BENCH").is_ok_and(|word| word == "quick")
}
/// The bytes of a skill's document.
pub(crate) const DOCUMENT_BYTES: usize = 3000;

/// A request and the servers that receive it.
struct RequestCase {
    name: &'static str,
    wire: Transport,
    method: &'static str,
    peers: &'static [ServerKind],
}

const REQUEST_CASES: [RequestCase; 3] = [
    RequestCase {
        name: "HTTP resources/read",
        wire: Transport::Http,
        method: "resources/read",
        peers: &[ServerKind::Ours, ServerKind::Bare, ServerKind::Pmcp],
    },
    RequestCase {
        name: "HTTP skills/get",
        wire: Transport::Http,
        method: "skills/get",
        peers: &[ServerKind::Ours, ServerKind::Bare, ServerKind::Pmcp],
    },
    RequestCase {
        name: "stdio resources/read",
        wire: Transport::Stdio,
        method: "resources/read",
        peers: &[ServerKind::Ours, ServerKind::Bare, ServerKind::Pmcp],
    },
];

/// Writes a folder of skills, each with a document and a reference.
fn write_skills(folder: &Path, number: usize) -> Result<()> {
    for at in 0..number {
        let name = format!("skill-{at:05}");
        let place = folder.join(&name);
        fs::create_dir_all(place.join("references"))?;
        let head = format!(
            "---\nname: {name}\ndescription: Stands for number {at} of many in a benchmark. Use \
             when number {at} is asked for by a user.\n---\n# Number {at}\n\n"
        );
        let line = "A line of instructions as they are in skills, with `code` and \"quotes\".\n";
        let mut text = head;
        while text.len() + line.len() < DOCUMENT_BYTES {
            text.push_str(line);
        }
        fs::write(place.join("SKILL.md"), text)?;
        fs::write(place.join("references/more.md"), line.repeat(12))?;
    }
    Ok(())
}

pub(crate) fn run(ours: &Path, pmcp: &Path) -> Result<()> {
    let mut goals = Vec::new();
    let rounds = *ROUND_COUNT;
    println!("ours, pmcp 2.23 and bare rmcp 3.8, {rounds} rounds in turn; medians of the rounds.");
    let sizes: &[usize] = if is_quick() {
        &[10_000]
    } else {
        &[1_000, 10_000]
    };
    for &number in sizes {
        let folder = tempfile::tempdir()?;
        let home = tempfile::tempdir()?;
        write_skills(folder.path(), number)?;
        let peers = peer::PeerConfig {
            ours,
            pmcp,
            folder: folder.path(),
            home: home.path(),
            number,
        };
        println!("\n## {number} skills\n");
        println!("| request | in flight | server | req/s | p50 µs | p99 µs | CPU µs/req |");
        println!("|---|---|---|---|---|---|---|");
        for case in &REQUEST_CASES {
            for in_flight in [1, 8] {
                let rates = measure_case(&peers, case, in_flight)?;
                goals.extend(goal_rows(case, number, in_flight, &rates));
            }
        }
        goals.extend(measure_enumeration(&peers)?);
        goals.extend(measure_startup(&peers)?);
    }
    goals.extend(large_folder::measure_large_folder(ours)?);
    println!("\n## Goals\n");
    println!("| goal | wanted | measured | |");
    println!("|---|---|---|---|");
    for goal in goals {
        println!("{goal}");
    }
    Ok(())
}

/// Measures only the server with a large folder.
pub(crate) fn run_large_folder(ours: &Path) -> Result<()> {
    println!("| goal | wanted | measured | |\n|---|---|---|---|");
    for goal in large_folder::measure_large_folder(ours)? {
        println!("{goal}");
    }
    Ok(())
}

/// Returns the median of numbers.
pub(crate) fn median_number(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Formats a row of the table of goals.
fn goal_row(name: &str, at_least: bool, wanted: f64, measured: f64) -> String {
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
struct ServerRate {
    which: ServerKind,
    per_second: f64,
    cpu: f64,
}

fn measure_case(
    peers: &peer::PeerConfig<'_>,
    case: &RequestCase,
    in_flight: usize,
) -> Result<Vec<ServerRate>> {
    let mut running = Vec::new();
    for which in case.peers {
        let peer = PeerServer::start_server(peers, *which, case.wire)?;
        running.push((*which, peer, Vec::<LoadSample>::new()));
    }
    // Warm up, so that no server is measured while it still reads its skills.
    for (_, peer, _) in &mut running {
        peer.run_load(case.method, peers.number, in_flight, ROUND_DURATION / 3)?;
    }
    for _ in 0..*ROUND_COUNT {
        for (_, peer, samples) in &mut running {
            samples.push(peer.run_load(case.method, peers.number, in_flight, ROUND_DURATION)?);
        }
    }
    let mut rates = Vec::new();
    for (which, _, samples) in running {
        let of =
            |number: fn(&LoadSample) -> f64| median_number(samples.iter().map(number).collect());
        let (rate, cpu) = (of(|s| s.rate), of(|s| s.cpu_micros));
        println!(
            "| {} | {in_flight} | {which} | {rate:.0} | {:.0} | {:.0} | {cpu:.1} |",
            case.name,
            of(|s| s.p50),
            of(|s| s.p99),
        );
        rates.push(ServerRate {
            which,
            per_second: rate,
            cpu,
        });
    }
    Ok(rates)
}

fn goal_rows(
    case: &RequestCase,
    number: usize,
    in_flight: usize,
    rates: &[ServerRate],
) -> Vec<String> {
    let find = |which| rates.iter().find(|rate| rate.which == which);
    let (Some(ours), Some(bare), Some(pmcp)) = (
        find(ServerKind::Ours),
        find(ServerKind::Bare),
        find(ServerKind::Pmcp),
    ) else {
        return Vec::new();
    };
    let name = |of: &str| {
        format!(
            "{}, {number} skills, {in_flight} in flight: {of}",
            case.name
        )
    };
    let against = |peer: &ServerRate, wanted: f64, word: &str| {
        let rate = name(&format!("rate / {word}"));
        let cpu = name(&format!("{word}'s CPU / ours"));
        [
            goal_row(&rate, true, wanted, ours.per_second / peer.per_second),
            goal_row(&cpu, true, wanted, peer.cpu / ours.cpu),
        ]
    };
    match case.wire {
        Transport::Http => [against(bare, 0.9, "bare"), against(pmcp, 1.0, "pmcp")].concat(),
        Transport::Stdio => against(pmcp, 3.0, "pmcp").into(),
    }
}

/// Measures listing every skill, in pages against the peer's single response.
fn measure_enumeration(peers: &peer::PeerConfig<'_>) -> Result<Vec<String>> {
    let mut ours = PeerServer::start_server(peers, ServerKind::Ours, Transport::Http)?;
    let mut pmcp = PeerServer::start_server(peers, ServerKind::Pmcp, Transport::Http)?;
    let mut times = (Vec::new(), Vec::new());
    let mut cpu = (Vec::new(), Vec::new());
    for round in 0..=*ROUND_COUNT {
        let (a, x) = ours.list_all_skills(peers.number)?;
        let (b, y) = pmcp.list_all_skills(peers.number)?;
        if round > 0 {
            times.0.push(a.as_secs_f64() * 1e3);
            times.1.push(b.as_secs_f64() * 1e3);
            cpu.0.push(x);
            cpu.1.push(y);
        }
    }
    let (a, b) = (median_number(times.0), median_number(times.1));
    let (x, y) = (median_number(cpu.0), median_number(cpu.1));
    let memory = (ours.resident_memory()?, pmcp.resident_memory()?);
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
        goal_row(
            "enumerate 10000 skills: pmcp's time / ours",
            true,
            3.0,
            b / a,
        ),
        goal_row(
            "enumerate 10000 skills: pmcp's CPU / ours",
            true,
            3.0,
            y / x,
        ),
        goal_row("memory at 10000 skills: ours / pmcp", false, 0.35, memory),
    ])
}

/// Measures the time from the start of the process to the `initialize` response.
fn measure_startup(peers: &peer::PeerConfig<'_>) -> Result<Vec<String>> {
    let mut times = (Vec::new(), Vec::new());
    for round in 0..=*ROUND_COUNT {
        let ours = PeerServer::time_initialize(peers, ServerKind::Ours).context("ours")?;
        let pmcp = PeerServer::time_initialize(peers, ServerKind::Pmcp).context("pmcp")?;
        if round > 0 {
            times.0.push(ours.as_secs_f64() * 1e3);
            times.1.push(pmcp.as_secs_f64() * 1e3);
        }
    }
    let (ours, pmcp) = (median_number(times.0), median_number(times.1));
    println!("start to initialize answered: ours {ours:.1} ms, pmcp {pmcp:.1} ms");
    if peers.number < 10_000 {
        return Ok(Vec::new());
    }
    let name = "start to initialize, 10000 skills: ours / pmcp";
    Ok(vec![goal_row(name, false, 0.05, ours / pmcp)])
}
