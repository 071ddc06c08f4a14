//! What a user sees before approving an installed skill.

use repertoire_core::{
    Digest, SkillId,
    lint::{LintFinding, LintSeverity},
    look_alike::LookAlike,
};
use repertoire_registry::{
    Registry, StoreScope,
    store::{InstalledFrom, RevisionKind, Store},
};

use super::installer::read_base;
use crate::{FileDiff, SkillFiles, diff_files, error::Result, lint_files};

/// An installed skill as it is shown for approval.
#[derive(Debug)]
pub struct ApprovalView {
    /// The scope that has it.
    pub scope: StoreScope,
    /// The skill.
    pub id: SkillId,
    /// Where it came from.
    pub from: InstalledFrom,
    /// What an approval is bound to.
    pub digest: Digest,
    /// Whether it is approved as it is.
    pub is_approved: bool,
    /// What changed since the last state that was approved; everything is new if there is none.
    pub changes: Vec<FileDiff>,
    /// Whether an earlier state was approved.
    pub has_earlier: bool,
    /// What the rules found in it.
    pub findings: Vec<LintFinding>,
    /// Skills with a similar name that the user has.
    pub similar: Vec<LookAlike>,
}

impl ApprovalView {
    /// How many findings are errors.
    pub fn risky(&self) -> usize {
        let errors = self.findings.iter();
        errors
            .filter(|finding| finding.rule.severity == LintSeverity::Error)
            .count()
    }
}

/// Returns what a user should see before approving an installed skill.
pub fn approval_view(
    registry: &Registry,
    scope: StoreScope,
    id: &SkillId,
) -> Result<Option<ApprovalView>> {
    let store = registry.store(scope)?;
    let Some(from) = store.installed_from(id)? else {
        return Ok(None);
    };
    let digest = from.digest();
    let files = read_base(&**store, &from)?;
    let earlier = last_approved(registry, &**store, scope, id, &digest)?;
    Ok(Some(ApprovalView {
        scope,
        is_approved: registry.is_installed_approved(scope, id, &digest)?,
        changes: match &earlier {
            Some(earlier) => diff_files(earlier, &files),
            None => Vec::new(),
        },
        has_earlier: earlier.is_some(),
        findings: lint_files(&files),
        similar: registry.look_alikes(std::slice::from_ref(id)),
        id: id.clone(),
        from,
        digest,
    }))
}

/// Returns the newest state of the history that was approved.
fn last_approved(
    registry: &Registry,
    store: &dyn Store,
    scope: StoreScope,
    id: &SkillId,
    current: &Digest,
) -> Result<Option<SkillFiles>> {
    for revision in store.history(id)? {
        if revision.op == RevisionKind::Remove.as_str() {
            continue;
        }
        let digest = repertoire_core::Manifest::digest_of(&revision.files);
        if digest != *current && registry.is_installed_approved(scope, id, &digest)? {
            return Ok(Some(store.files_at(id, revision.revision)?));
        }
    }
    Ok(None)
}
