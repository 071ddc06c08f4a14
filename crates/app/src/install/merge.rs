//! Merges what a source changed and what the user changed since the skill was installed.
//!
//! Three states of each file are compared: as it was installed (base), as it is here (local), as the
//! source has it now (incoming). Text is merged line by line, and the frontmatter of the document
//! field by field. Invariant: what cannot be merged is a conflict that the user decides; no marker of
//! a conflict is ever part of a result.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use diffy::{ConflictStyle, MergeOptions};
use repertoire_core::{RelPath, frontmatter};
use serde::{Deserialize, Serialize};

use crate::SkillFiles;

/// Larger texts are not merged line by line.
const MAX_TEXT_BYTES: usize = 1024 * 1024;

/// Longer texts are not merged line by line either.
const MAX_LINES: usize = 5_000;

/// Whose state of a file is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConflictChoice {
    /// The state that the source has now.
    TakeRemote,
    /// The state that the user has.
    KeepLocal,
}

/// A file that both sides changed in ways that do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergeConflict {
    /// Its path.
    pub path: RelPath,
    /// What happened on both sides.
    pub reason: &'static str,
    /// All three states with marks between them, to look at; none for files that are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub marked: Option<String>,
}

/// What a merge came to.
#[derive(Debug, Clone, Default)]
pub struct MergeOutcome {
    /// The merged files; those in conflict are as they are locally.
    pub files: SkillFiles,
    /// The files that have to be decided.
    pub conflicts: Vec<MergeConflict>,
    /// The files in which changes of both sides were joined.
    pub merged: Vec<RelPath>,
}

/// Merges two changes of a set of files.
pub fn merge_files(
    base: &SkillFiles,
    local: &SkillFiles,
    incoming: &SkillFiles,
    choices: &BTreeMap<RelPath, ConflictChoice>,
) -> MergeOutcome {
    let paths: BTreeSet<&RelPath> = base
        .keys()
        .chain(local.keys())
        .chain(incoming.keys())
        .collect();
    let mut outcome = MergeOutcome::default();
    for path in paths {
        let (old, ours, theirs) = (base.get(path), local.get(path), incoming.get(path));
        let result = if ours == theirs || theirs == old {
            ours.cloned()
        } else if ours == old {
            theirs.cloned()
        } else {
            match merge_file(path, old, ours, theirs) {
                Ok(merged) => {
                    outcome.merged.push(path.clone());
                    Some(merged)
                }
                Err(conflict) => match choices.get(path) {
                    Some(ConflictChoice::TakeRemote) => theirs.cloned(),
                    Some(ConflictChoice::KeepLocal) => ours.cloned(),
                    None => {
                        outcome.conflicts.push(conflict);
                        ours.cloned()
                    }
                },
            }
        };
        if let Some(content) = result {
            outcome.files.insert(path.clone(), content);
        }
    }
    outcome
}

fn merge_file(
    path: &RelPath,
    old: Option<&Bytes>,
    ours: Option<&Bytes>,
    theirs: Option<&Bytes>,
) -> Result<Bytes, MergeConflict> {
    let conflict = |reason, marked| MergeConflict {
        path: path.clone(),
        reason,
        marked,
    };
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        let reason = match ours {
            None => "you removed it, and the source changed it",
            Some(_) => "you changed it, and the source removed it",
        };
        return Err(conflict(reason, None));
    };
    let read = |bytes: &Bytes| {
        let text = std::str::from_utf8(bytes).ok()?;
        (text.len() <= MAX_TEXT_BYTES && !text.contains('\0')).then(|| text.to_owned())
    };
    let no_text = "both changed it, and it is no text that can be merged";
    let (Some(our_text), Some(their_text)) = (read(ours), read(theirs)) else {
        return Err(conflict(no_text, None));
    };
    let old_text = match old {
        Some(old) => read(old).ok_or_else(|| conflict(no_text, None))?,
        None => String::new(),
    };
    let merged = if path.is_document() {
        merge_documents(&old_text, &our_text, &their_text)
    } else {
        merge_lines(&old_text, &our_text, &their_text)
    };
    merged.map(Bytes::from).ok_or_else(|| {
        let reason = match old {
            Some(_) => "both changed the same lines",
            None => "both added it, with other content",
        };
        conflict(
            reason,
            Some(mark_conflicts(&old_text, &our_text, &their_text)),
        )
    })
}

