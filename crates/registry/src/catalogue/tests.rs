use super::*;
use crate::head::Head;

fn entry(id: &str, origin: Origin, trusted: Trusted, body: &str) -> Entry {
    let id: SkillId = id.parse().unwrap();
    Entry {
        head: Arc::new(Head::of_body(&id, body, "")),
        id,
        origin,
        trusted,
        location: Location::State(crate::Scope::Account),
    }
}

fn put(id: &str, origin: Origin, trusted: Trusted) -> Change {
    Change::PutSkill(entry(id, origin, trusted, "# x\n"), Again::Ignore)
}

#[test]
fn precedence_is_that_of_the_design() {
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
        catalogue.apply([put("a", origin, trusted)]);
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
fn a_step_is_atomic_and_old_snapshots_stay() {
    let catalogue = Catalogue::new();
    catalogue.apply([
        put("a", Origin::State, Trusted::Yes),
        put("b", Origin::State, Trusted::Yes),
    ]);
    let before = catalogue.snapshot();
    catalogue.apply([
        Change::RemoveSkill("a".parse().unwrap(), Origin::State),
        put("c", Origin::State, Trusted::Yes),
    ]);
    let ids = |s: &Snapshot| s.skills().map(|e| e.id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&before), ["a", "b"]);
    assert_eq!(ids(&catalogue.snapshot()), ["b", "c"]);
    assert_eq!(catalogue.snapshot().seq(), 4);
}

#[test]
fn nothing_new_is_no_event() {
    let catalogue = Catalogue::new();
    catalogue.apply([put("a", Origin::State, Trusted::Yes)]);
    catalogue.apply([
        put("a", Origin::State, Trusted::Yes),
        Change::RemoveSkill("zz".parse().unwrap(), Origin::State),
    ]);
    assert_eq!(catalogue.snapshot().seq(), 1);
}

#[test]
fn pages_follow_each_other() {
    let catalogue = Catalogue::new();
    let names: Vec<String> = (0..25).map(|n| format!("s{n:02}")).collect();
    catalogue.apply(names.iter().map(|n| put(n, Origin::State, Trusted::Yes)));
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
fn a_follower_too_far_behind_is_told() {
    let catalogue = Catalogue::new();
    let item = entry("a", Origin::State, Trusted::Yes, "# x\n");
    catalogue.apply((0..=KEEP).map(|_| Change::PutSkill(item.clone(), Again::Tell)));
    assert_eq!(catalogue.wait(0, Duration::ZERO), Err(Lagged));
    assert_eq!(catalogue.wait(1, Duration::ZERO).unwrap().len(), KEEP);
}
