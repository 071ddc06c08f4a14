//! GET requests for strangers' files: bounded, slow senders ended, redirects checked.
//!
//! Invariants: a redirect never leads from the public internet to a private network, never from
//! `https` to `http`, and takes no token to another origin. A body that is larger than its limit is
//! given up before it is in memory, and so is one that only drips.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::StreamExt as _;
use reqwest::{
    Client, Response, StatusCode,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, IF_NONE_MATCH, LOCATION,
        WWW_AUTHENTICATE,
    },
    redirect::Policy,
};
use tokio::time::Instant;
use url::{Host, Url};

use crate::{
    address::{PinnedResolver, Reach, classify_reach, is_public},
    error::{Error, Result},
    limits::FetchLimits,
    source::SourceReach,
};

/// The most redirects of one request.
const MAX_REDIRECTS: usize = 5;
/// How long a connection may take to be made.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// How long a server may take to begin an answer.
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct WebRequest {
    pub(crate) url: Url,
    /// The media types that are wanted.
    pub(crate) accept: Option<String>,
    /// A token or login, for the origin of the URL only.
    pub(crate) authorization: Option<HeaderValue>,
    /// Only if the content has another tag than this.
    pub(crate) if_none_match: Option<String>,
    /// The most bytes of the body.
    pub(crate) limit: u64,
}

impl WebRequest {
    pub(crate) fn get(url: Url, limit: u64) -> Self {
        Self {
            url,
            accept: None,
            authorization: None,
            if_none_match: None,
            limit,
        }
    }
}

/// An answer with its complete body.
#[derive(Debug)]
pub(crate) struct WebAnswer {
    /// Where it came from in the end.
    pub(crate) url: Url,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl WebAnswer {
    fn header(&self, name: &reqwest::header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn challenge(&self) -> Option<&str> {
        self.header(&WWW_AUTHENTICATE)
    }

    /// Returns the body of a success, or the error of anything else.
    pub(crate) fn into_body(self) -> Result<Bytes> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        Err(self.status_error())
    }

    /// The error of an answer that is no success.
    pub(crate) fn status_error(&self) -> Error {
        let address = shown(&self.url);
        match self.status {
            StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound {
                what: "page",
                name: address,
            },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Unauthorized {
                address,
                reason: format!("refused the request ({})", self.status),
            },
            status => Error::Unreachable {
                address,
                reason: format!("answered with {status}"),
            },
        }
    }
}

/// Sends requests to the places that one source may lead to.
#[derive(Debug, Clone)]
pub(crate) struct WebClient {
    public: Client,
    private: Client,
    reach: SourceReach,
    limits: FetchLimits,
    /// Where the source is; what it names is held to the rules for redirects from there.
    start: Option<Url>,
    /// How many bytes may still come, and until when.
    budget: Arc<SourceBudget>,
}

/// What all requests of one source may cost together.
#[derive(Debug)]
struct SourceBudget {
    bytes: AtomicU64,
    until: Instant,
}

impl WebClient {
    pub(crate) fn new(reach: SourceReach, limits: FetchLimits) -> Result<Self> {
        // The embedding program may have installed a provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let build = |reach| {
            Client::builder()
                .redirect(Policy::none())
                .no_proxy()
                .connect_timeout(CONNECT_TIMEOUT)
                .dns_resolver(Arc::new(PinnedResolver::new(reach)))
                .user_agent(concat!("repertoire/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|error| Error::unreachable("https", error.to_string()))
        };
        Ok(Self {
            public: build(Reach::Public)?,
            private: build(Reach::Private)?,
            reach,
            limits,
            start: None,
            budget: Arc::new(SourceBudget {
                bytes: AtomicU64::new(limits.total_bytes),
                until: Instant::now() + limits.time.saturating_mul(2),
            }),
        })
    }

    /// Holds every later request to the rules for redirects from this address.
    #[must_use]
    pub(crate) fn starting_at(self, url: &Url) -> Self {
        Self {
            start: Some(url.clone()),
            ..self
        }
    }

    pub(crate) fn limits(&self) -> &FetchLimits {
        &self.limits
    }

    /// Whether names on private networks are allowed.
    pub(crate) fn allows_private_names(&self) -> bool {
        self.reach == SourceReach::PrivateNames
    }

    /// Decides on which network a URL may be, and refuses what the source may not lead to.
    pub(crate) async fn reach_of(&self, url: &Url) -> Result<Reach> {
        let refuse = |reason: &str| Err(Error::refused(&shown(url), reason));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("only http:// and https:// are followed");
        }
        let literal = |ip: IpAddr| match (is_public(ip), self.reach) {
            (true, _) => Ok(Reach::Public),
            (false, SourceReach::PublicOnly) => refuse(PRIVATE_ADDRESS),
            (false, SourceReach::PrivateAddresses | SourceReach::PrivateNames) => {
                Ok(Reach::Private)
            }
        };
        match url.host() {
            None => refuse("names no host"),
            Some(Host::Ipv4(ip)) => literal(ip.into()),
            Some(Host::Ipv6(ip)) => literal(ip.into()),
            Some(Host::Domain(name)) if name == "localhost" || name.ends_with(".localhost") => {
                literal(std::net::Ipv4Addr::LOCALHOST.into())
            }
            Some(Host::Domain(name)) if self.reach == SourceReach::PrivateNames => {
                let port = url.port_or_known_default().unwrap_or(443);
                let found = tokio::net::lookup_host((name, port)).await;
                let found = found.map_err(|error| {
                    Error::unreachable(&shown(url), format!("cannot be resolved: {error}"))
                })?;
                Ok(classify_reach(found.map(|address| address.ip())))
            }
            // The resolver refuses private addresses.
            Some(Host::Domain(_)) => Ok(Reach::Public),
        }
    }

