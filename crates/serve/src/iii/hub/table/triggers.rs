//! Trigger types: who provides them, who follows them, and who waits for a provider.

use std::sync::Arc;

use repertoire_core::markdown::cut;
use serde_json::{Value, json, value::RawValue};

use super::{
    super::{
        super::protocol::Message,
        state::{TRIGGER, Wanted},
    },
    MAX_ABOUT, Refusal, Table, WorkerId, value,
};

/// Who tells followers of a trigger type.
#[derive(Debug)]
pub(super) struct Provider {
    /// `None`: the hub itself.
    pub(super) worker: Option<WorkerId>,
    description: String,
}

/// Somebody who follows a trigger type, whether anybody provides it or not.
#[derive(Debug)]
pub(super) struct Subscription {
    subscriber: WorkerId,
    kind: Arc<str>,
    function_id: String,
    config: Box<RawValue>,
    metadata: Option<Box<RawValue>>,
    /// What of the state it is about, if it is about the state.
    wanted: Option<Arc<Wanted>>,
}

impl Subscription {
    fn message(&self, id: &str) -> String {
        Message::RegisterTrigger {
            id,
            trigger_type: &self.kind,
            function_id: &self.function_id,
            config: &self.config,
            metadata: self.metadata.as_deref(),
        }
        .text()
    }
}

fn owned(raw: Option<&RawValue>) -> Option<Box<RawValue>> {
    raw.map(ToOwned::to_owned)
}

impl Table {
    /// Trigger types of the hub itself.
    pub(in crate::iii::hub) fn provide(
        &mut self,
        types: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) {
        for (id, description) in types {
            let provider = Provider {
                worker: None,
                description: description.to_owned(),
            };
            self.types.insert(id.into(), provider);
        }
    }

    /// Makes a worker the one who tells followers of a trigger type, and tells it of them.
    pub(in crate::iii::hub) fn provide_type(
        &mut self,
        id: &WorkerId,
        kind: &str,
        about: &str,
    ) -> Result<(), Refusal> {
        if let Some(provider) = self.types.get(kind)
            && provider.worker.as_ref() != Some(id)
        {
            let owner = provider.worker.clone().unwrap_or_else(|| "hub".into());
            return Err(Refusal::Taken(owner));
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return Ok(());
        };
        if worker.types.len() >= self.max_registrations && !worker.types.contains(kind) {
            return Err(Refusal::TooMany);
        }
        let name: Arc<str> = kind.into();
        worker.types.insert(name.clone());
        let provider = Provider {
            worker: Some(id.clone()),
            description: cut(about, 8 * 1024),
        };
        self.types.insert(name, provider);
        for (trigger, subscription) in &self.subscriptions {
            if *subscription.kind == *kind {
                self.send(id, subscription.message(trigger));
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
            self.types.remove(kind);
            if let Some(worker) = self.workers.get_mut(id) {
                worker.types.remove(kind);
            }
        }
    }

    /// Writes down who follows a trigger type, and tells whoever provides it.
    pub(in crate::iii::hub) fn subscribe(
        &mut self,
        id: &WorkerId,
        trigger: &str,
        kind: &str,
        function_id: &str,
        config: Option<&RawValue>,
        metadata: Option<&RawValue>,
    ) -> Result<(), Refusal> {
        let wanted = match (kind == TRIGGER).then(|| Wanted::of(config)) {
            None => None,
            Some(Ok(wanted)) => Some(Arc::new(wanted)),
            Some(Err(reason)) => return Err(Refusal::Config(reason)),
        };
        if config.is_some_and(|config| config.get().len() > MAX_ABOUT) {
            return Err(Refusal::Config(format!("has at most {MAX_ABOUT} bytes")));
        }
        let known = self.subscriptions.get(trigger);
        if let Some(taken) = known
            && taken.subscriber != *id
        {
            return Err(Refusal::Taken(taken.subscriber.clone()));
        }
        let Some(worker) = self.workers.get(id) else {
            return Ok(());
        };
        if known.is_none() && worker.triggers.len() >= self.max_registrations {
            return Err(Refusal::TooMany);
        }
        // A worker says it again when it comes back; it means the same subscription.
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
            config: owned(config).unwrap_or_else(|| RawValue::NULL.to_owned()),
            metadata: owned(metadata),
            wanted,
        };
        let of_type = self.by_type.entry(subscription.kind.clone());
        of_type.or_default().insert(name.clone());
        let provider = self.types.get(kind).and_then(|p| p.worker.clone());
        if let Some(provider) = provider {
            self.send(&provider, subscription.message(trigger));
        }
        self.subscriptions.insert(name, subscription);
        Ok(())
    }

