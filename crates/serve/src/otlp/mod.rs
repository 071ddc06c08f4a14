//! Sends the spans of runs to an OpenTelemetry collector, and writes them as OTLP JSON.
//!
//! A thread of its own sends batches, so that no run waits for a collector. What a collector does not
//! take in time is dropped and counted; the store still has it.

mod message;
mod settings;

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use prost::Message;
use repertoire_app::TraceListener;
use repertoire_core::{ExecutionRecord, Span};
use reqwest::{Client, StatusCode, header, redirect::Policy};

use self::{
    message::{KeyValue, OtelSpan, TracesData},
    settings::{OtlpEncoding, OtlpSettings, content_export, resource_attributes},
};

pub use settings::OtlpSettingsError;

/// The most spans that wait to be sent.
const MAX_QUEUED: usize = 4_096;
/// The most bytes of spans that wait to be sent.
const MAX_QUEUED_BYTES: usize = 32 * 1024 * 1024;
/// The most spans of one request.
const MAX_BATCH: usize = 512;
/// The most bytes of one request.
const MAX_BATCH_BYTES: usize = 2 * 1024 * 1024;
/// How long spans wait for others.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// How long a connection to a collector may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a request is repeated that a collector refused for a while.
const MAX_TRIES: u32 = 4;

/// Sends spans to a collector.
#[derive(Debug)]
pub struct OtlpExporter {
    queue: Arc<SpanQueue>,
    settings: OtlpSettings,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct SpanQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    spans: VecDeque<(OtelSpan, usize)>,
    bytes: usize,
    dropped: usize,
    is_sending: bool,
    /// Send at once, without waiting for more.
    is_flushing: bool,
    is_closed: bool,
}

impl OtlpExporter {
    /// Starts an exporter if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`).
    pub fn from_environment() -> Result<Option<Arc<Self>>, OtlpSettingsError> {
        let settings = OtlpSettings::read(&|name| std::env::var(name).ok())?;
        Ok(settings.map(|settings| Arc::new(Self::start(settings))))
    }

    fn start(settings: OtlpSettings) -> Self {
        let queue = Arc::new(SpanQueue::default());
        let (worker, shared) = (settings.clone(), queue.clone());
        let thread = std::thread::Builder::new()
            .name("otlp".to_owned())
            .spawn(move || send_batches(&worker, &shared));
        if let Err(error) = &thread {
            tracing::warn!(%error, "traces are not exported");
        }
        Self {
            queue,
            settings,
            thread: Mutex::new(thread.ok()),
        }
    }

    /// Waits for a while until all spans so far were sent or dropped.
    pub fn flush(&self) {
        let deadline = Instant::now() + self.settings.patience;
        let mut state = self.queue.lock_state();
        state.is_flushing = true;
        self.queue.changed.notify_all();
        while !state.spans.is_empty() || state.is_sending {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("the collector has not taken all traces in time");
                break;
            }
            let waited = self.queue.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn enqueue(&self, span: OtelSpan) {
        let bytes = span.encoded_len();
        let mut state = self.queue.lock_state();
        if state.spans.len() >= MAX_QUEUED || state.bytes + bytes > MAX_QUEUED_BYTES {
            state.dropped += 1;
            return;
        }
        state.bytes += bytes;
        state.spans.push_back((span, bytes));
        self.queue.changed.notify_all();
    }
}

impl TraceListener for OtlpExporter {
    fn on_record(&self, record: &ExecutionRecord) {
        self.enqueue(OtelSpan::from_record(record, self.settings.content));
    }

