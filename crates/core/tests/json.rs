//! Checks that all JSON is parsed through `repertoire_core::json`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path};

/// Collects the files that call `serde_json` directly to parse JSON.
fn collect_unguarded_files(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_unguarded_files(&path, found);
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
fn all_json_is_read_through_core_json() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    // The other crates read data from their build, or data with a known digest.
    for name in ["core", "registry", "runtime", "serve", "cli"] {
        collect_unguarded_files(&crates.join(name).join("src"), &mut found);
    }
    found.retain(|path| !path.ends_with("core/src/json.rs"));
    assert!(found.is_empty(), "use repertoire_core::json: {found:?}");
}
