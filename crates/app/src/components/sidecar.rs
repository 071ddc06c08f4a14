//! The sidecar: installs a Python environment with DSPy, or the bundled executable.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use repertoire_core::Digest;
use repertoire_runtime::sidecar::{Sidecar, SidecarCommand};

use super::{Installation, at, check_cancelled, python};
use crate::{
    error::{Error, Result},
    skill_scope::require_file,
};

const REQUIREMENTS: &str = include_str!("../../../../sidecar/requirements.txt");
/// Its sources, by their path.
const SOURCES: [(&str, &str); 8] = [
    ("main.py", include_str!("../../../../sidecar/main.py")),
    (
        "repertoire_sidecar/__init__.py",
        include_str!("../../../../sidecar/repertoire_sidecar/__init__.py"),
    ),
    (
        "repertoire_sidecar/host.py",
        include_str!("../../../../sidecar/repertoire_sidecar/host.py"),
    ),
    (
        "repertoire_sidecar/optimize.py",
        include_str!("../../../../sidecar/repertoire_sidecar/optimize.py"),
    ),
    (
        "repertoire_sidecar/serve.py",
        include_str!("../../../../sidecar/repertoire_sidecar/serve.py"),
    ),
    (
        "repertoire_sidecar/signatures.py",
        include_str!("../../../../sidecar/repertoire_sidecar/signatures.py"),
    ),
    (
        "repertoire_sidecar/templates.py",
        include_str!("../../../../sidecar/repertoire_sidecar/templates.py"),
    ),
    (
        "repertoire_sidecar/wire.py",
        include_str!("../../../../sidecar/repertoire_sidecar/wire.py"),
    ),
];
/// The file with the digest of the installed sources and requirements.
const VERSION_MARKER: &str = "installed.sha256";
const BUNDLE: &str = if cfg!(windows) {
    "repertoire-sidecar.exe"
} else {
    "repertoire-sidecar"
};

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
pub(super) fn is_installed(folder: &Path) -> bool {
    let known = fs::read_to_string(folder.join(VERSION_MARKER)).unwrap_or_default();
    folder.join(BUNDLE).is_file()
        || (known.trim() == sources_digest() && python_path(folder).is_file())
}

/// Returns the command that starts the sidecar of a folder.
pub(super) fn sidecar_command(folder: &Path) -> SidecarCommand {
    let bundle = folder.join(BUNDLE);
    let home = folder.join("home");
    if bundle.is_file() {
        return SidecarCommand::new(bundle, Vec::new(), home);
    }
    let main = folder.join("main.py");
    // Another version counts as not installed.
    let python = if is_installed(folder) {
        python_path(folder)
    } else {
        folder.join("not-installed")
    };
    SidecarCommand::new(python, vec!["-I".into(), main.into()], home)
}

pub(super) fn install(installation: &Installation<'_>) -> Result<()> {
    let (target, request) = (installation.target, installation.request);
    match request.from {
        Some(file) => install_bundle(file, target),
        None if !request.again && update_sources(target)? => Ok(()),
        None => install_environment(installation),
    }
}

/// Installs the environment in place, because it cannot be moved. A failure restores the previous
/// installation.
fn install_environment(installation: &Installation<'_>) -> Result<()> {
    let target = installation.target;
    let before = target.with_extension("before");
    if before.is_dir() && !is_installed(target) {
        // An earlier setup was interrupted after it moved the old installation.
        let _ = fs::remove_dir_all(target);
        fs::rename(&before, target).map_err(at(&before))?;
    }
    let _ = fs::remove_dir_all(&before);
    let had_one = match fs::rename(target, &before) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(at(target)(error)),
    };
    let made = build_environment(installation);
    if made.is_err() {
        let _ = fs::remove_dir_all(target);
        if had_one {
            fs::rename(&before, target).map_err(at(&before))?;
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
    fs::remove_file(&mark).map_err(at(&mark))?;
    write_sources(target)?;
    fs::write(&mark, sources_digest()).map_err(at(&mark))?;
    Ok(true)
}

fn write_sources(target: &Path) -> Result<()> {
    for (name, text) in SOURCES {
        let file = target.join(name);
        fs::create_dir_all(file.parent().unwrap_or(target)).map_err(at(&file))?;
        fs::write(&file, text).map_err(at(&file))?;
    }
    Ok(())
}

/// Creates the environment; the marker is written last.
fn build_environment(installation: &Installation<'_>) -> Result<()> {
    let Installation {
        target, progress, ..
    } = *installation;
    fs::create_dir_all(target).map_err(at(target))?;
    write_sources(target)?;
    let requirements = target.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).map_err(at(&requirements))?;
    progress.begin_step("1/2 installing DSPy and what it needs (240 MB)");
    let environment = python::EnvironmentSpec {
        python: installation.python,
        requirements: &requirements,
        oldest: (3, 11),
    };
    let python = python::create_environment(&target.join("python"), &environment, progress)?;
    check_cancelled(progress)?;
    progress.begin_step("2/2 trying it");
    let mut check = Command::new(python);
    check
        .args(["-I", "-c", "import dspy; print(dspy.__version__)"])
        .env("DSPY_CACHEDIR", target.join("home/cache"));
    python::run_program(&mut check)?;
    let marker = target.join(VERSION_MARKER);
    fs::write(&marker, sources_digest()).map_err(at(&marker))
}

/// Installs the bundled executable.
fn install_bundle(file: &Path, target: &Path) -> Result<()> {
    require_file(file)?;
    if !file.is_file() {
        return Err(Error::NotABundle(file.to_owned()));
    }
    fs::create_dir_all(target).map_err(at(target))?;
    let beside = target.join(format!("{BUNDLE}.part"));
    fs::copy(file, &beside).map_err(at(file))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o700)).map_err(at(&beside))?;
    }
    if let Err(error) = try_bundle(&beside, target) {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    fs::rename(&beside, target.join(BUNDLE)).map_err(at(target))
}

/// Starts a bundle once, so that a file that is something else is not installed.
fn try_bundle(bundle: &Path, target: &Path) -> Result<()> {
    let command = SidecarCommand::new(bundle.to_owned(), Vec::new(), target.join("home"));
    let check = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(at(bundle))?;
        runtime.block_on(Sidecar::new(command).dspy_version())?;
        Ok(())
    };
    // The caller may be on an async thread, which must neither block nor drop a runtime.
    let done = std::thread::scope(|scope| scope.spawn(check).join());
    done.unwrap_or(Err(Error::Cancelled))
}
