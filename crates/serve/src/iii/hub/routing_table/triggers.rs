//! Trigger types: their providers, their subscribers, and subscriptions without a provider.

use std::sync::Arc;

use repertoire_core::markdown::truncate_text;
use serde_json::{Value, json, value::RawValue};

use super::{
    super::{
        super::protocol::HubMessage,
        state::{STATE_TRIGGER, StateFilter},
    },
    ENTRY_BYTES, MAX_METADATA_BYTES, NAMESPACE, RegistrationRefusal, RoutingTable, WorkerId,
    parse_raw,
};

/// The most characters of a configuration in a listing.
const MAX_SUMMARY_CHARS: usize = 120;

/// The provider of a trigger type, which notifies its subscribers.
#[derive(Debug)]
pub(super) struct TriggerProvider {
    /// `None`: the hub itself.
    pub(super) worker: Option<WorkerId>,
    description: String,
    /// What it counts against the limit of its connection.
    pub(super) bytes: usize,
}

/// A subscription to a trigger type, with or without a provider.
#[derive(Debug)]
pub(super) struct Subscription {
    subscriber: WorkerId,
    kind: Arc<str>,
    function_id: String,
    config: Box<RawValue>,
    metadata: Option<Box<RawValue>>,
    /// What it counts against the limit of its connection.
    bytes: usize,
    /// The keys it is about, for the trigger type of the state.
    filter: Option<Arc<StateFilter>>,
}

impl Subscription {
    fn register_message(&self, id: &str) -> String {
        HubMessage::RegisterTrigger {
            id,
            trigger_type: &self.kind,
            function_id: &self.function_id,
            config: &self.config,
            metadata: self.metadata.as_deref(),
        }
        .to_json()
    }
}

fn to_boxed(raw: Option<&RawValue>) -> Option<Box<RawValue>> {
    raw.map(ToOwned::to_owned)
}

impl RoutingTable {
    /// Adds trigger types that the hub itself provides.
    pub(in crate::iii::hub) fn add_builtin_types(
        &mut self,
        types: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) {
        for (id, description) in types {
            let provider = TriggerProvider {
                worker: None,
                description: description.to_owned(),
                bytes: 0,
            };
            self.types.insert(id.into(), provider);
        }
    }

    /// Makes a worker the provider of a trigger type, and sends it the subscriptions.
    pub(in crate::iii::hub) fn provide_type(
        &mut self,
        id: &WorkerId,
        kind: &str,
        about: &str,
    ) -> Result<(), RegistrationRefusal> {
        if let Some(provider) = self.types.get(kind)
            && provider.worker.as_ref() != Some(id)
        {
            let owner = provider.worker.clone().unwrap_or_else(|| "hub".into());
            return Err(RegistrationRefusal::Taken(owner));
        }
        let Some(worker) = self.workers.get(id) else {
            return Ok(());
        };
        if worker.types.len() >= self.max_registrations && !worker.types.contains(kind) {
            return Err(RegistrationRefusal::TooMany);
        }
        let name: Arc<str> = kind.into();
        let description = truncate_text(about, 8 * 1024);
        let bytes = description.len() + kind.len() + ENTRY_BYTES;
        let replaced = self.types.get(kind).map_or(0, |known| known.bytes);
        self.charge_bytes(id, bytes, replaced)?;
        if let Some(worker) = self.workers.get_mut(id) {
            worker.types.insert(name.clone());
        }
        let provider = TriggerProvider {
            worker: Some(id.clone()),
            description,
            bytes,
        };
        self.types.insert(name, provider);
        for (trigger, subscription) in &self.subscriptions {
            if *subscription.kind == *kind {
                self.send_to(id, subscription.register_message(trigger));
            }
        }
        Ok(())
    }

    pub(in crate::iii::hub) fn withdraw_type(&mut self, id: &WorkerId, kind: &str) {
        let own = self
            .types
            .get(kind)
            .is_some_and(|p| p.worker.as_ref() == Some(id));
        if own {
            if let Some(provider) = self.types.remove(kind) {
                self.release_bytes(id, provider.bytes);
            }
            if let Some(worker) = self.workers.get_mut(id) {
                worker.types.remove(kind);
            }
        }
    }

    /// Adds a subscription to a trigger type, and notifies its provider.
    pub(in crate::iii::hub) fn subscribe(
        &mut self,
        id: &WorkerId,
        trigger: &str,
        kind: &str,
        function_id: &str,
        config: Option<&RawValue>,
        metadata: Option<&RawValue>,
    ) -> Result<(), RegistrationRefusal> {
        let wanted = match (kind == STATE_TRIGGER).then(|| StateFilter::from_config(config)) {
            None => None,
            Some(Ok(wanted)) => Some(Arc::new(wanted)),
            Some(Err(reason)) => return Err(RegistrationRefusal::Config(reason)),
        };
        let is_long =
            |raw: Option<&RawValue>| raw.is_some_and(|r| r.get().len() > MAX_METADATA_BYTES);
        if is_long(config) || is_long(metadata) {
            return Err(RegistrationRefusal::Config(format!(
                "has at most {MAX_METADATA_BYTES} bytes"
            )));
        }
        let known = self.subscriptions.get(trigger);
        if let Some(taken) = known
            && taken.subscriber != *id
        {
            return Err(RegistrationRefusal::Taken(taken.subscriber.clone()));
        }
        let Some(worker) = self.workers.get(id) else {
            return Ok(());
        };
        if known.is_none() && worker.triggers.len() >= self.max_registrations {
            return Err(RegistrationRefusal::TooMany);
        }
        let raw = [config, metadata].into_iter().flatten();
        let bytes = raw.map(|raw| raw.get().len()).sum::<usize>();
        let bytes = bytes + trigger.len() + kind.len() + function_id.len() + ENTRY_BYTES;
        // The earlier one still counts here, and gives back its bytes below.
        self.charge_bytes(id, bytes, 0)?;
        // A worker repeats its subscriptions after a reconnect: replace the earlier one.
        self.unsubscribe(trigger);
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        let name: Arc<str> = trigger.into();
        worker.triggers.insert(name.clone());
        let subscription = Subscription {
            subscriber: id.clone(),
            kind: kind.into(),
            function_id: function_id.to_owned(),
            config: to_boxed(config).unwrap_or_else(|| RawValue::NULL.to_owned()),
            metadata: to_boxed(metadata),
            bytes,
            filter: wanted,
        };
        let of_type = self.by_type.entry(subscription.kind.clone());
        of_type.or_default().insert(name.clone());
        let provider = self.types.get(kind).and_then(|p| p.worker.clone());
        if let Some(provider) = provider {
            self.send_to(&provider, subscription.register_message(trigger));
        }
        self.subscriptions.insert(name, subscription);
        Ok(())
    }

