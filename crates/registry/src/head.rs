//! What the catalogue knows of a skill without its bodies.
//!
//! A head is made once, when a skill enters or changes, from the bytes it describes. It is small:
//! listing ten thousand skills reads ten thousand heads and no body.

use std::sync::Arc;

use bytes::Bytes;
use repertoire_core::{
    FileEntry, Frontmatter, Manifest, Package, RelPath, Skill, SkillId, frontmatter,
    markdown::{Head as Summary, cut, one_line},
    package::PACKAGE_FILE,
    surface,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A text that is shared, never copied, once it has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(Arc<str>);

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for Text {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self)
    }
}

impl Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }

            // Straight into its shared place, without a string in between.
            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(text.into())
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// The metadata of one skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The first heading of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<Text>,
    /// The description of the frontmatter, or the first paragraph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<Text>,
    /// The frontmatter as JSON text, in the author's order. None: served under `iii://` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontmatter: Option<Text>,
    /// Every file with size and digest.
    pub files: Box<[FileEntry]>,
    /// What a package adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<Arc<PackageHead>>,
    /// Its content is made when it is read: there are no digests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dynamic: bool,
    /// When it was registered, and how long the body was that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Registered>,
}

/// What is known of a registration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// When, RFC 3339 in UTC.
    pub at: Text,
    /// The bytes of the body.
    pub bytes: u64,
}

/// What a package adds to a head.
///
/// Every field is always written: the cache of the index knows fields by their place alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageHead {
    /// The human name.
    pub name: Text,
    /// The package's version.
    pub version: Text,
    /// Its tags.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What a message may ask for.
    #[serde(default)]
    pub intent_patterns: Vec<String>,
    /// What a message may say.
    #[serde(default)]
    pub trigger_phrases: Vec<String>,
    /// How many artifacts it has.
    pub artifacts: usize,
}

/// What is read from a document alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentHead {
    pub(crate) name: Text,
    pub(crate) title: Option<Text>,
    pub(crate) description: Text,
    pub(crate) frontmatter: Text,
}

impl DocumentHead {
    /// Reads a `SKILL.md`; refuses one that no host could use.
    pub(crate) fn of(bytes: &[u8]) -> repertoire_core::Result<Self> {
        let text = utf8(repertoire_core::DOCUMENT, bytes)?;
        let mut head = Self::untitled(text)?;
        head.title = Summary::of(text).title.map(Into::into);
        Ok(head)
    }

    /// The same without the title, which is the only thing that is not in the frontmatter.
    fn untitled(text: &str) -> repertoire_core::Result<Self> {
        let front = Frontmatter::parse(frontmatter::split(text)?.yaml, 2)?;
        let field = |key: &str| {
            front
                .text(key)
                .filter(|t| !t.trim().is_empty())
                .ok_or_else(|| repertoire_core::Error::Field {
                    field: key.to_owned(),
                    rule: "must be there, as non-empty text".to_owned(),
                })
        };
        Ok(Self {
            name: field("name")?.into(),
            title: None,
            description: one_line(field("description")?).into(),
            frontmatter: serde_json::Value::Object(front.to_json())
                .to_string()
                .into(),
        })
    }
}

