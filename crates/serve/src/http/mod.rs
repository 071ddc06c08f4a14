//! One port for everything over HTTP: `/mcp`, `/healthz`, `/metrics`.
//!
//! A request passes `guard` before a byte of its body is read: where it says it was sent, where
//! a browser says it comes from, who sends it, and whether there is room. Shutting down stops to
//! accept, finishes what was accepted, then ends the streams that would go on for ever.

mod access_log;
mod auth;
mod guard;
pub(crate) mod names;

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
pub(crate) use guard::refusal;
pub use names::Names;

use crate::{
    engine::Engine,
    error::{Error, Result},
    mcp::Handlers,
};

/// What is allowed, and how much of it.
#[derive(Debug)]
pub struct HttpOptions {
    /// Where it may be addressed, and which pages may ask.
    pub names: Names,
    /// Who may ask.
    pub auth: Arc<Auth>,
    /// The most bytes of a request.
    pub max_body: usize,
    /// The most requests at a time.
    pub max_requests: usize,
    /// The most connections at a time.
    pub max_connections: usize,
    /// The most sessions of hosts that speak an older revision, and the most subscriptions of
    /// those that speak the newest.
    pub max_sessions: usize,
    /// How long a request may take to arrive.
    pub patience: Duration,
    /// How long accepted requests may take once the server shuts down.
    pub grace: Duration,
    /// Where each request is written down.
    pub access_log: Option<AccessLog>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            names: Names::default(),
            auth: Arc::new(Auth::Open),
            max_body: 1024 * 1024,
            max_requests: 512,
            max_connections: 1024,
            max_sessions: 1024,
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(10),
            access_log: None,
        }
    }
}

/// Everything that requests share.
#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    options: HttpOptions,
    sessions: Arc<LocalSessionManager>,
    /// Whose each session is, where tokens decide who may ask.
    owners: Mutex<HashMap<String, String>>,
    /// One permit for each request that may be answered at a time.
    room: Arc<Semaphore>,
    /// One permit for each subscription: they last, and must not take the room of requests.
    listeners: Arc<Semaphore>,
    /// Ends the streams that would go on for ever.
    streams: CancellationToken,
}

/// A port that is ours, with nobody answering yet.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Takes a port; 0 takes any that is free.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let refuse = |error: std::io::Error| {
            let reason = match error.kind() {
                std::io::ErrorKind::AddrInUse => "is in use: choose another --port".to_owned(),
                std::io::ErrorKind::PermissionDenied => {
                    "may not be used by this user: choose a --port above 1023".to_owned()
                }
                _ => error.to_string(),
            };
            Error::Listen(format!("{address} {reason}"))
        };
        let listener = TcpListener::bind(address).await.map_err(refuse)?;
        let address = listener.local_addr().map_err(refuse)?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the future given is done, then finishes what was accepted.
    pub async fn serve(
        self,
        engine: Arc<Engine>,
        options: HttpOptions,
        until: impl Future<Output = ()>,
    ) -> Result<()> {
        let shared = Arc::new(Shared {
            sessions: Arc::default(),
            owners: Mutex::default(),
            room: Arc::new(Semaphore::new(options.max_requests)),
            listeners: Arc::new(Semaphore::new(options.max_sessions)),
            streams: CancellationToken::new(),
            engine,
            options,
        });
        let app = router(&shared);
        let connections = Arc::new(Semaphore::new(shared.options.max_connections));
        let graceful = GracefulShutdown::new();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.options.patience);
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
                    // Out of descriptors, most likely: others have to go first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(slot) = connections.clone().try_acquire_owned() else {
                tracing::warn!("too many connections: one was turned away");
                continue;
            };
            prepare(&stream);
            let service = TowerToHyperService::new(app.clone());
            let (shared, builder) = (shared.clone(), builder.clone());
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                shared.engine.metrics.connections.inc();
                // Whoever connects has something to say, or goes.
                let first = tokio::time::timeout(shared.options.patience, stream.readable());
                if first.await.is_ok_and(|ready| ready.is_ok()) {
                    let io = TokioIo::new(stream);
                    let connection = builder.serve_connection_with_upgrades(io, service);
                    // A peer that breaks off is its own business.
                    let _ = watcher.watch(connection.into_owned()).await;
                }
                shared.engine.metrics.connections.dec();
                drop(slot);
            });
        }
        drop(self.listener);
        shared.engine.shut_down();
        let all = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let grace = shared.options.grace;
        let finished = async {
            let _ = shared
                .room
                .acquire_many(all(shared.options.max_requests))
                .await;
            let _ = shared
                .listeners
                .acquire_many(all(shared.options.max_sessions))
                .await;
        };
        if tokio::time::timeout(grace, finished).await.is_err() {
            tracing::warn!("some requests did not finish in time");
        }
        shared.streams.cancel();
        // What is left are connections that nobody waits for.
        let _ = tokio::time::timeout(Duration::from_secs(1), graceful.shutdown()).await;
        Ok(())
    }
}

/// Small answers are sent at once, and a peer that takes none of a large one is given up.
pub(crate) fn prepare(stream: &tokio::net::TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    {
        let millis = 60_000;
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
    }
}

fn router(shared: &Arc<Shared>) -> Router {
    let engine = shared.engine.clone();
    // Hosts and origins are the guard's business, for every path alike.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_json_response(true)
        .with_max_request_body_bytes(shared.options.max_body)
        .with_cancellation_token(shared.streams.clone());
    let mcp = StreamableHttpService::new(
        move || Ok(Handlers::new(engine.clone())),
        shared.sessions.clone(),
        config,
    );
    Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .route_service("/mcp", mcp)
        .fallback(unknown)
        .layer(middleware::from_fn_with_state(shared.clone(), guard::pass))
        .with_state(shared.clone())
}

async fn health(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let body = |status: &str, skills: Option<usize>| {
        let version = &shared.engine.options.identity.version;
        json!({"status": status, "version": version, "skills": skills}).to_string()
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    match shared.engine.opened() {
        Some(registry) => (
            StatusCode::OK,
            json,
            body("ok", Some(registry.snapshot().len())),
        ),
        None => (StatusCode::SERVICE_UNAVAILABLE, json, body("opening", None)),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let snapshot = shared.engine.opened().map(|registry| registry.snapshot());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = shared.engine.metrics.render(snapshot.as_deref());
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn unknown() -> impl IntoResponse {
    guard::refusal(
        StatusCode::NOT_FOUND,
        "not_found",
        "there is /mcp, /healthz and /metrics",
    )
}
