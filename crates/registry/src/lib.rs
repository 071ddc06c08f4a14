//! Where skills are kept, and the one view over all of them.
//!
//! A [`Registry`] joins SQLite stores ([`store`]), folders and files on disk and bodies
//! registered at run time into one catalogue. Readers take a [`Snapshot`]; every change leaves an
//! [`Event`]. Bodies stay where they are and are read on demand.
//!
//! ```
//! use repertoire_registry::{Registry, Settings};
//!
//! let folder = tempfile::tempdir()?;
//! std::fs::create_dir(folder.path().join("hello"))?;
//! std::fs::write(
//!     folder.path().join("hello/SKILL.md"),
//!     "---\nname: hello\ndescription: Greets people. Use when someone says hello.\n---\n# Hello\n",
//! )?;
//! let registry = Registry::open(Settings::of_folders([folder.path().to_owned()]))?;
//! let snapshot = registry.snapshot();
//! let titles: Vec<_> = snapshot.skills().map(|entry| entry.head.title.as_deref()).collect();
//! assert_eq!(titles, [Some("Hello")]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod brief;
mod catalogue;
mod error;
pub mod folder;
mod head;
mod origin;
pub mod registered;
mod registry;
pub mod remote;
#[cfg(feature = "search")]
pub mod search;
mod settings;
mod source;
pub mod store;
pub mod trust;
mod watch;

pub use brief::{Brief, brief};
pub use catalogue::{Entry, Event, Kind, Lagged, Op, PromptEntry, Snapshot};
pub use error::{Error, Result};
pub use head::{Head, PackageHead, Registered, Text};
pub use origin::{Origin, Reference, Scope, Trusted};
pub use registry::{Content, Feed, History, Parts, Registry, Retell, StateLimit};
pub use settings::{AskedBy, Place, Settings, StateFrom, StoreUse};
pub use source::{Notice, check_pattern};
pub use watch::Watch;
