//! Every other server of an account, each asked when it is needed.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use repertoire_registry::{
    Error, Registry, Result, Scope,
    remote::{Label, Listed, Refused, Remotes},
};
use serde_json::json;
use tokio::{
    runtime::{Handle, Runtime},
    sync::Mutex,
};

use super::{Connection, Failure, Target};
use crate::engine::Engine;

/// How often running servers ask others what is new.
const EVERY: Duration = Duration::from_mins(5);

/// The connections to other servers, made when they are first needed.
#[derive(Debug, Default)]
pub struct Pool {
    open: Mutex<HashMap<String, (Target, Arc<Connection>)>>,
    targets: std::sync::Mutex<HashMap<String, Target>>,
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
    pub fn of(registry: &Registry) -> Result<Arc<Self>> {
        let pool = Arc::new(Self::default());
        pool.learn(registry)?;
        registry.connect(pool.clone());
        Ok(pool)
    }

    /// Learns where servers are, and forgets those that are gone.
    fn learn(&self, registry: &Registry) -> Result<Vec<Label>> {
        let Ok(store) = registry.store(Scope::Account) else {
            return Ok(Vec::new());
        };
        let mut found = HashMap::new();
        let mut labels = Vec::new();
        for (name, target) in store.remote_targets()? {
            let target = serde_json::from_value::<Target>(target);
            let (Ok(target), Ok(label)) = (target, name.parse()) else {
                continue;
            };
            labels.push(label);
            found.insert(name, target);
        }
        *self.lock_targets() = found;
        Ok(labels)
    }

    fn lock_targets(&self) -> std::sync::MutexGuard<'_, HashMap<String, Target>> {
        self.targets
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
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

    async fn connection(&self, label: &str, target: &Target) -> Result<Arc<Connection>, Failure> {
        let mut open = self.open.lock().await;
        if let Some((known, connection)) = open.get(label)
            && known == target
            && connection.is_alive()
        {
            return Ok(connection.clone());
        }
        open.remove(label);
        let connection = Arc::new(Connection::open(target).await?);
        open.insert(label.to_owned(), (target.clone(), connection.clone()));
        Ok(connection)
    }

    /// Asks a server what it has, before anything about it is kept.
    pub fn try_list(&self, label: &Label, target: &Target) -> Result<Vec<Listed>> {
        self.wait(self.list(label.as_str(), target))?
    }

    async fn list(&self, label: &str, target: &Target) -> Result<Vec<Listed>> {
        let listing = async {
            let connection = self.connection(label, target).await?;
            connection.list().await
        };
        let listed = listing.await;
        if let Err(Failure::Gone(_)) = &listed {
            self.open.lock().await.remove(label);
        }
        listed.map_err(|failure| failed(label, &failure))
    }

    /// Adds a server, or changes where it is: it is asked first, then kept with what it lists.
    pub fn add(&self, registry: &Registry, label: &Label, target: &Target) -> Result<Vec<Refused>> {
        let listing = self.try_list(label, target)?;
        registry.put_remote(label, &json!(target))?;
        let refused = registry.put_listing(label, &listing)?;
        self.learn(registry)?;
        Ok(refused)
    }

    /// Asks a server again what it has.
    pub fn refresh(&self, registry: &Registry, label: &Label) -> Result<Vec<Refused>> {
        self.wait(self.refresh_one(registry, label))?
    }

    async fn refresh_one(&self, registry: &Registry, label: &Label) -> Result<Vec<Refused>> {
        let target = self.lock_targets().get(label.as_str()).cloned();
        let target = target.ok_or_else(|| Error::NotFound {
            what: "server",
            name: label.to_string(),
        })?;
        let listing = self.list(label.as_str(), &target).await?;
        registry.put_listing(label, &listing)
    }

    /// Asks every server again, now and then, for as long as the engine serves.
    pub async fn follow(self: Arc<Self>, engine: Arc<Engine>) {
        let Ok(registry) = engine.registry().await else {
            return;
        };
        loop {
            for label in self.learn(registry).unwrap_or_default() {
                match self.refresh_one(registry, &label).await {
                    Ok(refused) => {
                        for one in refused {
                            tracing::warn!(%label, uri = one.uri, reason = one.message, "refused");
                        }
                    }
                    Err(error) => tracing::warn!(%error, "not asked"),
                }
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = engine.stop.cancelled() => return,
            }
        }
    }
}

impl Remotes for Pool {
    fn read(&self, label: &str, uri: &str, limit: u64) -> Result<Bytes> {
        let target = self.lock_targets().get(label).cloned();
        let target = target.ok_or_else(|| Error::NotFound {
            what: "server",
            name: label.to_owned(),
        })?;
        self.wait(async {
            for attempt in 0.. {
                let read = async {
                    let connection = self.connection(label, &target).await?;
                    connection.read(uri, limit).await
                };
                match read.await {
                    // A connection that broke while nobody used it is worth a second try.
                    Err(Failure::Gone(_)) if attempt == 0 => {
                        self.open.lock().await.remove(label);
                    }
                    read => return read.map_err(|failure| failed(label, &failure)),
                }
            }
            Err(failed(label, &Failure::Gone("gone".into())))
        })?
    }
}
