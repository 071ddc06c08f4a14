//! The SDK's client as a bus.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use futures::future::BoxFuture;
use iii_sdk::{
    Error as SdkError, IIIClient, TriggerAction, protocol::TriggerRequest,
    runtime::IIIConnectionState,
};
use serde_json::Value;
use tokio::runtime::Handle;

use super::state::Feeder;
use crate::iii::bus::{Answer, Bus, CallError};

/// The connection there is now. A client that the bus turned away is replaced by a new one.
pub(super) struct SdkBus {
    client: ArcSwapOption<IIIClient>,
    runtime: Handle,
    feeder: OnceLock<Arc<Feeder>>,
}

impl std::fmt::Debug for SdkBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SdkBus").finish_non_exhaustive()
    }
}

impl SdkBus {
    pub(super) fn new(runtime: Handle) -> Self {
        Self {
            client: ArcSwapOption::empty(),
            runtime,
            feeder: OnceLock::new(),
        }
    }

    /// Tells a feeder of everything that is written from here.
    pub(super) fn watch(&self, feeder: Arc<Feeder>) {
        let _ = self.feeder.set(feeder);
    }

    pub(super) fn put(&self, client: IIIClient) {
        self.client.store(Some(Arc::new(client)));
    }

    async fn ask(&self, function_id: &str, payload: Value, deadline: Duration) -> Answer {
        let Some(client) = self.client.load_full() else {
            return Err(CallError::new("disconnected", "not connected to the bus"));
        };
        if client.get_connection_state() != IIIConnectionState::Connected {
            return Err(CallError::new("disconnected", "not connected to the bus"));
        }
        let request = TriggerRequest {
            function_id: function_id.to_owned(),
            payload,
            action: None,
            timeout_ms: Some(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX)),
        };
        match client.trigger(request).await {
            Ok(value) => Ok(value.to_string()),
            Err(SdkError::Remote { code, message, .. }) => Err(CallError { code, message }),
            Err(SdkError::Timeout) => Err(CallError::timeout(function_id, deadline)),
            Err(SdkError::NotConnected) => {
                Err(CallError::new("disconnected", "not connected to the bus"))
            }
            Err(other) => Err(CallError::new("invocation_failed", other.to_string())),
        }
    }
}

impl Bus for SdkBus {
    fn call<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let written = self
                .feeder
                .get()
                .and_then(|f| f.write_of(function_id, &payload));
            let answer = self.ask(function_id, payload, deadline).await;
            if let (Some(written), Some(feeder)) = (written, self.feeder.get()) {
                feeder.wrote(&written, answer.is_ok());
            }
            answer
        })
    }

    fn fire(&self, function_id: &str, payload: &Value) {
        let Some(client) = self.client.load_full() else {
            return;
        };
        let request = TriggerRequest {
            function_id: function_id.to_owned(),
            payload: payload.clone(),
            action: Some(TriggerAction::Void),
            timeout_ms: None,
        };
        self.runtime.spawn(async move {
            // Nobody waits for what is only told.
            let _ = client.trigger(request).await;
        });
    }
}