    /// Sends a GET request, follows its redirects and reads the whole answer.
    pub(crate) async fn get(&self, request: WebRequest) -> Result<WebAnswer> {
        let address = shown(&request.url);
        let deadline = (Instant::now() + self.limits.time).min(self.budget.until);
        let answer = tokio::time::timeout_at(deadline, self.follow(request)).await;
        answer.unwrap_or_else(|_| Err(Error::unreachable(&address, "did not answer in time")))
    }

    /// Returns where a URL leads to, without its body; for programs that follow no redirects of
    /// their own.
    pub(crate) async fn resolve_redirects(&self, url: Url) -> Result<(Url, StatusCode)> {
        let address = shown(&url);
        let request = WebRequest::get(url, 0);
        let sent = tokio::time::timeout(self.limits.stall.max(CONNECT_TIMEOUT), self.send(request));
        let late = |_| Err(Error::unreachable(&address, "did not answer in time"));
        let (url, response) = sent.await.unwrap_or_else(late)?;
        Ok((url, response.status()))
    }

    async fn follow(&self, request: WebRequest) -> Result<WebAnswer> {
        let limit = request.limit;
        let (url, response) = self.send(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = self.read_body(&url, response, limit).await?;
        Ok(WebAnswer {
            url,
            status,
            headers,
            body,
        })
    }

    async fn send(&self, request: WebRequest) -> Result<(Url, Response)> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let text = |text: &str| HeaderValue::from_str(text).ok();
        if let Some(accept) = request.accept.as_deref().and_then(text) {
            headers.insert(ACCEPT, accept);
        }
        if let Some(tag) = request.if_none_match.as_deref().and_then(text) {
            headers.insert(IF_NONE_MATCH, tag);
        }
        if let Some(authorization) = request.authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        let mut url = request.url;
        let mut reach = self.reach_of(&url).await?;
        if let Some(start) = self
            .start
            .as_ref()
            .filter(|start| start.origin() != url.origin())
        {
            let start_reach = self.reach_of(start).await?;
            check_redirect(start, start_reach, &url, reach, "leads")?;
        }
        for _ in 0..=MAX_REDIRECTS {
            let client = match reach {
                Reach::Public => &self.public,
                Reach::Private => &self.private,
            };
            let sent = client.get(url.clone()).headers(headers.clone()).send();
            let sent = tokio::time::timeout(HEADER_TIMEOUT, sent).await;
            let sent =
                sent.map_err(|_| Error::unreachable(&shown(&url), "did not answer in time"))?;
            let response = sent.map_err(|error| {
                let cause = root_cause(&error.without_url());
                Error::unreachable(&shown(&url), format!("cannot be reached: {cause}"))
            })?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED
            {
                return Ok((url, response));
            }
            let next = redirect_target(&url, &response)?;
            let next_reach = self.reach_of(&next).await?;
            check_redirect(&url, reach, &next, next_reach, "redirects")?;
            if next.origin() != url.origin() {
                headers.remove(AUTHORIZATION);
            }
            (url, reach) = (next, next_reach);
        }
        let reason = format!("redirects more than {MAX_REDIRECTS} times");
        Err(Error::refused(&shown(&url), reason))
    }

