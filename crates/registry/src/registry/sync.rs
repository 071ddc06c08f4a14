//! Synchronisation: applies changes in stores and on disk to the catalogue.
//!
//! An event says what changed, and the current content is read when it is applied. So writers in
//! this and other processes produce the same catalogue, in whatever order events of different
//! items arrive.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError},
};

use repertoire_core::{PromptName, SkillId};

use super::{AttachedStore, Registry, installed::InstalledApprovals};
use crate::{
    catalogue::{CatalogueChange, PromptEntry, RepeatPolicy, SkillEntry, Visibility},
    error::Result,
    origin::{Origin, StoreScope, Trusted},
    registered::{PROMPTS_SCOPE, PromptRow, SKILLS_SCOPE, parse_prompt_row},
    remote::{self, ListedSkill, RemoteLabel},
    settings::CatalogueContent,
    skill_metadata::SkillMetadata,
    source::{ContentLocation, FileSource},
    store::{LocalStore, StateRow, StoreEvent, StoreItem},
};

impl Registry {
    /// Applies the writes of other processes to the catalogue.
    pub fn sync_stores(&self) -> Result<()> {
        // Every store is synchronised, even if another one fails.
        let results: Vec<Result<()>> = self.stores.iter().map(|a| self.sync_store(a)).collect();
        let local = self.sync_local();
        results.into_iter().chain([local]).collect()
    }

