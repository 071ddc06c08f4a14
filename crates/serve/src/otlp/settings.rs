//! The settings of the exporter, from the standard environment variables of OpenTelemetry.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use super::message::{ContentExport, KeyValue};

/// How long one request may take, unless it is set.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the end of a command waits for a collector, unless a timeout is set.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);
/// The most attributes that the environment may add.
const MAX_ATTRIBUTES: usize = 64;

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {reason}")]
pub struct OtlpSettingsError {
    variable: &'static str,
    reason: String,
}

/// The encoding of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OtlpEncoding {
    Protobuf,
    Json,
}

/// Where spans are sent, and how.
#[derive(Debug, Clone)]
pub(super) struct OtlpSettings {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    /// How long one request may take.
    pub(super) timeout: Duration,
    /// How long the end of a command waits for a collector.
    pub(super) patience: Duration,
    pub(super) encoding: OtlpEncoding,
    pub(super) content: ContentExport,
    pub(super) resource: Vec<KeyValue>,
}

/// Returns the value of an environment variable.
type Lookup<'a> = &'a dyn Fn(&'static str) -> Option<String>;

impl OtlpSettings {
    /// Reads the settings; none if no endpoint is set, or if exports are switched off.
    pub(super) fn read(lookup: Lookup<'_>) -> Result<Option<Self>, OtlpSettingsError> {
        let set = |name| lookup(name).filter(|value| !value.trim().is_empty());
        let is_off = set("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"))
            || set("OTEL_TRACES_EXPORTER").is_some_and(|v| v != "otlp");
        if is_off {
            return Ok(None);
        }
        let Some(url) = read_endpoint(&set)? else {
            return Ok(None);
        };
        // The variable for traces takes precedence over the general one.
        let either = |own: &'static str, general: &'static str| {
            set(own)
                .map(|value| (own, value))
                .or_else(|| set(general).map(|value| (general, value)))
        };
        let headers = either(
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
            "OTEL_EXPORTER_OTLP_HEADERS",
        );
        let timeout = either(
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        );
        let protocol = either(
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        );
        let timeout = timeout.map(read_timeout).transpose()?;
        let captured = set("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT");
        Ok(Some(Self {
            url,
            headers: headers.map_or_else(|| Ok(HeaderMap::new()), read_headers)?,
            timeout: timeout.unwrap_or(DEFAULT_TIMEOUT),
            patience: timeout.unwrap_or(DEFAULT_PATIENCE),
            encoding: protocol.map_or(Ok(OtlpEncoding::Protobuf), read_protocol)?,
            content: content_export(captured.as_deref()),
            resource: resource_attributes(&set),
        }))
    }
}

/// Whether prompts and completions are exported, by the standard variable.
pub(super) fn content_export(value: Option<&str>) -> ContentExport {
    let value = value.unwrap_or_default().to_ascii_lowercase();
    match &*value {
        "true" | "1" | "span_only" | "span_and_event" => ContentExport::Included,
        _ => ContentExport::Omitted,
    }
}

/// The attributes of the resource: the service and what the environment adds.
pub(super) fn resource_attributes(lookup: Lookup<'_>) -> Vec<KeyValue> {
    let extra = lookup("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut service = lookup("OTEL_SERVICE_NAME");
    let mut attributes = Vec::new();
    for (key, value) in key_value_pairs(&extra).take(MAX_ATTRIBUTES) {
        if key == "service.name" {
            service.get_or_insert(value);
        } else {
            attributes.push(KeyValue::text(&key, value));
        }
    }
    let service = service.unwrap_or_else(|| "repertoire".to_owned());
    attributes.push(KeyValue::text("service.name", service));
    attributes.push(KeyValue::text("service.version", env!("CARGO_PKG_VERSION")));
    attributes
}

fn read_endpoint(lookup: Lookup<'_>) -> Result<Option<Url>, OtlpSettingsError> {
    const OWN: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    const GENERAL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    let parse = |variable, text: &str| {
        let url: Url = text.trim().parse().map_err(|error| OtlpSettingsError {
            variable,
            reason: format!("not a URL: {error}"),
        })?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(OtlpSettingsError {
                variable,
                reason: "an http or https URL is needed".to_owned(),
            });
        }
        Ok(url)
    };
    if let Some(text) = lookup(OWN) {
        return parse(OWN, &text).map(Some);
    }
    let Some(text) = lookup(GENERAL) else {
        return Ok(None);
    };
    parse(GENERAL, &text)?;
    // The general variable names the base of all signals.
    let base = format!("{}/v1/traces", text.trim().trim_end_matches('/'));
    parse(GENERAL, &base).map(Some)
}

