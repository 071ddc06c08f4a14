//! Multi-artifact packages and their two lossless forms.
//!
//! The **JSON** form is one document. The **folder** form is `SKILL.md` plus `skill.json`, the
//! same JSON with `file` in place of each artifact's `content`; the first description artifact *is*
//! the body of `SKILL.md`. A package folder is therefore an ordinary skill too. Content that only
//! one form can express is kept in `frontmatter`, `document` and `files`, so a round trip in either
//! direction gives the same bytes.
//!
//! Invariant: a [`Package`] from [`Package::from_json`] or [`Package::from_folder`] has passed
//! [`Package::check_package`]; it is fully validated before anything is written.

mod artifact;
mod folder;

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use uuid::Uuid;

pub use artifact::{Artifact, ArtifactKind};

use crate::{
    digest::Hasher,
    error::{Error, Result},
    id::{SkillId, SkillName},
    path::RelPath,
    text::make_slug,
};

/// The most bytes the JSON form may have. Base64 makes it larger than the skill it holds.
pub const MAX_JSON: usize = 32 * 1024 * 1024;
/// The most artifacts a package may have.
pub const MAX_ARTIFACTS: usize = 256;
/// The file of the folder form that holds everything but the contents.
pub const PACKAGE_FILE: &str = "skill.json";

/// Where a package came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageSource {
    /// Shipped with the product.
    System,
    /// From a marketplace.
    Community,
    /// Made or imported by the user.
    #[default]
    User,
}

impl PackageSource {
    /// The word used in JSON and in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Community => "community",
            Self::User => "user",
        }
    }
}

/// A supporting file of a package, beside its artifacts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageFile {
    /// Its path below the skill's root.
    pub path: RelPath,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A skill as a package of typed artifacts.
///
/// ```
/// use repertoire_core::Package;
///
/// let json = br#"{"name": "Tone Check", "description": "Checks tone.",
///   "artifacts": [{"kind": "description", "name": "Overview", "content": "Looks at tone."}]}"#;
/// let package = Package::from_json(json)?;
/// assert_eq!(package.skill_id()?.as_str(), "tone-check");
/// assert_eq!(Package::from_folder(package.to_folder()?)?, package);
/// # Ok::<(), repertoire_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// A UUID; made from the name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// The human name, unique within a scope.
    pub name: String,
    /// The description shown in the catalogue, 1 to 1024 characters.
    pub description: String,
    /// The package's own version.
    #[serde(default = "first_version")]
    pub version: String,
    /// Labels to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Where it came from.
    #[serde(default)]
    pub source: PackageSource,
    /// Who made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// When it was made, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When it was last changed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Patterns of requests that the skill serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intent_patterns: Vec<String>,
    /// Phrases in a message that activate the skill.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trigger_phrases: Vec<String>,
    /// Its id in a marketplace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marketplace_id: Option<String>,
    /// The marketplace's `ETag` at the last sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_etag: Option<String>,
    /// Its artifacts.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// The frontmatter block of `SKILL.md`, fences included, where it is not the generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontmatter: Option<String>,
    /// The whole `SKILL.md`, where no description artifact is its body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// Supporting files that are not artifacts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PackageFile>,
}

fn first_version() -> String {
    "1.0.0".to_owned()
}

impl Package {
    /// Creates a package without artifacts and files.
    pub fn new(name: String, description: String, document: Option<String>) -> Self {
        Self {
            id: None,
            name,
            description,
            version: first_version(),
            tags: Vec::new(),
            source: PackageSource::User,
            author: None,
            created_at: None,
            updated_at: None,
            intent_patterns: Vec::new(),
            trigger_phrases: Vec::new(),
            marketplace_id: None,
            sync_etag: None,
            artifacts: Vec::new(),
            frontmatter: None,
            document,
            files: Vec::new(),
        }
    }

