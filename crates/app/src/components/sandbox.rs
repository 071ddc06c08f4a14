//! The sandbox: builds the guest that scripts run in, and compiles it for this machine.

use std::{fs, process::Command};

use repertoire_runtime::sandbox;

use super::{Installation, at, check_cancelled, python};
use crate::{error::Result, skill_scope::require_file};

/// The build tool, pinned by version and by the digest of each platform's file.
const REQUIREMENTS: &str = "\
componentize-py==0.25.1 \\
    --hash=sha256:65fbc4a94df1de8acf7da50a1f5ed1711230188844e53e6332d99029be4e0afa \\
    --hash=sha256:a556991534cc496207a9d2ca733c4b0f17ed38ef56a8d6b5f1847fdf1225dd1b \\
    --hash=sha256:7b6a87c520358166843af0daa86d2312d7af4cbcbbf1e598951085cf7f2991ca \\
    --hash=sha256:8623cd8cab8453cb0cd8bf03f3c7103420d06f2f3d360186a280a70a1ca5e89f \\
    --hash=sha256:c7fd552fb0849858b0c1e8981543ed5dff4b0cc1597a8ea0bc26a495786dc0c6
";

pub(super) fn install(installation: &Installation<'_>) -> Result<()> {
    let Installation {
        target, progress, ..
    } = *installation;
    let component = match installation.request.from {
        Some(file) => {
            require_file(file)?;
            fs::read(file).map_err(at(file))?
        }
        None => build_guest(installation)?,
    };
    check_cancelled(progress)?;
    progress.begin_step("3/3 compiling Python for this machine");
    Ok(sandbox::install_component(&component, target)?)
}

/// Builds the guest with componentize-py in a temporary folder.
fn build_guest(installation: &Installation<'_>) -> Result<Vec<u8>> {
    let progress = installation.progress;
    let account = installation.target.parent().unwrap_or(installation.target);
    let beside = tempfile::tempdir_in(account).map_err(at(account))?;
    let sources = beside.path().join("guest");
    for (name, text) in sandbox::GUEST_SOURCES {
        let file = sources.join(name);
        fs::create_dir_all(file.parent().unwrap_or(&sources)).map_err(at(&file))?;
        fs::write(&file, text).map_err(at(&file))?;
    }
    let requirements = beside.path().join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(at(&requirements))?;
    progress.begin_step("1/3 installing componentize-py (39 MB) for the build");
    let environment = python::EnvironmentSpec {
        python: installation.python,
        requirements: &requirements,
        oldest: (3, 10),
    };
    let python = python::create_environment(&beside.path().join("python"), &environment, progress)?;
    check_cancelled(progress)?;
    progress.begin_step("2/3 building the guest: CPython and its standard library");
    let mut build = Command::new(python.with_file_name("componentize-py"));
    build
        .args(["-d", "wit", "-w", "sandbox", "componentize", "-p", "."])
        .args(["app", "-o", "../sandbox.wasm"])
        .current_dir(&sources);
    python::run_program(&mut build)?;
    let file = beside.path().join("sandbox.wasm");
    fs::read(&file).map_err(at(&file))
}
