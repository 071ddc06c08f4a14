//! The hub, spoken to frame by frame.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    clippy::needless_pass_by_value,
    reason = "a test"
)]

mod abuse;
mod calls;
mod peer;
mod state;
