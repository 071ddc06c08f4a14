//! Checks that every request passes before it is answered.
//!
//! A web page can make a browser send requests to a local port under a host name that resolves
//! there (DNS rebinding). So host and origin are checked before the rest of the request is read
//! (T28).

use std::{
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use repertoire_registry::store::TokenAccess;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::{sync::OwnedSemaphorePermit, time::Interval};

use super::{HttpState, access_log::AccessLogLine};
use crate::mcp::fast_path::{self, DeclaredRevision, FastMessage, ProtocolEra};

/// Creates a JSON error response.
pub(crate) fn error_response(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Creates a JSON-RPC error response without an id.
fn rpc_error_response(status: StatusCode, code: i32, message: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Checks, answers, counts and logs a request.
pub(super) async fn guard_request(
    State(shared): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut seen = RequestInfo::default();
    let page = shared
        .options
        .allowed_hosts
        .allowed_foreign_origin(request.headers());
    let response = match check_request(&shared, request, &mut seen).await {
        Ok(GuardOutcome::Answered(bytes)) => {
            let json = HeaderValue::from_static("application/json");
            let body = TrackedBody::new(Body::from(bytes), seen.slot.take(), None);
            let mut response = Response::new(Body::new(body));
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Ok(GuardOutcome::Forward(request)) => {
            let mut response = next.run(*request).await;
            if method == Method::DELETE && response.status() == StatusCode::ACCEPTED {
                // The session has ended at this point; some clients expect status 204.
                *response.status_mut() = StatusCode::NO_CONTENT;
            }
            let (slot, watched) = (seen.slot.take(), seen.token_watch.take());
            response.map(|body| Body::new(TrackedBody::new(body, slot, watched)))
        }
        Err(refused) => *refused,
    };
    let mut response = response;
    if let Some(page) = page {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let session = HeaderValue::from_static("mcp-session-id");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, session);
    }
    record_session_owner(&shared, &response, seen.token.as_deref());
    let status = response.status().as_u16();
    shared.service.metrics.count_response(status);
    if let Some(log) = &shared.options.access_log {
        log.log_request(&AccessLogLine {
            at: format!("{:.3}", jiff::Timestamp::now()),
            method: method.as_str(),
            path: &path,
            rpc: seen.rpc.as_deref(),
            token: seen.token.as_deref(),
            status,
            micros: start.elapsed().as_micros(),
        });
    }
    response
}

/// Facts about a request collected while it is checked.
#[derive(Default)]
struct RequestInfo {
    token: Option<String>,
    rpc: Option<String>,
    slot: Option<RequestSlot>,
    /// Checks the token while a stream is open.
    token_watch: Option<TokenWatch>,
}

type RefusalResponse = Box<Response>;

/// The result of checking an allowed request.
enum GuardOutcome {
    /// The request has been answered.
    Answered(Vec<u8>),
    /// The request is passed on.
    Forward(Box<Request>),
}

async fn check_request(
    shared: &Arc<HttpState>,
    request: Request,
    seen: &mut RequestInfo,
) -> Result<GuardOutcome, RefusalResponse> {
    let options = &shared.options;
    let named = options
        .allowed_hosts
        .check_host_and_origin(request.uri(), request.headers());
    named
        .map_err(|message| Box::new(error_response(StatusCode::FORBIDDEN, "forbidden", message)))?;
    if request.uri().path() == "/healthz" {
        return Ok(GuardOutcome::Forward(Box::new(request)));
    }
    if request.method() == Method::OPTIONS
        && options
            .allowed_hosts
            .allowed_foreign_origin(request.headers())
            .is_some()
    {
        return Err(Box::new(preflight_response()));
    }
    let caller = options.auth.authenticate_caller(request.headers());
    let Some(caller) = caller.filter(|caller| caller.access >= TokenAccess::Read) else {
        let mut response = error_response(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "send a token as `Authorization: Bearer …`; `repertoire token create` makes one",
        );
        let ask = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
        return Err(Box::new(response));
    };
    if let Some(token) = &caller.token
        && !owns_session(shared, request.headers(), token)
    {
        let message = "there is no such session";
        return Err(Box::new(error_response(
            StatusCode::NOT_FOUND,
            "not_found",
            message,
        )));
    }
    let watched = caller
        .token
        .is_some()
        .then(|| TokenWatch::new(shared, request.headers()));
    seen.token = caller.token;
    if request.uri().path() != "/mcp" || request.method() != Method::POST {
        seen.token_watch = watched;
        return Ok(GuardOutcome::Forward(Box::new(request)));
    }
    if shared.service.stop.is_cancelled() {
        return Err(busy_response("the server is shutting down"));
    }
    let permit = shared.request_permits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| busy_response("too many requests at a time"))?;
    seen.slot = Some(RequestSlot::new(shared, permit));
    let (parts, bytes) = read_body(shared, request).await?;
    let message = parse_message(&bytes)?;
    seen.rpc = message
        .as_ref()
        .and_then(|message| message.method.as_deref())
        .map(crate::error::shorten_text);
    if let Some(message) = &message
        && has_matching_headers(&parts.headers, message)
        && let Some(answer) = fast_path::try_answer(&shared.service, message, ProtocolEra::Modern)
    {
        return Ok(GuardOutcome::Answered(answer));
    }
    if seen.rpc.as_deref() == Some("subscriptions/listen") {
        let permit = shared.subscription_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| busy_response("too many subscriptions at a time"))?;
        seen.slot = Some(RequestSlot::new(shared, permit));
        seen.token_watch = watched;
    }
    if opens_session(&parts.headers)
        && shared.sessions.sessions.read().await.len() >= options.max_sessions
    {
        return Err(busy_response(
            "too many sessions; idle ones end after five minutes",
        ));
    }
    let request = Request::from_parts(parts, Body::from(bytes));
    Ok(GuardOutcome::Forward(Box::new(request)))
}

/// Creates the response to a CORS preflight request.
fn preflight_response() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    let names = HeaderValue::from_static(
        "authorization, content-type, last-event-id, mcp-method, mcp-name, \
         mcp-protocol-version, mcp-session-id",
    );
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    let age = HeaderValue::from_static("600");
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, age);
    response
}

