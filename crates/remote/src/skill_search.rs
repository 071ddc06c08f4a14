//! Finds the skills of a tree, in the places where the common tools look.
//!
//! First: the root; `skills/` and the `skills` folders of hosts (`.agents/skills`, `.claude/skills` …)
//! three levels deep; the folders that plugin manifests name; `plugins/*/skills`; the folders of the
//! root. If nothing is there, everywhere. A skill within a skill belongs to the outer one.

use std::collections::{BTreeMap, HashMap};

use crate::{
    file_tree::{FileTree, TreeEntry},
    plugin::{PluginSkills, join},
};

/// How many folders below a usual place are searched.
const USUAL_DEPTH: usize = 3;
/// How many folders deep the search everywhere goes.
const ANYWHERE_DEPTH: usize = 6;

/// A folder with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkillFolder {
    /// The folder; empty for the root.
    pub(crate) folder: String,
    /// The path of its document.
    pub(crate) document: String,
    /// The plugin that names it.
    pub(crate) plugin: Option<String>,
}

/// Where a skill was found; the first wins among skills of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Root,
    Skills,
    Plugin,
    Host,
    Anywhere,
}

/// Returns the skills at and beneath a folder, those in better places first.
pub(crate) fn find_skill_folders(
    tree: &FileTree,
    root: &str,
    plugins: &PluginSkills,
) -> Vec<SkillFolder> {
    let mut documents: BTreeMap<&str, &str> = BTreeMap::new();
    let beneath = tree.entries_beneath(root);
    for (path, entry) in &beneath {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_document = matches!(name, "SKILL.md" | "skill.md" | "Skill.md");
        if !is_document || !matches!(entry, TreeEntry::File { .. }) || is_generated(folder) {
            continue;
        }
        // Where both spellings are, the right one counts.
        if name == "SKILL.md" || !documents.contains_key(folder) {
            documents.insert(folder, path);
        }
    }
    let found = |folder: &str, document: &str, plugin: Option<&str>| SkillFolder {
        folder: join_folder(root, folder),
        document: join(root, document),
        plugin: plugin.map(str::to_owned),
    };
    if let Some(document) = documents.get("") {
        return vec![found("", document, None)];
    }
    let by_folder: HashMap<&str, &str> = plugins
        .folders
        .iter()
        .map(|one| (one.folder.as_str(), one.plugin.as_str()))
        .collect();
    let mut usual: Vec<(Place, usize, SkillFolder)> = Vec::new();
    for (folder, document) in outermost(&documents) {
        let full = join_folder(root, folder);
        let plugin = find_plugin(&by_folder, &full);
        let place = usual_place(folder).or(plugin.map(|_| Place::Plugin));
        if let Some(place) = place {
            usual.push((place, depth(folder), found(folder, document, plugin)));
        }
    }
    if usual.is_empty() {
        for (folder, document) in outermost(&documents) {
            if depth(folder) <= ANYWHERE_DEPTH {
                usual.push((
                    Place::Anywhere,
                    depth(folder),
                    found(folder, document, None),
                ));
            }
        }
    }
    usual.sort_by(|a, b| (a.0, a.1, &a.2.folder).cmp(&(b.0, b.1, &b.2.folder)));
    usual.into_iter().map(|(_, _, skill)| skill).collect()
}

/// Returns the plugin whose folder is this one, or is a few levels above it.
fn find_plugin<'a>(by_folder: &HashMap<&str, &'a str>, folder: &str) -> Option<&'a str> {
    let above = folder.rmatch_indices('/').map(|(at, _)| &folder[..at]);
    let mut candidates = std::iter::once(folder).chain(above).take(USUAL_DEPTH + 1);
    candidates.find_map(|one| by_folder.get(one).copied())
}

/// Whether a folder is in one that tools write.
fn is_generated(folder: &str) -> bool {
    let generated = [
        "node_modules",
        ".git",
        "__pycache__",
        "dist",
        "build",
        "target",
    ];
    folder.split('/').any(|part| generated.contains(&part))
}

fn depth(folder: &str) -> usize {
    folder.split('/').count()
}

/// Returns the place of a folder if it is one where skills usually are.
fn usual_place(folder: &str) -> Option<Place> {
    let parts: Vec<&str> = folder.split('/').collect();
    match parts.as_slice() {
        [] => Some(Place::Root),
        ["skills", rest @ ..] if (1..=USUAL_DEPTH).contains(&rest.len()) => Some(Place::Skills),
        ["plugins", _, "skills", rest @ ..] if (1..=2).contains(&rest.len()) => Some(Place::Plugin),
        [host, "skills", rest @ ..]
            if host.starts_with('.') && (1..=USUAL_DEPTH).contains(&rest.len()) =>
        {
            Some(Place::Host)
        }
        [name] if !name.starts_with('.') => Some(Place::Skills),
        _ => None,
    }
}

/// Returns the folders that are within no other one.
fn outermost<'a>(documents: &'a BTreeMap<&str, &str>) -> Vec<(&'a str, &'a str)> {
    let is_inner = |folder: &str| {
        let outer = folder.match_indices('/').map(|(at, _)| &folder[..at]);
        outer.into_iter().any(|outer| documents.contains_key(outer))
    };
    let all = documents
        .iter()
        .map(|(folder, document)| (*folder, *document));
    all.filter(|(folder, _)| !is_inner(folder)).collect()
}

fn join_folder(root: &str, folder: &str) -> String {
    if folder.is_empty() {
        root.to_owned()
    } else {
        join(root, folder)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::plugin::PluginFolder;

    fn search(paths: &[&str], plugins: &[&str]) -> Vec<String> {
        let mut tree = FileTree::default();
        for path in paths {
            tree.insert_file((*path).to_owned(), Bytes::new());
        }
        let mut known = PluginSkills::default();
        known
            .folders
            .extend(plugins.iter().map(|folder| PluginFolder {
                folder: (*folder).to_owned(),
                plugin: "p".to_owned(),
            }));
        let found = find_skill_folders(&tree, "", &known);
        found.into_iter().map(|skill| skill.folder).collect()
    }

    #[test]
    fn skills_are_found_where_tools_look() {
        assert_eq!(search(&["SKILL.md", "skills/a/SKILL.md"], &[]), [""]);
        assert_eq!(
            search(
                &[
                    "skills/a/SKILL.md",
                    "skills/.curated/b/SKILL.md",
                    "skills/x/y/z/w/SKILL.md",
                    ".claude/skills/c/SKILL.md",
                    "d/skill.md",
                    "tests/fixtures/bad/SKILL.md",
                    "node_modules/e/SKILL.md",
                ],
                &[],
            ),
            ["d", "skills/a", "skills/.curated/b", ".claude/skills/c"]
        );
        assert_eq!(
            search(
                &["tools/deep/a/SKILL.md", "b/c/d/SKILL.md"],
                &["tools/deep"]
            ),
            ["tools/deep/a"]
        );
        assert_eq!(search(&["b/c/d/SKILL.md"], &[]), ["b/c/d"]);
    }

    #[test]
    fn t22_a_skill_within_a_skill_is_no_skill_of_its_own() {
        let found = search(&["skills/a/SKILL.md", "skills/a/inner/SKILL.md"], &[]);
        assert_eq!(found, ["skills/a"]);
    }
}
