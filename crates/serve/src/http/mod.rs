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
mod page;
mod routes;
mod tracked_body;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

pub use access_log::AccessLog;
pub(crate) use auth::Surface;
pub use auth::{Auth, OwnUser};
pub(crate) use guard::error_response;
pub use host_check::AllowedHosts;
pub(crate) use routes::declared_routes;

use crate::{
    error::{Error, ListenProblem, Result},
    peer_limits::{ConnectionLimits, ConnectionSlot, ConnectionTable, PeerBudget, PeerKey},
    peer_owner::PeerOwner,
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
    /// The maximum number of connections. One peer gets at most three quarters of them.
    pub max_connections: usize,
    /// The maximum number of connections that have not sent a complete request. The oldest ones are
    /// closed for new ones.
    pub max_pending: usize,
    /// The maximum number of bytes of requests and responses that are kept in memory. One peer gets
    /// at most a quarter of them.
    pub max_buffered: usize,
    /// The maximum number of sessions of hosts with an older revision, and of subscriptions of
    /// hosts with the newest.
    pub max_sessions: usize,
    /// The time limit for receiving a request.
    pub request_timeout: Duration,
    /// The time limit from the start of a connection to its first complete request.
    pub first_request_timeout: Duration,
    /// The time limit for sending a response that is not a stream.
    pub response_timeout: Duration,
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
            max_pending: 256,
            max_buffered: 256 * 1024 * 1024,
            max_sessions: 1024,
            request_timeout: Duration::from_secs(30),
            first_request_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_mins(1),
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
    /// Who owns each session.
    session_owners: Mutex<HashMap<String, SessionOwner>>,
    /// Concurrent requests.
    requests: Arc<PeerBudget>,
    /// Subscriptions; counted separately, because they are long-lived.
    subscriptions: Arc<PeerBudget>,
    /// Bytes of requests and responses in memory.
    buffered: Arc<PeerBudget>,
    /// One permit for each large answer that is being built.
    large_answers: Semaphore,
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
            requests: PeerBudget::new(options.max_requests, share(options.max_requests)),
            subscriptions: PeerBudget::new(options.max_sessions, share(options.max_sessions)),
            large_answers: Semaphore::new(2),
            buffered: PeerBudget::new(options.max_buffered, options.max_buffered / 4),
            streams: CancellationToken::new(),
            service,
            options,
        });
        let routers = routes::Routers::new(&shared);
        let connections = ConnectionTable::new(ConnectionLimits {
            total: shared.options.max_connections,
            per_peer: share(shared.options.max_connections),
            pending: shared.options.max_pending,
        });
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
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely out of file descriptors: wait until others are closed.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            configure_stream(&stream);
            let owner = PeerOwner::of_connection(&stream);
            let slot = match connections.add(PeerKey::new(peer, owner)) {
                Ok(slot) => slot,
                Err(refusal) => {
                    tracing::warn!(%peer, ?refusal, "a connection was refused");
                    continue;
                }
            };
            let routers = routers.clone();
            let caller = PeerConnection {
                owner,
                slot: slot.clone(),
            };
            let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(caller.clone());
                if page::wants_page(&request) {
                    *request.uri_mut() = hyper::Uri::from_static("/");
                }
                let router = routers.choose(request.headers()).clone();
                hyper::service::Service::call(&TowerToHyperService::new(router), request)
            });
            let (shared, builder) = (shared.clone(), builder.clone());
            let watcher = graceful.watcher();
            tokio::spawn(async move {
                shared.service.metrics.connections.inc();
                let io = TokioIo::new(stream);
                let connection = builder.serve_connection_with_upgrades(io, service);
                let first_request = async {
                    tokio::time::sleep(shared.options.first_request_timeout).await;
                    if !slot.is_pending() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    // A connection closed by the peer is not an error.
                    _ = watcher.watch(connection.into_owned()) => {}
                    () = first_request => {}
                    () = slot.stop_token().cancelled() => {}
                }
                shared.service.metrics.connections.dec();
            });
        }
        drop(self.listener);
        shared.service.shut_down();
        let grace = shared.options.shutdown_grace;
        let finished = async {
            shared.requests.wait_unused().await;
            shared.subscriptions.wait_unused().await;
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

/// What one peer may have of a limit: three quarters, so that others are served too.
fn share(limit: usize) -> usize {
    limit.div_ceil(4) * 3
}

/// Who opened a session.
#[derive(Debug)]
struct SessionOwner {
    /// The name of the token; `None` is the server's own user.
    token: Option<String>,
    peer: PeerKey,
}

/// The connection of a request.
#[derive(Debug, Clone)]
struct PeerConnection {
    /// The user at the other end.
    owner: PeerOwner,
    slot: ConnectionSlot,
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
