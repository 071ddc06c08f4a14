//! Adds skills, and makes a scope match what its project wants.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use repertoire_core::{Digest, SkillId};
use repertoire_registry::{
    Error as RegistryError, Registry, StoreScope, Trusted, folder,
    store::{CurrentSkill, InstalledFrom, NewSkill, OriginChange, SkillWrite, Store, WriteMode},
};
use repertoire_remote::{ClawHubResult, FetchedSkill, SkillSource};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::{
    fetch::{FetchOptions, FetchRequest, NamedBy, SourceOffer, SourceReader, choose, file_entries},
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

/// A source to add skills from.
#[derive(Debug, Clone)]
pub struct AddRequest {
    /// The source.
    pub source: SkillSource,
    /// The skills of it that are wanted, by name; the only one if there are none.
    pub skills: Vec<String>,
    /// Every skill of it.
    pub all: bool,
    /// The id to store a single skill under.
    pub id: Option<SkillId>,
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

/// A skill that was added.
#[derive(Debug, Clone)]
pub struct AddedSkill {
    /// Its id.
    pub id: SkillId,
    /// What happened.
    pub change: SkillChange,
    /// What was locked.
    pub locked: LockedSkill,
    /// Its files as the source has them.
    pub files: SkillFiles,
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

    /// Adds skills of a source, or brings them up to date, and returns them with their digests. The
    /// caller shows those, and approves them with [`approve`](Self::approve).
    pub fn add(&mut self, request: &AddRequest, mode: WriteMode) -> Result<Vec<AddedSkill>> {
        let mut offer = self.look(&request.source)?;
        self.add_offered(request, &mut offer, mode)
    }

    /// Adds skills of a source that was opened before.
    pub fn add_offered(
        &mut self,
        request: &AddRequest,
        offer: &mut SourceOffer,
        mode: WriteMode,
    ) -> Result<Vec<AddedSkill>> {
        let chosen = choose_skills(request, offer)?;
        if request.id.is_some() && chosen.len() > 1 {
            return Err(Error::SeveralOffers {
                location: offer.location.clone(),
                names: offer
                    .skills
                    .iter()
                    .map(|skill| skill.name.clone())
                    .collect(),
            });
        }
        let read = self.reader().read(offer, &chosen)?;
        if mode == WriteMode::Commit {
            self.begin_changes()?;
        }
        let has_several = offer.skills.len() > 1;
        let mut added = Vec::new();
        let mut targets = Vec::new();
        for fetched in read {
            let fetched = fetched?;
            let name: SkillId = fetched.name.parse().map_err(RegistryError::from)?;
            let id = request.id.clone().unwrap_or(name);
            let named = request.source.skill() == Some(&fetched.name);
            let wanted = WantedSkill {
                id: id.clone(),
                source: portable_source(&request.source),
                // `owner/repo@skill` says it already.
                skill: (has_several && !named).then(|| fetched.name.clone()),
            };
            let wanted = shorten_source(wanted);
            self.check_free(&id, &wanted, request.all)?;
            let resolved = if request.source.is_local() {
                wanted.source.clone()
            } else {
                offer.location.clone()
            };
            let locked = locked_skill(&wanted, &resolved, &fetched);
            self.check_same_version(&locked)?;
            self.check_signer(&locked)?;
            targets.push(InstallTarget {
                locked: locked.clone(),
                files: fetched.files.clone(),
                edited: None,
                choices: BTreeMap::new(),
            });
            added.push((wanted, locked, fetched.files));
        }
        let plan = self.plan(&targets)?;
        if let Some(conflict) = plan.conflicts.into_iter().next() {
            return Err(Error::UpdateConflict {
                skill: conflict.id.to_string(),
            });
        }
        let is_recorded = self.can_record(&request.source);
        // A write that the store refuses must leave no trace in the files.
        let store = self.store()?;
        store.write_skills(plan.writes.clone(), WriteMode::DryRun)?;
        if mode == WriteMode::Commit && is_recorded {
            for (wanted, locked, files) in &added {
                self.cache
                    .put(&locked.digest, files, locked.signer.as_ref());
                self.project.put(wanted.clone())?;
                self.lock.put(locked.clone());
            }
            self.project.write()?;
            self.lock.write(self.project.folder())?;
            self.reader().remember_host(&request.source)?;
        }
        let mut writes = plan.writes;
        if !is_recorded {
            // A project cannot name it, so it is a copy of the user's own.
            for write in &mut writes {
                write.origin = OriginChange::Clear;
            }
        }
        self.registry.write_skills(self.scope, writes, mode)?;
        self.cache.trim();
        Ok(added
            .into_iter()
            .map(|(_, locked, files)| AddedSkill {
                change: plan
                    .changes
                    .get(&locked.id)
                    .copied()
                    .unwrap_or(SkillChange::Unchanged),
                id: locked.id.clone(),
                locked,
                files,
            })
            .collect())
    }

    /// Fetches chosen skills of a source that was opened before, and stores nothing.
    pub fn read_offered(
        &self,
        request: &AddRequest,
        offer: &mut SourceOffer,
    ) -> Result<Vec<FetchedSkill>> {
        let chosen = choose_skills(request, offer)?;
        self.reader().read(offer, &chosen)?.into_iter().collect()
    }

    /// Reads skills of this machine for copies that are the user's own.
    pub fn read_copies(&self, request: &AddRequest) -> Result<Vec<(SkillId, SkillFiles)>> {
        let mut offer = self.look(&request.source)?;
        let mut found = Vec::new();
        for skill in self.read_offered(request, &mut offer)? {
            let name: SkillId = skill.name.parse().map_err(RegistryError::from)?;
            found.push((request.id.clone().unwrap_or(name), skill.files));
        }
        Ok(found)
    }

    /// Searches a ClawHub registry.
    pub fn search(&self, registry: &str, words: &str, limit: usize) -> Result<Vec<ClawHubResult>> {
        let source: SkillSource = match registry {
            "" => "clawhub:x".parse()?,
            url => format!("clawhub+{}/x", url.trim_end_matches('/')).parse()?,
        };
        self.reader().search(&source, words, limit)
    }

    /// Whether a source can be named in the project's file: only the account's names paths.
    pub fn can_record(&self, source: &SkillSource) -> bool {
        !source.is_local() || self.scope == StoreScope::Account
    }

    /// Approves what was added, by the digests that were shown.
    pub fn approve(&self, shown: &[(SkillId, Digest)]) -> Result<()> {
        Ok(self.registry.approve_installed(self.scope, shown)?)
    }

    /// Refuses an id that another skill has.
    fn check_free(&self, id: &SkillId, wanted: &WantedSkill, all: bool) -> Result<()> {
        let store = self.store()?;
        if store.skill_metadata(id)?.is_none() {
            return Ok(());
        }
        let Some(other) = store.installed_from(id)? else {
            return Err(Error::OwnSkill {
                id: id.clone(),
                wanted: wanted.source.clone(),
            });
        };
        let is_same = other.source == wanted.source && other.skill == wanted.skill;
        // Another branch or version of the same skill is what the user asks for.
        let place = |source: &str, skill: &Option<String>| {
            format!(
                "{} {}",
                strip_reference(source),
                skill.as_deref().unwrap_or_default()
            )
        };
        let is_other_version =
            !all && place(&other.source, &other.skill) == place(&wanted.source, &wanted.skill);
        if is_same || is_other_version {
            return Ok(());
        }
        Err(Error::OtherSource {
            id: id.clone(),
            installed: other.source,
            wanted: wanted.source.clone(),
        })
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
            // The same files, whoever put them there.
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

/// Chooses the skills that a request means.
fn choose_skills(request: &AddRequest, offer: &SourceOffer) -> Result<Vec<usize>> {
    let named: Vec<&str> = match request.source.skill() {
        Some(skill) => vec![skill],
        None => request.skills.iter().map(String::as_str).collect(),
    };
    if !named.is_empty() {
        let mut chosen = Vec::new();
        for name in named {
            let index = choose(offer, Some(name), name)?;
            if !chosen.contains(&index) {
                chosen.push(index);
            }
        }
        return Ok(chosen);
    }
    match offer.skills.len() {
        0 => Err(RegistryError::NotFound {
            what: "skill in",
            name: offer.location.clone(),
        }
        .into()),
        1 => Ok(vec![0]),
        count if request.all => Ok((0..count).collect()),
        _ => Err(Error::SeveralOffers {
            location: offer.location.clone(),
            names: offer
                .skills
                .iter()
                .map(|skill| skill.name.clone())
                .collect(),
        }),
    }
}

/// Returns a source as it is recorded: paths of this machine in full.
fn portable_source(source: &SkillSource) -> String {
    if !source.is_local() {
        return source.as_str().to_owned();
    }
    let location = source.location();
    if location.starts_with("file:") {
        return location;
    }
    let full = std::path::absolute(&location);
    full.map_or(location, |full| full.to_string_lossy().into_owned())
}

/// Writes `owner/repo` with a skill as `owner/repo@skill`.
fn shorten_source(wanted: WantedSkill) -> WantedSkill {
    let Some(skill) = &wanted.skill else {
        return wanted;
    };
    let (place, reference) = match wanted.source.split_once('#') {
        Some((place, reference)) => (place, Some(reference)),
        None => (wanted.source.as_str(), None),
    };
    let is_shorthand = !place.contains(':')
        && !place.contains('@')
        && !place.starts_with(['.', '/', '~'])
        && place.split('/').count() == 2;
    if !is_shorthand {
        return wanted;
    }
    let mut source = format!("{place}@{skill}");
    if let Some(reference) = reference {
        source = format!("{source}#{reference}");
    }
    WantedSkill {
        source,
        skill: None,
        ..wanted
    }
}

/// Returns a source without the branch, tag, version or digest that it names.
fn strip_reference(source: &str) -> String {
    use repertoire_remote::SourcePlace;
    let Ok(parsed) = SkillSource::parse_in_project(source, Path::new("")) else {
        return source.to_owned();
    };
    let skill = parsed.skill().unwrap_or_default().to_owned();
    let place = match parsed.place() {
        SourcePlace::Git(git) => {
            format!("{} {}", git.url, git.folder.as_deref().unwrap_or_default())
        }
        SourcePlace::Oci(oci) => format!("oci {} {}", oci.registry, oci.repository),
        SourcePlace::ClawHub(hub) => format!("{} {}", hub.registry, hub.slug),
        place => place.to_string(),
    };
    format!("{place} {skill}")
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