/// Records the token that owns a new session.
fn record_session_owner(shared: &HttpState, response: &Response, token: Option<&str>) {
    let session = response.headers().get("mcp-session-id");
    let (Some(token), Some(Ok(session))) = (token, session.map(HeaderValue::to_str)) else {
        return;
    };
    let mut owners = shared
        .session_owners
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if owners.len() >= 2 * shared.options.max_sessions
        && let Ok(alive) = shared.sessions.sessions.try_read()
    {
        owners.retain(|session, _| alive.contains_key(session.as_str()));
    }
    owners.insert(session.to_owned(), token.to_owned());
}

/// Whether the session of a request, if any, was opened with the same token.
fn owns_session(shared: &HttpState, headers: &HeaderMap, token: &str) -> bool {
    let session = headers.get("mcp-session-id").and_then(|s| s.to_str().ok());
    let owners = shared
        .session_owners
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    session
        .and_then(|session| owners.get(session))
        .is_none_or(|owner| owner == token)
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

/// The permit of a request, held from its arrival to the last byte of its response.
struct RequestSlot {
    shared: Arc<HttpState>,
    _permit: OwnedSemaphorePermit,
}

impl RequestSlot {
    fn new(shared: &Arc<HttpState>, permit: OwnedSemaphorePermit) -> Self {
        shared.service.metrics.in_flight.inc();
        Self {
            shared: shared.clone(),
            _permit: permit,
        }
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.shared.service.metrics.in_flight.dec();
    }
}

/// Checks the token of a long-lived stream again every second.
struct TokenWatch {
    shared: Arc<HttpState>,
    headers: HeaderMap,
    timer: Interval,
}

impl TokenWatch {
    fn new(shared: &Arc<HttpState>, headers: &HeaderMap) -> Self {
        let mut kept = HeaderMap::new();
        if let Some(token) = headers.get(header::AUTHORIZATION) {
            kept.insert(header::AUTHORIZATION, token.clone());
        }
        Self {
            shared: shared.clone(),
            headers: kept,
            timer: tokio::time::interval(Duration::from_secs(1)),
        }
    }

    /// Whether the token has been revoked or has expired.
    fn is_revoked(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.poll_tick(context).is_ready() {
            if self
                .shared
                .options
                .auth
                .authenticate_caller(&self.headers)
                .is_none()
            {
                return true;
            }
        }
        false
    }
}

/// The maximum size of a body frame; the rest waits until the client has read it.
const MAX_FRAME_BYTES: usize = 64 * 1024;

/// A response body that holds the permit of its request until it is sent.
struct TrackedBody {
    body: Body,
    rest: Bytes,
    token_watch: Option<TokenWatch>,
    _slot: Option<RequestSlot>,
}

impl TrackedBody {
    fn new(body: Body, slot: Option<RequestSlot>, token_watch: Option<TokenWatch>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            token_watch,
            _slot: slot,
        }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(watched) = &mut self.token_watch
            && watched.is_revoked(context)
        {
            return Poll::Ready(None);
        }
        if self.rest.is_empty() {
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                other => return other,
            }
        }
        let piece = self.rest.len().min(MAX_FRAME_BYTES);
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        // Set the upper bound first: the lower bound must never exceed it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
