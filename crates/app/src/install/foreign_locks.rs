//! Reads the locks of other tools: `skills`, ClawHub and ToolHive.
//!
//! Their hashes are checked where they can be. Nothing of theirs is changed.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use repertoire_core::{Digest, Frontmatter, Hasher};
use repertoire_registry::folder;
use repertoire_remote::Pin;
use serde::Deserialize;

use super::locale_order;
use crate::{
    SkillFiles,
    error::{Error, Result},
};

const MAX_LOCK_BYTES: u64 = 4 * 1024 * 1024;

/// A skill that another tool installed.
#[derive(Debug, Clone)]
pub(super) struct ForeignSkill {
    /// Its name.
    pub(super) name: String,
    /// The tool.
    pub(super) tool: &'static str,
    /// The source as it is written here.
    pub(super) source: String,
    pub(super) skill: Option<String>,
    /// Folders where the tool may have put it.
    pub(super) folders: Vec<PathBuf>,
    pub(super) pin: Option<Pin>,
    pub(super) version: Option<String>,
    pub(super) check: ForeignHash,
}

/// The hash of a lock, by how it is computed.
#[derive(Debug, Clone)]
pub(super) enum ForeignHash {
    /// There is none, or none that says anything about the files.
    None,
    /// Of `skills`: over paths and contents without anything between.
    Paths(String),
    /// Of ClawHub: over a list of paths and digests.
    Lines(String),
    /// Of ToolHive: the digest that is used here, too.
    Content(Digest),
}

impl ForeignHash {
    /// Whether files have this hash; `None` if that cannot be known.
    pub(super) fn matches(&self, files: &SkillFiles) -> Option<bool> {
        match self {
            Self::None => None,
            Self::Content(digest) => Some(super::fetch::files_digest(files).ok()? == *digest),
            Self::Paths(expected) => {
                let mut hasher = Hasher::default();
                for (path, bytes) in sorted(files)? {
                    hasher.update(path.as_bytes());
                    hasher.update(bytes);
                }
                Some(hasher.finish().hex_digits() == *expected)
            }
            Self::Lines(expected) => {
                let lines: Vec<String> = sorted(files)?
                    .into_iter()
                    .filter(|(path, _)| !path.split('/').any(|part| part.starts_with('.')))
                    .map(|(path, bytes)| {
                        format!("{path}:{}", Digest::hash_bytes(bytes).hex_digits())
                    })
                    .collect();
                let found = Digest::hash_bytes(lines.join("\n").as_bytes());
                Some(found.hex_digits() == *expected)
            }
        }
    }
}

/// Sorts files as JavaScript does; `None` if the order of a name is not known.
fn sorted(files: &SkillFiles) -> Option<Vec<(&str, &[u8])>> {
    let mut list: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(path, bytes)| (path.as_str(), &bytes[..]))
        .collect();
    let mut is_known = true;
    list.sort_by(|a, b| {
        locale_order::compare(a.0, b.0).unwrap_or_else(|| {
            is_known = false;
            Ordering::Equal
        })
    });
    is_known.then_some(list)
}

/// Reads the bytes of a lock in a folder.
type LockReader = fn(&Path, &[u8]) -> Result<Vec<ForeignSkill>, String>;

/// The locks of other tools: the folder, the name, and how it is read.
const READERS: [(&str, &str, LockReader); 4] = [
    ("", "skills-lock.json", read_skills_lock),
    (".agents", ".skill-lock.json", read_skills_lock),
    (".clawhub", "lock.json", read_clawhub_lock),
    ("", "toolhive.lock.yaml", read_toolhive_lock),
];

/// Whether a folder has the lock of another tool.
pub fn has_foreign_lock(folder: &Path) -> bool {
    let mut places = READERS.iter();
    places.any(|(inner, name, _)| folder.join(inner).join(name).is_file())
}

/// Returns what the locks of a folder name; of the account's home folder, if it is one.
pub(super) fn read_foreign_locks(folder: &Path) -> Result<(Vec<PathBuf>, Vec<ForeignSkill>)> {
    let (mut locks, mut found) = (Vec::new(), Vec::new());
    for (inner, name, read) in READERS {
        let place = folder.join(inner);
        if !place.join(name).is_file() {
            continue;
        }
        let Some(bytes) = folder::read_small_file(&place, name, MAX_LOCK_BYTES)? else {
            continue;
        };
        let path = place.join(name);
        found.extend(read(folder, &bytes).map_err(|reason| Error::ProjectFile {
            path: path.clone(),
            reason,
        })?);
        locks.push(path);
    }
    Ok((locks, found))
}

