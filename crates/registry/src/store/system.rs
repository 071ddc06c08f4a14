//! Skills that come with the product.
//!
//! They are put into an account's store when it is made, and brought up to date when the product
//! brings a newer one. What the user has changed or removed stays as it is.

use repertoire_core::{Digest, Package, package::Source};
use rusqlite::{Connection, OptionalExtension};

use super::{
    Store,
    skills::{NewSkill, Op, put},
};
use crate::error::Result;

/// The packages, in their JSON form.
const SYSTEM: [&str; 1] = [include_str!(
    "../../../../examples/packages/consistency-checker.json"
)];

impl Store {
    /// Brings the skills of the product up to date; says how many of them changed.
    pub fn refresh_system(&self) -> Result<usize> {
        self.refresh(&SYSTEM)
    }

    /// The same with any packages.
    pub(super) fn refresh(&self, packages: &[&str]) -> Result<usize> {
        let mut stale = Vec::new();
        for json in packages {
            let etag = Digest::of(json.as_bytes()).hex();
            let mut package = Package::from_json(json.as_bytes())?;
            package.source = Source::System;
            package.sync_etag = Some(etag.clone());
            let skill = NewSkill::from_package(&package)?;
            let key = format!("system:{}", skill.id());
            let seen = self.read(|c| meta(c, &key))?;
            // Most of the time there is nothing to do.
            if seen.is_none_or(|seen| !seen.starts_with(&etag)) {
                stale.push((key, etag, skill));
            }
        }
        if stale.is_empty() {
            return Ok(0);
        }
        self.write(move |c| {
            let mut changed = 0;
            for (key, etag, skill) in &stale {
                changed += usize::from(refresh_one(c, key, etag, skill)?);
            }
            Ok(changed)
        })
    }
}

fn meta(c: &Connection, key: &str) -> Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    let value = c.prepare_cached(sql)?.query_row([key], |row| row.get(0));
    Ok(value.optional()?)
}

/// What a skill is now, as a digest of what is known of it.
fn state(c: &Connection, skill: &NewSkill) -> Result<Option<String>> {
    let sql = "SELECT head FROM skills WHERE path = ?1";
    let head: Option<String> = c
        .prepare_cached(sql)?
        .query_row([skill.id().as_str()], |row| row.get(0))
        .optional()?;
    Ok(head.map(|head| Digest::of(head.as_bytes()).hex()))
}

fn refresh_one(c: &Connection, key: &str, etag: &str, skill: &NewSkill) -> Result<bool> {
    let now = state(c, skill)?;
    let ours = match meta(c, key)? {
        // The user may have had one of that name before.
        None => now.is_none(),
        Some(seen) => {
            let put_then = seen.split(' ').nth(1);
            now.is_some() && now.as_deref() == put_then
        }
    };
    let changed = ours && put(c, skill, Op::Add)?.is_some();
    let kept = if ours { state(c, skill)? } else { None };
    let value = format!("{etag} {}", kept.as_deref().unwrap_or("-"));
    c.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
        .execute([key, &value])?;
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{SkillRepository, Trust};

    fn version(number: u32) -> String {
        serde_json::json!({
            "name": "Shipped", "description": "Comes along.", "source": "system",
            "version": format!("{number}.0.0"),
            "artifacts": [{"kind": "description", "name": "Overview",
                           "content": format!("Text {number}.\n")}],
        })
        .to_string()
    }

    fn shipped(store: &Store) -> Option<Package> {
        store.get_skill_by_name("Shipped").unwrap()
    }

    #[test]
    fn what_ships_arrives_and_is_refreshed_unless_the_user_touched_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agents.db"), Trust::Own).unwrap();
        assert_eq!(store.refresh(&[&version(1)]).unwrap(), 1);
        assert_eq!(store.refresh(&[&version(1)]).unwrap(), 0);
        assert_eq!(store.refresh(&[&version(2)]).unwrap(), 1);
        let package = shipped(&store).unwrap();
        assert_eq!(
            (&*package.version, package.source),
            ("2.0.0", Source::System)
        );
        // An edit stays, whatever ships.
        let first = package.artifacts[0].clone();
        let mut edited = first.clone();
        edited.content = "Mine.\n".to_owned();
        store.update_artifact(first.id.unwrap(), &edited).unwrap();
        for number in 3..5 {
            assert_eq!(store.refresh(&[&version(number)]).unwrap(), 0);
            assert_eq!(shipped(&store).unwrap().artifacts[0].content, "Mine.\n");
        }
    }

    #[test]
    fn what_the_user_removed_or_had_before_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("agents.db"), Trust::Own).unwrap();
        store.refresh(&[&version(1)]).unwrap();
        let id = shipped(&store).unwrap().id.unwrap();
        assert!(store.delete_skill(id).unwrap());
        assert_eq!(store.refresh(&[&version(2)]).unwrap(), 0);
        assert_eq!(shipped(&store), None);

        let other = Store::open(&folder.path().join("other.db"), Trust::Own).unwrap();
        let mut own = Package::from_json(version(9).as_bytes()).unwrap();
        own.source = Source::User;
        other.create_skill(&own).unwrap();
        assert_eq!(other.refresh(&[&version(1)]).unwrap(), 0);
        assert_eq!(other.refresh(&[&version(2)]).unwrap(), 0);
        assert_eq!(shipped(&other).unwrap().version, "9.0.0");
    }

    #[test]
    fn everything_that_ships_is_a_package() {
        for json in SYSTEM {
            let package = Package::from_json(json.as_bytes()).unwrap();
            assert_eq!(package.source, Source::System, "{}", package.name);
        }
    }
}
