//! Lists the skills of servers that do not list them in the final form.
//!
//! In this order: the index `skill://index.json`, whose archives are unpacked; resources named `skill://…/SKILL.md`, with the files
//! of a `_manifest` beside them if there is one. Without digests nothing can be verified, so such
//! skills count as dynamic. With or without, their frontmatter is not in the listing, so they cannot be approved.

use std::collections::{BTreeMap, BTreeSet};

use repertoire_core::{
    Digest, Frontmatter, MAX_BYTES, RelPath, SkillId, Uri, frontmatter,
    listed_skill::{DynamicMarker, ListedFile, ListedResources, ListedSkill, RefusedSkill},
    markdown::truncate_text,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::{digest_hex::check_digest, opened_source::unpack_skill};

use super::{
    LISTING_TIMEOUT, MAX_LISTING_BYTES, MAX_SKILLS, RemoteConnection, RemoteFailure, Result,
};

/// A longer description is cut.
const MAX_DESCRIPTION_CHARS: usize = 1024;
const INDEX_URI: &str = "skill://index.json";
const MAX_INDEX_BYTES: u64 = 4 * 1024 * 1024;
const MAX_MANIFEST_BYTES: u64 = 256 * 1024;
/// Each archive is a request of its own.
const MAX_ARCHIVES: usize = 64;
/// Each manifest is a request of its own.
const MAX_MANIFESTS: usize = 256;

#[derive(Deserialize)]
struct DiscoveryIndex {
    skills: Vec<IndexEntry>,
}

#[derive(Deserialize)]
struct IndexEntry {
    #[serde(default)]
    description: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    digest: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourcePage {
    resources: Vec<ResourceEntry>,
    #[serde(default)]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct ResourceEntry {
    uri: String,
    #[serde(default)]
    description: Option<String>,
}

#[derive(Deserialize)]
struct FileManifest {
    files: Vec<ManifestFile>,
}

#[derive(Deserialize)]
struct ManifestFile {
    path: String,
    size: u64,
    #[serde(alias = "digest")]
    hash: String,
}

impl RemoteConnection {
    /// Lists skills in one of the older forms; the list is empty if there are none.
    pub(super) async fn list_older_forms(&self) -> Result<(Vec<ListedSkill>, Vec<RefusedSkill>)> {
        if let Ok(bytes) = self.read_resource(INDEX_URI, MAX_INDEX_BYTES).await
            && let Ok(index) = repertoire_core::json::from_slice::<DiscoveryIndex>(&bytes)
        {
            return Ok(self.read_index(index).await);
        }
        let resources = match self.list_resources().await {
            Ok(resources) => resources,
            Err(RemoteFailure::Unreachable(reason)) => {
                return Err(RemoteFailure::Unreachable(reason));
            }
            // A server without resources has no skills either.
            Err(_) => BTreeMap::new(),
        };
        let mut found = Vec::new();
        // All manifests together have the time of one listing.
        let until = Instant::now() + LISTING_TIMEOUT;
        let mut manifests = 0;
        let uris: BTreeSet<&str> = resources.keys().map(String::as_str).collect();
        for (uri, description) in &resources {
            let Some(base) = uri.strip_suffix("/SKILL.md") else {
                continue;
            };
            let manifest = format!("{base}/_manifest");
            let mut files = None;
            if uris.contains(manifest.as_str()) && manifests < MAX_MANIFESTS {
                manifests += 1;
                let read = self.read_resource(&manifest, MAX_MANIFEST_BYTES);
                let read = tokio::time::timeout_at(until, read).await;
                let read = read.ok().and_then(Result::ok);
                files = read.and_then(|bytes| read_manifest(base, &bytes));
            }
            found.extend(partial_skill(uri, description, files));
        }
        Ok((found, Vec::new()))
    }

    /// Reads the entries of an index. Archives are fetched now, because only they say what is in them.
    async fn read_index(&self, index: DiscoveryIndex) -> (Vec<ListedSkill>, Vec<RefusedSkill>) {
        let (mut found, mut refused) = (Vec::new(), Vec::new());
        let until = Instant::now() + LISTING_TIMEOUT;
        let mut archives = 0;
        for entry in index.skills.into_iter().take(MAX_SKILLS) {
            let refuse = |message: String| RefusedSkill {
                uri: super::shorten_text(&entry.url),
                code: "invalid_entry",
                message,
            };
            if entry.kind.eq_ignore_ascii_case("archive") {
                archives += 1;
                if archives > MAX_ARCHIVES {
                    refused.push(refuse(format!(
                        "is one of more than {MAX_ARCHIVES} archives"
                    )));
                    continue;
                }
                let listed = tokio::time::timeout_at(until, self.list_archive(&entry)).await;
                match listed.unwrap_or_else(|_| Err("did not arrive in time".to_owned())) {
                    Ok(skill) => found.push(skill),
                    Err(message) => refused.push(refuse(message)),
                }
                continue;
            }
            let is_document = entry.kind.eq_ignore_ascii_case("skill-md");
            match partial_skill(&entry.url, &entry.description, None).filter(|_| is_document) {
                Some(skill) => found.push(skill),
                None => refused.push(refuse(format!(
                    "is listed as {:?}, which is not read",
                    entry.kind
                ))),
            }
        }
        (found, refused)
    }

    /// Lists the skill of an archive, by what is in it.
    async fn list_archive(&self, entry: &IndexEntry) -> std::result::Result<ListedSkill, String> {
        let bytes = self.read_resource(&entry.url, MAX_BYTES).await;
        let bytes = bytes.map_err(|error| error.to_string())?;
        if let Some(digest) = &entry.digest {
            check_digest(&entry.url, &bytes, digest).map_err(|error| error.to_string())?;
        }
        let files = unpack_skill(&entry.url, &bytes).map_err(|error| error.to_string())?;
        let document = files.get(&RelPath::document()).cloned().unwrap_or_default();
        let front = std::str::from_utf8(&document).ok().and_then(|text| {
            let split = frontmatter::split_document(text).ok()?;
            Some(Frontmatter::parse(split.yaml, 2).ok()?.to_json())
        });
        let frontmatter = front.ok_or("its SKILL.md has no valid frontmatter")?;
        let name = frontmatter.get("name").and_then(Value::as_str);
        let name: SkillId = name
            .and_then(|name| name.parse().ok())
            .ok_or("its SKILL.md has no valid name")?;
        let listed = files.iter().map(|(path, bytes)| ListedFile {
            uri: Uri::for_file(&name, path).to_string(),
            digest: Digest::hash_bytes(bytes),
            size: bytes.len() as u64,
        });
        Ok(ListedSkill {
            uri: Uri::for_document(&name).to_string(),
            frontmatter,
            resources: ListedResources::Files(listed.collect()),
            partial: false,
            archive: Some(entry.url.clone()),
        })
    }

    /// Returns the resources under `skill://` with their descriptions.
    async fn list_resources(&self) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        let mut bytes = 0;
        let method = "resources/list";
        self.read_pages(method, |message| {
            let page: ResourcePage = message.parse_result(method)?;
            for resource in page.resources {
                if !resource.uri.starts_with("skill://") {
                    continue;
                }
                let description = resource.description.unwrap_or_default();
                bytes += resource.uri.len() + description.len();
                if found.len() >= MAX_SKILLS * 2 || bytes > MAX_LISTING_BYTES {
                    return Err(RemoteFailure::Unusable(format!(
                        "lists more than {MAX_SKILLS} skills, or more than {MAX_LISTING_BYTES} bytes \
                         of them"
                    )));
                }
                found.insert(resource.uri, description);
            }
            Ok(page.next_cursor)
        })
        .await?;
        Ok(found)
    }
}

/// Returns a skill of which only name and description are known.
fn partial_skill(
    uri: &str,
    description: &str,
    files: Option<Vec<ListedFile>>,
) -> Option<ListedSkill> {
    let Ok(Uri::Skill(path)) = uri.parse() else {
        return None;
    };
    let name = path
        .as_str()
        .strip_suffix("/SKILL.md")?
        .rsplit('/')
        .next()?;
    // As long as a description may be in the final form.
    let description = match description.trim() {
        "" => "Its server does not describe it.".to_owned(),
        description => truncate_text(description, MAX_DESCRIPTION_CHARS),
    };
    let mut frontmatter = Map::new();
    frontmatter.insert("name".into(), Value::from(name));
    frontmatter.insert("description".into(), Value::from(description));
    Some(ListedSkill {
        uri: uri.to_owned(),
        frontmatter,
        resources: match files {
            Some(files) => ListedResources::Files(files),
            None => ListedResources::Dynamic(DynamicMarker::Dynamic),
        },
        partial: true,
        archive: None,
    })
}

/// Reads the files of a manifest; `None` if it is not complete.
fn read_manifest(base: &str, bytes: &[u8]) -> Option<Vec<ListedFile>> {
    let manifest: FileManifest = repertoire_core::json::from_slice(bytes).ok()?;
    let files = manifest.files.into_iter().map(|file| {
        Some(ListedFile {
            uri: format!("{base}/{}", file.path),
            digest: file.hash.parse::<Digest>().ok()?,
            size: file.size,
        })
    });
    files.collect()
}
