//! `setup sandbox`: builds the guest that scripts run in, and compiles it for this machine.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};
use repertoire_runtime::sandbox;

use super::python;
use crate::{output::Output, settings::CliSettings};

/// The build tool, pinned by version and by the digest of each platform's file.
const REQUIREMENTS: &str = "\
componentize-py==0.25.1 \\
    --hash=sha256:65fbc4a94df1de8acf7da50a1f5ed1711230188844e53e6332d99029be4e0afa \\
    --hash=sha256:a556991534cc496207a9d2ca733c4b0f17ed38ef56a8d6b5f1847fdf1225dd1b \\
    --hash=sha256:7b6a87c520358166843af0daa86d2312d7af4cbcbbf1e598951085cf7f2991ca \\
    --hash=sha256:8623cd8cab8453cb0cd8bf03f3c7103420d06f2f3d360186a280a70a1ca5e89f \\
    --hash=sha256:c7fd552fb0849858b0c1e8981543ed5dff4b0cc1597a8ea0bc26a495786dc0c6
";

/// Returns the folder of the sandbox, installed or not.
pub(crate) fn sandbox_dir(settings: &CliSettings) -> PathBuf {
    settings.account.join("sandbox")
}

pub(super) fn run(
    from: Option<&Path>,
    again: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let target = sandbox_dir(settings);
    let there = || sandbox::is_installed(&target) && from.is_none() && !again;
    super::install_component("sandbox", &target, &there, settings, output, |stopped| {
        let component = match from {
            Some(file) => fs::read(file).with_context(|| file.display().to_string())?,
            None => build_guest(settings, stopped, output)?,
        };
        if stopped() {
            return Ok(());
        }
        output.print_note("3/3 compiling Python for this machine");
        Ok(output.with_spinner("compiling", || {
            sandbox::install_component(&component, &target)
        })?)
    })
}

/// Builds the guest with componentize-py in a temporary folder.
fn build_guest(
    settings: &CliSettings,
    stopped: &dyn Fn() -> bool,
    output: &Output,
) -> Result<Vec<u8>> {
    let beside = tempfile::tempdir_in(&settings.account)?;
    let sources = beside.path().join("guest");
    for (name, text) in sandbox::GUEST_SOURCES {
        let file = sources.join(name);
        fs::create_dir_all(file.parent().unwrap_or(&sources))?;
        fs::write(file, text)?;
    }
    let requirements = beside.path().join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    output.print_note("1/3 installing componentize-py (39 MB) for the build");
    let wanted = python::EnvironmentSpec {
        requirements: &requirements,
        oldest: (3, 10),
    };
    let python = output.with_spinner("installing", || {
        python::create_environment(&beside.path().join("python"), &wanted)
    })?;
    if stopped() {
        return Ok(Vec::new());
    }
    output.print_note("2/3 building the guest: CPython and its standard library");
    let program = python.with_file_name("componentize-py");
    let mut build = Command::new(program);
    build
        .args(["-d", "wit", "-w", "sandbox", "componentize", "-p", "."])
        .args(["app", "-o", "../sandbox.wasm"])
        .current_dir(&sources);
    output.with_spinner("building", || python::run_command(&mut build))?;
    let file = beside.path().join("sandbox.wasm");
    fs::read(&file).with_context(|| file.display().to_string())
}
