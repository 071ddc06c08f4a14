//! Dropping the last handles of a service and its hub frees both.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test"
)]

use std::{sync::Arc, time::Duration};

use repertoire_registry::{Registry, RegistrySettings};
use repertoire_serve::{
    ServeOptions, SkillService,
    iii::{Hub, HubOptions},
};

#[tokio::test]
async fn dropping_a_service_and_its_hub_frees_both() {
    let registry = Registry::open(RegistrySettings::default()).unwrap();
    let weak_registry = Arc::downgrade(&registry);
    let service = SkillService::with_registry(registry, ServeOptions::default());
    let hub = Hub::start(&service, HubOptions::default());
    let (weak_service, weak_hub) = (Arc::downgrade(&service), Arc::downgrade(&hub));
    // The tasks of the hub have started.
    tokio::task::yield_now().await;
    drop(service);
    drop(hub);
    let freed = async {
        while weak_hub.strong_count() + weak_service.strong_count() + weak_registry.strong_count()
            > 0
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed)
        .await
        .expect("the hub, the service and the registry are freed");
}
