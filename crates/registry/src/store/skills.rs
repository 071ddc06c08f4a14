//! Skills and packages in the store: package tables, and files by digest.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use repertoire_core::{Digest, FileEntry, Package, RelPath, SkillId};
use rusqlite::{Connection, OptionalExtension, params};

use super::{Store, events, history, now_rfc3339};
use crate::{
    error::{Error, Result},
    skill_metadata::{SkillMetadata, parse_package},
};

/// A skill that passed every check and can be stored.
#[derive(Debug, Clone)]
pub struct NewSkill {
    pub(super) id: SkillId,
    pub(super) files: BTreeMap<RelPath, Bytes>,
    pub(super) package: Option<Package>,
    pub(super) metadata: SkillMetadata,
}

impl NewSkill {
    /// Creates a skill from its complete file set; a package if it holds a package file.
    pub fn from_files(id: SkillId, files: BTreeMap<RelPath, Bytes>) -> Result<Self> {
        let package = parse_package(&files)?;
        let head = SkillMetadata::from_files(&id, files.iter(), package.as_ref())?;
        Ok(Self {
            id,
            files,
            package,
            metadata: head,
        })
    }

    /// Creates a skill from the JSON form of a package.
    pub fn from_package(package: &Package) -> Result<Self> {
        let (id, files) = package.to_stored_folder()?;
        Self::from_files(id, files)
    }

    /// Returns the id it will be stored under.
    pub fn id(&self) -> &SkillId {
        &self.id
    }

    /// Returns its metadata.
    pub fn metadata(&self) -> &SkillMetadata {
        &self.metadata
    }
}

/// The kind of write. A rollback leaves a revision even if nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RevisionKind {
    Add,
    Rollback,
    Optimize,
}

impl Store {
    /// Stores skills and rolls back, to report what storing them would do.
    pub fn dry_run_put(&self, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        Self::check_unique_ids(&skills)?;
        self.write_durable(move |c| {
            c.execute_batch("SAVEPOINT trial")?;
            let tried = skills
                .iter()
                .map(|s| put_skill(c, s, RevisionKind::Add))
                .collect();
            c.execute_batch("ROLLBACK TO trial; RELEASE trial")?;
            tried
        })
    }

    /// Stores skills atomically. Returns the new revision of each, `None` where nothing changed.
    pub fn put_skills(&self, skills: Vec<NewSkill>) -> Result<Vec<Option<i64>>> {
        Self::check_unique_ids(&skills)?;
        self.write_durable(move |c| {
            skills
                .iter()
                .map(|s| put_skill(c, s, RevisionKind::Add))
                .collect()
        })
    }

    fn check_unique_ids(skills: &[NewSkill]) -> Result<()> {
        let mut ids = std::collections::HashSet::new();
        match skills.iter().find(|skill| !ids.insert(&skill.id)) {
            None => Ok(()),
            Some(twice) => Err(Error::Conflict(format!(
                "skill {} occurs twice in one batch",
                twice.id
            ))),
        }
    }

    /// Removes a skill; its history stays.
    pub fn remove_skill(&self, id: &SkillId) -> Result<bool> {
        let id = id.clone();
        self.write_durable(move |c| {
            let removed = c.execute("DELETE FROM skills WHERE path = ?1", [id.as_str()])? > 0;
            if removed {
                history::record_revision(c, &id, "remove", None, &[])?;
                events::record_event(c, "remove", "skill", id.as_str())?;
            }
            Ok(removed)
        })
    }

    /// Removes a skill with its history, and every file that is no longer referenced.
    pub fn purge_skill(&self, id: &SkillId) -> Result<bool> {
        let id = id.clone();
        self.write_durable(move |c| {
            let removed = c.execute("DELETE FROM skills WHERE path = ?1", [id.as_str()])?;
            let known = c.execute("DELETE FROM revisions WHERE path = ?1", [id.as_str()])?;
            c.execute("DELETE FROM revision_blobs WHERE path = ?1", [id.as_str()])?;
            c.execute(
                "DELETE FROM blobs WHERE NOT EXISTS
                     (SELECT 1 FROM skill_files f WHERE f.digest = blobs.digest)
                 AND NOT EXISTS
                     (SELECT 1 FROM revision_blobs r WHERE r.digest = blobs.digest)",
                [],
            )?;
            if removed > 0 {
                events::record_event(c, "remove", "skill", id.as_str())?;
            }
            Ok(removed + known > 0)
        })
    }

