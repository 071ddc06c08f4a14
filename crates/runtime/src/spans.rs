//! Records what a run does as a tree of spans.
//!
//! Every model of a run is a [`TracedModel`], so that no call is made without a span. Texts are redacted
//! and truncated before they leave this module. A run records a bounded number of spans; model calls
//! are always recorded, because they cost money.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use repertoire_core::{ModelUsage, SkillVersion, Span, SpanKind, markdown::truncate_text};
use serde_json::json;
use uuid::Uuid;

use crate::{
    error::{Error, Result},
    model::{Model, ModelReply, ModelRequest, Price, ReplyListener},
    record::{MAX_RECORD_CHARS, now_rfc3339},
    redact::Redactor,
};

/// The maximum number of host calls that one run records.
const MAX_HOST_CALLS: usize = 1_000;
/// The maximum characters of the arguments and the result of a host call.
const MAX_HOST_CHARS: usize = 2_000;
/// The maximum characters of a name.
const MAX_NAME_CHARS: usize = 200;
/// How many host calls are stored at once.
const HOST_CALL_BATCH: usize = 100;

/// Stores spans.
pub type SpanSink = Arc<dyn Fn(Vec<Span>) + Send + Sync>;

/// Records the spans of one run, nested runs included.
#[derive(Clone, Default)]
pub struct SpanRecorder(Option<Arc<RecorderState>>);

struct RecorderState {
    session: String,
    sink: SpanSink,
    redactor: Redactor,
    host_calls: AtomicUsize,
    /// Host calls that are not stored yet: they are short and many.
    pending: Mutex<Vec<Span>>,
}

impl std::fmt::Debug for SpanRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let session = self.0.as_ref().map(|state| &state.session);
        f.debug_tuple("SpanRecorder").field(&session).finish()
    }
}

impl SpanRecorder {
    /// A recorder for the runs of a session.
    pub fn new(session: impl Into<String>, sink: SpanSink, redactor: Redactor) -> Self {
        Self(Some(Arc::new(RecorderState {
            session: session.into(),
            sink,
            redactor,
            host_calls: AtomicUsize::new(0),
            pending: Mutex::default(),
        })))
    }

    /// Begins a span. It is recorded when it is finished or dropped.
    pub fn begin_span(&self, place: SpanPlace, kind: SpanKind, name: &str) -> OpenSpan {
        let span = self.0.as_ref().map(|state| Span {
            id: place.id,
            session_id: state.session.clone(),
            parent: place.parent,
            kind,
            name: name.to_owned(),
            skill: None,
            version: SkillVersion::default(),
            started_at: now_rfc3339(),
            completed_at: String::new(),
            duration_ms: 0,
            input: None,
            output: None,
            error: None,
            code: None,
            model_id: None,
            usage: ModelUsage::default(),
        });
        OpenSpan {
            recorder: self.clone(),
            span,
            begun: Instant::now(),
        }
    }

    /// Begins the span of a host call, unless this run has recorded too many.
    #[cfg(feature = "sandbox")]
    pub(crate) fn begin_host_call(&self, parent: Option<Uuid>, name: &str, args: &str) -> OpenSpan {
        let counted = self
            .0
            .as_ref()
            .map(|state| state.host_calls.fetch_add(1, Ordering::Relaxed));
        let recorder = match counted {
            Some(before) if before < MAX_HOST_CALLS => self.clone(),
            _ => Self::default(),
        };
        let mut span = recorder.begin_span(SpanPlace::below(parent), SpanKind::HostCall, name);
        span.set_input(args);
        span
    }

    /// Stores the spans that are still in memory.
    pub fn flush(&self) {
        if let Some(state) = &self.0 {
            state.store_pending();
        }
    }

    /// How many host calls were not recorded, because there were too many.
    pub fn dropped_host_calls(&self) -> usize {
        let counted = self
            .0
            .as_ref()
            .map(|state| state.host_calls.load(Ordering::Relaxed));
        counted.unwrap_or(0).saturating_sub(MAX_HOST_CALLS)
    }
}

impl RecorderState {
    fn record(&self, mut span: Span) {
        let most = match span.kind {
            SpanKind::HostCall => MAX_HOST_CHARS,
            _ => MAX_RECORD_CHARS,
        };
        span.name = truncate_text(&self.redactor.redact(&span.name), MAX_NAME_CHARS);
        for text in [&mut span.input, &mut span.output, &mut span.error]
            .into_iter()
            .flatten()
        {
            *text = truncate_text(&self.redactor.redact(text), most);
        }
        let is_short = span.kind == SpanKind::HostCall;
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push(span);
        if is_short && pending.len() < HOST_CALL_BATCH {
            return;
        }
        let spans = std::mem::take(&mut *pending);
        drop(pending);
        (self.sink)(spans);
    }

    fn store_pending(&self) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = std::mem::take(&mut *pending);
        drop(pending);
        if !spans.is_empty() {
            (self.sink)(spans);
        }
    }
}

impl Drop for RecorderState {
    fn drop(&mut self) {
        self.store_pending();
    }
}

