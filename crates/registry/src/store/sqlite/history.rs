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
    let sql = "INSERT INTO revisions (path, revision, op, at, version, files, origin)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6,
                       (SELECT origin FROM installed_skills WHERE path = ?1))";
    c.prepare_cached(sql)?.execute(params![
        id.as_str(),
        revision,
        kind.as_str(),
        now_rfc3339(),
        version,
        list
    ])?;
    // What was installed belongs to the revision, because going back to it brings it back.
    c.prepare_cached(
        "INSERT OR IGNORE INTO revision_blobs (digest, path, revision)
         SELECT digest, path, ?2 FROM installed_blobs WHERE path = ?1",
    )?
    .execute(params![id.as_str(), revision])?;
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
        "SELECT revision, op, at, version, files, origin FROM revisions
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
                origin: None,
            },
            row.get::<_, String>(4)?,
            row.get::<_, Option<String>>(5)?,
        ))
    })?;
    rows.map(|row| {
        let (revision, files, origin) = row?;
        let unreadable = |_| Error::Corrupt {
            path: path.to_owned(),
            reason: format!("unreadable history of {id}"),
        };
        let origin = origin.map(|origin| repertoire_core::json::from_str(&origin));
        Ok(SkillRevision {
            files: repertoire_core::json::from_str(&files).map_err(unreadable)?,
            origin: origin.transpose().map_err(unreadable)?,
            ..revision
        })
    })
    .collect()
}
