//! Running skills: from an artifact and a context to a record.
//!
//! A [`SkillSource`] gives artifacts, an [`ArtifactDispatcher`] runs each by its kind, a [`Model`]
//! answers, assertions check what comes out, and every execution leaves one [`ExecutionRecord`].
//! Nothing here knows where skills or records are kept.

pub mod assertion;
pub mod dispatch;
mod error;
#[cfg_attr(
    not(feature = "sandbox"),
    allow(dead_code, reason = "only scripts are metered")
)]
mod limits;
pub mod model;
pub mod optimise;
pub mod orchestrate;
#[cfg(feature = "providers")]
pub mod provider;
mod record;
mod redact;
pub mod run;
#[cfg(feature = "sandbox")]
pub mod sandbox;
pub mod sidecar;
pub mod template;
pub mod variant;
pub mod workspace;

pub use dispatch::{
    ArtifactDispatcher, ArtifactHandler, ArtifactInfo, ArtifactOutput, Checkpoints,
    ExecutionContext, Forgetful, Others, Outline, SkillSource, Skills,
};
pub use error::{Error, Result};
pub use limits::Limits;
pub use model::{Ask, Budget, Metered, Model, Price, Reply, Role, Turn, Usage};
#[cfg(feature = "providers")]
pub use provider::{ProviderConfig, Providers};
pub use record::{Details, ExecutionRecord, MAX_KEPT, Used};
pub use redact::Redactor;
pub use template::PromptEngine;
pub use workspace::{Vault, Workspace};
