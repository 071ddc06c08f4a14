//! The test command: every step runs, also after a failure, and the totals are printed last.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    bus, collector,
    commands::{CheckCount, build_program, cargo_command, project_dir, run_checked, run_counted},
    endurance, features, frameworks, fuzz, interop, licences,
    models::TestModels,
    mutants, reference_validator,
    runtime::{self, RuntimeParts},
    servers::TestServers,
};

/// Runs only the steps that need third-party programs.
pub(crate) fn test_interop() -> Result<()> {
    let mut total = CheckCount::default();
    total.add(run_step(
        "MCP conformance suite",
        &mut interop::test_conformance,
    ));
    total.add(run_step("MCP inspector", &mut interop::test_inspector));
    total.add(run_step("MCP SDKs", &mut interop::test_mcp_sdks));
    total.add(run_step(
        "frameworks on real-world skills",
        &mut frameworks::test_frameworks,
    ));
    total.add(run_step(
        "hosts read their settings",
        &mut frameworks::test_host_programs,
    ));
    total.add(run_step(
        "traces at a collector",
        &mut collector::test_collector,
    ));
    report_total(total)
}

/// Runs only the tests of installing skills from elsewhere.
pub(crate) fn test_installing() -> Result<()> {
    let mut total = CheckCount::default();
    total.add(run_step("installing skills", &mut || {
        let args = [
            "test",
            "--package",
            "repertoire",
            "--package",
            "repertoire-remote",
        ];
        let mut command = cargo_command(&args);
        command.args(["--test", "installing", "--lib", "--no-fail-fast"]);
        TestServers::install()?.set_test_env(&mut command);
        run_counted(&mut command)
    }));
    report_total(total)
}

/// Runs only the sidecar's own tests.
pub(crate) fn test_sidecar() -> Result<()> {
    let mut total = CheckCount::default();
    total.add(run_step(
        "the sidecar's own tests",
        &mut runtime::test_sidecar,
    ));
    report_total(total)
}

/// Runs only the steps about the bus.
pub(crate) fn test_bus() -> Result<()> {
    let mut total = CheckCount::default();
    total.add(run_step("iii SDKs", &mut bus::test_iii_sdks));
    total.add(run_step(
        "the features against a worker",
        &mut bus::test_worker,
    ));
    total.add(run_step(
        "the features on a quirky bus",
        &mut bus::test_quirky_bus,
    ));
    report_total(total)
}

fn run_step(name: &str, work: &mut dyn FnMut() -> Result<CheckCount>) -> CheckCount {
    println!("\n== {name}");
    let begun = Instant::now();
    let count = work().unwrap_or_else(|error| CheckCount::from_result(name, Err(error)));
    println!(
        "== {name}: {} passed, {} failed in {:.0?}",
        count.passed,
        count.failed,
        begun.elapsed()
    );
    count
}

fn report_total(total: CheckCount) -> Result<()> {
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("{} checks failed", total.failed);
    }
    Ok(())
}

/// Runs the first command of the README and sends a request to its server.
fn test_readme() -> Result<()> {
    let readme = std::fs::read_to_string(project_dir().join("README.md"))?;
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("$ cargo run --release -- "));
    let args: Vec<&str> = line
        .context("the README runs nothing")?
        .split(' ')
        .collect();
    // The command under test, as the other steps build it: a release build would compile
    // everything once more.
    let program = build_program()?;
    let home = project_dir().join("target/xtask/home");
    // A home of its own, so that nothing of this machine is shown or changed; and any port, in
    // case the usual one is in use.
    let mut server = Command::new(program)
        .args(args)
        .args(["--port", "0", "--hub", "0", "--json"])
        .env("REPERTOIRE_HOME", home)
        .current_dir(project_dir())
        .stdout(Stdio::piped())
        .spawn()?;
    let asked = wait_until_healthy(&mut server);
    // It was started here, so it is ended here.
    server.kill()?;
    server.wait()?;
    asked
}

