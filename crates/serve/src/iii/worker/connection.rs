//! The worker's current connection as a bus.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use futures::future::BoxFuture;
use serde_json::Value;

use super::state_feed::StateFeed;
use crate::iii::{
    bus::{Bus, BusResult, CallError},
    bus_client::BusClient,
};

/// The current connection, if there is one. Every write is reported to the state feed, so that
/// the catalogue contains it before the bus reports it back.
#[derive(Debug)]
pub(super) struct WorkerBus {
    client: ArcSwapOption<BusClient>,
    feed: Arc<StateFeed>,
}

impl WorkerBus {
    pub(super) fn new(feed: Arc<StateFeed>) -> Self {
        Self {
            client: ArcSwapOption::empty(),
            feed,
        }
    }

    pub(super) fn replace_client(&self, client: Option<Arc<BusClient>>) {
        self.client.store(client);
    }
}

impl Bus for WorkerBus {
    fn call_function<'a>(
        &'a self,
        function_id: &'a str,
        payload: Value,
        deadline: Duration,
    ) -> BoxFuture<'a, BusResult> {
        Box::pin(async move {
            let Some(client) = self.client.load_full().filter(|client| !client.is_closed()) else {
                return Err(CallError::new("disconnected", "not connected to the bus"));
            };
            let write = self.feed.begin_write(function_id, &payload);
            let answer = client.call_function(function_id, payload, deadline).await;
            if let Some(write) = write {
                self.feed.finish_write(&write, answer.is_ok());
            }
            answer
        })
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
        if let Some(client) = self.client.load_full() {
            client.fire_and_forget(function_id, payload);
        }
    }
}
