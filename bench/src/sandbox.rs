//! Scripts in the sandbox: start time, cost of a host call, and concurrency.

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
    ArtifactHandler, ExecutionContext, Limits, Model, ModelReply, ModelRequest, ModelUsage,
    model::ReplyListener, sandbox::ScriptHandler,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::measure::{format_duration, memory_kib, time_call};

const RUNS: usize = 500;
const CALLS: usize = 20_000;
const CONCURRENT_SCRIPTS: usize = 100;
const STARTS: usize = 400;

/// A model that answers after a delay.
#[derive(Debug)]
struct SlowModel(Duration);

#[async_trait]
impl Model for SlowModel {
    fn id(&self) -> &'static str {
        "bench/slow"
    }

    async fn send_request(
        &self,
        _: &ModelRequest,
        _: Option<&ReplyListener>,
    ) -> repertoire_runtime::Result<ModelReply> {
        tokio::time::sleep(self.0).await;
        Ok(ModelReply {
            text: "yes".to_owned(),
            usage: ModelUsage::default(),
            cut: false,
        })
    }
}

fn script_artifact(code: &str) -> Result<Artifact> {
    let package = json!({
        "name": "S", "description": "d",
        "artifacts": [{"kind": "code_template", "name": "Script", "content": code}],
    });
    let package = Package::from_json(package.to_string().as_bytes())?;
    package.artifacts.into_iter().next().context("no script")
}

async fn run_script(scripts: &ScriptHandler, script: &Artifact, wait: Duration) -> Result<Value> {
    let mut context = ExecutionContext::new();
    context.model = Some(Arc::new(SlowModel(wait)));
    let output = scripts.execute_artifact(script, &context).await?;
    output.value.context("nothing was submitted")
}

fn print_row(what: &str, value: &str, goal: &str, met: bool) {
    let met = if met { "met" } else { "MISSED" };
    println!("| {what} | {value} | {goal} | {met} |");
}

fn quantile(times: &[Duration], share: f64) -> Duration {
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

pub(crate) fn measure_sandbox(folder: &Path, with: &Path, without: &Path) -> Result<()> {
    let (with, without) = (&with.canonicalize()?, &without.canonicalize()?);
    let runtime = Runtime::new()?;
    let scripts = Arc::new(ScriptHandler::new(folder, Limits::default()));
    println!("| what | measured | goal | |\n|---|---|---|---|");
    let first = script_artifact("import repertoire\nrepertoire.submit(1)")?;
    let (opened, done) =
        time_call(|| runtime.block_on(run_script(&scripts, &first, Duration::ZERO)));
    done?;
    let what = "first script of a process, with loading the guest";
    println!("| {what} | {} | | |", format_duration(opened));
    // Before other instances run, so that memory they leave behind counts as theirs.
    let before = memory_kib("VmRSS");
    measure_starts(&runtime, &scripts)?;
    measure_host_calls(&runtime, folder)?;
    let waits = script_artifact(
        "import repertoire\nfor _ in range(2): repertoire.llm_query('x')\nrepertoire.submit(1)",
    )?;
    let waits = Arc::new(waits);
    measure_concurrency(&runtime, &scripts, &waits)?;
    let each = runtime.block_on(measure_live_memory(&scripts, &waits, before))?;
    let value = format!("{:.1} MB", each / 1e6);
    let what = "memory of a live instance, mean of 100";
    print_row(what, &value, "≤ 10 MB", each <= 10e6);
    for (command, from, rounds) in [
        (&["--version"][..], ProgramLocation::Memory, STARTS),
        (&["list", "--json"], ProgramLocation::Memory, STARTS),
        #[cfg(target_os = "linux")]
        (&["--version"], ProgramLocation::Disk, STARTS / 10),
    ] {
        let [ours, plain, again] =
            measure_cold_starts([with, without, without], command, from, rounds)?;
        let (name, place) = (command[0], from.name());
        let against = |took: Duration| took.as_secs_f64() / plain.as_secs_f64();
        println!(
            "| `{name}` from {place} with the sandbox built in, against without, p50 of {rounds} | \
             {} / {} | | {:.2}×; without against itself {:.2}× |",
            format_duration(ours),
            format_duration(plain),
            against(ours),
            against(again)
        );
    }
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len() >> 20);
    let (ours, plain) = (size(with), size(without));
    println!("| size of the binary, with / without | {ours} / {plain} MiB | | |");
    Ok(())
}

