//! Installs third-party dependencies of tests: pinned, once, beneath `target`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::commands::{project_dir, run_checked};

/// Returns the Python of an environment with these requirements.
pub(crate) fn install_python(requirements: &str, place: &str) -> Result<PathBuf> {
    let wanted = fs::read_to_string(project_dir().join(requirements))?;
    let environment = project_dir().join("target/xtask").join(place);
    let python = environment.join("bin/python");
    let stamp = environment.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        println!("using {requirements} installed earlier");
        return Ok(python);
    }
    println!("installing {requirements} into target/xtask/{place}");
    let _ = fs::remove_dir_all(&environment);
    if let Some(parent) = environment.parent() {
        fs::create_dir_all(parent)?;
    }
    run_checked(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment),
    )?;
    let options = ["--quiet", "--disable-pip-version-check", "--no-deps"];
    run_checked(
        Command::new(&python)
            .args(["-m", "pip", "install"])
            .args(options)
            .args(["--requirement", requirements])
            .current_dir(project_dir()),
    )?;
    fs::write(stamp, wanted)?;
    Ok(python)
}

/// Installs the locked packages of a project folder; returns the folder and whether it is new.
pub(crate) fn install_npm(from: &str, place: &str) -> Result<(PathBuf, bool)> {
    let from_folder = project_dir().join(from);
    let wanted = fs::read_to_string(from_folder.join("package-lock.json"))?;
    let folder = project_dir().join("target/xtask").join(place);
    let stamp = folder.join("installed.json");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) {
        println!("using {from}/package.json installed earlier");
        return Ok((folder, false));
    }
    println!("installing {from}/package.json into target/xtask/{place}");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json", ".npmrc"] {
        fs::copy(from_folder.join(file), folder.join(file))?;
    }
    // Not `npm ci`: it rejects a lock file without the address of a registry.
    run_checked(
        Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder),
    )?;
    fs::write(stamp, wanted)?;
    Ok((folder, true))
}

/// Copies a script of the project next to the packages it needs.
pub(crate) fn copy_script(from: &str, folder: &Path) -> Result<PathBuf> {
    let source = project_dir().join(from);
    let script = folder.join(source.file_name().unwrap_or_default());
    fs::copy(&source, &script)?;
    Ok(script)
}
