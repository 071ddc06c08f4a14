//! Revisions: every earlier state of a skill.

use std::path::Path;

use repertoire_core::{FileEntry, SkillId};
use rusqlite::{Connection, params};

use super::{QueryResult, SkillRevision, now_rfc3339};
use crate::{error::Error, store::RevisionKind};

/// Records a revision in the same transaction that makes the change.
pub(super) fn record_revision(
    c: &Connection,
    id: &SkillId,
    kind: RevisionKind,
    version: Option<&str>,
    files: &[FileEntry],
) -> QueryResult<i64> {
    let revision: i64 = c
        .prepare_cached("SELECT coalesce(max(revision), 0) + 1 FROM revisions WHERE path = ?1")?
        .query_row([id.as_str()], |row| row.get(0))?;
    let list = serde_json::json!(files).to_string();
    c.prepare_cached("INSERT INTO revisions VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            id.as_str(),
            revision,
            kind.as_str(),
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

pub(super) fn history(
    c: &Connection,
    id: &SkillId,
    path: &Path,
) -> QueryResult<Vec<SkillRevision>> {
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
                path: path.to_owned(),
                reason: format!("unreadable history of {id}"),
            })?,
            ..revision
        })
    })
    .collect()
}
