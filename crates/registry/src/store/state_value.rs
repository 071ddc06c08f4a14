//! Key-value state by scope: registrations of workers, and other state of the bus.
//!
//! Values are JSON texts that are stored unchanged; only their consumers interpret them.

use super::EventId;
use crate::error::Result;

/// The metadata of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRow {
    /// The key within its scope.
    pub key: String,
    /// Its listing metadata, if known.
    pub metadata: Option<String>,
}

/// One revision of registered content.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StateRevision {
    /// Its number; the newest revision has the highest one.
    pub revision: i64,
    /// When it was stored or removed, RFC 3339 in UTC.
    pub at: String,
    /// The value as JSON; none if it was removed.
    pub value: Option<String>,
}

/// A value to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateValue {
    /// The value as JSON.
    pub value: String,
    /// Its listing metadata.
    pub metadata: Option<String>,
}

/// The decision about one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateChange {
    /// Store this value.
    Put(StateValue),
    /// Delete the value, if there is one.
    Delete,
    /// Leave it as it is.
    Keep,
}

/// The result of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateOutcome {
    /// The value before the change.
    pub previous: Option<String>,
    /// The event of the change; none if nothing changed.
    pub event: Option<EventId>,
}

/// Decides about a value, given the current one.
pub type StateWork = Box<dyn FnOnce(Option<String>) -> Result<StateChange> + Send>;

/// Receives the result when the change is durable.
pub type StateCallback = Box<dyn FnOnce(Result<StateOutcome>) + Send>;
