//! Calls that are not answered yet: who waits, and for whom.

use std::{sync::Arc, time::Instant};

use serde_json::json;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    super::super::{
        bus::{Answer, CallError},
        protocol::{Trace, result_text},
    },
    Table, WorkerId,
};

/// Who waits for an answer.
#[derive(Debug)]
pub(in crate::iii::hub) enum Caller {
    /// A worker, by the id it gave the call.
    Worker(WorkerId, String),
    /// Somebody in this process.
    Local(oneshot::Sender<Answer>),
}

/// A call that is not answered yet.
#[derive(Debug)]
pub(in crate::iii::hub) struct Pending {
    pub(in crate::iii::hub) caller: Caller,
    pub(in crate::iii::hub) target: WorkerId,
    pub(in crate::iii::hub) function_id: Arc<str>,
    pub(in crate::iii::hub) deadline: Instant,
}

impl Table {
    pub(in crate::iii::hub) fn calls_of(&self, id: &str) -> usize {
        self.workers.get(id).map_or(0, |worker| worker.made)
    }

    /// Writes down that an answer is expected.
    pub(in crate::iii::hub) fn expect(&mut self, pending: Pending) -> Uuid {
        if let Caller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.made += 1;
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.given += 1;
        }
        let key = Uuid::new_v4();
        self.pending.insert(key, pending);
        key
    }

    pub(super) fn uncount(&mut self, pending: &Pending) {
        if let Caller::Worker(caller, _) = &pending.caller
            && let Some(worker) = self.workers.get_mut(caller)
        {
            worker.made = worker.made.saturating_sub(1);
        }
        if let Some(worker) = self.workers.get_mut(&pending.target) {
            worker.given = worker.given.saturating_sub(1);
        }
    }

    /// The call a worker answers, if it was given it.
    pub(in crate::iii::hub) fn take(&mut self, key: Uuid, from: &WorkerId) -> Option<Pending> {
        let theirs = self.pending.get(&key).is_some_and(|p| p.target == *from);
        theirs.then(|| self.forget(key)).flatten()
    }

    /// Stops expecting an answer.
    pub(in crate::iii::hub) fn forget(&mut self, key: Uuid) -> Option<Pending> {
        let pending = self.pending.remove(&key)?;
        self.uncount(&pending);
        Some(pending)
    }

    /// The calls whose time is up.
    pub(in crate::iii::hub) fn overdue(&mut self, now: Instant) -> Vec<Pending> {
        let over = self
            .pending
            .extract_if(|_, pending| pending.deadline <= now);
        let over: Vec<Pending> = over.map(|(_, pending)| pending).collect();
        for pending in &over {
            self.uncount(pending);
        }
        over
    }

    /// Tells whoever waits that there will be no answer.
    pub(in crate::iii::hub) fn fail(&self, pending: Pending, error: &CallError) {
        match pending.caller {
            Caller::Worker(worker, invocation) => {
                let error = json!(error).to_string();
                let function = &pending.function_id;
                let text = result_text(&invocation, function, Err(&error), Trace::default());
                self.send(&worker, text);
            }
            Caller::Local(tell) => drop(tell.send(Err(error.clone()))),
        }
    }
}
