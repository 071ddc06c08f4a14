//! The iii bus: the functions of the `skills` worker, and the two buses they run on.
//!
//! [`functions`] answers the thirteen functions on any [`Bus`]. [`hub`] is a bus of our own, in
//! this process; `worker` makes us a worker on somebody else's. [`client`] asks a bus from
//! outside.

pub mod boot;
pub mod bus;
pub(crate) mod changes;
pub mod client;
pub mod config;
pub mod functions;
pub mod hub;
mod ops;
pub(crate) mod protocol;
#[cfg(feature = "worker")]
pub mod worker;

pub use bus::{Bus, CallError};
pub use functions::Functions;
pub use hub::{Hub, HubOptions};

/// Where a bus is, unless somebody says otherwise.
pub const DEFAULT_URL: &str = "ws://127.0.0.1:49134";
