//! Package editing: reading and changing packages and their artifacts, over any store.
//!
//! The files of a skill are authoritative; its artifact rows are derived from them. So every change
//! of an artifact changes the package as a whole: it is read, changed, checked, and written only if
//! the stored digest is still the one that was read. Otherwise it is tried again.

use repertoire_core::{Artifact, Package};
use uuid::Uuid;

use super::{
    CurrentSkill, NewSkill, OriginChange, RevisionKind, SkillKey, SkillSummary, SkillWrite, Store,
    WriteMode, now_rfc3339,
};
use crate::{
    error::{Error, Result},
    registry::HistoryPolicy,
};

/// How often a change is tried again when others change the same package at the same time.
const MAX_ATTEMPTS: usize = 100;

impl dyn Store + '_ {
    /// Returns a package with all its artifacts.
    pub fn get_package(&self, key: SkillKey<'_>) -> Result<Option<Package>> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(found) = self.find_skill(key)? else {
                return Ok(None);
            };
            if let Some((package, _)) = self.load_package(&found)? {
                return Ok(Some(package));
            }
        }
        Err(changed_meanwhile(key))
    }

    /// Stores a new package; returns its UUID.
    pub fn create_package(&self, package: &Package) -> Result<Uuid> {
        let write = SkillWrite {
            current: CurrentSkill::Absent,
            ..SkillWrite::put(NewSkill::from_package(package)?)
        };
        self.write_skills(vec![write], WriteMode::Commit)?;
        Ok(package.uuid())
    }

    /// Changes the metadata of a package; its artifacts and files stay unchanged.
    pub fn update_package(&self, skill_id: Uuid, new: &Package) -> Result<()> {
        self.edit_package(SkillKey::Uuid(skill_id), RevisionKind::Put, |package| {
            let written = package.frontmatter.is_some() || package.document.is_some();
            if written && package.description != new.description {
                return Err(Error::DescribedByDocument(package.name.clone()));
            }
            *package = Package {
                id: package.id,
                created_at: package.created_at.take().or(new.created_at.clone()),
                artifacts: std::mem::take(&mut package.artifacts),
                document: package.document.take(),
                files: std::mem::take(&mut package.files),
                frontmatter: package.frontmatter.take(),
                ..new.clone()
            };
            Ok(())
        })
    }

    /// Removes a package with all its artifacts; returns whether there was one. Its history stays.
    pub fn delete_package(&self, skill_id: Uuid) -> Result<bool> {
        match self.find_skill(SkillKey::Uuid(skill_id))? {
            Some(found) => self.remove_skill(&found.path, HistoryPolicy::Keep),
            None => Ok(false),
        }
    }

    /// Adds an artifact; returns its UUID.
    pub fn add_artifact(&self, skill_id: Uuid, artifact: &Artifact) -> Result<Uuid> {
        let mut added = Uuid::nil();
        self.edit_package(SkillKey::Uuid(skill_id), RevisionKind::Put, |package| {
            let mut all = package.artifacts.iter();
            let same = |one: &Artifact| {
                one.name == artifact.name && one.model_variant == artifact.model_variant
            };
            if all.any(same) {
                return Err(Error::AlreadyExists {
                    what: "artifact",
                    name: artifact.name.clone(),
                });
            }
            added = package.artifact_uuid(artifact);
            package.artifacts.push(artifact.clone());
            Ok(())
        })?;
        Ok(added)
    }

    /// Replaces an artifact.
    pub fn update_artifact(&self, artifact_id: Uuid, new: &Artifact) -> Result<()> {
        let key = SkillKey::Artifact(artifact_id);
        self.edit_package(key, RevisionKind::Put, |package| {
            let known = find_artifact(package, artifact_id)?;
            *known = Artifact {
                id: Some(artifact_id),
                file: known.file.take(),
                // The creation time cannot be changed by an update.
                created_at: known.created_at.take(),
                updated_at: known.updated_at.take().map(|_| now_rfc3339()),
                ..new.clone()
            };
            Ok(())
        })
    }

    /// Stores a learned state for an artifact, if the artifact is unchanged since learning.
    pub fn put_learned_state(
        &self,
        artifact_id: Uuid,
        learned_for: &Artifact,
        state: &[u8],
    ) -> Result<()> {
        let key = SkillKey::Artifact(artifact_id);
        self.edit_package(key, RevisionKind::Optimize, |package| {
            let known = find_artifact(package, artifact_id)?;
            if known.content.trim() != learned_for.content.trim()
                || known.state_blob != learned_for.state_blob
            {
                return Err(Error::LearnedForOther(known.name.clone()));
            }
            known.state_blob = Some(state.to_vec());
            known.updated_at = known.updated_at.take().map(|_| now_rfc3339());
            Ok(())
        })
    }

    /// Removes an artifact; returns whether there was one.
    pub fn delete_artifact(&self, artifact_id: Uuid) -> Result<bool> {
        let key = SkillKey::Artifact(artifact_id);
        let edited = self.edit_package(key, RevisionKind::Put, |package| {
            package.artifacts.retain(|one| one.id != Some(artifact_id));
            Ok(())
        });
        match edited {
            Ok(()) => Ok(true),
            Err(Error::NotFound {
                what: "artifact", ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes a package and stores the result, if no other change came between.
    fn edit_package(
        &self,
        key: SkillKey<'_>,
        kind: RevisionKind,
        mut change: impl FnMut(&mut Package) -> Result<()>,
    ) -> Result<()> {
        for _ in 0..MAX_ATTEMPTS {
            let found = self.find_skill(key)?.ok_or_else(|| no_such(key))?;
            let Some((mut package, current)) = self.load_package(&found)? else {
                continue;
            };
            change(&mut package)?;
            if package.updated_at.is_some() {
                package.updated_at = Some(now_rfc3339());
            }
            let renamed = package.skill_id()?;
            if renamed.name() != found.path.name() {
                return Err(Error::WouldRename {
                    from: found.path,
                    to: renamed,
                });
            }
            // The result must be a valid package as a whole.
            let package = Package::from_json(&package.to_json())?;
            let write = SkillWrite {
                skill: NewSkill::from_files(found.path, package.to_folder()?)?,
                kind,
                current,
                origin: OriginChange::Keep,
                base_files: std::collections::BTreeMap::new(),
            };
            match self.write_skills(vec![write], WriteMode::Commit) {
                Err(Error::Changed { .. }) => {}
                written => return written.map(drop),
            }
        }
        Err(changed_meanwhile(key))
    }

    /// Reads a package from its files and sets its UUIDs; returns it with what is stored now.
    ///
    /// `None` if the skill was changed or removed while it was read.
    fn load_package(&self, found: &SkillSummary) -> Result<Option<(Package, CurrentSkill)>> {
        let Some(metadata) = self.skill_metadata(&found.path)? else {
            return Ok(None);
        };
        let mut files = std::collections::BTreeMap::new();
        for file in &metadata.files {
            let Some(content) = self.read_blob(&file.digest)? else {
                return Ok(None);
            };
            files.insert(file.path.clone(), content);
        }
        let mut package = Package::from_folder(files)?;
        for at in 0..package.artifacts.len() {
            let known = package.artifact_uuid(&package.artifacts[at]);
            package.artifacts[at].id = Some(known);
        }
        package.id = Some(found.id);
        Ok(Some((package, CurrentSkill::Digest(metadata.digest()))))
    }
}

/// Returns an artifact of a package.
fn find_artifact(package: &mut Package, id: Uuid) -> Result<&mut Artifact> {
    let mut all = package.artifacts.iter_mut();
    let known = all.find(|one| one.id == Some(id));
    known.ok_or_else(|| no_such(SkillKey::Artifact(id)))
}

fn changed_meanwhile(key: SkillKey<'_>) -> Error {
    Error::Changed {
        what: "skill",
        name: key.to_string(),
    }
}

fn no_such(key: SkillKey<'_>) -> Error {
    let what = match key {
        SkillKey::Artifact(_) => "artifact",
        SkillKey::Uuid(_) | SkillKey::Id(_) | SkillKey::Name(_) => "skill",
    };
    Error::NotFound {
        what,
        name: key.to_string(),
    }
}

impl std::fmt::Display for SkillKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uuid(id) | Self::Artifact(id) => id.fmt(f),
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}
