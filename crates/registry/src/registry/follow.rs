//! Following: what happens in stores and on disk becomes changes of the catalogue.
//!
//! Stores are followed by their events, in the order they happened, so that two writers in one
//! process and writers in others end in the same catalogue.

use std::{
    path::PathBuf,
    sync::{Arc, PoisonError},
};

use repertoire_core::{PromptName, SkillId};

use super::{Attached, Registry};
use crate::{
    catalogue::{Again, Change, Entry, PromptEntry},
    error::Result,
    head::Head,
    origin::{Origin, Scope, Trusted},
    registered::{PROMPTS, PromptRow, SKILLS, prompt_of},
    remote::{self, Label, Listed},
    settings::StoreUse,
    source::Location,
    store::StateRow,
};

impl Registry {
    /// Brings the catalogue up to date with what other processes wrote.
    pub fn sync(&self) -> Result<()> {
        // Each store is followed, whatever is wrong with another.
        let results: Vec<Result<()>> = self.stores.iter().map(|a| self.sync_store(a)).collect();
        results.into_iter().collect()
    }

    /// Brings the catalogue up to date after these files changed.
    pub fn reconcile(&self, paths: &[PathBuf]) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.reconcile(paths.iter().map(PathBuf::as_path));
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply(changes);
    }

    /// Looks at every file again, as after events were missed.
    pub fn rescan(&self) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.scan();
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply(changes);
    }

    /// The folders whose changes concern this registry.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        let files = self.lock_files();
        let mut roots: Vec<PathBuf> = files.iter().map(|s| s.root().to_owned()).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    pub(super) fn load(&self, attached: &Attached) -> Result<()> {
        let _turn = self
            .following
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.load_in_turn(attached)
    }

    fn load_in_turn(&self, attached: &Attached) -> Result<()> {
        let mut seen = attached.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // Read the number first: what comes in between is applied twice, never lost.
        let last = attached.store.last_seq()?;
        let origin = Origin::of_scope(attached.scope);
        // Whatever the store no longer has goes; what it has comes back right after.
        let snapshot = self.snapshot();
        let is_here = |location: &Location| matches!(location, Location::State(scope) if *scope == attached.scope);
        let mut changes: Vec<Change> = snapshot
            .all_skills()
            .filter(|(entry, _)| entry.origin == origin)
            .map(|(entry, _)| Change::RemoveSkill(entry.id.clone(), origin.clone()))
            .collect();
        for (entry, _) in snapshot.all_skills().filter(|(e, _)| is_here(&e.location)) {
            changes.extend(self.registered_change(entry.id.as_str(), Again::Ignore, None)?);
        }
        for entry in snapshot.prompts().filter(|p| is_here(&p.location)) {
            changes.extend(self.prompt_change(entry.prompt.name.as_str(), Again::Ignore)?);
        }
        if self.uses == StoreUse::Everything {
            for (id, head) in attached.store.heads()? {
                changes.push(put_package(attached, id, head, Again::Ignore));
            }
        }
        if attached.trusted == Trusted::Yes && self.keeps_state() {
            for row in attached.store.state_rows(SKILLS)? {
                changes.extend(self.registered_change(
                    &row.key,
                    Again::Ignore,
                    Some((attached, &row)),
                )?);
            }
            for row in attached.store.state_rows(PROMPTS)? {
                changes.extend(self.prompt_change(&row.key, Again::Ignore)?);
            }
        }
        if attached.scope == Scope::Account && self.uses == StoreUse::Everything {
            changes.extend(self.remote_changes(attached)?);
        }
        self.catalogue.apply(changes);
        *seen = last;
        Ok(())
    }

    fn is_primary(&self, attached: &Attached) -> bool {
        self.primary()
            .is_ok_and(|primary| std::ptr::eq(primary, attached))
    }

    /// What registered content under a key means to the catalogue: the first store that has it.
    ///
    /// A row that is no skill (a direct write to the scope may be anything) is left out.
    fn registered_change(
        &self,
        key: &str,
        again: Again,
        known: Option<(&Attached, &StateRow)>,
    ) -> Result<Option<Change>> {
        let Ok(id) = key.parse::<SkillId>() else {
            return Ok(None);
        };
        // The first store's own row needs no second look.
        if let Some((attached, row)) = known
            && self.is_primary(attached)
        {
            let head = row.head.as_deref();
            let head = head.map(|h| attached.store.parse_head(h)).transpose()?;
            return Ok(head.map(|head| put_registered(attached, id, head, again)));
        }
        for attached in self.trusted() {
            let row = attached.store.state_row(SKILLS, key)?;
            if let Some(head) = row.and_then(|row| row.head) {
                let head = attached.store.parse_head(&head)?;
                return Ok(Some(put_registered(attached, id, head, again)));
            }
        }
        Ok(Some(Change::RemoveSkill(id, Origin::State)))
    }

    /// What a stored prompt means to the catalogue: the first store that has it.
    ///
    /// A row that is no prompt is left out.
    fn prompt_change(&self, key: &str, again: Again) -> Result<Option<Change>> {
        let Ok(name) = key.parse::<PromptName>() else {
            return Ok(None);
        };
        for attached in self.trusted() {
            let value = attached.store.state_get(PROMPTS, key)?;
            if let Some(row) = value.and_then(|value| prompt_of(key, &value)) {
                return Ok(Some(put_prompt(attached, row, again)));
            }
        }
        Ok(Some(Change::RemovePrompt(name, Origin::State)))
    }

    /// Applies what happened in a store since the last look, in the order it happened.
    pub(super) fn sync_store(&self, attached: &Attached) -> Result<()> {
        let _turn = self
            .following
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut seen = attached.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(events) = attached.store.events_since(*seen)? else {
            drop(seen);
            return self.load_in_turn(attached);
        };
        let Some(last) = events.last().map(|event| event.seq) else {
            return Ok(());
        };
        let mut fresh = {
            let mut fresh = attached
                .fresh
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let later = fresh.split_off(&(last + 1));
            std::mem::replace(&mut *fresh, later)
        };
        let mut changes = Vec::new();
        let mut remotes = false;
        for event in events {
            let origin = Origin::of_scope(attached.scope);
            match event.kind.as_str() {
                "skill" | "remote" | "approval" if self.uses == StoreUse::Registered => {}
                "skill" => {
                    let id: SkillId = event.id.parse()?;
                    changes.push(match attached.store.head(&id)? {
                        Some(head) => put_package(attached, id, head, Again::Tell),
                        None => Change::RemoveSkill(id, origin),
                    });
                }
                "state:skills" if attached.trusted == Trusted::Yes && self.keeps_state() => {
                    let own = fresh.remove(&event.seq).zip(event.id.parse().ok());
                    if let Some((head, id)) = own
                        && self.is_primary(attached)
                    {
                        changes.push(put_registered(attached, id, head, Again::Tell));
                        continue;
                    }
                    let change = self.registered_change(&event.id, Again::Tell, None)?;
                    changes.extend(told(change, event.removed, attached.scope));
                }
                // An approval may be one of a remote skill.
                "remote" | "approval" if attached.scope == Scope::Account => remotes = true,
                "state:prompts" if attached.trusted == Trusted::Yes && self.keeps_state() => {
                    let change = self.prompt_change(&event.id, Again::Tell)?;
                    changes.extend(told(change, event.removed, attached.scope));
                }
                _ => {}
            }
        }
        if remotes {
            changes.extend(self.remote_changes(attached)?);
        }
        self.catalogue.apply(changes);
        *seen = last;
        Ok(())
    }

    /// What the servers of an account listed last, against what the catalogue has of them.
    fn remote_changes(&self, attached: &Attached) -> Result<Vec<Change>> {
        let snapshot = self.snapshot();
        let mut changes = Vec::new();
        let stored = attached.store.remotes()?;
        for remote in &stored {
            let Ok(label) = remote.label.parse::<Label>() else {
                continue;
            };
            // A listing of a form nobody knows any more is as good as none.
            let listing = remote.listing.clone().unwrap_or_default();
            let listing: Vec<Listed> = serde_json::from_value(listing).unwrap_or_default();
            let (entries, _) = remote::entries(&attached.store, &label, &listing)?;
            let now = snapshot.all_skills().map(|(entry, _)| entry);
            changes.extend(remote::changes(&label, now, entries));
        }
        let forgotten = snapshot.all_skills().filter(|(entry, _)| {
            matches!(&entry.origin, Origin::Remote(label)
                if stored.iter().all(|remote| *remote.label != **label))
        });
        changes.extend(forgotten.map(|(e, _)| Change::RemoveSkill(e.id.clone(), e.origin.clone())));
        Ok(changes)
    }
}

