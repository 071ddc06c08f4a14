//! Makes a scope match what its project wants, as its lock pins it.

use std::collections::{BTreeMap, BTreeSet};

use repertoire_core::{Digest, SkillId};
use repertoire_registry::{Error as RegistryError, HistoryPolicy, SkillMetadata, store::WriteMode};

use super::{
    fetch::{FetchedFrom, NamedBy},
    installer::{InstallTarget, Installer, SkillChange, locked_skill},
    project::{LOCK_FILE, PROJECT_FILE, WantedSkill, read_source},
};
use crate::error::{Error, Result};

/// How `install` decides what to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstallMode {
    /// What is not locked is resolved and locked.
    Resolve,
    /// The lock must say everything, and stays as it is.
    Frozen,
}

/// What an installation did.
#[derive(Debug, Default)]
pub struct InstallReport {
    /// The skills, with what happened to each.
    pub skills: Vec<(SkillId, SkillChange)>,
    /// The skills that came from the cache.
    pub from_cache: Vec<SkillId>,
    /// The skills that are installed and not approved.
    pub unapproved: Vec<SkillId>,
    /// The skills that the user changed.
    pub edited: Vec<SkillId>,
}

impl Installer {
    /// Makes the scope match its project.
    pub fn install(&mut self, mode: InstallMode) -> Result<InstallReport> {
        if self.project.is_new() {
            return Err(RegistryError::NotFound {
                what: "project file",
                name: self.project.path().display().to_string(),
            }
            .into());
        }
        if mode == InstallMode::Frozen {
            self.check_frozen()?;
        }
        let mut report = InstallReport::default();
        let targets = self.fetch_wanted(&mut report)?;
        let plan = self.plan(&targets)?;
        if let Some(conflict) = plan.conflicts.into_iter().next() {
            return Err(Error::UpdateConflict {
                skill: conflict.id.to_string(),
            });
        }
        self.begin_changes()?;
        let gone = self.unwanted()?;
        if mode == InstallMode::Resolve {
            for target in &targets {
                self.lock.put(target.locked.clone());
            }
            let stale: Vec<SkillId> = self
                .lock
                .skills()
                .filter(|locked| self.project.get(&locked.id).is_none())
                .map(|locked| locked.id.clone())
                .collect();
            for id in stale {
                self.lock.remove(&id);
            }
            self.lock.write(self.project.folder())?;
        }
        if !plan.writes.is_empty() {
            self.registry
                .write_skills(self.scope, plan.writes, WriteMode::Commit)?;
        }
        report.skills.extend(plan.changes);
        for id in gone {
            self.registry
                .remove_skill(self.scope, &id, HistoryPolicy::Keep)?;
            self.registry.revoke_installed(self.scope, &id)?;
            report.skills.push((id, SkillChange::Removed));
        }
        report.skills.sort_by(|a, b| a.0.cmp(&b.0));
        report.unapproved = self.unapproved()?;
        report.edited = self.edited()?;
        self.remember_hosts()?;
        self.cache.trim();
        Ok(report)
    }

    /// Fails, naming the file, if the lock does not say everything.
    fn check_frozen(&self) -> Result<()> {
        let path = self.project.folder().join(LOCK_FILE);
        let refuse = |reason: String| {
            Err(Error::FrozenLock {
                path: path.clone(),
                reason,
            })
        };
        if self.lock.is_new() {
            return refuse("is not there".to_owned());
        }
        for one in self.project.wanted() {
            match self.lock.get(&one.id) {
                None => return refuse(format!("has no {}, which {PROJECT_FILE} names", one.id)),
                Some(_) if self.locked_as(one).is_none() => {
                    return refuse(format!(
                        "has {} from another source than {PROJECT_FILE}",
                        one.id
                    ));
                }
                Some(_) => {}
            }
        }
        for locked in self.lock.skills() {
            if locked.explicit && self.project.get(&locked.id).is_none() {
                return refuse(format!(
                    "has {}, which {PROJECT_FILE} does not name",
                    locked.id
                ));
            }
        }
        Ok(())
    }