    /// Returns the metadata of every skill, sorted by id.
    pub fn all_metadata(&self) -> Result<Vec<(SkillId, SkillMetadata)>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached("SELECT path, head FROM skills ORDER BY path")?;
            let rows = statement.query_map([], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })?;
            rows.map(|row| {
                let (path, head) = row?;
                Ok((path.parse()?, self.parse_metadata(&head)?))
            })
            .collect()
        })
    }

    /// Returns the metadata of one skill.
    pub fn skill_metadata(&self, id: &SkillId) -> Result<Option<SkillMetadata>> {
        self.with_reader(|c| {
            let head: Option<String> = c
                .prepare_cached("SELECT head FROM skills WHERE path = ?1")?
                .query_row([id.as_str()], |row| row.get(0))
                .optional()?;
            head.map(|head| self.parse_metadata(&head)).transpose()
        })
    }

    pub(crate) fn parse_metadata(&self, head: &str) -> Result<SkillMetadata> {
        let corrupt = |error: serde_json::Error| Error::Corrupt {
            path: self.path.clone(),
            reason: format!("unreadable metadata: {error}"),
        };
        let mut head: SkillMetadata = repertoire_core::json::from_str(head).map_err(corrupt)?;
        if let Some(front) = &head.frontmatter {
            // It is served unchanged, and the store may be untrusted: it must parse as one JSON
            // object, and it is serialised again here.
            let read: serde_json::Map<String, serde_json::Value> =
                repertoire_core::json::from_str(front).map_err(corrupt)?;
            head.frontmatter = Some(serde_json::Value::Object(read).to_string().into());
        }
        Ok(head)
    }

    /// Reads one file of a skill and checks its digest.
    pub fn read_file(&self, id: &SkillId, path: &RelPath) -> Result<Bytes> {
        self.with_reader(|c| {
            let row: Option<(Vec<u8>, Vec<u8>)> = c
                .prepare_cached(
                    "SELECT b.digest, b.content FROM skills s
                     JOIN skill_files f ON f.skill_id = s.id
                     JOIN blobs b ON b.digest = f.digest
                     WHERE s.path = ?1 AND f.path = ?2",
                )?
                .query_row([id.as_str(), path.as_str()], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            let (digest, content) = row.ok_or_else(|| Error::NotFound {
                what: "file",
                name: format!("{id}/{path}"),
            })?;
            self.verify_digest(&digest, content)
        })
    }

    /// Reads every file of a skill.
    pub fn read_files(&self, id: &SkillId) -> Result<BTreeMap<RelPath, Bytes>> {
        let head = self
            .skill_metadata(id)?
            .ok_or_else(|| Error::no_skill(id))?;
        head.files
            .iter()
            .map(|f| Ok((f.path.clone(), self.read_file(id, &f.path)?)))
            .collect()
    }

    pub(super) fn verify_digest(&self, digest: &[u8], content: Vec<u8>) -> Result<Bytes> {
        if Digest::hash_bytes(&content).as_bytes() != digest {
            return Err(Error::Corrupt {
                path: self.path.clone(),
                reason: "a stored file differs from its digest".to_owned(),
            });
        }
        Ok(content.into())
    }
}

/// Stores one skill and records a revision and an event, unless nothing changed.
pub(super) fn put_skill(c: &Connection, skill: &NewSkill, op: RevisionKind) -> Result<Option<i64>> {
    let id = skill.id.as_str();
    let head = serde_json::to_string(&skill.metadata).unwrap_or_default();
    let current: Option<(String, String)> = c
        .prepare_cached("SELECT id, head FROM skills WHERE path = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if current.as_ref().is_some_and(|(_, known)| *known == head) && op != RevisionKind::Rollback {
        return Ok(None);
    }
    for (entry, bytes) in skill.metadata.files.iter().zip(skill.files.values()) {
        c.prepare_cached("INSERT OR IGNORE INTO blobs (digest, content) VALUES (?1, ?2)")?
            .execute(params![entry.digest.as_bytes(), &bytes[..]])?;
    }
    let uuid = upsert_row(
        c,
        skill,
        current.as_ref().map(|(uuid, _)| uuid.as_str()),
        &head,
    )?;
    put_files(c, &uuid, &skill.metadata.files)?;
    put_artifacts(c, &uuid, skill.package.as_ref())?;
    let word = match op {
        RevisionKind::Add => "put",
        RevisionKind::Rollback => "rollback",
        RevisionKind::Optimize => "optimize",
    };
    let version = skill.metadata.package.as_ref().map(|p| &*p.version);
    let revision = history::record_revision(c, &skill.id, word, version, &skill.metadata.files)?;
    events::record_event(c, "put", "skill", id)?;
    Ok(Some(revision))
}

