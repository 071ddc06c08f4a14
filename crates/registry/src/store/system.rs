//! System skills: skills that ship with the product.
//!
//! They are installed when an account's store is created, and updated when the product ships a
//! newer version. Skills that the user changed or removed are left alone.

use repertoire_core::{Digest, Package, package::PackageSource};
use rusqlite::{Connection, OptionalExtension};

use super::{
    Store,
    skills::{NewSkill, RevisionKind, put_skill},
};
use crate::error::Result;

/// The packages, in their JSON form.
const SYSTEM_PACKAGES: [&str; 1] = [include_str!(
    "../../../../examples/packages/consistency-checker.json"
)];

impl Store {
    /// Updates the system skills; returns how many of them changed.
    pub fn refresh_system_skills(&self) -> Result<usize> {
        self.refresh_packages(&SYSTEM_PACKAGES)
    }

    /// The same with any packages.
    pub(super) fn refresh_packages(&self, packages: &[&str]) -> Result<usize> {
        let mut stale = Vec::new();
        for json in packages {
            let etag = Digest::hash_bytes(json.as_bytes()).hex_digits();
            let mut package = Package::from_json(json.as_bytes())?;
            package.source = PackageSource::System;
            package.sync_etag = Some(etag.clone());
            let skill = NewSkill::from_package(&package)?;
            let key = format!("system:{}", skill.id());
            let seen = self.with_reader(|c| meta_value(c, &key))?;
            // Usually the package was already installed.
            if seen.is_none_or(|seen| !seen.starts_with(&etag)) {
                stale.push((key, etag, skill));
            }
        }
        if stale.is_empty() {
            return Ok(0);
        }
        self.write_durable(move |c| {
            let mut changed = 0;
            for (key, etag, skill) in &stale {
                changed += usize::from(refresh_package(c, key, etag, skill)?);
            }
            Ok(changed)
        })
    }
}

fn meta_value(c: &Connection, key: &str) -> Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    let value = c.prepare_cached(sql)?.query_row([key], |row| row.get(0));
    Ok(value.optional()?)
}

/// Returns a digest of the stored metadata of a skill.
fn skill_state_digest(c: &Connection, skill: &NewSkill) -> Result<Option<String>> {
    let sql = "SELECT head FROM skills WHERE path = ?1";
    let head: Option<String> = c
        .prepare_cached(sql)?
        .query_row([skill.id().as_str()], |row| row.get(0))
        .optional()?;
    Ok(head.map(|head| Digest::hash_bytes(head.as_bytes()).hex_digits()))
}

fn refresh_package(c: &Connection, key: &str, etag: &str, skill: &NewSkill) -> Result<bool> {
    let now = skill_state_digest(c, skill)?;
    let ours = match meta_value(c, key)? {
        // The user may already have a skill of that name.
        None => now.is_none(),
        Some(seen) => {
            let put_then = seen.split(' ').nth(1);
            now.is_some() && now.as_deref() == put_then
        }
    };
    let changed = ours && put_skill(c, skill, RevisionKind::Add)?.is_some();
    let kept = if ours {
        skill_state_digest(c, skill)?
    } else {
        None
    };
    let value = format!("{etag} {}", kept.as_deref().unwrap_or("-"));
    c.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
        .execute([key, &value])?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{SkillRepository, StoreTrust};

    fn package_json(number: u32) -> String {
        serde_json::json!({
            "name": "Shipped", "description": "Comes along.", "source": "system",
            "version": format!("{number}.0.0"),
            "artifacts": [{"kind": "description", "name": "Overview",
                           "content": format!("Text {number}.\n")}],
        })
        .to_string()
    }

    fn shipped_package(store: &Store) -> Option<Package> {
        store.get_skill_by_name("Shipped").unwrap()
    }

    #[test]
    fn system_skills_are_refreshed_unless_the_user_changed_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agents.db"), StoreTrust::Own).unwrap();
        assert_eq!(store.refresh_packages(&[&package_json(1)]).unwrap(), 1);
        assert_eq!(store.refresh_packages(&[&package_json(1)]).unwrap(), 0);
        assert_eq!(store.refresh_packages(&[&package_json(2)]).unwrap(), 1);
        let package = shipped_package(&store).unwrap();
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
                shipped_package(&store).unwrap().artifacts[0].content,
                "Mine.\n"
            );
        }
    }

    #[test]
    fn removed_or_existing_skills_are_not_replaced_by_system_skills() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agents.db"), StoreTrust::Own).unwrap();
        store.refresh_packages(&[&package_json(1)]).unwrap();
        let id = shipped_package(&store).unwrap().id.unwrap();
        assert!(store.delete_skill(id).unwrap());
        assert_eq!(store.refresh_packages(&[&package_json(2)]).unwrap(), 0);
        assert_eq!(shipped_package(&store), None);

        let other = Store::open(&folder.path().join("other.db"), StoreTrust::Own).unwrap();
        let mut own = Package::from_json(package_json(9).as_bytes()).unwrap();
        own.source = PackageSource::User;
        other.create_skill(&own).unwrap();
        assert_eq!(other.refresh_packages(&[&package_json(1)]).unwrap(), 0);
        assert_eq!(other.refresh_packages(&[&package_json(2)]).unwrap(), 0);
        assert_eq!(shipped_package(&other).unwrap().version, "9.0.0");
    }

    #[test]
    fn every_system_skill_is_a_valid_package() {
        for json in SYSTEM_PACKAGES {
            let package = Package::from_json(json.as_bytes()).unwrap();
            assert_eq!(package.source, PackageSource::System, "{}", package.name);
        }
    }
}
