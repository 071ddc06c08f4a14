//! System skills: skills that ship with the product.
//!
//! They are installed when an account's store is created, and updated when the product ships a
//! newer version. Skills that the user changed or removed are left alone.

use repertoire_core::{Digest, Package, SkillId, package::PackageSource};

use super::{CurrentSkill, NewSkill, SkillWrite, Store, WriteMode};
use crate::error::{Error, Result};

/// The packages, in their JSON form.
const SYSTEM_PACKAGES: [&str; 1] = [include_str!(
    "../../../../examples/packages/consistency-checker.json"
)];

/// Returns the ids of the skills that ship with the product.
pub fn system_skill_ids() -> Result<Vec<SkillId>> {
    let packages = SYSTEM_PACKAGES.iter();
    let ids = packages.map(|json| {
        let package = Package::from_json(json.as_bytes())?;
        Ok(NewSkill::from_package(&package)?.id().clone())
    });
    ids.collect()
}

impl dyn Store + '_ {
    /// Updates the system skills; returns how many of them changed.
    pub fn refresh_system_skills(&self) -> Result<usize> {
        self.refresh_packages(&SYSTEM_PACKAGES)
    }

    /// The same with any packages.
    fn refresh_packages(&self, packages: &[&str]) -> Result<usize> {
        let mut changed = 0;
        for json in packages {
            changed += usize::from(self.refresh_package(json)?);
        }
        Ok(changed)
    }

    fn refresh_package(&self, json: &str) -> Result<bool> {
        let etag = Digest::hash_bytes(json.as_bytes()).hex_digits();
        let mut package = Package::from_json(json.as_bytes())?;
        package.source = PackageSource::System;
        package.sync_etag = Some(etag.clone());
        let skill = NewSkill::from_package(&package)?;
        let id = skill.id().clone();
        let key = format!("system:{id}");
        let noted = self.note(&key)?;
        // Usually the package was already installed.
        if noted.as_ref().is_some_and(|noted| noted.starts_with(&etag)) {
            return Ok(false);
        }
        let stored = self.skill_metadata(&id)?;
        let now = stored.as_ref().map(metadata_digest);
        let installed = metadata_digest(skill.metadata());
        let ours = match &noted {
            // It was stored, but the process ended before the note was.
            _ if now.as_deref() == Some(&installed) => true,
            // The user may already have a skill of that name.
            None => now.is_none(),
            Some(noted) => now.is_some() && now.as_deref() == noted.split(' ').nth(1),
        };
        let mut changed = false;
        if ours {
            let write = SkillWrite {
                current: stored.map_or(CurrentSkill::Absent, |stored| {
                    CurrentSkill::Digest(stored.digest())
                }),
                ..SkillWrite::put(skill)
            };
            match self.write_skills(vec![write], WriteMode::Commit) {
                Ok(revisions) => changed = revisions.iter().any(Option::is_some),
                // The user, or another process that started now, was faster.
                Err(Error::Changed { .. } | Error::AlreadyExists { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        // What was written, not what is stored now: the user may have changed it already.
        let kept = ours.then_some(installed);
        let note = format!("{etag} {}", kept.as_deref().unwrap_or("-"));
        self.put_note(&key, &note)?;
        Ok(changed)
    }
}

/// Returns a digest of the stored metadata of a skill.
fn metadata_digest(metadata: &crate::SkillMetadata) -> String {
    let text = serde_json::to_string(metadata).unwrap_or_default();
    Digest::hash_bytes(text.as_bytes()).hex_digits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::store::{SkillKey, SqliteStore, StoreOpenMode};

    fn package_json(number: u32) -> String {
        serde_json::json!({
            "name": "Shipped", "description": "Comes along.", "source": "system",
            "version": format!("{number}.0.0"),
            "artifacts": [{"kind": "description", "name": "Overview",
                           "content": format!("Text {number}.\n")}],
        })
        .to_string()
    }

    fn open_store(folder: &tempfile::TempDir, name: &str) -> Arc<dyn Store> {
        SqliteStore::open(&folder.path().join(name), StoreOpenMode::Own).unwrap()
    }

    fn shipped_package(store: &dyn Store) -> Option<Package> {
        store.get_package(SkillKey::Name("Shipped")).unwrap()
    }

    #[test]
    fn system_skills_are_refreshed_unless_the_user_changed_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_store(&folder, "agents.db");
        assert_eq!(store.refresh_packages(&[&package_json(1)]).unwrap(), 1);
        assert_eq!(store.refresh_packages(&[&package_json(1)]).unwrap(), 0);
        assert_eq!(store.refresh_packages(&[&package_json(2)]).unwrap(), 1);
        let package = shipped_package(&*store).unwrap();
        assert_eq!(
            (&*package.version, package.source),
            ("2.0.0", PackageSource::System)
        );
        // An edit by the user survives later updates.
        let first = package.artifacts[0].clone();
        let mut edited = first.clone();
        edited.content = "Mine.\n".to_owned();
        store.update_artifact(first.id.unwrap(), &edited).unwrap();
        for number in 3..5 {
            assert_eq!(store.refresh_packages(&[&package_json(number)]).unwrap(), 0);
            assert_eq!(
                shipped_package(&*store).unwrap().artifacts[0].content,
                "Mine.\n"
            );
        }
    }

    #[test]
    fn removed_or_existing_skills_are_not_replaced_by_system_skills() {
        let folder = tempfile::tempdir().unwrap();
        let store = open_store(&folder, "agents.db");
        store.refresh_packages(&[&package_json(1)]).unwrap();
        let id = shipped_package(&*store).unwrap().id.unwrap();
        assert!(store.delete_package(id).unwrap());
        assert_eq!(store.refresh_packages(&[&package_json(2)]).unwrap(), 0);
        assert_eq!(shipped_package(&*store), None);

        let other = open_store(&folder, "other.db");
        let mut own = Package::from_json(package_json(9).as_bytes()).unwrap();
        own.source = PackageSource::User;
        other.create_package(&own).unwrap();
        assert_eq!(other.refresh_packages(&[&package_json(1)]).unwrap(), 0);
        assert_eq!(other.refresh_packages(&[&package_json(2)]).unwrap(), 0);
        assert_eq!(shipped_package(&*other).unwrap().version, "9.0.0");
    }

    #[test]
    fn every_system_skill_is_a_valid_package() {
        for json in SYSTEM_PACKAGES {
            let package = Package::from_json(json.as_bytes()).unwrap();
            assert_eq!(package.source, PackageSource::System, "{}", package.name);
        }
    }
}
