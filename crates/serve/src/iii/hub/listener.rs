//! The port of the hub: `/` for workers, `/otel` for telemetry, which is discarded.
//!
//! Before the upgrade a request passes the same checks as over HTTP (T28): its host, its origin
//! and its token.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header},
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use repertoire_app::Caller;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{
    super::bus_client,
    Hub,
    incoming::{MeteredStream, next_message},
};
use crate::{
    error::{Error, ListenProblem, Result},
    http::{Auth, Surface, configure_stream, error_response, host_check::AllowedHosts},
    peer_limits::{ConnectionLimits, ConnectionSlot, ConnectionTable, PeerKey},
    peer_owner::PeerOwner,
};

/// How many connections may wait for their request; the oldest ones make room for new ones.
const MAX_PENDING: usize = 256;
/// The most bytes of one message of telemetry.
const MAX_TELEMETRY_BYTES: usize = 1024 * 1024;
/// How long a request may take to become a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound port that does not accept connections yet.
#[derive(Debug)]
pub struct HubListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The kind of server that already uses a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortOccupant {
    /// A bus: an engine, or another hub.
    Bus,
    /// Something else.
    Other,
}

impl HubListener {
    /// Binds a port; 0 binds any free port.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let other = |error: &std::io::Error| Error::Listen {
            address,
            reason: ListenProblem::Other(error.to_string()),
        };
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let reason = match probe_port(address).await {
                    PortOccupant::Bus => ListenProblem::UsedByBus,
                    PortOccupant::Other => ListenProblem::HubPortInUse,
                };
                return Err(Error::Listen { address, reason });
            }
            Err(error) => return Err(other(&error)),
        };
        let address = listener.local_addr().map_err(|error| other(&error))?;
        Ok(Self { listener, address })
    }

    /// Returns the bound address, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts workers until the hub stops.
    pub async fn serve(self, hub: Arc<Hub>, names: AllowedHosts, auth: Arc<Auth>) {
        raise_file_limit();
        let most = hub.options.max_connections;
        let gate = Arc::new(AcceptGate {
            connections: ConnectionTable::new(ConnectionLimits {
                total: most,
                per_peer: most.div_ceil(4) * 3,
                pending: MAX_PENDING,
            }),
            hub,
            names,
            auth,
        });
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = gate.hub.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let owner = PeerOwner::of_connection(&stream);
                    match gate.connections.add(PeerKey::new(peer, owner)) {
                        Ok(slot) => {
                            drop(tokio::spawn(gate.clone().serve_stream(stream, owner, slot)));
                        }
                        Err(refusal) => tracing::warn!(%peer, ?refusal, "a connection was refused"),
                    }
                }
                Err(error) => {
                    // Most likely out of descriptors: wait until other connections close.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Raises the limit of open files to the maximum that the system allows, because the default of a
/// shell is lower.
fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // With a lower limit the hub still works, with fewer connections.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Finds out which kind of server uses a port.
async fn probe_port(address: SocketAddr) -> PortOccupant {
    let url = format!("ws://{address}");
    let greeted = bus_client::BusClient::connect(&url, None);
    match tokio::time::timeout(Duration::from_secs(2), greeted).await {
        Ok(Ok(_)) => PortOccupant::Bus,
        // A server that asks for a token is a bus too.
        Ok(Err(error)) if error.to_string().contains("401") => PortOccupant::Bus,
        _ => PortOccupant::Other,
    }
}

/// The state that all requests share.
struct AcceptGate {
    hub: Arc<Hub>,
    names: AllowedHosts,
    auth: Arc<Auth>,
    connections: Arc<ConnectionTable>,
}

impl AcceptGate {
    async fn serve_stream(
        self: Arc<Self>,
        stream: TcpStream,
        owner: PeerOwner,
        slot: ConnectionSlot,
    ) {
        configure_stream(&stream);
        let gate = self.clone();
        let stop = slot.stop_token().clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let response = gate.upgrade_request(request, owner, &slot);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // hyper closes connections that send no request in time.
        tokio::select! {
            _ = connection => {}
            () = stop.cancelled() => {}
            () = self.hub.stop.cancelled() => {}
        }
    }

    /// Answers a request with an upgrade, or with the reason for the refusal.
    fn upgrade_request(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        owner: PeerOwner,
        slot: &ConnectionSlot,
    ) -> Response<Body> {
        if let Err(message) = self
            .names
            .check_host_and_origin(request.uri(), request.headers())
        {
            return error_response(StatusCode::FORBIDDEN, "forbidden", message);
        }
        let caller = match self
            .auth
            .authenticate(Surface::Hub, owner, request.headers())
        {
            Ok(caller) => caller,
            Err(refusal) => {
                let message = refusal.message();
                return error_response(StatusCode::UNAUTHORIZED, "unauthorized", message);
            }
        };
        // Functions of the bus concern all skills, the state and the functions of all workers.
        if let Err(error) = caller.require_unrestricted() {
            return error_response(StatusCode::FORBIDDEN, "forbidden", &error.to_string());
        }
        let path = request.uri().path().to_owned();
        if path != "/" && path != "/otel" {
            let message = "use / for workers and /otel for telemetry";
            return error_response(StatusCode::NOT_FOUND, "not_found", message);
        }
        let asked = Request::from_parts(request_parts(&request), ());
        let Ok(mut response) = create_response_with_body(&asked, Body::empty) else {
            let message = "this port speaks WebSocket: connect an iii SDK to it";
            return error_response(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message);
        };
        slot.mark_active();
        let room = slot.clone();
        let nodelay = HeaderValue::from_static("tcp-nodelay");
        response.headers_mut().insert("x-iii-capabilities", nodelay);
        let version = HeaderValue::from_static(env!("CARGO_PKG_VERSION"));
        response
            .headers_mut()
            .insert(bus_client::HUB_HEADER, version);
        let headers = token_header(request.headers());
        let auth = self.auth.clone();
        let upgrade = hyper::upgrade::on(&mut request);
        let hub = self.hub.clone();
        tokio::spawn(async move {
            let Ok(upgraded) = upgrade.await else {
                return;
            };
            let Ok(parts) = upgraded.downcast::<TokioIo<TcpStream>>() else {
                return;
            };
            // A copy, so that hyper's buffer is freed.
            let read = parts.read_buf.to_vec();
            drop(parts.read_buf);
            let stream = parts.io.into_inner();
            let limit = if path == "/" {
                hub.options.max_message
            } else {
                MAX_TELEMETRY_BYTES
            };
            let stream = MeteredStream::new(stream, &hub.incoming, room.peer());
            let config = WebSocketConfig::default()
                .read_buffer_size(8 * 1024)
                .write_buffer_size(16 * 1024)
                .max_message_size(Some(limit))
                .max_frame_size(Some(limit));
            let socket =
                WebSocketStream::from_partially_read(stream, read, Role::Server, Some(config))
                    .await;
            let revoked = wait_revoked(auth, owner, headers, caller.clone());
            if path == "/" {
                hub.serve_connection(socket, caller, revoked).await;
            } else {
                tokio::select! {
                    () = discard_telemetry(socket, &hub) => {}
                    () = revoked => {}
                }
            }
            drop(room);
        });
        response
    }
}

fn request_parts(request: &Request<Incoming>) -> axum::http::request::Parts {
    let mut asked = Request::new(());
    *asked.method_mut() = request.method().clone();
    *asked.uri_mut() = request.uri().clone();
    *asked.version_mut() = request.version();
    *asked.headers_mut() = request.headers().clone();
    asked.headers_mut().remove(header::AUTHORIZATION);
    asked.into_parts().0
}

/// Returns the headers that authorise a connection.
fn token_header(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    if let Some(token) = headers.get(header::AUTHORIZATION) {
        kept.insert(header::AUTHORIZATION, token.clone());
    }
    kept
}

/// Returns when a connection is no longer authorised, or no longer in the same way.
async fn wait_revoked(auth: Arc<Auth>, owner: PeerOwner, headers: HeaderMap, caller: Caller) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        if auth.authenticate(Surface::Hub, owner, &headers) != Ok(caller.clone()) {
            return;
        }
    }
}

/// Reads telemetry and discards it.
async fn discard_telemetry(mut socket: WebSocketStream<MeteredStream<TcpStream>>, hub: &Hub) {
    let meter = socket.get_ref().meter().clone();
    let idle = 10 * hub.options.idle_timeout;
    loop {
        tokio::select! {
            heard = tokio::time::timeout(idle, next_message(&mut socket, &meter)) => match heard {
                Ok(Some(Ok(_))) => {}
                _ => return,
            },
            () = meter.evicted().cancelled() => return,
            () = hub.stop.cancelled() => return,
        }
    }
}
