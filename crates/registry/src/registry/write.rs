//! Writing: every change goes to a store first and reaches the catalogue through its events.

use repertoire_core::{Prompt, PromptName, SkillId};
use serde_json::json;

use super::{Registry, SKILLS};
use crate::{
    error::Result,
    head::Head,
    origin::Scope,
    store::{NewSkill, Revision},
};

/// The most bytes of a registered body.
const MAX_BODY: usize = 256 * 1024;

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
        let field = |rule: String| repertoire_core::Error::Field {
            field: "skill".to_owned(),
            rule,
        };
        if body.trim().is_empty() {
            return Err(field("must be non-empty".to_owned()).into());
        }
        if body.len() > MAX_BODY {
            let rule = format!("too large: {} bytes, at most {MAX_BODY}", body.len());
            return Err(field(rule).into());
        }
        let head = Head::of_body(id, body);
        let row = json!({"id": id, "skill": body, "registered_at": crate::store::now()});
        let attached = self.primary()?;
        attached
            .store
            .state_set(SKILLS, id.as_str(), &row, Some(&head))?;
        self.sync_store(attached)
    }

    /// Takes a registered body away, from the workspace first; says whether there was one.
    pub fn unregister(&self, id: &SkillId) -> Result<bool> {
        for attached in self.trusted() {
            let old = attached.store.state_delete(SKILLS, id.as_str())?;
            self.sync_store(attached)?;
            if old.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stores a prompt in place of any of its name.
    pub fn put_prompt(&self, prompt: &Prompt, body: Option<&str>) -> Result<()> {
        let attached = self.primary()?;
        attached.store.put_prompt(prompt, body)?;
        self.sync_store(attached)
    }

    /// Removes a stored prompt, from the workspace first; says whether there was one.
    pub fn remove_prompt(&self, name: &PromptName) -> Result<bool> {
        for attached in self.trusted() {
            let removed = attached.store.remove_prompt(name)?;
            self.sync_store(attached)?;
            if removed {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
