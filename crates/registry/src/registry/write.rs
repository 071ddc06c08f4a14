//! Writing: every change goes to a store first and reaches the catalogue through its events.

use std::{collections::BTreeMap, sync::Arc};

use repertoire_core::{Package, Prompt, PromptName, RelPath, SkillId, package::Source};
use serde_json::{Value, json};

use super::Registry;
use crate::{
    catalogue::Entry,
    error::{Error, Result},
    origin::{Origin, Scope},
    registered::{self, PROMPTS, SKILLS},
    remote::{self, Label, Listed, Refused, Remotes},
    store::{NewSkill, Revision},
};

/// What happens to the history of a skill that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum History {
    /// It stays, and the skill can be rolled back to.
    Keep,
    /// It goes, with every file nothing else needs.
    Purge,
}

impl Registry {
    /// Stores skills, all or none. Gives the new revision of each, `None` where nothing changed.
    pub fn add(&self, scope: Scope, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        let attached = self.attached(scope)?;
        let revisions = attached.store.put_skills(skills)?;
        self.sync_store(attached)?;
        Ok(revisions)
    }

    /// Copies a skill into the workspace, where it wins and can be changed. The one it was copied
    /// from stays as it is.
    pub fn fork(&self, entry: &Entry) -> Result<Option<i64>> {
        let workspace = Origin::of_scope(Scope::Workspace);
        let attached = self.attached(Scope::Workspace).map_err(|_| {
            Error::Conflict(
                "there is no workspace to copy it into: make this folder one with `repertoire \
                 init`, and trust it"
                    .to_owned(),
            )
        })?;
        if entry.origin == workspace || attached.store.head(&entry.id)?.is_some() {
            return Err(Error::Conflict(format!(
                "skill {} is in the workspace already",
                entry.id
            )));
        }
        let mut files = BTreeMap::new();
        for file in &entry.head.files {
            files.insert(file.path.clone(), self.file(entry, &file.path)?);
        }
        if entry.head.package.is_some() {
            let mut package = Package::from_folder(files)?;
            package.source = Source::User;
            (package.marketplace_id, package.sync_etag) = (None, None);
            files = package.to_folder()?;
        }
        let skill = NewSkill::from_files(entry.id.clone(), files)?;
        let revisions = self.add(Scope::Workspace, vec![skill])?;
        Ok(revisions.into_iter().next().flatten())
    }

    /// Checks what adding skills would come to, without adding them.
    pub fn try_add(&self, scope: Scope, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        self.attached(scope)?.store.try_skills(skills)
    }

    /// Removes a skill from a scope; its history stays unless it is purged.
    pub fn remove(&self, scope: Scope, id: &SkillId, history: History) -> Result<bool> {
        let attached = self.attached(scope)?;
        let removed = match history {
            History::Keep => attached.store.remove_skill(id)?,
            History::Purge => attached.store.purge_skill(id)?,
        };
        self.sync_store(attached)?;
        Ok(removed)
    }

    /// Every state a skill had in a scope, newest first.
    pub fn history(&self, scope: Scope, id: &SkillId) -> Result<Vec<Revision>> {
        self.attached(scope)?.store.history(id)
    }

    /// Makes an earlier state the current one.
    pub fn rollback(&self, scope: Scope, id: &SkillId, revision: i64) -> Result<i64> {
        let attached = self.attached(scope)?;
        let new = attached.store.rollback(id, revision)?;
        self.sync_store(attached)?;
        Ok(new)
    }

    /// Registers a markdown body under an id, in place of any that is there.
    pub fn register(&self, id: &SkillId, body: &str) -> Result<()> {
        let row = registered::skill_row(id, body)?;
        self.state_set(SKILLS, id.as_str(), row.value)?;
        Ok(())
    }

    /// Takes a registered body away, from the workspace first; says whether there was one.
    pub fn unregister(&self, id: &SkillId) -> Result<bool> {
        Ok(self.state_delete(SKILLS, id.as_str())?.is_some())
    }

    /// Says how other servers are asked for their files.
    pub fn connect(&self, remotes: Arc<dyn Remotes>) {
        // The first one stays: it may already be in use.
        let _ = self.remotes.set(remotes);
    }

    /// Adds another server, or changes how it is reached.
    pub fn put_remote(&self, label: &Label, target: &Value) -> Result<()> {
        let attached = self.attached(Scope::Account)?;
        attached.store.put_remote(label.as_str(), target)?;
        self.sync_store(attached)
    }

    /// Takes over what a server lists; gives what of it cannot be used, and why.
    pub fn put_listing(&self, label: &Label, listing: &[Listed]) -> Result<Vec<Refused>> {
        let attached = self.attached(Scope::Account)?;
        let (_, refused) = remote::entries(&attached.store, label, listing)?;
        let listing = json!(listing);
        if !attached.store.put_listing(label.as_str(), &listing)? {
            return Err(Error::NotFound {
                what: "server",
                name: label.to_string(),
            });
        }
        self.sync_store(attached)?;
        Ok(refused)
    }

    /// Forgets another server and its skills; says whether there was one.
    pub fn remove_remote(&self, label: &Label) -> Result<bool> {
        let attached = self.attached(Scope::Account)?;
        let removed = attached.store.remove_remote(label.as_str())?;
        self.sync_store(attached)?;
        Ok(removed)
    }

    /// Approves a skill of another server, with exactly the files it has now.
    pub fn approve(&self, entry: &Entry) -> Result<()> {
        let attached = self.attached(Scope::Account)?;
        // What is approved is what was seen: the document has to say what was listed of it.
        if entry.is_remote() && !entry.head.dynamic {
            self.file(entry, &RelPath::document())?;
        }
        remote::approve(&attached.store, entry)?;
        self.sync_store(attached)
    }

    /// Takes the approval of a skill back; says whether there was one.
    pub fn disapprove(&self, entry: &Entry) -> Result<bool> {
        let attached = self.attached(Scope::Account)?;
        let revoked = remote::revoke(&attached.store, entry)?;
        self.sync_store(attached)?;
        Ok(revoked)
    }

    /// Stores a prompt in place of any of its name.
    pub fn put_prompt(&self, prompt: &Prompt, body: Option<&str>) -> Result<()> {
        let row = registered::prompt_row(prompt, body)?;
        self.state_set(PROMPTS, prompt.name.as_str(), row.value)?;
        Ok(())
    }

    /// Removes a stored prompt, from the workspace first; says whether there was one.
    pub fn remove_prompt(&self, name: &PromptName) -> Result<bool> {
        Ok(self.state_delete(PROMPTS, name.as_str())?.is_some())
    }
}
