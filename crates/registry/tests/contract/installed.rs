//! Where installed skills came from.

use repertoire_core::{Digest, RelPath, SkillId};
use repertoire_registry::{
    HistoryPolicy,
    store::{
        EventCursor, InstalledFrom, OriginChange, RetentionPolicy, SkillWrite, Store, WriteMode,
    },
};

use super::{StoreFactory, skills::new_skill};

fn installed(body: &str, pin: &str) -> SkillWrite {
    let skill = new_skill("a", body);
    let from = InstalledFrom {
        source: "acme/skills@a".to_owned(),
        skill: Some("a".to_owned()),
        resolved: "https://github.com/acme/skills.git".to_owned(),
        pin: pin.to_owned(),
        version: None,
        signer: None,
        files: skill.metadata().files.to_vec(),
    };
    SkillWrite {
        origin: OriginChange::Set(Box::new(from)),
        ..SkillWrite::put(skill)
    }
}

fn events(store: &dyn Store, cursor: &EventCursor) -> usize {
    store.events_since(cursor).unwrap().unwrap().events.len()
}

pub(super) fn the_origin_of_a_skill_stays_while_its_content_changes(factory: &dyn StoreFactory) {
    let store = factory.open();
    let id: SkillId = "a".parse().unwrap();
    let write = |write| store.write_skills(vec![write], WriteMode::Commit).unwrap();
    assert_eq!(store.installed_from(&id).unwrap(), None);
    assert_eq!(write(installed("one", "p1")), [Some(1)]);
    let first = store.installed_from(&id).unwrap().unwrap();
    assert_eq!(first.pin, "p1");
    assert_eq!(store.installed_digest(&id).unwrap(), Some(first.digest()));
    // The user changes it.
    assert_eq!(
        store.put_skills(vec![new_skill("a", "mine")]).unwrap(),
        [Some(2)]
    );
    assert_eq!(store.installed_from(&id).unwrap(), Some(first.clone()));
    // A new origin is an event even if the content is the same.
    let cursor = store.event_cursor().unwrap();
    let moved = SkillWrite {
        origin: OriginChange::Set(Box::new(InstalledFrom {
            pin: "p2".to_owned(),
            ..first.clone()
        })),
        ..SkillWrite::put(new_skill("a", "mine"))
    };
    assert_eq!(write(moved), [None]);
    assert_eq!(events(&*store, &cursor), 1);
    let handle = factory.open();
    assert_eq!(handle.all_installed().unwrap()[0].1.pin, "p2");
    assert_eq!(
        handle.installed_digests().unwrap(),
        [(id.clone(), first.digest())]
    );
    // A refused write changes no origin.
    let clash = SkillWrite {
        current: repertoire_registry::store::CurrentSkill::Absent,
        ..installed("three", "p3")
    };
    assert!(store.write_skills(vec![clash], WriteMode::Commit).is_err());
    store
        .write_skills(vec![installed("three", "p3")], WriteMode::DryRun)
        .unwrap();
    assert_eq!(store.installed_from(&id).unwrap().unwrap().pin, "p2");
    let own = SkillWrite {
        origin: OriginChange::Clear,
        ..SkillWrite::put(new_skill("a", "mine"))
    };
    write(own);
    assert_eq!(store.installed_from(&id).unwrap(), None);
}

pub(super) fn installed_files_stay_until_the_skill_is_removed(factory: &dyn StoreFactory) {
    let store = factory.open();
    let id: SkillId = "a".parse().unwrap();
    let write = installed("one", "p1");
    let base = write.skill.files()[&RelPath::document()].clone();
    let digest = Digest::hash_bytes(&base);
    store.write_skills(vec![write], WriteMode::Commit).unwrap();
    store.put_skills(vec![new_skill("a", "two")]).unwrap();
    let everything = RetentionPolicy {
        history: std::time::Duration::ZERO,
        min_revisions: 1,
        ..RetentionPolicy::default()
    };
    store
        .collect_garbage(&everything, WriteMode::Commit)
        .unwrap();
    assert_eq!(store.read_blob(&digest).unwrap(), Some(base));
    // The files of an origin need not be those of the skill.
    let other = new_skill("a", "three");
    let merged = SkillWrite {
        skill: new_skill("a", "merged"),
        base_files: other.files().clone(),
        ..installed("three", "p3")
    };
    store.write_skills(vec![merged], WriteMode::Commit).unwrap();
    let new_base = store.installed_from(&id).unwrap().unwrap().files[0].digest;
    assert!(store.read_blob(&new_base).unwrap().is_some());
    store.remove_skill(&id, HistoryPolicy::Purge).unwrap();
    assert_eq!(store.installed_digests().unwrap(), []);
    assert_eq!(store.read_blob(&new_base).unwrap(), None);
}
