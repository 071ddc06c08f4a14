//! State: values by scope and key, in the stores or on a bus.
//!
//! The rows of two scopes are registered skills and prompts. Whoever changes one, and however,
//! changes the catalogue with it.

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError},
};

use serde_json::json;

use super::{Attached, Registry};
use crate::{
    catalogue::{Again, Change, Entry, PromptEntry},
    error::Result,
    head::Head,
    origin::{Origin, Trusted},
    registered::{Row, SKILLS, prompt_of, skill_of},
    settings::StateFrom,
    source::Location,
    store::StateValue,
};

/// How far one look at state goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimit {
    /// The most values.
    pub rows: usize,
    /// The most bytes of keys and values, about.
    pub bytes: usize,
}

impl Registry {
    /// One value: the first store's that has it.
    pub fn state_get(&self, scope: &str, key: &str) -> Result<Option<String>> {
        for attached in self.trusted() {
            if let Some(value) = attached.store.state_get(scope, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Sets a value, gives back the one that was there.
    pub fn state_set(&self, scope: &str, key: &str, value: String) -> Result<Option<String>> {
        self.state_update(scope, key, move |old| Ok((value, old)))
    }

    /// Makes a value out of the one that is there, in one step.
    pub fn state_update<T: Send + 'static>(
        &self,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(String, T)> + Send + 'static,
    ) -> Result<T> {
        let attached = self.primary()?;
        // A value that is only in another store is still the one that is there.
        let elsewhere = self.elsewhere(attached, scope, key)?;
        let (owned_scope, owned_key) = (scope.to_owned(), key.to_owned());
        let answer = attached.store.state_update(scope, key, move |old| {
            let (value, answer) = work(old.or(elsewhere))?;
            let head = head_of(&owned_scope, &owned_key, &value);
            Ok((StateValue { value, head }, answer))
        })?;
        self.sync_store(attached)?;
        Ok(answer)
    }

    fn elsewhere(&self, first: &Attached, scope: &str, key: &str) -> Result<Option<String>> {
        for attached in self.trusted().filter(|a| !std::ptr::eq(*a, first)) {
            if let Some(value) = attached.store.state_get(scope, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Sets a value without waiting: `then` is told which one was there, on the store's thread, when
    /// the new one is durable. It is in the catalogue after the next [`sync`](Self::sync).
    ///
    /// Changes are made and told in the order in which they are asked for here.
    pub fn state_set_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        value: String,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        // Here, and not where everybody's writes wait for each other.
        let skill = (scope == SKILLS).then(|| skill_of(key, &value)).flatten();
        let head = skill.map(|(_, head)| Arc::new(head));
        self.put_then(scope, key, value, head, then)
    }

    /// Keeps a row of registered content without waiting, as `state_set_then` sets a value.
    pub fn state_keep_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        row: Row,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let head = row.head.filter(|_| scope == SKILLS);
        self.put_then(scope, key, row.value, head, then)
    }

    fn put_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        value: String,
        fresh: Option<Arc<Head>>,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary()?;
        let elsewhere = self.elsewhere(attached, scope, key)?;
        let head = fresh.as_ref().map(|head| json!(head).to_string());
        let work = move |old: Option<String>| Ok((StateValue { value, head }, old.or(elsewhere)));
        let registry = Arc::clone(self);
        let then = move |done: Result<(Option<String>, i64)>| {
            if let (Ok((_, seq)), Some(head), Ok(here)) = (&done, fresh, registry.primary()) {
                // So that nobody has to read it back.
                let mut fresh = here.fresh.lock().unwrap_or_else(PoisonError::into_inner);
                fresh.insert(*seq, head);
            }
            then(done.map(|(old, _)| old));
        };
        attached.store.state_update_then(scope, key, work, then)
    }

    /// Makes a value out of the one that is there without waiting, as `state_set_then` sets one.
    pub fn state_update_then<T: Send + 'static>(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        work: impl FnOnce(Option<String>) -> Result<(String, T)> + Send + 'static,
        then: impl FnOnce(Result<T>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary()?;
        let elsewhere = self.elsewhere(attached, scope, key)?;
        let (owned_scope, owned_key) = (scope.to_owned(), key.to_owned());
        let work = move |old: Option<String>| {
            let (value, answer) = work(old.or(elsewhere))?;
            let head = head_of(&owned_scope, &owned_key, &value);
            Ok((StateValue { value, head }, answer))
        };
        let then = move |done: Result<(T, i64)>| then(done.map(|(answer, _)| answer));
        attached.store.state_update_then(scope, key, work, then)
    }

    /// Deletes a value without waiting, as `state_set_then` sets one; `then` is told which.
    ///
    /// Changes are made and told in the order in which they are asked for here.
    pub fn state_delete_then(
        self: &Arc<Self>,
        scope: &str,
        key: &str,
        then: impl FnOnce(Result<Option<String>>) + Send + 'static,
    ) -> Result<()> {
        let attached = self.primary()?;
        let registry = Arc::clone(self);
        let (owned_scope, owned_key) = (scope.to_owned(), key.to_owned());
        attached.store.state_delete_then(scope, key, move |done| {
            then(done.and_then(|old| {
                let first = registry.primary()?;
                if old.is_some() {
                    return Ok(old);
                }
                // The next store's thread is another one, so this does not wait for itself.
                let others = registry.trusted().filter(|a| !std::ptr::eq(*a, first));
                for attached in others {
                    let old = attached.store.state_delete(&owned_scope, &owned_key)?;
                    if old.is_some() {
                        return Ok(old);
                    }
                }
                Ok(None)
            }));
        })
    }

    /// Deletes a value from the first store that has it, and gives it back.
    pub fn state_delete(&self, scope: &str, key: &str) -> Result<Option<String>> {
        for attached in self.trusted() {
            let old = attached.store.state_delete(scope, key)?;
            if old.is_some() {
                self.sync_store(attached)?;
                return Ok(old);
            }
        }
        Ok(None)
    }

    /// The values of a scope behind a key, sorted by key, within a limit.
    pub fn state_list(
        &self,
        scope: &str,
        after: Option<&str>,
        limit: StateLimit,
    ) -> Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        let mut end: Option<String> = None;
        for attached in self.trusted() {
            let page = attached
                .store
                .state_page(scope, after, limit.rows, limit.bytes)?;
            // What a page was cut at may still be followed by something.
            let cut =
                attached
                    .store
                    .state_page(scope, page.last().map(|row| row.0.as_str()), 1, 0)?;
            if let (false, Some(last)) = (cut.is_empty(), page.last()) {
                end = Some(end.map_or_else(|| last.0.clone(), |end| end.min(last.0.clone())));
            }
            all.extend(page);
        }
        // Stores come in the order in which they win, and sorting keeps that order.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|b, a| a.0 == b.0);
        if let Some(end) = end {
            all.retain(|row| row.0 <= end);
        }
        all.truncate(limit.rows);
        Ok(all)
    }

    /// The scopes that have a value.
    pub fn state_scopes(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for attached in self.trusted() {
            all.extend(attached.store.state_scopes()?);
        }
        all.sort();
        all.dedup();
        Ok(all)
    }

    /// Takes over what a bus keeps under a key of one of the two scopes.
    ///
    /// For a registry whose state is kept on a bus. `again` says whether something that is
    /// already known is told again.
    pub fn feed(&self, scope: Feed, key: &str, value: Option<&str>, again: Retell) {
        let again = match again {
            Retell::Yes => Again::Tell,
            Retell::No => Again::Ignore,
        };
        self.catalogue.apply(fed(scope, key, value, again));
    }

    /// Takes over everything a bus keeps in one of the two scopes; what is not there is gone.
    ///
    /// What is known to be newer than these rows stays as it is.
    pub fn feed_all<'a>(
        &self,
        scope: Feed,
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
            changes.extend(fed(scope, key, Some(value), Again::Ignore));
        }
        let snapshot = self.snapshot();
        let gone: Vec<String> = match scope {
            Feed::Skills => snapshot
                .all_skills()
                .filter(|(e, _)| matches!(e.location, Location::Bus))
                .map(|(e, _)| e.id.to_string())
                .collect(),
            Feed::Prompts => snapshot
                .prompts()
                .filter(|e| matches!(e.location, Location::Bus))
                .map(|e| e.prompt.name.to_string())
                .collect(),
        };
        for key in gone
            .iter()
            .filter(|key| !there.contains(key.as_str()) && !newer(key))
        {
            changes.extend(fed(scope, key, None, Again::Ignore));
        }
        self.catalogue.apply(changes);
    }

    pub(super) fn keeps_state(&self) -> bool {
        self.state == StateFrom::Stores
    }
}

