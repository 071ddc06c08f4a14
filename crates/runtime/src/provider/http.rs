//! The HTTP client for providers: no redirects, bounded responses, and no URL in an error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use rig_core::{
    http_client::{
        self as wire, BoxedStream, HttpClientExt, LazyBody, MultipartForm, Request, Response,
        StreamingResponse,
    },
    wasm_compat::WasmCompatSend,
};

use crate::error::{Error, Result};

/// The maximum bytes of a response.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// The connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct ProviderHttpClient(reqwest::Client);

impl ProviderHttpClient {
    pub(super) fn new(deadline: Duration) -> Result<Self> {
        // Fails if a provider is already installed, which would be the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(deadline))
            .read_timeout(deadline)
            .user_agent(concat!("repertoire/", env!("CARGO_PKG_VERSION")))
            .build()
            .map(Self)
            .map_err(|error| Error::Model(format!("no connection can be made: {error}")))
    }

    fn build_request(&self, parts: ::http::request::Parts, body: Bytes) -> reqwest::RequestBuilder {
        let mut headers = parts.headers;
        for name in ["authorization", "x-api-key", "api-key"] {
            if let Some(value) = headers.get_mut(name) {
                value.set_sensitive(true);
            }
        }
        self.0
            .request(parts.method, parts.uri.to_string())
            .headers(headers)
            .body(body)
    }
}

pub(super) fn is_timeout(error: &wire::Error) -> bool {
    match error {
        wire::Error::Instance(inner) => inner
            .downcast_ref::<reqwest::Error>()
            .is_some_and(reqwest::Error::is_timeout),
        _ => false,
    }
}

fn transport_error(error: reqwest::Error) -> wire::Error {
    if !error.is_connect() || error.is_timeout() {
        return wire::Error::instance(error.without_url());
    }
    // Report host, port and cause only, because the rest of the URL may hold a secret.
    let url = error.url();
    let host = url.and_then(reqwest::Url::host_str).unwrap_or("the server");
    let port = url.and_then(reqwest::Url::port_or_known_default);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let why = format!("{host}{port} cannot be reached: {cause}");
    wire::Error::instance(std::io::Error::new(std::io::ErrorKind::NotConnected, why))
}

/// Whether the connection failed, so that nothing was sent.
pub(super) fn is_unreachable(error: &wire::Error) -> bool {
    match error {
        wire::Error::Instance(inner) => inner
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::NotConnected),
        _ => false,
    }
}

fn response_builder(response: &reqwest::Response) -> ::http::response::Builder {
    let mut builder = Response::builder().status(response.status());
    if let Some(headers) = builder.headers_mut() {
        *headers = response.headers().clone();
    }
    builder
}

#[allow(clippy::result_large_err, reason = "the error is the trait's")]
fn limit_body(response: reqwest::Response) -> impl Stream<Item = wire::Result<Bytes>> + Send {
    let mut left = MAX_ANSWER;
    response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(transport_error)?;
        let large = || wire::Error::instance(std::io::Error::other("the answer is too large"));
        left = left.checked_sub(chunk.len()).ok_or_else(large)?;
        Ok(chunk)
    })
}

impl HttpClientExt for ProviderHttpClient {
    fn send<T, U>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = wire::Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        T: Into<Bytes> + WasmCompatSend,
        U: From<Bytes> + WasmCompatSend + 'static,
    {
        let (parts, body) = request.map(Into::<Bytes>::into).into_parts();
        let request = self.build_request(parts, body);
        async move {
            let response = request.send().await.map_err(transport_error)?;
            let builder = response_builder(&response);
            let mut chunks = Box::pin(limit_body(response));
            let body: LazyBody<U> = Box::pin(async move {
                let mut all = BytesMut::new();
                while let Some(chunk) = chunks.next().await {
                    all.extend_from_slice(&chunk?);
                }
                repertoire_core::json::check_reserved_key(&all).map_err(wire::Error::instance)?;
                Ok(U::from(all.freeze()))
            });
            builder.body(body).map_err(wire::Error::Protocol)
        }
    }

    fn send_multipart<U>(
        &self,
        _: Request<MultipartForm>,
    ) -> impl Future<Output = wire::Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
    where
        U: From<Bytes> + WasmCompatSend + 'static,
    {
        let refused = std::io::Error::other("files are not sent");
        std::future::ready(Err(wire::Error::instance(refused)))
    }

    fn send_streaming<T>(
        &self,
        request: Request<T>,
    ) -> impl Future<Output = wire::Result<StreamingResponse>> + WasmCompatSend
    where
        T: Into<Bytes> + WasmCompatSend,
    {
        let (parts, body) = request.map(Into::<Bytes>::into).into_parts();
        let request = self.build_request(parts, body);
        async move {
            let response = request.send().await.map_err(transport_error)?;
            let builder = response_builder(&response);
            let stream: BoxedStream = Box::pin(limit_body(response));
            builder.body(stream).map_err(wire::Error::Protocol)
        }
    }
}
