//! Skills as other servers list them. Nothing here is verified yet.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Digest, SkillName};

/// The extension of the Model Context Protocol for skills.
pub const SKILLS_EXTENSION: &str = "io.modelcontextprotocol/skills";
/// The most skills that are accepted from one server.
pub const MAX_SKILLS: usize = 10_000;

/// The name a user gives another server: 1 to 64 lowercase letters, digits and hyphens.
///
/// It is the first segment of the ids of that server's skills, so that every id shows its origin.
pub type RemoteLabel = SkillName;

/// One skill as another server lists it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListedSkill {
    /// The URI of its document.
    pub uri: String,
    /// Its frontmatter as JSON.
    pub frontmatter: Map<String, Value>,
    /// Its files.
    pub resources: ListedResources,
    /// Whether the frontmatter has only some fields, because the server does not list skills in the
    /// final form.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// The resource that has all files in an archive, where they are no resources of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
}

/// The files of a listed skill.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ListedResources {
    /// The complete list of files.
    Files(Vec<ListedFile>),
    /// The word `dynamic`: content is generated at each read.
    Dynamic(DynamicMarker),
}

/// The word `dynamic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DynamicMarker {
    /// Content is generated at each read.
    #[serde(rename = "dynamic")]
    Dynamic,
}

/// A file of a listed skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// The URI to read it from.
    pub uri: String,
    /// The digest of its bytes.
    pub digest: Digest,
    /// The number of its bytes.
    pub size: u64,
}

/// A listed skill that was refused, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedSkill {
    /// Its URI on the server, as listed.
    pub uri: String,
    /// The stable code of the reason.
    pub code: &'static str,
    /// The reason.
    pub message: String,
}
