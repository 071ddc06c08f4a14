//! Any text yields a bounded summary, one index line and findings with valid line numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::{
    RelPath,
    lint::{LintSubject, lint_skill},
    markdown::{MarkdownSummary, SUMMARY_CHARS},
    surface::{IndexEntry, IndexSection, render_index},
};

fuzz_target!(|text: &str| {
    let summary = MarkdownSummary::from_markdown(text);
    for part in [&summary.title, &summary.summary].into_iter().flatten() {
        assert!(part.chars().count() <= SUMMARY_CHARS && !part.contains('\n'));
    }
    let id = "fuzz".parse().unwrap();
    let listed = render_index([IndexEntry {
        id: &id,
        title: summary.title.as_deref(),
        description: Some(text),
        section: IndexSection::Registered,
    }]);
    assert_eq!(listed.lines().count(), 3);
    let path = RelPath::document();
    let mut subject = LintSubject::default();
    subject.add_file(&path, text.as_bytes());
    for finding in lint_skill(&subject) {
        assert!(finding.line >= 1 && finding.line <= text.lines().count().max(1) + 1);
    }
});
