//! Skills and prompts in files: always current, never copied.
//!
//! [`root`] opens files beneath a folder and nowhere else. [`index`] tracks the folder's content
//! (in [`record`]s) and re-reads only changed files. [`names`] decides names that documents and
//! folders disagree on, [`links`] which links are followed. [`files`] turns it into skills and prompts by
//! one of three plans: skill folders, loose markdown by pattern, prompts by pattern.

mod cache;
mod files;
mod index;
mod links;
mod names;
mod pattern;
mod record;
mod root;

pub(crate) use files::read_copy_names;
pub use files::{COPIES_FILE, Notice};
pub(crate) use files::{ContentLocation, FileSource, SourcePlan};
pub(crate) use links::LinkPolicy;
pub(crate) use pattern::GlobPattern;
pub use pattern::check_pattern;
pub(crate) use root::{DirEntryKind as EntryKind, RootDir, join_path};
