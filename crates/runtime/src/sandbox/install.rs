//! The guest on disk: the component as it was built, and what it was compiled to.
//!
//! A folder holds one build. What it was compiled to is named after the component, this program's
//! version of wasmtime and its settings, so that another version never loads it but compiles anew.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use repertoire_core::Digest;
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, component::Component,
};

use crate::error::{Error, Result};

/// The sources of the guest, by their path: what a component is built from.
pub const GUEST: [(&str, &str); 3] = [
    (
        "wit/sandbox.wit",
        include_str!("../../../../sandbox/wit/sandbox.wit"),
    ),
    ("app.py", include_str!("../../../../sandbox/app.py")),
    ("host.py", include_str!("../../../../sandbox/host.py")),
];

const COMPONENT: &str = "sandbox.wasm";
/// The digest of the component, so that it does not have to be read to be known.
const DIGEST: &str = "sandbox.wasm.sha256";
/// The digest of the sources the component was built from.
const SOURCES: &str = "sources.sha256";
/// Changes whenever the settings below do.
const SETTINGS: &str = "2";
/// The most instances: each of those that run at a time, and what it runs.
const MOST: u32 = 128 * 5;
const _: () = assert!(MOST as usize == super::AT_ONCE * (super::host::MAX_DEPTH + 1));
/// The most bytes of stack that stay where an instance was; they are zeroed.
const KEPT_STACK: usize = 64 << 10;
/// The version of wasmtime; it checks for itself, too.
const WASMTIME: &str = "48";

fn engine() -> Result<Engine> {
    let mut config = Config::new();
    config
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(1 << 20)
        .async_stack_size(2 << 20)
        .async_stack_zeroing(true)
        .wasm_backtrace_max_frames(None)
        .native_unwind_info(false)
        .generate_address_map(false);
    config.allocation_strategy(pool());
    let pooled = Engine::new(&config).or_else(|error| {
        // Where so many addresses are not to be had.
        tracing::debug!("no pool of instances: {error:#}");
        Engine::new(config.allocation_strategy(InstanceAllocationStrategy::OnDemand))
    });
    pooled.map_err(|error| Error::Sandbox(format!("{error:#}")))
}

/// Room for instances, made once. What a script wrote is given back to the system when it ends, all
/// of it: looking only for the pages that were written would miss those that are in swap.
fn pool() -> InstanceAllocationStrategy {
    let mut pool = PoolingAllocationConfig::new();
    // A guest is one memory and some dozen modules that share it.
    pool.total_component_instances(MOST)
        .total_core_instances(MOST * 64)
        .total_memories(MOST)
        .total_tables(MOST * 4)
        .total_stacks(MOST)
        .async_stack_keep_resident(KEPT_STACK);
    pool.into()
}

fn sources() -> String {
    let mut all = Vec::new();
    for (name, text) in GUEST {
        all.extend_from_slice(name.as_bytes());
        all.push(0);
        all.extend_from_slice(text.as_bytes());
        all.push(0);
    }
    Digest::of(&all).hex()
}

/// Whether a folder holds a guest of this version.
pub fn is_installed(folder: &Path) -> bool {
    let built_from = fs::read_to_string(folder.join(SOURCES)).unwrap_or_default();
    built_from.trim() == sources() && folder.join(COMPONENT).is_file()
}

/// Compiles a component that was built from [`GUEST`], tries it, and installs it in a folder that
/// only this user can enter. It takes some seconds.
pub fn compile(component: &[u8], folder: &Path) -> Result<()> {
    let broken = |error: io::Error| Error::Sandbox(format!("{}: {error}", folder.display()));
    private(folder).map_err(broken)?;
    let digest = Digest::of(component).hex();
    let engine = engine()?;
    let file = folder.join(name_of(&digest));
    compiled(&engine, component, &file)?;
    let tried = repertoire_precompiled::load(&engine, &file)
        .map_err(|error| Error::Sandbox(format!("{error:#}")))
        .and_then(|guest| super::try_out(&guest));
    if let Err(error) = tried {
        let _ = fs::remove_file(&file);
        return Err(error);
    }
    for (name, bytes) in [
        (COMPONENT, component),
        (DIGEST, digest.as_bytes()),
        // Last: it says that all of it is there.
        (SOURCES, sources().as_bytes()),
    ] {
        write(&folder.join(name), bytes).map_err(broken)?;
    }
    tidy(folder, &file);
    Ok(())
}

/// Removes what earlier builds and broken attempts have left.
fn tidy(folder: &Path, current: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let end = path.extension().unwrap_or_default();
        if path != current && (end == "cwasm" || end == "part") {
            let _ = fs::remove_file(path);
        }
    }
}

fn name_of(digest: &str) -> String {
    let short = digest.get(..16).unwrap_or(digest);
    format!("{short}-wasmtime{WASMTIME}-{SETTINGS}.cwasm")
}

/// Loads the guest; compiles it if this is another version than the one that installed it.
pub(super) fn load(folder: &Path) -> Result<Component> {
    if !is_installed(folder) {
        return Err(Error::NeedsSandbox("not installed".to_owned()));
    }
    let broken = |error: io::Error| Error::Sandbox(format!("{}: {error}", folder.display()));
    let digest = fs::read_to_string(folder.join(DIGEST)).map_err(broken)?;
    let file = folder.join(name_of(digest.trim()));
    let engine = engine()?;
    let loaded = repertoire_precompiled::load(&engine, &file).or_else(|error| {
        let refused = error.downcast_ref::<io::Error>();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return Err(error);
        }
        tracing::info!("compiling the sandbox anew: {error:#}");
        let component = fs::read(folder.join(COMPONENT))?;
        let code = engine.precompile_component(&component)?;
        write(&file, &code)?;
        repertoire_precompiled::load(&engine, &file)
    });
    loaded.map_err(|error| Error::Sandbox(format!("{}: {error:#}", file.display())))
}

fn compiled(engine: &Engine, component: &[u8], file: &Path) -> Result<()> {
    let code = engine
        .precompile_component(component)
        .map_err(|error| Error::Sandbox(format!("this is no guest: {error:#}")))?;
    write(file, &code).map_err(|error| Error::Sandbox(format!("{}: {error}", file.display())))
}

/// Makes a folder only this user can enter.
fn private(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Writes a file whole or not at all, for this user alone.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(file);
    let part = tempfile::Builder::new().suffix(".part").tempfile_in(folder);
    let mut part = part?;
    part.write_all(bytes)?;
    part.as_file().sync_all()?;
    part.persist(file).map_err(|error| error.error)?;
    Ok(())
}
