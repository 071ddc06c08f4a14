//! The program starts and says how it is used.

use std::process::Command;

#[test]
fn usage_is_printed_for_unknown_arguments() {
    let run = Command::new(env!("CARGO_BIN_EXE_repertoire-bench"))
        .arg("nonsense")
        .output();
    let run = run.expect("the program starts");
    assert_eq!(run.status.code(), Some(2));
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(said.contains("cargo xtask bench"), "{said}");
}
