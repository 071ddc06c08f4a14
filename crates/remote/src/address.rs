//! The addresses that requests may go to.
//!
//! Invariant: a name is resolved once and pinned, and a request that is meant for the public
//! internet never reaches a private network, nor the other way round.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::{Deserialize, Serialize};

/// The addresses a host name may resolve to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Public addresses only: a name that later resolves to a private network is refused.
    Public,
    /// Private addresses only: it was private when the user added it.
    Private,
}

/// Whether all of these addresses are public.
pub(crate) fn classify_reach(addresses: impl IntoIterator<Item = IpAddr>) -> Reach {
    if addresses.into_iter().all(is_public) {
        Reach::Public
    } else {
        Reach::Private
    }
}

/// Whether an address is on the public internet.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public_v4(ip),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    !(ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_multicast()
        || ip.is_unspecified()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        // Carrier networks and benchmarks.
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (18..20).contains(&b))
        || (a == 192 && b == 0))
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let first = ip.segments()[0];
    // Addresses that embed an IPv4 address are treated as private without decoding it.
    let carries_v4 = first == 0x2002
        || (first == 0x2001 && ip.segments()[1] == 0)
        || (first == 0x64 && ip.segments()[1] == 0xff9b);
    !(ip.is_loopback()
        || ip.is_unspecified()
        || ip.is_multicast()
        || ip.is_unique_local()
        || ip.is_unicast_link_local()
        || carries_v4
        // Deprecated site-local addresses.
        || first & 0xffc0 == 0xfec0
        || first == 0)
}

/// Resolves a host name once and keeps the result (T26).
#[derive(Debug)]
pub(crate) struct PinnedResolver {
    reach: Reach,
    known: Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>,
}

impl PinnedResolver {
    pub(crate) fn new(reach: Reach) -> Self {
        Self {
            reach,
            known: Arc::default(),
        }
    }
}

impl Resolve for PinnedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, known) = (self.reach, self.known.clone());
        let host = name.as_str().to_owned();
        Box::pin(async move {
            let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
            let pinned = lock().get(&host).cloned();
            if let Some(found) = pinned {
                return Ok(Box::new(found.into_iter()) as Addrs);
            }
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            let wrong = found.iter().find(|a| match reach {
                Reach::Public => !is_public(a.ip()),
                Reach::Private => is_public(a.ip()),
            });
            if let Some(wrong) = wrong {
                let word = match reach {
                    Reach::Public => "a private address",
                    Reach::Private => "a public address",
                };
                let reason = format!("{host} resolves to {}, {word}: refused", wrong.ip());
                return Err(reason.into());
            }
            lock().insert(host, found.clone());
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t26_private_addresses_are_known_in_every_form() {
        for ip in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "198.18.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::7f00:1",
            "fec0::1",
        ] {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
        for ip in ["1.1.1.1", "93.184.216.34", "2606:4700::1111"] {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    #[tokio::test]
    async fn t26_a_name_that_turns_private_is_refused() {
        let resolver = PinnedResolver::new;
        let name = || "localhost".parse::<Name>().unwrap();
        let refused = resolver(Reach::Public).resolve(name()).await.err().unwrap();
        assert!(refused.to_string().contains("private address"));
        assert!(resolver(Reach::Private).resolve(name()).await.is_ok());
    }
}