    /// Ends a subscription that is the worker's own.
    pub(in crate::iii::hub) fn unsubscribe_own(&mut self, id: &WorkerId, trigger: &str) {
        let own = self.subscriptions.get(trigger);
        if own.is_some_and(|subscription| subscription.subscriber == *id) {
            if let Some(worker) = self.workers.get_mut(id) {
                worker.triggers.remove(trigger);
            }
            self.unsubscribe(trigger);
        }
    }

    pub(super) fn unsubscribe(&mut self, trigger: &str) {
        let Some(subscription) = self.subscriptions.remove(trigger) else {
            return;
        };
        if let Some(of_type) = self.by_type.get_mut(&subscription.kind) {
            of_type.remove(trigger);
            if of_type.is_empty() {
                self.by_type.remove(&subscription.kind);
            }
        }
        let provider = self.types.get(&subscription.kind);
        if let Some(provider) = provider.and_then(|p| p.worker.as_ref()) {
            let message = Message::UnregisterTrigger {
                id: trigger,
                trigger_type: &subscription.kind,
            };
            self.send(provider, message.text());
        }
    }

    /// Tells a subscriber that its subscription failed.
    pub(in crate::iii::hub) fn subscription_failed(
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
            let message = Message::TriggerRegistrationResult {
                id: trigger,
                trigger_type: &subscription.kind,
                function_id: &subscription.function_id,
                error,
            };
            self.send(&subscription.subscriber, message.text());
        }
    }

    /// The functions that follow a trigger type; of the state, those that want to hear of a key.
    pub(in crate::iii::hub) fn subscribers(
        &self,
        kind: &str,
        row: Option<(&str, &str)>,
    ) -> Vec<String> {
        let followers = self.following(kind).filter(|subscription| match row {
            Some((scope, key)) => {
                let wanted = subscription.wanted.as_ref();
                wanted.is_some_and(|w| w.condition.is_none() && w.fits(scope, key))
            }
            None => true,
        });
        followers.map(|s| s.function_id.clone()).collect()
    }

    /// Those that want to hear of a key of the state if another function says so, and that one.
    pub(in crate::iii::hub) fn conditional(&self, scope: &str, key: &str) -> Vec<(String, String)> {
        let followers = self.following(TRIGGER).filter_map(|subscription| {
            let wanted = subscription.wanted.as_ref()?;
            let condition = wanted
                .condition
                .as_ref()
                .filter(|_| wanted.fits(scope, key))?;
            Some((subscription.function_id.clone(), condition.clone()))
        });
        followers.collect()
    }

    fn following(&self, kind: &str) -> impl Iterator<Item = &Subscription> {
        let of_type = self.by_type.get(kind).into_iter().flatten();
        of_type.filter_map(|id| self.subscriptions.get(id))
    }

    pub(in crate::iii::hub) fn list_types(&self) -> Vec<Value> {
        let types = self.types.iter();
        types
            .map(|(id, provider)| json!({"id": id, "description": provider.description}))
            .collect()
    }

    pub(in crate::iii::hub) fn list_triggers(&self) -> Vec<Value> {
        let all = self.subscriptions.iter();
        all.map(|(id, subscription)| {
            json!({
                "id": id, "trigger_type": subscription.kind,
                "function_id": subscription.function_id,
                "config": value(Some(&subscription.config)),
            })
        })
        .collect()
    }
}