#[derive(Deserialize)]
struct SkillsLock {
    version: u32,
    #[serde(default)]
    skills: BTreeMap<String, SkillsEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SkillsEntry {
    #[serde(default)]
    source: String,
    #[serde(default)]
    source_url: Option<String>,
    #[serde(default, rename = "ref")]
    reference: Option<String>,
    #[serde(default)]
    source_type: String,
    #[serde(default)]
    computed_hash: Option<String>,
}

fn read_skills_lock(folder: &Path, bytes: &[u8]) -> Result<Vec<ForeignSkill>, String> {
    let lock: SkillsLock =
        repertoire_core::json::from_slice(bytes).map_err(|error| error.to_string())?;
    if !matches!(lock.version, 1..=3) {
        return Err(format!(
            "has the version {}, which is not known",
            lock.version
        ));
    }
    let mut found = Vec::new();
    for (name, entry) in lock.skills {
        let with_reference = |place: String| match &entry.reference {
            Some(reference) => format!("{place}#{reference}"),
            None => place,
        };
        let (source, skill) = match entry.source_type.as_str() {
            "github" => (with_reference(format!("{}@{name}", entry.source)), None),
            "gitlab" | "git" => {
                let url = entry
                    .source_url
                    .clone()
                    .unwrap_or_else(|| entry.source.clone());
                let url = if url.contains("://") || url.contains('@') {
                    url
                } else {
                    format!("https://gitlab.com/{url}.git")
                };
                let url = if url.starts_with("http") && url.strip_suffix(".git").is_none() {
                    format!("git+{url}")
                } else {
                    url
                };
                (with_reference(url), Some(name.clone()))
            }
            "well-known" => {
                let url = entry
                    .source_url
                    .clone()
                    .unwrap_or_else(|| entry.source.clone());
                let url = if url.contains("://") {
                    url
                } else {
                    format!("https://{url}")
                };
                (site_of_index(&url), Some(name.clone()))
            }
            // What came from a folder of this machine is left out, and said to be.
            other => (format!("{other}:{}", entry.source), None),
        };
        let hash = entry
            .computed_hash
            .map_or(ForeignHash::None, ForeignHash::Paths);
        found.push(ForeignSkill {
            folders: skill_folders(folder, &name),
            name,
            tool: "skills",
            source,
            skill,
            pin: None,
            version: None,
            check: hash,
        });
    }
    Ok(found)
}

/// Returns the site whose index a URL is part of.
fn site_of_index(url: &str) -> String {
    match url.split_once("/.well-known/") {
        Some((site, _)) => site.to_owned(),
        None => url.to_owned(),
    }
}

/// The folders where tools put skills of a project.
fn skill_folders(folder: &Path, name: &str) -> Vec<PathBuf> {
    let places = [
        ".agents/skills",
        ".claude/skills",
        "skills",
        ".github/skills",
        ".cursor/skills",
    ];
    places
        .iter()
        .map(|place| folder.join(place).join(name))
        .collect()
}

#[derive(Deserialize)]
struct ClawHubLock {
    version: u32,
    #[serde(default)]
    skills: BTreeMap<String, ClawHubEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClawHubEntry {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    owner_handle: Option<String>,
}

#[derive(Default, Deserialize)]
struct ClawHubOrigin {
    #[serde(default)]
    registry: Option<String>,
    #[serde(default)]
    fingerprint: Option<String>,
}

fn read_clawhub_lock(folder: &Path, bytes: &[u8]) -> Result<Vec<ForeignSkill>, String> {
    let lock: ClawHubLock =
        repertoire_core::json::from_slice(bytes).map_err(|error| error.to_string())?;
    if lock.version != 1 {
        return Err(format!(
            "has the version {}, which is not known",
            lock.version
        ));
    }
    let mut found = Vec::new();
    for (key, entry) in lock.skills {
        let slug = key.rsplit('/').next().unwrap_or(&key).to_owned();
        let owner = match key.strip_prefix('@').and_then(|rest| rest.split_once('/')) {
            Some((owner, _)) => Some(owner.to_owned()),
            None => entry.owner_handle.clone(),
        };
        let at_owner = owner
            .as_ref()
            .map(|owner| format!("skills/@{owner}/{slug}"));
        let mut folders: Vec<PathBuf> = at_owner
            .into_iter()
            .map(|place| folder.join(place))
            .collect();
        folders.extend(skill_folders(folder, &slug));
        let origin = folders.iter().find_map(|place| {
            let place = place.join(".clawhub");
            let bytes = folder::read_small_file(&place, "origin.json", MAX_LOCK_BYTES).ok()??;
            repertoire_core::json::from_slice::<ClawHubOrigin>(&bytes).ok()
        });
        let origin = origin.unwrap_or_default();
        let registry = origin
            .registry
            .as_deref()
            .map(|url| url.trim_end_matches('/'));
        let mut source = match registry {
            None | Some("https://clawhub.ai" | "https://clawhub.com") => "clawhub:".to_owned(),
            Some(registry) => format!("clawhub+{registry}/"),
        };
        if let Some(owner) = &owner {
            source = format!("{source}@{owner}/");
        }
        found.push(ForeignSkill {
            name: slug.clone(),
            tool: "clawhub",
            source: format!("{source}{slug}"),
            skill: None,
            folders,
            pin: None,
            version: entry.version,
            check: origin
                .fingerprint
                .map_or(ForeignHash::None, ForeignHash::Lines),
        });
    }
    Ok(found)
}

fn read_toolhive_lock(folder: &Path, bytes: &[u8]) -> Result<Vec<ForeignSkill>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let lock = Frontmatter::parse(text, 1).map_err(|error| error.to_string())?;
    let lock = lock.to_json();
    match lock.get("version").and_then(serde_json::Value::as_i64) {
        Some(1) | None => {}
        Some(other) => return Err(format!("has the version {other}, which is not known")),
    }
    let mut found = Vec::new();
    let skills = lock.get("skills").and_then(serde_json::Value::as_array);
    for entry in skills.into_iter().flatten() {
        let field = |key: &str| entry.get(key).and_then(serde_json::Value::as_str);
        let (Some(name), Some(digest)) = (field("name"), field("digest")) else {
            return Err("has a skill without a name or a digest".to_owned());
        };
        let place = field("resolvedReference")
            .or(field("source"))
            .unwrap_or_default();
        let (source, skill, pin) = if digest.starts_with("sha256:") {
            let pin = digest.parse().ok().map(Pin::OciManifest);
            let place = place.split('@').next().unwrap_or_default();
            (format!("oci://{place}"), None, pin)
        } else {
            // git://host/owner/repo@reference#folder
            let rest = place.trim_start_matches("git://");
            let (rest, _) = rest.split_once('#').unwrap_or((rest, ""));
            let (repository, reference) = rest.split_once('@').unwrap_or((rest, ""));
            let mut source = format!("https://{repository}.git");
            // A commit is what is pinned anyway.
            if !reference.is_empty() && reference != digest {
                source = format!("{source}#{reference}");
            }
            let pin = format!("git:{digest}").parse().ok();
            (source, Some(name.to_owned()), pin)
        };
        let content = field("contentDigest").and_then(|digest| digest.parse().ok());
        found.push(ForeignSkill {
            name: name.to_owned(),
            tool: "toolhive",
            source,
            skill,
            folders: skill_folders(folder, name),
            pin,
            version: field("version").map(str::to_owned),
            check: content.map_or(ForeignHash::None, ForeignHash::Content),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_other_tools_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "skills-lock.json",
            r#"{"version": 1, "skills": {
                "pdf": {"source": "acme/skills", "sourceType": "github", "ref": "v2",
                        "computedHash": "00"},
                "a": {"source": "https://git.example.com/r", "sourceType": "git"},
                "b": {"source": "example.com", "sourceType": "well-known",
                      "sourceUrl": "https://example.com/.well-known/agent-skills/index.json"},
                "c": {"source": "/tmp/x", "sourceType": "local"}}}"#,
        );
        write(
            ".clawhub/lock.json",
            r#"{"version": 1, "skills": {"@acme/notes": {"version": "1.0.0"}}}"#,
        );
        write(
            "skills/@acme/notes/.clawhub/origin.json",
            r#"{"registry": "http://127.0.0.1:9", "fingerprint": "11"}"#,
        );
        write(
            "toolhive.lock.yaml",
            &format!(
                "version: 1\nskills:\n  - name: x\n    source: x\n    resolvedReference: \
                 ghcr.io/acme/x:1\n    digest: sha256:{:064}\n    explicit: true\n  - name: y\n    \
                 source: y\n    resolvedReference: git://github.com/acme/y@main#skills/y\n    \
                 digest: {}\n",
                0,
                "a".repeat(40)
            ),
        );
        let (locks, found) = read_foreign_locks(root).unwrap();
        assert_eq!(locks.len(), 3);
        let sources: Vec<(&str, &str)> = found
            .iter()
            .map(|one| (one.name.as_str(), one.source.as_str()))
            .collect();
        assert_eq!(
            sources,
            [
                ("a", "git+https://git.example.com/r"),
                ("b", "https://example.com"),
                ("c", "local:/tmp/x"),
                ("pdf", "acme/skills@pdf#v2"),
                ("notes", "clawhub+http://127.0.0.1:9/@acme/notes"),
                ("x", "oci://ghcr.io/acme/x:1"),
                ("y", "https://github.com/acme/y.git#main"),
            ]
        );
        for one in found.iter().filter(|one| one.name != "c") {
            let source = one.source.parse::<repertoire_remote::SkillSource>();
            assert!(source.is_ok(), "{}", one.source);
        }
        write("skills-lock.json", r#"{"version": 9}"#);
        assert!(read_foreign_locks(root).is_err());
    }
}
