//! Every other server of an account, each asked when it is needed.
//!
//! Servers do not wait for each other: a slow one keeps only those waiting who ask it. Where a
//! server is, is looked up at each question, so a change counts at once.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use repertoire_registry::{
    Error, Registry, Result, Scope,
    remote::{Label, Listed, Refused, Remotes},
    store::Store,
};
use serde_json::json;
use tokio::{
    runtime::{Handle, Runtime},
    sync::{Mutex, Semaphore},
};

use super::{Connection, Failure, Target};
use crate::engine::Engine;

/// How often running servers ask others what is new.
const EVERY: Duration = Duration::from_mins(5);
/// How long a read may take, with everything it has to wait for.
const PATIENCE: Duration = Duration::from_secs(45);
/// How many files are read from other servers at a time.
const AT_A_TIME: usize = 8;

/// The place of one connection, held by whoever makes or replaces it.
type Slot = Arc<Mutex<Option<(Target, Arc<Connection>)>>>;

/// The connections to other servers, made when they are first needed.
#[derive(Debug)]
pub struct Pool {
    open: std::sync::Mutex<HashMap<String, Slot>>,
    /// Where servers are kept; none without an account.
    store: Option<Arc<Store>>,
    reading: Semaphore,
    /// A runtime of its own, where nobody else brings one.
    runtime: OnceLock<Option<Runtime>>,
}

fn failed(label: &str, failure: &Failure) -> Error {
    Error::Remote {
        label: label.to_owned(),
        reason: failure.to_string(),
    }
}

impl Pool {
    /// The pool of the servers that a registry's account names, connected to that registry.
    pub fn of(registry: &Registry) -> Arc<Self> {
        let pool = Arc::new(Self {
            open: std::sync::Mutex::default(),
            store: registry.store(Scope::Account).ok().cloned(),
            reading: Semaphore::new(AT_A_TIME),
            runtime: OnceLock::new(),
        });
        registry.connect(pool.clone());
        pool
    }

    /// Where every server is.
    fn targets(&self) -> Result<Vec<(Label, Target)>> {
        let Some(store) = &self.store else {
            return Ok(Vec::new());
        };
        let known = store.remote_targets()?.into_iter();
        let known = known.filter_map(|(label, target)| {
            let target = serde_json::from_value::<Target>(target).ok()?;
            Some((label.parse().ok()?, target))
        });
        Ok(known.collect())
    }

    fn target(&self, label: &str) -> Result<Target> {
        let known = self.targets()?.into_iter();
        let mut ours = known.filter(|(known, _)| known.as_str() == label);
        ours.next().map(|(_, target)| target).ok_or_else(|| {
            let gone = Failure::Gone("is not known here any more".to_owned());
            failed(label, &gone)
        })
    }

    /// Runs work to its end from outside of any runtime.
    fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T> {
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

    fn slot(&self, label: &str) -> Slot {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry(label.to_owned()).or_default().clone()
    }

    async fn connection(&self, label: &str, target: &Target) -> Result<Arc<Connection>, Failure> {
        let slot = self.slot(label);
        let mut slot = slot.lock().await;
        if let Some((known, connection)) = &*slot
            && known == target
            && connection.is_alive()
        {
            return Ok(connection.clone());
        }
        *slot = None;
        let connection = Arc::new(Connection::open(target).await?);
        *slot = Some((target.clone(), connection.clone()));
        Ok(connection)
    }

    async fn forget(&self, label: &str) {
        *self.slot(label).lock().await = None;
    }

    /// Ends every connection, and every program that was started for one.
    pub fn shut_down(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in open.drain() {
            // One that is just being made ends with whoever makes it.
            if let Ok(mut slot) = slot.try_lock() {
                *slot = None;
            }
        }
    }

    async fn list(&self, label: &str, target: &Target) -> Result<(Vec<Listed>, Vec<Refused>)> {
        for attempt in 0.. {
            let listing = async {
                let connection = self.connection(label, target).await?;
                connection.list().await
            };
            match listing.await {
                Err(Failure::Gone(_)) if attempt == 0 => self.forget(label).await,
                listed => return listed.map_err(|failure| failed(label, &failure)),
            }
        }
        Err(failed(label, &Failure::Gone("gone".into())))
    }

    /// Adds a server, or changes where it is: it is asked first, then kept with what it lists.
    pub fn add(&self, registry: &Registry, label: &Label, target: &Target) -> Result<Vec<Refused>> {
        let (listing, mut refused) = self.wait(self.list(label.as_str(), target))??;
        registry.put_remote(label, &json!(target))?;
        refused.extend(registry.put_listing(label, &listing)?);
        Ok(refused)
    }

    /// Asks a server again what it has.
    pub fn refresh(&self, registry: &Registry, label: &Label) -> Result<Vec<Refused>> {
        let known = self
            .targets()?
            .into_iter()
            .find(|(known, _)| known == label);
        let (_, target) = known.ok_or_else(|| Error::NotFound {
            what: "server",
            name: label.to_string(),
        })?;
        let (listing, mut refused) = self.wait(self.list(label.as_str(), &target))??;
        refused.extend(registry.put_listing(label, &listing)?);
        Ok(refused)
    }

    /// Asks every server again, now and then, for as long as the engine serves; then ends them.
    pub async fn follow(self: Arc<Self>, engine: Arc<Engine>) {
        if let Ok(registry) = engine.registry().await {
            loop {
                for (label, target) in self.targets().unwrap_or_default() {
                    let asked = tokio::select! {
                        asked = self.list(label.as_str(), &target) => asked,
                        () = engine.stop.cancelled() => return self.shut_down(),
                    };
                    let registry = registry.clone();
                    // Keeping a listing is work for the disk.
                    let kept = tokio::task::spawn_blocking(move || {
                        let (listing, mut refused) = asked?;
                        refused.extend(registry.put_listing(&label, &listing)?);
                        Ok::<_, Error>(refused)
                    });
                    match kept.await {
                        Ok(Ok(refused)) => {
                            for one in refused {
                                tracing::warn!(uri = one.uri, reason = one.message, "not taken");
                            }
                        }
                        Ok(Err(error)) => tracing::warn!(%error, "not asked"),
                        Err(error) => tracing::warn!(%error, "not kept"),
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep(EVERY) => {}
                    () = engine.stop.cancelled() => break,
                }
            }
        }
        self.shut_down();
    }

    async fn read_one(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes> {
        let target = self.target(label)?;
        let _turn = self.reading.acquire().await;
        for attempt in 0.. {
            let read = async {
                let connection = self.connection(label, &target).await?;
                connection.read(uri, limit).await
            };
            match read.await {
                // A connection that broke while nobody used it is worth a second try.
                Err(Failure::Gone(_)) if attempt == 0 => self.forget(label).await,
                read => return read.map_err(|failure| failed(label, &failure)),
            }
        }
        Err(failed(label, &Failure::Gone("gone".into())))
    }
}

impl Remotes for Pool {
    fn read(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes> {
        let read = async {
            let read = self.read_one(label, uri, limit);
            let read = tokio::time::timeout(PATIENCE, read).await;
            read.unwrap_or_else(|_| {
                let late = Failure::Gone("did not answer in time".into());
                Err(failed(label, &late))
            })
        };
        self.wait(read)?
    }
}