/// What an event means, given what is there now.
///
/// Something that went and came back has two events: the first one takes it away.
fn told(now: Option<Change>, removed: bool, scope: Scope) -> Option<Change> {
    // What another store has comes into view instead.
    let here = |location: &Location| matches!(location, Location::State(s) if *s == scope);
    match now {
        Some(Change::PutSkill(entry, _)) if removed && here(&entry.location) => {
            Some(Change::RemoveSkill(entry.id, entry.origin))
        }
        Some(Change::PutPrompt(entry, _)) if removed && here(&entry.location) => Some(
            Change::RemovePrompt(entry.prompt.name.clone(), entry.origin),
        ),
        other => other,
    }
}

fn put_package(attached: &Attached, id: SkillId, head: Head, again: Again) -> Change {
    let entry = Entry {
        id,
        origin: Origin::of_scope(attached.scope),
        trusted: attached.trusted,
        head: Arc::new(head),
        location: Location::Stored(attached.scope),
    };
    Change::PutSkill(entry, again)
}

fn put_registered(
    attached: &Attached,
    id: SkillId,
    head: impl Into<Arc<Head>>,
    again: Again,
) -> Change {
    let entry = Entry {
        id,
        origin: Origin::State,
        trusted: Trusted::Yes,
        head: head.into(),
        location: Location::State(attached.scope),
    };
    Change::PutSkill(entry, again)
}

fn put_prompt(attached: &Attached, row: PromptRow, again: Again) -> Change {
    let entry = PromptEntry {
        prompt: Arc::new(row.prompt),
        origin: Origin::State,
        trusted: Trusted::Yes,
        registered_at: Some(row.at),
        location: Location::State(attached.scope),
    };
    Change::PutPrompt(entry, again)
}
