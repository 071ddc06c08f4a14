//! Approvals by the user, and what each one is bound to.

use std::collections::BTreeSet;

use repertoire_core::SkillId;
use rusqlite::{OptionalExtension, params};

use super::{
    LocalStore,
    events::{EventKind, EventOp, record_event},
    now_rfc3339,
};
use crate::error::Result;

/// The kind of a record of a folder that has copies of skills.
const LINKED_FOLDER_KIND: &str = "linked-folder";
/// The kind of a record that a skill is disabled.
const DISABLED_KIND: &str = "disabled-skill";

/// One approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// The state it is bound to; the approval is invalid when this changes.
    pub binding: String,
    /// When it was granted, RFC 3339 in UTC.
    pub granted_at: String,
}

impl LocalStore {
    /// Approves a subject in its current state.
    pub fn grant_approval(&self, kind: &'static str, subject: &str, binding: &str) -> Result<()> {
        let (subject, binding) = (subject.to_owned(), binding.to_owned());
        self.write_durable(move |c| {
            c.execute(
                "INSERT OR REPLACE INTO approvals VALUES (?1, ?2, ?3, ?4)",
                params![kind, subject, binding, now_rfc3339()],
            )?;
            record_event(c, EventOp::Put, EventKind::Approval, &subject)?;
            Ok(())
        })
    }

    /// Approves several subjects, which say themselves what they are bound to, as one change.
    pub(crate) fn grant_approvals(&self, kind: &'static str, subjects: Vec<String>) -> Result<()> {
        self.write_durable(move |c| {
            let mut insert =
                c.prepare_cached("INSERT OR REPLACE INTO approvals VALUES (?1, ?2, '', ?3)")?;
            let now = now_rfc3339();
            for subject in &subjects {
                insert.execute(params![kind, subject, now])?;
                record_event(c, EventOp::Put, EventKind::Approval, subject)?;
            }
            Ok(())
        })
    }

    /// Replaces what an approval is bound to; returns whether it was still bound to `old`.
    pub(crate) fn rebind_approval(
        &self,
        kind: &'static str,
        subject: &str,
        old: &str,
        new: &str,
    ) -> Result<bool> {
        let (subject, old, new) = (subject.to_owned(), old.to_owned(), new.to_owned());
        self.write_durable(move |c| {
            let sql = "UPDATE approvals SET binding = ?4 WHERE kind = ?1 AND subject = ?2 AND \
                       binding = ?3";
            Ok(c.execute(sql, params![kind, subject, old, new])? > 0)
        })
    }

    /// Revokes an approval; returns whether there was one.
    pub fn revoke_approval(&self, kind: &'static str, subject: &str) -> Result<bool> {
        let subject = subject.to_owned();
        self.write_durable(move |c| {
            let sql = "DELETE FROM approvals WHERE kind = ?1 AND subject = ?2";
            let revoked = c.execute(sql, params![kind, subject])? > 0;
            if revoked {
                record_event(c, EventOp::Remove, EventKind::Approval, &subject)?;
            }
            Ok(revoked)
        })
    }

    /// Returns the approval of a subject, if there is one.
    pub fn find_approval(&self, kind: &str, subject: &str) -> Result<Option<Approval>> {
        self.with_reader(|c| {
            Ok(c.query_row(
                "SELECT binding, granted_at FROM approvals WHERE kind = ?1 AND subject = ?2",
                [kind, subject],
                |row| {
                    Ok(Approval {
                        binding: row.get(0)?,
                        granted_at: row.get(1)?,
                    })
                },
            )
            .optional()?)
        })
    }

    /// Returns every subject of a kind of approvals.
    pub(crate) fn approved_subjects(&self, kind: &'static str) -> Result<BTreeSet<String>> {
        self.with_reader(|c| {
            let mut query = c.prepare_cached("SELECT subject FROM approvals WHERE kind = ?1")?;
            let rows = query.query_map([kind], |row| row.get::<_, String>(0))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Revokes all approvals of a kind whose subjects begin with a text.
    pub(crate) fn revoke_approvals(&self, kind: &'static str, prefix: &str) -> Result<bool> {
        let prefix = prefix.to_owned();
        self.write_durable(move |c| {
            let sql =
                "DELETE FROM approvals WHERE kind = ?1 AND substr(subject, 1, length(?2)) = ?2";
            let revoked = c.execute(sql, params![kind, prefix])? > 0;
            if revoked {
                record_event(c, EventOp::Remove, EventKind::Approval, &prefix)?;
            }
            Ok(revoked)
        })
    }

    /// Remembers a folder that skills are copied to, so that its copies can be verified.
    pub fn remember_linked_folder(&self, folder: &str) -> Result<()> {
        self.grant_approval(LINKED_FOLDER_KIND, folder, "")
    }

    /// Returns the folders that skills were copied to by their paths.
    pub fn linked_folders(&self) -> Result<Vec<std::path::PathBuf>> {
        let folders = self.approved_subjects(LINKED_FOLDER_KIND)?;
        Ok(folders.into_iter().map(Into::into).collect())
    }

    /// Disables a skill: it stays where it is and is not served.
    pub fn disable_skill(&self, id: &SkillId) -> Result<()> {
        self.grant_approval(DISABLED_KIND, id.as_str(), "")
    }

    /// Enables a skill again; returns whether it was disabled.
    pub fn enable_skill(&self, id: &SkillId) -> Result<bool> {
        self.revoke_approval(DISABLED_KIND, id.as_str())
    }

    /// Returns the skills that are disabled.
    pub fn disabled_skills(&self) -> Result<BTreeSet<SkillId>> {
        self.with_reader(|c| {
            let mut query = c.prepare("SELECT subject FROM approvals WHERE kind = ?1")?;
            let rows = query.query_map([DISABLED_KIND], |row| row.get::<_, String>(0))?;
            let mut found = BTreeSet::new();
            for id in rows {
                found.extend(id?.parse::<SkillId>().ok());
            }
            Ok(found)
        })
    }
}
