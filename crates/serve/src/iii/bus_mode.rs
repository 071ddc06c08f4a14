//! The bus of a server: its own hub, an engine it joins, or none.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use repertoire_registry::{CatalogueContent, RegisteredContent, RegistrySettings};
use tokio::task::JoinHandle;

use super::{
    Hub, HubOptions,
    hub::HubListener,
    worker::{SkillsWorker, WorkerOptions},
};
use crate::{
    error::{Error, Result},
    http::{AllowedHosts, Auth},
    service::SkillService,
};

/// The requested bus.
#[derive(Debug)]
pub enum BusMode {
    /// No bus.
    None,
    /// A hub here.
    Hub(SocketAddr),
    /// An engine elsewhere.
    Join(String),
}

/// Refuses an invalid bus address.
pub fn check_url(url: &str) -> Result<()> {
    let rest = url
        .strip_prefix("ws://")
        .or_else(|| url.strip_prefix("wss://"));
    if rest.is_none_or(str::is_empty) {
        return Err(Error::InvalidOption {
            what: "bus address",
            value: url.to_owned(),
            rule: "use one such as ws://127.0.0.1:49134".to_owned(),
        });
    }
    Ok(())
}

/// The URL of a hub, given its port or address.
pub fn hub_url(place: &str) -> String {
    match place.parse::<u16>() {
        Ok(port) => format!("ws://127.0.0.1:{port}"),
        Err(_) => format!("ws://{place}"),
    }
}

/// The bus after its port is bound.
#[derive(Debug)]
pub enum BoundBus {
    /// No bus.
    None,
    /// A hub here, which does not accept connections yet.
    Hub(HubListener),
    /// An engine elsewhere.
    Join(String),
}

/// The running bus.
#[derive(Debug)]
pub enum ActiveBus {
    /// No bus.
    None,
    /// A hub here.
    Hub(Arc<Hub>),
    /// A worker on an engine elsewhere.
    Join(JoinHandle<()>),
}

impl BusMode {
    /// A hub at a port or an address, or none for `off`.
    pub fn hub_at(place: &str) -> Result<Self> {
        if place.eq_ignore_ascii_case("off") {
            return Ok(Self::None);
        }
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let address = place.parse::<u16>().map(loopback);
        match address.or_else(|_| place.parse::<SocketAddr>()) {
            Ok(address) => Ok(Self::Hub(address)),
            Err(_) => Err(Error::InvalidOption {
                what: "hub",
                value: place.to_owned(),
                rule: "write a port, an address such as 127.0.0.1:49134, or off".to_owned(),
            }),
        }
    }

    /// A worker on the engine at a URL.
    pub fn join(url: &str) -> Result<Self> {
        check_url(url)?;
        Ok(Self::Join(url.to_owned()))
    }

    /// Returns the address of the local hub, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(address) => Some(*address),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Binds the port.
    pub async fn bind(self) -> Result<BoundBus> {
        Ok(match self {
            Self::None => BoundBus::None,
            Self::Hub(address) => BoundBus::Hub(HubListener::bind(address).await?),
            Self::Join(url) => BoundBus::Join(url),
        })
    }
}

impl BoundBus {
    /// Returns the bound address of the hub, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(listener) => Some(listener.address()),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Returns the URL that workers connect to.
    pub fn url(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Hub(listener) => Some(format!("ws://{}", listener.address())),
            Self::Join(url) => Some(url.clone()),
        }
    }

    /// Describes the bus for the user.
    pub fn describe(&self) -> Option<String> {
        let url = self.url()?;
        Some(match self {
            Self::Join(_) => format!("worker on {url}"),
            Self::Hub(_) | Self::None => format!("workers connect to {url}"),
        })
    }

    /// Makes sure that registered skills have a store.
    pub fn adapt_sources(&self, sources: &mut RegistrySettings, account: &Path) {
        match self {
            Self::Join(_) => sources.state = RegisteredContent::Bus,
            Self::Hub(_) if sources.account.is_none() => {
                sources.account = Some(account.to_owned());
                sources.stores = CatalogueContent::Registered;
            }
            Self::Hub(_) | Self::None => {}
        }
    }

    /// Starts the hub, or the worker on another bus. The options of the hub count for both.
    pub fn start(
        self,
        service: &Arc<SkillService>,
        names: &AllowedHosts,
        auth: &Arc<Auth>,
        options: HubOptions,
        account: &Path,
    ) -> ActiveBus {
        match self {
            Self::None => ActiveBus::None,
            Self::Hub(listener) => {
                let hub = Hub::start(service, options);
                // A web origin that is allowed over MCP may not connect as a worker.
                let names = names.without_origins();
                tokio::spawn(listener.serve(hub.clone(), names, auth.clone()));
                ActiveBus::Hub(hub)
            }
            Self::Join(url) => {
                let options = WorkerOptions {
                    url,
                    account: Some(account.to_owned()),
                    functions: options.functions,
                    tools: options.tools,
                    ..WorkerOptions::default()
                };
                let worker = SkillsWorker::new(service.clone(), options);
                ActiveBus::Join(tokio::spawn(worker.run()))
            }
        }
    }
}

impl ActiveBus {
    /// Waits until workers are notified, or until this worker has disconnected.
    pub async fn shut_down(self) {
        match self {
            Self::None => {}
            Self::Hub(hub) => {
                let _ = tokio::time::timeout(Duration::from_secs(2), hub.shut_down()).await;
            }
            Self::Join(worker) => {
                let _ = tokio::time::timeout(Duration::from_secs(5), worker).await;
            }
        }
    }
}
