//! Client for another server over streamable HTTP.
//!
//! Redirects are limited in number and must stay within the origin; a host name is resolved once
//! and pinned; a token is sent only to the origin it was configured for.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use futures::StreamExt as _;
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION},
    redirect::Policy,
};
use serde_json::{Value, json, value::RawValue};
use tokio::time::Instant;
use url::Url;

use super::{Envelope, RawResponse, RemoteFailure, RemoteRequest, Result, target::ServerTarget};
use crate::{
    address::{PinnedResolver, Reach, is_public},
    http::root_cause,
};

/// The maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 3;
const SESSION_HEADER: &str = "mcp-session-id";

/// A server at a URL.
#[derive(Debug)]
pub(super) struct HttpChannel {
    client: Client,
    url: Url,
    token: Option<HeaderValue>,
    session: OnceLock<HeaderValue>,
    next_id: AtomicU64,
}

impl HttpChannel {
    pub(super) fn new(target: &ServerTarget) -> Result<Self> {
        let ServerTarget::Http {
            url,
            bearer_env,
            reach,
        } = target
        else {
            return Err(RemoteFailure::Unusable("is not a URL".into()));
        };
        let token = match bearer_env {
            None => None,
            Some(name) => {
                let secret = std::env::var(name).map_err(|_| {
                    RemoteFailure::Unreachable(format!(
                        "its token is expected in ${name}, which is not set"
                    ))
                })?;
                let mut value = HeaderValue::from_str(&format!("Bearer {}", secret.trim()))
                    .map_err(|_| {
                        RemoteFailure::Unreachable(format!("${name} does not hold a valid token"))
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        if let Some(ip) = url
            .host_str()
            .and_then(|h| h.trim_matches(['[', ']']).parse().ok())
            && (*reach == Reach::Public) != is_public(ip)
        {
            return Err(RemoteFailure::Unreachable(format!(
                "{ip} is on another network than when it was added"
            )));
        }
        // The embedding program may have installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(PinnedResolver::new(*reach)))
            .user_agent(concat!("repertoire/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| RemoteFailure::Unreachable(error.to_string()))?;
        Ok(Self {
            client,
            url: url.clone(),
            token,
            session: OnceLock::new(),
            next_id: AtomicU64::new(1),
        })
    }

    pub(super) async fn send_request(&self, question: RemoteRequest<'_>) -> Result<RawResponse> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = super::request_message(id, &question);
        let mut headers = HeaderMap::new();
        let text = |text: &str| HeaderValue::from_str(text).ok();
        if let Some(version) = question.version.and_then(text) {
            headers.insert("mcp-protocol-version", version);
        }
        if question.version == Some(super::MODERN_REVISION) {
            headers.extend(text(question.method).map(|m| (static_name("mcp-method"), m)));
            let uri = question.params.get("uri").and_then(Value::as_str);
            if question.method == "resources/read" {
                headers.extend(uri.and_then(text).map(|u| (static_name("mcp-name"), u)));
            }
        }
        let work = async {
            let response = self.post_message(&body, headers).await?;
            if question.method == "initialize"
                && let Some(session) = response.headers().get(SESSION_HEADER)
            {
                let _ = self.session.set(session.clone());
            }
            if self.session.get().is_some() && response.status() == StatusCode::NOT_FOUND {
                // The server was restarted or expired the session; a new handshake is needed.
                return Err(RemoteFailure::Unreachable("has ended the session".into()));
            }
            read_response(response, id, question.limit, question.deadline).await
        };
        let answer = tokio::time::timeout_at(question.deadline, work).await;
        answer.map_err(|_| timeout_failure())?
    }

    pub(super) async fn send_notification(
        &self,
        method: &str,
        version: &str,
        until: Instant,
    ) -> Result<()> {
        let body = json!({"jsonrpc": "2.0", "method": method});
        let mut headers = HeaderMap::new();
        if let Ok(version) = HeaderValue::from_str(version) {
            headers.insert("mcp-protocol-version", version);
        }
        let sent = tokio::time::timeout_at(until, self.post_message(&body, headers)).await;
        sent.map_err(|_| timeout_failure())??;
        Ok(())
    }

    async fn post_message(&self, body: &Value, mut headers: HeaderMap) -> Result<Response> {
        let accept = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(ACCEPT, accept);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(session) = self.session.get() {
            headers.insert(SESSION_HEADER, session.clone());
        }
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        let mut url = self.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let request = self.client.post(url.clone()).headers(headers.clone());
            let response = request.body(body.to_string()).send().await;
            // The user knows the URL, so it is removed from the error.
            let response = response.map_err(|error| {
                RemoteFailure::Unreachable(format!(
                    "cannot be reached: {}",
                    root_cause(&error.without_url())
                ))
            })?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            url = self.redirect_target(&url, &response)?;
        }
        Err(RemoteFailure::Unreachable(format!(
            "redirects more than {MAX_REDIRECTS} times"
        )))
    }

    /// Returns the target of a redirect, if it may be followed.
    fn redirect_target(&self, from: &Url, response: &Response) -> Result<Url> {
        let refuse = |reason: &str| {
            Err(RemoteFailure::Unreachable(format!(
                "a redirect {reason}: refused"
            )))
        };
        if !matches!(
            response.status(),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
        ) {
            return refuse("that changes the request");
        }
        let to = response.headers().get(LOCATION);
        let to = to.and_then(|to| from.join(to.to_str().ok()?).ok());
        match to {
            Some(to) if to.origin() == self.url.origin() => Ok(to),
            Some(_) => refuse("to another origin"),
            None => refuse("without a valid location"),
        }
    }
}

fn static_name(name: &'static str) -> reqwest::header::HeaderName {
    reqwest::header::HeaderName::from_static(name)
}

fn timeout_failure() -> RemoteFailure {
    RemoteFailure::Unreachable("did not answer in time".into())
}

/// Reads the response with this id from a JSON body or an event stream.
async fn read_response(
    response: Response,
    id: u64,
    limit: usize,
    until: Instant,
) -> Result<RawResponse> {
    let status = response.status();
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let events = kind.starts_with("text/event-stream");
    if !events && !kind.starts_with("application/json") {
        return Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => RemoteFailure::Unreachable(
                format!("refused the request ({status}); does it need a token?"),
            ),
            _ if status.is_success() => RemoteFailure::Unusable(format!("responded with {kind:?}")),
            _ => RemoteFailure::ErrorResponse {
                code: i64::from(status.as_u16()),
                message: status.to_string(),
            },
        });
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return Err(RemoteFailure::Unreachable(format!(
            "refused the request ({status}); does it need a token?"
        )));
    }
    let mut stream = response.bytes_stream();
    let mut buffer: Vec<u8> = Vec::new();
    // The number of bytes already searched for the end of an event.
    let mut searched = 0;
    let mut total = 0usize;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| {
            RemoteFailure::Unreachable(format!("connection closed: {}", root_cause(&error)))
        })?;
        total = total.saturating_add(chunk.len());
        if total > limit {
            return Err(RemoteFailure::Unusable(format!(
                "sent more than {limit} bytes"
            )));
        }
        // A stream with constant data never yields to the timer.
        if Instant::now() >= until {
            return Err(timeout_failure());
        }
        buffer.extend_from_slice(&chunk);
        if events {
            while let Some(event) = take_event(&mut buffer, &mut searched) {
                if is_response_to(&event, id) {
                    return Ok(RawResponse(event));
                }
            }
        }
    }
    let rest = if events { take_data(&buffer) } else { buffer };
    if is_response_to(&rest, id) {
        return Ok(RawResponse(rest));
    }
    Err(if status.is_success() {
        RemoteFailure::Unusable("sent no response to the request".into())
    } else {
        RemoteFailure::ErrorResponse {
            code: i64::from(status.as_u16()),
            message: status.to_string(),
        }
    })
}

/// Whether this is the response with this id; an error without an id counts as one.
fn is_response_to(bytes: &[u8], id: u64) -> bool {
    let Ok(envelope) = repertoire_core::json::from_slice::<Envelope<'_>>(bytes) else {
        return false;
    };
    let answer = envelope.result.is_some() || envelope.error.is_some();
    let meant = match envelope.id.map(RawValue::get) {
        None | Some("null") => envelope.error.is_some(),
        Some(other) => other == id.to_string(),
    };
    answer && meant
}

