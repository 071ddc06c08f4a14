//! The bus beside a server: a hub of its own, an engine it joins, or none.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use repertoire_core::Guard;
use repertoire_registry::{Settings as Sources, StateFrom, StoreUse};
use repertoire_serve::{
    Engine,
    http::{Auth, Names},
    iii::{
        Hub, HubOptions,
        functions::FunctionOptions,
        hub::{HubListener, Skills, StateTrigger},
        worker::{Worker, WorkerOptions},
    },
};
use tokio::task::JoinHandle;

use crate::{args::BusArgs, failure::Usage, settings::Settings};

/// What was asked for.
#[derive(Debug)]
pub(super) enum Side {
    /// No bus.
    None,
    /// A hub here.
    Hub(SocketAddr),
    /// An engine elsewhere.
    Join(String),
}

/// Refuses an address that no bus can have.
pub(super) fn check_url(url: &str) -> Result<()> {
    let rest = url
        .strip_prefix("ws://")
        .or_else(|| url.strip_prefix("wss://"));
    if rest.is_none_or(str::is_empty) {
        bail!(Usage(format!(
            "{url:?} is no address of a bus: write one such as ws://127.0.0.1:49134"
        )));
    }
    Ok(())
}

/// The same, once its port is taken.
#[derive(Debug)]
pub(super) enum Bound {
    None,
    Hub(HubListener),
    Join(String),
}

/// The same, while it runs.
#[derive(Debug)]
pub(super) enum Running {
    None,
    Hub(Arc<Hub>),
    Join(JoinHandle<()>),
}

impl Side {
    /// Reads flags, environment and settings.
    pub(super) fn of(bus: &BusArgs, settings: &Settings) -> Result<Self> {
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
            Err(_) => bail!(Usage(format!(
                "hub {place:?}: write a port, an address such as 127.0.0.1:49134, or off"
            ))),
        }
    }

    /// Where workers connect, if they do it here.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(address) => Some(*address),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Takes the port.
    pub(super) async fn bind(self) -> Result<Bound> {
        Ok(match self {
            Self::None => Bound::None,
            Self::Hub(address) => Bound::Hub(HubListener::bind(address).await?),
            Self::Join(url) => Bound::Join(url),
        })
    }
}

impl Bound {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Hub(listener) => Some(listener.address()),
            Self::None | Self::Join(_) => None,
        }
    }

    /// Where workers connect, here or elsewhere.
    pub(super) fn url(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Hub(listener) => Some(format!("ws://{}", listener.address())),
            Self::Join(url) => Some(url.clone()),
        }
    }

    /// What people are told.
    pub(super) fn describe(&self) -> Option<String> {
        let url = self.url()?;
        Some(match self {
            Self::Join(_) => format!("worker on {url}"),
            Self::Hub(_) | Self::None => format!("workers connect to {url}"),
        })
    }

    /// What is registered has to be kept somewhere.
    pub(super) fn adapt(&self, sources: &mut Sources, settings: &Settings) {
        match self {
            Self::Join(_) => sources.state = StateFrom::Bus,
            Self::Hub(_) if sources.account.is_none() => {
                sources.account = Some(settings.account.clone());
                sources.stores = StoreUse::Registered;
            }
            Self::Hub(_) | Self::None => {}
        }
    }

    pub(super) fn start(
        self,
        engine: &Arc<Engine>,
        names: &Names,
        auth: &Arc<Auth>,
        bus: &BusArgs,
        settings: &Settings,
    ) -> Running {
        let functions = FunctionOptions {
            guard: Guard::new(settings.guard.iter().cloned()),
            ..FunctionOptions::default()
        };
        let tools = settings.tools.iter().chain(&bus.tool).cloned().collect();
        match self {
            Self::None => Running::None,
            Self::Hub(listener) => {
                let options = HubOptions {
                    tools,
                    functions,
                    skills: if bus.bare_hub {
                        Skills::Elsewhere
                    } else {
                        Skills::Here
                    },
                    state: if bus.silent_state {
                        StateTrigger::Missing
                    } else {
                        StateTrigger::Provided
                    },
                    ..HubOptions::default()
                };
                let hub = Hub::start(engine, options);
                // A page that may ask over MCP is not therefore a worker.
                let names = Names {
                    hosts: names.hosts.clone(),
                    origins: Vec::new(),
                };
                tokio::spawn(listener.serve(hub.clone(), names, auth.clone()));
                Running::Hub(hub)
            }
            Self::Join(url) => {
                let options = WorkerOptions {
                    url,
                    functions,
                    tools,
                    ..WorkerOptions::default()
                };
                Running::Join(tokio::spawn(Worker::new(engine.clone(), options).run()))
            }
        }
    }
}

impl Running {
    /// Waits for workers to be told, or for this one to be gone.
    pub(super) async fn end(self) {
        match self {
            Self::None => {}
            Self::Hub(hub) => {
                let _ = tokio::time::timeout(Duration::from_secs(2), hub.end()).await;
            }
            Self::Join(worker) => {
                let _ = tokio::time::timeout(Duration::from_secs(5), worker).await;
            }
        }
    }
}
