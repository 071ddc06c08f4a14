//! Metadata of a skill: everything the catalogue holds without the bodies.
//!
//! It is computed once, when a skill is added or changed, from the bytes it describes. It is small:
//! listing ten thousand skills reads ten thousand metadata records and no body.

use std::sync::Arc;

use bytes::Bytes;
use repertoire_core::{
    FileEntry, Frontmatter, Manifest, Package, RelPath, Skill, SkillId, SkillName,
    listing::{ListingProblem, SkillDocument},
    markdown::{MarkdownSummary as Summary, to_single_line, truncate_text},
    package::PACKAGE_FILE,
    surface,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// A reference-counted string; cloning it does not copy the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedText(Arc<str>);

impl std::ops::Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for SharedText {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Display for SharedText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

impl Serialize for SharedText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for SharedText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = SharedText;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }

            // Builds the shared string directly, without an intermediate `String`.
            fn visit_str<E>(self, text: &str) -> Result<SharedText, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The metadata of one skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillMetadata {
    /// The first heading of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<SharedText>,
    /// The description of the frontmatter, or the first paragraph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<SharedText>,
    /// The frontmatter as JSON text, in the author's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontmatter: Option<SharedText>,
    /// Why it is not in `skills/list`, for a skill with files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<Box<ListingProblem>>,
    /// Every file with size and digest.
    pub files: Box<[FileEntry]>,
    /// Metadata of the package, if the skill is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Arc<PackageMetadata>>,
    /// Whether its content is generated at each read, so that there are no digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dynamic: bool,
    /// When it was registered, and the size of the registered body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Registration>,
}

/// When a skill was registered, and the size of its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The registration time, RFC 3339 in UTC.
    pub at: SharedText,
    /// The size of the body in bytes.
    pub bytes: u64,
}

/// Metadata that a package adds to a skill.
///
/// Every field is always written, because the index cache identifies fields by position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageMetadata {
    /// The human name.
    pub name: SharedText,
    /// The package's version.
    pub version: SharedText,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Patterns of requests that the skill handles.
    #[serde(default)]
    pub intent_patterns: Vec<String>,
    /// Phrases in a message that select the skill.
    #[serde(default)]
    pub trigger_phrases: Vec<String>,
    /// How many artifacts it has.
    pub artifacts: usize,
}

/// Metadata that is read from the document alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentMetadata {
    pub(crate) name: Option<SharedText>,
    pub(crate) title: Option<SharedText>,
    pub(crate) description: Option<SharedText>,
    pub(crate) frontmatter: Option<SharedText>,
    /// Why hosts would refuse the skill in a listing, apart from its path.
    pub(crate) problem: Option<Box<ListingProblem>>,
}

impl DocumentMetadata {
    /// Reads a `SKILL.md`; refuses only what is no text.
    pub(crate) fn from_bytes(bytes: &[u8]) -> repertoire_core::Result<Self> {
        let text = parse_utf8(repertoire_core::DOCUMENT, bytes)?;
        Self::from_text(text)
    }

    fn from_text(text: &str) -> repertoire_core::Result<Self> {
        let read = SkillDocument::read(text)?;
        Ok(Self {
            name: read.name.map(Into::into),
            title: read.title.map(Into::into),
            description: read.description.map(Into::into),
            frontmatter: read.frontmatter.as_ref().map(frontmatter_json),
            problem: read.problem.map(Box::new),
        })
    }

    /// Returns the name if a skill can be listed under it.
    pub(crate) fn valid_name(&self) -> Option<&SharedText> {
        let is_valid = |name: &&SharedText| name.parse::<SkillName>().is_ok();
        self.name.as_ref().filter(is_valid)
    }

    /// Returns why a skill with this document is not listed under an id.
    fn listing_problem(&self, id: &SkillId) -> Option<Box<ListingProblem>> {
        let mismatch = || {
            let name = self.name.as_deref().unwrap_or_default();
            let is_same = name == id.name() && id.skill_name().is_some();
            (!is_same).then(|| Box::new(ListingProblem::name_mismatch(name, id.name())))
        };
        self.problem.clone().or_else(mismatch)
    }
}

