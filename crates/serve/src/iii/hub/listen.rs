//! The port of the hub: `/` for workers, `/otel` for telemetry nobody keeps.
//!
//! A request passes the same checks as over HTTP before it becomes a connection (T28): where it
//! says it was sent, which page it comes from, and who sends it.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header},
};
use futures::StreamExt;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use repertoire_registry::store::Access;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::server::create_response_with_body,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{super::client, Hub};
use crate::{
    error::{Error, Result},
    http::{Auth, names::Names, prepare, refusal},
};

/// How long a request may take to become a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// A port that is ours, with nobody answering yet.
#[derive(Debug)]
pub struct HubListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// What stands at a port that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// A bus: an engine, or another hub.
    Bus,
    /// Something else.
    Other,
}

impl HubListener {
    /// Takes a port; 0 takes any that is free.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let listener = match TcpListener::bind(address).await {
            Ok(listener) => listener,
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let message = match look(address).await {
                    Taken::Bus => format!(
                        "ws://{address} is taken by an iii engine or another hub: --join runs as a \
                         worker there, --hub PORT listens elsewhere, --hub off goes without"
                    ),
                    Taken::Other => format!(
                        "{address} is in use: --hub PORT listens elsewhere, --hub off goes without"
                    ),
                };
                return Err(Error::Listen(message));
            }
            Err(error) => return Err(Error::Listen(format!("{address} {error}"))),
        };
        let address = listener.local_addr();
        let address = address.map_err(|error| Error::Listen(error.to_string()))?;
        Ok(Self { listener, address })
    }

    /// The address, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets workers in until the hub stops.
    pub async fn serve(self, hub: Arc<Hub>, names: Names, auth: Arc<Auth>) {
        raise_file_limit();
        let door = Arc::new(Door {
            room: Arc::new(Semaphore::new(hub.options.max_connections)),
            hub,
            names,
            auth,
        });
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = door.hub.stop.cancelled() => return,
            };
            match accepted {
                Ok((stream, _)) => drop(tokio::spawn(door.clone().answer(stream))),
                Err(error) => {
                    // Out of descriptors, most likely: others have to go first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Lets this process have as many connections as the system allows it, not only as many as a
/// shell usually asks for.
fn raise_file_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        // Fewer connections are no reason not to serve.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Finds out what stands at a port that is taken.
async fn look(address: SocketAddr) -> Taken {
    let url = format!("ws://{address}");
    let greeted = client::Client::connect(&url, None);
    match tokio::time::timeout(Duration::from_secs(2), greeted).await {
        Ok(Ok(_)) => Taken::Bus,
        // One that wants a token is one too.
        Ok(Err(error)) if error.to_string().contains("401") => Taken::Bus,
        _ => Taken::Other,
    }
}

/// Everything that requests share.
struct Door {
    hub: Arc<Hub>,
    names: Names,
    auth: Arc<Auth>,
    room: Arc<Semaphore>,
}

impl Door {
    async fn answer(self: Arc<Self>, stream: TcpStream) {
        prepare(&stream);
        let door = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let response = door.open(request);
            async move { Ok::<_, Infallible>(response) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // Whoever never says anything never becomes a connection; hyper gives it up.
        tokio::select! {
            _ = connection => {}
            () = self.hub.stop.cancelled() => {}
        }
    }

    /// Answers a request: with a connection, or with the reason why there is none.
    fn open(self: &Arc<Self>, mut request: Request<Incoming>) -> Response<Body> {
        if let Err(message) = self.names.check(request.uri(), request.headers()) {
            return refusal(StatusCode::FORBIDDEN, "forbidden", message);
        }
        let caller = self.auth.caller(request.headers());
        if caller.is_none_or(|caller| caller.access < Access::Write) {
            let message = "send a token that may write as `Authorization: Bearer …`; `repertoire \
                           token create NAME --write` makes one";
            return refusal(StatusCode::UNAUTHORIZED, "unauthorized", message);
        }
        let path = request.uri().path().to_owned();
        if path != "/" && path != "/otel" {
            let message = "there is / for workers and /otel for telemetry";
            return refusal(StatusCode::NOT_FOUND, "not_found", message);
        }
        let asked = Request::from_parts(request_parts(&request), ());
        let Ok(mut response) = create_response_with_body(&asked, Body::empty) else {
            let message = "this port speaks WebSocket: connect an iii SDK to it";
            return refusal(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message);
        };
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::debug!("too many workers: one was turned away");
            let message = "too many connections at a time";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", message);
        };
        let nodelay = HeaderValue::from_static("tcp-nodelay");
        response.headers_mut().insert("x-iii-capabilities", nodelay);
        let headers = token_of(request.headers());
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
            // A copy, so that hyper's buffer does not stay with every connection.
            let read = parts.read_buf.to_vec();
            drop(parts.read_buf);
            let stream = parts.io.into_inner();
            let limit = hub.options.max_message;
            let config = WebSocketConfig::default()
                .read_buffer_size(8 * 1024)
                .write_buffer_size(16 * 1024)
                .max_message_size(Some(limit))
                .max_frame_size(Some(limit));
            let socket =
                WebSocketStream::from_partially_read(stream, read, Role::Server, Some(config))
                    .await;
            if path == "/" {
                hub.attend(socket, unwelcome(auth, headers)).await;
            } else {
                discard(socket, &hub).await;
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

/// What a connection is allowed by.
fn token_of(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    if let Some(token) = headers.get(header::AUTHORIZATION) {
        kept.insert(header::AUTHORIZATION, token.clone());
    }
    kept
}

/// Ends when a connection is no longer allowed.
async fn unwelcome(auth: Arc<Auth>, headers: HeaderMap) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let caller = auth.caller(&headers);
        if caller.is_none_or(|caller| caller.access < Access::Write) {
            return;
        }
    }
}

/// Takes telemetry and forgets it.
async fn discard(mut socket: WebSocketStream<TcpStream>, hub: &Hub) {
    loop {
        tokio::select! {
            heard = tokio::time::timeout(10 * hub.options.idle, socket.next()) => match heard {
                Ok(Some(Ok(_))) => {}
                _ => return,
            },
            () = hub.stop.cancelled() => return,
        }
    }
}
