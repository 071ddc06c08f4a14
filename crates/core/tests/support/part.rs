//! Access to the parts that the test command installs.

use std::ffi::OsString;

/// Returns the place of an installed part, which a variable names.
///
/// A missing part fails the test. Only a quick run (`cargo xtask test --quick`) leaves the test out.
pub(crate) fn installed_part(variable: &str) -> Option<OsString> {
    let part = std::env::var_os(variable);
    let is_quick = std::env::var_os("REPERTOIRE_TEST_QUICK").is_some();
    assert!(
        part.is_some() || is_quick,
        "{variable} is not set: `cargo xtask test` installs what this test needs, `cargo xtask \
         test --quick` leaves it out"
    );
    part
}
