//! Connections to the other servers of an account, opened on demand.
//!
//! Each server has its own connection slot, so a slow server delays only its own callers. The
//! target is read from the store for every request, so a changed target takes effect at once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use repertoire_core::{MAX_BYTES, RelPath};
use repertoire_registry::{
    Error, Registry, Result,
    remote::{ListedSkill, RefusedSkill, RemoteLabel, RemoteReader},
    store::LocalStore,
};
use repertoire_remote::mcp::{RemoteConnection, RemoteFailure, ServerTarget};
use serde_json::json;
use tokio::{
    runtime::{Handle, Runtime},
    sync::{Mutex, Semaphore},
};

/// The time limit of a read, including connecting and queueing.
const READ_TIMEOUT: Duration = Duration::from_secs(45);
/// The number of concurrent reads from other servers.
const MAX_CONCURRENT_READS: usize = 8;

/// The slot of one connection, locked while it is opened or replaced.
type ConnectionSlot = Arc<Mutex<Option<(ServerTarget, Arc<RemoteConnection>)>>>;

/// The connections to other servers, opened on first use.
#[derive(Debug)]
pub struct ConnectionPool {
    connections: std::sync::Mutex<HashMap<String, ConnectionSlot>>,
    /// Keeps the targets of the servers; none without an account.
    local: Option<Arc<LocalStore>>,
    read_permits: Semaphore,
    /// A runtime for callers outside of any Tokio runtime.
    runtime: OnceLock<Option<Runtime>>,
}

fn remote_error(label: &str, failure: &RemoteFailure) -> Error {
    Error::Remote {
        label: label.to_owned(),
        reason: failure.to_string(),
    }
}

impl ConnectionPool {
    /// Creates the pool for the servers in a registry's account and connects it to the registry.
    pub fn from_registry(registry: &Registry) -> Arc<Self> {
        let pool = Arc::new(Self {
            connections: std::sync::Mutex::default(),
            local: registry.local_store().ok().cloned(),
            read_permits: Semaphore::new(MAX_CONCURRENT_READS),
            runtime: OnceLock::new(),
        });
        registry.set_remote_reader(pool.clone());
        pool
    }

    /// Returns the targets of all servers.
    pub fn load_targets(&self) -> Result<Vec<(RemoteLabel, ServerTarget)>> {
        let Some(local) = &self.local else {
            return Ok(Vec::new());
        };
        let known = local.remote_targets()?.into_iter();
        let known = known.filter_map(|(label, target)| {
            let target = serde_json::from_value::<ServerTarget>(target).ok()?;
            Some((label.parse().ok()?, target))
        });
        Ok(known.collect())
    }

    fn find_target(&self, label: &str) -> Result<ServerTarget> {
        let known = self.load_targets()?.into_iter();
        let mut ours = known.filter(|(known, _)| known.as_str() == label);
        ours.next().map(|(_, target)| target).ok_or_else(|| {
            let gone = RemoteFailure::Unreachable("is no longer configured".to_owned());
            remote_error(label, &gone)
        })
    }

