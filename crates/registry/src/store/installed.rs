//! Where a stored skill was installed from, and what exactly was installed.

use repertoire_core::{Digest, FileEntry, Manifest, Signer};
use serde::{Deserialize, Serialize};

/// The origin of a skill that came from elsewhere.
///
/// The files that were installed stay in the store for as long as the skill does, so that later
/// changes of the source and of the user can be merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledFrom {
    /// The source as it was asked for.
    pub source: String,
    /// The skill of the source, where it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// Where that was, in full.
    pub resolved: String,
    /// What was fetched: a commit, a manifest, an archive.
    pub pin: String,
    /// The version, where the source has versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Who signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<Signer>,
    /// The files that were installed.
    pub files: Vec<FileEntry>,
}

impl InstalledFrom {
    /// The digest of the files that were installed.
    pub fn digest(&self) -> Digest {
        Manifest::digest_of(&self.files)
    }
}

/// What a write says about the origin of a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OriginChange {
    /// It is as it was: the user changed the content, or the skill was never installed.
    #[default]
    Keep,
    /// The skill was installed or updated.
    Set(Box<InstalledFrom>),
    /// The skill is the user's own from now on.
    Clear,
}
