//! Traces in the store, and the artifacts of a skill.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::sync::Arc;

use repertoire_core::{ArtifactKind, ExecutionRecord, Package, RecordDetails};
use repertoire_registry::{Registry, RegistrySettings, StoreScope, store::TraceFilter};
use serde_json::json;

const FIRST: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: &str = "aaaa0000-0000-4000-8000-000000000002";
const THIRD: &str = "bbbb0000-0000-4000-8000-000000000003";

fn open_registry(folder: &std::path::Path) -> Arc<Registry> {
    let settings = RegistrySettings {
        account: Some(folder.into()),
        ..RegistrySettings::default()
    };
    Registry::open(settings).unwrap()
}

fn trace_record(id: &str, session: &str, at: &str) -> ExecutionRecord {
    ExecutionRecord {
        id: id.parse().unwrap(),
        session_id: session.into(),
        skill_id: "uuid-of-skill".into(),
        artifact_id: "uuid-of-artifact".into(),
        artifact_kind: ArtifactKind::PromptTemplate,
        rendered_input: Some("in".into()),
        raw_output: Some("out".into()),
        error: None,
        started_at: at.into(),
        completed_at: Some(at.into()),
        duration_ms: Some(12),
        input_tokens: Some(3),
        output_tokens: None,
        model_id: Some("a/b".into()),
        estimated_cost: Some(0.5),
        assertions_run: 2,
        assertions_passed: 1,
        details: RecordDetails {
            skill: "demo".into(),
            artifact: "Ask".into(),
            ..RecordDetails::default()
        },
    }
}

#[test]
fn stored_traces_read_back_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let all = [
        trace_record(FIRST, "s1", "2026-01-01T00:00:00.000Z"),
        trace_record(SECOND, "s1", "2026-01-02T00:00:00.000Z"),
        trace_record(THIRD, "s2", "2026-01-03T00:00:00.000Z"),
    ];
    let registry = open_registry(folder.path());
    for trace in &all {
        registry.put_trace(trace.clone()).unwrap();
    }
    drop(registry);
    let registry = open_registry(folder.path());
    let list = |filter: TraceFilter| -> Vec<String> {
        registry
            .traces(&filter)
            .unwrap()
            .into_iter()
            .map(|t| t.id.to_string())
            .collect()
    };
    assert_eq!(list(TraceFilter::default()), [THIRD, SECOND, FIRST]);
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        list(TraceFilter {
            session: some("s1"),
            limit: Some(1),
            ..TraceFilter::default()
        }),
        [SECOND]
    );
    assert_eq!(
        list(TraceFilter {
            skill: some("demo"),
            ..TraceFilter::default()
        })
        .len(),
        3
    );
    assert_eq!(
        list(TraceFilter {
            skill: some("uuid-of-skill"),
            ..TraceFilter::default()
        })
        .len(),
        3
    );
    assert!(
        list(TraceFilter {
            skill: some("other"),
            ..TraceFilter::default()
        })
        .is_empty()
    );
    let since = TraceFilter {
        since: some("2026-01-02T00:00:00.000Z"),
        ..TraceFilter::default()
    };
    assert_eq!(list(since).len(), 2);
    assert_eq!(registry.find_trace("bbbb").unwrap().as_ref(), Some(&all[2]));
    assert_eq!(registry.find_trace(FIRST).unwrap().as_ref(), Some(&all[0]));
    assert!(
        registry
            .find_trace("aaaa")
            .unwrap_err()
            .to_string()
            .contains("more than one")
    );
    assert_eq!(registry.find_trace("zz").unwrap(), None);
    // Id prefixes are compared literally, not as patterns.
    assert_eq!(registry.find_trace("%").unwrap(), None);
    assert_eq!(
        registry.delete_traces("2026-01-03T00:00:00.000Z").unwrap(),
        2
    );
    assert_eq!(list(TraceFilter::default()), [THIRD]);
}

#[test]
fn artifacts_are_listed_without_their_contents() {
    let folder = tempfile::tempdir().unwrap();
    let registry = open_registry(folder.path());
    let json = json!({
        "name": "Parts", "description": "d", "artifacts": [
            {"kind": "prompt_template", "name": "Ask", "ordinal": 2, "content": "{{ x }}"},
            {"kind": "description", "name": "Overview", "ordinal": 0, "content": "About.\n"},
            {"kind": "prompt_template", "name": "Ask", "ordinal": 2, "content": "claude",
             "model_variant": "anthropic"},
        ],
    });
    let package = Package::from_json(json.to_string().as_bytes()).unwrap();
    let new = repertoire_registry::store::NewSkill::from_package(&package).unwrap();
    registry.add_skills(StoreScope::Account, vec![new]).unwrap();
    let snapshot = registry.snapshot();
    let entry = snapshot.get(&"parts".parse().unwrap()).unwrap();
    let parts = registry.skill_artifacts(entry).unwrap();
    assert_eq!(parts.skill_id, package.uuid().to_string());
    let names: Vec<&str> = parts
        .artifacts
        .iter()
        .map(|(_, a)| a.name.as_str())
        .collect();
    assert_eq!(names, ["Overview", "Ask", "Ask"]);
    assert!(
        parts
            .artifacts
            .iter()
            .all(|(_, artifact)| artifact.content.is_empty())
    );
    let contents: Vec<String> = parts
        .artifacts
        .iter()
        .map(|(_, artifact)| registry.artifact_content(entry, artifact).unwrap())
        .collect();
    assert_eq!(contents, ["About.\n", "{{ x }}", "claude"]);
}