impl PackageHead {
    pub(crate) fn of(package: &Package) -> Self {
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

impl PackageHead {
    /// Reads the metadata of a package file; `None` if the file is something else's.
    pub(crate) fn of_json(bytes: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Wire {
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
        let wire: Wire = repertoire_core::json::from_slice(bytes).ok()?;
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

impl Head {
    pub(crate) fn new(
        document: &DocumentHead,
        files: Manifest,
        package: Option<Arc<PackageHead>>,
    ) -> Self {
        Self {
            title: document.title.clone(),
            description: Some(document.description.clone()),
            frontmatter: Some(document.frontmatter.clone()),
            files: files.into_files(),
            package,
            dynamic: false,
            registered: None,
        }
    }

    /// The head of a skill written in code.
    ///
    /// One whose document is no skill of its id has no frontmatter here, and is a resource only.
    pub(crate) fn of_skill(skill: &Skill) -> repertoire_core::Result<Self> {
        let document = FileEntry::of(RelPath::document(), skill.body().as_bytes());
        let references = skill
            .references()
            .iter()
            .map(|r| Ok(FileEntry::of(r.path().parse()?, r.body())))
            .collect::<repertoire_core::Result<Vec<_>>>()?;
        let front = skill.frontmatter().ok();
        Ok(Self {
            title: Summary::of(skill.body()).title.map(Into::into),
            description: skill.description().map(|d| one_line(d).into()),
            frontmatter: front.map(|front| {
                serde_json::Value::Object(front.to_json())
                    .to_string()
                    .into()
            }),
            files: Manifest::new(std::iter::once(document).chain(references))?.into_files(),
            package: None,
            dynamic: false,
            registered: None,
        })
    }

    /// The head of a complete file set that belongs at this id.
    pub(crate) fn of_files<'a>(
        id: &SkillId,
        files: impl Iterator<Item = (&'a RelPath, &'a Bytes)> + Clone,
        package: Option<&Package>,
    ) -> Result<Self> {
        let manifest = Manifest::new(files.clone().map(|(p, b)| FileEntry::of(p.clone(), b)))?;
        let mut files = files;
        let document = files
            .find(|(path, _)| path.is_document())
            .map(|(_, bytes)| DocumentHead::of(bytes))
            .ok_or(repertoire_core::Error::NoDocument)??;
        if *document.name != *id.name() {
            return Err(Error::NameMismatch {
                path: repertoire_core::DOCUMENT.into(),
                name: document.name.to_string(),
                folder: id.name().to_owned(),
            });
        }
        let package = package.map(PackageHead::of).map(Arc::new);
        Ok(Self::new(&document, manifest, package))
    }

    /// The head of a body registered at run time.
    pub(crate) fn of_body(id: &SkillId, body: &str, at: &str) -> Self {
        let summary = Summary::of(body);
        let document = surface::registered_document_with(id, body, || summary.clone());
        Self {
            registered: Some(Registered {
                at: at.into(),
                bytes: body.len() as u64,
            }),
            ..Self::of_loose(body, summary, document.as_deref())
        }
    }

    /// The head of a loose markdown file: a skill only if it is already a document of that id.
    pub(crate) fn of_markdown(id: &SkillId, body: &str) -> Self {
        let own = DocumentHead::untitled(body)
            .ok()
            .filter(|d| *d.name == *id.name() && id.skill_name().is_some());
        Self::of_loose(body, Summary::of(body), own.map(|_| body))
    }

    fn of_loose(body: &str, summary: Summary, document: Option<&str>) -> Self {
        let read = document.and_then(|d| Some((d, DocumentHead::untitled(d).ok()?)));
        let file = FileEntry::of(
            RelPath::document(),
            read.as_ref().map_or(body, |r| r.0).as_bytes(),
        );
        Self {
            title: summary.title.map(Into::into),
            description: match &read {
                // What was only made up for hosts that need one says nothing new.
                Some((document, head)) if *document == body => {
                    Some(cut(&head.description, 1024).into())
                }
                _ => summary.summary.map(Into::into),
            },
            frontmatter: read.map(|(_, head)| head.frontmatter),
            files: [file].into(),
            package: None,
            dynamic: false,
            registered: None,
        }
    }

    /// Whether hosts that know Agent Skills can be given this.
    pub fn is_skill(&self) -> bool {
        self.frontmatter.is_some()
    }

    /// One file by its path.
    pub fn file(&self, path: &RelPath) -> Option<&FileEntry> {
        let at = self.files.binary_search_by(|f| f.path.cmp(path)).ok()?;
        self.files.get(at)
    }

    /// The bytes of all files together.
    pub fn size(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// One digest over the whole file set: what an approval binds to.
    pub fn digest(&self) -> repertoire_core::Digest {
        repertoire_core::Manifest::digest_of(&self.files)
    }
}

/// Whether a file set holds a package file of ours.
pub(crate) fn package_of(
    files: &std::collections::BTreeMap<RelPath, Bytes>,
) -> Result<Option<Package>> {
    let has = files.keys().any(|path| path.as_str() == PACKAGE_FILE);
    if !has {
        return Ok(None);
    }
    let package = Package::from_folder(files.clone())?;
    Ok((!package.is_plain()).then_some(package))
}

pub(crate) fn utf8<'a>(path: &str, bytes: &'a [u8]) -> repertoire_core::Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| repertoire_core::Error::NotUtf8 {
        path: path.to_owned(),
        offset: error.valid_up_to(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_heads_without_tags_come_back_from_the_cache() {
        let json = br#"{"name": "n", "artifacts": [{}]}"#;
        let head = PackageHead::of_json(json).unwrap();
        let bytes = postcard::to_stdvec(&head).unwrap();
        assert_eq!(postcard::from_bytes::<PackageHead>(&bytes).unwrap(), head);
    }
}
