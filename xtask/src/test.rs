//! The test command: every step runs, also after a failure, and the counts close it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    bus, fuzz, interop,
    models::Models,
    reference,
    run::{Count, cargo, checked, counted, project},
    runtime::{self, Parts},
};

/// Only the steps that need what others wrote.
pub(crate) fn interop() -> Result<()> {
    let mut total = Count::default();
    total.add(step("MCP conformance suite", &mut interop::conformance));
    total.add(step("MCP inspector", &mut interop::inspector));
    total.add(step("MCP SDKs", &mut interop::sdks));
    finish(total)
}

/// Only the sidecar's own tests.
pub(crate) fn sidecar() -> Result<()> {
    let mut total = Count::default();
    total.add(step("the sidecar's own tests", &mut runtime::sidecar));
    finish(total)
}

/// Only the steps about the bus.
pub(crate) fn bus() -> Result<()> {
    let mut total = Count::default();
    total.add(step("iii SDKs", &mut bus::sdks));
    total.add(step("the features against a worker", &mut bus::worker));
    finish(total)
}

fn step(name: &str, work: &mut dyn FnMut() -> Result<Count>) -> Count {
    println!("\n== {name}");
    let begun = Instant::now();
    let count = work().unwrap_or_else(|error| Count::of(name, Err(error)));
    println!(
        "== {name}: {} passed, {} failed in {:.0?}",
        count.passed,
        count.failed,
        begun.elapsed()
    );
    count
}

fn finish(total: Count) -> Result<()> {
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("{} checks failed", total.failed);
    }
    Ok(())
}

/// Runs what the README says first, and asks the server that it starts.
fn readme() -> Result<()> {
    let readme = std::fs::read_to_string(project().join("README.md"))?;
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("$ cargo run --release -- "));
    let args: Vec<&str> = line
        .context("the README runs nothing")?
        .split(' ')
        .collect();
    checked(&mut cargo(&["build", "--release", "--bin", "repertoire"]))?;
    let home = project().join("target/xtask/home");
    // A home of its own, so that nothing of this machine is shown or changed; and any port, in
    // case the usual one is in use.
    let mut server = Command::new(project().join("target/release/repertoire"))
        .args(args)
        .args(["--port", "0", "--hub", "0", "--json"])
        .env("REPERTOIRE_HOME", home)
        .current_dir(project())
        .stdout(Stdio::piped())
        .spawn()?;
    let asked = ask(&mut server);
    // It was started here, so it is ended here.
    server.kill()?;
    server.wait()?;
    asked
}

/// Waits until a server says where it is, and asks it how it is.
fn ask(server: &mut Child) -> Result<()> {
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

pub(crate) fn run() -> Result<()> {
    let started = Instant::now();
    let mut total = Count::default();
    let mut step =
        |name: &str, work: &mut dyn FnMut() -> Result<Count>| total.add(step(name, work));
    step("format", &mut || {
        let result = checked(&mut cargo(&["fmt", "--all", "--check"]));
        Ok(Count::of("format", result))
    });
    step("lints", &mut || {
        let mut command = cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]);
        Ok(Count::of("lints", checked(&mut command)))
    });
    step("documentation", &mut || {
        let mut command = cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        Ok(Count::of("documentation", checked(&mut command)))
    });
    step("unit, integration and doc tests", &mut || {
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
        Models::install()?.tell(&mut command);
        Parts::install()?.tell(&mut command);
        counted(&mut command)
    });
    step("the sidecar's own tests", &mut runtime::sidecar);
    step("the README's first command", &mut || {
        Ok(Count::of("readme", readme()))
    });
    step("reference validator", &mut reference::run);
    step("MCP conformance suite", &mut interop::conformance);
    step("MCP inspector", &mut interop::inspector);
    step("MCP SDKs", &mut interop::sdks);
    step("iii SDKs", &mut bus::sdks);
    step("the features against a worker", &mut bus::worker);
    step("fuzz targets", &mut fuzz::smoke);
    step("licences and advisories", &mut || {
        let installed = Command::new("cargo-deny").arg("--version").output();
        if !installed.is_ok_and(|out| out.status.success()) {
            println!("cargo-deny is not installed: skipped");
            return Ok(Count::default());
        }
        Ok(Count::of("deny", checked(&mut cargo(&["deny", "check"]))))
    });
    println!("\nfinished in {:.0?}", started.elapsed());
    finish(total)
}
