//! The manifest that an engine reads, and the description it builds the worker from.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::process::Command;

use serde_json::Value;

#[test]
fn the_worker_prints_its_manifest_and_help() {
    let out = Command::new(env!("CARGO_BIN_EXE_skills"))
        .arg("--manifest")
        .output()
        .unwrap();
    let manifest: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(manifest["name"], "skills");
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(manifest["default_config"]["scopes"]["skills"], "skills");
    assert!(manifest["supported_targets"].is_array() && manifest["description"].is_string());
    let help = Command::new(env!("CARGO_BIN_EXE_skills"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in ["--config", "--url", "--manifest"] {
        assert!(help.contains(flag), "{help}");
    }
}

#[test]
fn the_engine_builds_the_binary_that_this_package_has() {
    let description = include_str!("../iii.worker.yaml");
    let field = |name: &str| {
        let lines = description.lines();
        let value = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.collect::<Vec<_>>().concat()
    };
    assert_eq!((&*field("name"), &*field("bin")), ("skills", "skills"));
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(field("manifest"));
    assert!(
        std::fs::read_to_string(manifest)
            .unwrap()
            .contains("name = \"skills\"")
    );
}
