//! Checks of the `Host` and `Origin` headers.
//!
//! A web page can make a browser send requests to a local port under a host name that resolves
//! there (DNS rebinding). So both headers are checked before the rest of the request (T28).

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};

use crate::error::{Error, Result};

/// The loopback names of this machine.
const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The host names a server accepts, and the web origins that may send requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    /// Host names the server accepts, besides the loopback names.
    pub(crate) hosts: Vec<String>,
    /// Web origins that may send requests, such as `https://app.example.com`.
    pub(crate) origins: Vec<String>,
}

impl AllowedHosts {
    /// Allows these host names and origins; fails for those that no request can have.
    pub fn new(hosts: Vec<String>, origins: Vec<String>) -> Result<Self> {
        let refuse = |what, value: &str, rule: &str| Error::InvalidOption {
            what,
            value: value.to_owned(),
            rule: rule.to_owned(),
        };
        for host in &hosts {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
            if host.is_empty() || host.contains("//") || !host.chars().all(is_plain) {
                let rule = "write a name without scheme and path, such as skills.example.com";
                return Err(refuse("host", host, rule));
            }
        }
        for origin in &origins {
            let rest = origin
                .strip_prefix("https://")
                .or_else(|| origin.strip_prefix("http://"));
            let rest = rest.map(|rest| rest.trim_end_matches('/'));
            if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', ' ', '@'])) {
                let rule = "write scheme and host, such as https://app.example.com";
                return Err(refuse("origin", origin, rule));
            }
        }
        Ok(Self { hosts, origins })
    }

    /// The same host names, and no web origins.
    #[must_use]
    pub fn without_origins(&self) -> Self {
        Self {
            hosts: self.hosts.clone(),
            origins: Vec::new(),
        }
    }

    /// Adds the addresses that a server listens on and that others can name.
    pub fn add_addresses(&mut self, addresses: impl IntoIterator<Item = SocketAddr>) {
        for address in addresses {
            if !address.ip().is_loopback() && !address.ip().is_unspecified() {
                self.hosts.push(address.ip().to_string());
            }
        }
    }

    /// Whether pages of a web origin may send requests.
    pub(crate) fn allows_origin(&self, origin: &HeaderValue) -> bool {
        origin.to_str().is_ok_and(|origin| self.is_listed(origin))
    }

    fn is_listed(&self, origin: &str) -> bool {
        let mut allowed = self.origins.iter().map(|o| o.trim_end_matches('/'));
        allowed.any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let ours = self.hosts.iter().map(String::as_str);
        LOOPBACK_NAMES
            .into_iter()
            .chain(ours)
            .any(|ours| ours.eq_ignore_ascii_case(host))
    }

    /// Refuses a request with another host name or a foreign origin.
    pub(crate) fn check_host_and_origin(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), &'static str> {
        let mut named = headers.get_all(header::HOST).iter();
        let authority = match (named.next(), named.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|h| h.parse::<Authority>().ok()),
            (None, _) => uri.authority().cloned(),
            (Some(_), Some(_)) => None,
        };
        let Some(authority) = authority.filter(|a| !a.as_str().contains('@')) else {
            return Err("the Host header is missing or invalid");
        };
        let host = normalised_host(&authority);
        if !self.is_allowed_host(&host.0) {
            return Err("this host name is not allowed by the server's settings");
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let origin = match (origins.next(), origins.next()) {
            (None, _) => return Ok(()),
            (Some(origin), None) => origin.to_str().ok(),
            (Some(_), Some(_)) => None,
        };
        let Some(origin) = origin else {
            return Err("the Origin header is invalid");
        };
        // The server's own pages have the origin they were loaded from.
        let own = || {
            origin.split_once("://").is_some_and(|(scheme, rest)| {
                matches!(scheme, "http" | "https")
                    && rest
                        .parse::<Authority>()
                        .is_ok_and(|a| normalised_host(&a) == host)
            })
        };
        if self.is_listed(origin) || own() {
            return Ok(());
        }
        Err("this web origin is not allowed by the server's settings")
    }
}

/// Returns the host in lower case without brackets, and the port.
fn normalised_host(authority: &Authority) -> (String, Option<u16>) {
    let host = authority.host().trim_start_matches('[');
    let host = host.trim_end_matches(']').to_ascii_lowercase();
    (host, authority.port_u16())
}
