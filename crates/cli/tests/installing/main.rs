//! Installing skills from other places: real programs on the other end, and hostile ones.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../../core/tests/support/part.rs"]
mod part;

#[path = "../../../remote/tests/support/signing.rs"]
mod signing;

mod http;
mod places;
mod user;

mod hostile;
mod hostile_git;
mod interrupted;
mod migration;
mod projects;
mod registries;
mod signers;
mod sources;
mod updates;