/// Measures the time from the request to the script's first line; guest and host share a clock.
fn measure_starts(runtime: &Runtime, scripts: &ScriptHandler) -> Result<()> {
    let now = script_artifact(
        "import time\nat = time.time_ns()\nimport repertoire\nrepertoire.submit(at)",
    )?;
    let mut starts = Vec::with_capacity(RUNS);
    let mut whole = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let (took, at) = time_call(|| runtime.block_on(run_script(scripts, &now, Duration::ZERO)));
        let at = Duration::from_nanos(at?.as_u64().context("no time")?);
        starts.push(at.saturating_sub(before));
        whole.push(took);
    }
    starts.sort_unstable();
    whole.sort_unstable();
    let (p50, p99) = (quantile(&starts, 0.5), quantile(&starts, 0.99));
    let met = p50 <= Duration::from_millis(3);
    print_row(
        "new instance to first line of Python, p50",
        &format_duration(p50),
        "≤ 3 ms",
        met,
    );
    println!("| the same, p99 | {} | | |", format_duration(p99));
    let whole = format_duration(quantile(&whole, 0.5));
    println!("| whole script of one line, p50 | {whole} | | |");
    Ok(())
}

/// Measures one call from Python to the host and back.
fn measure_host_calls(runtime: &Runtime, folder: &Path) -> Result<()> {
    let code = format!(
        "import time, repertoire\nask = repertoire.checkpoint\nfor _ in range(100): ask('x')\n\
         begun = time.perf_counter_ns()\nfor _ in range({CALLS}): ask('x')\n\
         repertoire.submit(time.perf_counter_ns() - begun)"
    );
    let limits = Limits {
        host_calls: u64::MAX,
        ..Limits::default()
    };
    let patient = ScriptHandler::new(folder, limits);
    let took = runtime.block_on(run_script(
        &patient,
        &script_artifact(&code)?,
        Duration::ZERO,
    ))?;
    let took = Duration::from_nanos(took.as_u64().context("no time")?);
    let each = took / u32::try_from(CALLS)?;
    let met = each <= Duration::from_micros(25);
    print_row(
        "call to the host, mean of 20 000",
        &format_duration(each),
        "≤ 25 µs",
        met,
    );
    Ok(())
}

/// Measures many scripts that wait for a model at once.
fn measure_concurrency(
    runtime: &Runtime,
    scripts: &Arc<ScriptHandler>,
    waits: &Arc<Artifact>,
) -> Result<()> {
    let all = || {
        runtime.block_on(async {
            let runs: Vec<_> = (0..CONCURRENT_SCRIPTS)
                .map(|_| {
                    let (scripts, waits) = (scripts.clone(), waits.clone());
                    let wait = Duration::from_millis(100);
                    tokio::spawn(async move { run_script(&scripts, &waits, wait).await })
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
        let (took, done) = time_call(all);
        done?;
        rounds.push(took);
    }
    rounds.sort_unstable();
    let (middle, worst) = (quantile(&rounds, 0.5), quantile(&rounds, 1.0));
    let what = "100 scripts at once, each waiting 2 × 100 ms, p50 of 9";
    let met = middle <= Duration::from_millis(500);
    print_row(what, &format_duration(middle), "≤ 500 ms", met);
    println!("| the same, slowest | {} | | |", format_duration(worst));
    Ok(())
}

/// Measures the memory of one instance while it waits for a model.
async fn measure_live_memory(
    scripts: &Arc<ScriptHandler>,
    waits: &Arc<Artifact>,
    before: u64,
) -> Result<f64> {
    let runs: Vec<_> = (0..CONCURRENT_SCRIPTS)
        .map(|_| {
            let (scripts, waits) = (scripts.clone(), waits.clone());
            tokio::spawn(async move { run_script(&scripts, &waits, Duration::from_secs(2)).await })
        })
        .collect();
    // During this time all of them wait for their first answer, which takes longer.
    let begun = Instant::now();
    let mut most = 0;
    while begun.elapsed() < Duration::from_millis(1800) {
        most = most.max(memory_kib("VmRSS"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for run in runs {
        run.await??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a size")]
    let each = (most.saturating_sub(before) * 1024) as f64 / CONCURRENT_SCRIPTS as f64;
    Ok(each)
}

/// Where a program's file is before it is started.
#[derive(Clone, Copy)]
enum ProgramLocation {
    /// In the page cache, because it was started before.
    Memory,
    /// Only on disk.
    #[cfg(target_os = "linux")]
    Disk,
}

impl ProgramLocation {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            #[cfg(target_os = "linux")]
            Self::Disk => "disk",
        }
    }

    #[cfg_attr(
        not(target_os = "linux"),
        allow(unused_variables, reason = "only Linux can evict one file")
    )]
    fn evict_if_disk(self, program: &Path) -> Result<()> {
        #[cfg(target_os = "linux")]
        if let Self::Disk = self {
            let file = std::fs::File::open(program)?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// Measures how long builds of the command take to start, in turns. They are copied first, because
/// the way a file was written affects the time.
fn measure_cold_starts<const N: usize>(
    builds: [&Path; N],
    args: &[&str],
    from: ProgramLocation,
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
        from.evict_if_disk(program)?;
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
        // Rotate the order, so that no build is always first.
        for turn in 0..N {
            let which = (round + turn) % N;
            took[which].push(start(&copies[which])?);
        }
    }
    Ok(took.map(crate::measure::median))
}
