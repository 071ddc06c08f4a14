//! What the functions need of the bus they are on.

use std::time::Duration;

use futures::future::BoxFuture;
use repertoire_registry::registered::Row;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Why a call failed: a code and a message, nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The stable code.
    pub code: String,
    /// What went wrong, for people.
    pub message: String,
}

impl CallError {
    /// An error with a code and a message.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }

    /// Nobody has this function.
    pub fn no_function(id: &str) -> Self {
        let id = crate::error::shorten(id);
        Self::new("function_not_found", format!("function {id:?} not found"))
    }

    /// The answer did not come in time.
    pub fn timeout(id: &str, deadline: Duration) -> Self {
        let id = crate::error::shorten(id);
        let millis = deadline.as_millis();
        Self::new("timeout", format!("{id}: no answer within {millis} ms"))
    }
}

/// One result of a call: a JSON text.
pub type Answer = Result<String, CallError>;

/// A bus: functions by name, whoever has them.
pub trait Bus: Send + Sync + std::fmt::Debug {
    /// Calls a function and waits for its answer.
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, Answer>;

    /// Keeps a row of registered content in the state.
    fn keep<'a>(
        &'a self,
        scope: &'a str,
        key: &'a str,
        row: Row,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let value: Value = repertoire_core::json::from_str(&row.value)
                .map_err(|error| CallError::new("internal", format!("not JSON: {error}")))?;
            let payload = json!({"scope": scope, "key": key, "value": value});
            self.call("state::set", payload, deadline).await?;
            Ok(())
        })
    }

    /// Calls a function and does not wait.
    fn fire(&self, function_id: &str, payload: &Value);
}
