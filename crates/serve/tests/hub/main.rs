//! Tests the hub at the level of protocol frames.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    clippy::needless_pass_by_value,
    reason = "a test"
)]

mod calls;
mod hostile_peers;
mod state;
mod test_hub;
