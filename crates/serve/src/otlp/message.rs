//! Spans of runs in the form of OpenTelemetry: as protobuf messages and as JSON.
//!
//! The field numbers are those of `opentelemetry/proto/trace/v1`. Names of attributes follow the
//! conventions for generative AI. Prompts and completions are attributes only if they are asked for.

use std::fmt::Write as _;

use jiff::Timestamp;
use prost::{Message, Oneof};
use repertoire_core::{Digest, ExecutionRecord, Span, SpanKind};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use uuid::Uuid;

/// The spans of one resource, as a collector takes them.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TracesData {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<OtelSpan>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OtelSpan {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(serialize_with = "as_hex")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(serialize_with = "as_hex")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    #[serde(serialize_with = "as_hex", skip_serializing_if = "Vec::is_empty")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(serialize_with = "as_text")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    #[serde(serialize_with = "as_text")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct AnyValue {
    #[prost(oneof = "AttributeValue", tags = "1, 3, 4")]
    #[serde(flatten)]
    value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Oneof, Serialize)]
enum AttributeValue {
    #[prost(string, tag = "1")]
    #[serde(rename = "stringValue")]
    Text(String),
    #[prost(int64, tag = "3")]
    #[serde(rename = "intValue", serialize_with = "as_text")]
    Integer(i64),
    #[prost(double, tag = "4")]
    #[serde(rename = "doubleValue")]
    Float(f64),
}

#[derive(Clone, PartialEq, Message, Serialize)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

const KIND_INTERNAL: i32 = 1;
const KIND_CLIENT: i32 = 3;
const STATUS_OK: i32 = 1;
const STATUS_ERROR: i32 = 2;

fn as_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    serializer.serialize_str(&digits)
}

fn as_text<S: Serializer>(
    number: &(impl ToString + ?Sized),
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&number.to_string())
}

/// Whether prompts, arguments and completions are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentExport {
    /// They are left out.
    Omitted,
    /// They are attributes.
    Included,
}

impl TracesData {
    /// Wraps spans with the resource they come from.
    pub(super) fn new(resource: Vec<KeyValue>, spans: Vec<OtelSpan>) -> Self {
        Self {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource {
                    attributes: resource,
                }),
                scope_spans: vec![ScopeSpans {
                    scope: Some(Scope {
                        name: "repertoire".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    spans,
                }],
            }],
        }
    }
}

impl KeyValue {
    /// An attribute with a text.
    pub(super) fn text(key: &str, value: impl Into<String>) -> Self {
        Self::new(key, AttributeValue::Text(value.into()))
    }

    fn number(key: &str, value: u64) -> Self {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        Self::new(key, AttributeValue::Integer(value))
    }

    fn new(key: &str, value: AttributeValue) -> Self {
        Self {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
        }
    }
}

impl OtelSpan {
    /// Converts a part of a run.
    pub(super) fn from_span(span: &Span, content: ContentExport) -> Self {
        let (provider, model) = span
            .model_id
            .as_deref()
            .map(|id| id.split_once('/').unwrap_or(("", id)))
            .unwrap_or_default();
        let operation = match span.kind {
            SpanKind::Run => "invoke_agent",
            SpanKind::Artifact => "execute_artifact",
            SpanKind::ModelCall => "chat",
            SpanKind::HostCall => "execute_tool",
        };
        let (object, kind) = match span.kind {
            SpanKind::ModelCall => (model, KIND_CLIENT),
            _ => (&*span.name, KIND_INTERNAL),
        };
        let mut attributes = vec![KeyValue::text("gen_ai.operation.name", operation)];
        let name_key = match span.kind {
            SpanKind::Run => "gen_ai.agent.name",
            SpanKind::Artifact => "repertoire.artifact",
            SpanKind::ModelCall => "repertoire.call.purpose",
            SpanKind::HostCall => "gen_ai.tool.name",
        };
        let texts = [
            (name_key, &*span.name),
            ("gen_ai.conversation.id", &*span.session_id),
            ("gen_ai.provider.name", provider),
            ("gen_ai.request.model", model),
            (
                "repertoire.skill",
                span.skill.as_deref().unwrap_or_default(),
            ),
            (
                "repertoire.skill.digest",
                span.version.digest.as_deref().unwrap_or_default(),
            ),
            ("error.type", span.code.as_deref().unwrap_or_default()),
        ];
        let texts = texts.into_iter().filter(|(_, value)| !value.is_empty());
        attributes.extend(texts.map(|(key, value)| KeyValue::text(key, value)));
        // The calls of an artifact have their own, and a collector adds up what has the usual name.
        let (input_tokens, output_tokens) = match span.kind {
            SpanKind::ModelCall => ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"),
            _ => (
                "repertoire.usage.input_tokens",
                "repertoire.usage.output_tokens",
            ),
        };
        let revision = span.version.revision.and_then(|r| u64::try_from(r).ok());
        let numbers = [
            ("repertoire.skill.revision", revision),
            (input_tokens, span.usage.input_tokens),
            (output_tokens, span.usage.output_tokens),
        ];
        let numbers = numbers.into_iter().filter_map(|(key, n)| Some((key, n?)));
        attributes.extend(numbers.map(|(key, number)| KeyValue::number(key, number)));
        if let Some(cost) = span.usage.cost {
            let cost = AttributeValue::Float(cost);
            attributes.push(KeyValue::new("repertoire.cost_usd", cost));
        }
        if content == ContentExport::Included {
            attributes.extend(content_attributes(span));
        }
        Self {
            trace_id: trace_id(&span.session_id),
            span_id: span_id(span.id),
            parent_span_id: span.parent.map(span_id).unwrap_or_default(),
            name: format!("{operation} {object}").trim_end().to_owned(),
            kind,
            start_time_unix_nano: unix_nanos(&span.started_at),
            end_time_unix_nano: unix_nanos(&span.completed_at),
            attributes,
            status: Some(match &span.error {
                // Errors quote what was sent: providers repeat prompts, scripts their values.
                Some(error) => Status {
                    message: match (content, &span.code) {
                        (ContentExport::Included, _) => error.clone(),
                        (ContentExport::Omitted, code) => code.clone().unwrap_or_default(),
                    },
                    code: STATUS_ERROR,
                },
                None => Status {
                    message: String::new(),
                    code: STATUS_OK,
                },
            }),
        }
    }

