//! Serves the skills of a registry to MCP hosts and iii workers.
//!
//! Over MCP a skill is a set of verified resources, an entry of `skills/list`, a prompt and the
//! answer of a tool; all of them come from one value. [`Server`] serves skills written in code
//! in a few lines, [`SkillService`] serves a whole registry, [`McpConnection`] adds skills to another
//! server.
//!
//! ```
//! use repertoire_serve::{Server, Skill};
//!
//! let greeting = Skill::new("hello", "---\nname: hello\ndescription: Greets.\n---\n# Hello\n");
//! let server = Server::builder()
//!     .name("demo")
//!     .version("0.1.0")
//!     .bootstrap_skill_and_prompt(greeting, "say_hello")
//!     .build()?;
//! # let _ = server;
//! # Ok::<(), repertoire_serve::Error>(())
//! ```
//!
//! Invariant: only this crate knows JSON-RPC; it knows no SQL and opens no skill file.

mod builder;
mod error;
mod function_links;
pub mod http;
pub mod iii;
mod instructions;
pub mod local_token;
pub mod mcp;
mod metrics;
mod optional_tools;
pub mod otlp;
mod peer_limits;
mod peer_owner;
pub mod permissions;
mod port_user;
mod resource_json;
mod resource_reader;
mod search_feedback;
mod server_refresh;
mod service;
mod stdio;

/// Embeds the skill in a folder, read and checked when the program is compiled.
///
/// The folder is relative to the crate's `Cargo.toml`. A folder that is not a valid skill is a
/// compile error, and a change to one of its files triggers a rebuild.
///
/// ```
/// use repertoire_serve::{Server, embed_skill};
///
/// let skill = embed_skill!("../../examples/skills/hello-world");
/// let server = Server::builder().skill(skill).build()?;
/// # let _ = server;
/// # Ok::<(), repertoire_serve::Error>(())
/// ```
#[macro_export]
macro_rules! embed_skill {
    ($folder:literal) => {
        $crate::macros::embed!($crate $folder)
    };
}

pub use builder::{Server, ServerBuilder};
pub use error::{Error, ListenProblem, Result};
pub use mcp::McpConnection;
pub use optional_tools::OptionalTools;
pub use port_user::find_port_user;
pub use repertoire_app::FileWatching;
pub use repertoire_core::{Skill, SkillReference, Skills, Uri};
#[doc(hidden)]
pub use repertoire_macros as macros;
pub use rmcp;
pub use server_refresh::follow_servers;
pub use service::{PromptExposure, ServeOptions, ServerIdentity, SkillService};
pub use stdio::serve_stdio;
