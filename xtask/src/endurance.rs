//! Long runs: abuse, crashes and mutated guards. The first two have a short form in the test command.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::commands::{
    CheckCount, build_program, cargo_command, format_command, project_dir, run_checked,
};

/// How long the soak of `cargo xtask abuse` takes, unless it is given.
pub(crate) const SOAK_MINUTES: &str = "30";
/// How many rounds of kills `cargo xtask crash` runs, unless it is given; as many losses of power.
pub(crate) const CRASH_ROUNDS: &str = "200";

/// Loads and abuses the build that is shipped, with a soak of some minutes.
pub(crate) fn abuse(minutes: &str) -> Result<()> {
    let dist = ["build", "--profile", "dist", "--package", "repertoire"];
    run_checked(cargo_command(&dist).args(["--package", "repertoire-bench"]))?;
    let built = project_dir().join("target/dist");
    let mut bench = Command::new(built.join("repertoire-bench"));
    run_checked(
        bench
            .arg("abuse")
            .arg(built.join("repertoire"))
            .arg(minutes),
    )
}

/// Kills processes and simulates losses of power, this often each.
pub(crate) fn crash(rounds: &str) -> Result<()> {
    let program = build_program()?;
    let bench = build_bench()?;
    run_checked(
        Command::new(bench)
            .arg("crash")
            .arg(program)
            .arg(find_strace()?)
            .args([rounds, rounds]),
    )
}

/// The short forms for the test command.
pub(crate) fn test_abuse() -> Result<CheckCount> {
    let program = build_program()?;
    let bench = build_bench()?;
    let run = run_checked(Command::new(bench).arg("abuse").arg(program));
    Ok(CheckCount::from_result("abuse", run))
}

pub(crate) fn test_crash() -> Result<CheckCount> {
    let program = build_program()?;
    let bench = build_bench()?;
    let mut command = Command::new(bench);
    command.arg("crash").arg(program).arg(find_strace()?);
    let run = run_checked(command.args(["4", "40"]));
    Ok(CheckCount::from_result("crash", run))
}

fn build_bench() -> Result<PathBuf> {
    // With the features of the tests, because other features would cause a second build.
    let build = [
        "test",
        "--quiet",
        "--workspace",
        "--test",
        "usage",
        "--no-run",
    ];
    run_checked(&mut cargo_command(&build))?;
    Ok(project_dir().join("target/debug/repertoire-bench"))
}

/// Returns `strace`: the installed one, or one from the distribution's package, unpacked without root.
fn find_strace() -> Result<PathBuf> {
    let works = |program: &Path| {
        let mut command = Command::new(program);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let folder = project_dir().join("target/xtask/strace");
    for program in [PathBuf::from("strace"), folder.join("usr/bin/strace")] {
        if works(&program) {
            return Ok(program);
        }
    }
    println!("unpacking strace into target/xtask/strace");
    fs::create_dir_all(&folder)?;
    let download = || {
        let mut command = Command::new("apt-get");
        run_checked(command.args(["download", "strace"]).current_dir(&folder))
    };
    // A new machine may not know any package yet.
    download()
        .or_else(|_| {
            run_checked(Command::new("apt-get").arg("update"))?;
            download()
        })
        .context("strace is needed to simulate losses of power: install it")?;
    let package = fs::read_dir(&folder)?
        .flatten()
        .find(|file| file.path().extension().is_some_and(|end| end == "deb"));
    let package = package.context("no package was downloaded")?.path();
    run_checked(Command::new("dpkg").arg("-x").arg(package).arg(&folder))?;
    let program = folder.join("usr/bin/strace");
    ensure!(works(&program), "strace does not start");
    Ok(program)
}

/// A guard that is switched off, and the test that must notice.
struct Mutant {
    row: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// Arguments of `cargo test`.
    test: &'static [&'static str],
}

const REGISTRY_LIB: &[&str] = &["--package", "repertoire-registry", "--lib"];
const SERVE_LIB: &[&str] = &["--package", "repertoire-serve", "--lib"];
const UNTRUSTED: &[&str] = &["--workspace", "--test", "untrusted"];
const PERMISSIONS: &[&str] = &["--workspace", "--test", "permissions"];
const MATRIX: &[&str] = &["--workspace", "--test", "permission_matrix"];

