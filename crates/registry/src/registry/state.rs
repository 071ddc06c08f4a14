//! State: values by scope and key, in the stores or on a bus.
//!
//! The rows of two scopes are registered skills and prompts. Every change of such a row, by any
//! caller, also changes the catalogue.

use std::{
    collections::HashSet,
    sync::{
        Arc, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
};

use serde_json::json;

use super::{AttachedStore, Registry};
use crate::{
    catalogue::{CatalogueChange, PromptEntry, RepeatPolicy, SkillEntry},
    error::{Error, Result},
    origin::{Origin, Trusted},
    registered::{RegisteredRow, SKILLS_SCOPE, parse_prompt_row, parse_skill_row},
    settings::RegisteredContent,
    skill_metadata::SkillMetadata,
    source::ContentLocation,
    store::{StateChange, StateOutcome, StateValue},
};

/// The limits of one state listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimit {
    /// The maximum number of values.
    pub rows: usize,
    /// The approximate maximum size of keys and values in bytes.
    pub bytes: usize,
}

impl Registry {
    /// Returns one value from the first store that has it.
    pub fn state_get(&self, scope: &str, key: &str) -> Result<Option<String>> {
        for attached in self.trusted_attached() {
            if let Some(value) = attached.store.state_get(scope, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Returns the length in bytes of what [`Self::state_get`] would return; 0 if there is nothing.
    pub fn state_value_size(&self, scope: &str, key: &str) -> Result<usize> {
        for attached in self.trusted_attached() {
            if let Some(size) = attached.store.state_value_size(scope, key)? {
                return Ok(size);
            }
        }
        Ok(0)
    }

    /// Sets a value and returns the previous one.
    pub fn state_set(&self, scope: &str, key: &str, value: String) -> Result<Option<String>> {
        self.state_update(scope, key, move |old| Ok((value, old)))
    }

    /// Computes a new value from the current one, atomically.
    pub fn state_update<T: Send + 'static>(
        &self,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(String, T)> + Send + 'static,
    ) -> Result<T> {
        let attached = self.primary_store()?;
        // A value that exists only in another store counts as the current one.
        let elsewhere = self.value_elsewhere(attached, scope, key)?;
        let (work, answer) = update_work(scope, key, elsewhere, work);
        attached.store.state_change_wait(scope, key, work)?;
        self.sync_store(attached)?;
        answer.recv().map_err(|_| Error::WriterStopped)
    }

    fn value_elsewhere(
        &self,
        first: &AttachedStore,
        scope: &str,
        key: &str,
    ) -> Result<Option<String>> {
        for attached in self.trusted_attached().filter(|a| !std::ptr::eq(*a, first)) {
            if let Some(value) = attached.store.state_get(scope, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Sets a value without waiting. When it is durable, `then` is called with the previous value
    /// on the store's thread. It is in the catalogue after the next [`sync_stores`](Self::sync_stores).
    ///
    /// Writes and their callbacks happen in the order of the calls.
    pub fn state_set_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        value: String,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        // Parsed on the caller's thread, because all writes share the store's thread.
        let skill = (scope == SKILLS_SCOPE)
            .then(|| parse_skill_row(key, &value))
            .flatten();
        let head = skill.map(|(_, head)| Arc::new(head));
        self.put_value_then(scope, key, value, head, then)
    }

    /// Stores a row of registered content without waiting, like [`Self::state_set_then`].
    pub fn state_put_row_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        row: RegisteredRow,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let head = row.metadata.filter(|_| scope == SKILLS_SCOPE);
        self.put_value_then(scope, key, row.value, head, then)
    }

    fn put_value_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        value: String,
        fresh: Option<Arc<SkillMetadata>>,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary_store()?;
        let elsewhere = self.value_elsewhere(attached, scope, key)?;
        let head = fresh.as_ref().map(|head| json!(head).to_string());
        let new = StateValue {
            value,
            metadata: head,
        };
        let registry = Arc::clone(self);
        let then = move |done: Result<StateOutcome>| {
            let event = done.as_ref().ok().and_then(|done| done.event);
            if let (Some(event), Some(head), Ok(here)) = (event, fresh, registry.primary_store()) {
                // Cached, so that the next sync does not read it from the store.
                let mut fresh = here
                    .recent_metadata
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                fresh.insert(event, head);
            }
            then(done.map(|done| done.previous.or(elsewhere)));
        };
        let work = Box::new(move |_| Ok(StateChange::Put(new)));
        attached
            .store
            .state_change(scope, key, work, Box::new(then))
    }

    /// Computes a new value from the current one without waiting, like [`Self::state_set_then`].
    pub fn state_update_then<T: Send + 'static>(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(String, T)> + Send + 'static,
        then: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary_store()?;
        let elsewhere = self.value_elsewhere(attached, scope, key)?;
        let (work, answer) = update_work(scope, key, elsewhere, work);
        let then = move |done: Result<StateOutcome>| {
            let answer = || answer.try_recv().map_err(|_| Error::WriterStopped);
            then(done.and_then(|_| answer()));
        };
        let (work, then) = (Box::new(work), Box::new(then));
        attached.store.state_change(scope, key, work, then)
    }

    /// Deletes a value without waiting; `then` is called with the deleted value.
    ///
    /// Writes and their callbacks happen in the order of the calls.
    pub fn state_delete_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary_store()?;
        let registry = Arc::clone(self);
        let (owned_scope, owned_key) = (scope.to_owned(), key.to_owned());
        let work = Box::new(|_| Ok(StateChange::Delete));
        let then = move |done: Result<StateOutcome>| {
            then(done.and_then(|done| {
                let first = registry.primary_store()?;
                if done.previous.is_some() {
                    return Ok(done.previous);
                }
                // Other stores have their own threads, so this does not deadlock.
                let others = registry
                    .trusted_attached()
                    .filter(|a| !std::ptr::eq(*a, first));
                for attached in others {
                    let old = attached.store.state_delete(&owned_scope, &owned_key)?;
                    if old.is_some() {
                        return Ok(old);
                    }
                }
                Ok(None)
            }));
        };
        attached
            .store
            .state_change(scope, key, work, Box::new(then))
    }

