//! Adds skills of a source: records what is wanted and what was fetched, and stores it.

use std::{collections::BTreeMap, path::Path};

use repertoire_core::{Digest, SkillId};
use repertoire_registry::{
    Error as RegistryError, StoreScope,
    store::{OriginChange, WriteMode},
};
use repertoire_remote::{FetchedSkill, SkillSource, SourcePlace};

use super::{
    fetch::{SourceOffer, choose},
    installer::{InstallTarget, Installer, SkillChange, locked_skill},
    lock::LockedSkill,
    project::WantedSkill,
};
use crate::{
    SkillFiles,
    error::{Error, Result},
};

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
