//! Updates installed skills and keeps the user's changes.
//!
//! A conflict pauses the whole update: nothing is stored, and what the user decides file by file is
//! noted in the store until everything is decided. Then all of it is applied as one change. A decision
//! holds for the two states it was made for; if either changed, it is asked for again.

use std::collections::{BTreeMap, BTreeSet};

use repertoire_core::{Digest, RelPath, Signer, SkillId};
use repertoire_registry::{Error as RegistryError, store::WriteMode};
use repertoire_remote::Pin;
use serde::{Deserialize, Serialize};

use super::{
    fetch::{FetchRequest, NamedBy},
    installer::{InstallTarget, Installer, SkillChange},
    lock::LockedSkill,
    merge::{ConflictChoice, MergeConflict},
    project::WantedSkill,
};
use crate::error::{Error, Result};

/// The name of the note of a paused update.
const PAUSED_NOTE: &str = "paused-update";

/// A decision about one file of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChoice {
    /// The skill.
    pub skill: SkillId,
    /// The file; every file in conflict if there is none.
    pub path: Option<RelPath>,
    /// Whose state of it is used.
    pub choice: ConflictChoice,
}

/// What is updated, and what was decided.
#[derive(Debug, Clone, Default)]
pub struct UpdateRequest {
    /// Only these skills; all if there are none.
    pub skills: BTreeSet<SkillId>,
    /// Decisions about conflicts of a paused update.
    pub choices: Vec<FileChoice>,
    /// Forget a paused update.
    pub abort: bool,
    /// Only say what would happen.
    pub dry_run: bool,
}

/// The files of a skill that have to be decided.
#[derive(Debug, Clone, Serialize)]
pub struct SkillConflict {
    /// The skill.
    pub id: SkillId,
    /// Its files.
    pub files: Vec<MergeConflict>,
}

/// A skill of an update.
#[derive(Debug)]
pub struct UpdatedSkill {
    /// Its id.
    pub id: SkillId,
    /// What happened, or would happen.
    pub change: SkillChange,
    /// What was locked before.
    pub before: Option<LockedSkill>,
    /// What is locked now.
    pub after: LockedSkill,
}

/// What an update did.
#[derive(Debug, Default)]
pub struct UpdateReport {
    /// The skills, with what happened to each.
    pub changes: Vec<UpdatedSkill>,
    /// What has to be decided first; if anything is here, nothing was stored.
    pub conflicts: Vec<SkillConflict>,
    /// Skills that could not be asked for, with the reason.
    pub failed: Vec<(SkillId, Error)>,
    /// The updated skills that are not approved.
    pub unapproved: Vec<SkillId>,
    /// Whether this went on with an update that was paused.
    pub resumed: bool,
    /// How many files of a paused update are decided.
    pub decided: usize,
}

/// An update that waits for decisions.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PausedUpdate {
    targets: BTreeMap<SkillId, PausedTarget>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PausedTarget {
    source: String,
    #[serde(default)]
    skill: Option<String>,
    resolved: String,
    pin: Pin,
    digest: Digest,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    signer: Option<Signer>,
    /// The digest of the local state that the decisions are made for.
    local: Option<Digest>,
    choices: BTreeMap<RelPath, ConflictChoice>,
}

impl PausedTarget {
    fn new(locked: &LockedSkill, local: Option<Digest>) -> Self {
        Self {
            source: locked.source.clone(),
            skill: locked.skill.clone(),
            resolved: locked.resolved.clone(),
            pin: locked.pin.clone(),
            digest: locked.digest,
            version: locked.version.clone(),
            signer: locked.signer.clone(),
            local,
            choices: BTreeMap::new(),
        }
    }

    fn locked(&self, id: &SkillId) -> LockedSkill {
        LockedSkill {
            skill: self.skill.clone(),
            version: self.version.clone(),
            signer: self.signer.clone(),
            ..LockedSkill::new(
                id.clone(),
                self.source.clone(),
                self.resolved.clone(),
                self.pin.clone(),
                self.digest,
            )
        }
    }
}

impl Installer {
    /// Whether an update waits for decisions.
    pub fn has_paused_update(&self) -> Result<bool> {
        Ok(!self.paused_update()?.targets.is_empty())
    }

    fn paused_update(&self) -> Result<PausedUpdate> {
        let note = self.store()?.note(PAUSED_NOTE)?;
        // A note of another version counts as none.
        let read = note.and_then(|note| repertoire_core::json::from_str(&note).ok());
        Ok(read.unwrap_or_default())
    }