    /// Reads and checks the JSON form.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_JSON {
            return Err(Error::TooLarge {
                what: "the package".to_owned(),
                size: bytes.len() as u64,
                max: MAX_JSON as u64,
            });
        }
        let mut package: Self = crate::json::from_slice(bytes).map_err(|e| json_error(&e))?;
        // A folder is unordered, so files are kept sorted by path.
        package.files.sort_by(|a, b| a.path.cmp(&b.path));
        package.check_package()?;
        Ok(package)
    }

    /// The canonical JSON form: fields in a fixed order, two spaces of indent, a final newline.
    pub fn to_json(&self) -> Vec<u8> {
        // The type holds only strings, numbers and maps with string keys.
        let mut out = serde_json::to_vec_pretty(self).unwrap_or_default();
        out.push(b'\n');
        out
    }

    /// The skill id: the name if it is one that ends in an Agent Skills name, else its slug.
    pub fn skill_id(&self) -> Result<SkillId> {
        if let Ok(id) = self.name.parse::<SkillId>()
            && id.skill_name().is_some()
        {
            return Ok(id);
        }
        let slug = make_slug(&self.name);
        if slug.is_empty() {
            // A name without ASCII letters still needs a stable id.
            let digest = crate::Digest::hash_bytes(self.name.as_bytes()).hex_digits();
            return format!("skill-{}", &digest[..12]).parse();
        }
        slug.parse()
    }

    fn skill_name(&self) -> Result<SkillName> {
        self.skill_id()?.name().parse()
    }

    /// The package's UUID: the given one, or one made from its name.
    pub fn uuid(&self) -> Uuid {
        self.id
            .unwrap_or_else(|| stable_uuid(&["skill", &self.name]))
    }

    /// The UUID of an artifact: the given one, or one made from package, name and variant.
    pub fn artifact_uuid(&self, artifact: &Artifact) -> Uuid {
        artifact.id.unwrap_or_else(|| {
            let variant = artifact.model_variant.as_deref().unwrap_or_default();
            stable_uuid(&[
                "artifact",
                &self.uuid().to_string(),
                &artifact.name,
                variant,
            ])
        })
    }

    /// Checks every rule; a package that passes can be stored, unpacked and served.
    pub fn check_package(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::Package(text));
        if self.name.trim().is_empty() {
            return refuse("`name` must be non-empty".into());
        }
        if self.name.chars().count() > 128 {
            return refuse("`name` is too long: at most 128 characters".into());
        }
        let description = self.description.chars().count();
        if self.description.trim().is_empty() || description > 1024 {
            return refuse(format!(
                "`description` has {description} characters: 1 to 1024 are needed"
            ));
        }
        if self.version.trim().is_empty() {
            return refuse("`version` must be non-empty".into());
        }
        if self.artifacts.len() > MAX_ARTIFACTS {
            return refuse(format!(
                "{} artifacts: at most {MAX_ARTIFACTS}",
                self.artifacts.len()
            ));
        }
        for list in [&self.tags, &self.intent_patterns, &self.trigger_phrases] {
            if list.len() > 256 || list.iter().any(|t| t.len() > 1024) {
                return refuse("a list of tags, patterns or phrases is too long".into());
            }
        }
        self.skill_name()?;
        self.check_artifacts()?;
        self.check_document()?;
        // The folder form exists and fits the limits of a skill.
        let folder = self.to_folder()?;
        crate::Manifest::new(
            folder
                .iter()
                .map(|(path, bytes)| crate::FileEntry::from_bytes(path.clone(), bytes)),
        )?;
        Ok(())
    }

    fn check_artifacts(&self) -> Result<()> {
        let mut places = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for artifact in &self.artifacts {
            artifact.check_artifact()?;
            if !places.insert((&artifact.name, &artifact.model_variant)) {
                return Err(Error::DuplicateArtifact {
                    name: artifact.name.clone(),
                    variant: artifact.model_variant.clone().unwrap_or("default".into()),
                });
            }
            if !ids.insert(self.artifact_uuid(artifact)) {
                return Err(Error::Package(format!(
                    "artifact id {} is there twice",
                    self.artifact_uuid(artifact)
                )));
            }
            if let Some(fallback) = artifact.fallback_name() {
                let found = self
                    .artifacts
                    .iter()
                    .any(|a| a.name == fallback && a.kind == ArtifactKind::PromptTemplate);
                if !found {
                    return Err(Error::Package(format!(
                        "artifact {:?} falls back to {fallback:?}, which is no prompt_template \
                         of this package",
                        artifact.name
                    )));
                }
            }
        }
        Ok(())
    }

    fn check_document(&self) -> Result<()> {
        if self.frontmatter.is_some() && self.body_artifact().is_none() {
            return Err(Error::Package(
                "`frontmatter` needs a description artifact as the body of SKILL.md".into(),
            ));
        }
        let text = self.skill_document()?;
        let cut = crate::frontmatter::split_document(&text)?;
        let front = crate::Frontmatter::parse(cut.yaml, 2)?;
        if self.frontmatter.as_deref().is_some_and(|f| f != cut.block) {
            return Err(Error::Package(
                "`frontmatter` must be one block with its fences".into(),
            ));
        }
        let want = self.skill_name()?;
        if front.get_text("name") != Some(want.as_str()) {
            return Err(Error::Package(format!(
                "the frontmatter of SKILL.md must have `name: {want}`"
            )));
        }
        if front
            .get_text("description")
            .is_none_or(|d| d.trim().is_empty())
        {
            return Err(Error::Package(
                "the frontmatter of SKILL.md must have a description".into(),
            ));
        }
        Ok(())
    }

    /// The artifact that is the body of `SKILL.md`: the first description without a variant.
    pub fn body_artifact(&self) -> Option<&Artifact> {
        if self.document.is_some() {
            return None;
        }
        self.artifacts
            .iter()
            .filter(|a| {
                a.kind == ArtifactKind::Description && a.model_variant.is_none() && a.file.is_none()
            })
            .min_by_key(|a| a.ordinal)
    }

    /// The package's `SKILL.md`.
    pub fn skill_document(&self) -> Result<String> {
        if let Some(document) = &self.document {
            return Ok(document.clone());
        }
        let block = match &self.frontmatter {
            Some(block) => block.clone(),
            None => crate::surface::frontmatter_block(&self.skill_name()?, &self.description),
        };
        Ok(match self.body_artifact() {
            Some(lead) => block + &lead.content,
            None => format!("{block}# {}\n\n{}\n", self.name, self.description),
        })
    }
}

