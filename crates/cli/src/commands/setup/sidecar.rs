//! `setup sidecar`: gives DSPy modules a Python with DSPy, or the single file that has it inside.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};
use repertoire_core::Digest;
use repertoire_runtime::sidecar::Program;

use super::python;
use crate::{failure::Usage, output::Output, settings::Settings};

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
        "repertoire_sidecar/optimise.py",
        include_str!("../../../../../sidecar/repertoire_sidecar/optimise.py"),
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
/// Says which sources and requirements are installed.
const INSTALLED: &str = "installed.sha256";
const BUNDLE: &str = if cfg!(windows) {
    "repertoire-sidecar.exe"
} else {
    "repertoire-sidecar"
};

/// Where the sidecar is, or would be.
pub(crate) fn folder(settings: &Settings) -> PathBuf {
    settings.account.join("sidecar")
}

fn python_of(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) {
        "python/Scripts/python.exe"
    } else {
        "python/bin/python"
    })
}

fn version() -> String {
    let mut all = REQUIREMENTS.as_bytes().to_vec();
    for (name, text) in SOURCES {
        all.extend_from_slice(name.as_bytes());
        all.extend_from_slice(text.as_bytes());
    }
    Digest::of(&all).hex()
}

/// Whether it is there, and of this version.
pub(crate) fn is_installed(folder: &Path) -> bool {
    let known = fs::read_to_string(folder.join(INSTALLED)).unwrap_or_default();
    folder.join(BUNDLE).is_file() || (known.trim() == version() && python_of(folder).is_file())
}

/// How it is started.
pub(crate) fn program(settings: &Settings) -> Program {
    let folder = folder(settings);
    let bundle = folder.join(BUNDLE);
    let home = folder.join("home");
    if bundle.is_file() {
        return Program::new(bundle, Vec::new(), home);
    }
    let main = folder.join("main.py");
    // One of another version is as good as none.
    let python = if is_installed(&folder) {
        python_of(&folder)
    } else {
        folder.join("not-installed")
    };
    Program::new(python, vec!["-I".into(), main.into()], home)
}

pub(super) fn run(
    from: Option<&Path>,
    again: bool,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode> {
    let target = folder(settings);
    let there = || is_installed(&target) && from.is_none() && !again;
    super::part(
        "sidecar",
        &target,
        &there,
        settings,
        output,
        |stopped| match from {
            Some(file) => take(file, &target),
            None if !again && refresh(&target)? => Ok(()),
            None => install(&target, stopped, output),
        },
    )
}

/// Installs the environment in place, since it cannot be moved. What was there is put back if this
/// comes to nothing.
fn install(target: &Path, stopped: &dyn Fn() -> bool, output: &Output) -> Result<()> {
    let before = target.with_extension("before");
    let at = |path: &Path| path.display().to_string();
    if before.is_dir() && !is_installed(target) {
        // Whoever put it aside did not get to the end.
        let _ = fs::remove_dir_all(target);
        fs::rename(&before, target).with_context(|| at(&before))?;
    }
    let _ = fs::remove_dir_all(&before);
    let had_one = match fs::rename(target, &before) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| at(target)),
    };
    let made = make(target, stopped, output);
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

/// Puts the sources of this version into an environment that has all they need; says whether there
/// was one.
fn refresh(target: &Path) -> Result<bool> {
    let (mark, have) = (target.join(INSTALLED), target.join("requirements.txt"));
    let have = fs::read_to_string(have).unwrap_or_default();
    if have != REQUIREMENTS || !mark.is_file() || !python_of(target).is_file() {
        return Ok(false);
    }
    // It does not count until it is whole again.
    fs::remove_file(&mark).with_context(|| mark.display().to_string())?;
    write_sources(target)?;
    fs::write(&mark, version()).with_context(|| mark.display().to_string())?;
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

/// It counts only once it is whole.
fn make(target: &Path, stopped: &dyn Fn() -> bool, output: &Output) -> Result<()> {
    fs::create_dir_all(target).with_context(|| target.display().to_string())?;
    write_sources(target)?;
    let requirements = target.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)?;
    output.note("1/2 installing DSPy and what it needs (240 MB)");
    let wanted = python::Wanted {
        requirements: &requirements,
        oldest: (3, 11),
    };
    let made = output.working("installing", || {
        python::environment(&target.join("python"), &wanted)
    });
    let python = made?;
    if stopped() {
        return Ok(());
    }
    output.note("2/2 trying it");
    let mut check = Command::new(python);
    check
        .args(["-I", "-c", "import dspy; print(dspy.__version__)"])
        .env("DSPY_CACHEDIR", target.join("home/cache"));
    output.working("trying it", || python::run(&mut check))?;
    fs::write(target.join(INSTALLED), version())?;
    Ok(())
}

/// Installs the single file.
fn take(file: &Path, target: &Path) -> Result<()> {
    if !file.is_file() {
        let shown = file.display();
        bail!(Usage(format!(
            "{shown}: that is no file: `cargo xtask sidecar-bundle` builds one"
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