/// Merges lines; `None` if both changed the same ones.
fn merge_lines(old: &str, ours: &str, theirs: &str) -> Option<String> {
    if ours == theirs || theirs == old {
        return Some(ours.to_owned());
    }
    if ours == old {
        return Some(theirs.to_owned());
    }
    // The time for a comparison grows with the square of what differs.
    if [old, ours, theirs]
        .iter()
        .any(|text| text.lines().count() > MAX_LINES)
    {
        return None;
    }
    MergeOptions::new().merge(old, ours, theirs).ok()
}

/// Shows all three states of the lines that both changed.
fn mark_conflicts(old: &str, ours: &str, theirs: &str) -> String {
    if [old, ours, theirs]
        .iter()
        .any(|text| text.lines().count() > MAX_LINES)
    {
        return "(too long to be compared here)".to_owned();
    }
    let mut options = MergeOptions::new();
    options.set_conflict_style(ConflictStyle::Diff3);
    let (Ok(text) | Err(text)) = options.merge(old, ours, theirs);
    text
}

/// Merges documents: the frontmatter field by field, then the body line by line.
fn merge_documents(old: &str, ours: &str, theirs: &str) -> Option<String> {
    let split = |text| -> Option<(Fields<'_>, &str)> {
        let document = frontmatter::split_document(text).ok()?;
        // The fences are written anew, so they must be plain.
        if document.block.contains('\r') || !document.block.ends_with("\n---\n") {
            return None;
        }
        Some((Fields::parse(document.yaml)?, document.body))
    };
    let (Some(old_parts), Some(our_parts), Some(their_parts)) =
        (split(old), split(ours), split(theirs))
    else {
        return merge_lines(old, ours, theirs);
    };
    let fields = merge_fields(&old_parts.0, &our_parts.0, &their_parts.0)?;
    let body = merge_lines(old_parts.1, our_parts.1, their_parts.1)?;
    Some(format!("---\n{fields}---\n{body}"))
}

/// The fields of a frontmatter as they are written, each with the lines that belong to it.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    /// Splits a mapping into its fields; `None` if it is not written line by line.
    fn parse(yaml: &'a str) -> Option<Self> {
        let mut starts = Vec::new();
        let mut at = 0;
        for line in yaml.split_inclusive('\n') {
            let is_inner = line.starts_with([' ', '\t', '#', '-']) || line.trim().is_empty();
            if !is_inner {
                let (key, rest) = line.split_once(':')?;
                let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
                if key.is_empty()
                    || !key.chars().all(is_plain)
                    || !rest.starts_with([' ', '\n', '\r'])
                {
                    return None;
                }
                starts.push((key, at));
            } else if starts.is_empty() && !line.trim().is_empty() {
                return None;
            }
            at += line.len();
        }
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for (index, (key, from)) in starts.iter().enumerate() {
            let to = starts.get(index + 1).map_or(yaml.len(), |(_, next)| *next);
            if fields.iter().any(|(known, _)| known == key) {
                return None;
            }
            fields.push((key, yaml.get(*from..to)?));
        }
        Some(Self(fields))
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        let mut fields = self.0.iter();
        fields
            .find(|(known, _)| *known == key)
            .map(|(_, text)| *text)
    }
}

