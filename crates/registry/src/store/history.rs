//! Revisions: every earlier state of a skill, and rollback.

use std::collections::BTreeMap;

use bytes::Bytes;
use repertoire_core::{FileEntry, RelPath, SkillId};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    Store, now_rfc3339,
    skills::{NewSkill, RevisionKind, put_skill},
};
use crate::error::{Error, Result};

/// One state of a skill.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SkillRevision {
    /// Its number, from 1.
    pub revision: i64,
    /// `put`, `rollback`, `optimize` (also if it found nothing better) or `remove`.
    pub op: String,
    /// When it was recorded, RFC 3339 in UTC.
    pub at: String,
    /// The package's version in this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its files in this revision; none after a removal.
    pub files: Vec<FileEntry>,
}

/// Records a revision in the same transaction that makes the change.
pub(super) fn record_revision(
    c: &Connection,
    id: &SkillId,
    op: &str,
    version: Option<&str>,
    files: &[FileEntry],
) -> Result<i64> {
    let revision: i64 = c
        .prepare_cached("SELECT coalesce(max(revision), 0) + 1 FROM revisions WHERE path = ?1")?
        .query_row([id.as_str()], |row| row.get(0))?;
    let list = serde_json::json!(files).to_string();
    c.prepare_cached("INSERT INTO revisions VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            id.as_str(),
            revision,
            op,
            now_rfc3339(),
            version,
            list
        ])?;
    for file in files {
        c.prepare_cached("INSERT OR IGNORE INTO revision_blobs VALUES (?1, ?2, ?3)")?
            .execute(params![file.digest.as_bytes(), id.as_str(), revision])?;
    }
    Ok(revision)
}

impl Store {
    /// Returns all revisions of a skill, newest first.
    pub fn history(&self, id: &SkillId) -> Result<Vec<SkillRevision>> {
        self.with_reader(|c| {
            let mut statement = c.prepare_cached(
                "SELECT revision, op, at, version, files FROM revisions
                 WHERE path = ?1 ORDER BY revision DESC",
            )?;
            let rows = statement.query_map([id.as_str()], |row| {
                Ok((
                    SkillRevision {
                        revision: row.get(0)?,
                        op: row.get(1)?,
                        at: row.get(2)?,
                        version: row.get(3)?,
                        files: Vec::new(),
                    },
                    row.get::<_, String>(4)?,
                ))
            })?;
            rows.map(|row| {
                let (revision, files) = row?;
                Ok(SkillRevision {
                    files: repertoire_core::json::from_str(&files).map_err(|_| Error::Corrupt {
                        path: self.path.clone(),
                        reason: format!("unreadable history of {id}"),
                    })?,
                    ..revision
                })
            })
            .collect()
        })
    }

    /// Returns the files of a skill at a revision.
    pub fn files_at(&self, id: &SkillId, revision: i64) -> Result<BTreeMap<RelPath, Bytes>> {
        let found = self
            .history(id)?
            .into_iter()
            .find(|r| r.revision == revision);
        let missing = || Error::NotFound {
            what: "revision",
            name: format!("{id}@{revision}"),
        };
        let state = found.filter(|r| r.op != "remove").ok_or_else(missing)?;
        state
            .files
            .into_iter()
            .map(|file| {
                let content: Option<Vec<u8>> = self.with_reader(|c| {
                    Ok(
                        c.prepare_cached("SELECT content FROM blobs WHERE digest = ?1")?
                            .query_row([file.digest.as_bytes()], |row| row.get(0))
                            .optional()?,
                    )
                })?;
                let content = content.ok_or_else(missing)?;
                Ok((
                    file.path,
                    self.verify_digest(file.digest.as_bytes(), content)?,
                ))
            })
            .collect()
    }

    /// Restores an earlier revision as a new one.
    pub fn rollback_skill(&self, id: &SkillId, revision: i64) -> Result<i64> {
        let skill = NewSkill::from_files(id.clone(), self.files_at(id, revision)?)?;
        self.write_durable(move |c| put_skill(c, &skill, RevisionKind::Rollback))
            .map(Option::unwrap_or_default)
    }
}
