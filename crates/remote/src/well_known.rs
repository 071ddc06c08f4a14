//! Skills of web sites: `.well-known/agent-skills` (0.2.0), the older `.well-known/skills` (0.1.0), and
//! single documents and archives.
//!
//! Invariant: an artifact of an index is used only if its digest is the listed one.

use std::fmt::Write as _;

use bytes::Bytes;
use repertoire_core::{DOCUMENT, Digest, RelPath, SkillName};
use serde::Deserialize;
use serde_json::Value;
use url::Url;

use crate::{
    archive::{ArchiveFormat, read_archive},
    digest_hex::{check_digest, plain_version},
    error::{Error, Result},
    file_tree::FileTree,
    http::{WebClient, WebRequest},
};

/// The form of the index that is understood.
const SCHEMA: &str = "https://schemas.agentskills.io/discovery/0.2.0/schema.json";
/// The most bytes of a document.
const MAX_DOCUMENT_BYTES: u64 = 1024 * 1024;

/// What a web address turned out to be.
#[derive(Debug)]
pub(crate) enum WebPlace {
    /// An index of skills.
    Index(SkillIndex),
    /// An archive, with its bytes.
    Archive { url: Url, bytes: Bytes },
    /// A document.
    Document { url: Url, bytes: Bytes },
}

/// The skills of a web site.
#[derive(Debug)]
pub(crate) struct SkillIndex {
    /// Where the index is.
    pub(crate) url: Url,
    pub(crate) entries: Vec<IndexEntry>,
    /// Entries that are not used, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// One skill of an index.
#[derive(Debug, Clone)]
pub(crate) struct IndexEntry {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) version: Option<String>,
    artifact: IndexArtifact,
}

#[derive(Debug, Clone)]
enum IndexArtifact {
    Document {
        url: Url,
        digest: String,
    },
    Archive {
        url: Url,
        digest: String,
    },
    /// The older form: files one by one, without digests.
    Files {
        base: Url,
        paths: Vec<RelPath>,
    },
}

#[derive(Deserialize)]
struct RawIndex {
    #[serde(rename = "$schema", default)]
    schema: Option<String>,
    #[serde(default)]
    skills: Vec<Value>,
}

#[derive(Deserialize)]
struct RawEntry {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    version: Option<String>,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default)]
    files: Option<Vec<String>>,
}

/// Asks what is at a web address: an index beneath it, else the address itself.
pub(crate) async fn open_place(url: &Url, web: &WebClient) -> Result<WebPlace> {
    let named = ArchiveFormat::from_name(url.path()).is_some()
        || url.path().to_ascii_lowercase().ends_with(".md");
    let mut tried = Vec::new();
    if url.path().ends_with("/index.json") {
        let body = get(url, web.limits().index_bytes, web).await?;
        return Ok(WebPlace::Index(read_index(&body.0, &body.1, web)?));
    }
    if !named {
        for folder in ["agent-skills", "skills"] {
            let place = beneath(url, &format!(".well-known/{folder}/index.json"))?;
            match get(&place, web.limits().index_bytes, web).await {
                Ok((end, bytes)) if is_json(&bytes) => {
                    return Ok(WebPlace::Index(read_index(&end, &bytes, web)?));
                }
                // A page for everything that is not there.
                Ok(_) => tried.push(format!("{place} is no index")),
                Err(Error::NotFound { .. }) => tried.push(format!("{place} is not there")),
                Err(error) => return Err(error),
            }
        }
    }
    match get(url, web.limits().file_bytes, web).await {
        Ok((end, bytes)) if ArchiveFormat::from_content(&bytes).is_some() => {
            Ok(WebPlace::Archive { url: end, bytes })
        }
        Ok((end, bytes)) if bytes.starts_with(b"---") => {
            if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
                let reason = format!("sends more than {MAX_DOCUMENT_BYTES} bytes");
                return Err(Error::refused(end.as_str(), reason));
            }
            Ok(WebPlace::Document { url: end, bytes })
        }
        Ok(_) => {
            let mut reason =
                "is no index of skills, no archive and no SKILL.md; a git repository is written \
                 git+https://…"
                    .to_owned();
            if !tried.is_empty() {
                reason = format!("{reason} ({})", tried.join("; "));
            }
            Err(Error::refused(url.as_str(), reason))
        }
        Err(error @ Error::NotFound { .. }) if tried.is_empty() => Err(error),
        Err(Error::NotFound { .. }) => Err(Error::NotFound {
            what: "index of skills",
            name: format!("{url} ({})", tried.join("; ")),
        }),
        Err(error) => Err(error),
    }
}

async fn get(url: &Url, limit: u64, web: &WebClient) -> Result<(Url, Bytes)> {
    let answer = web.get(WebRequest::get(url.clone(), limit)).await?;
    let end = answer.url.clone();
    Ok((end, answer.into_body()?))
}

fn is_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().starts_with(b"{")
}

/// Joins a path to an address as if the address were a folder.
fn beneath(url: &Url, path: &str) -> Result<Url> {
    let mut folder = url.clone();
    folder.set_query(None);
    folder.set_fragment(None);
    if !folder.path().ends_with('/') {
        let path = format!("{}/", folder.path());
        folder.set_path(&path);
    }
    folder
        .join(path)
        .map_err(|error| Error::refused(url.as_str(), error.to_string()))
}

