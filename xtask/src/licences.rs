//! Checks the licences and sources of all dependencies, from the metadata that cargo has offline.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::commands::{CheckCount, cargo_command};

/// The licences that can be combined with ours.
const ALLOWED: [&str; 15] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "BlueOak-1.0.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks every package in the lock file, as one check each.
pub(crate) fn check_licences() -> Result<CheckCount> {
    let mut command = cargo_command(&["metadata", "--format-version", "1", "--locked"]);
    let output = command.output().context("cargo metadata")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let mut count = CheckCount::default();
    for package in packages {
        match find_problem(package) {
            None => count.passed += 1,
            Some(problem) => {
                eprintln!("{} {}: {problem}", package["name"], package["version"]);
                count.failed += 1;
            }
        }
    }
    Ok(count)
}

/// Returns why a package cannot be used, if it cannot.
fn find_problem(package: &Value) -> Option<String> {
    // A package without a source is part of this workspace.
    let source = package["source"].as_str()?;
    if !source.starts_with("registry+") {
        return Some(format!("comes from {source}, not from the registry"));
    }
    match package["license"].as_str() {
        Some(license) if is_allowed(license) => None,
        Some(license) => Some(format!("the licence {license:?} is not in the list")),
        None => Some("names no licence".to_owned()),
    }
}

/// Evaluates a licence expression: every part of an AND, one part of an OR. Older packages write
/// `/` for OR.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.trim();
    for (operator, is_any) in [(" OR ", true), ("/", true), (" AND ", false)] {
        let parts = split_top_level(expression, operator);
        if parts.len() > 1 {
            return if is_any {
                parts.iter().any(|part| is_allowed(part))
            } else {
                parts.iter().all(|part| is_allowed(part))
            };
        }
    }
    match expression
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
    {
        Some(inner) => is_allowed(inner),
        None => ALLOWED.contains(&expression),
    }
}

/// Splits at an operator outside of parentheses.
fn split_top_level<'a>(expression: &'a str, operator: &str) -> Vec<&'a str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (at, c) in expression.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 && at >= start && expression[at..].starts_with(operator) => {
                parts.push(&expression[start..at]);
                start = at + operator.len();
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_evaluated() {
        for allowed in [
            "MIT",
            "MIT OR GPL-3.0",
            "MIT/Apache-2.0",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in ["GPL-3.0", "MIT AND GPL-3.0", "", "(MIT", "Proprietary"] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn packages_from_elsewhere_are_refused() {
        let package = |source: &str| {
            let package = serde_json::json!({"source": source, "license": "MIT"});
            find_problem(&package).is_none()
        };
        assert!(package("registry+https://example.com/index"));
        assert!(!package("git+https://example.com/x"));
    }
}
