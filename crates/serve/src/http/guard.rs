//! Checks that every request passes before it is answered.
//!
//! From the outside: [`guard_request`] checks host and origin, counts and logs; for requests of web
//! pages the CORS layer answers preflight requests of allowed origins; [`authenticate`] checks the
//! token and the owner of the session. Requests to `/mcp` then pass `mcp_requests`.
//!
//! A web page can make a browser send requests to a local port under a host name that resolves
//! there (DNS rebinding). So host and origin are checked before the rest of the request is read
//! (T28).

use std::{
    sync::{Arc, PoisonError},
    task::Context,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use repertoire_app::Caller;
use serde_json::json;
use tokio::time::Interval;
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{
    HttpState, PeerConnection, SessionOwner, Surface,
    access_log::AccessLogLine,
    auth::AuthRefusal,
    mcp_requests,
    routes::{MCP_PATH, RouteAccess, route_access},
    tracked_body::TrackedBody,
};
use crate::peer_owner::PeerOwner;

/// Creates a JSON error response.
pub(crate) fn error_response(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"code": code, "message": message}}).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The name of the caller's token, noted in the request, and in the response for the access log.
#[derive(Clone)]
pub(super) struct CallerToken(String);

/// The JSON-RPC method of a request, noted in the response for the access log.
#[derive(Clone)]
pub(super) struct RpcMethod(pub(super) String);

/// All checks of a request without an origin, as one layer.
pub(super) async fn guard_program(
    State(shared): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    let answer = |request| authenticate(&shared, request, next);
    guard_request(&shared, request, answer).await
}

/// The outermost checks of a request by a web page.
pub(super) async fn guard_page(
    State(shared): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    guard_request(&shared, request, |request| next.run(request)).await
}

/// The inner checks of a request by a web page.
pub(super) async fn authenticate_request(
    State(shared): State<Arc<HttpState>>,
    request: Request,
    next: Next,
) -> Response {
    authenticate(&shared, request, next).await
}

/// Refuses other hosts and foreign origins; counts and logs every request.
async fn guard_request<F: Future<Output = Response>>(
    shared: &HttpState,
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let log = shared.options.access_log.as_ref();
    let log = log.map(|log| (log, request.uri().path().to_owned()));
    let allowed = shared
        .options
        .allowed_hosts
        .check_host_and_origin(request.uri(), request.headers());
    // The CORS layer answers every such request, so only real preflights reach it.
    let is_stray = method == Method::OPTIONS
        && !request
            .headers()
            .get(header::ORIGIN)
            .is_some_and(|origin| shared.options.allowed_hosts.allows_origin(origin));
    let mut response = match allowed {
        Ok(()) if is_stray => {
            let message = "OPTIONS is answered for allowed web origins only";
            error_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                message,
            )
        }
        Ok(()) => answer(request).await,
        Err(message) => error_response(StatusCode::FORBIDDEN, "forbidden", message),
    };
    // The session has ended, or the preflight is answered; some clients expect status 204.
    let is_empty = match method {
        Method::DELETE => response.status() == StatusCode::ACCEPTED,
        Method::OPTIONS => response.status() == StatusCode::OK,
        _ => false,
    };
    if is_empty {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    let status = response.status().as_u16();
    shared.service.metrics.count_response(status);
    if let Some((log, path)) = log {
        let notes = response.extensions();
        log.log_request(&AccessLogLine {
            at: format!("{:.3}", jiff::Timestamp::now()),
            method: method.as_str(),
            path: &path,
            rpc: notes.get::<RpcMethod>().map(|rpc| rpc.0.as_str()),
            token: notes.get::<CallerToken>().map(|token| token.0.as_str()),
            status,
            micros: start.elapsed().as_micros(),
        });
    }
    response
}

/// Creates the layer that lets pages of allowed web origins send requests.
pub(super) fn cors_layer(shared: &Arc<HttpState>) -> CorsLayer {
    let shared = shared.clone();
    let is_allowed = move |origin: &HeaderValue, _: &axum::http::request::Parts| {
        shared.options.allowed_hosts.allows_origin(origin)
    };
    let session = HeaderName::from_static("mcp-session-id");
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers([
            header::AUTHORIZATION,
            header::CONTENT_TYPE,
            HeaderName::from_static("last-event-id"),
            HeaderName::from_static("mcp-method"),
            HeaderName::from_static("mcp-name"),
            HeaderName::from_static("mcp-protocol-version"),
            session.clone(),
        ])
        .expose_headers([session])
        .max_age(Duration::from_mins(10))
}

