//! The skill as one value.
//!
//! This crate defines what a skill *is*: how it is named ([`SkillId`]), where a file of it may
//! stand ([`RelPath`]), how it is addressed ([`Uri`]), what its document says ([`Frontmatter`],
//! [`markdown`]), which bytes belong to it ([`Manifest`]), how it travels ([`Package`]), every
//! byte that is shown of it ([`surface`]) and what is wrong with it ([`validate`](mod@validate),
//! [`lint`](mod@lint)).
//!
//! Invariant: no I/O, no clock, no async. Whatever needs one of those lives in the registry.
//!
//! ```
//! use repertoire_core::{SkillId, Uri};
//!
//! let id: SkillId = "acme/billing/refunds".parse()?;
//! assert_eq!(id.name(), "refunds");
//! assert_eq!(Uri::document(&id).to_string(), "skill://acme/billing/refunds/SKILL.md");
//! # Ok::<(), repertoire_core::Error>(())
//! ```

mod digest;
mod error;
pub mod frontmatter;
mod guard;
mod id;
pub mod json;
pub mod lint;
mod manifest;
pub mod markdown;
pub mod mime;
pub mod package;
pub mod path;
mod prompt;
mod skill;
pub mod surface;
pub mod text;
mod uri;
pub mod validate;

pub use digest::{Digest, Hasher};
pub use error::{Error, Result};
pub use frontmatter::Frontmatter;
pub use guard::Guard;
pub use id::{PromptName, SkillId, SkillName};
pub use manifest::{FileEntry, MAX_BYTES, MAX_FILES, Manifest, ManifestBuilder};
pub use package::{Artifact, ArtifactKind, Package};
pub use path::{DOCUMENT, RelPath};
pub use prompt::{Prompt, PromptArgument, PromptBody};
pub use skill::{Skill, SkillReference, Skills};
pub use uri::{FunctionId, SkillUri, Uri};