    fn keep_paused(&self, paused: &PausedUpdate) -> Result<()> {
        let text = serde_json::to_string(paused).unwrap_or_default();
        Ok(self.store()?.put_note(PAUSED_NOTE, &text)?)
    }

    /// Brings installed skills to what their sources have now.
    pub fn update(&mut self, request: &UpdateRequest) -> Result<UpdateReport> {
        if request.abort {
            let resumed = self.has_paused_update()?;
            self.keep_paused(&PausedUpdate::default())?;
            return Ok(UpdateReport {
                resumed,
                ..UpdateReport::default()
            });
        }
        if self.options.offline && !self.has_paused_update()? {
            return Err(Error::Offline("what sources have now".to_owned()));
        }
        for id in &request.skills {
            if self.project.get(id).is_none() {
                return Err(Error::NotInstalled(id.clone()));
            }
        }
        let mut report = UpdateReport::default();
        let mut paused = self.paused_update()?;
        report.resumed = !paused.targets.is_empty();
        if report.resumed {
            self.forget_outdated(&mut paused)?;
        } else if !request.choices.is_empty() {
            return Err(Error::NoPausedUpdate);
        }
        if paused.targets.is_empty() {
            paused = self.newest_targets(request, &mut report)?;
        }
        let files = self.target_files(&paused)?;
        self.apply_choices(request, &mut paused, &files)?;
        let targets: Vec<InstallTarget> = files
            .into_iter()
            .filter_map(|(id, files)| {
                let target = paused.targets.get(&id)?;
                Some(InstallTarget {
                    locked: target.locked(&id),
                    files,
                    edited: None,
                    choices: target.choices.clone(),
                })
            })
            .collect();
        let plan = self.plan(&targets)?;
        if !plan.conflicts.is_empty() {
            if !request.dry_run {
                self.keep_paused(&paused)?;
            }
            let choices = paused.targets.values().map(|target| target.choices.len());
            report.decided = choices.sum();
            report.conflicts = plan.conflicts;
            return Ok(report);
        }
        let before: BTreeMap<SkillId, Option<LockedSkill>> = targets
            .iter()
            .map(|target| {
                let id = &target.locked.id;
                (id.clone(), self.lock.get(id).cloned())
            })
            .collect();
        if !request.dry_run {
            self.begin_changes()?;
            for target in &targets {
                self.lock.put(target.locked.clone());
            }
            self.lock.write(self.project.folder())?;
            if !plan.writes.is_empty() {
                self.registry
                    .write_skills(self.scope, plan.writes, WriteMode::Commit)?;
            }
            if report.resumed {
                self.keep_paused(&PausedUpdate::default())?;
            }
            self.remember_hosts()?;
            self.cache.trim();
        }
        for target in targets {
            let id = target.locked.id.clone();
            report.changes.push(UpdatedSkill {
                change: plan
                    .changes
                    .get(&id)
                    .copied()
                    .unwrap_or(SkillChange::Unchanged),
                before: before.get(&id).cloned().flatten(),
                after: target.locked,
                id,
            });
        }
        let touched: BTreeSet<&SkillId> = report.changes.iter().map(|one| &one.id).collect();
        let unapproved = self.unapproved()?;
        report.unapproved = unapproved
            .into_iter()
            .filter(|id| touched.contains(id))
            .collect();
        Ok(report)
    }

    /// Forgets targets of skills that are no longer installed, and decisions about other states.
    fn forget_outdated(&self, paused: &mut PausedUpdate) -> Result<()> {
        let store = self.store()?;
        let mut kept = BTreeMap::new();
        for (id, mut target) in std::mem::take(&mut paused.targets) {
            let Some(wanted) = self.project.get(&id) else {
                continue;
            };
            if wanted.source != target.source || wanted.skill != target.skill {
                continue;
            }
            let local = store.skill_metadata(&id)?.map(|found| found.digest());
            if local != target.local {
                target.choices.clear();
                target.local = local;
            }
            kept.insert(id, target);
        }
        paused.targets = kept;
        Ok(())
    }

