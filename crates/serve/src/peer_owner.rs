//! Finds the user that owns the other end of a loopback connection.
//!
//! Every user of a machine can connect to a loopback port, so an address says nothing about who
//! connects. Linux records the owner of each socket: it is read from the kernel with a `sock_diag`
//! request for exactly this connection, or from `/proc/net/tcp` where that is not available. On other
//! systems the owner is unknown, and callers need a token.
//!
//! Invariant: an owner is reported only for a socket that a process still has open. The kernel
//! reports closed sockets as root's.

use std::net::SocketAddr;

/// The user at the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerOwner {
    /// The user that this process runs as.
    SameUser,
    /// Another user of this machine.
    OtherUser(u32),
    /// Not on this machine, or not known.
    Unknown,
}

impl PeerOwner {
    /// Finds the owner of the socket at the other end of an accepted connection.
    pub(crate) fn of_connection(stream: &tokio::net::TcpStream) -> Self {
        match (stream.peer_addr(), stream.local_addr()) {
            (Ok(peer), Ok(local)) => Self::of_addresses(peer, local),
            _ => Self::Unknown,
        }
    }

    /// Whether this system tells who owns a connection.
    pub(crate) fn is_known_here() -> bool {
        let connect = || {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
            let client = std::net::TcpStream::connect(listener.local_addr()?)?;
            let (server, peer) = listener.accept()?;
            let owner = Self::of_addresses(peer, server.local_addr()?);
            drop(client);
            std::io::Result::Ok(owner)
        };
        connect().is_ok_and(|owner| owner == Self::SameUser)
    }

    /// Whether an address on this machine certainly belongs to a program of another user.
    pub(crate) fn is_other_user(url: &str) -> bool {
        let address = url.split("://").nth(1).unwrap_or_default();
        let address = address.split('/').next().unwrap_or_default();
        let mut addresses = std::net::ToSocketAddrs::to_socket_addrs(address)
            .into_iter()
            .flatten();
        addresses.any(|address| {
            address.ip().is_loopback() && matches!(Self::of_listener(address), Self::OtherUser(_))
        })
    }

    /// Finds the user that listens on an address of this machine.
    pub(crate) fn of_listener(address: SocketAddr) -> Self {
        match listener_owner(canonical(address)).filter(|uid| *uid != overflow_uid()) {
            Some(uid) if Some(uid) == own_uid() => Self::SameUser,
            Some(uid) => Self::OtherUser(uid),
            None => Self::Unknown,
        }
    }

    /// Finds the owner of the socket that is bound to `peer` and connected to `local`.
    fn of_addresses(peer: SocketAddr, local: SocketAddr) -> Self {
        let (peer, local) = (canonical(peer), canonical(local));
        if !peer.ip().is_loopback() {
            return Self::Unknown;
        }
        match socket_owner(peer, local).filter(|uid| *uid != overflow_uid()) {
            Some(uid) if Some(uid) == own_uid() => Self::SameUser,
            Some(uid) => Self::OtherUser(uid),
            None => Self::Unknown,
        }
    }
}

/// An IPv4 address in its own form, also on a socket that accepts both.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the uid that stands for all users outside of this user namespace. A process in a namespace
/// may have it itself, so it identifies no one.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65534)
}

#[cfg(unix)]
#[allow(
    clippy::unnecessary_wraps,
    reason = "the same signature on every platform"
)]
fn own_uid() -> Option<u32> {
    Some(rustix::process::geteuid().as_raw())
}

#[cfg(not(unix))]
fn own_uid() -> Option<u32> {
    None
}

#[cfg(not(target_os = "linux"))]
fn listener_owner(_: SocketAddr) -> Option<u32> {
    None
}

/// A listening socket has no other end.
#[cfg(target_os = "linux")]
fn listener_owner(address: SocketAddr) -> Option<u32> {
    let none: std::net::IpAddr = if address.is_ipv4() {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    };
    let remote = SocketAddr::new(none, 0);
    let everywhere = SocketAddr::new(none, address.port());
    linux::table_owner(address, remote).or_else(|| linux::table_owner(everywhere, remote))
}

#[cfg(not(target_os = "linux"))]
fn socket_owner(_: SocketAddr, _: SocketAddr) -> Option<u32> {
    None
}

