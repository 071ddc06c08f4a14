//! Checks artifacts before they are stored.

use repertoire_core::{Artifact, ArtifactKind};
use repertoire_runtime::{Limits, TemplateEngine, assertion, dispatch, sidecar::DspyModule};

use crate::error::Result;

/// Refuses an artifact that would fail when it is run.
pub fn check_artifact(artifact: &Artifact) -> Result<()> {
    match artifact.kind {
        // A script is a template too.
        ArtifactKind::PromptTemplate | ArtifactKind::CodeTemplate => {
            TemplateEngine::new().check_str(&artifact.content)?;
        }
        ArtifactKind::Example => drop(dispatch::parse_examples(artifact)?),
        ArtifactKind::DspyModule => {
            let module = DspyModule::from_artifact(artifact)?;
            module.read_state(artifact)?;
        }
        ArtifactKind::Description | ArtifactKind::Approach => {}
    }
    assertion::read_assertions(artifact)?;
    Limits::default().for_artifact(artifact)?;
    Ok(())
}
