//! `setup sidecar`: installs a Python environment with DSPy, or the bundled executable.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use repertoire_core::Digest;
use repertoire_runtime::sidecar::SidecarCommand;

use super::python;
use crate::{failure::UsageError, output::Output, settings::CliSettings};

const REQUIREMENTS: &str = include_str!("../../../../../sidecar/requirements.txt");
/// Its sources, by their path.
const SOURCES: [(&str, &str); 8] = [
    ("main.py", include_str!("../../../../../sidecar/main.py")),
    (
        "repertoire_sidecar/__init__.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/__init__.py"),
    ),
    (
        "repertoire_sidecar/host.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/host.py"),
    ),
    (
        "repertoire_sidecar/optimize.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/optimize.py"),
    ),
    (
        "repertoire_sidecar/serve.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/serve.py"),
    ),
    (
        "repertoire_sidecar/signatures.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/signatures.py"),
    ),
    (
        "repertoire_sidecar/templates.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/templates.py"),
    ),
    (
        "repertoire_sidecar/wire.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/wire.py"),
    ),
];
/// The file with the digest of the installed sources and requirements.
const VERSION_MARKER: &str = "installed.sha256";
const BUNDLE: &str = if cfg!(windows) {
    "repertoire-sidecar.exe"
} else {
    "repertoire-sidecar"
};

/// Returns the folder of the sidecar, installed or not.
pub(crate) fn sidecar_dir(settings: &CliSettings) -> PathBuf {
    settings.account.join("sidecar")
}

fn python_path(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) {
        "python/Scripts/python.exe"
    } else {
        "python/bin/python"
    })
}

fn sources_digest() -> String {
    let mut all = REQUIREMENTS.as_bytes().to_vec();
    for (name, text) in SOURCES {
        all.extend_from_slice(name.as_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    Digest::hash_bytes(&all).hex_digits()
}

/// Whether this version is installed.
pub(crate) fn is_installed(folder: &Path) -> bool {
    let known = fs::read_to_string(folder.join(VERSION_MARKER)).unwrap_or_default();
    folder.join(BUNDLE).is_file()
        || (known.trim() == sources_digest() && python_path(folder).is_file())
}

/// Returns the program that starts the sidecar.
pub(crate) fn sidecar_program(settings: &CliSettings) -> SidecarCommand {
    let folder = sidecar_dir(settings);
    let bundle = folder.join(BUNDLE);
    let home = folder.join("home");
    if bundle.is_file() {
        return SidecarCommand::new(bundle, Vec::new(), home);
    }
    let main = folder.join("main.py");
    // Another version counts as not installed.
    let python = if is_installed(&folder) {
        python_path(&folder)
    } else {
        folder.join("not-installed")
    };
    SidecarCommand::new(python, vec!["-I".into(), main.into()], home)
}

pub(super) fn run(
    from: Option<&Path>,
    again: bool,
    settings: &CliSettings,
    output: &Output,
) -> Result<ExitCode> {
    let target = sidecar_dir(settings);
    let there = || is_installed(&target) && from.is_none() && !again;
    super::install_component(
        "sidecar",
        &target,
        &there,
        settings,
        output,
        |stopped| match from {
            Some(file) => install_bundle(file, &target),
            None if !again && update_sources(&target)? => Ok(()),
            None => install_environment(&target, stopped, output),
        },
    )
}

/// Installs the environment in place, because it cannot be moved. A failure restores the previous
/// installation.
fn install_environment(target: &Path, stopped: &dyn Fn() -> bool, output: &Output) -> Result<()> {
    let before = target.with_extension("before");
    let at = |path: &Path| path.display().to_string();
    if before.is_dir() && !is_installed(target) {
        // An earlier setup was interrupted after it moved the old installation.
        let _ = fs::remove_dir_all(target);
        fs::rename(&before, target).with_context(|| at(&before))?;
    }
    let _ = fs::remove_dir_all(&before);
    let had_one = match fs::rename(target, &before) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| at(target)),
    };
    let made = build_environment(target, stopped, output);
    if made.is_err() || stopped() {
        let _ = fs::remove_dir_all(target);
        if had_one {
            fs::rename(&before, target).with_context(|| at(&before))?;
        }
    } else {
        let _ = fs::remove_dir_all(&before);
    }
    made
}

/// Updates the sources in an environment that already has the requirements; returns whether there
/// was one.
fn update_sources(target: &Path) -> Result<bool> {
    let (mark, have) = (target.join(VERSION_MARKER), target.join("requirements.txt"));
    let have = fs::read_to_string(have).unwrap_or_default();
    if have != REQUIREMENTS || !mark.is_file() || !python_path(target).is_file() {
        return Ok(false);
    }
    // Without the marker, an interrupted update does not count as installed.
    fs::remove_file(&mark).with_context(|| mark.display().to_string())?;
    write_sources(target)?;
    fs::write(&mark, sources_digest()).with_context(|| mark.display().to_string())?;
    Ok(true)
}

fn write_sources(target: &Path) -> Result<()> {
    for (name, text) in SOURCES {
        let file = target.join(name);
        fs::create_dir_all(file.parent().unwrap_or(target))?;
        fs::write(&file, text).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Creates the environment; the marker is written last.
fn build_environment(target: &Path, stopped: &dyn Fn() -> bool, output: &Output) -> Result<()> {
    fs::create_dir_all(target).with_context(|| target.display().to_string())?;
    write_sources(target)?;
    let requirements = target.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    output.print_note("1/2 installing DSPy and what it needs (240 MB)");
    let wanted = python::EnvironmentSpec {
        requirements: &requirements,
        oldest: (3, 11),
    };
    let made = output.with_spinner("installing", || {
        python::create_environment(&target.join("python"), &wanted)
    });
    let python = made?;
    if stopped() {
        return Ok(());
    }
    output.print_note("2/2 trying it");
    let mut check = Command::new(python);
    check
        .args(["-I", "-c", "import dspy; print(dspy.__version__)"])
        .env("DSPY_CACHEDIR", target.join("home/cache"));
    output.with_spinner("trying it", || python::run_command(&mut check))?;
    fs::write(target.join(VERSION_MARKER), sources_digest())?;
    Ok(())
}

/// Installs the bundled executable.
fn install_bundle(file: &Path, target: &Path) -> Result<()> {
    if !file.is_file() {
        let shown = file.display();
        bail!(UsageError(format!(
            "{shown} is not a file: `cargo xtask sidecar-bundle` builds one"
        )));
    }
    fs::create_dir_all(target).with_context(|| target.display().to_string())?;
    let beside = target.join(format!("{BUNDLE}.part"));
    fs::copy(file, &beside).with_context(|| file.display().to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o700))?;
    }
    fs::rename(&beside, target.join(BUNDLE))?;
    Ok(())
}
