//! Targets of other servers: a URL, or a program to start.

use std::{net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::{
    address::{Reach, classify_reach},
    error::{Error, Result},
};

/// The target of another server, as stored. It names environment variables, never secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerTarget {
    /// A server at a URL.
    Http {
        /// The URL.
        url: Url,
        /// The environment variable that holds its token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bearer_env: Option<String>,
        /// Whether it was on a private network when it was added.
        reach: Reach,
    },
    /// A program that serves over stdin and stdout.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// Environment variables passed to it besides the usual ones.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        env: Vec<String>,
        /// The working directory: the one it was added from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<PathBuf>,
    },
}

impl ServerTarget {
    /// Parses a URL from the user.
    ///
    /// A host name must always resolve to public addresses, unless the user declares it private;
    /// then it must always resolve to private ones. For IP addresses and `localhost` the reach is
    /// derived from the address.
    pub fn from_url(text: &str, bearer_env: Option<String>, asked: Option<Reach>) -> Result<Self> {
        let refuse = |reason: &str| Err(Error::Target(format!("{text:?}: {reason}")));
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(error) => return refuse(&error.to_string()),
        };
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("must start with http:// or https://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse(
                "must not hold a password: a token belongs into an environment variable",
            );
        }
        if url.fragment().is_some() {
            return refuse("must not have a fragment");
        }
        let reach = match url.host() {
            None => return refuse("must name a host"),
            Some(Host::Ipv4(ip)) => classify_reach([IpAddr::V4(ip)]),
            Some(Host::Ipv6(ip)) => classify_reach([IpAddr::V6(ip)]),
            Some(Host::Domain(name)) if name == "localhost" || name.ends_with(".localhost") => {
                Reach::Private
            }
            Some(Host::Domain(name)) => {
                let asked = asked.unwrap_or(Reach::Public);
                let port = url.port_or_known_default().unwrap_or(443);
                let found = std::net::ToSocketAddrs::to_socket_addrs(&(name, port));
                let found = match found {
                    Ok(found) => classify_reach(found.map(|address| address.ip())),
                    Err(error) => return refuse(&format!("cannot be resolved: {error}")),
                };
                match (asked, found) {
                    (Reach::Public, Reach::Private) => {
                        return refuse("resolves to a private network, which is not allowed");
                    }
                    (Reach::Private, Reach::Public) => {
                        return refuse("resolves to the public internet, not to a private network");
                    }
                    _ => asked,
                }
            }
        };
        if url.scheme() == "http" && reach == Reach::Public && bearer_env.is_some() {
            return refuse("a token is sent to public networks over https:// only");
        }
        Ok(Self::Http {
            url,
            bearer_env,
            reach,
        })
    }

    /// Creates a target from a program and its arguments.
    pub fn from_command(argv: Vec<String>, env: Vec<String>) -> Result<Self> {
        if argv.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(Error::Target("the command is empty".to_owned()));
        }
        let cwd = std::env::current_dir().ok();
        Ok(Self::Command { argv, env, cwd })
    }

    /// Returns the URL or the command line, for display.
    pub fn describe(&self) -> String {
        match self {
            Self::Http { url, .. } => url.to_string(),
            Self::Command { argv, .. } => argv.join(" "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t26_schemes_match_exactly_and_secrets_stay_out_of_addresses() {
        for text in [
            "file:///etc/passwd",
            "gopher://x.test/",
            "httpx://x.test/",
            "ws://127.0.0.1/",
            "http://user:secret@127.0.0.1/",
            "http://token@127.0.0.1/",
            "http://127.0.0.1/#x",
            "//127.0.0.1/mcp",
            "127.0.0.1:8321/mcp",
            "http://",
        ] {
            let refused = ServerTarget::from_url(text, None, None).unwrap_err();
            assert_eq!(refused.code(), "invalid_target", "{text}");
        }
        assert!(ServerTarget::from_url("http://127.0.0.1:8321/mcp", None, None).is_ok());
    }

    #[test]
    fn t27_a_token_goes_over_plain_http_to_this_machine_only() {
        let plain = ServerTarget::from_url("http://1.1.1.1/mcp", Some("TOKEN".into()), None);
        assert!(plain.unwrap_err().to_string().contains("https"));
        assert!(ServerTarget::from_url("https://1.1.1.1/mcp", Some("TOKEN".into()), None).is_ok());
        assert!(ServerTarget::from_url("http://127.0.0.1/mcp", Some("TOKEN".into()), None).is_ok());
    }
}
