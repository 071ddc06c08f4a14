//! Runs skills: executes an artifact in a context and records the result.
//!
//! A [`LoadableSkill`] loads artifacts, an [`ArtifactDispatcher`] runs each by its kind, a [`Model`]
//! answers requests, assertions check outputs, and every execution leaves one [`ExecutionRecord`].
//! Where skills and records are stored is decided by the caller.

pub mod assertion;
pub mod dispatch;
mod error;
#[cfg_attr(
    not(feature = "sandbox"),
    allow(dead_code, reason = "only scripts are metered")
)]
mod limits;
pub mod model;
pub mod optimize;
pub mod orchestrate;
#[cfg(feature = "providers")]
pub mod provider;
mod record;
mod redact;
pub mod run;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod sidecar;
pub mod spans;
pub mod template;
pub mod variant;
pub mod workspace;

pub use dispatch::{
    ArtifactDispatcher, ArtifactHandler, ArtifactInfo, ArtifactOutput, Checkpoints,
    ExecutionContext, InMemoryCheckpoints, LoadableSkill, NestedSkills, SkillLookup, SkillOutline,
};
pub use error::{Error, NO_PAGES, Result};
pub use limits::Limits;
pub use model::{
    Budget, ChatRole, ChatTurn, MeteredModel, Model, ModelReply, ModelRequest, ModelUsage, Price,
};
#[cfg(feature = "providers")]
pub use provider::{ModelAvailability, ProviderConfig, Providers};
pub use record::{ExecutionRecord, MAX_RECORD_CHARS, RecordDetails, ResourceUse};
pub use redact::Redactor;
pub use spans::{CallPurpose, SpanRecorder, TracedModel};
pub use template::TemplateEngine;
pub use workspace::{Vault, Workspace};
