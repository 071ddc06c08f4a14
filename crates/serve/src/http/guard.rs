//! What every request passes before it is answered.
//!
//! A page in a browser can make its visitor's machine send requests to a local port, under a name
//! of its own that leads there. So the name a request was sent to and the page it comes from are
//! checked before anything else of it is looked at (T28).

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
use repertoire_registry::store::Access;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::{sync::OwnedSemaphorePermit, time::Interval};

use super::{Shared, access_log::Line};
use crate::mcp::fast::{self, Era, Message, Said};

/// A refusal as JSON, for people and programs.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A refusal of a JSON-RPC message nobody can answer by its id.
fn rpc_refusal(status: StatusCode, code: i32, message: &str) -> Response {
    let body = json!({"jsonrpc": "2.0", "error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Checks a request, answers it, counts it and writes it down.
pub(super) async fn pass(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut seen = Seen::default();
    let page = shared.options.names.foreign_page(request.headers());
    let response = match check(&shared, request, &mut seen).await {
        Ok(Passed::Answered(bytes)) => {
            let json = HeaderValue::from_static("application/json");
            let body = Tracked::new(Body::from(bytes), seen.slot.take(), None);
            let mut response = Response::new(Body::new(body));
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Ok(Passed::On(request)) => {
            let mut response = next.run(*request).await;
            if method == Method::DELETE && response.status() == StatusCode::ACCEPTED {
                // The session is gone when this is answered; some clients look for that.
                *response.status_mut() = StatusCode::NO_CONTENT;
            }
            let (slot, watched) = (seen.slot.take(), seen.watched.take());
            response.map(|body| Body::new(Tracked::new(body, slot, watched)))
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
    remember_session(&shared, &response, seen.token.as_deref());
    let status = response.status().as_u16();
    shared.engine.metrics.responded(status);
    if let Some(log) = &shared.options.access_log {
        log.write(&Line {
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

/// What was learnt about a request on the way.
#[derive(Default)]
struct Seen {
    token: Option<String>,
    rpc: Option<String>,
    slot: Option<Slot>,
    /// What a stream is allowed by, for as long as it lasts.
    watched: Option<Watched>,
}

type Refused = Box<Response>;

/// A request that may be answered.
enum Passed {
    /// It is answered already.
    Answered(Vec<u8>),
    /// It goes on.
    On(Box<Request>),
}

async fn check(shared: &Arc<Shared>, request: Request, seen: &mut Seen) -> Result<Passed, Refused> {
    let options = &shared.options;
    let named = options.names.check(request.uri(), request.headers());
    named.map_err(|message| Box::new(refusal(StatusCode::FORBIDDEN, "forbidden", message)))?;
    if request.uri().path() == "/healthz" {
        return Ok(Passed::On(Box::new(request)));
    }
    if request.method() == Method::OPTIONS
        && options.names.foreign_page(request.headers()).is_some()
    {
        return Err(Box::new(preflight()));
    }
    let caller = options.auth.caller(request.headers());
    let Some(caller) = caller.filter(|caller| caller.access >= Access::Read) else {
        let mut response = refusal(
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
        return Err(Box::new(refusal(
            StatusCode::NOT_FOUND,
            "not_found",
            message,
        )));
    }
    let watched = caller
        .token
        .is_some()
        .then(|| Watched::new(shared, request.headers()));
    seen.token = caller.token;
    if request.uri().path() != "/mcp" || request.method() != Method::POST {
        seen.watched = watched;
        return Ok(Passed::On(Box::new(request)));
    }
    if shared.engine.stop.is_cancelled() {
        return Err(busy("the server is shutting down"));
    }
    let permit = shared.room.clone().try_acquire_owned();
    let permit = permit.map_err(|_| busy("too many requests at a time"))?;
    seen.slot = Some(Slot::new(shared, permit));
    let (parts, bytes) = arrive(shared, request).await?;
    let message = look(&bytes)?;
    seen.rpc = message
        .as_ref()
        .and_then(|message| message.method.as_deref())
        .map(crate::error::shorten);
    if let Some(message) = &message
        && is_plain(&parts.headers, message)
        && let Some(answer) = fast::answer(&shared.engine, message, Era::Modern)
    {
        return Ok(Passed::Answered(answer));
    }
    if seen.rpc.as_deref() == Some("subscriptions/listen") {
        let permit = shared.listeners.clone().try_acquire_owned();
        let permit = permit.map_err(|_| busy("too many subscriptions at a time"))?;
        seen.slot = Some(Slot::new(shared, permit));
        seen.watched = watched;
    }
    if opens_session(&parts.headers)
        && shared.sessions.sessions.read().await.len() >= options.max_sessions
    {
        return Err(busy("too many sessions; idle ones end after five minutes"));
    }
    let request = Request::from_parts(parts, Body::from(bytes));
    Ok(Passed::On(Box::new(request)))
}

/// What a browser asks before it lets a page ask.
fn preflight() -> Response {
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

/// Writes down whose a new session is.
fn remember_session(shared: &Shared, response: &Response, token: Option<&str>) {
    let session = response.headers().get("mcp-session-id");
    let (Some(token), Some(Ok(session))) = (token, session.map(HeaderValue::to_str)) else {
        return;
    };
    let mut owners = shared.owners.lock().unwrap_or_else(PoisonError::into_inner);
    if owners.len() >= 2 * shared.options.max_sessions
        && let Ok(alive) = shared.sessions.sessions.try_read()
    {
        owners.retain(|session, _| alive.contains_key(session.as_str()));
    }
    owners.insert(session.to_owned(), token.to_owned());
}

/// Whether a session, if a request is in one, was begun with the same token.
fn owns_session(shared: &Shared, headers: &HeaderMap, token: &str) -> bool {
    let session = headers.get("mcp-session-id").and_then(|s| s.to_str().ok());
    let owners = shared.owners.lock().unwrap_or_else(PoisonError::into_inner);
    session
        .and_then(|session| owners.get(session))
        .is_none_or(|owner| owner == token)
}

/// Whether a request can begin a session: it is in none, and in a revision that has them.
fn opens_session(headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version");
    let modern = version.is_some_and(|v| v.as_bytes() >= b"2026-07-28".as_slice());
    !headers.contains_key("mcp-session-id") && !modern
}

/// Whether the headers of a message say what the message says, in the newest revision.
fn is_plain(headers: &HeaderMap, message: &Message<'_>) -> bool {
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
        && message.said() == Said::Modern
}

#[allow(
    clippy::unnecessary_box_returns,
    reason = "a refusal is boxed everywhere"
)]
fn busy(message: &str) -> Refused {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
    let later = HeaderValue::from_static("1");
    response.headers_mut().insert(header::RETRY_AFTER, later);
    Box::new(response)
}

/// Reads the body within its limits.
async fn arrive(shared: &Shared, request: Request) -> Result<(Parts, Bytes), Refused> {
    let options = &shared.options;
    let too_large = || {
        let message = format!("a request has at most {} bytes", options.max_body);
        Box::new(refusal(
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
    let bytes = match tokio::time::timeout(options.patience, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => {
            return Err(Box::new(refusal(
                StatusCode::BAD_REQUEST,
                "incomplete",
                "the request broke off",
            )));
        }
        Err(_) => {
            return Err(Box::new(refusal(
                StatusCode::REQUEST_TIMEOUT,
                "timeout",
                "the request took too long to arrive",
            )));
        }
    };
    Ok((parts, bytes))
}

/// Looks whether a body can be a message at all; `None` where only `rmcp` can tell.
fn look(bytes: &[u8]) -> Result<Option<Message<'_>>, Refused> {
    let refuse =
        |code, message: &str| Box::new(rpc_refusal(StatusCode::BAD_REQUEST, code, message));
    match bytes.trim_ascii_start().first() {
        Some(b'[') => return Err(refuse(-32600, "batches are not part of the protocol")),
        Some(b'{') => {}
        Some(_) | None => return Err(refuse(-32700, "not a JSON object")),
    }
    match repertoire_core::json::from_slice::<Message<'_>>(bytes) {
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

/// The room a request takes, from its arrival to the last byte of its answer.
struct Slot {
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    fn new(shared: &Arc<Shared>, permit: OwnedSemaphorePermit) -> Self {
        shared.engine.metrics.in_flight.inc();
        Self {
            shared: shared.clone(),
            _permit: permit,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.engine.metrics.in_flight.dec();
    }
}

/// What a stream that lasts is allowed by: looked at again every second.
struct Watched {
    shared: Arc<Shared>,
    headers: HeaderMap,
    timer: Interval,
}

impl Watched {
    fn new(shared: &Arc<Shared>, headers: &HeaderMap) -> Self {
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

    /// Whether the token has been revoked, or has expired.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.poll_tick(context).is_ready() {
            if self.shared.options.auth.caller(&self.headers).is_none() {
                return true;
            }
        }
        false
    }
}

/// How much of a body is given away at a time: the rest waits for whoever reads it.
const PIECE: usize = 64 * 1024;

/// A body that holds its request's room until it is sent.
struct Tracked {
    body: Body,
    rest: Bytes,
    watched: Option<Watched>,
    _slot: Option<Slot>,
}

impl Tracked {
    fn new(body: Body, slot: Option<Slot>, watched: Option<Watched>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            watched,
            _slot: slot,
        }
    }
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(watched) = &mut self.watched
            && watched.is_over(context)
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
        let piece = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        // The upper bound first: the lower one may not pass it, not even in between.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}
