//! Keeps the listings of other servers up to date while a server runs.

use std::{sync::Arc, time::Duration};

use repertoire_registry::Error;

use crate::service::SkillService;

/// How often the listings are refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_mins(5);

/// Refreshes the listings of all other servers of a service's account until the service stops, then
/// closes the connections.
pub async fn follow_servers(service: Arc<SkillService>) {
    let Ok(registry) = service.registry().await else {
        return;
    };
    let Some(pool) = service.remotes.get().cloned() else {
        return;
    };
    let mut changes = service.subscribe_changes();
    loop {
        for (label, target) in pool.load_targets().unwrap_or_default() {
            let asked = tokio::select! {
                asked = pool.list_skills(label.as_str(), &target) => asked,
                () = service.stop.cancelled() => return pool.shut_down(),
            };
            let registry = registry.clone();
            // Storing a listing blocks on the disk.
            let kept = tokio::task::spawn_blocking(move || {
                let (listing, mut refused) = asked?;
                refused.extend(registry.put_listing(&label, &listing)?);
                Ok::<_, Error>(refused)
            });
            match kept.await {
                Ok(Ok(refused)) => {
                    for one in refused {
                        tracing::warn!(uri = one.uri, reason = one.message, "skipped");
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "the server could not be listed"),
                Err(error) => tracing::warn!(%error, "the listing could not be stored"),
            }
        }
        let next_refresh = tokio::time::sleep(REFRESH_INTERVAL);
        tokio::pin!(next_refresh);
        loop {
            tokio::select! {
                () = &mut next_refresh => break,
                // Removing a server removes its skills from the catalogue.
                alive = changes.changed() => match alive {
                    Ok(()) => pool.close_removed().await,
                    Err(_) => return pool.shut_down(),
                },
                () = service.stop.cancelled() => return pool.shut_down(),
            }
        }
    }
}