/// The id of a span and the span it is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanPlace {
    /// Its own id.
    pub id: Uuid,
    /// The span it is part of.
    pub parent: Option<Uuid>,
}

impl SpanPlace {
    /// The place of a new span below another one.
    pub fn below(parent: Option<Uuid>) -> Self {
        Self {
            id: Uuid::new_v4(),
            parent,
        }
    }
}

/// A span that has begun. Dropped without a result, it is recorded as interrupted.
#[must_use = "a span that is dropped at once is recorded as interrupted"]
#[derive(Debug)]
pub struct OpenSpan {
    recorder: SpanRecorder,
    span: Option<Span>,
    begun: Instant,
}

impl OpenSpan {
    /// Sets which skill it belongs to.
    pub fn set_skill(&mut self, skill: &str, version: &SkillVersion) {
        if let Some(span) = &mut self.span {
            span.skill = Some(skill.to_owned());
            span.version = version.clone();
        }
    }

    /// Sets the prompt or the arguments.
    pub fn set_input(&mut self, input: &str) {
        if let Some(span) = &mut self.span {
            span.input = Some(input.to_owned());
        }
    }

    /// Ends it with a text or an error.
    pub fn finish(mut self, outcome: std::result::Result<&str, &Error>) {
        if let Some(span) = &mut self.span {
            match outcome {
                Ok(text) => span.output = Some(text.to_owned()),
                Err(error) => {
                    span.error = Some(error.to_string());
                    span.code = Some(error.code().to_owned());
                }
            }
        }
        self.record();
    }

    fn record(&mut self) {
        let (Some(mut span), Some(state)) = (self.span.take(), &self.recorder.0) else {
            return;
        };
        span.completed_at = now_rfc3339();
        span.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        state.record(span);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(span) = &mut self.span {
            span.error = Some(Error::Interrupted.to_string());
            span.code = Some(Error::Interrupted.code().to_owned());
        }
        self.record();
    }
}

/// Why a model is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallPurpose {
    /// A prompt of a skill.
    #[default]
    Prompt,
    /// A query of a script.
    Script,
    /// A request of a DSPy program.
    Program,
    /// A semantic check of an output.
    Judge,
    /// The decision how to handle a message.
    Decision,
    /// Values that a template needs, taken from a message.
    Values,
    /// An answer without a skill.
    Answer,
    /// The message of an evaluation without its skill.
    Baseline,
    /// Example messages of a skill, for search.
    Examples,
}

impl CallPurpose {
    /// Its name in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Examples => "examples",
            Self::Script => "script",
            Self::Program => "program",
            Self::Judge => "judge",
            Self::Decision => "decision",
            Self::Values => "values",
            Self::Answer => "answer",
            Self::Baseline => "baseline",
        }
    }
}

/// A model whose calls are recorded as spans.
#[derive(Debug, Clone)]
pub struct TracedModel {
    model: Arc<dyn Model>,
    recorder: SpanRecorder,
    /// The parent of calls that name none.
    run: Uuid,
}

impl TracedModel {
    /// Wraps a model. Calls that name no other span belong to the span of the run.
    pub fn new(model: Arc<dyn Model>, recorder: SpanRecorder, run: Uuid) -> Self {
        Self {
            model,
            recorder,
            run,
        }
    }
}

#[async_trait]
impl Model for TracedModel {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn price(&self) -> Option<Price> {
        self.model.price()
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply> {
        let place = SpanPlace::below(Some(ask.parent_span.unwrap_or(self.run)));
        let mut open = self
            .recorder
            .begin_span(place, SpanKind::ModelCall, ask.purpose.as_str());
        if let Some(span) = &mut open.span {
            span.model_id = Some(self.model.id().to_owned());
            let prompt = json!({
                "system": ask.system, "messages": ask.turns, "max_tokens": ask.max_tokens,
                "temperature": ask.temperature,
            });
            span.input = Some(prompt.to_string());
        }
        let answered = self.model.send_request(ask, listener).await;
        if let Some(span) = &mut open.span {
            // A model may know its own name only after its first answer.
            span.model_id = Some(self.model.id().to_owned());
            if let Ok(reply) = &answered {
                span.usage = reply.usage;
            }
        }
        open.finish(answered.as_ref().map(|reply| &*reply.text));
        answered
    }
}

/// A model whose calls belong to one span, unless they name another.
#[derive(Debug)]
pub struct ChildCalls {
    model: Arc<dyn Model>,
    parent: Option<Uuid>,
}

impl ChildCalls {
    /// Wraps a model.
    pub fn new(model: Arc<dyn Model>, parent: Option<Uuid>) -> Self {
        Self { model, parent }
    }
}

#[async_trait]
impl Model for ChildCalls {
    fn id(&self) -> &str {
        self.model.id()
    }

    fn price(&self) -> Option<Price> {
        self.model.price()
    }

    async fn send_request(
        &self,
        ask: &ModelRequest,
        listener: Option<&ReplyListener>,
    ) -> Result<ModelReply> {
        let mut ask = ask.clone();
        ask.parent_span = ask.parent_span.or(self.parent);
        self.model.send_request(&ask, listener).await
    }
}
