//! The HTTP server: `/mcp`, `/healthz` and `/metrics` on one port.
//!
//! `guard` checks the host, the origin and the token of a request before its body is read;
//! `mcp_requests` bounds the load and answers frequent requests itself.
//! Shutdown stops accepting connections, finishes accepted requests, then closes open-ended
//! streams.

mod access_log;
mod auth;
mod guard;
pub(crate) mod host_check;
mod mcp_requests;
mod tracked_body;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    middleware,
    response::IntoResponse,
    routing::get,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::json;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

pub use access_log::AccessLog;
pub use auth::Auth;
pub(crate) use guard::error_response;
pub use host_check::AllowedHosts;

use crate::{
    error::{Error, ListenProblem, Result},
    mcp::McpConnection,
    service::SkillService,
};

/// Access rules and limits of the HTTP server.
#[derive(Debug)]
pub struct HttpOptions {
    /// The accepted host names and web origins.
    pub allowed_hosts: AllowedHosts,
    /// Which callers are allowed.
    pub auth: Arc<Auth>,
    /// The maximum size of a request body in bytes.
    pub max_body: usize,
    /// The maximum number of concurrent requests.
    pub max_requests: usize,
    /// The maximum number of connections.
    pub max_connections: usize,
    /// The maximum number of sessions of hosts with an older revision, and of subscriptions of
    /// hosts with the newest.
    pub max_sessions: usize,
    /// The time limit for receiving a request.
    pub request_timeout: Duration,
    /// The time limit for accepted requests after shutdown begins.
    pub shutdown_grace: Duration,
    /// The access log, if any.
    pub access_log: Option<AccessLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            allowed_hosts: AllowedHosts::default(),
            auth: Arc::new(Auth::Open),
            max_body: 1024 * 1024,
            max_requests: 512,
            max_connections: 1024,
            max_sessions: 1024,
            request_timeout: Duration::from_secs(30),
            shutdown_grace: Duration::from_secs(10),
            access_log: None,
        }
    }
}

/// State shared by all requests.
#[derive(Debug)]
struct HttpState {
    service: Arc<SkillService>,
    options: HttpOptions,
    sessions: Arc<LocalSessionManager>,
    /// The token name that owns each session, where tokens are required.
    session_owners: Mutex<HashMap<String, String>>,
    /// One permit for each concurrent request.
    request_permits: Arc<Semaphore>,
    /// One permit for each subscription; separate, because subscriptions are long-lived.
    subscription_permits: Arc<Semaphore>,
    /// Closes open-ended streams.
    streams: CancellationToken,
}

