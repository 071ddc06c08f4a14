//! Installs skills from anywhere, pins what was installed, and keeps it up to date.
//!
//! `repertoire.toml` says what is wanted, `repertoire.lock` what exactly was installed, and the store
//! of the scope has the files. Both files are written before the store, and what was fetched is kept
//! before either: whenever a process ends, the next `install` finishes. Invariants: what a lock pins
//! is used only with the locked digest; nothing is approved here but what `add` showed; an update
//! that cannot be merged changes nothing.

mod add;
mod approval;
mod fetch;
mod foreign_locks;
mod installer;
mod locale_order;
mod lock;
mod match_project;
mod merge;
mod migrate;
mod outdated;
mod project;
mod scratch;
mod skill_cache;
mod update;
mod verify;

pub use add::{AddRequest, AddedSkill};
pub use approval::{ApprovalView, approval_view};
pub use fetch::{FetchOptions, SourceOffer, trust_root_file};
pub use foreign_locks::has_foreign_lock;
pub use installer::{Installer, SkillChange};
pub use lock::{LockedSkill, SkillLock};
pub use match_project::{InstallMode, InstallReport};
pub use merge::{ConflictChoice, MergeConflict, MergeOutcome, merge_files};
pub use migrate::{MigratedSkill, MigrationReport};
pub use outdated::OutdatedSkill;
pub use project::{LOCK_FILE, PROJECT_FILE, ProjectOwner, SkillProject, WantedSkill, find_project};
pub use skill_cache::SkillCache;
pub use update::{FileChoice, SkillConflict, UpdateReport, UpdateRequest, UpdatedSkill};
pub use verify::{SkillState, VerifiedSkill, VerifyReport};
