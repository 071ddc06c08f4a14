//! What one peer may use of a server: connections, and bytes that wait for it.
//!
//! A peer is an address, or a user of this machine. It never gets more than a share of the whole, so
//! that others are served, too (T42). A connection that has not sent a complete request yet is
//! *pending*: it has a deadline, and the oldest pending ones make room for new ones. So half-open
//! connections delay no one, also those of the same peer.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::peer_owner::PeerOwner;

/// Who is at the other end of a connection, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PeerKey {
    /// A user of this machine.
    User(Option<u32>),
    /// An address; of IPv6 the network, because one peer has many addresses in it.
    Address(IpAddr),
}

impl PeerKey {
    pub(crate) fn new(address: SocketAddr, owner: PeerOwner) -> Self {
        let ip = address.ip().to_canonical();
        match (owner, ip) {
            (PeerOwner::SameUser, _) => Self::User(None),
            (PeerOwner::OtherUser(uid), _) => Self::User(Some(uid)),
            (PeerOwner::Unknown, IpAddr::V6(ip)) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                Self::Address(IpAddr::V6(network.into()))
            }
            (PeerOwner::Unknown, ip) => Self::Address(ip),
        }
    }
}

/// How many connections a server has at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// All connections.
    pub(crate) total: usize,
    /// The connections of one peer.
    pub(crate) per_peer: usize,
    /// Connections that have not sent a complete request.
    pub(crate) pending: usize,
}

/// The open connections of a server.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    limits: ConnectionLimits,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    last_id: u64,
    /// Ordered by age.
    all: BTreeMap<u64, OpenConnection>,
    /// The ids of those that are pending, ordered by age.
    pending: BTreeMap<u64, PeerKey>,
    per_peer: HashMap<PeerKey, usize>,
}

#[derive(Debug)]
struct OpenConnection {
    peer: PeerKey,
    stop: CancellationToken,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// The server has all the connections it can have.
    Full,
    /// The peer has its share.
    PeerShare,
}

impl ConnectionTable {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            open: Mutex::default(),
        })
    }

    /// Adds a connection, as pending. Older pending ones make room for it.
    pub(crate) fn add(
        self: &Arc<Self>,
        peer: PeerKey,
    ) -> Result<ConnectionSlot, ConnectionRefusal> {
        let mut open = self.lock();
        if open.pending.len() >= self.limits.pending {
            let busiest = open.peer_with_most_pending();
            open.close_oldest_pending(|one| Some(one) == busiest);
        }
        if open.count(peer) >= self.limits.per_peer && !open.close_oldest_pending(|one| one == peer)
        {
            return Err(ConnectionRefusal::PeerShare);
        }
        // The last places are for the server's own user.
        let total = match peer {
            PeerKey::User(None) => self.limits.total,
            _ => self.limits.total - self.limits.total / 8,
        };
        if open.all.len() >= total && !open.close_oldest_pending(|_| true) {
            return Err(ConnectionRefusal::Full);
        }
        open.last_id += 1;
        let id = open.last_id;
        let stop = CancellationToken::new();
        let connection = OpenConnection {
            peer,
            stop: stop.clone(),
        };
        open.all.insert(id, connection);
        open.pending.insert(id, peer);
        *open.per_peer.entry(peer).or_default() += 1;
        Ok(ConnectionSlot(Arc::new(SlotState {
            table: self.clone(),
            id,
            peer,
            is_pending: AtomicBool::new(true),
            stop,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    fn count(&self, peer: PeerKey) -> usize {
        self.per_peer.get(&peer).copied().unwrap_or(0)
    }

    fn peer_with_most_pending(&self) -> Option<PeerKey> {
        let mut counts: HashMap<PeerKey, usize> = HashMap::new();
        for peer in self.pending.values() {
            *counts.entry(*peer).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(peer, _)| peer)
    }

    /// Closes the oldest pending connection that matches; returns whether there was one.
    fn close_oldest_pending(&mut self, matches: impl Fn(PeerKey) -> bool) -> bool {
        let mut pending = self.pending.iter();
        let oldest = pending.find(|(_, peer)| matches(**peer));
        let Some(id) = oldest.map(|(id, _)| *id) else {
            return false;
        };
        self.remove(id);
        true
    }

    fn remove(&mut self, id: u64) {
        self.pending.remove(&id);
        if let Some(connection) = self.all.remove(&id) {
            connection.stop.cancel();
            if let Some(count) = self.per_peer.get_mut(&connection.peer) {
                *count -= 1;
                if *count == 0 {
                    self.per_peer.remove(&connection.peer);
                }
            }
        }
    }
}

/// The place of one connection, held until it is closed.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionSlot(Arc<SlotState>);

#[derive(Debug)]
struct SlotState {
    table: Arc<ConnectionTable>,
    id: u64,
    peer: PeerKey,
    is_pending: AtomicBool,
    stop: CancellationToken,
}

impl ConnectionSlot {
    /// Records that the connection has sent a complete request.
    pub(crate) fn mark_active(&self) {
        if self.0.is_pending.swap(false, Ordering::Relaxed) {
            self.0.table.lock().pending.remove(&self.0.id);
        }
    }

    /// Whether no complete request was received yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.is_pending.load(Ordering::Relaxed)
    }

    pub(crate) fn peer(&self) -> PeerKey {
        self.0.peer
    }

    /// Cancelled when the connection has to be closed.
    pub(crate) fn stop_token(&self) -> &CancellationToken {
        &self.0.stop
    }
}

impl Drop for SlotState {
    fn drop(&mut self) {
        self.table.lock().remove(self.id);
    }
}

/// A number of units, such as bytes, of which each peer gets at most a share.
#[derive(Debug)]
pub(crate) struct PeerBudget {
    total: usize,
    per_peer: usize,
    used: Mutex<UsedUnits>,
    /// Notified when nothing is used any more.
    unused: Notify,
}

#[derive(Debug, Default)]
struct UsedUnits {
    total: usize,
    per_peer: HashMap<PeerKey, usize>,
}

impl PeerBudget {
    /// A budget of which one peer gets at most the given share.
    pub(crate) fn new(total: usize, per_peer: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            per_peer,
            used: Mutex::default(),
            unused: Notify::new(),
        })
    }

    /// Waits until nothing is used.
    pub(crate) async fn wait_unused(&self) {
        loop {
            let unused = self.unused.notified();
            let total = self
                .used
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .total;
            if total == 0 {
                return;
            }
            unused.await;
        }
    }

    /// Takes units until the lease is dropped. A peer that uses nothing yet may exceed its share and
    /// half of the whole, so that one large answer can always be sent.
    pub(crate) fn try_take(self: &Arc<Self>, peer: PeerKey, units: usize) -> Option<BudgetLease> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = used.per_peer.get(&peer).copied().unwrap_or(0);
        let fits = if mine == 0 {
            used.total.saturating_add(units) <= self.total * 3 / 2
        } else {
            mine.saturating_add(units) <= self.per_peer
                && used.total.saturating_add(units) <= self.total
        };
        if !fits {
            return None;
        }
        used.total += units;
        *used.per_peer.entry(peer).or_default() += units;
        Some(BudgetLease {
            budget: self.clone(),
            peer,
            units,
        })
    }
}