    /// Deletes a value from the first store that has it, and returns it.
    pub fn state_delete(&self, scope: &str, key: &str) -> Result<Option<String>> {
        for attached in self.trusted_attached() {
            let old = attached.store.state_delete(scope, key)?;
            if old.is_some() {
                self.sync_store(attached)?;
                return Ok(old);
            }
        }
        Ok(None)
    }

    /// Returns the values of a scope after a key, sorted by key, within a limit.
    pub fn state_list(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: StateLimit,
    ) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        let mut end: Option<String> = None;
        for attached in self.trusted_attached() {
            let page = attached
                .store
                .state_page(scope, after, limit.rows, limit.bytes)?;
            // If the page was cut, later keys of other stores must wait for the next page.
            let cut =
                attached
                    .store
                    .state_page(scope, page.last().map(|row| row.0.as_str()), 1, 0)?;
            if let (false, Some(last)) = (cut.is_empty(), page.last()) {
                end = Some(end.map_or_else(|| last.0.clone(), |end| end.min(last.0.clone())));
            }
            all.extend(page);
        }
        // Stores come in order of precedence, and the stable sort keeps that order.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|b, a| a.0 == b.0);
        if let Some(end) = end {
            all.retain(|row| row.0 <= end);
        }
        all.truncate(limit.rows);
        Ok(all)
    }

    /// Returns the scopes that have a value.
    pub fn state_scopes(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for attached in self.trusted_attached() {
            all.extend(attached.store.state_scopes()?);
        }
        all.sort();
        all.dedup();
        Ok(all)
    }

    /// Applies a value that a bus stores under a key of one of the two scopes.
    ///
    /// For a registry whose state is kept on a bus. `again` selects whether an unchanged value
    /// causes an event.
    pub fn apply_bus_value(
        &self,
        scope: RegisteredScope,
        key: &str,
        value: Option<&str>,
        again: NotifyUnchanged,
    ) {
        let again = match again {
            NotifyUnchanged::Yes => RepeatPolicy::Notify,
            NotifyUnchanged::No => RepeatPolicy::Ignore,
        };
        self.catalogue
            .apply_changes(bus_change(scope, key, value, again));
    }

    /// Applies all values that a bus stores in one of the two scopes; missing keys are removed.
    ///
    /// Keys for which `newer` returns true are left unchanged.
    pub fn apply_bus_values<'a>(
        &self,
        scope: RegisteredScope,
        rows: impl IntoIterator<Item = (&'a str, &'a str)>,
        newer: impl Fn(&str) -> bool,
    ) {
        let mut changes = Vec::new();
        let mut there = HashSet::new();
        for (key, value) in rows {
            there.insert(key);
            if newer(key) {
                continue;
            }
            changes.extend(bus_change(scope, key, Some(value), RepeatPolicy::Ignore));
        }
        let snapshot = self.snapshot();
        let gone: Vec<String> = match scope {
            RegisteredScope::Skills => snapshot
                .all_skills()
                .filter(|(e, _)| matches!(e.location, ContentLocation::Bus))
                .map(|(e, _)| e.id.to_string())
                .collect(),
            RegisteredScope::Prompts => snapshot
                .prompts()
                .filter(|e| matches!(e.location, ContentLocation::Bus))
                .map(|e| e.prompt.name.to_string())
                .collect(),
        };
        for key in gone
            .iter()
            .filter(|key| !there.contains(key.as_str()) && !newer(key))
        {
            changes.extend(bus_change(scope, key, None, RepeatPolicy::Ignore));
        }
        self.catalogue.apply_changes(changes);
    }

    pub(super) fn has_local_state(&self) -> bool {
        self.state == RegisteredContent::Stores
    }
}