/// Waits until a server prints its address and its health check lists the skills.
fn wait_until_healthy(server: &mut Child) -> Result<()> {
    let mut line = String::new();
    let out = server.stdout.take().context("no stdout")?;
    BufReader::new(out).read_line(&mut line)?;
    let address = line
        .split("http://")
        .nth(1)
        .and_then(|l| l.split('/').next());
    let address = address.context("the server did not start")?;
    let start = Instant::now();
    loop {
        let mut stream = TcpStream::connect(address)?;
        let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if answer.contains("\"skills\":6") {
            println!("{}", answer.lines().last().unwrap_or_default());
            return Ok(());
        }
        ensure!(start.elapsed() < Duration::from_secs(30), "{answer}");
    }
}

/// Runs what needs nothing installed: for the inner loop.
pub(crate) fn run_quick() -> Result<()> {
    let mut total = CheckCount::default();
    total.add(run_step("format", &mut check_format));
    total.add(run_step("lints", &mut check_lints));
    total.add(run_step("licences", &mut licences::check_licences));
    total.add(run_step("unit, integration and doc tests", &mut || {
        let mut command = cargo_command(&["test", "--workspace", "--no-fail-fast"]);
        leave_out_other_users(&mut command);
        run_counted(command.env("REPERTOIRE_TEST_QUICK", "1"))
    }));
    report_total(total)
}

/// Leaves out what needs a second user of the machine, if this one cannot become another.
fn leave_out_other_users(command: &mut Command) {
    #[cfg(unix)]
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    #[cfg(not(unix))]
    let is_root = false;
    if !is_root {
        println!("left out: requests of another user of this machine, which only root can send");
        command.env("REPERTOIRE_TEST_ONE_USER", "1");
    }
}

#[allow(clippy::unnecessary_wraps, reason = "the form of a step")]
fn check_format() -> Result<CheckCount> {
    let result = run_checked(&mut cargo_command(&["fmt", "--all", "--check"]));
    Ok(CheckCount::from_result("format", result))
}

#[allow(clippy::unnecessary_wraps, reason = "the form of a step")]
fn check_lints() -> Result<CheckCount> {
    let mut command = cargo_command(&["clippy", "--workspace", "--all-targets"]);
    let result = run_checked(command.args(["--", "-D", "warnings"]));
    Ok(CheckCount::from_result("lints", result))
}

/// Runs everything.
pub(crate) fn run_all() -> Result<()> {
    let started = Instant::now();
    let mut total = CheckCount::default();
    let mut step =
        |name: &str, work: &mut dyn FnMut() -> Result<CheckCount>| total.add(run_step(name, work));
    step("format", &mut check_format);
    step("lints", &mut check_lints);
    step("features", &mut features::check_features);
    step("licences", &mut licences::check_licences);
    step("documentation", &mut || {
        let mut command = cargo_command(&["doc", "--workspace", "--no-deps", "--quiet"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        Ok(CheckCount::from_result(
            "documentation",
            run_checked(&mut command),
        ))
    });
    step("unit, integration and doc tests", &mut || {
        let mut command = cargo_command(&["test", "--workspace", "--no-fail-fast"]);
        TestModels::install()?.set_test_env(&mut command);
        RuntimeParts::install()?.set_test_env(&mut command);
        TestServers::install()?.set_test_env(&mut command);
        leave_out_other_users(&mut command);
        run_counted(&mut command)
    });
    step("the sidecar's own tests", &mut runtime::test_sidecar);
    step("the README's first command", &mut || {
        Ok(CheckCount::from_result("readme", test_readme()))
    });
    step("reference validator", &mut reference_validator::run);
    step("MCP conformance suite", &mut interop::test_conformance);
    step("MCP inspector", &mut interop::test_inspector);
    step("MCP SDKs", &mut interop::test_mcp_sdks);
    step(
        "frameworks on real-world skills",
        &mut frameworks::test_frameworks,
    );
    step(
        "hosts read their settings",
        &mut frameworks::test_host_programs,
    );
    step("traces at a collector", &mut collector::test_collector);
    step("iii SDKs", &mut bus::test_iii_sdks);
    step("the features against a worker", &mut bus::test_worker);
    step("the features on a quirky bus", &mut bus::test_quirky_bus);
    step("abuse, in short", &mut endurance::test_abuse);
    step("crashes, in short", &mut endurance::test_crash);
    step("mutants still apply", &mut mutants::check_mutants);
    step("fuzz targets", &mut fuzz::run_smoke);
    println!("\nfinished in {:.0?}", started.elapsed());
    report_total(total)
}
