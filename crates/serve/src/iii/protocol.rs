//! The messages of the bus: one JSON object per frame.
//!
//! Payloads (`data`, `result`, schemas) are forwarded as the original text. Unknown fields are
//! ignored, and `null` counts as absent.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::resource_json::push_json_string;

/// The deepest nesting of a message.
pub(crate) const MAX_DEPTH: usize = 128;

/// A message, with the fields of all its types.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) invocation_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) function_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) trigger_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) description: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) code: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) worker_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) previous_worker_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) reattach_token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) traceparent: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) baggage: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(crate) data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) config: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) metadata: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) action: Option<Action<'a>>,
    #[serde(borrow, default)]
    pub(crate) request_format: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) response_format: Option<&'a RawValue>,
}

/// How a call is delivered if the caller does not wait for its result.
#[derive(Debug, Deserialize)]
pub(crate) struct Action<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Cow<'a, str>,
}

impl<'a> Frame<'a> {
    /// Parses a message, or returns the reason why it is invalid.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        if nesting_depth(text) > MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        Self::parse_any_depth(text)
    }

    /// Parses a message without the nesting limit, for answers to own calls.
    pub(crate) fn parse_any_depth(text: &'a str) -> Result<Self, String> {
        repertoire_core::json::from_str(text).map_err(|error| format!("not a message: {error}"))
    }
}

/// Returns the type of a message, whatever its other fields are.
pub(crate) fn message_type(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct TypeOnly {
        #[serde(rename = "type")]
        kind: String,
    }
    repertoire_core::json::from_str::<TypeOnly>(text)
        .ok()
        .map(|kind| kind.kind)
}

/// Returns the nesting depth of a text; the text need not be valid JSON.
pub(crate) fn nesting_depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let mut quoted = false;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if quoted => drop(bytes.next()),
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// A message to a peer. Absent fields are omitted, because some SDKs reject `null` for them.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum HubMessage<'a> {
    WorkerRegistered {
        worker_id: &'a str,
        reattach_token: &'a str,
    },
    RegisterTrigger {
        id: &'a str,
        trigger_type: &'a str,
        function_id: &'a str,
        config: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        metadata: Option<&'a RawValue>,
    },
    UnregisterTrigger {
        id: &'a str,
        trigger_type: &'a str,
    },
    TriggerRegistrationResult {
        id: &'a str,
        trigger_type: &'a str,
        function_id: &'a str,
        error: &'a RawValue,
    },
    RegistrationRejected {
        code: &'a str,
        namespace: &'a str,
        function_id: &'a str,
        owner_worker_id: &'a str,
    },
    Pong,
}

impl HubMessage<'_> {
    pub(crate) fn to_json(&self) -> String {
        // Serializing a message cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The trace headers of a call or a result, forwarded unchanged.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct TraceContext<'a> {
    pub(crate) traceparent: Option<&'a str>,
    pub(crate) baggage: Option<&'a str>,
}

impl TraceContext<'_> {
    fn push_fields(self, out: &mut String) {
        for (key, value) in [("traceparent", self.traceparent), ("baggage", self.baggage)] {
            if let Some(value) = value {
                out.push_str(",\"");
                out.push_str(key);
                out.push_str("\":");
                push_json_string(out, value);
            }
        }
    }
}

/// Builds a call to a worker. Without an invocation id, the worker sends no answer.
///
/// `data` and `metadata` must be JSON; they are not checked.
pub(crate) fn invoke_text(
    invocation_id: Option<&str>,
    function_id: &str,
    data: &str,
    metadata: Option<&str>,
    trace: TraceContext<'_>,
) -> String {
    invoke_text_in(None, invocation_id, function_id, data, metadata, trace)
}

/// The same for a function in a namespace of the bus.
pub(crate) fn invoke_text_in(
    namespace: Option<&str>,
    invocation_id: Option<&str>,
    function_id: &str,
    data: &str,
    metadata: Option<&str>,
    trace: TraceContext<'_>,
) -> String {
    let mut out = String::with_capacity(data.len() + 256);
    out.push_str("{\"type\":\"invokefunction\"");
    if let Some(id) = invocation_id {
        out.push_str(",\"invocation_id\":");
        push_json_string(&mut out, id);
    }
    out.push_str(",\"function_id\":");
    push_json_string(&mut out, function_id);
    if let Some(namespace) = namespace {
        out.push_str(",\"namespace\":");
        push_json_string(&mut out, namespace);
    }
    trace.push_fields(&mut out);
    if let Some(metadata) = metadata {
        out.push_str(",\"metadata\":");
        out.push_str(metadata);
    }
    out.push_str(",\"data\":");
    out.push_str(data);
    out.push('}');
    out
}

