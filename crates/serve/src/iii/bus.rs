//! The bus interface that the functions use.

use std::time::Duration;

use futures::future::BoxFuture;
use repertoire_registry::registered::RegisteredRow;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// An error of a call: a code and a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct CallError {
    /// The stable code.
    pub code: String,
    /// The error message for people.
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

    /// The error for a function that no worker has registered.
    pub fn function_not_found(id: &str) -> Self {
        let id = crate::error::shorten_text(id);
        Self::new("function_not_found", format!("function {id:?} not found"))
    }

    /// The error for a call without an answer before its deadline.
    pub fn timeout(id: &str, deadline: Duration) -> Self {
        let id = crate::error::shorten_text(id);
        let millis = deadline.as_millis();
        Self::new("timeout", format!("{id}: no answer within {millis} ms"))
    }
}

/// The result of a call: a JSON text or an error.
pub type BusResult = Result<String, CallError>;

/// A bus: calls functions by name, whichever worker provides them.
pub trait Bus: Send + Sync + std::fmt::Debug {
    /// Calls a function and waits for its answer.
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult>;

    /// Stores a row of registered content in the state.
    fn store_row<'a>(
        &'a self,
        scope: &'a str,
        key: &'a str,
        row: RegisteredRow,
        deadline: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        Box::pin(async move {
            let value: Value = repertoire_core::json::from_str(&row.value)
                .map_err(|error| CallError::new("internal", format!("not JSON: {error}")))?;
            let payload = json!({"scope": scope, "key": key, "value": value});
            self.call_function("state::set", payload, deadline).await?;
            Ok(())
        })
    }

    /// Calls a function without waiting for its answer.
    fn fire_and_forget(&self, function_id: &str, payload: &Value);
}
