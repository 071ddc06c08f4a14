//! Data model of a skill: ids, paths, URIs, documents, manifests, packages and checks.
//!
//! This crate defines how a skill is named ([`SkillId`]), which file paths it may contain
//! ([`RelPath`]), how it is addressed ([`Uri`]), how its document is parsed ([`Frontmatter`],
//! [`markdown`]), which files belong to it ([`Manifest`]), how it is exchanged ([`Package`]), how
//! it is rendered for clients ([`surface`]) and how it is checked ([`validate`](mod@validate),
//! [`lint`](mod@lint)).
//!
//! Invariant: no I/O, no clock, no async. Code that needs one of those lives in the registry.
//!
//! ```
//! use repertoire_core::{SkillId, Uri};
//!
//! let id: SkillId = "acme/billing/refunds".parse()?;
//! assert_eq!(id.name(), "refunds");
//! assert_eq!(Uri::for_document(&id).to_string(), "skill://acme/billing/refunds/SKILL.md");
//! # Ok::<(), repertoire_core::Error>(())
//! ```

mod digest;
mod error;
mod execution_record;
pub mod frontmatter;
mod function_guard;
mod id;
pub mod json;
pub mod lint;
pub mod listed_skill;
pub mod listing;
pub mod look_alike;
mod manifest;
pub mod markdown;
pub mod mime;
pub mod package;
pub mod path;
pub mod permission;
mod prompt;
mod signer;
mod skill;
mod span;
pub mod surface;
pub mod text;
mod uri;
pub mod validate;

pub use digest::{Digest, Hasher};
pub use error::{Error, Result};
pub use execution_record::{
    AssertionSeverity, ExecutionRecord, ModelUsage, RecordDetails, ResourceUse, Verdict,
};
pub use frontmatter::Frontmatter;
pub use function_guard::FunctionGuard;
pub use id::{PromptName, SkillId, SkillName};
pub use manifest::{FileEntry, MAX_BYTES, MAX_FILES, Manifest, ManifestBuilder};
pub use package::{Artifact, ArtifactKind, Package};
pub use path::{DOCUMENT, RelPath};
pub use prompt::{Prompt, PromptArgument, PromptBody};
pub use signer::Signer;
pub use skill::{Skill, SkillReference, Skills};
pub use span::{CallGroup, SkillVersion, Span, SpanKind};
pub use uri::{FunctionId, SkillUri, Uri};
