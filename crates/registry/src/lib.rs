//! Storage of skills and one catalogue over all of their sources.
//!
//! A [`Registry`] joins SQLite stores ([`store`]), folders and files on disk and bodies
//! registered at run time into one catalogue. Readers take a [`Snapshot`]; every change leaves an
//! [`CatalogueEvent`]. Bodies are not copied into the catalogue; they are read on demand.
//!
//! ```
//! use repertoire_registry::{Registry, RegistrySettings};
//!
//! let folder = tempfile::tempdir()?;
//! std::fs::create_dir(folder.path().join("hello"))?;
//! std::fs::write(
//!     folder.path().join("hello/SKILL.md"),
//!     "---\nname: hello\ndescription: Greets people. Use when someone says hello.\n---\n# Hello\n",
//! )?;
//! let registry = Registry::open(RegistrySettings::from_folders([folder.path().to_owned()]))?;
//! let snapshot = registry.snapshot();
//! let titles: Vec<_> = snapshot.skills().map(|entry| entry.metadata.title.as_deref()).collect();
//! assert_eq!(titles, [Some("Hello")]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod catalogue;
mod catalogue_text;
mod error;
pub mod folder;
mod origin;
pub mod registered;
mod registry;
pub mod remote;
#[cfg(feature = "search")]
pub mod search;
mod settings;
mod skill_metadata;
mod source;
pub mod store;
pub mod trust;
mod watch;

pub use catalogue::{
    AccountSkills, CatalogueEvent, EventOp, ItemKind, Lagged, PromptEntry, SkillEntry, Snapshot,
};
pub use catalogue_text::{CatalogueText, render_catalogue_text};
pub use error::{Error, Result};
pub use origin::{Origin, QualifiedSkillId, StoreScope, Trusted};
pub use registry::{
    HistoryPolicy, NotifyUnchanged, RegisteredScope, Registry, ServedContent, SkillArtifacts,
    StateLimit,
};
pub use settings::{
    CatalogueContent, RegisteredContent, RegistrySettings, RequestedBy, SourceLocation,
};
pub use skill_metadata::{PackageMetadata, Registration, SharedText, SkillMetadata};
pub use source::{COPIES_FILE, Notice, check_pattern};
pub use watch::WatchHandle;