    /// Blocks until a future completes, inside or outside of a Tokio runtime.
    fn block_on<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        if let Ok(handle) = Handle::try_current() {
            return Ok(tokio::task::block_in_place(|| handle.block_on(work)));
        }
        let own = self.runtime.get_or_init(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().ok()
        });
        let own = own.as_ref().ok_or_else(|| Error::Remote {
            label: String::new(),
            reason: "no thread could be started".to_owned(),
        })?;
        Ok(own.block_on(work))
    }

    fn connection_slot(&self, label: &str) -> ConnectionSlot {
        let mut open = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        open.entry(label.to_owned()).or_default().clone()
    }

    async fn open_connection(
        &self,
        label: &str,
        target: &ServerTarget,
    ) -> Result<Arc<RemoteConnection>, RemoteFailure> {
        let slot = self.connection_slot(label);
        let mut slot = slot.lock().await;
        if let Some((known, connection)) = &*slot
            && known == target
            && connection.is_alive()
        {
            return Ok(connection.clone());
        }
        *slot = None;
        let connection = Arc::new(RemoteConnection::open(target).await?);
        *slot = Some((target.clone(), connection.clone()));
        Ok(connection)
    }

    async fn drop_connection(&self, label: &str) {
        *self.connection_slot(label).lock().await = None;
    }

    /// Closes the connections of servers that were removed, and ends the programs started for them.
    pub async fn close_removed(&self) {
        let Ok(targets) = self.load_targets() else {
            return;
        };
        let removed: Vec<ConnectionSlot> = {
            let mut open = self
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let is_removed =
                |label: &str| !targets.iter().any(|(known, _)| known.as_str() == label);
            let labels: Vec<String> = open.keys().filter(|l| is_removed(l)).cloned().collect();
            labels
                .iter()
                .filter_map(|label| open.remove(label))
                .collect()
        };
        for slot in removed {
            *slot.lock().await = None;
        }
    }

    /// Closes every connection and kills every server process started for one.
    pub fn shut_down(&self) {
        let mut open = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in open.drain() {
            // A connection that is still being opened is closed by its task.
            if let Ok(mut slot) = slot.try_lock() {
                *slot = None;
            }
        }
    }

    /// Asks a server for its listing.
    pub async fn list_skills(
        &self,
        label: &str,
        target: &ServerTarget,
    ) -> Result<(Vec<ListedSkill>, Vec<RefusedSkill>)> {
        for attempt in 0.. {
            let listing = async {
                let connection = self.open_connection(label, target).await?;
                connection.list_skills().await
            };
            match listing.await {
                Err(RemoteFailure::Unreachable(_)) if attempt == 0 => {
                    self.drop_connection(label).await;
                }
                listed => return listed.map_err(|failure| remote_error(label, &failure)),
            }
        }
        Err(remote_error(
            label,
            &RemoteFailure::Unreachable("gone".into()),
        ))
    }

    /// Adds a server or changes its target. The server must answer before it is stored.
    pub fn add_server(
        &self,
        registry: &Registry,
        label: &RemoteLabel,
        target: &ServerTarget,
    ) -> Result<Vec<RefusedSkill>> {
        let (listing, mut refused) = self.block_on(self.list_skills(label.as_str(), target))??;
        registry.put_remote(label, &json!(target))?;
        refused.extend(registry.put_listing(label, &listing)?);
        Ok(refused)
    }

    /// Refreshes the listing of a server.
    pub fn refresh_server(
        &self,
        registry: &Registry,
        label: &RemoteLabel,
    ) -> Result<Vec<RefusedSkill>> {
        let known = self
            .load_targets()?
            .into_iter()
            .find(|(known, _)| known == label);
        let (_, target) = known.ok_or_else(|| Error::NotFound {
            what: "server",
            name: label.to_string(),
        })?;
        let (listing, mut refused) = self.block_on(self.list_skills(label.as_str(), &target))??;
        refused.extend(registry.put_listing(label, &listing)?);
        Ok(refused)
    }

    async fn read_resource(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes> {
        let target = self.find_target(label)?;
        let _turn = self.read_permits.acquire().await;
        for attempt in 0.. {
            let read = async {
                let connection = self.open_connection(label, &target).await?;
                connection.read_resource(uri, limit).await
            };
            match read.await {
                // Retry once: an idle connection may have been closed by the server.
                Err(RemoteFailure::Unreachable(_)) if attempt == 0 => {
                    self.drop_connection(label).await;
                }
                read => return read.map_err(|failure| remote_error(label, &failure)),
            }
        }
        Err(remote_error(
            label,
            &RemoteFailure::Unreachable("gone".into()),
        ))
    }
}

impl RemoteReader for ConnectionPool {
    fn read_resource(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes> {
        let read = async {
            let read = self.read_resource(label, uri, limit);
            let read = tokio::time::timeout(READ_TIMEOUT, read).await;
            read.unwrap_or_else(|_| {
                let late = RemoteFailure::Unreachable("did not answer in time".into());
                Err(remote_error(label, &late))
            })
        };
        self.block_on(read)?
    }

    fn read_archive(&self, label: &str, uri: &str) -> Result<BTreeMap<RelPath, Bytes>> {
        let bytes = RemoteReader::read_resource(self, label, uri, MAX_BYTES)?;
        repertoire_remote::unpack_skill(uri, &bytes).map_err(|error| Error::Remote {
            label: label.to_owned(),
            reason: error.to_string(),
        })
    }
}
