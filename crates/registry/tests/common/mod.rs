//! Shared test helpers: skills on disk, and waiting for a condition.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// Returns the text of a small valid document.
pub(crate) fn document_text(name: &str, body: &str) -> String {
    format!(
        "---\nname: {name}\ndescription: Does {name}. Use when {name} is asked for.\n---\n{body}"
    )
}

/// Writes a skill folder with an id beneath a root.
pub(crate) fn write_skill(root: &Path, id: &str, body: &str) {
    let name = id.rsplit('/').next().unwrap();
    let folder = root.join(id);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("SKILL.md"), document_text(name, body)).unwrap();
}

/// Writes a file and creates its parent folders.
pub(crate) fn write_file(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Waits until a condition holds; fails when it does not within ten seconds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::yield_now();
    }
}
