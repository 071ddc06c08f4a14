//! Requests to `/mcp`: their limits, and the fast path.
//!
//! Frequent requests of the newest revision are answered here without the MCP library; all others
//! are passed on to it.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::IgnoredAny;
use serde_json::json;

use super::{
    HttpState,
    guard::{CallerToken, RpcMethod, TokenWatch, error_response},
    tracked_body::{RequestSlot, TrackedBody},
};
use crate::mcp::fast_path::{self, DeclaredRevision, FastMessage, ProtocolEra};

type RefusalResponse = Box<Response>;

/// Answers a request on the fast path, or passes it on within the limits.
pub(super) async fn handle_request(
    State(shared): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    match handle_message(&shared, request, next).await {
        Ok(response) => response,
        Err(refused) => *refused,
    }
}

async fn handle_message(
    shared: &Arc<HttpState>,
    request: Request,
    next: Next,
) -> Result<Response, RefusalResponse> {
    if shared.service.stop.is_cancelled() {
        return Err(busy_response("the server is shutting down"));
    }
    let permit = shared.request_permits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| busy_response("too many requests at a time"))?;
    let mut slot = RequestSlot::new(shared, permit);
    let (parts, bytes) = read_body(shared, request).await?;
    let message = parse_message(&bytes)?;
    let method = message
        .as_ref()
        .and_then(|message| message.method.as_deref())
        .map(crate::error::shorten_text);
    if let Some(message) = &message
        && has_matching_headers(&parts.headers, message)
        && let Some(answer) = fast_path::try_answer(&shared.service, message, ProtocolEra::Modern)
    {
        let body = TrackedBody::new(Body::from(answer), Some(slot), None);
        let mut response = Response::new(Body::new(body));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        return Ok(with_method(response, method));
    }
    let mut watch = None;
    if method.as_deref() == Some("subscriptions/listen") {
        let permit = shared.subscription_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            let busy = busy_response("too many subscriptions at a time");
            Box::new(with_method(*busy, method.clone()))
        })?;
        slot = RequestSlot::new(shared, permit);
        let has_token = parts.extensions.get::<CallerToken>().is_some();
        watch = has_token.then(|| TokenWatch::new(shared, &parts.headers));
    }
    if opens_session(&parts.headers)
        && shared.sessions.sessions.read().await.len() >= shared.options.max_sessions
    {
        let busy = busy_response("too many sessions; idle ones end after five minutes");
        return Err(Box::new(with_method(*busy, method)));
    }
    let request = Request::from_parts(parts, Body::from(bytes));
    let response = next.run(request).await;
    let response = response.map(|body| Body::new(TrackedBody::new(body, Some(slot), watch)));
    Ok(with_method(response, method))
}

/// Notes the method of a request for the access log.
fn with_method(mut response: Response, method: Option<String>) -> Response {
    if let Some(method) = method {
        response.extensions_mut().insert(RpcMethod(method));
    }
    response
}

/// Creates a JSON-RPC error response without an id.
fn rpc_error_response(status: StatusCode, code: i32, message: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Whether a request can open a session: it has none, and its revision supports sessions.
fn opens_session(headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version");
    let modern = version.is_some_and(|v| v.as_bytes() >= b"2026-07-28".as_slice());
    !headers.contains_key("mcp-session-id") && !modern
}

/// Whether the headers match the message, in the newest revision.
fn has_matching_headers(headers: &HeaderMap, message: &FastMessage<'_>) -> bool {
    let one = |name: &str| {
        let mut values = headers.get_all(name).iter();
        let first = values.next().and_then(|value| value.to_str().ok());
        first.filter(|_| values.next().is_none())
    };
    let accepts = one("accept").is_some_and(|accept| {
        accept.contains("application/json") && accept.contains("text/event-stream")
    });
    let uri = message.params.as_ref().and_then(|p| p.uri.as_deref());
    let named = match message.method.as_deref() {
        Some("resources/read") => one("mcp-name").is_some() && one("mcp-name") == uri,
        _ => !headers.contains_key("mcp-name"),
    };
    accepts
        && named
        && one("content-type").is_some_and(|kind| kind.starts_with("application/json"))
        && one("mcp-protocol-version") == Some("2026-07-28")
        && one("mcp-method").is_some()
        && one("mcp-method") == message.method.as_deref()
        && message.declared_revision() == DeclaredRevision::Modern
}

#[allow(
    clippy::unnecessary_box_returns,
    reason = "a refusal is boxed everywhere"
)]
fn busy_response(message: &str) -> RefusalResponse {
    let mut response = error_response(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
    let later = HeaderValue::from_static("1");
    response.headers_mut().insert(header::RETRY_AFTER, later);
    Box::new(response)
}

/// Reads the body within its limits.
async fn read_body(
    shared: &HttpState,
    request: Request,
) -> Result<(Parts, Bytes), RefusalResponse> {
    let options = &shared.options;
    let too_large = || {
        let message = format!("a request has at most {} bytes", options.max_body);
        Box::new(error_response(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            &message,
        ))
    };
    let (parts, body) = request.into_parts();
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > options.max_body as u64) {
        return Err(too_large());
    }
    let reading = Limited::new(body, options.max_body).collect();
    let bytes = match tokio::time::timeout(options.request_timeout, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => {
            return Err(Box::new(error_response(
                StatusCode::BAD_REQUEST,
                "incomplete",
                "the connection closed before the request was complete",
            )));
        }
        Err(_) => {
            return Err(Box::new(error_response(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the request took too long to arrive",
            )));
        }
    };
    Ok((parts, bytes))
}

/// Parses a body as a message; `None` if only `rmcp` can decide.
fn parse_message(bytes: &[u8]) -> Result<Option<FastMessage<'_>>, RefusalResponse> {
    let refuse =
        |code, message: &str| Box::new(rpc_error_response(StatusCode::BAD_REQUEST, code, message));
    match bytes.trim_ascii_start().first() {
        Some(b'[') => return Err(refuse(-32600, "batches are not part of the protocol")),
        Some(b'{') => {}
        Some(_) | None => return Err(refuse(-32700, "not a JSON object")),
    }
    match repertoire_core::json::from_slice::<FastMessage<'_>>(bytes) {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.is_data() => {
            match repertoire_core::json::from_slice::<IgnoredAny>(bytes) {
                Ok(_) => Ok(None),
                Err(error) => Err(refuse(-32700, &format!("not JSON: {error}"))),
            }
        }
        Err(error) => Err(refuse(-32700, &format!("not JSON: {error}"))),
    }
}
