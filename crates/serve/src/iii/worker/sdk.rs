//! A bus over the client of the SDK.

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

use super::state_feed::StateFeed;
use crate::iii::bus::{Bus, BusResult, CallError};

/// The current connection. A client that the bus rejected is replaced by a new one.
pub(super) struct SdkBus {
    client: ArcSwapOption<IIIClient>,
    runtime: Handle,
    state_feed: OnceLock<Arc<StateFeed>>,
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
            state_feed: OnceLock::new(),
        }
    }

    /// Sets the state feed that receives every write made through this bus.
    pub(super) fn attach_feed(&self, feeder: Arc<StateFeed>) {
        let _ = self.state_feed.set(feeder);
    }

    pub(super) fn replace_client(&self, client: IIIClient) {
        self.client.store(Some(Arc::new(client)));
    }

    async fn send_request(
        &self,
        function_id: &str,
        payload: Value,
        deadline: Duration,
    ) -> BusResult {
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
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult> {
        Box::pin(async move {
            let written = self
                .state_feed
                .get()
                .and_then(|f| f.begin_write(function_id, &payload));
            let answer = self.send_request(function_id, payload, deadline).await;
            if let (Some(written), Some(feeder)) = (written, self.state_feed.get()) {
                feeder.finish_write(&written, answer.is_ok());
            }
            answer
        })
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
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
            // A fire-and-forget call has no result.
            let _ = client.trigger(request).await;
        });
    }
}