fn read_index(url: &Url, bytes: &[u8], web: &WebClient) -> Result<SkillIndex> {
    let refuse = |reason: String| Error::refused(url.as_str(), reason);
    let raw: RawIndex = repertoire_core::json::from_slice(bytes)
        .map_err(|error| refuse(format!("is no valid index: {error}")))?;
    if let Some(schema) = raw.schema.as_deref().filter(|schema| *schema != SCHEMA) {
        let reason = format!("has the form {schema:?}, which this version does not know");
        return Err(refuse(reason));
    }
    if raw.skills.len() > web.limits().skills {
        return Err(refuse(format!(
            "lists more than {} skills",
            web.limits().skills
        )));
    }
    let mut index = SkillIndex {
        url: url.clone(),
        entries: Vec::new(),
        skipped: Vec::new(),
    };
    for (number, entry) in raw.skills.into_iter().enumerate() {
        let entry: RawEntry = match serde_json::from_value(entry) {
            Ok(entry) => entry,
            Err(error) => {
                index.skipped.push(format!("entry {}: {error}", number + 1));
                continue;
            }
        };
        let name = entry.name.clone();
        match check_entry(url, raw.schema.is_some(), entry) {
            Ok(entry) if index.entries.iter().any(|known| known.name == entry.name) => {
                index.skipped.push(format!("{name:?} is listed twice"));
            }
            Ok(entry) => index.entries.push(entry),
            Err(reason) => index.skipped.push(format!("{name:?} {reason}")),
        }
    }
    Ok(index)
}

fn check_entry(index: &Url, is_new_form: bool, raw: RawEntry) -> Result<IndexEntry, String> {
    if raw.name.parse::<SkillName>().is_err() {
        return Err("is no name of a skill".to_owned());
    }
    let artifact = match (is_new_form, raw.url, raw.digest, raw.files) {
        (_, Some(url), Some(digest), _) => {
            let url = index.join(&url).map_err(|error| error.to_string())?;
            match raw.kind.as_deref() {
                Some("skill-md") => IndexArtifact::Document { url, digest },
                Some("archive") => IndexArtifact::Archive { url, digest },
                other => return Err(format!("is of the type {other:?}, which is not read")),
            }
        }
        (false, _, _, Some(files)) => {
            let base = index
                .join(&format!("{}/", raw.name))
                .map_err(|e| e.to_string())?;
            let paths: Result<Vec<RelPath>, _> = files.iter().map(|path| path.parse()).collect();
            let paths = paths.map_err(|error| error.to_string())?;
            if paths.len() > repertoire_core::MAX_FILES {
                return Err("has too many files".to_owned());
            }
            IndexArtifact::Files { base, paths }
        }
        _ => return Err("has no address with a digest".to_owned()),
    };
    Ok(IndexEntry {
        name: raw.name,
        description: raw.description,
        version: raw.version.as_deref().and_then(plain_version),
        artifact,
    })
}

/// The files of one skill, and what they were unpacked from.
pub(crate) struct IndexSkill {
    pub(crate) tree: FileTree,
    /// The artifact with its address; none in the older form.
    pub(crate) artifact: Option<(Url, Bytes)>,
    pub(crate) address: String,
}

/// Fetches one skill of an index.
pub(crate) async fn read_entry(entry: &IndexEntry, web: &WebClient) -> Result<IndexSkill> {
    let mut tree = FileTree::default();
    match &entry.artifact {
        IndexArtifact::Document { url, digest } => {
            let (_, bytes) = get(url, MAX_DOCUMENT_BYTES, web).await?;
            check_digest(url.as_str(), &bytes, digest)?;
            tree.insert_file(DOCUMENT.to_owned(), bytes.clone());
            Ok(IndexSkill {
                tree,
                artifact: Some((url.clone(), bytes)),
                address: url.to_string(),
            })
        }
        IndexArtifact::Archive { url, digest } => {
            let (_, bytes) = get(url, web.limits().file_bytes, web).await?;
            // Before anything is unpacked.
            check_digest(url.as_str(), &bytes, digest)?;
            Ok(IndexSkill {
                tree: read_archive(url.as_str(), &bytes, web.limits())?,
                artifact: Some((url.clone(), bytes)),
                address: url.to_string(),
            })
        }
        IndexArtifact::Files { base, paths } => {
            let mut left = repertoire_core::MAX_BYTES;
            for path in paths {
                let url = base.join(&encode_path(path.as_str()));
                let url = url.map_err(|e| Error::refused(base.as_str(), e.to_string()))?;
                let (_, bytes) = get(&url, left, web).await?;
                left = left.saturating_sub(bytes.len() as u64);
                tree.insert_file(path.to_string(), bytes);
            }
            Ok(IndexSkill {
                tree,
                artifact: None,
                address: base.to_string(),
            })
        }
    }
}

impl IndexEntry {
    /// The digest that the index promises; none in the older form.
    pub(crate) fn digest(&self) -> Option<Digest> {
        match &self.artifact {
            IndexArtifact::Document { digest, .. } | IndexArtifact::Archive { digest, .. } => {
                digest.parse().ok()
            }
            IndexArtifact::Files { .. } => None,
        }
    }
}

/// Writes a path so that no part of it is taken for a query, a fragment or a scheme.
fn encode_path(path: &str) -> String {
    let encode = |part: &str| -> String {
        let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let mut text = String::new();
        for byte in part.bytes() {
            if keep(byte) {
                text.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
        text
    };
    let parts: Vec<String> = path.split('/').map(encode).collect();
    format!("./{}", parts.join("/"))
}
