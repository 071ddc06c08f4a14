//! What differs between two sets of files.

use std::{collections::BTreeSet, time::Duration};

use repertoire_core::RelPath;
use serde::Serialize;
use similar::TextDiff;

use crate::SkillFiles;

/// Larger files are only said to differ.
const MAX_TEXT_BYTES: usize = 1024 * 1024;
/// A comparison that takes longer is finished coarsely.
const MAX_TIME: Duration = Duration::from_secs(2);

/// How a file differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChange {
    /// Only the new set has it.
    Added,
    /// Only the old set has it.
    Removed,
    /// Both have it, with other content.
    Changed,
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileDiff {
    /// Its path.
    pub path: RelPath,
    /// How it differs.
    pub change: FileChange,
    /// The lines that differ, in the unified format; none for files that are no text.
    pub text: Option<String>,
}

/// Compares two sets of files; equal sets give an empty list.
pub fn diff_files(old: &SkillFiles, new: &SkillFiles) -> Vec<FileDiff> {
    let paths: BTreeSet<&RelPath> = old.keys().chain(new.keys()).collect();
    let mut differences = Vec::new();
    for path in paths {
        let (before, after) = (old.get(path), new.get(path));
        let change = match (before, after) {
            (Some(before), Some(after)) if before == after => continue,
            (Some(_), Some(_)) => FileChange::Changed,
            (None, _) => FileChange::Added,
            (_, None) => FileChange::Removed,
        };
        let read = |bytes: Option<&bytes::Bytes>| {
            let bytes = bytes.map(AsRef::as_ref).unwrap_or_default();
            let text = std::str::from_utf8(bytes).ok().map(str::to_owned);
            text.filter(|text| text.len() <= MAX_TEXT_BYTES && !text.contains('\0'))
        };
        let text = read(before).zip(read(after)).map(|(before, after)| {
            let mut config = TextDiff::configure();
            let diff = config.timeout(MAX_TIME).diff_lines(&before, &after);
            let mut unified = diff.unified_diff();
            let (old, new) = match change {
                FileChange::Added => ("/dev/null", path.as_str()),
                FileChange::Removed => (path.as_str(), "/dev/null"),
                FileChange::Changed => (path.as_str(), path.as_str()),
            };
            unified.header(old, new).to_string()
        });
        differences.push(FileDiff {
            path: path.clone(),
            change,
            text,
        });
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_difference_is_found() {
        let set = |files: &[(&str, &[u8])]| -> SkillFiles {
            let files = files.iter();
            files
                .map(|(path, bytes)| (path.parse().unwrap(), bytes.to_vec().into()))
                .collect()
        };
        let old = set(&[
            ("a", b"one\ntwo\n"),
            ("b", b"x"),
            ("same", b"s"),
            ("z", &[0xff]),
        ]);
        let new = set(&[
            ("a", b"one\n2\n"),
            ("c", b"y"),
            ("same", b"s"),
            ("z", &[0xfe]),
        ]);
        let found = diff_files(&old, &new);
        let kinds: Vec<_> = found
            .iter()
            .map(|one| (one.path.as_str(), one.change))
            .collect();
        assert_eq!(
            kinds,
            [
                ("a", FileChange::Changed),
                ("b", FileChange::Removed),
                ("c", FileChange::Added),
                ("z", FileChange::Changed),
            ]
        );
        let text = found[0].text.as_deref().unwrap();
        assert!(text.contains("-two\n+2\n"), "{text}");
        assert_eq!(found[3].text, None);
        assert_eq!(diff_files(&old, &old), []);
    }
}
