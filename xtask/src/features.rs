//! Checks that every crate builds without a warning with each of its features alone.

use anyhow::Result;

use crate::commands::{CheckCount, cargo_command, run_checked};

/// The crates with features, and the features. Default features are covered by the lints.
const FEATURES: [(&str, &[&str]); 4] = [
    ("repertoire-registry", &["search"]),
    ("repertoire-runtime", &["providers", "sandbox"]),
    ("repertoire-app", &["sandbox"]),
    ("repertoire", &["sandbox"]),
];

/// Lints each crate without features and with each feature alone.
#[allow(clippy::unnecessary_wraps, reason = "the form of a step")]
pub(crate) fn check_features() -> Result<CheckCount> {
    let mut total = CheckCount::default();
    for (package, features) in FEATURES {
        for feature in std::iter::once(None).chain(features.iter().map(Some)) {
            let mut command = cargo_command(&["clippy", "--quiet", "--package", package]);
            command.arg("--no-default-features");
            if let Some(feature) = feature {
                command.args(["--features", feature]);
            }
            let result = run_checked(command.args(["--", "-D", "warnings"]));
            total.add(CheckCount::from_result(package, result));
        }
    }
    Ok(total)
}
