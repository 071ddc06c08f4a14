//! Where installed skills came from. Their original files stay among the blobs.

use repertoire_core::{Digest, SkillId};
use rusqlite::{Connection, OptionalExtension, params};

use super::{QueryResult, events};
use crate::store::{InstalledFrom, NewSkill, OriginChange};

/// Records what a write says about the origin of a skill; returns whether that changed anything.
pub(super) fn record_origin(
    c: &Connection,
    skill: &NewSkill,
    change: &OriginChange,
) -> QueryResult<bool> {
    let id = skill.id.as_str();
    match change {
        OriginChange::Keep => Ok(false),
        OriginChange::Clear => forget_origin(c, id),
        OriginChange::Set(from) => {
            let origin = serde_json::to_string(from).unwrap_or_default();
            let digest = from.digest();
            let known: Option<String> = c
                .prepare_cached("SELECT origin FROM installed_skills WHERE path = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()?;
            if known.as_deref() == Some(origin.as_str()) {
                return Ok(false);
            }
            c.prepare_cached("INSERT OR REPLACE INTO installed_skills VALUES (?1, ?2, ?3)")?
                .execute(params![id, origin, digest.as_bytes()])?;
            c.prepare_cached("DELETE FROM installed_blobs WHERE path = ?1")?
                .execute([id])?;
            for file in &from.files {
                // Of a state that is restored, cleaning up may have left less.
                c.prepare_cached(
                    "INSERT OR IGNORE INTO installed_blobs
                     SELECT digest, ?2 FROM blobs WHERE digest = ?1",
                )?
                .execute(params![file.digest.as_bytes(), id])?;
            }
            Ok(true)
        }
    }
}

/// Forgets where a skill came from; returns whether it was installed.
pub(super) fn forget_origin(c: &Connection, id: &str) -> QueryResult<bool> {
    c.prepare_cached("DELETE FROM installed_blobs WHERE path = ?1")?
        .execute([id])?;
    let forgotten = c
        .prepare_cached("DELETE FROM installed_skills WHERE path = ?1")?
        .execute([id])?;
    Ok(forgotten > 0)
}

pub(super) fn installed_from(c: &Connection, id: &SkillId) -> QueryResult<Option<InstalledFrom>> {
    let origin: Option<String> = c
        .prepare_cached("SELECT origin FROM installed_skills WHERE path = ?1")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?;
    Ok(origin.and_then(|origin| repertoire_core::json::from_str(&origin).ok()))
}

pub(super) fn all_installed(c: &Connection) -> QueryResult<Vec<(SkillId, InstalledFrom)>> {
    let sql = "SELECT path, origin FROM installed_skills ORDER BY path";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let mut found = Vec::new();
    for row in rows {
        let (id, origin) = row?;
        if let Ok(origin) = repertoire_core::json::from_str(&origin) {
            found.push((id.parse()?, origin));
        }
    }
    Ok(found)
}

pub(super) fn installed_digest(c: &Connection, id: &SkillId) -> QueryResult<Option<Digest>> {
    let digest = c
        .prepare_cached("SELECT digest FROM installed_skills WHERE path = ?1")?
        .query_row([id.as_str()], |row| row.get::<_, [u8; 32]>(0))
        .optional()?;
    Ok(digest.map(Digest::from_bytes))
}

pub(super) fn installed_digests(c: &Connection) -> QueryResult<Vec<(SkillId, Digest)>> {
    let sql = "SELECT path, digest FROM installed_skills ORDER BY path";
    let mut statement = c.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, [u8; 32]>(1)?))
    })?;
    rows.map(|row| {
        let (id, digest) = row?;
        Ok((id.parse()?, Digest::from_bytes(digest)))
    })
    .collect()
}

/// Records that the trust in a skill has to be decided again.
pub(super) fn record_change(c: &Connection, id: &str) -> QueryResult<()> {
    events::record_event(c, events::EventOp::Put, events::EventKind::Skill, id)?;
    Ok(())
}
