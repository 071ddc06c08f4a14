//! The spans of a session as trees, and the model calls that belong to no artifact.

use std::collections::{BTreeMap, HashMap, HashSet};

use repertoire_core::{ExecutionRecord, ModelUsage, Span, SpanKind};
use serde::Serialize;
use uuid::Uuid;

/// A span with the spans it consists of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpanNode {
    /// The span.
    #[serde(flatten)]
    pub span: Span,
    /// Its parts, in the order in which they began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<SpanNode>,
}

impl SpanNode {
    /// Whether the span with this id is in the tree.
    pub fn contains(&self, id: Uuid) -> bool {
        self.span.id == id || self.children.iter().any(|child| child.contains(id))
    }
}

/// Builds the trees of a session from what its store returns, newest first. A span whose parent is not
/// there is a root.
pub fn span_trees(spans: Vec<Span>, records: &[ExecutionRecord]) -> Vec<SpanNode> {
    let mut all = spans;
    all.extend(records.iter().map(Span::from));
    // What began within one millisecond stays in the order in which it was stored.
    all.reverse();
    let ids: HashSet<Uuid> = all.iter().map(|span| span.id).collect();
    let mut roots = Vec::new();
    let mut parts: HashMap<Uuid, Vec<Span>> = HashMap::new();
    for span in all {
        match span.parent.filter(|parent| ids.contains(parent)) {
            Some(parent) => parts.entry(parent).or_default().push(span),
            None => roots.push(span),
        }
    }
    into_nodes(roots, &mut parts)
}

/// Each span is taken out once, so that no data can make this endless.
fn into_nodes(mut spans: Vec<Span>, parts: &mut HashMap<Uuid, Vec<Span>>) -> Vec<SpanNode> {
    spans.sort_by(|a, b| a.started_at.cmp(&b.started_at));
    let nodes = spans.into_iter().map(|span| {
        let children = parts.remove(&span.id).unwrap_or_default();
        SpanNode {
            children: into_nodes(children, parts),
            span,
        }
    });
    nodes.collect()
}

/// Model calls of one purpose within one run that belong to no artifact: decisions, answers without a
/// skill, programs that are optimized.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallGroup {
    /// The session.
    pub session_id: String,
    /// The span the calls are part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// The command: `ask`, `eval`, `optimize`, or the skill.
    pub run: String,
    /// Why the model was called.
    pub purpose: String,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// When the first call began.
    pub started_at: String,
    /// How many calls there were.
    pub calls: usize,
    /// How many of them failed.
    pub errors: usize,
    /// The duration of each call.
    #[serde(skip)]
    pub durations: Vec<u64>,
    /// The sum of the durations.
    pub duration_ms: u64,
    /// The sum of tokens and cost.
    #[serde(flatten)]
    pub usage: ModelUsage,
}

/// Groups the model calls that belong to no artifact, newest first.
///
/// The tokens of an artifact's own calls are in its record.
pub fn calls_without_artifact(spans: &[Span]) -> Vec<CallGroup> {
    let runs: HashMap<Uuid, &str> = spans
        .iter()
        .filter(|span| span.kind == SpanKind::Run)
        .map(|span| (span.id, &*span.name))
        .collect();
    let mut groups: BTreeMap<_, CallGroup> = BTreeMap::new();
    let calls = spans.iter().filter(|s| s.kind == SpanKind::ModelCall);
    for call in calls {
        let Some(run) = call.parent.and_then(|parent| runs.get(&parent)) else {
            continue;
        };
        let key = (call.session_id.clone(), call.parent, call.name.clone());
        let group = groups.entry(key).or_insert_with(|| CallGroup {
            session_id: call.session_id.clone(),
            parent: call.parent,
            run: (*run).to_owned(),
            purpose: call.name.clone(),
            model_id: call.model_id.clone(),
            started_at: call.started_at.clone(),
            calls: 0,
            errors: 0,
            durations: Vec::new(),
            duration_ms: 0,
            usage: ModelUsage::default(),
        });
        if call.started_at < group.started_at {
            group.started_at.clone_from(&call.started_at);
        }
        group.calls += 1;
        group.errors += usize::from(call.error.is_some());
        group.durations.push(call.duration_ms);
        group.duration_ms += call.duration_ms;
        group.usage.add_usage(call.usage);
    }
    let mut groups: Vec<CallGroup> = groups.into_values().collect();
    groups.sort_by(|a, b| b.started_at.cmp(&a.started_at));
    groups
}

#[cfg(test)]
mod tests {
    use repertoire_core::SkillVersion;

    use super::*;

    fn span(id: u128, parent: Option<u128>, kind: SpanKind, name: &str, at: &str) -> Span {
        Span {
            id: Uuid::from_u128(id),
            session_id: "s".to_owned(),
            parent: parent.map(Uuid::from_u128),
            kind,
            name: name.to_owned(),
            skill: None,
            version: SkillVersion::default(),
            started_at: at.to_owned(),
            completed_at: at.to_owned(),
            duration_ms: 5,
            input: None,
            output: None,
            error: None,
            code: None,
            model_id: None,
            usage: ModelUsage {
                input_tokens: Some(10),
                output_tokens: Some(1),
                cost: None,
            },
        }
    }

    #[test]
    fn spans_form_trees_in_order() {
        let spans = vec![
            span(3, Some(1), SpanKind::ModelCall, "answer", "t2"),
            span(1, None, SpanKind::Run, "ask", "t1"),
            span(2, Some(1), SpanKind::ModelCall, "decision", "t2"),
            span(4, Some(99), SpanKind::Run, "orphan", "t4"),
        ];
        let trees = span_trees(spans, &[]);
        let names: Vec<_> = trees.iter().map(|tree| &*tree.span.name).collect();
        assert_eq!(names, ["ask", "orphan"]);
        let parts: Vec<_> = trees[0].children.iter().map(|c| &*c.span.name).collect();
        assert_eq!(parts, ["decision", "answer"]);
        assert!(trees[0].contains(Uuid::from_u128(3)) && !trees[1].contains(Uuid::from_u128(3)));
    }

    #[test]
    fn spans_that_contain_each_other_end() {
        let spans = vec![
            span(1, Some(2), SpanKind::Run, "a", "t1"),
            span(2, Some(1), SpanKind::Run, "b", "t2"),
        ];
        assert_eq!(span_trees(spans, &[]), []);
    }

    #[test]
    fn calls_of_artifacts_are_not_counted_twice() {
        let spans = vec![
            span(1, None, SpanKind::Run, "ask", "t1"),
            span(2, Some(1), SpanKind::ModelCall, "decision", "t2"),
            span(3, Some(1), SpanKind::ModelCall, "decision", "t3"),
            // The parent is the record of an artifact.
            span(4, Some(77), SpanKind::ModelCall, "prompt", "t4"),
        ];
        let groups = calls_without_artifact(&spans);
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].calls, &*groups[0].run), (2, "ask"));
        assert_eq!(groups[0].usage.input_tokens, Some(20));
    }
}
