//! Packages and their artifacts: reading and editing one at a time.
//!
//! The files of a skill are authoritative; its artifact rows are derived from them. So every change
//! of an artifact changes the package, is checked as a whole, and records a revision.

use std::collections::BTreeMap;

use bytes::Bytes;
use repertoire_core::{Artifact, ArtifactKind, Package, RelPath, SkillId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use uuid::Uuid;

use super::{
    Store, now_rfc3339,
    skills::{NewSkill, RevisionKind, put_skill},
};
use crate::error::{Error, Result};

/// Summary of a skill without its artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillSummary {
    /// Its UUID.
    pub id: Uuid,
    /// Its id in the catalogue.
    pub path: SkillId,
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// Its version.
    pub version: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// `system`, `community` or `user`.
    pub source: String,
}

/// Storage for the packages of one scope.
pub trait SkillRepository: Send + Sync + std::fmt::Debug {
    /// Returns every skill, sorted by name, without its artifacts.
    fn list_skills(&self) -> Result<Vec<SkillSummary>>;

    /// Returns a skill with all its artifacts.
    fn get_skill(&self, skill_id: Uuid) -> Result<Option<Package>>;

    /// Returns a skill by its name.
    fn get_skill_by_name(&self, name: &str) -> Result<Option<Package>>;

    /// Returns the artifacts of some kinds, by ordinal; of every kind if `kinds` is empty.
    fn get_artifacts(&self, skill_id: Uuid, kinds: &[ArtifactKind]) -> Result<Vec<Artifact>>;

    /// Returns one artifact.
    fn get_artifact(&self, artifact_id: Uuid) -> Result<Option<Artifact>>;

    /// Stores a new skill; returns its UUID.
    fn create_skill(&self, package: &Package) -> Result<Uuid>;

    /// Changes the metadata of a skill; its artifacts and files stay unchanged.
    fn update_skill(&self, skill_id: Uuid, package: &Package) -> Result<()>;

    /// Removes a skill with all its artifacts; returns whether there was one. Its history stays.
    fn delete_skill(&self, skill_id: Uuid) -> Result<bool>;

    /// Adds an artifact; returns its UUID.
    fn add_artifact(&self, skill_id: Uuid, artifact: &Artifact) -> Result<Uuid>;

    /// Replaces an artifact.
    fn update_artifact(&self, artifact_id: Uuid, artifact: &Artifact) -> Result<()>;

    /// Stores a learned state for an artifact, if the artifact is unchanged since learning.
    fn put_learned_state(
        &self,
        artifact_id: Uuid,
        learned_for: &Artifact,
        state: Vec<u8>,
    ) -> Result<()>;

    /// Removes an artifact; returns whether there was one.
    fn delete_artifact(&self, artifact_id: Uuid) -> Result<bool>;
}

/// Finds the UUID and the catalogue id of a skill.
fn find_skill_row(c: &Connection, column: &str, value: &str) -> Result<Option<(Uuid, SkillId)>> {
    let sql = format!("SELECT id, path FROM skills WHERE {column} = ?1");
    let row: Option<(String, String)> = c
        .prepare_cached(&sql)?
        .query_row([value], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((id, path)) = row else {
        return Ok(None);
    };
    Ok(Some((parse_uuid(&id)?, path.parse()?)))
}

fn parse_uuid(text: &str) -> Result<Uuid> {
    text.parse()
        .map_err(|_| Error::Conflict(format!("{text:?} is not a UUID")))
}

/// Reads a package from its files and sets its UUIDs.
fn load_package(c: &Connection, id: Uuid) -> Result<Package> {
    let mut files: BTreeMap<RelPath, Bytes> = BTreeMap::new();
    let mut statement = c.prepare_cached(
        "SELECT f.path, b.content FROM skill_files f JOIN blobs b ON b.digest = f.digest
         WHERE f.skill_id = ?1",
    )?;
    let rows = statement.query_map([id.to_string()], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?))
    })?;
    for row in rows {
        let (path, content) = row?;
        files.insert(path.parse()?, content.into());
    }
    let mut package = Package::from_folder(files)?;
    for at in 0..package.artifacts.len() {
        let known = package.artifact_uuid(&package.artifacts[at]);
        package.artifacts[at].id = Some(known);
    }
    package.id = Some(id);
    Ok(package)
}

