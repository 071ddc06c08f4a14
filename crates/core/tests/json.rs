//! Whatever the product reads, it reads with the guard of `repertoire_core::json`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path};

/// Files that read JSON without it.
fn without_guard(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            without_guard(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs")
            && path.file_name().is_some_and(|name| name != "tests.rs")
        {
            let text = fs::read_to_string(&path).unwrap();
            let reads = ["str", "slice", "reader"];
            if reads
                .iter()
                .any(|what| text.contains(&format!("serde_json::from_{what}")))
            {
                found.push(path.display().to_string());
            }
        }
    }
}

#[test]
fn no_json_is_read_without_the_guard() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    // The other crates read what was made when they were built, or what has a known digest.
    for name in ["core", "registry", "runtime", "serve", "cli"] {
        without_guard(&crates.join(name).join("src"), &mut found);
    }
    found.retain(|path| !path.ends_with("core/src/json.rs"));
    assert!(found.is_empty(), "use repertoire_core::json: {found:?}");
}
