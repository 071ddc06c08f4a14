//! Writes: every change is written to a store first and reaches the catalogue by its events.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_core::{Package, Prompt, PromptName, RelPath, SkillId, package::PackageSource};
use serde_json::{Value, json};

use super::Registry;
use crate::{
    catalogue::SkillEntry,
    error::{Error, Result},
    origin::{Origin, StoreScope, Trusted},
    registered::{self, PROMPTS_SCOPE, SKILLS_SCOPE},
    remote::{self, ListedSkill, RefusedSkill, RemoteLabel, RemoteReader},
    store::{NewSkill, SkillRevision, SkillWrite, StateRevision, StateValue, WriteMode},
};

/// Whether removing a skill also removes its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryPolicy {
    /// The history stays, and the skill can be rolled back.
    Keep,
    /// The history is deleted, with every file that is no longer referenced.
    Purge,
}

impl Registry {
    /// Stores skills atomically. Returns the new revision of each, `None` where nothing changed.
    pub fn add_skills(&self, scope: StoreScope, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        let attached = self.attached_store(scope)?;
        let revisions = attached.store.put_skills(skills)?;
        self.sync_store(attached)?;
        Ok(revisions)
    }

    /// Copies a skill into the workspace, where it takes precedence and can be changed. The
    /// original stays unchanged.
    pub fn fork_skill(&self, entry: &SkillEntry) -> Result<Option<i64>> {
        let workspace = Origin::from_scope(StoreScope::Workspace);
        let attached = self
            .attached_store(StoreScope::Workspace)
            .map_err(|_| Error::NoWorkspace)?;
        // The copy would be the user's own, and so trusted.
        if entry.trusted == Trusted::No {
            return Err(Error::UntrustedSkill(entry.id.clone()));
        }
        if entry.origin == workspace || attached.store.skill_metadata(&entry.id)?.is_some() {
            return Err(Error::AlreadyInWorkspace(entry.id.clone()));
        }
        let mut files = BTreeMap::new();
        for file in &entry.complete_metadata().files {
            files.insert(file.path.clone(), self.read_file(entry, &file.path)?);
        }
        if entry.metadata.package.is_some() {
            let mut package = Package::from_folder(files)?;
            package.source = PackageSource::User;
            (package.marketplace_id, package.sync_etag) = (None, None);
            files = package.to_folder()?;
        }
        let skill = NewSkill::from_files(entry.id.clone(), files)?;
        let revisions = self.add_skills(StoreScope::Workspace, vec![skill])?;
        Ok(revisions.into_iter().next().flatten())
    }

    /// Returns the result that adding skills would have, without adding them.
    pub fn dry_run_add(
        &self,
        scope: StoreScope,
        skills: Vec<NewSkill>,
    ) -> Result<Vec<Option<i64>>> {
        let writes = skills.into_iter().map(SkillWrite::put).collect();
        let store = &self.attached_store(scope)?.store;
        store.write_skills(writes, WriteMode::DryRun)
    }

    /// Removes a skill from a scope, with or without its history.
    pub fn remove_skill(
        &self,
        scope: StoreScope,
        id: &SkillId,
        history: HistoryPolicy,
    ) -> Result<bool> {
        let attached = self.attached_store(scope)?;
        let removed = attached.store.remove_skill(id, history)?;
        self.sync_store(attached)?;
        Ok(removed)
    }

    /// Returns all revisions of a skill in a scope, newest first.
    pub fn history(&self, scope: StoreScope, id: &SkillId) -> Result<Vec<SkillRevision>> {
        self.attached_store(scope)?.store.history(id)
    }

    /// Restores an earlier revision as a new one.
    pub fn rollback_skill(&self, scope: StoreScope, id: &SkillId, revision: i64) -> Result<i64> {
        let attached = self.attached_store(scope)?;
        let new = attached.store.rollback_skill(id, revision)?;
        self.sync_store(attached)?;
        self.sync_local()?;
        Ok(new)
    }

    /// Registers a markdown body under an id, replacing an existing one.
    pub fn register_skill(&self, id: &SkillId, body: &str) -> Result<()> {
        let row = registered::skill_row(id, body)?;
        self.state_set(SKILLS_SCOPE, id.as_str(), row.value)?;
        Ok(())
    }

    /// Removes a registered body, from the workspace first; returns whether there was one.
    pub fn unregister_skill(&self, id: &SkillId) -> Result<bool> {
        Ok(self.state_delete(SKILLS_SCOPE, id.as_str())?.is_some())
    }

    /// Deletes the earlier bodies that a scope keeps of an id.
    pub fn purge_registered_history(&self, scope: StoreScope, id: &SkillId) -> Result<()> {
        let store = &self.attached_store(scope)?.store;
        store.purge_state_history(SKILLS_SCOPE, id.as_str())
    }

