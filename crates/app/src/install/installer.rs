//! Adds skills, and makes a scope match what its project wants.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use repertoire_core::{Digest, SkillId};
use repertoire_registry::{
    Error as RegistryError, Registry, StoreScope, Trusted, folder,
    store::{CurrentSkill, InstalledFrom, NewSkill, OriginChange, SkillWrite, Store},
};
use repertoire_remote::{ClawHubResult, FetchedSkill, SkillSource};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{
    fetch::{FetchOptions, FetchRequest, NamedBy, SourceOffer, SourceReader, file_entries},
    lock::{LockedSkill, SkillLock},
    merge::{ConflictChoice, merge_files},
    project::{
        LOCK_FILE, MAX_FILE_BYTES, PROJECT_FILE, ProjectOwner, SkillProject, WantedSkill,
        read_source,
    },
    scratch::{ChangeTurn, ScratchFolder},
    skill_cache::SkillCache,
    update::SkillConflict,
};
use crate::{
    SkillFiles,
    error::{Error, Result, io_error_at},
};

/// Installs skills into one scope.
#[derive(Debug)]
pub struct Installer {
    pub(super) registry: Arc<Registry>,
    pub(super) scope: StoreScope,
    pub(super) account: PathBuf,
    pub(super) project: SkillProject,
    pub(super) lock: SkillLock,
    pub(super) cache: SkillCache,
    pub(super) options: FetchOptions,
    pub(super) runtime: Runtime,
    pub(super) scratch: ScratchFolder,
    /// Held from the first change until this is dropped.
    turn: Option<ChangeTurn>,
}

/// What happened to an installed skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkillChange {
    /// It is new.
    Added,
    /// It was replaced by what is wanted.
    Updated,
    /// The changes of its source were merged with those of the user.
    Merged,
    /// It is no longer wanted.
    Removed,
    /// It was as wanted.
    Unchanged,
}

impl Installer {
    /// Prepares installations into a scope.
    ///
    /// The scope of an untrusted workspace is refused: this is the gate for everything here.
    pub fn open(
        registry: Arc<Registry>,
        scope: StoreScope,
        account: &Path,
        options: FetchOptions,
    ) -> Result<Self> {
        let folder = match (scope, registry.workspace()) {
            (StoreScope::Account, _) => account.to_owned(),
            (StoreScope::Workspace, Some((folder, Trusted::Yes))) => folder.to_owned(),
            (StoreScope::Workspace, Some((folder, Trusted::No))) => {
                return Err(RegistryError::Untrusted(folder.to_owned()).into());
            }
            (StoreScope::Workspace, None) => return Err(RegistryError::NoWorkspace.into()),
        };
        let owner = match scope {
            StoreScope::Account => ProjectOwner::Account,
            StoreScope::Workspace => ProjectOwner::Project,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io_error_at(account))?;
        Ok(Self {
            project: SkillProject::read(&folder, owner)?,
            lock: SkillLock::read(&folder)?,
            cache: SkillCache::new(&account.join("cache")),
            account: account.to_owned(),
            registry,
            scope,
            options,
            runtime,
            scratch: ScratchFolder::create(account)?,
            turn: None,
        })
    }

    /// The registry that is installed into.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The scope that is installed into.
    pub fn scope(&self) -> StoreScope {
        self.scope
    }

    /// What is wanted.
    pub fn project(&self) -> &SkillProject {
        &self.project
    }

    /// What is locked.
    pub fn lock(&self) -> &SkillLock {
        &self.lock
    }

