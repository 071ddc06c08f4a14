//! Notifications about changes of the catalogue, in both eras.
//!
//! A burst of changes is one notification of each kind. A subscribed resource is reported only if
//! its bytes have changed since the last notification.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use repertoire_app::Caller;
use repertoire_core::{Digest, Uri};
use repertoire_registry::{ItemKind, Registry, Snapshot};
use rmcp::{
    Peer, RoleServer,
    model::{ResourceUpdatedNotificationParam, SubscriptionFilter},
    service::SubscriptionContext,
};
use tokio::task::AbortHandle;

use crate::service::{PromptExposure, SkillService};

/// The maximum number of subscriptions of one peer.
pub(super) const MAX_SUBSCRIPTIONS: usize = 1024;

/// The digest of a resource last reported to a peer, where it has one.
type KnownDigest = Option<Digest>;

/// The subscribed resources of a peer, with the digests last reported.
#[derive(Debug, Default)]
pub(super) struct Subscriptions(BTreeMap<String, (Uri, KnownDigest)>);

impl Subscriptions {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, uri: &str) -> bool {
        self.0.contains_key(uri)
    }

    pub(super) fn add(&mut self, snapshot: &Snapshot, uri: &str, parsed: Uri) {
        let known = resource_digest(snapshot, &parsed);
        self.0.insert(uri.to_owned(), (parsed, known));
    }

    pub(super) fn remove(&mut self, uri: &str) {
        self.0.remove(uri);
    }

    /// Returns the resources that have changed, and records their new digests.
    fn take_changed(&mut self, snapshot: &Snapshot) -> Vec<String> {
        let mut changed = Vec::new();
        for (text, (uri, known)) in &mut self.0 {
            let now = resource_digest(snapshot, uri);
            // Without digests a change cannot be ruled out, so it is reported.
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
        Uri::Skill(path) => snapshot
            .locate_file(path)
            .is_some_and(|(e, _)| e.metadata.dynamic),
        Uri::Body(id) => snapshot.get(id).is_some_and(|e| e.metadata.dynamic),
        Uri::Function(_) => false,
    }
}

/// Returns the digest of a resource without reading it.
fn resource_digest(snapshot: &Snapshot, uri: &Uri) -> KnownDigest {
    match uri {
        Uri::Index | Uri::DiscoveryIndex | Uri::Function(_) => None,
        Uri::Body(id) => snapshot.get(id).map(|entry| entry.metadata.digest()),
        Uri::Skill(path) => {
            let (entry, path) = snapshot.locate_file(path)?;
            entry.metadata.find_file(&path).map(|file| file.digest)
        }
    }
}

/// What kinds of entries changed since an event number.
#[derive(Debug, Clone, Copy, Default)]
struct ChangeNotice {
    skills: bool,
    prompts: bool,
}

fn changes_since(
    service: &SkillService,
    registry: &Registry,
    caller: &Caller,
    seen: u64,
) -> ChangeNotice {
    let Ok(events) = registry.wait_events(seen, Duration::ZERO) else {
        // The event log no longer reaches back that far.
        return ChangeNotice {
            skills: true,
            prompts: true,
        };
    };
    // What others change is not announced to those who cannot see it.
    let is_visible = |kind: ItemKind| {
        let mut events = events.iter().filter(|event| event.kind == kind);
        events.any(|event| caller.may_see_name(&event.id))
    };
    let (skills, prompts) = (is_visible(ItemKind::Skill), is_visible(ItemKind::Prompt));
    let as_prompts =
        service.options.prompts != PromptExposure::None || !service.options.aliases.is_empty();
    ChangeNotice {
        skills,
        prompts: prompts || (skills && as_prompts),
    }
}

/// The state of one connection that began with `initialize`.
#[derive(Debug, Default)]
pub(super) struct McpSession {
    pub(super) subscriptions: Mutex<Subscriptions>,
    task: Mutex<Option<AbortHandle>>,
}