/// Changes a package and stores the result.
fn edit_package(
    c: &Connection,
    id: Uuid,
    op: RevisionKind,
    change: impl FnOnce(&mut Package) -> Result<()>,
) -> Result<()> {
    let Some((_, path)) = find_skill_row(c, "id", &id.to_string())? else {
        return Err(no_skill(id));
    };
    let mut package = load_package(c, id)?;
    change(&mut package)?;
    if package.updated_at.is_some() {
        package.updated_at = Some(now_rfc3339());
    }
    if package.skill_id()?.name() != path.name() {
        return Err(Error::Conflict(format!(
            "skill {path} would be renamed to {}: add it under the new name and remove this one",
            package.skill_id()?
        )));
    }
    // The result must be a valid package as a whole.
    let package = Package::from_json(&package.to_json())?;
    put_skill(c, &NewSkill::from_files(path, package.to_folder()?)?, op)?;
    Ok(())
}

fn no_skill(id: Uuid) -> Error {
    Error::NotFound {
        what: "skill",
        name: id.to_string(),
    }
}

const ARTIFACT_COLUMNS: &str =
    "id, kind, name, ordinal, content, model_variant, metadata, state_blob,
    created_at, updated_at";

fn artifact_from_row(row: &Row<'_>) -> rusqlite::Result<Artifact> {
    let id: String = row.get(0)?;
    let kind: String = row.get(1)?;
    let metadata: Option<String> = row.get(6)?;
    let wrong = |at, reason: String| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, reason.into())
    };
    Ok(Artifact {
        id: Some(id.parse().map_err(|_| wrong(0, "no UUID".to_owned()))?),
        kind: kind
            .parse()
            .map_err(|error: repertoire_core::Error| wrong(1, error.to_string()))?,
        name: row.get(2)?,
        ordinal: row.get(3)?,
        content: row.get(4)?,
        file: None,
        model_variant: row.get(5)?,
        metadata: metadata
            .map(|text| repertoire_core::json::from_str(&text))
            .transpose()
            .map_err(|error| wrong(6, error.to_string()))?,
        state_blob: row.get(7)?,
        created_at: row.get(8)?,
        updated_at: row.get(9)?,
    })
}

/// A DSPy module with a learned state.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizedModule {
    /// The UUID of its skill.
    pub skill: Uuid,
    /// The id of its skill in the catalogue.
    pub path: String,
    /// The module.
    pub artifact: Artifact,
}

impl Store {
    /// Returns the modules that have a learned state.
    pub fn optimized_modules(&self) -> Result<Vec<OptimizedModule>> {
        let columns = ARTIFACT_COLUMNS
            .split(',')
            .map(|name| format!("a.{}", name.trim()))
            .collect::<Vec<_>>()
            .join(", ");
        self.with_reader(|c| {
            let sql = format!(
                "SELECT {columns}, s.id, s.path FROM skill_artifacts a
                 JOIN skills s ON s.id = a.skill_id
                 WHERE a.kind = 'dspy_module' AND a.state_blob IS NOT NULL ORDER BY s.path"
            );
            let mut statement = c.prepare_cached(&sql)?;
            let rows = statement.query_map([], |row| {
                Ok((
                    artifact_from_row(row)?,
                    row.get::<_, String>(10)?,
                    row.get(11)?,
                ))
            })?;
            let mut learned = Vec::new();
            for row in rows {
                let (artifact, skill, path) = row?;
                let skill = skill.parse();
                let skill = skill.map_err(|_| Error::Conflict("a skill has no UUID".to_owned()))?;
                learned.push(OptimizedModule {
                    skill,
                    path,
                    artifact,
                });
            }
            Ok(learned)
        })
    }
}