/// One of the two scopes whose rows appear in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegisteredScope {
    /// Registered skills.
    Skills,
    /// Registered prompts.
    Prompts,
}

/// Whether an unchanged value causes an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyUnchanged {
    /// The value was written again, so followers are notified.
    Yes,
    /// The value was only reported again.
    No,
}

/// Joins a computation of a new value with a channel for its answer.
fn update_work<T: Send + 'static>(
    scope: &str,
    key: &str,
    elsewhere: Option<String>,
    work: impl FnOnce(Option<String>) -> Result<(String, T)> + Send + 'static,
) -> (
    impl FnOnce(Option<String>) -> Result<StateChange> + Send + 'static,
    Receiver<T>,
) {
    let (scope, key) = (scope.to_owned(), key.to_owned());
    let (sender, answer) = sync_channel(1);
    let work = move |old: Option<String>| {
        let (value, answer) = work(old.or(elsewhere))?;
        let metadata = metadata_json(&scope, &key, &value);
        // The receiver waits for the change.
        let _ = sender.send(answer);
        Ok(StateChange::Put(StateValue { value, metadata }))
    };
    (work, answer)
}

fn bus_change(
    scope: RegisteredScope,
    key: &str,
    value: Option<&str>,
    again: RepeatPolicy,
) -> Option<CatalogueChange> {
    match scope {
        RegisteredScope::Skills => {
            let id = key.parse().ok()?;
            Some(match value.and_then(|value| parse_skill_row(key, value)) {
                Some((id, head)) => CatalogueChange::PutSkill(
                    SkillEntry {
                        id,
                        alias: None,
                        origin: Origin::State,
                        trusted: Trusted::Yes,
                        metadata: head.into(),
                        complete: None,
                        location: ContentLocation::Bus,
                    },
                    again,
                ),
                None => CatalogueChange::RemoveSkill(id, Origin::State),
            })
        }
        RegisteredScope::Prompts => {
            let name = key.parse().ok()?;
            Some(match value.and_then(|value| parse_prompt_row(key, value)) {
                Some(row) => CatalogueChange::PutPrompt(
                    PromptEntry {
                        prompt: row.prompt.into(),
                        origin: Origin::State,
                        trusted: Trusted::Yes,
                        registered_at: Some(row.at),
                        location: ContentLocation::Bus,
                    },
                    again,
                ),
                None => CatalogueChange::RemovePrompt(name, Origin::State),
            })
        }
    }
}

/// Returns the listing metadata of a value as JSON, which is stored beside it.
fn metadata_json(scope: &str, key: &str, value: &str) -> Option<String> {
    // Prompts are small enough to be read whole.
    let skill = (scope == SKILLS_SCOPE)
        .then(|| parse_skill_row(key, value))
        .flatten();
    skill.map(|(_, head)| json!(head).to_string())
}