/// Finds out who the caller is, and refuses those that may not use the route, and sessions of others.
async fn authenticate(shared: &Arc<HttpState>, mut request: Request, next: Next) -> Response {
    let access = route_access(request.uri().path());
    let Some(connection) = request.extensions().get::<PeerConnection>().cloned() else {
        // Every connection is known; without one, nothing is allowed.
        return unauthorized(AuthRefusal::UnknownUser);
    };
    let caller =
        shared
            .options
            .auth
            .authenticate(Surface::Http, connection.owner, request.headers());
    let caller = match (caller, access) {
        (Ok(caller), _) => {
            // Others stay pending, and make room for those who are allowed.
            if request.method() != Method::POST {
                connection.slot.mark_active();
            }
            caller
        }
        (Err(_), RouteAccess::Public) => Caller::without_permissions(),
        (Err(refusal), _) => return unauthorized(refusal),
    };
    let allowed = match access {
        RouteAccess::Public => Ok(()),
        RouteAccess::Needs(permission) => caller.require(permission),
        RouteAccess::NeedsForAll(permission) => caller
            .require(permission)
            .and_then(|()| caller.require_all_skills()),
    };
    if let Err(error) = allowed {
        return error_response(StatusCode::FORBIDDEN, "forbidden", &error.to_string());
    }
    request.extensions_mut().insert(caller.clone());
    let Some(token) = caller.token_name().map(str::to_owned) else {
        let response = answer_request(shared, request, next).await;
        record_session_owner(shared, &response, &connection, None);
        return response;
    };
    let mut response = if owns_session(shared, request.headers(), &token) {
        // A stream may stay open after its token was revoked.
        let is_stream = request.method() != Method::POST;
        let watch = is_stream.then(|| TokenWatch::new(shared, &connection, request.headers()));
        let response = answer_request(shared, request, next).await;
        match watch {
            None => response,
            watch => response.map(|body| Body::new(TrackedBody::new(body, None, watch))),
        }
    } else {
        let message = "there is no such session";
        error_response(StatusCode::NOT_FOUND, "not_found", message)
    };
    record_session_owner(shared, &response, &connection, Some(&token));
    response.extensions_mut().insert(CallerToken(token));
    response
}

async fn answer_request(shared: &Arc<HttpState>, request: Request, next: Next) -> Response {
    if request.uri().path() == MCP_PATH {
        mcp_requests::handle_request(shared, request, next).await
    } else {
        next.run(request).await
    }
}

fn unauthorized(refusal: AuthRefusal) -> Response {
    let mut response = error_response(StatusCode::UNAUTHORIZED, "unauthorized", refusal.message());
    let ask = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, ask);
    response
}

/// Records the token that owns a new session; `None` is the server's own user.
fn record_session_owner(
    shared: &HttpState,
    response: &Response,
    connection: &PeerConnection,
    token: Option<&str>,
) {
    let session = response.headers().get("mcp-session-id");
    let Some(Ok(session)) = session.map(HeaderValue::to_str) else {
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
    owners
        .entry(session.to_owned())
        .or_insert_with(|| SessionOwner {
            token: token.map(str::to_owned),
            peer: connection.slot.peer(),
        });
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
        .is_none_or(|owner| owner.token.as_deref() == Some(token))
}

/// Checks the token of a long-lived stream again every second.
pub(super) struct TokenWatch {
    shared: Arc<HttpState>,
    owner: PeerOwner,
    headers: HeaderMap,
    timer: Interval,
}

impl TokenWatch {
    pub(super) fn new(
        shared: &Arc<HttpState>,
        connection: &PeerConnection,
        headers: &HeaderMap,
    ) -> Self {
        let mut kept = HeaderMap::new();
        if let Some(token) = headers.get(header::AUTHORIZATION) {
            kept.insert(header::AUTHORIZATION, token.clone());
        }
        Self {
            shared: shared.clone(),
            owner: connection.owner,
            headers: kept,
            timer: tokio::time::interval(Duration::from_secs(1)),
        }
    }

    /// Whether the token has been revoked or has expired.
    pub(super) fn is_revoked(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.poll_tick(context).is_ready() {
            let auth = &self.shared.options.auth;
            if auth
                .authenticate(Surface::Http, self.owner, &self.headers)
                .is_err()
            {
                return true;
            }
        }
        false
    }
}