/// Converts a JSON error into an error of the package.
fn json_error(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    // Unknown kinds have their own error code, so that callers can distinguish them.
    if let Some(rest) = text.split("unknown kind `").nth(1)
        && let Some((kind, _)) = rest.split_once('`')
    {
        return Error::UnknownKind(kind.to_owned());
    }
    Error::Package(format!("not a package: {text}"))
}

/// A UUID derived from these words only.
fn stable_uuid(words: &[&str]) -> Uuid {
    let mut hasher = Hasher::default();
    for word in words {
        hasher.update(word.as_bytes());
        hasher.update(&[0]);
    }
    let digest = hasher.finish();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    Uuid::new_v8(bytes)
}

/// Kind-specific settings of an artifact.
pub type ArtifactMetadata = Map<String, serde_json::Value>;

/// Files in JSON: text where it is text, base64 otherwise.
mod files_in_json {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

    use super::PackageFile;
    use crate::path::RelPath;

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SupportingFileJson {
        path: RelPath,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    }

    impl Serialize for PackageFile {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let text = std::str::from_utf8(&self.bytes).ok();
            SupportingFileJson {
                path: self.path.clone(),
                content: text.map(str::to_owned),
                base64: match text {
                    Some(_) => None,
                    None => Some(BASE64_STANDARD.encode(&self.bytes)),
                },
            }
            .serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for PackageFile {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let wire = SupportingFileJson::deserialize(deserializer)?;
            let bytes = match (wire.content, wire.base64) {
                (Some(text), None) => text.into_bytes(),
                (None, Some(text)) => BASE64_STANDARD
                    .decode(text)
                    .map_err(|e| D::Error::custom(format!("file {}: base64: {e}", wire.path)))?,
                _ => {
                    return Err(D::Error::custom(format!(
                        "file {} needs either `content` or `base64`",
                        wire.path
                    )));
                }
            };
            Ok(Self {
                path: wire.path,
                bytes: bytes.into(),
            })
        }
    }
}

#[cfg(test)]
mod tests;
