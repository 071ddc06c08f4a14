//! The worker's current connection as a bus.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{
    event_lanes::EventLanes,
    state_feed::{OwnWrite, StateFeed},
};
use crate::iii::{
    bus::{Bus, BusResult, CallError},
    bus_client::{BusClient, SubscribedFunction},
};

/// The current connection, if there is one. Every write is reported to the state feed, so that
/// the catalogue contains it before the bus reports it back.
#[derive(Debug)]
pub(super) struct WorkerBus {
    client: ArcSwapOption<BusClient>,
    feed: Arc<StateFeed>,
    /// The namespace of this worker, if it is not the default one.
    namespace: Mutex<Option<String>>,
    events: Arc<EventLanes>,
}

impl WorkerBus {
    pub(super) fn new(feed: Arc<StateFeed>) -> Self {
        Self {
            client: ArcSwapOption::empty(),
            feed,
            namespace: Mutex::default(),
            events: Arc::default(),
        }
    }

    pub(super) fn replace_client(&self, client: Option<Arc<BusClient>>) {
        self.client.store(client);
    }

    pub(super) fn namespace(&self) -> Option<String> {
        let namespace = self.namespace.lock();
        namespace.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_namespace(&self, namespace: Option<String>) {
        let mut place = self
            .namespace
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *place = namespace;
    }

    /// Calls a function that follows a trigger.
    pub(super) fn notify_subscriber(&self, function: &SubscribedFunction, payload: &Value) {
        let Some(client) = self.client.load_full() else {
            return;
        };
        if client.is_hub() {
            // A hub keeps the order of calls.
            client.fire_in(function.namespace.as_deref(), &function.id, payload);
        } else {
            self.events.send(client, function, payload);
        }
    }
}

/// A write that is reported to the state feed when it ends, also if its caller stops waiting.
struct WriteInFlight<'a> {
    feed: &'a StateFeed,
    write: OwnWrite,
    is_made: bool,
}

impl Drop for WriteInFlight<'_> {
    fn drop(&mut self) {
        self.feed.finish_write(&self.write, self.is_made);
    }
}

/// Whether the bus itself provides a function, in the default namespace.
fn is_of_bus(function_id: &str) -> bool {
    ["engine::", "state::"]
        .iter()
        .any(|prefix| function_id.starts_with(prefix))
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
            let mut write = write.map(|write| WriteInFlight {
                feed: &self.feed,
                write,
                is_made: false,
            });
            let namespace = self.namespace().filter(|_| !is_of_bus(function_id));
            let text = payload.to_string();
            let here = namespace.as_deref();
            let mut answer = client
                .call_json_in(here, function_id, &text, deadline)
                .await;
            // What is not in our namespace may be in the default one.
            let is_missing = |answer: &BusResult| matches!(answer, Err(error) if error.code == "function_not_found");
            if here.is_some() && is_missing(&answer) {
                answer = client.call_json(function_id, &text, deadline).await;
            }
            if let Some(write) = &mut write {
                write.is_made = answer.is_ok();
            }
            drop(write);
            answer
        })
    }

    fn fire_and_forget(&self, function_id: &str, payload: &Value) {
        if let Some(client) = self.client.load_full() {
            client.fire_and_forget(function_id, payload);
        }
    }
}
