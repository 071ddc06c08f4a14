//! Requests to `/mcp`: their limits, and the fast path.
//!
//! Frequent requests of the newest revision are answered here without the MCP library; all others
//! are passed on to it.

use std::sync::{Arc, PoisonError};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use repertoire_app::{Caller, Permission};
use repertoire_core::Uri;
use serde::de::IgnoredAny;
use serde_json::json;

use super::{
    HttpState, PeerConnection,
    guard::{RpcMethod, TokenWatch, error_response},
    tracked_body::{RequestSlot, TrackedBody},
};
use crate::{
    mcp::fast_path::{self, DeclaredRevision, FastMessage, ProtocolEra},
    peer_limits::{BudgetLease, PeerKey},
};

/// Requests and responses up to this size are not counted in bytes.
const SMALL_MESSAGE: u64 = 64 * 1024;

type RefusalResponse = Box<Response>;

/// Answers a request on the fast path, or passes it on within the limits.
pub(super) async fn handle_request(
    shared: &Arc<HttpState>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    match handle_message(shared, request, next).await {
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
    let Some(connection) = request.extensions().get::<PeerConnection>().cloned() else {
        return Err(busy_response("the connection is not known"));
    };
    let peer = connection.slot.peer();
    let lease = shared.requests.try_take(peer, 1);
    let lease = lease.ok_or_else(|| busy_response("too many requests at a time"))?;
    let mut slot = RequestSlot::new(shared, lease);
    let (parts, bytes, _buffered) = read_body(shared, peer, request).await?;
    connection.slot.mark_active();
    let caller = parts.extensions.get::<Caller>().cloned();
    let caller = caller.unwrap_or_else(Caller::without_permissions);
    let message = parse_message(&bytes)?;
    let method = message
        .as_ref()
        .and_then(|message| message.method.as_deref())
        .map(crate::error::shorten_text);
    if let Some(message) = &message
        && has_matching_headers(&parts.headers, message)
        && caller.may(Permission::Read)
        && !caller.is_restricted()
        && let Some(answer) = fast_path::try_answer(&shared.service, message, ProtocolEra::Modern)
    {
        let mut response =
            send_within_budget(shared, &connection, Body::from(answer), (slot, None), None)?;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        return Ok(with_method(response, method));
    }
    let mut watch = None;
    if method.as_deref() == Some("subscriptions/listen") {
        let lease = shared.subscriptions.try_take(peer, 1);
        let lease = lease.ok_or_else(|| {
            let busy = busy_response("too many subscriptions at a time");
            Box::new(with_method(*busy, method.clone()))
        })?;
        slot = RequestSlot::new(shared, lease);
        let has_token = caller.token_name().is_some();
        watch = has_token.then(|| TokenWatch::new(shared, &connection, &parts.headers));
    }
    if opens_session(&parts.headers) && has_session_share(shared, peer).await {
        let busy = busy_response("too many sessions; idle ones end after five minutes");
        return Err(Box::new(with_method(*busy, method)));
    }
    // Before the answer is built: building many at once would need the memory that is to be saved.
    let expected = match &message {
        Some(message) => expected_response_size(shared, &caller, message).await,
        None => 0,
    };
    let lease = take_buffer(shared, &connection, expected)?;
    // Copies are made on the way, so only a few large answers are built at a time.
    let building = match lease {
        Some(_) => shared.large_answers.acquire().await.ok(),
        None => None,
    };
    let request = Request::from_parts(parts, Body::from(bytes));
    let response = next.run(request).await;
    drop(building);
    let (head, body) = response.into_parts();
    let sent = send_within_budget(shared, &connection, body, (slot, lease), watch)?;
    let response = Response::from_parts(head, sent.into_body());
    Ok(with_method(response, method))
}

/// Takes the memory for a large answer; none is needed for a small one.
fn take_buffer(
    shared: &HttpState,
    connection: &PeerConnection,
    size: usize,
) -> Result<Option<BudgetLease>, RefusalResponse> {
    if size as u64 <= SMALL_MESSAGE {
        return Ok(None);
    }
    let lease = shared.buffered.try_take(connection.slot.peer(), size);
    let busy = || busy_response("too many large answers wait to be read: read them first");
    lease.map(Some).ok_or_else(busy)
}

/// Estimates the size of an answer from the catalogue, without reading anything. Until the catalogue
/// is open, requests wait here, because all of them would be answered at once then.
async fn expected_response_size(
    shared: &HttpState,
    caller: &Caller,
    message: &FastMessage<'_>,
) -> usize {
    if !matches!(
        message.method.as_deref(),
        Some("resources/read" | "prompts/get")
    ) {
        return 0;
    }
    let Ok(registry) = shared.service.registry().await else {
        return 0;
    };
    let params = message.params.as_ref();
    let snapshot = || shared.service.visible_snapshot(registry, caller);
    let bytes = match message.method.as_deref() {
        Some("resources/read") => match params.and_then(|p| p.uri.as_deref()?.parse().ok()) {
            Some(Uri::Skill(path)) => snapshot().locate_file(&path).and_then(|(entry, path)| {
                let file = entry.metadata.find_file(&path)?;
                Some(file.size)
            }),
            Some(Uri::Body(id)) => snapshot().get(&id).map(|entry| entry.metadata.total_size()),
            _ => None,
        },
        Some("prompts/get") => {
            let id = params.and_then(|p| p.name.as_deref()?.parse().ok());
            id.and_then(|id| Some(snapshot().get(&id)?.metadata.total_size()))
        }
        _ => None,
    };
    // Base64 and escapes add a third.
    let bytes = bytes.map_or(0, |bytes| bytes.saturating_add(bytes / 3));
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Sends a body that is at hand within the memory of the peer, and within a time limit. A body that
/// does not fit is dropped at once.
fn send_within_budget(
    shared: &Arc<HttpState>,
    connection: &PeerConnection,
    body: Body,
    (slot, lease): (RequestSlot, Option<BudgetLease>),
    watch: Option<TokenWatch>,
) -> Result<Response, RefusalResponse> {
    let mut tracked = TrackedBody::new(Body::empty(), Some(slot), watch);
    // A stream has no known size.
    if let Some(size) = http_body::Body::size_hint(&body).exact()
        && size > SMALL_MESSAGE
    {
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let lease = match lease {
            Some(lease) => Some(lease),
            None => take_buffer(shared, connection, size)?,
        };
        tracked.hold_buffer(lease);
        tracked.close_after(
            shared.options.response_timeout,
            connection.slot.stop_token().clone(),
        );
    }
    tracked.set_body(body);
    Ok(Response::new(Body::new(tracked)))
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

/// Whether the server has all its sessions, or a peer its share of them.
async fn has_session_share(shared: &HttpState, peer: PeerKey) -> bool {
    let alive = shared.sessions.sessions.read().await;
    let most = shared.options.max_sessions;
    if alive.len() >= most {
        return true;
    }
    let owners = shared.session_owners.lock();
    let owners = owners.unwrap_or_else(PoisonError::into_inner);
    let mine = owners
        .iter()
        .filter(|(session, owner)| owner.peer == peer && alive.contains_key(session.as_str()));
    mine.count() >= super::share(most)
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
    peer: PeerKey,
    request: Request,
) -> Result<(Parts, Bytes, Option<BudgetLease>), RefusalResponse> {
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
    let expected = length.and_then(|length| usize::try_from(length).ok());
    let expected = expected.unwrap_or(options.max_body);
    // The number of requests bounds the memory of small ones.
    let lease = if expected as u64 <= SMALL_MESSAGE {
        None
    } else {
        let lease = shared.buffered.try_take(peer, expected);
        let busy = || busy_response("too many requests are being received at a time");
        Some(lease.ok_or_else(busy)?)
    };
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
    Ok((parts, bytes, lease))
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
