//! Asks others for skills and returns verified sets of files, within limits.
//!
//! A [`SkillSource`] says where skills are: a folder, an archive, a git repository, a web site, an
//! OCI or ClawHub registry. [`Fetcher::open`] asks that place what it has and pins what it found;
//! [`OpenedSource::read`] returns the files of chosen skills. [`mcp`] talks to MCP servers.
//!
//! Invariants: answers are bounded in bytes, entries and time before they are decoded. A request
//! for the public internet never reaches a private network. A token is sent to the origin it is
//! for and to no other. Nothing is stored here, nothing that was fetched is run, and what is trusted
//! is decided elsewhere.
//!
//! ```
//! use repertoire_remote::SkillSource;
//!
//! let source: SkillSource = "acme/skills@pdf-forms#v2".parse()?;
//! assert_eq!(source.location(), "https://github.com/acme/skills.git#v2");
//! assert_eq!(source.skill(), Some("pdf-forms"));
//! # Ok::<(), repertoire_remote::Error>(())
//! ```

mod address;
mod archive;
mod clawhub;
mod digest_hex;
mod docker_login;
mod error;
mod fetcher;
mod file_tree;
mod git;
mod http;
mod limits;
pub mod mcp;
mod oci;
mod opened_source;
mod pin;
mod plugin;
mod process_group;
mod sigstore;
mod sigstore_crypto;
mod skill_search;
mod source;
mod well_known;

pub use address::{Reach, is_public};
pub use archive::ArchiveFormat;
pub use clawhub::ClawHubResult;
pub use error::{Error, Result};
pub use fetcher::Fetcher;
pub use limits::FetchLimits;
pub use opened_source::{
    FetchedSkill, OfferedSkill, OpenedSource, SkillFiles, SourceProblem, unpack_skill,
};
pub use pin::Pin;
pub use process_group::kill_all_programs;
pub use sigstore::TrustRoot;
pub use source::{ClawHubSource, GitSource, OciSource, SkillSource, SourcePlace, SourceReach};