fn frontmatter_json(front: &Frontmatter) -> SharedText {
    Value::Object(front.to_json()).to_string().into()
}

impl PackageMetadata {
    pub(crate) fn from_package(package: &Package) -> Self {
        Self {
            name: package.name.as_str().into(),
            version: package.version.as_str().into(),
            tags: package.tags.clone(),
            intent_patterns: package.intent_patterns.clone(),
            trigger_phrases: package.trigger_phrases.clone(),
            artifacts: package.artifacts.len(),
        }
    }
}

impl PackageMetadata {
    /// Parses a package file; returns `None` if the file belongs to another tool.
    pub(crate) fn from_json(bytes: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct PackageFileJson {
            name: String,
            #[serde(default)]
            version: Option<String>,
            #[serde(default)]
            tags: Vec<String>,
            #[serde(default)]
            intent_patterns: Vec<String>,
            #[serde(default)]
            trigger_phrases: Vec<String>,
            artifacts: Vec<serde::de::IgnoredAny>,
        }
        let wire: PackageFileJson = repertoire_core::json::from_slice(bytes).ok()?;
        Some(Self {
            name: wire.name.into(),
            version: wire.version.as_deref().unwrap_or("1.0.0").into(),
            tags: wire.tags,
            intent_patterns: wire.intent_patterns,
            trigger_phrases: wire.trigger_phrases,
            artifacts: wire.artifacts.len(),
        })
    }
}

impl SkillMetadata {
    pub(crate) fn new(
        id: &SkillId,
        document: &DocumentMetadata,
        files: Manifest,
        package: Option<Arc<PackageMetadata>>,
    ) -> Self {
        Self {
            title: document.title.clone(),
            description: document.description.clone(),
            frontmatter: document.frontmatter.clone(),
            unlisted: document.listing_problem(id),
            files: files.into_files(),
            package,
            dynamic: false,
            registered: None,
        }
    }

    /// Builds the metadata of a skill defined in code.
    ///
    /// A document that is not a valid skill of this id gets no frontmatter and is only a resource.
    pub(crate) fn from_skill(skill: &Skill) -> repertoire_core::Result<Self> {
        let document = FileEntry::from_bytes(RelPath::document(), skill.body().as_bytes());
        let references = skill
            .references()
            .iter()
            .map(|r| Ok(FileEntry::from_bytes(r.path().parse()?, r.body())))
            .collect::<repertoire_core::Result<Vec<_>>>()?;
        let front = skill.frontmatter().ok();
        let problem = front.as_ref();
        let problem = problem.and_then(ListingProblem::find_in);
        Ok(Self {
            title: Summary::from_markdown(skill.body()).title.map(Into::into),
            description: skill.description().map(|d| to_single_line(d).into()),
            frontmatter: front.as_ref().map(frontmatter_json),
            unlisted: problem.map(Box::new),
            files: Manifest::new(std::iter::once(document).chain(references))?.into_files(),
            package: None,
            dynamic: false,
            registered: None,
        })
    }

