//! Skills on their way into a store, and what a store says of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use repertoire_core::{Artifact, Digest, FileEntry, Package, RelPath, SkillId};
use serde::Serialize;
use uuid::Uuid;

use super::{InstalledFrom, OriginChange};
use crate::{
    error::Result,
    skill_metadata::{SkillMetadata, parse_package},
};

/// A skill that passed every check and can be stored.
#[derive(Debug, Clone)]
pub struct NewSkill {
    pub(super) id: SkillId,
    pub(super) files: BTreeMap<RelPath, Bytes>,
    pub(super) package: Option<Package>,
    pub(super) metadata: SkillMetadata,
}

impl NewSkill {
    /// Creates a skill from its complete file set; a package if it holds a package file.
    pub fn from_files(id: SkillId, files: BTreeMap<RelPath, Bytes>) -> Result<Self> {
        let package = parse_package(&files)?;
        let metadata = SkillMetadata::from_files(&id, files.iter(), package.as_ref())?;
        Ok(Self {
            id,
            files,
            package,
            metadata,
        })
    }

    /// Creates a skill from the JSON form of a package.
    pub fn from_package(package: &Package) -> Result<Self> {
        let (id, files) = package.to_stored_folder()?;
        Self::from_files(id, files)
    }

    /// Returns the id it will be stored under.
    pub fn id(&self) -> &SkillId {
        &self.id
    }

    /// Returns its files.
    pub fn files(&self) -> &BTreeMap<RelPath, Bytes> {
        &self.files
    }

    /// Returns its package, if it is one.
    pub fn package(&self) -> Option<&Package> {
        self.package.as_ref()
    }

    /// Returns its metadata.
    pub fn metadata(&self) -> &SkillMetadata {
        &self.metadata
    }
}

/// One write of a skill.
#[derive(Debug, Clone)]
pub struct SkillWrite {
    /// The new content.
    pub skill: NewSkill,
    /// Why it is written, for the history.
    pub kind: RevisionKind,
    /// What must be stored now; otherwise nothing is written.
    pub current: CurrentSkill,
    /// What is recorded about where it came from.
    pub origin: OriginChange,
    /// The files of the origin that differ from those of the skill and may not be stored yet.
    pub base_files: BTreeMap<RelPath, Bytes>,
}

impl SkillWrite {
    /// Stores a skill, whatever was there before.
    pub fn put(skill: NewSkill) -> Self {
        Self {
            skill,
            kind: RevisionKind::Put,
            current: CurrentSkill::Any,
            origin: OriginChange::Keep,
            base_files: BTreeMap::new(),
        }
    }
}

/// What a write expects to be stored under the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurrentSkill {
    /// Anything or nothing.
    Any,
    /// Nothing; otherwise the write fails with [`AlreadyExists`](crate::Error::AlreadyExists).
    Absent,
    /// A skill with this digest; otherwise the write fails with
    /// [`Changed`](crate::Error::Changed).
    Digest(Digest),
}

/// Whether a write is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// It is stored.
    Commit,
    /// It is rolled back; only its result is wanted.
    DryRun,
}

/// How a revision came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionKind {
    /// The skill was added or changed.
    Put,
    /// An earlier revision was restored. It leaves a revision even if nothing changed.
    Rollback,
    /// A learned state was stored.
    Optimize,
    /// The skill was removed.
    Remove,
}

impl RevisionKind {
    /// Returns the word in the history.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Rollback => "rollback",
            Self::Optimize => "optimize",
            Self::Remove => "remove",
        }
    }
}

/// One state of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillRevision {
    /// Its number, from 1.
    pub revision: i64,
    /// `put`, `rollback`, `optimize` (also if it found nothing better) or `remove`.
    pub op: String,
    /// When it was recorded, RFC 3339 in UTC.
    pub at: String,
    /// The package's version in this revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its files in this revision; none after a removal.
    pub files: Vec<FileEntry>,
    /// Where the skill was installed from, if it was.
    #[serde(skip)]
    pub origin: Option<InstalledFrom>,
}

/// How to find a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkillKey<'a> {
    /// By its UUID.
    Uuid(Uuid),
    /// By its id in the catalogue.
    Id(&'a SkillId),
    /// By its name.
    Name(&'a str),
    /// By the UUID of one of its artifacts.
    Artifact(Uuid),
}

/// Summary of a skill without its artifacts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SkillSummary {
    /// Its UUID.
    pub id: Uuid,
    /// Its id in the catalogue.
    pub path: SkillId,
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// Its version.
    pub version: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// `system`, `community` or `user`.
    pub source: String,
}

/// A DSPy module with a learned state.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizedModule {
    /// The UUID of its skill.
    pub skill: Uuid,
    /// The id of its skill in the catalogue.
    pub path: String,
    /// The module.
    pub artifact: Artifact,
}