    pub(super) fn reader(&self) -> SourceReader<'_> {
        SourceReader {
            account: &self.account,
            local: self.registry.local_store().ok().map(|local| &**local),
            cache: &self.cache,
            options: &self.options,
            runtime: &self.runtime,
            scratch: self.scratch.path(),
        }
    }

    /// Waits for the turn to change something. Files that another process changed since they were read
    /// are an error: what was decided from them may be wrong.
    pub fn begin_changes(&mut self) -> Result<()> {
        if self.turn.is_some() {
            return Ok(());
        }
        self.turn = Some(ChangeTurn::take(&self.account)?);
        for (name, known) in [
            (PROJECT_FILE, self.project.text()),
            (LOCK_FILE, self.lock.text()),
        ] {
            let now = folder::read_small_file(self.project.folder(), name, MAX_FILE_BYTES)?;
            if now.as_deref() != known.map(str::as_bytes) {
                return Err(RegistryError::Changed {
                    what: "file",
                    name: self.project.folder().join(name).display().to_string(),
                }
                .into());
            }
        }
        Ok(())
    }

    pub(super) fn store(&self) -> Result<&Arc<dyn Store>> {
        Ok(self.registry.store(self.scope)?)
    }

    /// Asks a source what it has.
    pub fn look(&self, source: &SkillSource) -> Result<SourceOffer> {
        self.reader().open(source, NamedBy::User, None)
    }

    /// Searches a ClawHub registry.
    pub fn search(&self, registry: &str, words: &str, limit: usize) -> Result<Vec<ClawHubResult>> {
        let source: SkillSource = match registry {
            "" => "clawhub:x".parse()?,
            url => format!("clawhub+{}/x", url.trim_end_matches('/')).parse()?,
        };
        self.reader().search(&source, words, limit)
    }

    /// Refuses other content under a version that was installed before (T24, T52).
    pub(super) fn check_same_version(&self, new: &LockedSkill) -> Result<()> {
        let Some(known) = self.lock.get(&new.id) else {
            return Ok(());
        };
        if known.digest == new.digest || self.options.allow_moved {
            return Ok(());
        }
        // Another skill of the same place has the same pin.
        if known.pin == new.pin && known.source == new.source && known.skill == new.skill {
            // The same pin is the same content, whatever it is called.
            return Err(Error::MovedVersion {
                id: new.id.clone(),
                version: new.pin.to_string(),
                known: known.digest,
                found: new.digest,
            });
        }
        let same_version = known.version.is_some() && known.version == new.version;
        let version = match (&new.version, version_reference(&new.source)) {
            (Some(version), _) if same_version => version.clone(),
            (_, Some(reference)) if known.source == new.source && known.pin != new.pin => reference,
            _ => return Ok(()),
        };
        Err(Error::MovedVersion {
            id: new.id.clone(),
            version,
            known: known.digest,
            found: new.digest,
        })
    }

    /// Refuses another signer than the one that is recorded.
    pub(super) fn check_signer(&self, new: &LockedSkill) -> Result<()> {
        let known = self
            .lock
            .get(&new.id)
            .and_then(|known| known.signer.clone());
        match known {
            Some(known)
                if new.signer.as_ref() != Some(&known) && !self.options.allow_signer_change =>
            {
                Err(Error::SignerChanged {
                    id: new.id.clone(),
                    known: known.to_string(),
                    found: new.signer.as_ref().map(ToString::to_string),
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns what is locked for a wanted skill, if it is locked from the same source.
    pub(super) fn locked_as(&self, one: &WantedSkill) -> Option<LockedSkill> {
        let locked = self.lock.get(&one.id)?;
        (locked.source == one.source && locked.skill == one.skill).then(|| locked.clone())
    }

    pub(super) fn request(
        &self,
        one: &WantedSkill,
        locked: Option<&LockedSkill>,
    ) -> Result<FetchRequest> {
        Ok(FetchRequest {
            id: one.id.clone(),
            source: read_source(self.project.folder(), one)?,
            pin: locked.map(|locked| locked.pin.clone()),
            digest: locked.map(|locked| locked.digest),
            signer: locked.and_then(|locked| locked.signer.clone()),
            version: locked.and_then(|locked| locked.version.clone()),
        })
    }

    /// Decides what has to be written for the targets; nothing is changed.
    pub(super) fn plan(&self, targets: &[InstallTarget]) -> Result<InstallPlan> {
        let mut plan = InstallPlan::default();
        for target in targets {
            self.plan_target(target, &mut plan)?;
        }
        Ok(plan)
    }

    fn plan_target(&self, target: &InstallTarget, plan: &mut InstallPlan) -> Result<()> {
        let store = self.store()?;
        let id = &target.locked.id;
        let from = InstalledFrom {
            source: target.locked.source.clone(),
            skill: target.locked.skill.clone(),
            resolved: target.locked.resolved.clone(),
            pin: target.locked.pin.to_string(),
            version: target.locked.version.clone(),
            signer: target.locked.signer.clone(),
            files: file_entries(&target.files)?,
        };
        let stored = store.skill_metadata(id)?;
        let (files, change, current) = match (stored, store.installed_from(id)?) {
            (None, _) => (
                target.edited.as_ref().unwrap_or(&target.files).clone(),
                SkillChange::Added,
                CurrentSkill::Absent,
            ),
            // The same files are there already, as a skill of the user's own.
            (Some(stored), None) if stored.digest() == target.locked.digest => {
                let current = CurrentSkill::Digest(stored.digest());
                (target.files.clone(), SkillChange::Unchanged, current)
            }
            (Some(_), None) => {
                return Err(Error::OwnSkill {
                    id: id.clone(),
                    wanted: target.locked.source.clone(),
                });
            }
            (Some(stored), Some(installed)) => {
                let current = CurrentSkill::Digest(stored.digest());
                let is_edited = stored.digest() != installed.digest();
                if !is_edited {
                    let change = match installed == from {
                        true => SkillChange::Unchanged,
                        false if installed.digest() == from.digest() => SkillChange::Unchanged,
                        false => SkillChange::Updated,
                    };
                    (target.files.clone(), change, current)
                } else if installed.digest() == from.digest() {
                    // Only what is known about it changed.
                    (store.read_files(id)?, SkillChange::Unchanged, current)
                } else {
                    let base = read_base(&**store, &installed)?;
                    let local = store.read_files(id)?;
                    let outcome = merge_files(&base, &local, &target.files, &target.choices);
                    if !outcome.conflicts.is_empty() {
                        plan.conflicts.push(SkillConflict {
                            id: id.clone(),
                            files: outcome.conflicts,
                        });
                        return Ok(());
                    }
                    let change = if outcome.files == target.files {
                        SkillChange::Updated
                    } else {
                        SkillChange::Merged
                    };
                    (outcome.files, change, current)
                }
            }
        };
        plan.changes.insert(id.clone(), change);
        plan.writes.push(SkillWrite {
            origin: OriginChange::Set(Box::new(from)),
            base_files: target.files.clone(),
            current,
            ..SkillWrite::put(NewSkill::from_files(id.clone(), files)?)
        });
        Ok(())
    }
}

/// A skill that shall be installed.
#[derive(Debug, Clone)]
pub(super) struct InstallTarget {
    pub(super) locked: LockedSkill,
    pub(super) files: SkillFiles,
    /// What the user has made of it already.
    pub(super) edited: Option<SkillFiles>,
    /// What the user decided about conflicts.
    pub(super) choices: BTreeMap<repertoire_core::RelPath, ConflictChoice>,
}

/// What has to be written.
#[derive(Debug, Default)]
pub(super) struct InstallPlan {
    pub(super) writes: Vec<SkillWrite>,
    pub(super) changes: BTreeMap<SkillId, SkillChange>,
    pub(super) conflicts: Vec<SkillConflict>,
}

/// Reads the files that were installed.
pub(super) fn read_base(store: &dyn Store, installed: &InstalledFrom) -> Result<SkillFiles> {
    let mut files = SkillFiles::new();
    for file in &installed.files {
        let content = store.read_blob(&file.digest)?;
        let content = content.filter(|bytes| Digest::hash_bytes(bytes) == file.digest);
        let missing = || RegistryError::NotFound {
            what: "installed file",
            name: file.path.to_string(),
        };
        files.insert(file.path.clone(), content.ok_or_else(missing)?);
    }
    Ok(files)
}

pub(super) fn locked_skill(
    wanted: &WantedSkill,
    location: &str,
    fetched: &FetchedSkill,
) -> LockedSkill {
    LockedSkill {
        skill: wanted.skill.clone(),
        version: fetched.version.clone(),
        signer: fetched.signer.clone(),
        ..LockedSkill::new(
            wanted.id.clone(),
            wanted.source.clone(),
            location.to_owned(),
            fetched.pin.clone(),
            fetched.digest,
        )
    }
}

/// Returns the version that a source names, if what it names looks like one that never changes.
fn version_reference(source: &str) -> Option<String> {
    use repertoire_remote::SourcePlace;
    let parsed = SkillSource::parse_in_project(source, Path::new("")).ok()?;
    let reference = match parsed.place() {
        SourcePlace::Git(git) => git.reference.clone()?,
        SourcePlace::Oci(oci) => oci.tag.clone()?,
        _ => return None,
    };
    let digits = reference.strip_prefix('v').unwrap_or(&reference);
    let mut parts = digits.split('.');
    let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    // `v1` is often moved on purpose, `v1.2` is not.
    (parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number))
        .then_some(reference)
}
