//! The bus mode of a server: its own hub, an engine it joins, or none.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use repertoire_core::FunctionGuard;
use repertoire_registry::{CatalogueContent, RegisteredContent, RegistrySettings as Sources};
use repertoire_serve::{
    SkillService,
    http::{AllowedHosts, Auth},
    iii::{
        Hub, HubOptions,
        functions::FunctionOptions,
        hub::{HubListener, SkillsProvider, StateTrigger},
        worker::{SkillsWorker, WorkerOptions},
    },
};
use tokio::task::JoinHandle;

use crate::{args::BusArgs, failure::UsageError, settings::CliSettings};

/// The requested bus.
#[derive(Debug)]
pub(super) enum BusMode {
    /// No bus.
    None,
    /// A hub here.
    Hub(SocketAddr),
    /// An engine elsewhere.
    Join(String),
}

/// Refuses an invalid bus address.
pub(super) fn check_url(url: &str) -> Result<()> {
    let rest = url
        .strip_prefix("ws://")
        .or_else(|| url.strip_prefix("wss://"));
    if rest.is_none_or(str::is_empty) {
        bail!(UsageError(format!(
            "{url:?} is not a bus address: use one such as ws://127.0.0.1:49134"
        )));
    }
    Ok(())
}

/// The bus after its port is bound.
#[derive(Debug)]
pub(super) enum BoundBus {
    None,
    Hub(HubListener),
    Join(String),
}

/// The running bus.
#[derive(Debug)]
pub(super) enum ActiveBus {
    None,
    Hub(Arc<Hub>),
    Join(JoinHandle<()>),
}

impl BusMode {
    /// Reads flags, environment and settings.
    pub(super) fn from_args(bus: &BusArgs, settings: &CliSettings) -> Result<Self> {
        if let Some(url) = &bus.join {
            check_url(url)?;
            return Ok(Self::Join(url.clone()));
        }
        let asked = bus.hub.clone().filter(|place| !place.is_empty());
        let place = asked.or_else(|| settings.hub.clone());
        let place = place.unwrap_or_else(|| "127.0.0.1:49134".to_owned());
        if place.eq_ignore_ascii_case("off") {
            return Ok(Self::None);
        }
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let address = place.parse::<u16>().map(loopback);
        match address.or_else(|_| place.parse::<SocketAddr>()) {
            Ok(address) => Ok(Self::Hub(address)),
            Err(_) => bail!(UsageError(format!(
                "hub {place:?}: write a port, an address such as 127.0.0.1:49134, or off"
            ))),
        }
    }

    /// Returns the address of the local hub, if there is one.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(address) => Some(*address),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Binds the port.
    pub(super) async fn bind(self) -> Result<BoundBus> {
        Ok(match self {
            Self::None => BoundBus::None,
            Self::Hub(address) => BoundBus::Hub(HubListener::bind(address).await?),
            Self::Join(url) => BoundBus::Join(url),
        })
    }
}

impl BoundBus {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(listener) => Some(listener.address()),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Returns the URL that workers connect to.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Hub(listener) => Some(format!("ws://{}", listener.address())),
            Self::Join(url) => Some(url.clone()),
        }
    }

    /// Describes the bus for the user.
    pub(super) fn describe(&self) -> Option<String> {
        let url = self.url()?;
        Some(match self {
            Self::Join(_) => format!("worker on {url}"),
            Self::Hub(_) | Self::None => format!("workers connect to {url}"),
        })
    }

    /// Makes sure that registered skills have a store.
    pub(super) fn adapt_sources(&self, sources: &mut Sources, settings: &CliSettings) {
        match self {
            Self::Join(_) => sources.state = RegisteredContent::Bus,
            Self::Hub(_) if sources.account.is_none() => {
                sources.account = Some(settings.account.clone());
                sources.stores = CatalogueContent::Registered;
            }
            Self::Hub(_) | Self::None => {}
        }
    }

    pub(super) fn start_bus(
        self,
        engine: &Arc<SkillService>,
        names: &AllowedHosts,
        auth: &Arc<Auth>,
        bus: &BusArgs,
        settings: &CliSettings,
    ) -> ActiveBus {
        let functions = FunctionOptions {
            guard: FunctionGuard::new(settings.guard.iter().cloned()),
            ..FunctionOptions::default()
        };
        let tools = settings.tools.iter().chain(&bus.tool).cloned().collect();
        match self {
            Self::None => ActiveBus::None,
            Self::Hub(listener) => {
                let options = HubOptions {
                    tools,
                    functions,
                    skills_provider: if bus.bare_hub {
                        SkillsProvider::OnWorker
                    } else {
                        SkillsProvider::OnHub
                    },
                    state_trigger: if bus.silent_state {
                        StateTrigger::Missing
                    } else {
                        StateTrigger::Provided
                    },
                    ..HubOptions::default()
                };
                let hub = Hub::start(engine, options);
                // A web origin that is allowed over MCP may not connect as a worker.
                let names = AllowedHosts {
                    hosts: names.hosts.clone(),
                    origins: Vec::new(),
                };
                tokio::spawn(listener.serve(hub.clone(), names, auth.clone()));
                ActiveBus::Hub(hub)
            }
            Self::Join(url) => {
                let options = WorkerOptions {
                    url,
                    functions,
                    tools,
                    ..WorkerOptions::default()
                };
                ActiveBus::Join(tokio::spawn(
                    SkillsWorker::new(engine.clone(), options).run(),
                ))
            }
        }
    }
}

impl ActiveBus {
    /// Waits until workers are notified, or until this worker has disconnected.
    pub(super) async fn shut_down(self) {
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