    async fn read_body(&self, url: &Url, response: Response, limit: u64) -> Result<Bytes> {
        let left = self.budget.bytes.load(Ordering::Relaxed);
        let limit = limit.min(left);
        let too_large = || {
            let reason = format!("sends more than {limit} bytes");
            Error::refused(&shown(url), reason)
        };
        if response.content_length().is_some_and(|size| size > limit) {
            return Err(too_large());
        }
        let mut stream = response.bytes_stream();
        let mut body = Vec::new();
        let (mut window, mut in_window) = (Instant::now(), 0u64);
        loop {
            let next = tokio::time::timeout(self.limits.stall, stream.next()).await;
            let slow = || {
                let reason = format!(
                    "sends less than {} bytes in {:?}",
                    FetchLimits::STALL_BYTES,
                    self.limits.stall
                );
                Error::unreachable(&shown(url), reason)
            };
            let Some(chunk) = next.map_err(|_| slow())? else {
                let taken = (body.len() as u64).min(left);
                self.budget.bytes.fetch_sub(taken, Ordering::Relaxed);
                return Ok(body.into());
            };
            let chunk = chunk.map_err(|error| {
                let cause = root_cause(&error.without_url());
                Error::unreachable(&shown(url), format!("the connection was closed: {cause}"))
            })?;
            if body.len() as u64 + chunk.len() as u64 > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
            in_window += chunk.len() as u64;
            if window.elapsed() >= self.limits.stall {
                if in_window < FetchLimits::STALL_BYTES {
                    return Err(slow());
                }
                (window, in_window) = (Instant::now(), 0);
            }
        }
    }
}

/// Returns an address for messages: its query may hold a signature or a token.
pub(crate) fn shown(url: &Url) -> String {
    let mut plain = url.clone();
    if plain.query().is_some() {
        plain.set_query(None);
        return format!("{plain}?…");
    }
    plain.to_string()
}

/// Whether a URL names this machine.
fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => {
            let mapped = ip.to_ipv4_mapped();
            ip.is_loopback() || mapped.is_some_and(|ip| ip.is_loopback())
        }
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Why an address on a private network is refused.
const PRIVATE_ADDRESS: &str = "is on a private network, which is not allowed here";

fn redirect_target(from: &Url, response: &Response) -> Result<Url> {
    let to = response.headers().get(LOCATION);
    let to = to.and_then(|to| from.join(to.to_str().ok()?).ok());
    to.ok_or_else(|| Error::refused(&shown(from), "redirects without a valid address"))
}

/// Refuses a redirect that leads to a network or a scheme that the sender may not choose.
fn check_redirect(
    from: &Url,
    from_reach: Reach,
    to: &Url,
    to_reach: Reach,
    verb: &str,
) -> Result<()> {
    let refuse = |reason: &str| {
        let reason = format!("{verb} to {}, {reason}", shown(to));
        Err(Error::refused(&shown(from), reason))
    };
    if from.scheme() == "https" && to.scheme() == "http" {
        return refuse("which is not encrypted");
    }
    if !to.username().is_empty() || to.password().is_some() {
        return refuse("which holds a password");
    }
    if to_reach == Reach::Public {
        return Ok(());
    }
    if from_reach == Reach::Public {
        return refuse("which is on a private network");
    }
    // Addresses of the link, such as those with credentials of clouds, hold no files.
    let is_link_local = match to.host() {
        Some(Host::Ipv4(ip)) => ip.is_link_local() || ip.is_unspecified(),
        Some(Host::Ipv6(ip)) => {
            let mapped = ip.to_ipv4_mapped();
            ip.is_unicast_link_local() || mapped.is_some_and(|ip| ip.is_link_local())
        }
        Some(Host::Domain(_)) => false,
        None => true,
    };
    if is_link_local || (is_loopback(to) && !is_loopback(from)) {
        return refuse("which is an internal address");
    }
    Ok(())
}

/// Returns the innermost cause of an error.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn t26_redirects_never_lead_inwards_or_to_plain_http() {
        let check = |from: &str, from_reach, to: &str, to_reach| {
            check_redirect(&url(from), from_reach, &url(to), to_reach, "leads")
        };
        let (public, private) = (Reach::Public, Reach::Private);
        assert!(check("https://a.test/", public, "https://b.test/", public).is_ok());
        assert!(check("http://10.0.0.1/", private, "http://10.0.0.2/", private).is_ok());
        assert!(
            check(
                "http://127.0.0.1:1/",
                private,
                "http://127.0.0.1:2/",
                private
            )
            .is_ok()
        );
        for (from, from_reach, to, to_reach) in [
            ("https://a.test/", public, "http://a.test/", public),
            ("https://a.test/", public, "https://10.0.0.1/", private),
            ("http://10.0.0.1/", private, "http://127.0.0.1/", private),
            (
                "http://10.0.0.1/",
                private,
                "http://169.254.169.254/",
                private,
            ),
            (
                "http://127.0.0.1/",
                private,
                "http://169.254.169.254/",
                private,
            ),
            ("https://a.test/", public, "https://me:pw@b.test/", public),
        ] {
            assert!(
                check(from, from_reach, to, to_reach).is_err(),
                "{from} {to}"
            );
        }
    }

    #[tokio::test]
    async fn t26_private_addresses_need_permission() {
        let limits = FetchLimits::default();
        for (reach, address, allowed) in [
            (SourceReach::PublicOnly, "http://127.0.0.1/", false),
            (SourceReach::PublicOnly, "http://localhost/", false),
            (SourceReach::PublicOnly, "http://[::ffff:10.0.0.1]/", false),
            (SourceReach::PublicOnly, "https://1.1.1.1/", true),
            (SourceReach::PrivateAddresses, "http://127.0.0.1/", true),
            (SourceReach::PrivateAddresses, "ftp://1.1.1.1/", false),
        ] {
            let client = WebClient::new(reach, limits).unwrap();
            let found = client.reach_of(&url(address)).await;
            assert_eq!(found.is_ok(), allowed, "{reach:?} {address}");
        }
    }

    #[tokio::test]
    async fn t26_a_public_source_names_nothing_on_a_private_network() {
        let limits = FetchLimits::default();
        let client = WebClient::new(SourceReach::PrivateAddresses, limits).unwrap();
        let client = client.starting_at(&url("https://1.1.1.1/index.json"));
        for address in [
            "http://127.0.0.1:9/x",
            "https://10.0.0.1/x",
            "http://1.0.0.1/x",
        ] {
            let refused = client
                .get(WebRequest::get(url(address), 10))
                .await
                .unwrap_err();
            assert_eq!(refused.code(), "refused_content", "{address}");
        }
    }
}
