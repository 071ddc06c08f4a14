//! Sends the events of one item to a follower in their order, on a bus that does not keep it.
//!
//! An engine runs calls side by side, so of two calls that are sent one after the other the second may
//! arrive first. So the next event of an item waits until the follower has answered the one before.
//! Events of different items do not wait for each other.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::iii::bus_client::{BusClient, SubscribedFunction};

/// How long a follower may take for an event before it gets the next one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many events may wait. What exceeds it is sent at once, in any order.
const MAX_WAITING: usize = 65_536;

/// A follower and the item that its events are about.
type Lane = (SubscribedFunction, String);

/// The events that wait for the one before.
#[derive(Debug, Default)]
pub(super) struct EventLanes {
    waiting: Mutex<WaitingEvents>,
}

#[derive(Debug, Default)]
struct WaitingEvents {
    /// A lane is here as long as an event of it is under way.
    lanes: HashMap<Lane, VecDeque<QueuedEvent>>,
    count: usize,
}

#[derive(Debug)]
struct QueuedEvent {
    client: Arc<BusClient>,
    payload: String,
}

impl EventLanes {
    fn lock(&self) -> MutexGuard<'_, WaitingEvents> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a follower, now or after the earlier events of the same item.
    pub(super) fn send(
        self: &Arc<Self>,
        client: Arc<BusClient>,
        function: &SubscribedFunction,
        payload: &Value,
    ) {
        let item = payload.get("id").or_else(|| payload.get("name"));
        let item = item.and_then(Value::as_str).unwrap_or_default();
        let lane = (function.clone(), item.to_owned());
        let mut waiting = self.lock();
        if waiting.count >= MAX_WAITING {
            drop(waiting);
            client.fire_in(function.namespace.as_deref(), &function.id, payload);
            return;
        }
        let event = QueuedEvent {
            client,
            payload: payload.to_string(),
        };
        if let Some(queue) = waiting.lanes.get_mut(&lane) {
            queue.push_back(event);
            waiting.count += 1;
            return;
        }
        waiting.lanes.insert(lane.clone(), VecDeque::new());
        drop(waiting);
        tokio::spawn(self.clone().send_lane(lane, event));
    }

    /// Sends an event and those that come to wait for it meanwhile.
    async fn send_lane(self: Arc<Self>, lane: Lane, first: QueuedEvent) {
        let mut next = Some(first);
        while let Some(event) = next {
            let (function, _) = &lane;
            let namespace = function.namespace.as_deref();
            let call =
                event
                    .client
                    .call_json_in(namespace, &function.id, &event.payload, ANSWER_TIMEOUT);
            // What a follower answers is its own business.
            let _ = call.await;
            next = self.take_next(&lane);
        }
    }

    fn take_next(&self, lane: &Lane) -> Option<QueuedEvent> {
        let mut waiting = self.lock();
        let next = waiting.lanes.get_mut(lane).and_then(VecDeque::pop_front);
        match next {
            Some(_) => waiting.count -= 1,
            None => drop(waiting.lanes.remove(lane)),
        }
        next
    }
}