/// Builds the result message for the caller. A result of `null` is omitted.
///
/// The outcome must be JSON; it is not checked.
pub(crate) fn result_text(
    invocation_id: &str,
    function_id: &str,
    outcome: Result<&str, &str>,
    trace: TraceContext<'_>,
) -> String {
    let (Ok(value) | Err(value)) = outcome;
    let mut out = String::with_capacity(value.len() + 256);
    out.push_str("{\"type\":\"invocationresult\",\"invocation_id\":");
    push_json_string(&mut out, invocation_id);
    out.push_str(",\"function_id\":");
    push_json_string(&mut out, function_id);
    trace.push_fields(&mut out);
    match outcome {
        Ok("null") => {}
        Ok(result) => {
            out.push_str(",\"result\":");
            out.push_str(result);
        }
        Err(error) => {
            out.push_str(",\"error\":");
            out.push_str(error);
        }
    }
    out.push('}');
    out
}

/// Returns the data of a call with the id of the caller added, if the data is an object.
///
/// An id that the caller set itself is replaced. Returns `None` if the keys cannot be decoded.
/// Values keep their original text.
pub(crate) fn with_caller(data: Option<&str>, caller: &str) -> Option<String> {
    const KEY: &str = "_caller_worker_id";
    let text = data.unwrap_or("null");
    let Some(inside) = text.strip_prefix('{') else {
        return Some(text.to_owned());
    };
    // The key may be hidden by escaped letters.
    if inside.contains(KEY) || inside.contains("\\u") {
        let mut object: BTreeMap<String, &RawValue> = repertoire_core::json::from_str(text).ok()?;
        object.remove(KEY);
        let mut out = format!("{{\"{KEY}\":\"{caller}\"");
        for (key, value) in object {
            out.push(',');
            push_json_string(&mut out, &key);
            out.push(':');
            out.push_str(value.get());
        }
        out.push('}');
        return Some(out);
    }
    let comma = if inside.trim_start().starts_with('}') {
        ""
    } else {
        ","
    };
    Some(format!("{{\"{KEY}\":\"{caller}\"{comma}{inside}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn messages_of_every_sdk_version_parse() {
        for text in [
            r#"{"type":"invokefunction","function_id":"a","data":{},"action":{"type":"void"}}"#,
            r#"{"function_id":"a","invocation_id":null,"type":"invokefunction"}"#,
            r#"{"id":"x","message_type":"registertrigger","unknown":[1],"type":"registertrigger"}"#,
        ] {
            Frame::parse(text).unwrap();
        }
        for text in ["", "1", "null", "[]", "{}", "{", r#"{"type":5}"#, "\u{0}"] {
            assert!(Frame::parse(text).is_err(), "{text}");
        }
        let deep = format!(
            "{{\"type\":\"x\",\"data\":{}{}}}",
            "[".repeat(200),
            "]".repeat(200)
        );
        assert!(Frame::parse(&deep).unwrap_err().contains("nested"));
        let quoted = json!({"type": "x", "data": "[".repeat(200)}).to_string();
        assert!(Frame::parse(&quoted).is_ok());
    }

    #[test]
    fn caller_id_is_set_by_the_hub_and_cannot_be_forged() {
        let named = |text: &str| -> Value {
            repertoire_core::json::from_str(&with_caller(Some(text), "w").unwrap()).unwrap()
        };
        assert_eq!(named("{}"), json!({"_caller_worker_id": "w"}));
        assert_eq!(named("{ }"), json!({"_caller_worker_id": "w"}));
        assert_eq!(
            named(r#"{"a":1}"#),
            json!({"_caller_worker_id": "w", "a": 1})
        );
        for forged in [
            r#"{"_caller_worker_id":"x","a":1}"#,
            r#"{"a":1,"\u005fcaller_worker_id":"x"}"#,
        ] {
            assert_eq!(named(forged), json!({"_caller_worker_id": "w", "a": 1}));
        }
        assert_eq!(named("[1]"), json!([1]));
        assert_eq!(with_caller(None, "w").unwrap(), "null");
        // Numbers and texts that Rust types cannot hold are forwarded unchanged.
        let odd = r#"{"n":1e400,"big":123456789012345678901234567890,"s":"\ud800"}"#;
        let passed = with_caller(Some(odd), "w").unwrap();
        for part in ["1e400", "123456789012345678901234567890", r#""\ud800""#] {
            assert!(passed.contains(part), "{passed}");
        }
        let hidden = r#"{"_caller_worker_id":"x","\ud800":1}"#;
        assert_eq!(with_caller(Some(hidden), "w"), None);
    }

    proptest! {
        #[test]
        fn parse_never_panics_on_any_text(text in any::<String>()) {
            let _ = Frame::parse(&text);
        }
    }
}