/// Mutants of guards of the rows T7, T15, T21, T36 and T39 to T47.
const MUTANTS: [Mutant; 24] = [
    Mutant {
        row: "T15",
        file: "crates/core/src/look_alike.rs",
        from: "close.retain(|at| is_typo(last, self.names[*at].name()));",
        to: "close.clear();",
        test: &["--package", "repertoire-core", "--lib"],
    },
    Mutant {
        row: "T21",
        file: "crates/serve/src/service.rs",
        from: "        entry.trusted == Trusted::Yes\n            && entry.has_files()",
        to: "        entry.has_files()",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T36",
        file: "crates/app/src/caller.rs",
        from: "prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.contains_str(name))",
        to: "prefixes.is_empty() || !name.is_empty()",
        test: PERMISSIONS,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::OtherUser(_) => Err(AuthRefusal::OtherUser),",
        to: "PeerOwner::OtherUser(_) => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::SameUser if is_forwarded(headers) => Err(AuthRefusal::Forwarded),",
        to: "PeerOwner::SameUser if is_forwarded(headers) => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T39",
        file: "crates/serve/src/http/auth.rs",
        from: "PeerOwner::Unknown => Err(AuthRefusal::UnknownUser),",
        to: "PeerOwner::Unknown => Ok(Caller::local_user()),",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T40",
        file: "crates/app/src/caller.rs",
        from: "        if self.may(permission) {\n            return Ok(());\n        }",
        to: "        if self.may(permission) || true {\n            return Ok(());\n        }",
        test: MATRIX,
    },
    Mutant {
        row: "T40",
        file: "crates/serve/src/iii/hub/connection.rs",
        from: "if let Err(error) = caller.require(self.function_permission(function)) {",
        to: "if let Err(error) = caller.require(Permission::Read) {",
        test: MATRIX,
    },
    Mutant {
        row: "T42",
        file: "crates/serve/src/peer_limits.rs",
        from: "if open.pending.len() >= self.limits.pending {",
        to: "if open.pending.len() >= usize::MAX {",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T42",
        file: "crates/serve/src/peer_limits.rs",
        from: "mine.saturating_add(units) <= self.per_peer",
        to: "mine.saturating_add(units) <= usize::MAX",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T43",
        file: "crates/registry/src/trust.rs",
        from: "if known.is_some_and(|known| known.binding == found) {\n            return Ok(());\n        }\n        Err(Error::ForeignJournal(wal))",
        to: "let _ = (known, found);\n        Ok(())",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T43",
        file: "crates/registry/src/trust.rs",
        from: "        Err(Error::ForeignJournal(journal))",
        to: "        Ok(())",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T44",
        file: "crates/serve/src/mcp/tools/list_skills.rs",
        from: "include_untrusted || entry.trusted == Trusted::Yes",
        to: "include_untrusted || entry.trusted == Trusted::Yes || true",
        test: PERMISSIONS,
    },
    Mutant {
        row: "T44",
        file: "crates/serve/src/iii/functions/prompts.rs",
        from: "prompts.filter(|entry| entry.trusted == Trusted::Yes)",
        to: "prompts.filter(|entry| entry.trusted == Trusted::Yes || true)",
        test: MATRIX,
    },
    Mutant {
        row: "T45",
        file: "crates/registry/src/registry/artifacts.rs",
        from: "return Err(Error::UntrustedSkill(entry.id.clone()));",
        to: "tracing::debug!(\"untrusted\");",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T46",
        file: "crates/registry/src/store/sqlite/state.rs",
        from: "if rows > 0 && rows_now > MAX_SCOPE_ROWS {",
        to: "if rows > 0 && rows_now > i64::MAX - 1 {",
        test: REGISTRY_LIB,
    },
    Mutant {
        row: "T46",
        file: "crates/serve/src/iii/hub/outbox.rs",
        from: "if queued > self.0.limit || is_full {",
        to: "if queued > self.0.limit {",
        test: SERVE_LIB,
    },
    Mutant {
        row: "T46",
        file: "crates/serve/src/iii/hub/connection.rs",
        from: "if load.calls() >= self.options.max_calls {",
        to: "if load.calls() >= usize::MAX {",
        test: &["--workspace", "--test", "hub", "t46"],
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/state.rs",
        from: "newest - MAX_KEY_REVISIONS",
        to: "newest - 1_000_000",
        test: REGISTRY_LIB,
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/writer.rs",
        from: "    if has_written {\n        empty_journal(connection);",
        to: "    if has_written && path.as_os_str().is_empty() {\n        empty_journal(connection);",
        test: &["--workspace", "--test", "maintenance"],
    },
    Mutant {
        row: "T47",
        file: "crates/app/src/maintenance.rs",
        from: "remote.retain(|file| name(file).is_none_or(|name| !approved.contains(&name)));",
        to: "let _ = (approved, name);",
        test: &["--package", "repertoire-app", "--lib"],
    },
    Mutant {
        row: "T7",
        file: "crates/registry/src/store/sqlite/connection.rs",
        from: "if rows > MAX_UNTRUSTED_ROWS {",
        to: "if rows > MAX_UNTRUSTED_ROWS + 1 {",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T7",
        file: "crates/registry/src/store/sqlite/connection.rs",
        from: "if bytes <= MAX_UNTRUSTED_BYTES {",
        to: "if bytes <= u64::MAX {",
        test: UNTRUSTED,
    },
    Mutant {
        row: "T47",
        file: "crates/registry/src/store/sqlite/maintenance.rs",
        from: "(age > max(?1, 1) AND at < ?2)",
        to: "(age > ?1 AND at < ?2)",
        test: &["--workspace", "--test", "store_contract"],
    },
];