    /// Asks the sources for what they have now; returns what differs from what is installed.
    fn newest_targets(
        &self,
        request: &UpdateRequest,
        report: &mut UpdateReport,
    ) -> Result<PausedUpdate> {
        let is_wanted =
            |one: &&WantedSkill| request.skills.is_empty() || request.skills.contains(&one.id);
        let wanted: Vec<WantedSkill> = self.project.wanted().filter(is_wanted).cloned().collect();
        let mut requests = Vec::new();
        for one in &wanted {
            requests.push(FetchRequest {
                pin: None,
                digest: None,
                ..self.request(one, None)?
            });
        }
        let mut fetched = self.reader().fetch(&requests, NamedBy::Project);
        let mut paused = PausedUpdate::default();
        for one in &wanted {
            let fetched = match fetched.remove(&one.id) {
                Some(Ok(fetched)) => fetched,
                Some(Err(error)) => {
                    report.failed.push((one.id.clone(), error));
                    continue;
                }
                None => continue,
            };
            let locked = LockedSkill {
                skill: one.skill.clone(),
                version: fetched.skill.version.clone(),
                signer: fetched.skill.signer.clone(),
                ..LockedSkill::new(
                    one.id.clone(),
                    one.source.clone(),
                    fetched.resolved.clone(),
                    fetched.skill.pin.clone(),
                    fetched.skill.digest,
                )
            };
            let checked = self
                .check_same_version(&locked)
                .and_then(|()| self.check_signer(&locked));
            if let Err(error) = checked {
                report.failed.push((one.id.clone(), error));
                continue;
            }
            let signer = locked.signer.as_ref();
            self.cache.put(&locked.digest, &fetched.skill.files, signer);
            let local = self.store()?.skill_metadata(&one.id)?;
            let local = local.map(|found| found.digest());
            paused
                .targets
                .insert(one.id.clone(), PausedTarget::new(&locked, local));
        }
        Ok(paused)
    }

    /// Gets the files of the targets: from the cache, else from their sources by their pins.
    fn target_files(&self, paused: &PausedUpdate) -> Result<BTreeMap<SkillId, crate::SkillFiles>> {
        let mut requests = Vec::new();
        for (id, target) in &paused.targets {
            let wanted = WantedSkill {
                id: id.clone(),
                source: target.source.clone(),
                skill: target.skill.clone(),
            };
            requests.push(self.request(&wanted, Some(&target.locked(id)))?);
        }
        let fetched = self.reader().fetch(&requests, NamedBy::Project);
        fetched
            .into_iter()
            .map(|(id, fetched)| Ok((id, fetched?.skill.files)))
            .collect()
    }

    /// Adds the decisions of the request to those that were made before.
    fn apply_choices(
        &self,
        request: &UpdateRequest,
        paused: &mut PausedUpdate,
        files: &BTreeMap<SkillId, crate::SkillFiles>,
    ) -> Result<()> {
        for choice in &request.choices {
            let Some(target) = paused.targets.get_mut(&choice.skill) else {
                return Err(Error::NotInConflict(choice.skill.to_string()));
            };
            let undecided = InstallTarget {
                locked: target.locked(&choice.skill),
                files: files.get(&choice.skill).cloned().unwrap_or_default(),
                edited: None,
                choices: BTreeMap::new(),
            };
            let conflicts = self.plan(&[undecided])?.conflicts;
            let in_conflict: Vec<RelPath> = conflicts
                .into_iter()
                .flat_map(|one| one.files)
                .map(|file| file.path)
                .collect();
            let decided: Vec<RelPath> = match &choice.path {
                None => in_conflict,
                Some(path) if in_conflict.contains(path) => vec![path.clone()],
                Some(path) => {
                    return Err(Error::NotInConflict(format!("{}/{path}", choice.skill)));
                }
            };
            for path in decided {
                target.choices.insert(path, choice.choice);
            }
        }
        Ok(())
    }

    /// Returns why a skill is installed, in lines.
    pub fn why(&self, id: &SkillId) -> Result<Vec<String>> {
        let (wanted, locked) = (self.project.get(id), self.lock.get(id));
        let installed = self.store()?.installed_from(id)?;
        if wanted.is_none() && locked.is_none() && installed.is_none() {
            if self.store()?.skill_metadata(id)?.is_some() {
                return Ok(vec![format!(
                    "{id} is a skill of your own, added from this machine"
                )]);
            }
            return Err(RegistryError::NotFound {
                what: "installed skill",
                name: id.to_string(),
            }
            .into());
        }
        let mut lines = Vec::new();
        let file = self.project.path();
        if let Some(wanted) = wanted {
            lines.push(format!("{} names it: {}", file.display(), wanted.source));
        } else {
            lines.push(format!("{} does not name it", file.display()));
        }
        for parent in locked.iter().flat_map(|locked| &locked.required_by) {
            lines.push(format!("{parent} needs it"));
        }
        let siblings: Vec<&str> = self
            .lock
            .skills()
            .filter(|other| other.id != *id && locked.is_some_and(|l| l.resolved == other.resolved))
            .map(|other| other.id.as_str())
            .collect();
        if !siblings.is_empty() {
            lines.push(format!("from the same place: {}", siblings.join(", ")));
        }
        Ok(lines)
    }
}
