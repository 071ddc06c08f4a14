//! Installing the optional parts, and the checks of `doctor`.

#![cfg(unix)]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test"
)]

mod common;
#[path = "../../core/tests/support/part.rs"]
mod part;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use common::TestWorkspace;

#[test]
fn doctor_checks_that_installed_parts_run() {
    let place = TestWorkspace::new();
    let sidecar = place.home_dir().join("sidecar");
    fs::create_dir_all(&sidecar).unwrap();
    fs::write(sidecar.join("repertoire-sidecar"), "no program").unwrap();
    fs::write(place.home_dir().join("config.toml"), "model = \"absent\"\n").unwrap();
    let run = place.run(&["doctor"]);
    assert_eq!(run.exit_code(), 1);
    let (out, err) = (run.stdout(), run.stderr());
    assert!(out.contains("FAIL  sidecar"), "{out}");
    assert!(err.contains("repertoire setup sidecar --again"), "{err}");
    assert!(
        out.contains("FAIL  model      model \"absent\": write PROVIDER/MODEL"),
        "{out}"
    );
}

#[test]
fn doctor_fails_a_part_installed_by_another_version() {
    let place = TestWorkspace::new();
    let sandbox = place.home_dir().join("sandbox");
    fs::create_dir_all(&sandbox).unwrap();
    fs::write(sandbox.join("sources.sha256"), "of another version").unwrap();
    let run = place.run(&["doctor"]);
    assert_eq!(run.exit_code(), 1);
    assert!(
        run.stdout().contains("of another version"),
        "{}",
        run.stdout()
    );
    assert!(
        run.stderr().contains("repertoire setup sandbox"),
        "{}",
        run.stderr()
    );
}

#[test]
fn a_python_that_is_too_old_is_reported_before_anything_is_installed() {
    let home = tempfile::tempdir().unwrap();
    let old = home.path().join("python3.9");
    fs::write(&old, "#!/bin/sh\necho 3 9\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o700)).unwrap();
    for (part, needed) in [("sandbox", "3.10"), ("sidecar", "3.11")] {
        let done = Command::new(env!("CARGO_BIN_EXE_repertoire"))
            .args(["setup", part])
            .env("REPERTOIRE_HOME", home.path())
            .env("REPERTOIRE_PYTHON", &old)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{stderr}");
        let why = format!("this is Python 3.9, and {needed} is needed");
        assert!(
            stderr.contains(&why) && stderr.contains("REPERTOIRE_PYTHON"),
            "{stderr}"
        );
        assert!(!home.path().join(part).exists());
    }
}

#[test]
fn a_sidecar_of_an_earlier_version_is_updated_without_a_download() {
    let Some(installed) = part::installed_part("REPERTOIRE_TEST_SIDECAR") else {
        return;
    };
    let installed = Path::new(&installed);
    let home = tempfile::tempdir().unwrap();
    let sidecar = home.path().join("sidecar");
    fs::create_dir_all(&sidecar).unwrap();
    std::os::unix::fs::symlink(installed.join("python"), sidecar.join("python")).unwrap();
    fs::copy(
        installed.join("requirements.txt"),
        sidecar.join("requirements.txt"),
    )
    .unwrap();
    fs::write(sidecar.join("installed.sha256"), "of another version").unwrap();
    fs::write(sidecar.join("main.py"), "raise SystemExit(1)").unwrap();
    let done = Command::new(env!("CARGO_BIN_EXE_repertoire"))
        .args(["setup", "sidecar"])
        .env("REPERTOIRE_HOME", home.path())
        // An empty PATH: no installer can be found.
        .env("PATH", home.path())
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    for file in ["main.py", "installed.sha256", "repertoire_sidecar/wire.py"] {
        let new = fs::read_to_string(sidecar.join(file)).unwrap();
        assert_eq!(new, fs::read_to_string(installed.join(file)).unwrap());
    }
}

#[test]
fn a_failed_installation_keeps_the_old_files() {
    let place = TestWorkspace::new();
    let sidecar = place.home_dir().join("sidecar");
    fs::create_dir_all(&sidecar).unwrap();
    fs::write(sidecar.join("main.py"), "as it was").unwrap();
    let mut setup = place.command(&["setup", "sidecar", "--again"]);
    let done = setup.env("REPERTOIRE_PYTHON", "false").output().unwrap();
    assert!(!done.status.success());
    assert_eq!(
        fs::read_to_string(sidecar.join("main.py")).unwrap(),
        "as it was"
    );
    let mut left: Vec<_> = fs::read_dir(place.home_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["setup.lock", "sidecar"]);
}

#[test]
fn a_second_setup_waits_for_the_first() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.home_dir()).unwrap();
    let lock = fs::File::create(place.home_dir().join("setup.lock")).unwrap();
    lock.lock().unwrap();
    let mut setup = place.command(&["setup", "sidecar"]);
    let mut setup = setup
        .env("REPERTOIRE_PYTHON", "false")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(setup.stderr.take().unwrap()).lines();
    assert_eq!(
        said.next().unwrap().unwrap(),
        "waiting for another setup to end"
    );
    assert!(setup.try_wait().unwrap().is_none());
    lock.unlock().unwrap();
    assert_eq!(setup.wait().unwrap().code(), Some(2));
}

#[test]
fn a_setup_that_waits_is_interrupted_at_once_and_installs_nothing() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.home_dir()).unwrap();
    let lock = fs::File::create(place.home_dir().join("setup.lock")).unwrap();
    lock.lock().unwrap();
    place.write_file("bundle", "a program");
    let mut setup = place.command(&["setup", "sidecar", "--from", "bundle"]);
    let mut setup = setup.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(setup.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("waiting"));
    let pid = rustix::process::Pid::from_child(&setup);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // The lock is still held.
    assert_eq!(setup.wait().unwrap().code(), Some(130));
    assert!(!place.home_dir().join("sidecar").exists());
}

#[test]
fn a_server_starts_without_the_key_for_reoptimizing() {
    let place = TestWorkspace::new();
    let sidecar = place.home_dir().join("sidecar");
    fs::create_dir_all(&sidecar).unwrap();
    fs::write(sidecar.join("repertoire-sidecar"), "never started").unwrap();
    let config = "model = \"openai/gpt-4o\"\nrenew = true\n";
    fs::write(place.home_dir().join("config.toml"), config).unwrap();
    let mut server = place
        .command(&["serve", "--port", "0", "--hub", "0", "--json"])
        .env_remove("OPENAI_API_KEY")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    server.kill().unwrap();
    let said = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(line.contains("\"hub\""), "{line}{said}");
    assert!(said.contains("are not renewed"), "{said}");
}
