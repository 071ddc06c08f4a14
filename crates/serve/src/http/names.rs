//! Where a request says it was sent, and which page it comes from.
//!
//! A page in a browser can make its visitor's machine send requests to a local port, under a name
//! of its own that leads there. So both are checked before anything else of it is looked at (T28).

use axum::http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};

/// Names of this machine's loopback.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The names under which a server may be addressed, and the pages that may ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Names under which the server may be addressed, besides those of this machine's loopback.
    pub hosts: Vec<String>,
    /// Web pages that may ask, such as `https://app.example.com`, besides the server's own.
    pub origins: Vec<String>,
}

impl Names {
    /// The page of another origin that a request comes from, if it is one that may ask.
    pub(crate) fn foreign_page(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.allows(origin.to_str().ok()?).then(|| origin.clone())
    }

    fn allows(&self, origin: &str) -> bool {
        let mut allowed = self.origins.iter().map(|o| o.trim_end_matches('/'));
        allowed.any(|allowed| allowed.eq_ignore_ascii_case(origin))
    }

    fn is_ours(&self, host: &str) -> bool {
        let ours = self.hosts.iter().map(String::as_str);
        LOOPBACK
            .into_iter()
            .chain(ours)
            .any(|ours| ours.eq_ignore_ascii_case(host))
    }

    /// Refuses a request that was sent to another name, or by another page.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut named = headers.get_all(header::HOST).iter();
        let authority = match (named.next(), named.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|h| h.parse::<Authority>().ok()),
            (None, _) => uri.authority().cloned(),
            (Some(_), Some(_)) => None,
        };
        let Some(authority) = authority.filter(|a| !a.as_str().contains('@')) else {
            return Err("the Host header is missing or wrong");
        };
        let host = host_of(&authority);
        if !self.is_ours(&host.0) {
            return Err("this name is not served here; --host allows one");
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let origin = match (origins.next(), origins.next()) {
            (None, _) => return Ok(()),
            (Some(origin), None) => origin.to_str().ok(),
            (Some(_), Some(_)) => None,
        };
        let Some(origin) = origin else {
            return Err("the Origin header is wrong");
        };
        // The server's own pages have the origin they were loaded from.
        let own = || {
            origin.split_once("://").is_some_and(|(scheme, rest)| {
                matches!(scheme, "http" | "https")
                    && rest.parse::<Authority>().is_ok_and(|a| host_of(&a) == host)
            })
        };
        if self.allows(origin) || own() {
            return Ok(());
        }
        Err("this web page may not ask here; --origin allows one")
    }
}

/// The name and port of an authority, without brackets, in lower case.
fn host_of(authority: &Authority) -> (String, Option<u16>) {
    let host = authority.host().trim_start_matches('[');
    let host = host.trim_end_matches(']').to_ascii_lowercase();
    (host, authority.port_u16())
}
