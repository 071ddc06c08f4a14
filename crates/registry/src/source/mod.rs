//! Skills and prompts in files: always live, never copied.
//!
//! [`root`] opens files beneath a folder and nowhere else. [`index`] knows what is in the folder
//! (in [`record`]s) and re-reads only what changed. [`files`] turns that into skills and prompts by one of three
//! plans: skill folders, loose markdown by pattern, prompts by pattern.

mod cache;
mod files;
mod index;
mod pattern;
mod record;
mod root;

pub use files::Notice;
pub(crate) use files::{FileSource, Location, Plan};
pub(crate) use pattern::Pattern;
pub use pattern::check_pattern;
pub(crate) use root::{Kind as EntryKind, Root, join};
