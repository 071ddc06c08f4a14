//! Keeps what runs leave behind: in a store, and at a collector if there is one.

use std::{fmt, sync::Arc};

use repertoire_core::{ExecutionRecord, Span};
use repertoire_registry::Registry;
use repertoire_runtime::{Redactor, SpanRecorder};

/// Receives what runs leave behind, in addition to the store: an exporter.
pub trait TraceListener: Send + Sync + fmt::Debug {
    /// An execution of an artifact has ended. Must not block.
    fn on_record(&self, record: &ExecutionRecord);
    /// Other parts of a run have ended. Must not block.
    fn on_spans(&self, spans: &[Span]);
}

/// Stores the records and spans of runs.
#[derive(Debug, Clone)]
pub(crate) struct TraceKeeper {
    registry: Arc<Registry>,
    listener: Option<Arc<dyn TraceListener>>,
}

impl TraceKeeper {
    pub(crate) fn new(registry: Arc<Registry>, listener: Option<Arc<dyn TraceListener>>) -> Self {
        Self { registry, listener }
    }

    /// Stores the record of an execution; returns whether there is no problem.
    pub(crate) fn keep_record(&self, record: &ExecutionRecord) -> bool {
        if let Some(listener) = &self.listener {
            listener.on_record(record);
        }
        if !self.registry.keeps_traces() {
            return true;
        }
        let stored = self.registry.put_trace(record.clone());
        if let Err(error) = &stored {
            tracing::warn!(%error, "a trace could not be stored");
        }
        stored.is_ok()
    }

    /// Returns a recorder for the spans of a session.
    pub(crate) fn recorder(&self, session: &str, redactor: &Redactor) -> SpanRecorder {
        let keeper = self.clone();
        let sink = move |spans: Vec<Span>| {
            if let Some(listener) = &keeper.listener {
                listener.on_spans(&spans);
            }
            if !keeper.registry.keeps_traces() {
                return;
            }
            if let Err(error) = keeper.registry.put_spans(spans) {
                tracing::warn!(%error, "spans of a run could not be stored");
            }
        };
        SpanRecorder::new(session, Arc::new(sink), redactor.clone())
    }
}