    /// Updates the catalogue after these files changed.
    pub fn reconcile_paths(&self, paths: &[PathBuf]) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.reconcile_paths(paths.iter().map(PathBuf::as_path));
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply_changes(changes);
    }

    /// Rescans every file, as after events were missed.
    pub fn rescan_files(&self) {
        let mut changes = Vec::new();
        let mut files = self.lock_files();
        for source in files.iter_mut() {
            source.rescan();
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply_changes(changes);
    }

    /// Follows links that were confirmed, and no longer those whose confirmation was revoked.
    fn refresh_links(&self) {
        let mut changes = Vec::new();
        for source in self.lock_files().iter_mut() {
            source.refresh_links();
            changes.append(&mut source.take_changes());
        }
        self.catalogue.apply_changes(changes);
    }

    /// Returns the folders that have to be watched.
    pub(crate) fn watched_roots(&self) -> Vec<PathBuf> {
        let files = self.lock_files();
        let roots = files.iter().flat_map(FileSource::watched_roots);
        let mut roots: Vec<PathBuf> = roots.map(Path::to_owned).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    pub(super) fn load_store(&self, attached: &AttachedStore) -> Result<()> {
        let _turn = self
            .sync_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.load_store_locked(attached)
    }

    fn load_store_locked(&self, attached: &AttachedStore) -> Result<()> {
        let mut cursor = attached
            .cursor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Read first: events recorded meanwhile are applied twice, never lost.
        let next = attached.store.event_cursor()?;
        let origin = Origin::from_scope(attached.scope);
        // Remove all entries of the store; the existing ones are put back right after.
        let snapshot = self.snapshot();
        let is_here = |location: &ContentLocation| matches!(location, ContentLocation::State(scope) if *scope == attached.scope);
        let mut changes: Vec<CatalogueChange> = snapshot
            .all_skills()
            .filter(|(entry, _)| entry.origin == origin)
            .map(|(entry, _)| CatalogueChange::RemoveSkill(entry.id.clone(), origin.clone()))
            .collect();
        for (entry, _) in snapshot.all_skills().filter(|(e, _)| is_here(&e.location)) {
            changes.extend(self.registered_change(
                entry.id.as_str(),
                RepeatPolicy::Ignore,
                None,
            )?);
        }
        for entry in snapshot.prompts().filter(|p| is_here(&p.location)) {
            changes.extend(self.prompt_change(entry.prompt.name.as_str(), RepeatPolicy::Ignore)?);
        }
        if self.store_selection == CatalogueContent::Everything {
            let installed: BTreeMap<SkillId, _> =
                attached.store.installed_digests()?.into_iter().collect();
            let approvals = if installed.is_empty() {
                InstalledApprovals::default()
            } else {
                self.installed_approvals()?
            };
            for (id, head) in attached.store.all_metadata()? {
                let trusted = match installed.get(&id) {
                    Some(digest) => approvals.trust(attached, &id, digest),
                    None => attached.trusted,
                };
                changes.push(package_change(
                    attached,
                    id,
                    head,
                    trusted,
                    RepeatPolicy::Ignore,
                ));
            }
        }
        if attached.trusted == Trusted::Yes && self.has_local_state() {
            for row in attached.store.state_rows(SKILLS_SCOPE)? {
                changes.extend(self.registered_change(
                    &row.key,
                    RepeatPolicy::Ignore,
                    Some((attached, &row)),
                )?);
            }
            for row in attached.store.state_rows(PROMPTS_SCOPE)? {
                changes.extend(self.prompt_change(&row.key, RepeatPolicy::Ignore)?);
            }
        }
        self.catalogue.apply_changes(changes);
        *cursor = Some(next);
        Ok(())
    }

    fn is_primary(&self, attached: &AttachedStore) -> bool {
        self.primary_store()
            .is_ok_and(|primary| std::ptr::eq(primary, attached))
    }

    /// Returns the change for registered content under a key, from the first store that has it.
    ///
    /// Rows that are not skills are skipped, because a direct write to the scope may be anything.
    fn registered_change(
        &self,
        key: &str,
        again: RepeatPolicy,
        known: Option<(&AttachedStore, &StateRow)>,
    ) -> Result<Option<CatalogueChange>> {
        let Ok(id) = key.parse::<SkillId>() else {
            return Ok(None);
        };
        // A row of the primary store always wins, so the other stores are not queried.
        if let Some((attached, row)) = known
            && self.is_primary(attached)
        {
            let head = row.metadata.as_deref();
            let head = head.map(|h| stored_metadata(attached, h)).transpose()?;
            return Ok(head.map(|head| registered_skill_change(attached, id, head, again)));
        }
        for attached in self.trusted_attached() {
            let row = attached.store.state_row(SKILLS_SCOPE, key)?;
            if let Some(head) = row.and_then(|row| row.metadata) {
                let head = stored_metadata(attached, &head)?;
                return Ok(Some(registered_skill_change(attached, id, head, again)));
            }
        }
        Ok(Some(CatalogueChange::RemoveSkill(id, Origin::State)))
    }

    /// Returns the change for a stored prompt, from the first store that has it.
    ///
    /// Rows that are not prompts are skipped.
    fn prompt_change(&self, key: &str, again: RepeatPolicy) -> Result<Option<CatalogueChange>> {
        let Ok(name) = key.parse::<PromptName>() else {
            return Ok(None);
        };
        for attached in self.trusted_attached() {
            let value = attached.store.state_get(PROMPTS_SCOPE, key)?;
            if let Some(row) = value.and_then(|value| parse_prompt_row(key, &value)) {
                return Ok(Some(stored_prompt_change(attached, row, again)));
            }
        }
        Ok(Some(CatalogueChange::RemovePrompt(name, Origin::State)))
    }

    /// Applies the events of a store since the last call.
    pub(super) fn sync_store(&self, attached: &AttachedStore) -> Result<()> {
        let _turn = self
            .sync_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Taken before the events are read: what is left over belongs to events that were applied
        // earlier.
        let mut recent = std::mem::take(
            &mut *attached
                .recent_metadata
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let mut cursor = attached
            .cursor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let batch = match &*cursor {
            Some(cursor) => attached.store.events_since(cursor)?,
            None => None,
        };
        let Some(batch) = batch else {
            drop(cursor);
            return self.load_store_locked(attached);
        };
        let mut changes = Vec::new();
        for event in batch.events {
            let recent = recent.remove(&event.id);
            changes.extend(self.store_event_change(attached, event, recent)?);
        }
        self.catalogue.apply_changes(changes);
        *cursor = Some(batch.cursor);
        Ok(())
    }

    /// Returns the change of the catalogue that follows from an event.
    ///
    /// `recent` is the metadata of a registration by this process, which need not be read again.
    fn store_event_change(
        &self,
        attached: &AttachedStore,
        event: StoreEvent,
        recent: Option<Arc<SkillMetadata>>,
    ) -> Result<Option<CatalogueChange>> {
        let reads_state = attached.trusted == Trusted::Yes && self.has_local_state();
        match event.item {
            StoreItem::Skill(_) if self.store_selection == CatalogueContent::Registered => Ok(None),
            StoreItem::Skill(id) => {
                let id: SkillId = id.parse()?;
                Ok(Some(match attached.store.skill_metadata(&id)? {
                    Some(head) => {
                        let trusted = self.stored_trust(attached, &id)?;
                        package_change(attached, id, head, trusted, RepeatPolicy::Notify)
                    }
                    None => CatalogueChange::RemoveSkill(id, Origin::from_scope(attached.scope)),
                }))
            }
            StoreItem::State { scope, key } if reads_state => {
                let change = match scope.as_str() {
                    SKILLS_SCOPE => {
                        if let (Some(head), Ok(id)) = (recent, key.parse())
                            && self.is_primary(attached)
                        {
                            let again = RepeatPolicy::Notify;
                            return Ok(Some(registered_skill_change(attached, id, head, again)));
                        }
                        self.registered_change(&key, RepeatPolicy::Notify, None)?
                    }
                    PROMPTS_SCOPE => self.prompt_change(&key, RepeatPolicy::Notify)?,
                    // Other state is not part of the catalogue.
                    _ => return Ok(None),
                };
                Ok(event_change(change, event.removed, attached.scope))
            }
            StoreItem::State { .. } => Ok(None),
        }
    }

    /// Applies the changes of the user's local data since the last call.
    pub(super) fn sync_local(&self) -> Result<()> {
        let Some(local) = self.local.as_ref().or(self.visibility.as_ref()) else {
            return Ok(());
        };
        let _turn = self
            .sync_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut cursor = local.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let (changed, next) = match &*cursor {
            Some(cursor) => {
                let events = local.store.events_since(cursor)?;
                (events.changed, events.cursor)
            }
            // Read first: events recorded meanwhile are applied twice, never lost.
            None => (true, local.store.event_cursor()?),
        };
        if changed {
            self.sync_visibility()?;
            self.refresh_links();
            if self.local.is_some() && self.store_selection != CatalogueContent::Registered {
                // An approval may concern a skill of another server or an installed one.
                let mut apply = self.remote_changes(&local.store)?;
                apply.extend(self.approval_changes()?);
                self.catalogue.apply_changes(apply);
            }
        }
        *cursor = Some(next);
        Ok(())
    }

    /// Hides the skills that are disabled or not selected.
    pub(super) fn sync_visibility(&self) -> Result<()> {
        let disabled = match self.local.as_ref().or(self.visibility.as_ref()) {
            Some(local) => local.store.disabled_skills()?,
            None => BTreeSet::new(),
        };
        let visibility = Visibility {
            only: self.only.clone(),
            disabled,
            ..Visibility::default()
        };
        self.catalogue
            .apply_changes([CatalogueChange::SetVisibility(visibility)]);
        Ok(())
    }

    /// Returns the changes between the stored server listings and the catalogue.
    fn remote_changes(&self, local: &LocalStore) -> Result<Vec<CatalogueChange>> {
        let snapshot = self.snapshot();
        let mut changes = Vec::new();
        let stored = local.remotes()?;
        for remote in &stored {
            let Ok(label) = remote.label.parse::<RemoteLabel>() else {
                continue;
            };
            // A listing in an outdated format is treated as empty.
            let listing = remote.listing.clone().unwrap_or_default();
            let listing: Vec<ListedSkill> = serde_json::from_value(listing).unwrap_or_default();
            let (entries, _) = remote::listing_entries(local, &label, &listing)?;
            let now = snapshot.all_skills().map(|(entry, _)| entry);
            changes.extend(remote::listing_changes(&label, now, entries));
        }
        let forgotten = snapshot.all_skills().filter(|(entry, _)| {
            matches!(&entry.origin, Origin::Remote(label)
                if stored.iter().all(|remote| *remote.label != **label))
        });
        changes.extend(
            forgotten.map(|(e, _)| CatalogueChange::RemoveSkill(e.id.clone(), e.origin.clone())),
        );
        Ok(changes)
    }
}

/// Returns the change for an event, given the current content.
///
/// An entry that was removed and added again has two events: the first one removes it.
fn event_change(
    now: Option<CatalogueChange>,
    removed: bool,
    scope: StoreScope,
) -> Option<CatalogueChange> {
    // The entry of another store becomes visible instead.
    let here =
        |location: &ContentLocation| matches!(location, ContentLocation::State(s) if *s == scope);
    match now {
        Some(CatalogueChange::PutSkill(entry, _)) if removed && here(&entry.location) => {
            Some(CatalogueChange::RemoveSkill(entry.id, entry.origin))
        }
        Some(CatalogueChange::PutPrompt(entry, _)) if removed && here(&entry.location) => Some(
            CatalogueChange::RemovePrompt(entry.prompt.name.clone(), entry.origin),
        ),
        other => other,
    }
}

fn stored_metadata(attached: &AttachedStore, text: &str) -> Result<SkillMetadata> {
    SkillMetadata::from_stored(text, attached.store.location().as_ref())
}

fn package_change(
    attached: &AttachedStore,
    id: SkillId,
    head: SkillMetadata,
    trusted: Trusted,
    again: RepeatPolicy,
) -> CatalogueChange {
    let entry = SkillEntry {
        id,
        alias: None,
        origin: Origin::from_scope(attached.scope),
        trusted,
        metadata: Arc::new(head),
        complete: None,
        location: ContentLocation::Stored(attached.scope),
    };
    CatalogueChange::PutSkill(entry, again)
}

fn registered_skill_change(
    attached: &AttachedStore,
    id: SkillId,
    head: impl Into<Arc<SkillMetadata>>,
    again: RepeatPolicy,
) -> CatalogueChange {
    let entry = SkillEntry {
        id,
        alias: None,
        origin: Origin::State,
        trusted: Trusted::Yes,
        metadata: head.into(),
        complete: None,
        location: ContentLocation::State(attached.scope),
    };
    CatalogueChange::PutSkill(entry, again)
}

fn stored_prompt_change(
    attached: &AttachedStore,
    row: PromptRow,
    again: RepeatPolicy,
) -> CatalogueChange {
    let entry = PromptEntry {
        prompt: Arc::new(row.prompt),
        origin: Origin::State,
        trusted: Trusted::Yes,
        registered_at: Some(row.at),
        location: ContentLocation::State(attached.scope),
    };
    CatalogueChange::PutPrompt(entry, again)
}