#[cfg(target_os = "linux")]
fn socket_owner(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    linux::diag_owner(local, remote).unwrap_or_else(|_| linux::table_owner(local, remote))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{fmt::Write as _, io, net::IpAddr, net::SocketAddr};

    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send,
        socket_with,
        sockopt::{Timeout, set_socket_timeout},
    };

    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const NLMSG_ERROR: u16 = 2;
    const HEADER_BYTES: usize = 16;
    const REQUEST_BYTES: u32 = 72;
    /// Where the message has the owner and the inode of the socket.
    const UID_AT: usize = HEADER_BYTES + 64;
    const INODE_AT: usize = HEADER_BYTES + 68;
    /// Where the message has the state of the socket, and the state of a listener: the kernel falls
    /// back to one if there is no connection.
    const STATE_AT: usize = HEADER_BYTES + 1;
    const LISTEN: u8 = 10;
    const ENOENT: i32 = 2;

    /// Asks the kernel for one socket. `Ok(None)` if there is none, or none that is open.
    pub(super) fn diag_owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        let patience = Some(std::time::Duration::from_millis(200));
        set_socket_timeout(&socket, Timeout::Recv, patience)?;
        send(&socket, &diag_request(local, remote), SendFlags::empty())?;
        let mut answer = [0_u8; 1024];
        let (read, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let answer = answer.get(..read).unwrap_or_default();
        let number = |at: usize| {
            let bytes = answer.get(at..at + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let kind = answer
            .get(4..6)
            .map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
        match kind {
            Some(SOCK_DIAG_BY_FAMILY) if answer.get(STATE_AT) == Some(&LISTEN) => Ok(None),
            Some(SOCK_DIAG_BY_FAMILY) => match (number(UID_AT), number(INODE_AT)) {
                // A socket that no process has open any more has no inode.
                (Some(_), Some(0)) => Ok(None),
                (Some(uid), Some(_)) => Ok(Some(uid)),
                _ => Err(io::ErrorKind::InvalidData.into()),
            },
            Some(NLMSG_ERROR) => match number(HEADER_BYTES).map(u32::cast_signed) {
                Some(error) if error == -ENOENT => Ok(None),
                Some(error) => Err(io::Error::from_raw_os_error(-error)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The bytes of `nlmsghdr` and `inet_diag_req_v2` for exactly one connection.
    fn diag_request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_BYTES as usize] {
        /// `AF_INET` and `AF_INET6`, as the kernel numbers them.
        const INET: u8 = 2;
        const INET6: u8 = 10;
        const TCP: u8 = 6;
        let mut bytes = [0; REQUEST_BYTES as usize];
        let mut put = |at: usize, value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(0, &REQUEST_BYTES.to_ne_bytes());
        put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        put(6, &NLM_F_REQUEST.to_ne_bytes());
        put(16, &[if local.is_ipv4() { INET } else { INET6 }, TCP]);
        put(20, &u32::MAX.to_ne_bytes());
        put(24, &local.port().to_be_bytes());
        put(26, &remote.port().to_be_bytes());
        for (at, address) in [(28, local.ip()), (44, remote.ip())] {
            match address {
                IpAddr::V4(address) => put(at, &address.octets()),
                IpAddr::V6(address) => put(at, &address.octets()),
            }
        }
        // No cookie: any socket of this connection.
        put(64, &[0xff; 8]);
        bytes
    }

    /// Looks a connection up in the table that the kernel prints.
    pub(super) fn table_owner(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let file = if local.is_ipv4() {
            "/proc/net/tcp"
        } else {
            "/proc/net/tcp6"
        };
        find_row(&std::fs::read_to_string(file).ok()?, local, remote)
    }

    pub(super) fn find_row(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
        let (local, remote) = (table_address(local), table_address(remote));
        table.lines().skip(1).find_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            if fields.next() != Some(&local) || fields.next() != Some(&remote) {
                return None;
            }
            // State, queues, timer and retransmits come before the owner; then a timeout.
            let uid = fields.nth(4)?.parse().ok()?;
            let inode: u64 = fields.nth(1)?.parse().ok()?;
            (inode != 0).then_some(uid)
        })
    }

    /// The form of an address in the table: words in the order of the machine, in hexadecimal.
    fn table_address(address: SocketAddr) -> String {
        let octets = match address.ip() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let mut text = String::with_capacity(40);
        for word in octets.chunks_exact(4) {
            let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            // Writing to a string cannot fail.
            let _ = write!(text, "{word:08X}");
        }
        let _ = write!(text, ":{:04X}", address.port());
        text
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connected(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server)
    }

    #[test]
    fn t39_both_ways_to_look_find_the_owner_of_a_connection() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (client, server) = connected(address);
            let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
            assert_eq!(PeerOwner::of_addresses(peer, local), PeerOwner::SameUser);
            assert_eq!(linux::diag_owner(peer, local).unwrap(), own_uid());
            assert_eq!(linux::table_owner(peer, local), own_uid());
            drop(client);
        }
    }

    #[test]
    fn t39_a_closed_socket_has_no_owner() {
        let (client, server) = connected("127.0.0.1:0");
        let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        drop(client);
        // The kernel reports it as root's, who may be the user of this process.
        assert_eq!(PeerOwner::of_addresses(peer, local), PeerOwner::Unknown);
        assert_eq!(linux::table_owner(peer, local), None);
    }

    #[test]
    fn t39_the_table_is_read_by_both_addresses() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            1: 0100007F:9C40 0100007F:BFEE 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 20\n   \
            2: 0100007F:9C41 0100007F:BFEE 04 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20\n";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(linux::find_row(table, at(40000), at(49134)), Some(1000));
        assert_eq!(linux::find_row(table, at(40000), at(49135)), None);
        assert_eq!(linux::find_row(table, at(40001), at(49134)), None);
    }

    #[test]
    fn t39_remote_addresses_have_no_owner() {
        let far = SocketAddr::from(([10, 0, 0, 1], 40000));
        let here = SocketAddr::from(([10, 0, 0, 2], 80));
        assert_eq!(PeerOwner::of_addresses(far, here), PeerOwner::Unknown);
    }
}