    /// Returns the revisions of a registered body that are kept, newest first, and the store that has
    /// them: the one whose body is served, or the first that remembers one.
    pub fn registered_history(
        &self,
        id: &SkillId,
    ) -> Result<Option<(StoreScope, Vec<StateRevision>)>> {
        if !self.has_local_state() {
            return Err(Error::KeptOnBus);
        }
        let mut remembered = None;
        for attached in self.trusted_attached() {
            let revisions = attached.store.state_history(SKILLS_SCOPE, id.as_str())?;
            match revisions.first() {
                Some(newest) if newest.value.is_some() => {
                    return Ok(Some((attached.scope, revisions)));
                }
                Some(_) if remembered.is_none() => remembered = Some((attached.scope, revisions)),
                _ => {}
            }
        }
        Ok(remembered)
    }

    /// Registers the body of an earlier revision again, in the store that has it; returns the number
    /// of the new revision.
    pub fn rollback_registered(&self, id: &SkillId, revision: i64) -> Result<i64> {
        let missing = || Error::NotFound {
            what: "revision",
            name: format!("{id}@{revision}"),
        };
        let (scope, revisions) = self.registered_history(id)?.ok_or_else(missing)?;
        let found = revisions.into_iter().find(|one| one.revision == revision);
        let value = found.and_then(|one| one.value).ok_or_else(missing)?;
        let body = registered::row_body(&value).ok_or_else(missing)?;
        let row = registered::skill_row(id, &body)?;
        let new = StateValue {
            value: row.value,
            metadata: row.metadata.map(|metadata| json!(metadata).to_string()),
        };
        let attached = self.attached_store(scope)?;
        attached.store.state_set(SKILLS_SCOPE, id.as_str(), new)?;
        self.sync_store(attached)?;
        let newest = attached.store.state_history(SKILLS_SCOPE, id.as_str())?;
        Ok(newest.first().map_or(0, |newest| newest.revision))
    }

    /// Sets the reader for files of other servers.
    pub fn set_remote_reader(&self, remotes: Arc<dyn RemoteReader>) {
        // The first reader stays, because it may already be in use.
        let _ = self.remote_reader.set(remotes);
    }

    /// Adds another server, or changes how it is reached.
    pub fn put_remote(&self, label: &RemoteLabel, target: &Value) -> Result<()> {
        self.local_store()?.put_remote(label.as_str(), target)?;
        self.sync_local()
    }

    /// Stores the listing of a server; returns the listed skills that were refused, and why.
    pub fn put_listing(
        &self,
        label: &RemoteLabel,
        listing: &[ListedSkill],
    ) -> Result<Vec<RefusedSkill>> {
        let local = self.local_store()?;
        let (_, refused) = remote::listing_entries(local, label, listing)?;
        let listing = json!(listing);
        if !local.put_listing(label.as_str(), &listing)? {
            return Err(Error::NotFound {
                what: "server",
                name: label.to_string(),
            });
        }
        self.sync_local()?;
        Ok(refused)
    }

    /// Removes a server and its skills; returns whether there was one.
    pub fn remove_remote(&self, label: &RemoteLabel) -> Result<bool> {
        let removed = self.local_store()?.remove_remote(label.as_str())?;
        self.sync_local()?;
        Ok(removed)
    }

    /// Approves a skill of another server with exactly its current files, or an installed one as it
    /// was installed.
    pub fn approve_skill(&self, entry: &SkillEntry) -> Result<()> {
        if let Some((scope, installed)) = self.installed_entry(entry)? {
            let shown = [(entry.id.clone(), installed.digest())];
            return self.approve_installed(scope, &shown);
        }
        let local = self.local_store()?;
        // The document must match its listing, because the user approved what was listed.
        if entry.is_remote() && !entry.metadata.dynamic {
            self.read_file(entry, &RelPath::document())?;
        }
        remote::approve_skill(local, entry)?;
        self.sync_local()
    }

    /// Revokes the approval of a skill; returns whether there was one.
    pub fn revoke_approval(&self, entry: &SkillEntry) -> Result<bool> {
        if let Some((scope, _)) = self.installed_entry(entry)? {
            return self.revoke_installed(scope, &entry.id);
        }
        let revoked = remote::revoke_approval(self.local_store()?, entry)?;
        self.sync_local()?;
        Ok(revoked)
    }

    /// Stores a prompt, replacing one of the same name.
    pub fn put_prompt(&self, prompt: &Prompt, body: Option<&str>) -> Result<()> {
        let row = registered::prompt_row(prompt, body)?;
        self.state_set(PROMPTS_SCOPE, prompt.name.as_str(), row.value)?;
        Ok(())
    }

    /// Removes a stored prompt, from the workspace first; returns whether there was one.
    pub fn remove_prompt(&self, name: &PromptName) -> Result<bool> {
        Ok(self.state_delete(PROMPTS_SCOPE, name.as_str())?.is_some())
    }
}
