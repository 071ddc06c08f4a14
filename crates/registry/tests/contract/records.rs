//! Traces, checkpoints, tokens and notes.

use repertoire_core::{
    ArtifactKind, Digest, ExecutionRecord, RecordDetails, permission::Permission,
};
use repertoire_registry::{
    Error,
    store::{StoredToken, TraceFilter},
};

use super::StoreFactory;

const FIRST: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: &str = "aaaa0000-0000-4000-8000-000000000002";

fn record(id: &str, session: &str, at: &str) -> ExecutionRecord {
    ExecutionRecord {
        id: id.parse().unwrap(),
        session_id: session.into(),
        skill_id: "uuid-of-skill".into(),
        artifact_id: "uuid-of-artifact".into(),
        artifact_kind: ArtifactKind::DspyModule,
        rendered_input: Some("in".into()),
        raw_output: None,
        error: Some("failed".into()),
        started_at: at.into(),
        completed_at: None,
        duration_ms: Some(12),
        input_tokens: Some(u64::MAX / 4),
        output_tokens: None,
        model_id: Some("a/b".into()),
        estimated_cost: Some(0.1),
        assertions_run: 2,
        assertions_passed: 1,
        details: RecordDetails {
            skill: "demo".into(),
            artifact: "Ask".into(),
            code: Some("provider_error".into()),
            ..RecordDetails::default()
        },
    }
}

pub(super) fn traces_are_filtered_found_and_deleted(factory: &dyn StoreFactory) {
    let store = factory.open();
    let all = [
        record(FIRST, "s1", "2026-01-01T00:00:00.000Z"),
        record(SECOND, "s2", "2026-01-02T00:00:00.000Z"),
    ];
    for one in &all {
        store.put_trace(one.clone()).unwrap();
    }
    drop(store);
    let store = factory.open();
    let [first, second] = all;
    let list = |filter: TraceFilter| store.traces(&filter).unwrap();
    let newest_first = [second.clone(), first.clone()];
    assert_eq!(list(TraceFilter::default()), newest_first);
    for skill in ["demo", "uuid-of-skill"] {
        let filter = TraceFilter {
            skill: Some(skill.to_owned()),
            limit: Some(1),
            ..TraceFilter::default()
        };
        assert_eq!(list(filter), std::slice::from_ref(&second));
    }
    let of_session = TraceFilter {
        session: Some("s1".to_owned()),
        ..TraceFilter::default()
    };
    assert_eq!(list(of_session), std::slice::from_ref(&first));
    let since = TraceFilter {
        since: Some("2026-01-02T00:00:00.000Z".to_owned()),
        ..TraceFilter::default()
    };
    assert_eq!(list(since), std::slice::from_ref(&second));
    assert_eq!(store.find_trace(FIRST).unwrap(), Some(first));
    let ambiguous = store.find_trace("aaaa");
    assert!(
        matches!(ambiguous, Err(Error::AmbiguousTrace(_))),
        "{ambiguous:?}"
    );
    // Prefixes are compared literally, not as patterns.
    for missing in ["zz", "%", "aaaa____"] {
        assert_eq!(store.find_trace(missing).unwrap(), None);
    }
    assert_eq!(store.delete_traces("2026-01-02T00:00:00.000Z").unwrap(), 1);
    assert_eq!(list(TraceFilter::default()), [second]);
}

pub(super) fn checkpoints_are_kept_by_session_artifact_and_name(factory: &dyn StoreFactory) {
    let store = factory.open();
    store.put_checkpoint("s", "a", "n", "1").unwrap();
    store.put_checkpoint("s", "a", "n", "2").unwrap();
    store.put_checkpoint("s", "b", "n", "3").unwrap();
    drop(store);
    let store = factory.open();
    let read = |session: &str, artifact: &str, name: &str| {
        store.checkpoint(session, artifact, name).unwrap()
    };
    assert_eq!(read("s", "a", "n").as_deref(), Some("2"));
    assert_eq!(read("s", "b", "n").as_deref(), Some("3"));
    assert_eq!(read("s", "a", "other"), None);
    assert_eq!(read("t", "a", "n"), None);
}

pub(super) fn tokens_have_unique_names(factory: &dyn StoreFactory) {
    let store = factory.open();
    let token = |name: &str, expires_at: Option<&str>| StoredToken {
        name: name.to_owned(),
        hash: Digest::hash_bytes(name.as_bytes()),
        permissions: Permission::Write.into(),
        prefixes: vec!["acme/**".parse().unwrap()],
        tools: vec!["skill_run".to_owned()],
        lost_run: false,
        created_at: "2026-01-01T00:00:00.000Z".to_owned(),
        expires_at: expires_at.map(str::to_owned),
    };
    store.add_token(&token("b", None)).unwrap();
    store
        .add_token(&token("a", Some("2026-01-01T00:00:01.000Z")))
        .unwrap();
    let twice = store.add_token(&token("b", None));
    assert!(
        matches!(twice, Err(Error::AlreadyExists { what: "token", .. })),
        "{twice:?}"
    );
    // The name of an expired token can be reused.
    let later = token("a", Some("9999-01-01T00:00:00.000Z"));
    store.add_token(&later).unwrap();
    assert_eq!(store.tokens().unwrap(), [later, token("b", None)]);
    assert!(store.revoke_token("a").unwrap());
    assert!(!store.revoke_token("a").unwrap());
    assert_eq!(store.tokens().unwrap(), [token("b", None)]);
}

pub(super) fn notes_are_replaced(factory: &dyn StoreFactory) {
    let store = factory.open();
    assert_eq!(store.note("n").unwrap(), None);
    store.put_note("n", "1").unwrap();
    store.put_note("n", "2").unwrap();
    assert_eq!(factory.open().note("n").unwrap().as_deref(), Some("2"));
}

pub(super) fn the_id_of_a_store_does_not_change(factory: &dyn StoreFactory) {
    let id = factory.open().store_id().unwrap();
    assert!(!id.is_empty());
    assert_eq!(factory.open().store_id().unwrap(), id);
    assert!(!factory.open().location().is_empty());
}