impl SkillRepository for Store {
    fn list_skills(&self) -> Result<Vec<SkillSummary>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached(
                "SELECT id, path, name, description, version, tags, source FROM skills
                 ORDER BY name",
            )?;
            let rows = statement.query_map([], |row| {
                let text = |at: usize| row.get::<_, String>(at);
                let tags: Option<String> = row.get(5)?;
                Ok((
                    text(0)?,
                    text(1)?,
                    text(2)?,
                    text(3)?,
                    text(4)?,
                    tags,
                    text(6)?,
                ))
            })?;
            rows.map(|row| {
                let (id, path, name, description, version, tags, source) = row?;
                Ok(SkillSummary {
                    id: parse_uuid(&id)?,
                    path: path.parse()?,
                    name,
                    description,
                    version,
                    tags: tags
                        .and_then(|tags| repertoire_core::json::from_str(&tags).ok())
                        .unwrap_or_default(),
                    source,
                })
            })
            .collect()
        })
    }

    fn get_skill(&self, skill_id: Uuid) -> Result<Option<Package>> {
        self.with_reader(|c| {
            let known = find_skill_row(c, "id", &skill_id.to_string())?;
            known.map(|(id, _)| load_package(c, id)).transpose()
        })
    }

    fn get_skill_by_name(&self, name: &str) -> Result<Option<Package>> {
        self.with_reader(|c| {
            let known = find_skill_row(c, "name", name)?;
            known.map(|(id, _)| load_package(c, id)).transpose()
        })
    }

    fn get_artifacts(&self, skill_id: Uuid, kinds: &[ArtifactKind]) -> Result<Vec<Artifact>> {
        let wanted: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        self.with_reader(|c| {
            // Only the requested kinds are read.
            let sql = format!(
                "SELECT {ARTIFACT_COLUMNS} FROM skill_artifacts WHERE skill_id = ?1
                   AND (?2 = '[]' OR kind IN (SELECT value FROM json_each(?2)))
                 ORDER BY ordinal, name, model_variant"
            );
            let mut statement = c.prepare_cached(&sql)?;
            let kinds = serde_json::json!(wanted).to_string();
            let rows =
                statement.query_map(params![skill_id.to_string(), kinds], artifact_from_row)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    fn get_artifact(&self, artifact_id: Uuid) -> Result<Option<Artifact>> {
        self.with_reader(|c| {
            let sql = format!("SELECT {ARTIFACT_COLUMNS} FROM skill_artifacts WHERE id = ?1");
            let mut statement = c.prepare_cached(&sql)?;
            Ok(statement
                .query_row([artifact_id.to_string()], artifact_from_row)
                .optional()?)
        })
    }

    fn create_skill(&self, package: &Package) -> Result<Uuid> {
        let skill = NewSkill::from_package(package)?;
        let (id, name) = (package.uuid(), package.name.clone());
        self.write_durable(move |c| {
            if find_skill_row(c, "path", skill.id().as_str())?.is_some() {
                return Err(Error::Conflict(format!("skill {name:?} already exists")));
            }
            put_skill(c, &skill, RevisionKind::Add)?;
            Ok(id)
        })
    }

    fn update_skill(&self, skill_id: Uuid, package: &Package) -> Result<()> {
        let new = package.clone();
        self.write_durable(move |c| {
            edit_package(c, skill_id, RevisionKind::Add, |package| {
                let written = package.frontmatter.is_some() || package.document.is_some();
                if written && package.description != new.description {
                    return Err(Error::Conflict(format!(
                        "skill {:?} has its own SKILL.md: change its description there",
                        package.name
                    )));
                }
                *package = Package {
                    id: package.id,
                    created_at: package.created_at.take().or(new.created_at),
                    artifacts: std::mem::take(&mut package.artifacts),
                    document: package.document.take(),
                    files: std::mem::take(&mut package.files),
                    frontmatter: package.frontmatter.take(),
                    ..new
                };
                Ok(())
            })
        })
    }

    fn delete_skill(&self, skill_id: Uuid) -> Result<bool> {
        let known = self.with_reader(|c| find_skill_row(c, "id", &skill_id.to_string()))?;
        match known {
            Some((_, path)) => self.remove_skill(&path),
            None => Ok(false),
        }
    }

    fn add_artifact(&self, skill_id: Uuid, artifact: &Artifact) -> Result<Uuid> {
        let artifact = artifact.clone();
        self.write_durable(move |c| {
            let mut added = None;
            edit_package(c, skill_id, RevisionKind::Add, |package| {
                let same = |one: &&Artifact| {
                    one.name == artifact.name && one.model_variant == artifact.model_variant
                };
                if package.artifacts.iter().find(same).is_some() {
                    return Err(Error::Conflict(format!(
                        "artifact {:?} already exists in that variant",
                        artifact.name
                    )));
                }
                added = Some(package.artifact_uuid(&artifact));
                package.artifacts.push(artifact);
                Ok(())
            })?;
            added.ok_or_else(|| no_skill(skill_id))
        })
    }

    fn update_artifact(&self, artifact_id: Uuid, artifact: &Artifact) -> Result<()> {
        let new = artifact.clone();
        self.write_durable(move |c| {
            let skill =
                skill_of_artifact(c, artifact_id)?.ok_or_else(|| no_artifact(artifact_id))?;
            edit_package(c, skill, RevisionKind::Add, |package| {
                let known = find_artifact(package, artifact_id)?;
                *known = Artifact {
                    id: Some(artifact_id),
                    file: known.file.take(),
                    // The creation time cannot be changed by an update.
                    created_at: known.created_at.take(),
                    updated_at: known.updated_at.take().map(|_| now_rfc3339()),
                    ..new
                };
                Ok(())
            })
        })
    }

    fn put_learned_state(
        &self,
        artifact_id: Uuid,
        learned_for: &Artifact,
        state: Vec<u8>,
    ) -> Result<()> {
        let (content, before) = (learned_for.content.clone(), learned_for.state_blob.clone());
        self.write_durable(move |c| {
            let skill =
                skill_of_artifact(c, artifact_id)?.ok_or_else(|| no_artifact(artifact_id))?;
            edit_package(c, skill, RevisionKind::Optimize, |package| {
                let known = find_artifact(package, artifact_id)?;
                if known.content.trim() != content.trim() || known.state_blob != before {
                    return Err(Error::Conflict(format!(
                        "{:?} changed during learning, so the learned state was discarded",
                        known.name
                    )));
                }
                known.state_blob = Some(state);
                known.updated_at = known.updated_at.take().map(|_| now_rfc3339());
                Ok(())
            })
        })
    }

    fn delete_artifact(&self, artifact_id: Uuid) -> Result<bool> {
        self.write_durable(move |c| {
            let Some(skill) = skill_of_artifact(c, artifact_id)? else {
                return Ok(false);
            };
            edit_package(c, skill, RevisionKind::Add, |package| {
                package.artifacts.retain(|one| one.id != Some(artifact_id));
                Ok(())
            })?;
            Ok(true)
        })
    }
}

/// Returns an artifact of a package.
fn find_artifact(package: &mut Package, id: Uuid) -> Result<&mut Artifact> {
    let mut all = package.artifacts.iter_mut();
    let known = all.find(|one| one.id == Some(id));
    known.ok_or_else(|| no_artifact(id))
}

fn no_artifact(id: Uuid) -> Error {
    Error::NotFound {
        what: "artifact",
        name: id.to_string(),
    }
}

fn skill_of_artifact(c: &Connection, artifact_id: Uuid) -> Result<Option<Uuid>> {
    let skill: Option<String> = c
        .prepare_cached("SELECT skill_id FROM skill_artifacts WHERE id = ?1")?
        .query_row([artifact_id.to_string()], |row| row.get(0))
        .optional()?;
    skill.map(|id| parse_uuid(&id)).transpose()
}
