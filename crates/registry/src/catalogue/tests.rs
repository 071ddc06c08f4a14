use super::*;
use crate::skill_metadata::SkillMetadata;

fn test_entry(id: &str, origin: Origin, trusted: Trusted, body: &str) -> SkillEntry {
    let id: SkillId = id.parse().unwrap();
    SkillEntry {
        alias: None,
        metadata: Arc::new(SkillMetadata::from_registered_body(&id, body, "")),
        complete: None,
        id,
        origin,
        trusted,
        location: ContentLocation::State(crate::StoreScope::Account),
    }
}

fn put_change(id: &str, origin: Origin, trusted: Trusted) -> CatalogueChange {
    CatalogueChange::PutSkill(
        test_entry(id, origin, trusted, "# x\n"),
        RepeatPolicy::Ignore,
    )
}

#[test]
fn entries_are_ordered_by_origin_and_trust() {
    let catalogue = Catalogue::new();
    let order = [
        (Origin::State, Trusted::Yes),
        (Origin::Workspace, Trusted::Yes),
        (Origin::Files(1), Trusted::Yes),
        (Origin::Files(2), Trusted::Yes),
        (Origin::Account, Trusted::Yes),
        (Origin::Files(3), Trusted::No),
    ];
    for (origin, trusted) in order.iter().rev().cloned() {
        catalogue.apply_changes([put_change("a", origin, trusted)]);
    }
    let snapshot = catalogue.snapshot();
    let found: Vec<_> = snapshot
        .all_skills()
        .map(|(e, _)| e.origin.clone())
        .collect();
    assert_eq!(found, order.map(|(origin, _)| origin));
    assert_eq!(snapshot.len(), 1);
}

#[test]
fn a_change_set_is_atomic_and_old_snapshots_stay_unchanged() {
    let catalogue = Catalogue::new();
    catalogue.apply_changes([
        put_change("a", Origin::State, Trusted::Yes),
        put_change("b", Origin::State, Trusted::Yes),
    ]);
    let before = catalogue.snapshot();
    catalogue.apply_changes([
        CatalogueChange::RemoveSkill("a".parse().unwrap(), Origin::State),
        put_change("c", Origin::State, Trusted::Yes),
    ]);
    let ids = |s: &Snapshot| s.skills().map(|e| e.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&before), ["a", "b"]);
    assert_eq!(ids(&catalogue.snapshot()), ["b", "c"]);
    assert_eq!(catalogue.snapshot().seq(), 4);
}

#[test]
fn unchanged_entries_cause_no_event() {
    let catalogue = Catalogue::new();
    catalogue.apply_changes([put_change("a", Origin::State, Trusted::Yes)]);
    catalogue.apply_changes([
        put_change("a", Origin::State, Trusted::Yes),
        CatalogueChange::RemoveSkill("zz".parse().unwrap(), Origin::State),
    ]);
    assert_eq!(catalogue.snapshot().seq(), 1);
}

#[test]
fn paging_visits_every_skill_once() {
    let catalogue = Catalogue::new();
    let names: Vec<String> = (0..25).map(|n| format!("s{n:02}")).collect();
    catalogue.apply_changes(
        names
            .iter()
            .map(|n| put_change(n, Origin::State, Trusted::Yes)),
    );
    let snapshot = catalogue.snapshot();
    let mut seen = Vec::new();
    let mut after: Option<SkillId> = None;
    loop {
        let page: Vec<_> = snapshot.skills_after(after.as_ref()).take(10).collect();
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        seen.extend(page.iter().map(|e| e.id.to_string()));
    }
    assert_eq!(seen, names);
}

#[test]
fn a_follower_too_far_behind_gets_lagged() {
    let catalogue = Catalogue::new();
    let item = test_entry("a", Origin::State, Trusted::Yes, "# x\n");
    catalogue.apply_changes(
        (0..=MAX_EVENTS).map(|_| CatalogueChange::PutSkill(item.clone(), RepeatPolicy::Notify)),
    );
    assert_eq!(catalogue.wait_events(0, Duration::ZERO), Err(Lagged));
    assert_eq!(
        catalogue.wait_events(1, Duration::ZERO).unwrap().len(),
        MAX_EVENTS
    );
}
