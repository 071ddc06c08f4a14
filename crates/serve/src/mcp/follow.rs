//! Changes of the catalogue as notifications, in both eras.
//!
//! A burst of changes is one notification of each kind. A subscribed resource is told of only if
//! its bytes are others than when it was last told of.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use repertoire_core::{Digest, Uri};
use repertoire_registry::{Kind, Registry, Snapshot};
use rmcp::{
    Peer, RoleServer,
    model::{ResourceUpdatedNotificationParam, SubscriptionFilter},
    service::SubscriptionContext,
};
use tokio::task::AbortHandle;

use crate::engine::{Engine, Exposure};

/// The most resources one peer may subscribe to.
pub(super) const MAX_SUBSCRIPTIONS: usize = 1024;

/// What a peer knows of a resource: the digest of its bytes, where it has one.
type Known = Option<Digest>;

/// The resources a peer follows, and what it knows of them.
#[derive(Debug, Default)]
pub(super) struct Subscriptions(BTreeMap<String, (Uri, Known)>);

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        self.0.contains_key(uri)
    }

    pub(super) fn add(&mut self, snapshot: &Snapshot, uri: &str, parsed: Uri) {
        let known = fingerprint(snapshot, &parsed);
        self.0.insert(uri.to_owned(), (parsed, known));
    }

    pub(super) fn remove(&mut self, uri: &str) {
        self.0.remove(uri);
    }

    /// The resources that are others than they were known to be; from now on they are known.
    fn changed(&mut self, snapshot: &Snapshot) -> Vec<String> {
        let mut changed = Vec::new();
        for (text, (uri, known)) in &mut self.0 {
            let now = fingerprint(snapshot, uri);
            // Without a digest before and after nobody knows, so it is told.
            if now != *known || (now.is_none() && is_dynamic(snapshot, uri)) {
                *known = now;
                changed.push(text.clone());
            }
        }
        changed
    }
}

fn is_dynamic(snapshot: &Snapshot, uri: &Uri) -> bool {
    match uri {
        Uri::Index | Uri::DiscoveryIndex => true,
        Uri::Skill(path) => snapshot.locate(path).is_some_and(|(e, _)| e.head.dynamic),
        Uri::Body(id) => snapshot.get(id).is_some_and(|e| e.head.dynamic),
        Uri::Function(_) => false,
    }
}

/// What tells one state of a resource from another, without reading it.
fn fingerprint(snapshot: &Snapshot, uri: &Uri) -> Known {
    match uri {
        Uri::Index | Uri::DiscoveryIndex | Uri::Function(_) => None,
        Uri::Body(id) => snapshot.get(id).map(|entry| entry.head.digest()),
        Uri::Skill(path) => {
            let (entry, path) = snapshot.locate(path)?;
            entry.head.file(&path).map(|file| file.digest)
        }
    }
}

/// What changed since a number.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    skills: bool,
    prompts: bool,
}

fn news(engine: &Engine, registry: &Registry, seen: u64) -> News {
    let Ok(events) = registry.wait_events(seen, Duration::ZERO) else {
        // Too far behind to say.
        return News {
            skills: true,
            prompts: true,
        };
    };
    let skills = events.iter().any(|event| event.kind == Kind::Skill);
    let prompts = events.iter().any(|event| event.kind == Kind::Prompt);
    let as_prompts = engine.options.prompts != Exposure::None || !engine.options.aliases.is_empty();
    News {
        skills,
        prompts: prompts || (skills && as_prompts),
    }
}

/// The state of one connection that began with `initialize`.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) subscriptions: Mutex<Subscriptions>,
    task: Mutex<Option<AbortHandle>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl Session {
    /// Starts to tell a peer of changes, once.
    pub(super) fn start(self: &Arc<Self>, engine: &Arc<Engine>, peer: Peer<RoleServer>) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_none() {
            let session = Arc::downgrade(self);
            let run = tell(engine.clone(), session, peer);
            *task = Some(tokio::spawn(run).abort_handle());
        }
    }
}

