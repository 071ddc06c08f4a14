//! The guest on disk: the component and its compiled form.
//!
//! A folder holds one build. The name of the compiled file includes the component digest, the
//! wasmtime version and the settings, so that another version compiles again instead of loading it.

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

/// The sources a guest component is built from, by path.
pub const GUEST_SOURCES: [(&str, &str); 3] = [
    (
        "wit/sandbox.wit",
        include_str!("../../../../sandbox/wit/sandbox.wit"),
    ),
    ("app.py", include_str!("../../../../sandbox/app.py")),
    ("host.py", include_str!("../../../../sandbox/host.py")),
];

const COMPONENT_FILE: &str = "sandbox.wasm";
/// The digest of the component, so that the component need not be read.
const DIGEST_FILE: &str = "sandbox.wasm.sha256";
/// The digest of the sources the component was built from.
const SOURCES_FILE: &str = "sources.sha256";
/// Increment this when the engine settings below change.
const SETTINGS: &str = "2";
/// The maximum number of instances: every concurrent script with its nested scripts.
const MAX_INSTANCES: u32 = 128 * 5;
const _: () =
    assert!(MAX_INSTANCES as usize == super::MAX_CONCURRENT_SCRIPTS * (super::host::MAX_DEPTH + 1));
/// The bytes of stack that stay resident after an instance ends; they are zeroed.
const KEPT_STACK: usize = 64 << 10;
/// The major version of wasmtime, which also checks compiled files itself.
const WASMTIME: &str = "48";

fn create_engine() -> Result<Engine> {
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
    config.allocation_strategy(pooling_strategy());
    let pooled = Engine::new(&config).or_else(|error| {
        // The system may not grant this much address space.
        tracing::debug!("instance pooling is not available: {error:#}");
        Engine::new(config.allocation_strategy(InstanceAllocationStrategy::OnDemand))
    });
    pooled.map_err(|error| Error::Sandbox(format!("{error:#}")))
}

/// A pool of instances. All memory of a script is returned to the system when it ends: scanning
/// only for dirty pages would miss pages in swap.
fn pooling_strategy() -> InstanceAllocationStrategy {
    let mut pool = PoolingAllocationConfig::new();
    // A guest has one memory and some dozen modules that share it.
    pool.total_component_instances(MAX_INSTANCES)
        .total_core_instances(MAX_INSTANCES * 64)
        .total_memories(MAX_INSTANCES)
        .total_tables(MAX_INSTANCES * 4)
        .total_stacks(MAX_INSTANCES)
        .async_stack_keep_resident(KEPT_STACK);
    pool.into()
}

fn sources_digest() -> String {
    let mut all = Vec::new();
    for (name, text) in GUEST_SOURCES {
        all.extend_from_slice(name.as_bytes());
        all.push(0);
        all.extend_from_slice(text.as_bytes());
        all.push(0);
    }
    Digest::hash_bytes(&all).hex_digits()
}

/// Whether a folder holds a guest of this version.
pub fn is_installed(folder: &Path) -> bool {
    let built_from = fs::read_to_string(folder.join(SOURCES_FILE)).unwrap_or_default();
    built_from.trim() == sources_digest() && folder.join(COMPONENT_FILE).is_file()
}

/// Compiles a component built from [`GUEST_SOURCES`], tests it, and installs it in a folder that only the
/// current user can enter. This takes some seconds.
pub fn install_component(component: &[u8], folder: &Path) -> Result<()> {
    let broken = |error: io::Error| Error::Sandbox(format!("{}: {error}", folder.display()));
    create_private_dir(folder).map_err(broken)?;
    let digest = Digest::hash_bytes(component).hex_digits();
    let engine = create_engine()?;
    let file = folder.join(compiled_file_name(&digest));
    compile_to_file(&engine, component, &file)?;
    let tried = repertoire_precompiled::load_component(&engine, &file)
        .map_err(|error| Error::Sandbox(format!("{error:#}")))
        .and_then(|guest| super::run_smoke_test(&guest));
    if let Err(error) = tried {
        let _ = fs::remove_file(&file);
        return Err(error);
    }
    for (name, bytes) in [
        (COMPONENT_FILE, component),
        (DIGEST_FILE, digest.as_bytes()),
        // Written last: it marks the installation as complete.
        (SOURCES_FILE, sources_digest().as_bytes()),
    ] {
        write_atomically(&folder.join(name), bytes).map_err(broken)?;
    }
    remove_stale_files(folder, &file);
    Ok(())
}

/// Removes files of earlier builds and failed attempts.
fn remove_stale_files(folder: &Path, current: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let end = path.extension().unwrap_or_default();
        if path != current && (end == "cwasm" || end == "part") {
            let _ = fs::remove_file(path);
        }
    }
}

fn compiled_file_name(digest: &str) -> String {
    let short = digest.get(..16).unwrap_or(digest);
    format!("{short}-wasmtime{WASMTIME}-{SETTINGS}.cwasm")
}

/// Loads the guest; compiles it again if another version installed it.
pub(super) fn load_component(folder: &Path) -> Result<Component> {
    if !is_installed(folder) {
        return Err(Error::NeedsSandbox("not installed".to_owned()));
    }
    let broken = |error: io::Error| Error::Sandbox(format!("{}: {error}", folder.display()));
    let digest = fs::read_to_string(folder.join(DIGEST_FILE)).map_err(broken)?;
    let file = folder.join(compiled_file_name(digest.trim()));
    let engine = create_engine()?;
    let loaded = repertoire_precompiled::load_component(&engine, &file).or_else(|error| {
        let refused = error.downcast_ref::<io::Error>();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return Err(error);
        }
        tracing::info!("compiling the sandbox again: {error:#}");
        let component = fs::read(folder.join(COMPONENT_FILE))?;
        let code = engine.precompile_component(&component)?;
        write_atomically(&file, &code)?;
        repertoire_precompiled::load_component(&engine, &file)
    });
    loaded.map_err(|error| Error::Sandbox(format!("{}: {error:#}", file.display())))
}

fn compile_to_file(engine: &Engine, component: &[u8], file: &Path) -> Result<()> {
    let code = engine
        .precompile_component(component)
        .map_err(|error| Error::Sandbox(format!("this is no guest: {error:#}")))?;
    write_atomically(file, &code)
        .map_err(|error| Error::Sandbox(format!("{}: {error}", file.display())))
}

/// Creates a folder that only the current user can enter.
fn create_private_dir(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Writes a file atomically, readable only by the current user.
fn write_atomically(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(file);
    let part = tempfile::Builder::new().suffix(".part").tempfile_in(folder);
    let mut part = part?;
    part.write_all(bytes)?;
    part.as_file().sync_all()?;
    part.persist(file).map_err(|error| error.error)?;
    Ok(())
}
