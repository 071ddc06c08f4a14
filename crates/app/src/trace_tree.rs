//! The spans of a session as trees.

use std::collections::{HashMap, HashSet};

use repertoire_core::{ExecutionRecord, Span};
use serde::Serialize;
use uuid::Uuid;

/// Runs nest a few times; deeper data was not written by a run.
const MAX_TREE_DEPTH: usize = 64;

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
    into_nodes(roots, &mut parts, 0)
}

/// Each span is taken out once, and what is too deep is left out, so that no data can make this endless.
fn into_nodes(
    mut spans: Vec<Span>,
    parts: &mut HashMap<Uuid, Vec<Span>>,
    depth: usize,
) -> Vec<SpanNode> {
    spans.sort_by(|a, b| a.started_at.cmp(&b.started_at));
    let nodes = spans.into_iter().map(|span| {
        let children = parts.remove(&span.id).unwrap_or_default();
        let children = if depth < MAX_TREE_DEPTH {
            into_nodes(children, parts, depth + 1)
        } else {
            Vec::new()
        };
        SpanNode { span, children }
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use repertoire_core::{ModelUsage, SkillVersion, SpanKind};

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
    fn a_chain_of_spans_has_a_bounded_depth() {
        let chain = (0..60_000).map(|n| {
            let parent = (n > 0).then(|| n - 1);
            span(n, parent, SpanKind::Run, "a", "t")
        });
        let trees = span_trees(chain.collect(), &[]);
        assert!(!trees[0].contains(Uuid::from_u128(59_999)));
    }
}