    fn on_spans(&self, spans: &[Span]) {
        for span in spans {
            self.enqueue(OtelSpan::from_span(span, self.settings.content));
        }
    }
}

impl Drop for OtlpExporter {
    fn drop(&mut self) {
        self.flush();
        self.queue.lock_state().is_closed = true;
        self.queue.changed.notify_all();
        let thread = self.thread.get_mut();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        // A request that is under way has a deadline, but nothing waits for it.
        drop(thread);
    }
}

impl SpanQueue {
    fn lock_state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next batch; none after the exporter was dropped.
    fn next_batch(&self) -> Option<Vec<OtelSpan>> {
        let mut state = self.lock_state();
        state.is_sending = false;
        self.changed.notify_all();
        while state.spans.is_empty() && !state.is_closed {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + BATCH_DELAY;
        while state.spans.len() < MAX_BATCH && !state.is_flushing && !state.is_closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.dropped > 0 {
            let dropped = std::mem::take(&mut state.dropped);
            tracing::warn!(
                dropped,
                "the collector is too slow: spans were not exported"
            );
        }
        let mut batch = Vec::new();
        let mut size = 0;
        while batch.len() < MAX_BATCH && (batch.is_empty() || size < MAX_BATCH_BYTES) {
            let Some((span, bytes)) = state.spans.pop_front() else {
                break;
            };
            size += bytes;
            state.bytes -= bytes;
            batch.push(span);
        }
        if state.spans.is_empty() {
            state.is_flushing = false;
        }
        state.is_sending = !batch.is_empty();
        (!batch.is_empty()).then_some(batch)
    }
}

/// Sends batches until the exporter is dropped.
fn send_batches(settings: &OtlpSettings, queue: &SpanQueue) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let client = build_client(settings);
    let mut failed = false;
    while let Some(batch) = queue.next_batch() {
        let sent = match (&runtime, &client) {
            (Ok(runtime), Ok(client)) => runtime.block_on(send_batch(settings, client, batch)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.clone()),
        };
        match sent {
            // Once is enough: a collector that is away would fill the log.
            Err(error) if !failed => {
                let host = settings.url.host_str().unwrap_or_default();
                let port = settings.url.port_or_known_default().unwrap_or_default();
                let address = format!("{host}:{port}");
                tracing::warn!(%error, address, "traces cannot be exported");
                failed = true;
            }
            Err(_) => {}
            Ok(()) => failed = false,
        }
    }
    // Whoever waits for the last batch.
    queue.lock_state().is_sending = false;
    queue.changed.notify_all();
}

fn build_client(settings: &OtlpSettings) -> Result<Client, String> {
    // The embedding program may have installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(Policy::none())
        .timeout(settings.timeout)
        .connect_timeout(CONNECT_TIMEOUT)
        .default_headers(settings.headers.clone())
        .user_agent(concat!("repertoire/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| error.to_string())
}

async fn send_batch(
    settings: &OtlpSettings,
    client: &Client,
    spans: Vec<OtelSpan>,
) -> Result<(), String> {
    let data = TracesData::new(settings.resource.clone(), spans);
    let (kind, body) = match settings.encoding {
        OtlpEncoding::Protobuf => ("application/x-protobuf", data.encode_to_vec()),
        OtlpEncoding::Json => (
            "application/json",
            serde_json::to_vec(&data).map_err(|error| error.to_string())?,
        ),
    };
    let body = bytes::Bytes::from(body);
    let mut wait = Duration::from_millis(200);
    for tries in 1.. {
        let request = client
            .post(settings.url.clone())
            .header(header::CONTENT_TYPE, kind)
            .body(body.clone());
        let problem = match request.send().await {
            Ok(response) if response.status().is_success() => return Ok(()),
            Ok(response) => {
                let status = response.status();
                let is_passing = matches!(
                    status,
                    StatusCode::TOO_MANY_REQUESTS
                        | StatusCode::BAD_GATEWAY
                        | StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::GATEWAY_TIMEOUT
                );
                if !is_passing {
                    return Err(format!("the collector answered {status}"));
                }
                format!("the collector answered {status}")
            }
            // The address is in the log once; headers and query are not.
            Err(error) => error.without_url().to_string(),
        };
        if tries >= MAX_TRIES {
            return Err(problem);
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    Ok(())
}

/// Writes traces and spans as OTLP JSON, with prompts and completions if the environment asks for them
/// (`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`).
pub fn export_json(records: &[ExecutionRecord], spans: &[Span]) -> serde_json::Result<String> {
    let lookup = |name: &'static str| std::env::var(name).ok();
    let captured = lookup("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT");
    let content = content_export(captured.as_deref());
    let records = records.iter();
    let mut all: Vec<OtelSpan> = records
        .map(|record| OtelSpan::from_record(record, content))
        .collect();
    all.extend(spans.iter().map(|span| OtelSpan::from_span(span, content)));
    let resource: Vec<KeyValue> = resource_attributes(&lookup);
    serde_json::to_string(&TracesData::new(resource, all))
}
