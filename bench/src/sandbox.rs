//! Scripts in the sandbox: how soon one starts, what a call costs, how many wait at once.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use repertoire_core::{Artifact, Package};
use repertoire_runtime::{
    ArtifactHandler, Ask, ExecutionContext, Limits, Model, Reply, Usage, model::Listener,
    sandbox::Scripts,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::measure::{memory, shown, time};

const RUNS: usize = 500;
const CALLS: usize = 20_000;
const AT_ONCE: usize = 100;
const STARTS: usize = 400;

/// Answers after a while.
#[derive(Debug)]
struct Slow(Duration);

#[async_trait]
impl Model for Slow {
    fn id(&self) -> &'static str {
        "bench/slow"
    }

    async fn ask(&self, _: &Ask, _: Option<&Listener>) -> repertoire_runtime::Result<Reply> {
        tokio::time::sleep(self.0).await;
        Ok(Reply {
            text: "yes".to_owned(),
            usage: Usage::default(),
            cut: false,
        })
    }
}

fn script(code: &str) -> Result<Artifact> {
    let package = json!({
        "name": "S", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code}],
    });
    let package = Package::from_json(package.to_string().as_bytes())?;
    package.artifacts.into_iter().next().context("no script")
}

async fn run(scripts: &Scripts, script: &Artifact, wait: Duration) -> Result<Value> {
    let mut context = ExecutionContext::new();
    context.model = Some(Arc::new(Slow(wait)));
    let output = scripts.execute(script, &context).await?;
    output.value.context("nothing was submitted")
}

fn row(what: &str, value: &str, goal: &str, met: bool) {
    let met = if met { "met" } else { "MISSED" };
    println!("| {what} | {value} | {goal} | {met} |");
}

fn nth(times: &[Duration], share: f64) -> Duration {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a short list"
    )]
    let at = (times.len() as f64 * share) as usize;
    times
        .get(at.min(times.len() - 1))
        .copied()
        .unwrap_or_default()
}

pub(crate) fn measure(folder: &Path, with: &Path, without: &Path) -> Result<()> {
    let (with, without) = (&with.canonicalize()?, &without.canonicalize()?);
    let runtime = Runtime::new()?;
    let scripts = Arc::new(Scripts::new(folder, Limits::default()));
    println!("| what | measured | goal | |\n|---|---|---|---|");
    let first = script("import repertoire\nrepertoire.submit(1)")?;
    let (opened, done) = time(|| runtime.block_on(run(&scripts, &first, Duration::ZERO)));
    done?;
    let what = "first script of a process, with loading the guest";
    println!("| {what} | {} | | |", shown(opened));
    // Before there was more than one: what stays where instances were counts as theirs.
    let before = memory("VmRSS");
    starts(&runtime, &scripts)?;
    calls(&runtime, folder)?;
    let waits = script(
        "import repertoire\nfor _ in range(2): repertoire.llm_query('x')\nrepertoire.submit(1)",
    )?;
    let waits = Arc::new(waits);
    at_once(&runtime, &scripts, &waits)?;
    let each = runtime.block_on(live(&scripts, &waits, before))?;
    let value = format!("{:.1} MB", each / 1e6);
    let what = "memory of a live instance, mean of 100";
    row(what, &value, "≤ 10 MB", each <= 10e6);
    for (command, from, rounds) in [
        (&["--version"][..], Place::Memory, STARTS),
        (&["list", "--json"], Place::Memory, STARTS),
        #[cfg(target_os = "linux")]
        (&["--version"], Place::Disk, STARTS / 10),
    ] {
        let [ours, plain, again] = cold([with, without, without], command, from, rounds)?;
        let (name, place) = (command[0], from.name());
        let against = |took: Duration| took.as_secs_f64() / plain.as_secs_f64();
        println!(
            "| `{name}` from {place} with the sandbox built in, against without, p50 of {rounds} | \
             {} / {} | | {:.2}×; without against itself {:.2}× |",
            shown(ours),
            shown(plain),
            against(ours),
            against(again)
        );
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len() >> 20);
    let (ours, plain) = (size(with), size(without));
    println!("| size of the binary, with / without | {ours} / {plain} MiB | | |");
    Ok(())
}

/// From asking for a script to its first line; the guest's clock is the host's.
fn starts(runtime: &Runtime, scripts: &Scripts) -> Result<()> {
    let now = script("import time\nat = time.time_ns()\nimport repertoire\nrepertoire.submit(at)")?;
    let mut starts = Vec::with_capacity(RUNS);
    let mut whole = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let (took, at) = time(|| runtime.block_on(run(scripts, &now, Duration::ZERO)));
        let at = Duration::from_nanos(at?.as_u64().context("no time")?);
        starts.push(at.saturating_sub(before));
        whole.push(took);
    }
    starts.sort_unstable();
    whole.sort_unstable();
    let (p50, p99) = (nth(&starts, 0.5), nth(&starts, 0.99));
    let met = p50 <= Duration::from_millis(3);
    row(
        "new instance to first line of Python, p50",
        &shown(p50),
        "≤ 3 ms",
        met,
    );
    println!("| the same, p99 | {} | | |", shown(p99));
    let whole = shown(nth(&whole, 0.5));
    println!("| whole script of one line, p50 | {whole} | | |");
    Ok(())
}