fn read_headers((variable, text): (&'static str, String)) -> Result<HeaderMap, OtlpSettingsError> {
    let mut headers = HeaderMap::new();
    for (key, value) in key_value_pairs(&text) {
        // Values are often keys, so no error repeats them.
        let refuse = |reason: &str| OtlpSettingsError {
            variable,
            reason: reason.to_owned(),
        };
        let name: HeaderName = key.parse().map_err(|_| refuse("not a header name"))?;
        let value = HeaderValue::from_str(&value);
        let mut value = value.map_err(|_| refuse("not a header value"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn read_timeout((variable, text): (&'static str, String)) -> Result<Duration, OtlpSettingsError> {
    let millis: Option<u64> = text.trim().parse().ok();
    millis
        .filter(|millis| *millis > 0)
        .map(Duration::from_millis)
        .ok_or_else(|| OtlpSettingsError {
            variable,
            reason: "a number of milliseconds is needed".to_owned(),
        })
}

fn read_protocol(
    (variable, text): (&'static str, String),
) -> Result<OtlpEncoding, OtlpSettingsError> {
    match text.trim() {
        "http/protobuf" => Ok(OtlpEncoding::Protobuf),
        "http/json" => Ok(OtlpEncoding::Json),
        other => Err(OtlpSettingsError {
            variable,
            reason: format!("{other:?} is not supported: use http/protobuf or http/json"),
        }),
    }
}

/// Splits `a=b,c=d`; values are percent-decoded, and what has no name is left out.
fn key_value_pairs(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), percent_decode(value.trim())))
    })
}

/// Decodes percent-encoded bytes; invalid sequences stay as they are.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|two| u8::from_str_radix(two, 16).ok());
        if let (b'%', Some(code)) = (first, code) {
            bytes.push(code);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&'static str, &str)]) -> Result<Option<OtlpSettings>, OtlpSettingsError> {
        OtlpSettings::read(&|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_sent_unless_an_endpoint_is_set() {
        assert!(read(&[]).unwrap().is_none());
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318/");
        assert!(
            read(&[endpoint, ("OTEL_SDK_DISABLED", "true")])
                .unwrap()
                .is_none()
        );
        assert!(
            read(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")])
                .unwrap()
                .is_none()
        );
        let settings = read(&[endpoint]).unwrap().unwrap();
        assert_eq!(settings.url.as_str(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(settings.content, ContentExport::Omitted);
    }

    #[test]
    fn the_variables_for_traces_take_precedence() {
        let settings = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a.example"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                "http://b.example/traces",
            ),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            (
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                "x-key=a%3Db, other = c",
            ),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.url.as_str(), "http://b.example/traces");
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.headers["x-key"], "a=b");
        assert_eq!(settings.headers["other"], "c");
        assert_eq!(settings.encoding, OtlpEncoding::Json);
    }

    #[test]
    fn a_setting_that_cannot_be_used_names_its_variable_and_no_secret() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a.example");
        for (variable, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "key=se%0Acret"),
        ] {
            let error = read(&[endpoint, (variable, value)])
                .unwrap_err()
                .to_string();
            assert!(error.contains(variable), "{error}");
            assert!(!error.contains("cret"), "{error}");
        }
        for url in ["4318", "ftp://a.example", "http://"] {
            assert!(
                read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]).is_err(),
                "{url}"
            );
        }
    }
}
