//! The files of a place before any of them is used: names first, contents on demand.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

/// What a name in a tree stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TreeEntry {
    /// A regular file, with its object in a git repository.
    File { object: Option<String> },
    /// A link, a submodule, a device: never part of a skill.
    Other(&'static str),
}

/// The names of a place, and the contents that are already here.
#[derive(Debug, Default)]
pub(crate) struct FileTree {
    pub(crate) entries: BTreeMap<String, TreeEntry>,
    pub(crate) contents: BTreeMap<String, Bytes>,
}

impl FileTree {
    pub(crate) fn insert_file(&mut self, path: String, content: Bytes) {
        let entry = TreeEntry::File { object: None };
        self.entries.insert(path.clone(), entry);
        self.contents.insert(path, content);
    }

    /// Returns the entries beneath a folder with their paths relative to it. The root is written as
    /// an empty text.
    pub(crate) fn entries_beneath(&self, folder: &str) -> Vec<(&str, &TreeEntry)> {
        let prefix = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let after = self.entries.range::<str, _>(from);
        after
            .map_while(|(path, entry)| Some((path.strip_prefix(prefix.as_str())?, entry)))
            .collect()
    }

    /// Removes one folder that everything is in, as archives of repositories have.
    pub(crate) fn without_wrapper(self) -> Self {
        let mut tops = self.entries.keys().map(|path| path.split_once('/'));
        let Some(Some((top, _))) = tops.next() else {
            return self;
        };
        let top = top.to_owned();
        if !tops.all(|split| split.is_some_and(|(first, _)| first == top)) {
            return self;
        }
        if self.entries.contains_key(&format!("{top}/SKILL.md")) {
            // The folder is the skill, and names it.
            return self;
        }
        let strip = |path: String| path[top.len() + 1..].to_owned();
        Self {
            entries: self
                .entries
                .into_iter()
                .map(|(p, e)| (strip(p), e))
                .collect(),
            contents: self
                .contents
                .into_iter()
                .map(|(p, c)| (strip(p), c))
                .collect(),
        }
    }
}