/// Merges fields in the order of the source; what only the user has comes last.
fn merge_fields(old: &Fields<'_>, ours: &Fields<'_>, theirs: &Fields<'_>) -> Option<String> {
    let mut text = String::new();
    let mut keys: Vec<&str> = theirs.0.iter().map(|(key, _)| *key).collect();
    let own = ours.0.iter().chain(&old.0).map(|(key, _)| *key);
    for key in own {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    for key in keys {
        let (before, our, their) = (old.get(key), ours.get(key), theirs.get(key));
        let merged = if our == their || their == before {
            our.map(str::to_owned)
        } else if our == before {
            their.map(str::to_owned)
        } else {
            match (key, our, their) {
                ("version", Some(our), Some(their)) => Some(highest_version(our, their).to_owned()),
                (_, Some(our), Some(their)) => {
                    Some(merge_lines(before.unwrap_or_default(), our, their)?)
                }
                _ => return None,
            }
        };
        if let Some(merged) = merged {
            text.push_str(&merged);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
    }
    Some(text)
}

/// Returns the line with the higher version; numbers are compared as numbers.
fn highest_version<'a>(ours: &'a str, theirs: &'a str) -> &'a str {
    let key = |line: &str| -> Vec<u64> {
        let version = line.split_once(':').map_or(line, |(_, value)| value);
        let parts = version.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    };
    if key(ours) > key(theirs) {
        ours
    } else {
        theirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> SkillFiles {
        let files = list.iter();
        files
            .map(|(path, text)| (path.parse().unwrap(), Bytes::from((*text).to_owned())))
            .collect()
    }

    fn merge(
        base: &[(&str, &str)],
        local: &[(&str, &str)],
        incoming: &[(&str, &str)],
    ) -> MergeOutcome {
        merge_files(
            &files(base),
            &files(local),
            &files(incoming),
            &BTreeMap::new(),
        )
    }

    const LINES: &str = "one\ntwo\nthree\nfour\nfive\n";

    #[test]
    fn changes_of_one_side_are_taken_as_they_are() {
        let outcome = merge(
            &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")],
            &[("a", "1"), ("b", "mine"), ("d", "1"), ("new", "mine")],
            &[("a", "theirs"), ("b", "1"), ("c", "1"), ("added", "theirs")],
        );
        assert!(outcome.conflicts.is_empty());
        let expected = files(&[
            ("a", "theirs"),
            ("b", "mine"),
            ("new", "mine"),
            ("added", "theirs"),
        ]);
        assert_eq!(outcome.files, expected);
    }

    #[test]
    fn changes_of_different_lines_are_joined() {
        let outcome = merge(
            &[("a", LINES)],
            &[("a", "ONE\ntwo\nthree\nfour\nfive\n")],
            &[("a", "one\ntwo\nthree\nfour\nFIVE\n")],
        );
        assert_eq!(
            outcome.files,
            files(&[("a", "ONE\ntwo\nthree\nfour\nFIVE\n")])
        );
        assert_eq!(outcome.merged.len(), 1);
    }

    #[test]
    fn conflicts_leave_no_marks_in_the_result() {
        let (base, local) = (
            [("a", LINES), ("b", "1"), ("c", "1")],
            [("a", "ONE\n"), ("c", "x")],
        );
        let incoming = [("a", "1\n"), ("b", "2")];
        let outcome = merge(&base, &local, &incoming);
        let paths: Vec<&str> = outcome
            .conflicts
            .iter()
            .map(|one| one.path.as_str())
            .collect();
        assert_eq!(paths, ["a", "b", "c"]);
        assert_eq!(outcome.files, files(&local));
        let marked = outcome.conflicts[0].marked.as_deref().unwrap();
        assert!(marked.contains("<<<<<<<") && marked.contains("|||||||"));
        let choices = [
            ("a", ConflictChoice::TakeRemote),
            ("b", ConflictChoice::TakeRemote),
            ("c", ConflictChoice::KeepLocal),
        ];
        let choices = choices
            .map(|(path, choice)| (path.parse().unwrap(), choice))
            .into();
        let decided = merge_files(&files(&base), &files(&local), &files(&incoming), &choices);
        assert!(decided.conflicts.is_empty());
        assert_eq!(
            decided.files,
            files(&[("a", "1\n"), ("b", "2"), ("c", "x")])
        );
    }

    #[test]
    fn frontmatter_is_merged_field_by_field() {
        let base = "---\nname: a\ndescription: Old.\nversion: 1.2.0\n---\n# A\n\nText.\n";
        let local =
            "---\nname: a\ndescription: Mine.\nversion: 1.10.0\nowner: me\n---\n# A\n\nText.\n";
        let incoming = "---\nname: a\nlicense: MIT\ndescription: Old.\nversion: 1.9.0\nmetadata:\n  \
                        x: 1\n---\n# A\n\nNew text.\n";
        let outcome = merge(
            &[("SKILL.md", base)],
            &[("SKILL.md", local)],
            &[("SKILL.md", incoming)],
        );
        assert!(outcome.conflicts.is_empty());
        let merged = "---\nname: a\nlicense: MIT\ndescription: Mine.\nversion: 1.10.0\nmetadata:\n  x: \
                      1\nowner: me\n---\n# A\n\nNew text.\n";
        assert_eq!(outcome.files, files(&[("SKILL.md", merged)]));
        // The same field with two new values is a conflict.
        let theirs = base.replace("Old.", "Theirs.");
        let outcome = merge(
            &[("SKILL.md", base)],
            &[("SKILL.md", local)],
            &[("SKILL.md", &theirs)],
        );
        assert_eq!(outcome.conflicts.len(), 1);
        assert_eq!(outcome.files, files(&[("SKILL.md", local)]));
    }

    #[test]
    fn binary_files_are_never_mixed() {
        let path: RelPath = "a".parse().unwrap();
        let set = |bytes: &'static [u8]| -> SkillFiles {
            [(path.clone(), Bytes::from_static(bytes))].into()
        };
        let outcome = merge_files(
            &set(b"\x00a"),
            &set(b"\x00b"),
            &set(b"\x00c"),
            &BTreeMap::new(),
        );
        assert_eq!(outcome.conflicts.len(), 1);
        assert_eq!(outcome.files, set(b"\x00b"));
    }
}
