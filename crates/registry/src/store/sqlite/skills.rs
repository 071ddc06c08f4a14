//! Skills and packages in the store: package tables, and files by digest.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use repertoire_core::{Digest, FileEntry, Package, RelPath, SkillId};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    QueryResult, SkillWrite, WriteMode,
    events::{EventKind, EventOp, record_event},
    history, installed, now_rfc3339,
};
use crate::{
    error::Error,
    skill_metadata::SkillMetadata,
    store::{CurrentSkill, InstalledFrom, NewSkill, OriginChange, RevisionKind},
};

pub(super) fn write_skills(
    c: &Connection,
    writes: &[SkillWrite],
    mode: WriteMode,
    path: &Path,
) -> QueryResult<Vec<Option<i64>>> {
    let mut ids = HashSet::new();
    if let Some(twice) = writes.iter().find(|write| !ids.insert(&write.skill.id)) {
        return Err(Error::DuplicateInBatch(twice.skill.id.clone()).into());
    }
    let write_all = || {
        writes
            .iter()
            .map(|write| put_skill(c, write, path))
            .collect()
    };
    match mode {
        WriteMode::Commit => write_all(),
        WriteMode::DryRun => {
            c.execute_batch("SAVEPOINT trial")?;
            let tried = write_all();
            c.execute_batch("ROLLBACK TO trial; RELEASE trial")?;
            tried
        }
    }
}

/// Removes a skill; its history stays.
pub(super) fn remove_skill(c: &Connection, id: &SkillId) -> QueryResult<bool> {
    let removed = c.execute("DELETE FROM skills WHERE path = ?1", [id.as_str()])? > 0;
    if removed {
        installed::forget_origin(c, id.as_str())?;
        history::record_revision(c, id, RevisionKind::Remove, None, &[])?;
        record_event(c, EventOp::Remove, EventKind::Skill, id.as_str())?;
    }
    Ok(removed)
}

/// Removes a skill with its history, and every file that is no longer referenced.
pub(super) fn purge_skill(c: &Connection, id: &SkillId) -> QueryResult<bool> {
    let removed = c.execute("DELETE FROM skills WHERE path = ?1", [id.as_str()])?;
    installed::forget_origin(c, id.as_str())?;
    let known = c.execute("DELETE FROM revisions WHERE path = ?1", [id.as_str()])?;
    c.execute("DELETE FROM revision_blobs WHERE path = ?1", [id.as_str()])?;
    c.execute(
        "DELETE FROM blobs WHERE NOT EXISTS
             (SELECT 1 FROM skill_files f WHERE f.digest = blobs.digest)
         AND NOT EXISTS
             (SELECT 1 FROM revision_blobs r WHERE r.digest = blobs.digest)
         AND NOT EXISTS
             (SELECT 1 FROM installed_blobs i WHERE i.digest = blobs.digest)",
        [],
    )?;
    if removed > 0 {
        record_event(c, EventOp::Remove, EventKind::Skill, id.as_str())?;
    }
    Ok(removed + known > 0)
}

pub(super) fn all_metadata(
    c: &Connection,
    path: &Path,
) -> QueryResult<Vec<(SkillId, SkillMetadata)>> {
    let mut statement = c.prepare_cached("SELECT path, head FROM skills ORDER BY path")?;
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    rows.map(|row| {
        let (id, head) = row?;
        Ok((id.parse()?, SkillMetadata::from_stored(&head, path)?))
    })
    .collect()
}

pub(super) fn skill_metadata(
    c: &Connection,
    id: &SkillId,
    path: &Path,
) -> QueryResult<Option<SkillMetadata>> {
    let head: Option<String> = c
        .prepare_cached("SELECT head FROM skills WHERE path = ?1")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?;
    let metadata = head.map(|head| SkillMetadata::from_stored(&head, path));
    Ok(metadata.transpose()?)
}