    /// Gets what is wanted and not installed as locked. All or nothing: a skill that cannot be got
    /// leaves everything as it was.
    fn fetch_wanted(&self, report: &mut InstallReport) -> Result<Vec<InstallTarget>> {
        let wanted: Vec<WantedSkill> = self.project.wanted().cloned().collect();
        let (mut requests, mut targets) = (Vec::new(), Vec::new());
        for one in &wanted {
            let locked = self.locked_as(one);
            let installed = self.store()?.installed_from(&one.id)?;
            match (&locked, installed) {
                (Some(locked), Some(installed)) if installed.digest() == locked.digest => {
                    report.skills.push((one.id.clone(), SkillChange::Unchanged));
                }
                _ => requests.push(self.request(one, locked.as_ref())?),
            }
        }
        let fetched = self.reader().fetch(&requests, NamedBy::Project);
        for one in &wanted {
            let Some(Ok(FetchedFrom {
                skill,
                resolved,
                from_cache,
            })) = fetched.get(&one.id)
            else {
                continue;
            };
            if *from_cache {
                report.from_cache.push(one.id.clone());
            }
            // A path of this machine means nothing to others.
            let is_path = one.source.starts_with('.');
            let resolved = if is_path { &one.source } else { resolved };
            let mut locked = locked_skill(one, resolved, skill);
            self.check_signer(&locked)?;
            if let Some(known) = self.locked_as(one) {
                // What the lock says about the content was checked; where it is from is never taken
                // from the lock.
                locked.version = known.version;
            } else {
                self.check_same_version(&locked)?;
                let signer = locked.signer.as_ref();
                self.cache.put(&locked.digest, &skill.files, signer);
            }
            targets.push(InstallTarget {
                locked,
                files: skill.files.clone(),
                edited: None,
                choices: BTreeMap::new(),
            });
        }
        for result in fetched.into_values() {
            result?;
        }
        Ok(targets)
    }

    /// Returns the installed skills that the project does not name.
    fn unwanted(&self) -> Result<Vec<SkillId>> {
        let installed = self.store()?.installed_digests()?;
        let unwanted = installed.into_iter().map(|(id, _)| id);
        Ok(unwanted
            .filter(|id| self.project.get(id).is_none())
            .collect())
    }

    /// Returns the installed skills that are not approved.
    pub fn unapproved(&self) -> Result<Vec<SkillId>> {
        let mut found = Vec::new();
        for (id, digest) in self.store()?.installed_digests()? {
            if !self
                .registry
                .is_installed_approved(self.scope, &id, &digest)?
            {
                found.push(id);
            }
        }
        Ok(found)
    }

    /// Returns the installed skills that the user changed.
    fn edited(&self) -> Result<Vec<SkillId>> {
        let store = self.store()?;
        let installed: BTreeMap<SkillId, Digest> = store.installed_digests()?.into_iter().collect();
        let stored = store.all_metadata()?.into_iter();
        let is_edited = |(id, metadata): &(SkillId, SkillMetadata)| {
            installed
                .get(id)
                .is_some_and(|digest| *digest != metadata.digest())
        };
        Ok(stored.filter(is_edited).map(|(id, _)| id).collect())
    }

    /// Remembers the private hosts that the user allowed.
    pub(super) fn remember_hosts(&self) -> Result<()> {
        if !self.options.private {
            return Ok(());
        }
        for wanted in self.project.wanted() {
            let source = read_source(self.project.folder(), wanted)?;
            self.reader().remember_host(&source)?;
        }
        Ok(())
    }

    /// Wants skills no longer and removes them; returns those that were named in the project's file.
    pub fn forget(&mut self, ids: &BTreeSet<SkillId>) -> Result<Vec<SkillId>> {
        self.begin_changes()?;
        let mut forgotten = Vec::new();
        for id in ids {
            let named = self.project.remove(id);
            if self.lock.remove(id) || named {
                forgotten.push(id.clone());
            }
        }
        if !forgotten.is_empty() {
            self.project.write()?;
            self.lock.write(self.project.folder())?;
        }
        Ok(forgotten)
    }
}