/// Removes one whole event from the front of the buffer and returns its data.
///
/// Unknown fields, comments and a last event without its blank line are accepted, as servers send
/// them.
fn take_event(buffer: &mut Vec<u8>, searched: &mut usize) -> Option<Vec<u8>> {
    // The end marker may begin in the part already searched.
    let from = searched.saturating_sub(3);
    let fresh = buffer.get(from..).unwrap_or_default();
    let end = |pattern: &[u8]| {
        let at = fresh.windows(pattern.len()).position(|w| w == pattern);
        at.map(|at| (from + at, pattern.len()))
    };
    let ends = [end(b"\n\n"), end(b"\r\n\r\n"), end(b"\r\r")];
    let Some((at, length)) = ends.into_iter().flatten().min() else {
        *searched = buffer.len();
        return None;
    };
    *searched = 0;
    let event: Vec<u8> = buffer.drain(..at + length).collect();
    Some(take_data(&event))
}

/// The data lines of an event, joined.
fn take_data(event: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for line in event.split(|b| *b == b'\n' || *b == b'\r') {
        if let Some(text) = line.strip_prefix(b"data:") {
            if !data.is_empty() {
                data.push(b'\n');
            }
            data.extend_from_slice(text.strip_prefix(b" ").unwrap_or(text));
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_split_at_blank_lines_even_across_chunks() {
        let mut buffer =
            b": hi\n\nevent: message\ndata: {\"a\":\ndata: 1}\n\ndata: x\r\n\r\nda".to_vec();
        let mut searched = 0;
        let mut next = |buffer: &mut Vec<u8>| take_event(buffer, &mut searched);
        assert_eq!(next(&mut buffer), Some(Vec::new()));
        assert_eq!(next(&mut buffer), Some(b"{\"a\":\n1}".to_vec()));
        assert_eq!(next(&mut buffer), Some(b"x".to_vec()));
        assert_eq!(next(&mut buffer), None);
        assert_eq!(buffer, b"da");
        // An end marker split over two chunks is found.
        buffer.extend_from_slice(b"ta: y\n");
        assert_eq!(next(&mut buffer), None);
        buffer.extend_from_slice(b"\n");
        assert_eq!(next(&mut buffer), Some(b"y".to_vec()));
    }
}
