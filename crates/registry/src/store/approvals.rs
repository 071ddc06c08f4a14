//! What the user approved, and what exactly the approval is bound to.

use rusqlite::{OptionalExtension, params};

use super::{Store, events, now};
use crate::error::Result;

/// One approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// What it is bound to; it falls when this changes.
    pub binding: String,
    /// When it was given, RFC 3339 in UTC.
    pub granted_at: String,
}

impl Store {
    /// Approves a subject as it is now.
    pub fn approve(&self, kind: &'static str, subject: &str, binding: &str) -> Result<()> {
        let (subject, binding) = (subject.to_owned(), binding.to_owned());
        self.write(move |c| {
            c.execute(
                "INSERT OR REPLACE INTO approvals VALUES (?1, ?2, ?3, ?4)",
                params![kind, subject, binding, now()],
            )?;
            events::record(c, "put", "approval", &subject)?;
            Ok(())
        })
    }

    /// Takes an approval back.
    pub fn revoke(&self, kind: &'static str, subject: &str) -> Result<bool> {
        let subject = subject.to_owned();
        self.write(move |c| {
            let sql = "DELETE FROM approvals WHERE kind = ?1 AND subject = ?2";
            let revoked = c.execute(sql, params![kind, subject])? > 0;
            if revoked {
                events::record(c, "remove", "approval", &subject)?;
            }
            Ok(revoked)
        })
    }

    /// The approval of a subject, if there is one.
    pub fn approval(&self, kind: &str, subject: &str) -> Result<Option<Approval>> {
        self.read(|c| {
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
}