/// A bound port that does not accept connections yet.
#[derive(Debug)]
pub struct HttpListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpListener {
    /// Binds a port; 0 selects a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let refuse = |error: std::io::Error| {
            let reason = match error.kind() {
                std::io::ErrorKind::AddrInUse => ListenProblem::InUse,
                std::io::ErrorKind::PermissionDenied => ListenProblem::NotPermitted,
                _ => ListenProblem::Other(error.to_string()),
            };
            Error::Listen { address, reason }
        };
        let listener = TcpListener::bind(address).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address })
    }

    /// The bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves requests until the given future completes, then finishes accepted requests.
    pub async fn serve_until(
        self,
        service: Arc<SkillService>,
        options: HttpOptions,
        until: impl Future<Output = ()>,
    ) -> Result<()> {
        let shared = Arc::new(HttpState {
            sessions: Arc::default(),
            session_owners: Mutex::default(),
            request_permits: Arc::new(Semaphore::new(options.max_requests)),
            subscription_permits: Arc::new(Semaphore::new(options.max_sessions)),
            streams: CancellationToken::new(),
            service,
            options,
        });
        let app = build_router(&shared);
        let connections = Arc::new(Semaphore::new(shared.options.max_connections));
        let graceful = GracefulShutdown::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.options.request_timeout);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(20)))
            .keep_alive_timeout(Duration::from_secs(10))
            .max_concurrent_streams(128);
        tokio::pin!(until);
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = &mut until => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Most likely out of file descriptors: wait until others are closed.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(slot) = connections.clone().try_acquire_owned() else {
                tracing::warn!("too many connections: one was refused");
                continue;
            };
            configure_stream(&stream);
            let service = TowerToHyperService::new(app.clone());
            let (shared, builder) = (shared.clone(), builder.clone());
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                shared.service.metrics.connections.inc();
                // A connection that sends nothing within the time limit is closed.
                let first = tokio::time::timeout(shared.options.request_timeout, stream.readable());
                if first.await.is_ok_and(|ready| ready.is_ok()) {
                    let io = TokioIo::new(stream);
                    let connection = builder.serve_connection_with_upgrades(io, service);
                    // A connection closed by the peer is not an error.
                    let _ = watcher.watch(connection.into_owned()).await;
                }
                shared.service.metrics.connections.dec();
                drop(slot);
            });
        }
        drop(self.listener);
        shared.service.shut_down();
        let all = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let grace = shared.options.shutdown_grace;
        let finished = async {
            let _ = shared
                .request_permits
                .acquire_many(all(shared.options.max_requests))
                .await;
            let _ = shared
                .subscription_permits
                .acquire_many(all(shared.options.max_sessions))
                .await;
        };
        if tokio::time::timeout(grace, finished).await.is_err() {
            tracing::warn!("some requests did not finish in time");
        }
        shared.streams.cancel();
        // The remaining connections are idle.
        let _ = tokio::time::timeout(Duration::from_secs(1), graceful.shutdown()).await;
        Ok(())
    }
}

/// Disables Nagle's algorithm, and closes connections whose peer stops reading.
pub(crate) fn configure_stream(stream: &tokio::net::TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    {
        let millis = 60_000;
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
    }
}

fn build_router(shared: &Arc<HttpState>) -> Router {
    let service = shared.service.clone();
    // The guard checks hosts and origins for all paths.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_json_response(true)
        .with_max_request_body_bytes(shared.options.max_body)
        .with_cancellation_token(shared.streams.clone());
    let mcp = StreamableHttpService::new(
        move || Ok(McpConnection::new(service.clone())),
        shared.sessions.clone(),
        config,
    );
    Router::new()
        .route_service("/mcp", mcp)
        // Applies to the route above only.
        .route_layer(middleware::from_fn_with_state(
            shared.clone(),
            mcp_requests::handle_request,
        ))
        .route("/healthz", get(serve_health))
        .route("/metrics", get(serve_metrics))
        .fallback(reject_unknown_path)
        .layer(middleware::from_fn_with_state(
            shared.clone(),
            guard::authenticate,
        ))
        .layer(guard::cors_layer(shared))
        .layer(middleware::from_fn_with_state(
            shared.clone(),
            guard::guard_request,
        ))
        .with_state(shared.clone())
}

async fn serve_health(State(shared): State<Arc<HttpState>>) -> impl IntoResponse {
    let body = |status: &str, skills: Option<usize>| {
        let version = &shared.service.options.identity.version;
        json!({"status": status, "version": version, "skills": skills}).to_string()
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    match shared.service.opened_registry() {
        Some(registry) => (
            StatusCode::OK,
            json,
            body("ok", Some(registry.snapshot().len())),
        ),
        None => (StatusCode::SERVICE_UNAVAILABLE, json, body("opening", None)),
    }
}

async fn serve_metrics(State(shared): State<Arc<HttpState>>) -> impl IntoResponse {
    let snapshot = shared
        .service
        .opened_registry()
        .map(|registry| registry.snapshot());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = shared
        .service
        .metrics
        .render_prometheus(snapshot.as_deref());
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn reject_unknown_path() -> impl IntoResponse {
    guard::error_response(
        StatusCode::NOT_FOUND,
        "not_found",
        "the paths are /mcp, /healthz and /metrics",
    )
}
