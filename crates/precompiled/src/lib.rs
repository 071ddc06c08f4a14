//! Loads a component that was compiled ahead of time: the one unsafe call of the workspace.
//!
//! Such a file is machine code and is trusted like this program. This program writes it into a
//! folder that no other user can write to, and [`load_component`] refuses any other file;
//! wasmtime checks that it was compiled with matching settings.

use std::{fs, io, path::Path};

use wasmtime::{Engine, component::Component};

/// Loads a compiled component from a file that only its owner can write to.
pub fn load_component(engine: &Engine, file: &Path) -> wasmtime::Result<Component> {
    check_owner_only(file)?;
    if let Some(folder) = file.parent() {
        check_owner_only(folder)?;
    }
    // SAFETY: the file holds the complete output of `Engine::precompile_component` from this
    // program: it is renamed into place after it was written, and no other user can write there.
    #[allow(unsafe_code, reason = "there is no safe way to load machine code")]
    unsafe {
        Component::deserialize_file(engine, file)
    }
}

/// Checks that only this user and the system can write to a path.
#[cfg(unix)]
fn check_owner_only(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    let found = fs::metadata(path)?;
    let owner = found.uid();
    let this = rustix::process::geteuid().as_raw();
    if found.mode() & 0o022 != 0 || (owner != this && owner != 0) {
        let why = format!("{}: others can write to it", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner_only(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(drop)
}
