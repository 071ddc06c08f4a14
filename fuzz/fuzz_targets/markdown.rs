//! Any text has a bounded head, an index line of its own and findings with lines it has.
#![no_main]

use libfuzzer_sys::fuzz_target;
use repertoire_core::{
    RelPath,
    lint::{Subject, lint},
    markdown::{Head, SUMMARY_CHARS},
    surface::{IndexEntry, Section, index},
};

fuzz_target!(|text: &str| {
    let head = Head::of(text);
    for part in [&head.title, &head.summary].into_iter().flatten() {
        assert!(part.chars().count() <= SUMMARY_CHARS && !part.contains('\n'));
    }
    let id = "fuzz".parse().unwrap();
    let listed = index([IndexEntry {
        id: &id,
        title: head.title.as_deref(),
        description: Some(text),
        section: Section::Registered,
    }]);
    assert_eq!(listed.lines().count(), 3);
    let path = RelPath::document();
    let mut subject = Subject::default();
    subject.add(&path, text.as_bytes());
    for finding in lint(&subject) {
        assert!(finding.line >= 1 && finding.line <= text.lines().count().max(1) + 1);
    }
});
