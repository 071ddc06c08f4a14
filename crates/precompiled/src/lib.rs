//! Loading a component that was compiled ahead of time: the one unsafe call of the workspace.
//!
//! Such a file is machine code, and is trusted as this program is. It is made by this program, in a
//! folder nobody else can write to, and [`load`] refuses any other; what the file was compiled with
//! is checked by wasmtime.

use std::{fs, io, path::Path};

use wasmtime::{Engine, component::Component};

/// Loads a compiled component from a file that only its owner can have written.
pub fn load(engine: &Engine, file: &Path) -> wasmtime::Result<Component> {
    only_ours(file)?;
    if let Some(folder) = file.parent() {
        only_ours(folder)?;
    }
    // SAFETY: the file holds what `Engine::precompile_component` gave this program, whole: it is
    // renamed into place after it was written, and nobody else may write there.
    #[allow(unsafe_code, reason = "there is no safe way to load machine code")]
    unsafe {
        Component::deserialize_file(engine, file)
    }
}

/// Whether nobody but this user and the system can change what is there.
#[cfg(unix)]
fn only_ours(path: &Path) -> io::Result<()> {
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
fn only_ours(path: &Path) -> io::Result<()> {
    fs::metadata(path).map(drop)
}