    /// Removes a subscription if it belongs to the worker.
    /// Ends a subscription of a worker; returns whether there was one.
    pub(in crate::iii::hub) fn unsubscribe_own(&mut self, id: &WorkerId, trigger: &str) -> bool {
        let own = self.subscriptions.get(trigger);
        let is_own = own.is_some_and(|subscription| subscription.subscriber == *id);
        if is_own {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.triggers.remove(trigger);
            }
            self.unsubscribe(trigger);
        }
        is_own
    }

    /// Returns what a subscriber keeps with its subscription.
    pub(in crate::iii::hub) fn trigger_metadata(&self, trigger: &str) -> Option<Value> {
        let subscription = self.subscriptions.get(trigger)?;
        let metadata = subscription.metadata.as_deref()?;
        parse_raw(Some(metadata))
    }

    pub(super) fn unsubscribe(&mut self, trigger: &str) {
        let Some(subscription) = self.subscriptions.remove(trigger) else {
            return;
        };
        self.release_bytes(&subscription.subscriber, subscription.bytes);
        if let Some(of_type) = self.by_type.get_mut(&subscription.kind) {
            of_type.remove(trigger);
            if of_type.is_empty() {
                self.by_type.remove(&subscription.kind);
            }
        }
        let provider = self.types.get(&subscription.kind);
        if let Some(provider) = provider.and_then(|p| p.worker.as_ref()) {
            let message = HubMessage::UnregisterTrigger {
                id: trigger,
                trigger_type: &subscription.kind,
            };
            self.send_to(provider, message.to_json());
        }
    }

    /// Reports a refused subscription to its subscriber.
    pub(in crate::iii::hub) fn report_failed_subscription(
        &self,
        from: &WorkerId,
        trigger: &str,
        error: &RawValue,
    ) {
        let Some(subscription) = self.subscriptions.get(trigger) else {
            return;
        };
        let provider = self.types.get(&subscription.kind);
        if provider.and_then(|p| p.worker.as_ref()) == Some(from) {
            let message = HubMessage::TriggerRegistrationResult {
                id: trigger,
                trigger_type: &subscription.kind,
                function_id: &subscription.function_id,
                error,
            };
            self.send_to(&subscription.subscriber, message.to_json());
        }
    }

    /// Returns the functions subscribed to a trigger type; for the state, those that match a key.
    pub(in crate::iii::hub) fn subscribers(
        &self,
        kind: &str,
        row: Option<(&str, &str)>,
    ) -> Vec<String> {
        let followers = self
            .subscriptions_of(kind)
            .filter(|subscription| match row {
                Some((scope, key)) => {
                    let wanted = subscription.filter.as_ref();
                    wanted.is_some_and(|w| w.condition.is_none() && w.matches_key(scope, key))
                }
                None => true,
            });
        followers.map(|s| s.function_id.clone()).collect()
    }

    /// Returns the functions that match a key of the state, each with its condition function.
    pub(in crate::iii::hub) fn conditional_subscribers(
        &self,
        scope: &str,
        key: &str,
    ) -> Vec<(String, String)> {
        let followers = self
            .subscriptions_of(STATE_TRIGGER)
            .filter_map(|subscription| {
                let wanted = subscription.filter.as_ref()?;
                let condition = wanted
                    .condition
                    .as_ref()
                    .filter(|_| wanted.matches_key(scope, key))?;
                Some((subscription.function_id.clone(), condition.clone()))
            });
        followers.collect()
    }

    fn subscriptions_of(&self, kind: &str) -> impl Iterator<Item = &Subscription> {
        let of_type = self.by_type.get(kind).into_iter().flatten();
        of_type.filter_map(|id| self.subscriptions.get(id))
    }

    pub(in crate::iii::hub) fn list_types(&self) -> Vec<Value> {
        let types = self.types.iter();
        types
            .map(|(id, provider)| {
                let owner = provider.worker.as_ref();
                let name = owner.map_or_else(|| json!("engine"), |owner| self.worker_name(owner));
                json!({
                    "id": id, "namespace": NAMESPACE, "worker_name": name,
                    "description": provider.description,
                })
            })
            .collect()
    }

    pub(in crate::iii::hub) fn list_triggers(&self) -> Vec<Value> {
        let all = self.subscriptions.iter();
        all.map(|(id, subscription)| {
            json!({
                "id": id, "trigger_type": subscription.kind,
                "function_id": subscription.function_id,
                "worker_name": self.worker_name(&subscription.subscriber),
                "config": parse_raw(Some(&subscription.config)),
                "config_summary": truncate_text(subscription.config.get(), MAX_SUMMARY_CHARS),
            })
        })
        .collect()
    }
}