    /// Builds the metadata of a complete file set stored under this id.
    pub(crate) fn from_files<'a>(
        id: &SkillId,
        files: impl Iterator<Item = (&'a RelPath, &'a Bytes)> + Clone,
        package: Option<&Package>,
    ) -> Result<Self> {
        let manifest = Manifest::new(
            files
                .clone()
                .map(|(p, b)| FileEntry::from_bytes(p.clone(), b)),
        )?;
        let mut files = files;
        let document = files
            .find(|(path, _)| path.is_document())
            .map(|(_, bytes)| DocumentMetadata::from_bytes(bytes))
            .ok_or(repertoire_core::Error::NoDocument)??;
        let package = package.map(PackageMetadata::from_package).map(Arc::new);
        Ok(Self::new(id, &document, manifest, package))
    }

    /// Builds the metadata of a body registered at run time.
    pub(crate) fn from_registered_body(id: &SkillId, body: &str, at: &str) -> Self {
        let summary = Summary::from_markdown(body);
        let document = surface::registered_document_with(id, body, || summary.clone());
        Self {
            registered: Some(Registration {
                at: at.into(),
                bytes: body.len() as u64,
            }),
            ..Self::from_loose_body(body, summary, document.as_deref())
        }
    }

    /// Builds the metadata of a loose markdown file: a skill only if it is a document of that id.
    pub(crate) fn from_markdown(id: &SkillId, body: &str) -> Self {
        let is_own = DocumentMetadata::from_text(body).is_ok_and(|own| {
            own.frontmatter.is_some()
                && own.name.as_deref() == Some(id.name())
                && own.description.is_some()
                && id.skill_name().is_some()
        });
        Self::from_loose_body(body, Summary::from_markdown(body), is_own.then_some(body))
    }

    fn from_loose_body(body: &str, summary: Summary, document: Option<&str>) -> Self {
        let read = document.and_then(|d| Some((d, DocumentMetadata::from_text(d).ok()?)));
        let file = FileEntry::from_bytes(
            RelPath::document(),
            read.as_ref().map_or(body, |r| r.0).as_bytes(),
        );
        let (frontmatter, unlisted, description) = match read {
            // A generated document adds nothing to the summary of the body.
            Some((document, head)) if document == body => {
                let description = head.description.as_deref();
                let description = description.map(|text| truncate_text(text, 1024).into());
                (head.frontmatter, head.problem, description)
            }
            Some((_, head)) => {
                let summary = summary.summary.map(Into::into);
                (head.frontmatter, head.problem, summary)
            }
            None => (None, None, summary.summary.map(Into::into)),
        };
        Self {
            title: summary.title.map(Into::into),
            description,
            frontmatter,
            unlisted,
            files: [file].into(),
            package: None,
            dynamic: false,
            registered: None,
        }
    }

    /// Whether it is in `skills/list`.
    pub fn is_listed(&self) -> bool {
        self.frontmatter.is_some() && self.unlisted.is_none()
    }

    /// Returns one file by its path.
    pub fn find_file(&self, path: &RelPath) -> Option<&FileEntry> {
        let at = self.files.binary_search_by(|f| f.path.cmp(path)).ok()?;
        self.files.get(at)
    }

    /// Returns the size of all files in bytes.
    pub fn total_size(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// Returns one digest over the whole file set; approvals are bound to it.
    pub fn digest(&self) -> repertoire_core::Digest {
        repertoire_core::Manifest::digest_of(&self.files)
    }

    /// Parses metadata that a store keeps as JSON.
    pub(crate) fn from_stored(text: &str, store: &std::path::Path) -> Result<Self> {
        let corrupt = |error: serde_json::Error| Error::Corrupt {
            path: store.to_owned(),
            reason: format!("unreadable metadata: {error}"),
        };
        let mut metadata: Self = repertoire_core::json::from_str(text).map_err(corrupt)?;
        if let Some(front) = &metadata.frontmatter {
            // It is served unchanged, and the store may be untrusted: it must parse as one JSON
            // object, and it is serialised again here.
            let read: serde_json::Map<String, Value> =
                repertoire_core::json::from_str(front).map_err(corrupt)?;
            if metadata.unlisted.is_none() {
                metadata.unlisted = ListingProblem::find(&read).map(Box::new);
            }
            metadata.frontmatter = Some(Value::Object(read).to_string().into());
        }
        Ok(metadata)
    }
}

/// Parses the package file of a file set; `None` if there is none or it adds nothing.
pub(crate) fn parse_package(
    files: &std::collections::BTreeMap<RelPath, Bytes>,
) -> Result<Option<Package>> {
    let has = files.keys().any(|path| path.as_str() == PACKAGE_FILE);
    if !has {
        return Ok(None);
    }
    let package = Package::from_folder(files.clone())?;
    Ok((!package.is_plain()).then_some(package))
}

pub(crate) fn parse_utf8<'a>(path: &str, bytes: &'a [u8]) -> repertoire_core::Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| repertoire_core::Error::NotUtf8 {
        path: path.to_owned(),
        offset: error.valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_metadata_without_tags_survives_the_cache() {
        let json = br#"{"name": "n", "artifacts": [{}]}"#;
        let head = PackageMetadata::from_json(json).unwrap();
        let bytes = postcard::to_stdvec(&head).unwrap();
        assert_eq!(
            postcard::from_bytes::<PackageMetadata>(&bytes).unwrap(),
            head
        );
    }
}
