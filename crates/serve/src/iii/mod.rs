//! The iii bus: the functions of the `skills` worker, and the two buses they run on.
//!
//! [`functions`] implements the thirteen functions for any [`Bus`]. [`hub`] is a bus in this
//! process; `worker` connects to an external bus as a worker. [`bus_client`] calls a bus from outside.

pub mod bus;
pub mod bus_client;
pub mod bus_mode;
pub(crate) mod changes;
pub mod config;
pub mod functions;
pub mod hub;
pub(crate) mod protocol;
pub mod startup_log;
mod update_ops;
pub mod worker;

pub use bus::{Bus, CallError};
pub use bus_mode::{BoundBus, BusMode};
pub use functions::SkillFunctions;
pub use hub::{Hub, HubOptions};

/// The default address of a bus.
pub const DEFAULT_URL: &str = "ws://127.0.0.1:49134";