/// Returns the digest and the content of one file of a skill.
pub(super) fn file_content(
    c: &Connection,
    id: &SkillId,
    path: &RelPath,
) -> QueryResult<Option<(Vec<u8>, Vec<u8>)>> {
    let row = c
        .prepare_cached(
            "SELECT b.digest, b.content FROM skills s
             JOIN skill_files f ON f.skill_id = s.id
             JOIN blobs b ON b.digest = f.digest
             WHERE s.path = ?1 AND f.path = ?2",
        )?
        .query_row([id.as_str(), path.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?))
        });
    Ok(row.optional()?)
}

pub(super) fn blob_content(c: &Connection, digest: &Digest) -> QueryResult<Option<Vec<u8>>> {
    let content = c
        .prepare_cached("SELECT content FROM blobs WHERE digest = ?1")?
        .query_row([digest.as_bytes()], |row| row.get(0));
    Ok(content.optional()?)
}

/// Refuses a write whose expectation about the current content does not hold.
fn check_current(write: &SkillWrite, head: Option<&str>, path: &Path) -> QueryResult<()> {
    match write.current {
        CurrentSkill::Any => Ok(()),
        CurrentSkill::Absent if head.is_none() => Ok(()),
        CurrentSkill::Absent => Err(Error::AlreadyExists {
            what: "skill",
            name: write.skill.id.to_string(),
        }
        .into()),
        CurrentSkill::Digest(expected) => {
            let stored = head.map(|head| SkillMetadata::from_stored(head, path));
            if stored.transpose()?.map(|stored| stored.digest()) == Some(expected) {
                return Ok(());
            }
            Err(Error::Changed {
                what: "skill",
                name: write.skill.id.to_string(),
            }
            .into())
        }
    }
}

/// Stores one skill and records a revision and an event, unless nothing changed.
fn put_skill(c: &Connection, write: &SkillWrite, path: &Path) -> QueryResult<Option<i64>> {
    let skill = &write.skill;
    let id = skill.id.as_str();
    let head = serde_json::to_string(&skill.metadata).unwrap_or_default();
    let current: Option<(String, String)> = c
        .prepare_cached("SELECT id, head FROM skills WHERE path = ?1")?
        .query_row([id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let known = current.as_ref().map(|(_, head)| head.as_str());
    check_current(write, known, path)?;
    if let OriginChange::Set(from) = &write.origin {
        put_base_files(c, write, from)?;
    }
    let is_reattributed = installed::record_origin(c, skill, &write.origin)?;
    if known == Some(head.as_str()) && write.kind != RevisionKind::Rollback {
        if is_reattributed {
            installed::record_change(c, id)?;
        }
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
    let version = skill.metadata.package.as_ref().map(|p| &*p.version);
    let files = &skill.metadata.files;
    let revision = history::record_revision(c, &skill.id, write.kind, version, files)?;
    record_event(c, EventOp::Put, EventKind::Skill, id)?;
    Ok(Some(revision))
}

/// Stores the files that were installed, which need not be the ones that are stored.
fn put_base_files(c: &Connection, write: &SkillWrite, from: &InstalledFrom) -> QueryResult<()> {
    for entry in &from.files {
        let stored = write.skill.metadata.find_file(&entry.path);
        let content = match stored.filter(|file| file.digest == entry.digest) {
            Some(_) => write.skill.files.get(&entry.path),
            None => write.base_files.get(&entry.path),
        };
        let Some(content) = content else {
            // It is here from an earlier installation, or the reference below fails.
            continue;
        };
        c.prepare_cached("INSERT OR IGNORE INTO blobs (digest, content) VALUES (?1, ?2)")?
            .execute(params![entry.digest.as_bytes(), &content[..]])?;
    }
    Ok(())
}

/// Writes the row of a skill and returns its UUID.
fn upsert_row(
    c: &Connection,
    skill: &NewSkill,
    current: Option<&str>,
    head: &str,
) -> QueryResult<String> {
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
        return Err(Error::NameTaken {
            name: package.name.clone(),
            other,
        }
        .into());
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

fn put_files(c: &Connection, uuid: &str, files: &[FileEntry]) -> QueryResult<()> {
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

fn put_artifacts(c: &Connection, uuid: &str, package: Option<&Package>) -> QueryResult<()> {
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
            return Err(Error::ArtifactIdTaken(artifact.name.clone()).into());
        }
    }
    Ok(())
}