/// Writes the row of a skill and returns its UUID.
fn upsert_row(
    c: &Connection,
    skill: &NewSkill,
    current: Option<&str>,
    head: &str,
) -> Result<String> {
    let id = skill.id.as_str();
    // A skill without a package is named by its id, because other names may not be unique.
    let plain = Package::new(
        id.to_owned(),
        skill
            .metadata
            .description
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        None,
    );
    let package = skill.package.as_ref().unwrap_or(&plain);
    let uuid = current.map_or_else(|| package.uuid().to_string(), str::to_owned);
    let clash: Option<String> = c
        .query_row(
            "SELECT path FROM skills WHERE (id = ?1 OR name = ?2) AND path <> ?3",
            params![uuid, package.name, id],
            |row| row.get(0),
        )
        .optional()?;
    if let Some(other) = clash {
        return Err(Error::Conflict(format!(
            "skill {other:?} already has the UUID or the name of {:?}",
            package.name
        )));
    }
    let list = |items: &[String]| (!items.is_empty()).then(|| serde_json::json!(items).to_string());
    let now = now_rfc3339();
    let created = package.created_at.as_ref().unwrap_or(&now);
    let updated = package.updated_at.as_ref().unwrap_or(&now);
    let sql = if current.is_some() {
        "UPDATE skills SET name = ?2, description = ?3, version = ?4, tags = ?5, source = ?6,
             author = ?7, updated_at = ?9, intent_patterns = ?10, trigger_phrases = ?11,
             marketplace_id = ?12, sync_etag = ?13, path = ?14, head = ?15,
             created_at = coalesce(created_at, ?8)
         WHERE id = ?1"
    } else {
        "INSERT INTO skills (id, name, description, version, tags, source, author, created_at,
             updated_at, intent_patterns, trigger_phrases, marketplace_id, sync_etag, path, head)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)"
    };
    c.prepare_cached(sql)?.execute(params![
        uuid,
        package.name,
        package.description,
        package.version,
        list(&package.tags),
        package.source.as_str(),
        package.author,
        created,
        updated,
        list(&package.intent_patterns),
        list(&package.trigger_phrases),
        package.marketplace_id,
        package.sync_etag,
        id,
        head,
    ])?;
    Ok(uuid)
}

fn put_files(c: &Connection, uuid: &str, files: &[FileEntry]) -> Result<()> {
    c.prepare_cached("DELETE FROM skill_files WHERE skill_id = ?1")?
        .execute([uuid])?;
    for file in files {
        c.prepare_cached("INSERT INTO skill_files VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![
                uuid,
                file.path.as_str(),
                file.size.cast_signed(),
                file.digest.as_bytes()
            ])?;
    }
    Ok(())
}

fn put_artifacts(c: &Connection, uuid: &str, package: Option<&Package>) -> Result<()> {
    let mut known: HashMap<String, (String, String, String)> = HashMap::new();
    let mut statement = c.prepare_cached(
        "SELECT id, content, created_at, updated_at FROM skill_artifacts WHERE skill_id = ?1",
    )?;
    let rows = statement.query_map([uuid], |row| {
        Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))
    })?;
    for row in rows {
        let (id, about) = row?;
        known.insert(id, about);
    }
    c.prepare_cached("DELETE FROM skill_artifacts WHERE skill_id = ?1")?
        .execute([uuid])?;
    let Some(package) = package else {
        return Ok(());
    };
    let now = now_rfc3339();
    for artifact in &package.artifacts {
        let metadata = artifact
            .metadata
            .as_ref()
            .map(|m| serde_json::json!(m).to_string());
        let id = package.artifact_uuid(artifact).to_string();
        let before = known.get(&id);
        let created = before.map_or(&now, |(_, created, _)| created);
        let same = before.filter(|(content, ..)| *content == artifact.content);
        let updated = same.map_or(&now, |(_, _, updated)| updated);
        let inserted = c
            .prepare_cached(
                "INSERT OR IGNORE INTO skill_artifacts (id, skill_id, kind, name, ordinal, content,
                     model_variant, metadata, state_blob, created_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                id,
                uuid,
                artifact.kind.as_str(),
                artifact.name,
                artifact.ordinal,
                artifact.content,
                artifact.model_variant,
                metadata,
                artifact.state_blob,
                artifact.created_at.as_ref().unwrap_or(created),
                artifact.updated_at.as_ref().unwrap_or(updated),
            ])?;
        if inserted == 0 {
            return Err(Error::Conflict(format!(
                "artifact {:?}: another skill already has its UUID",
                artifact.name
            )));
        }
    }
    Ok(())
}