/// One of the two scopes whose rows are in the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feed {
    /// Registered skills.
    Skills,
    /// Registered prompts.
    Prompts,
}

/// Whether what is already known is told again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retell {
    /// It was written again, and whoever follows hears of it.
    Yes,
    /// It is only heard of again.
    No,
}

fn fed(scope: Feed, key: &str, value: Option<&str>, again: Again) -> Option<Change> {
    match scope {
        Feed::Skills => {
            let id = key.parse().ok()?;
            Some(match value.and_then(|value| skill_of(key, value)) {
                Some((id, head)) => Change::PutSkill(
                    Entry {
                        id,
                        origin: Origin::State,
                        trusted: Trusted::Yes,
                        head: head.into(),
                        location: Location::Bus,
                    },
                    again,
                ),
                None => Change::RemoveSkill(id, Origin::State),
            })
        }
        Feed::Prompts => {
            let name = key.parse().ok()?;
            Some(match value.and_then(|value| prompt_of(key, value)) {
                Some(row) => Change::PutPrompt(
                    PromptEntry {
                        prompt: row.prompt.into(),
                        origin: Origin::State,
                        trusted: Trusted::Yes,
                        registered_at: Some(row.at),
                        location: Location::Bus,
                    },
                    again,
                ),
                None => Change::RemovePrompt(name, Origin::State),
            })
        }
    }
}

/// What a listing needs of a value, kept beside it.
fn head_of(scope: &str, key: &str, value: &str) -> Option<String> {
    // Prompts are small enough to be read whole.
    let skill = (scope == SKILLS).then(|| skill_of(key, value)).flatten();
    skill.map(|(_, head)| json!(head).to_string())
}