/// One call to the host, from Python and back.
fn calls(runtime: &Runtime, folder: &Path) -> Result<()> {
    let code = format!(
        "import time, repertoire\nask = repertoire.checkpoint\nfor _ in range(100): ask('x')\n\
         begun = time.perf_counter_ns()\nfor _ in range({CALLS}): ask('x')\n\
         repertoire.submit(time.perf_counter_ns() - begun)"
    );
    let limits = Limits {
        host_calls: u64::MAX,
        ..Limits::default()
    };
    let patient = Scripts::new(folder, limits);
    let took = runtime.block_on(run(&patient, &script(&code)?, Duration::ZERO))?;
    let took = Duration::from_nanos(took.as_u64().context("no time")?);
    let each = took / u32::try_from(CALLS)?;
    let met = each <= Duration::from_micros(25);
    row(
        "call to the host, mean of 20 000",
        &shown(each),
        "≤ 25 µs",
        met,
    );
    Ok(())
}

/// Many scripts that wait for a model.
fn at_once(runtime: &Runtime, scripts: &Arc<Scripts>, waits: &Arc<Artifact>) -> Result<()> {
    let all = || {
        runtime.block_on(async {
            let runs: Vec<_> = (0..AT_ONCE)
                .map(|_| {
                    let (scripts, waits) = (scripts.clone(), waits.clone());
                    let wait = Duration::from_millis(100);
                    tokio::spawn(async move { run(&scripts, &waits, wait).await })
                })
                .collect();
            for run in runs {
                run.await??;
            }
            anyhow::Ok(())
        })
    };
    all()?;
    let mut rounds = Vec::new();
    for _ in 0..9 {
        let (took, done) = time(all);
        done?;
        rounds.push(took);
    }
    rounds.sort_unstable();
    let (middle, worst) = (nth(&rounds, 0.5), nth(&rounds, 1.0));
    let what = "100 scripts at once, each waiting 2 × 100 ms, p50 of 9";
    let met = middle <= Duration::from_millis(500);
    row(what, &shown(middle), "≤ 500 ms", met);
    println!("| the same, slowest | {} | | |", shown(worst));
    Ok(())
}

/// The bytes one instance has while it waits for a model.
async fn live(scripts: &Arc<Scripts>, waits: &Arc<Artifact>, before: u64) -> Result<f64> {
    let runs: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (scripts, waits) = (scripts.clone(), waits.clone());
            tokio::spawn(async move { run(&scripts, &waits, Duration::from_secs(2)).await })
        })
        .collect();
    // All of them wait for their first answer by then: they were told to wait that long.
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < Duration::from_millis(1800) {
        most = most.max(memory("VmRSS"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for run in runs {
        run.await??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a size")]
    let each = (most.saturating_sub(before) * 1024) as f64 / AT_ONCE as f64;
    Ok(each)
}

/// Where a program is before it is started.
#[derive(Clone, Copy)]
enum Place {
    /// The system has it in memory: it was started before.
    Memory,
    /// It has to be read.
    #[cfg(target_os = "linux")]
    Disk,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            #[cfg(target_os = "linux")]
            Self::Disk => "disk",
        }
    }

    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "only Linux lets go of one file")
    )]
    fn put(self, program: &Path) -> Result<()> {
        #[cfg(target_os = "linux")]
        if let Self::Disk = self {
            let file = std::fs::File::open(program)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// How long builds of the command take to start, in turns. They are copied first: how a file came
/// to be there makes a difference, too.
fn cold<const N: usize>(
    builds: [&Path; N],
    args: &[&str],
    from: Place,
    rounds: usize,
) -> Result<[Duration; N]> {
    let home = tempfile::tempdir()?;
    let mut copies = Vec::new();
    for (number, build) in builds.into_iter().enumerate() {
        let copy = home.path().join(format!("build-{number}"));
        std::fs::copy(build, &copy)?;
        copies.push(copy);
    }
    let start = |program: &Path| -> Result<Duration> {
        from.put(program)?;
        let begun = Instant::now();
        let status = Command::new(program)
            .args(args)
            .env("REPERTOIRE_HOME", home.path())
            .current_dir(home.path())
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "{} failed", program.display());
        Ok(begun.elapsed())
    };
    for copy in &copies {
        start(copy)?;
    }
    let mut took = [(); N].map(|()| Vec::new());
    for round in 0..rounds {
        // Whoever is first is another each time.
        for turn in 0..N {
            let which = (round + turn) % N;
            took[which].push(start(&copies[which])?);
        }
    }
    Ok(took.map(crate::measure::median))
}