/// Checks that every mutant still applies.
#[allow(clippy::unnecessary_wraps, reason = "the form of a step")]
pub(crate) fn check_mutants() -> Result<CheckCount> {
    let mut count = CheckCount::default();
    for mutant in &MUTANTS {
        let text = fs::read_to_string(project_dir().join(mutant.file));
        let found = text.map(|text| text.matches(mutant.from).count());
        let result = match found {
            Ok(1) => Ok(()),
            Ok(n) => Err(anyhow::anyhow!(
                "{}: found {n} times: {}",
                mutant.file,
                mutant.from
            )),
            Err(error) => Err(error.into()),
        };
        count.add(CheckCount::from_result(mutant.row, result));
    }
    Ok(count)
}

/// Switches off each guard in a copy of the project and runs the test that must notice.
pub(crate) fn test_mutants() -> Result<()> {
    let copy = project_dir().join("target/xtask/mutants");
    let _ = fs::remove_dir_all(&copy);
    let mut clone = Command::new("git");
    run_checked(
        clone
            .args(["clone", "--quiet"])
            .arg(project_dir())
            .arg(&copy),
    )?;
    // Shared, so that only the crates of the project are compiled once more.
    let target = project_dir().join("target");
    let mut survivors = Vec::new();
    for mutant in &MUTANTS {
        let file = copy.join(mutant.file);
        let original = fs::read_to_string(&file)?;
        ensure!(
            original.matches(mutant.from).count() == 1,
            "{}: does not apply: {}",
            mutant.file,
            mutant.from
        );
        fs::write(&file, original.replace(mutant.from, mutant.to))?;
        let mut command = cargo_command(&["test", "--quiet"]);
        command
            .args(mutant.test)
            .current_dir(&copy)
            .env("CARGO_TARGET_DIR", &target)
            .env("REPERTOIRE_TEST_QUICK", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        println!(
            "{} {}: {}",
            mutant.row,
            mutant.file,
            format_command(&command)
        );
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("error[E") || said.contains("could not compile") {
            fs::write(&file, original)?;
            bail!("the mutant does not compile: {said}");
        }
        if output.status.success() {
            println!("  SURVIVED: {}", mutant.to);
            survivors.push(mutant.row);
        } else {
            println!("  noticed");
        }
        fs::write(&file, original)?;
    }
    println!("{} mutants, {} survived", MUTANTS.len(), survivors.len());
    ensure!(survivors.is_empty(), "survivors: {survivors:?}");
    Ok(())
}