/// Units that are in use.
#[derive(Debug)]
pub(crate) struct BudgetLease {
    budget: Arc<PeerBudget>,
    peer: PeerKey,
    units: usize,
}

impl Drop for BudgetLease {
    fn drop(&mut self) {
        let mut used = self
            .budget
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        used.total -= self.units;
        if let Some(mine) = used.per_peer.get_mut(&self.peer) {
            *mine -= self.units;
            if *mine == 0 {
                used.per_peer.remove(&self.peer);
            }
        }
        if used.total == 0 {
            self.budget.unused.notify_waiters();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    const A: PeerKey = PeerKey::User(Some(1));
    const B: PeerKey = PeerKey::User(Some(2));

    fn table() -> Arc<ConnectionTable> {
        ConnectionTable::new(ConnectionLimits {
            total: 4,
            per_peer: 3,
            pending: 2,
        })
    }

    #[test]
    fn t42_the_oldest_pending_connection_makes_room() {
        let table = table();
        let first = table.add(A).unwrap();
        let second = table.add(A).unwrap();
        let third = table.add(A).unwrap();
        assert!(first.stop_token().is_cancelled());
        assert!(!second.stop_token().is_cancelled() && !third.stop_token().is_cancelled());
        second.mark_active();
        let _fourth = table.add(A).unwrap();
        assert!(!second.stop_token().is_cancelled(), "active ones stay");
    }

    #[test]
    fn t42_a_peer_gets_at_most_its_share_of_active_connections() {
        let table = table();
        let mut held = Vec::new();
        for _ in 0..3 {
            let slot = table.add(A).unwrap();
            slot.mark_active();
            held.push(slot);
        }
        assert_eq!(table.add(A).unwrap_err(), ConnectionRefusal::PeerShare);
        let other = table.add(B).unwrap();
        other.mark_active();
        assert_eq!(table.add(B).unwrap_err(), ConnectionRefusal::Full);
        drop(held.pop());
        assert!(table.add(A).is_ok());
    }

    #[test]
    fn t42_a_budget_is_shared_and_comes_back() {
        let budget = PeerBudget::new(10, 6);
        let large = budget.try_take(A, 8).unwrap();
        assert!(budget.try_take(A, 1).is_none(), "above the share");
        let other = budget.try_take(B, 2).unwrap();
        assert!(budget.try_take(B, 3).is_none(), "above the whole");
        drop((large, other));
        let _again = budget.try_take(A, 5).unwrap();
        assert!(budget.try_take(A, 1).is_some());
    }
}