    /// Converts the execution of an artifact.
    pub(super) fn from_record(record: &ExecutionRecord, content: ContentExport) -> Self {
        let mut span = Self::from_span(&Span::from(record), content);
        let kind = record.artifact_kind.as_str();
        let extra = &mut span.attributes;
        extra.push(KeyValue::text("repertoire.artifact.kind", kind));
        if let Some(replaced) = &record.details.fallback_for {
            extra.push(KeyValue::text("repertoire.fallback_for", replaced.as_str()));
        }
        if record.assertions_run > 0 {
            extra.extend([
                KeyValue::number("repertoire.assertions.run", record.assertions_run),
                KeyValue::number("repertoire.assertions.passed", record.assertions_passed),
            ]);
        }
        span
    }
}

/// Prompts and completions, or arguments and results.
fn content_attributes(span: &Span) -> Vec<KeyValue> {
    let (input, output) = match span.kind {
        SpanKind::ModelCall => return message_attributes(span),
        SpanKind::HostCall => ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
        SpanKind::Run | SpanKind::Artifact => ("repertoire.input", "repertoire.output"),
    };
    [(input, &span.input), (output, &span.output)]
        .into_iter()
        .filter_map(|(key, text)| Some(KeyValue::text(key, text.as_ref()?.as_str())))
        .collect()
}

/// The messages of a model call, in the form of the conventions.
fn message_attributes(span: &Span) -> Vec<KeyValue> {
    let parts = |text: &str| json!([{"type": "text", "content": text}]);
    let prompt = span.input.as_deref().unwrap_or_default();
    let mut attributes = Vec::new();
    let read: Option<Value> = repertoire_core::json::from_str(prompt).ok();
    let messages = match &read {
        Some(read) => {
            if let Some(system) = read["system"].as_str() {
                let system = parts(system).to_string();
                attributes.push(KeyValue::text("gen_ai.system_instructions", system));
            }
            let turns = read["messages"].as_array().into_iter().flatten();
            let turns = turns.map(|turn| {
                let text = turn["text"].as_str().unwrap_or_default();
                json!({"role": turn["role"], "parts": parts(text)})
            });
            turns.collect()
        }
        // It was cut, because it is long.
        None => vec![json!({"role": "user", "parts": parts(prompt)})],
    };
    attributes.push(KeyValue::text(
        "gen_ai.input.messages",
        json!(messages).to_string(),
    ));
    if let Some(answer) = &span.output {
        let answer =
            json!([{"role": "assistant", "parts": parts(answer), "finish_reason": "stop"}]);
        attributes.push(KeyValue::text("gen_ai.output.messages", answer.to_string()));
    }
    attributes
}

/// All spans of a session share one trace. Sessions are UUIDs unless a caller named them.
fn trace_id(session: &str) -> Vec<u8> {
    match session.parse::<Uuid>() {
        Ok(id) => id.as_bytes().to_vec(),
        Err(_) => Digest::hash_bytes(session.as_bytes()).as_bytes()[..16].to_vec(),
    }
}

fn span_id(id: Uuid) -> Vec<u8> {
    id.as_bytes()[..8].to_vec()
}

fn unix_nanos(time: &str) -> u64 {
    let time: Option<Timestamp> = time.parse().ok();
    time.and_then(|time| u64::try_from(time.as_nanosecond()).ok())
        .unwrap_or(0)
}
