//! Which folders of a repository are skills by its plugin and marketplace manifests.
//!
//! Read are `.claude-plugin/`, `.agents/plugins/`, `.cursor-plugin/`, `.github/plugin/` and the
//! `plugin.json` of Agent Plugins 1.0. Only plugins within the repository count: a manifest that
//! names another repository is reported, never followed.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::file_tree::FileTree;

/// The manifests of marketplaces, in the order in which they are read.
pub(crate) const MARKETPLACES: [&str; 6] = [
    ".claude-plugin/marketplace.json",
    ".agents/plugins/marketplace.json",
    ".agents/plugins/api_marketplace.json",
    ".cursor-plugin/marketplace.json",
    ".github/plugin/marketplace.json",
    "marketplace.json",
];
/// The manifests of single plugins, below the plugin's folder.
pub(crate) const PLUGINS: [&str; 4] = [
    ".claude-plugin/plugin.json",
    ".cursor-plugin/plugin.json",
    ".codex-plugin/plugin.json",
    "plugin.json",
];
/// A larger manifest is not read.
pub(crate) const MAX_MANIFEST_BYTES: usize = 1024 * 1024;
/// More folders of all manifests are not searched.
const MAX_FOLDERS: usize = 5000;
/// More plugins of one marketplace are not read.
const MAX_PLUGINS: usize = 2000;

#[derive(Deserialize)]
struct Marketplace {
    #[serde(default)]
    metadata: MarketplaceMetadata,
    #[serde(default)]
    plugins: Vec<PluginEntry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MarketplaceMetadata {
    #[serde(default)]
    plugin_root: Option<String>,
}

#[derive(Deserialize)]
struct PluginEntry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    source: Value,
    #[serde(default)]
    skills: Option<PathList>,
}

#[derive(Deserialize)]
struct PluginManifest {
    #[serde(default)]
    name: String,
    #[serde(default)]
    skills: Option<PathList>,
}

/// One path or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum PathList {
    One(String),
    Many(Vec<String>),
}

impl PathList {
    fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Many(paths) => paths,
        }
        .iter()
        .map(String::as_str)
    }
}

/// A folder that a manifest names: a skill, or a folder of skills.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PluginFolder {
    pub(crate) folder: String,
    pub(crate) plugin: String,
}

/// What the manifests of a place say.
#[derive(Debug, Default)]
pub(crate) struct PluginSkills {
    pub(crate) folders: BTreeSet<PluginFolder>,
    /// Plugins that are in other places.
    pub(crate) elsewhere: Vec<String>,
    /// Manifests that cannot be read.
    pub(crate) unreadable: Vec<String>,
}

/// Returns the paths of the manifests of a tree, as far as they are known without reading any.
pub(crate) fn manifest_paths(tree: &FileTree, root: &str) -> Vec<String> {
    let at = |name: &&str| join(root, name);
    let names = MARKETPLACES.iter().chain(&PLUGINS).map(at);
    names
        .filter(|path| tree.entries.contains_key(path))
        .collect()
}

/// Returns the manifests of the plugins that the marketplaces name.
pub(crate) fn plugin_manifest_paths(tree: &FileTree, found: &PluginSkills) -> Vec<String> {
    let roots = found.folders.iter().map(|one| one.folder.as_str());
    let manifests = roots.flat_map(|root| PLUGINS.iter().map(move |name| join(root, name)));
    manifests
        .filter(|path| tree.entries.contains_key(path))
        .collect()
}

/// Reads the manifest at a path and adds what it names.
pub(crate) fn read_manifest(root: &str, path: &str, bytes: &[u8], found: &mut PluginSkills) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let unreadable = |found: &mut PluginSkills, reason: String| {
        found.unreadable.push(format!("{path}: {reason}"));
    };
    if bytes.len() > MAX_MANIFEST_BYTES {
        return unreadable(found, "is too large".to_owned());
    }
    if name == "plugin.json" {
        let folder = PLUGINS.iter().find_map(|known| path.strip_suffix(known));
        let folder = folder.unwrap_or_default().trim_end_matches('/');
        match repertoire_core::json::from_slice::<PluginManifest>(bytes) {
            Ok(plugin) => add_plugin(found, folder, &plugin.name, plugin.skills.as_ref()),
            Err(error) => unreadable(found, error.to_string()),
        }
        return;
    }
    let marketplace = match repertoire_core::json::from_slice::<Marketplace>(bytes) {
        Ok(marketplace) => marketplace,
        Err(error) => return unreadable(found, error.to_string()),
    };
    let base = marketplace.metadata.plugin_root.as_deref().unwrap_or("");
    for plugin in marketplace.plugins.iter().take(MAX_PLUGINS) {
        let path = plugin.source.as_str().or_else(|| {
            let source = plugin.source.as_object()?;
            let is_local = source.get("source").and_then(Value::as_str) == Some("local");
            is_local.then(|| source.get("path")?.as_str()).flatten()
        });
        let folder = path.and_then(|path| resolve(root, base).and_then(|at| resolve(&at, path)));
        match folder {
            Some(folder) => add_plugin(found, &folder, &plugin.name, plugin.skills.as_ref()),
            None => found.elsewhere.push(plugin.name.clone()),
        }
    }
}

fn add_plugin(found: &mut PluginSkills, root: &str, plugin: &str, skills: Option<&PathList>) {
    let named = skills.into_iter().flat_map(PathList::iter);
    let mut folders: Vec<String> = named.filter_map(|path| resolve(root, path)).collect();
    if skills.is_none() {
        // Where skills are unless a manifest says otherwise.
        folders.push(join(root, "skills"));
    }
    for folder in folders {
        if found.folders.len() >= MAX_FOLDERS {
            return;
        }
        found.folders.insert(PluginFolder {
            folder,
            plugin: plugin.to_owned(),
        });
    }
}

/// Joins a path of a manifest to a folder; `None` if it leads out of the repository.
fn resolve(root: &str, path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains(['\\', '\0']) || path.contains("://") {
        return None;
    }
    let mut parts: Vec<&str> = root.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

pub(crate) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(found: &PluginSkills) -> Vec<&str> {
        found
            .folders
            .iter()
            .map(|one| one.folder.as_str())
            .collect()
    }

    #[test]
    fn marketplaces_name_skills_within_the_repository_only() {
        let mut found = PluginSkills::default();
        let marketplace = br#"{"name": "m", "metadata": {"pluginRoot": "./plugins"}, "plugins": [
            {"name": "a", "source": "./a"},
            {"name": "b", "source": "../", "skills": ["./tools/x", "tools/y"]},
            {"name": "c", "source": {"source": "github", "repo": "x/y"}},
            {"name": "d", "source": "../../../etc"}
        ]}"#;
        read_manifest("", MARKETPLACES[0], marketplace, &mut found);
        assert_eq!(folders(&found), ["plugins/a/skills", "tools/x", "tools/y"]);
        assert_eq!(found.elsewhere, ["c", "d"]);
    }

    #[test]
    fn plugins_have_skills_where_their_manifest_says() {
        let mut found = PluginSkills::default();
        read_manifest(
            "",
            "p/.claude-plugin/plugin.json",
            br#"{"name": "p"}"#,
            &mut found,
        );
        read_manifest(
            "",
            "q/plugin.json",
            br#"{"name": "q", "skills": "./s"}"#,
            &mut found,
        );
        read_manifest("", "r/plugin.json", b"1", &mut found);
        assert_eq!(folders(&found), ["p/skills", "q/s"]);
        assert_eq!(found.unreadable.len(), 1);
    }
}
