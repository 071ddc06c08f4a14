//! Unanswered calls: the caller and the called worker of each.

use std::{sync::Arc, time::Instant};

use serde_json::json;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    super::super::{
        bus::{BusResult, CallError},
        protocol::{TraceContext, result_text},
    },
    RoutingTable, WorkerId,
};

/// The caller that waits for an answer.
#[derive(Debug)]
pub(in crate::iii::hub) enum PendingCaller {
    /// A worker, and the id it gave the call.
    Worker(WorkerId, String),
    /// A caller in this process.
    Local(oneshot::Sender<BusResult>),
}

/// An unanswered call.
#[derive(Debug)]
pub(in crate::iii::hub) struct PendingCall {
    pub(in crate::iii::hub) caller: PendingCaller,
    pub(in crate::iii::hub) target: WorkerId,
    pub(in crate::iii::hub) function_id: Arc<str>,
    pub(in crate::iii::hub) deadline: Instant,
}

impl RoutingTable {
    pub(in crate::iii::hub) fn outgoing_call_count(&self, id: &str) -> usize {
        self.workers
            .get(id)
            .map_or(0, |worker| worker.outgoing_calls)
    }

    /// Records an unanswered call and returns its key.
    pub(in crate::iii::hub) fn add_pending(&mut self, pending: PendingCall) -> Uuid {
        if let PendingCaller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.outgoing_calls += 1;
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.incoming_calls += 1;
        }
        let key = Uuid::new_v4();
        self.pending.insert(key, pending);
        key
    }

    pub(super) fn release_counts(&mut self, pending: &PendingCall) {
        if let PendingCaller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.outgoing_calls = worker.outgoing_calls.saturating_sub(1);
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.incoming_calls = worker.incoming_calls.saturating_sub(1);
        }
    }

    /// Removes and returns the call with this key, if it was sent to this worker.
    pub(in crate::iii::hub) fn take_pending(
        &mut self,
        key: Uuid,
        from: &WorkerId,
    ) -> Option<PendingCall> {
        let theirs = self.pending.get(&key).is_some_and(|p| p.target == *from);
        theirs.then(|| self.remove_pending(key)).flatten()
    }

    /// Removes an unanswered call.
    pub(in crate::iii::hub) fn remove_pending(&mut self, key: Uuid) -> Option<PendingCall> {
        let pending = self.pending.remove(&key)?;
        self.release_counts(&pending);
        Some(pending)
    }

    /// Removes and returns the calls whose deadline has passed.
    pub(in crate::iii::hub) fn take_overdue(&mut self, now: Instant) -> Vec<PendingCall> {
        let over = self
            .pending
            .extract_if(|_, pending| pending.deadline <= now);
        let over: Vec<PendingCall> = over.map(|(_, pending)| pending).collect();
        for pending in &over {
            self.release_counts(pending);
        }
        over
    }

    /// Sends an error to the caller.
    pub(in crate::iii::hub) fn fail_call(&self, pending: PendingCall, error: &CallError) {
        match pending.caller {
            PendingCaller::Worker(worker, invocation) => {
                let error = json!(error).to_string();
                let function = &pending.function_id;
                let text = result_text(&invocation, function, Err(&error), TraceContext::default());
                self.send_to(&worker, text);
            }
            PendingCaller::Local(sender) => drop(sender.send(Err(error.clone()))),
        }
    }
}