async fn tell(engine: Arc<Engine>, session: Weak<Session>, peer: Peer<RoleServer>) {
    let Ok(registry) = engine.registry().await else {
        return;
    };
    let mut changes = engine.changes();
    let mut tools = engine.tool_changes();
    let mut seen = registry.snapshot().seq();
    loop {
        tokio::select! {
            alive = changes.changed() => if alive.is_err() { return },
            _ = tools.changed() => {
                if peer.notify_tool_list_changed().await.is_err() {
                    return;
                }
                engine.metrics.notified();
                continue;
            }
            () = engine.stop.cancelled() => return,
        }
        let snapshot = registry.snapshot();
        let news = news(&engine, registry, seen);
        seen = snapshot.seq();
        let Some(session) = session.upgrade() else {
            return;
        };
        let updated = if news.skills {
            let subscriptions = session.subscriptions.lock();
            subscriptions
                .unwrap_or_else(PoisonError::into_inner)
                .changed(&snapshot)
        } else {
            Vec::new()
        };
        drop(session);
        let mut alive = true;
        for uri in updated {
            let params = ResourceUpdatedNotificationParam::new(uri);
            alive &= peer.notify_resource_updated(params).await.is_ok();
            engine.metrics.notified();
        }
        if news.skills {
            alive &= peer.notify_resource_list_changed().await.is_ok();
            engine.metrics.notified();
        }
        if news.prompts {
            alive &= peer.notify_prompt_list_changed().await.is_ok();
            engine.metrics.notified();
        }
        if !alive {
            return;
        }
    }
}

/// The part of a filter that this server can serve.
pub(super) fn accepted(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut accepted = requested.clone();
    if let Some(uris) = &mut accepted.resource_subscriptions {
        uris.retain(|uri| uri.parse::<Uri>().is_ok());
        uris.truncate(MAX_SUBSCRIPTIONS);
    }
    accepted
}

/// Serves one `subscriptions/listen` until it is cancelled or the server goes away.
pub(super) async fn listen(engine: &Engine, context: SubscriptionContext) {
    let registry = tokio::select! {
        registry = engine.registry() => registry,
        () = context.cancelled() => return,
        () = engine.stop.cancelled() => return,
    };
    let Ok(registry) = registry else {
        return;
    };
    let mut changes = engine.changes();
    let mut tools = engine.tool_changes();
    let snapshot = registry.snapshot();
    let mut seen = snapshot.seq();
    let filter = context.accepted().clone();
    let mut subscriptions = Subscriptions::default();
    for uri in filter.resource_subscriptions.iter().flatten() {
        if let Ok(parsed) = uri.parse() {
            subscriptions.add(&snapshot, uri, parsed);
        }
    }
    loop {
        tokio::select! {
            alive = changes.changed() => if alive.is_err() { return },
            _ = tools.changed() => {
                if filter.tools_list_changed == Some(true) {
                    if context.sink().notify_tool_list_changed().await.is_err() {
                        return;
                    }
                    engine.metrics.notified();
                }
                continue;
            }
            () = context.cancelled() => return,
            () = engine.stop.cancelled() => return,
        }
        let snapshot = registry.snapshot();
        let news = news(engine, registry, seen);
        seen = snapshot.seq();
        let sink = context.sink();
        let mut alive = true;
        if news.skills {
            for uri in subscriptions.changed(&snapshot) {
                alive &= sink.notify_resource_updated(uri).await.is_ok();
                engine.metrics.notified();
            }
        }
        if news.skills && filter.resources_list_changed == Some(true) {
            alive &= sink.notify_resource_list_changed().await.is_ok();
            engine.metrics.notified();
        }
        if news.prompts && filter.prompts_list_changed == Some(true) {
            alive &= sink.notify_prompt_list_changed().await.is_ok();
            engine.metrics.notified();
        }
        if !alive {
            return;
        }
    }
}