impl Drop for McpSession {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl McpSession {
    /// Starts to notify a peer of changes; later calls have no effect.
    pub(super) fn start_notifying(
        self: &Arc<Self>,
        service: &Arc<SkillService>,
        peer: Peer<RoleServer>,
        caller: Caller,
    ) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_none() {
            let session = Arc::downgrade(self);
            let run = notify_session(service.clone(), session, peer, caller);
            *task = Some(tokio::spawn(run).abort_handle());
        }
    }
}

async fn notify_session(
    service: Arc<SkillService>,
    session: Weak<McpSession>,
    peer: Peer<RoleServer>,
    caller: Caller,
) {
    let Ok(registry) = service.registry().await else {
        return;
    };
    let mut changes = service.subscribe_changes();
    let mut tools = service.subscribe_tool_changes();
    let mut seen = registry.snapshot().seq();
    loop {
        tokio::select! {
            alive = changes.changed() => if alive.is_err() { return },
            _ = tools.changed() => {
                if peer.notify_tool_list_changed().await.is_err() {
                    return;
                }
                service.metrics.count_notification();
                continue;
            }
            () = service.stop.cancelled() => return,
        }
        let snapshot = service.visible_snapshot(registry, &caller);
        let news = changes_since(&service, registry, &caller, seen);
        seen = snapshot.seq();
        let Some(session) = session.upgrade() else {
            return;
        };
        let updated = if news.skills {
            let subscriptions = session.subscriptions.lock();
            subscriptions
                .unwrap_or_else(PoisonError::into_inner)
                .take_changed(&snapshot)
        } else {
            Vec::new()
        };
        drop(session);
        let mut alive = true;
        for uri in updated {
            let params = ResourceUpdatedNotificationParam::new(uri);
            alive &= peer.notify_resource_updated(params).await.is_ok();
            service.metrics.count_notification();
        }
        if news.skills {
            alive &= peer.notify_resource_list_changed().await.is_ok();
            service.metrics.count_notification();
        }
        if news.prompts {
            alive &= peer.notify_prompt_list_changed().await.is_ok();
            service.metrics.count_notification();
        }
        if !alive {
            return;
        }
    }
}

/// Returns the part of a filter that this server supports.
pub(super) fn accepted_filter(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut accepted = requested.clone();
    if let Some(uris) = &mut accepted.resource_subscriptions {
        uris.retain(|uri| uri.parse::<Uri>().is_ok());
        uris.truncate(MAX_SUBSCRIPTIONS);
    }
    accepted
}

/// Serves one `subscriptions/listen` until it is cancelled or the server shuts down.
pub(super) async fn serve_subscription(
    service: &SkillService,
    context: SubscriptionContext,
    caller: &Caller,
) {
    let registry = tokio::select! {
        registry = service.registry() => registry,
        () = context.cancelled() => return,
        () = service.stop.cancelled() => return,
    };
    let Ok(registry) = registry else {
        return;
    };
    let mut changes = service.subscribe_changes();
    let mut tools = service.subscribe_tool_changes();
    let snapshot = service.visible_snapshot(registry, caller);
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
                    service.metrics.count_notification();
                }
                continue;
            }
            () = context.cancelled() => return,
            () = service.stop.cancelled() => return,
        }
        let snapshot = service.visible_snapshot(registry, caller);
        let news = changes_since(service, registry, caller, seen);
        seen = snapshot.seq();
        let sink = context.sink();
        let mut alive = true;
        if news.skills {
            for uri in subscriptions.take_changed(&snapshot) {
                alive &= sink.notify_resource_updated(uri).await.is_ok();
                service.metrics.count_notification();
            }
        }
        if news.skills && filter.resources_list_changed == Some(true) {
            alive &= sink.notify_resource_list_changed().await.is_ok();
            service.metrics.count_notification();
        }
        if news.prompts && filter.prompts_list_changed == Some(true) {
            alive &= sink.notify_prompt_list_changed().await.is_ok();
            service.metrics.count_notification();
        }
        if !alive {
            return;
        }
    }
}
