//! Installed skills: stored skills that came from elsewhere, and the approvals they need.
//!
//! Invariant (T21, T23): what came from elsewhere is trusted only if the user approved the digest of
//! exactly what was installed. Changes that the user makes afterwards need no approval. Each revision
//! remembers what it came from, so that going back to one brings back what it needs. Approvals are kept in the account, by store, skill and
//! digest, never in the store itself.

use std::collections::BTreeSet;

use repertoire_core::{Digest, SkillId};

use super::{AttachedStore, Registry};
use crate::{
    catalogue::{CatalogueChange, RepeatPolicy, SkillEntry},
    error::Result,
    origin::{Origin, StoreScope, Trusted},
    store::{InstalledFrom, LocalStore, SkillWrite, Store, WriteMode},
};

/// The kind of an approval of an installed skill.
const INSTALLED_APPROVAL_KIND: &str = "installed-skill";

/// The approvals of installed skills, read at once.
#[derive(Debug, Default)]
pub(super) struct InstalledApprovals(BTreeSet<String>);

impl InstalledApprovals {
    pub(super) fn load(local: Option<&LocalStore>) -> Result<Self> {
        let Some(local) = local else {
            return Ok(Self::default());
        };
        Ok(Self(local.approved_subjects(INSTALLED_APPROVAL_KIND)?))
    }

    /// Decides whether an installed skill of a store is trusted.
    pub(super) fn trust(&self, attached: &AttachedStore, id: &SkillId, digest: &Digest) -> Trusted {
        let Ok(store) = attached.store.store_id() else {
            return Trusted::No;
        };
        if attached.trusted == Trusted::Yes && self.0.contains(&subject(&store, id, digest)) {
            Trusted::Yes
        } else {
            Trusted::No
        }
    }
}

fn subject(store: &str, id: &SkillId, digest: &Digest) -> String {
    format!("{store} {id} {digest}")
}

impl Registry {
    fn local(&self) -> Option<&LocalStore> {
        self.local.as_ref().map(|local| &*local.store)
    }

    /// Decides whether a stored skill is trusted.
    pub(super) fn stored_trust(&self, attached: &AttachedStore, id: &SkillId) -> Result<Trusted> {
        if attached.trusted == Trusted::No {
            return Ok(Trusted::No);
        }
        let Some(digest) = attached.store.installed_digest(id)? else {
            return Ok(Trusted::Yes);
        };
        self.digest_trust(attached, id, &digest)
    }

    /// Whether a skill of a trusted store may be run: its own, or approved.
    pub fn is_stored_trusted(&self, store: &dyn Store, id: &SkillId) -> Result<bool> {
        let wanted = store.store_id()?;
        for attached in &self.stores {
            if attached.store.store_id()? == wanted {
                return Ok(self.stored_trust(attached, id)? == Trusted::Yes);
            }
        }
        Ok(false)
    }

    fn digest_trust(
        &self,
        attached: &AttachedStore,
        id: &SkillId,
        digest: &Digest,
    ) -> Result<Trusted> {
        let Some(local) = self.local() else {
            return Ok(Trusted::No);
        };
        let subject = subject(&attached.store.store_id()?, id, digest);
        let approval = local.find_approval(INSTALLED_APPROVAL_KIND, &subject)?;
        Ok(match approval {
            Some(_) => Trusted::Yes,
            None => Trusted::No,
        })
    }

    pub(super) fn installed_approvals(&self) -> Result<InstalledApprovals> {
        InstalledApprovals::load(self.local())
    }

    /// Returns the changes of trust that follow from approvals that were granted or revoked.
    pub(super) fn approval_changes(&self) -> Result<Vec<CatalogueChange>> {
        let approvals = self.installed_approvals()?;
        let snapshot = self.snapshot();
        let mut changes = Vec::new();
        for attached in &self.stores {
            let origin = Origin::from_scope(attached.scope);
            for (id, digest) in attached.store.installed_digests()? {
                let trusted = approvals.trust(attached, &id, &digest);
                let reference = crate::QualifiedSkillId {
                    origin: Some(origin.clone()),
                    id,
                };
                if let Some(entry) = snapshot.find_skill(&reference)
                    && entry.trusted != trusted
                {
                    let entry = SkillEntry {
                        trusted,
                        ..SkillEntry::clone(entry)
                    };
                    changes.push(CatalogueChange::PutSkill(entry, RepeatPolicy::Ignore));
                }
            }
        }
        Ok(changes)
    }

    /// Writes skills with their origins as one change. Returns the new revision of each, `None` where
    /// the content is the same.
    pub fn write_skills(
        &self,
        scope: StoreScope,
        writes: Vec<SkillWrite>,
        mode: WriteMode,
    ) -> Result<Vec<Option<i64>>> {
        let attached = self.attached_store(scope)?;
        let revisions = attached.store.write_skills(writes, mode)?;
        self.sync_store(attached)?;
        Ok(revisions)
    }

    /// Returns where a skill of a scope was installed from, if it was.
    pub fn installed_from(&self, scope: StoreScope, id: &SkillId) -> Result<Option<InstalledFrom>> {
        self.attached_store(scope)?.store.installed_from(id)
    }

    /// Approves what was installed of skills, by the digests that the user was shown.
    ///
    /// If something else was installed meanwhile, that stays untrusted.
    pub fn approve_installed(&self, scope: StoreScope, shown: &[(SkillId, Digest)]) -> Result<()> {
        let store = self.attached_store(scope)?.store.store_id()?;
        let shown = shown.iter();
        let subjects = shown.map(|(id, digest)| subject(&store, id, digest));
        self.local_store()?
            .grant_approvals(INSTALLED_APPROVAL_KIND, subjects.collect())?;
        self.sync_local()
    }

    /// Revokes every approval of an installed skill; returns whether there was one.
    pub fn revoke_installed(&self, scope: StoreScope, id: &SkillId) -> Result<bool> {
        let store = self.attached_store(scope)?.store.store_id()?;
        let local = self.local_store()?;
        let revoked = local.revoke_approvals(INSTALLED_APPROVAL_KIND, &format!("{store} {id} "))?;
        self.sync_local()?;
        Ok(revoked)
    }

    /// Returns whether exactly this content of a skill was approved.
    pub fn is_installed_approved(
        &self,
        scope: StoreScope,
        id: &SkillId,
        digest: &Digest,
    ) -> Result<bool> {
        let attached = self.attached_store(scope)?;
        Ok(self.digest_trust(attached, id, digest)? == Trusted::Yes)
    }

    /// Returns the scope and the origin of an installed skill of the catalogue.
    pub fn installed_entry(
        &self,
        entry: &SkillEntry,
    ) -> Result<Option<(StoreScope, InstalledFrom)>> {
        let scope = match entry.origin {
            Origin::Workspace => StoreScope::Workspace,
            Origin::Account => StoreScope::Account,
            _ => return Ok(None),
        };
        let found = self.installed_from(scope, &entry.id)?;
        Ok(found.map(|found| (scope, found)))
    }
}
