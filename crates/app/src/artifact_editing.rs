//! Changes the artifacts of stored skills, and checks them first.

use repertoire_core::{Artifact, ArtifactKind, package::ArtifactMetadata};
use repertoire_registry::{
    Error as RegistryError, Registry, SkillEntry, StoreScope, store::SkillSummary,
};
use repertoire_runtime::{Limits, TemplateEngine, assertion, dispatch, sidecar::DspyModule};

use crate::{
    error::{Error, Result},
    stored_skill::find_stored_skill,
};

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

/// The name of an artifact in a skill.
#[derive(Debug, Clone, Copy)]
pub struct ArtifactName<'a> {
    /// Its name; capitals do not count.
    pub name: &'a str,
    /// The model family it is for.
    pub variant: Option<&'a str>,
}

impl ArtifactName<'_> {
    /// Whether an artifact has this name.
    pub fn matches(self, artifact: &Artifact) -> bool {
        artifact.name.eq_ignore_ascii_case(self.name)
            && artifact.model_variant.as_deref() == self.variant
    }

    fn not_found(self, summary: &SkillSummary) -> Error {
        let variant = self.variant.map(|v| format!(" for {v}"));
        Error::Registry(RegistryError::NotFound {
            what: "artifact",
            name: format!(
                "{}/{}{}",
                summary.path,
                self.name,
                variant.unwrap_or_default()
            ),
        })
    }
}

/// A change of an artifact. What is `None` stays as it is; a new artifact needs a kind.
#[derive(Debug, Clone)]
pub struct ArtifactChange<'a> {
    /// Which artifact.
    pub artifact: ArtifactName<'a>,
    /// Its kind.
    pub kind: Option<ArtifactKind>,
    /// Its content.
    pub content: String,
    /// Its place; a new artifact comes last.
    pub ordinal: Option<i64>,
    /// Its metadata.
    pub metadata: Option<ArtifactMetadata>,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactOutcome {
    /// The path of the skill.
    pub skill: String,
    /// The name of the artifact.
    pub artifact: String,
    /// Whether there was one before.
    pub existed: bool,
}

/// Adds or changes an artifact of a stored skill. What a DSPy module has learned is kept.
pub fn put_artifact(
    registry: &Registry,
    scope: StoreScope,
    entry: &SkillEntry,
    change: ArtifactChange<'_>,
) -> Result<ArtifactOutcome> {
    let (store, summary) = find_stored_skill(registry, scope, entry)?;
    let all = store.get_artifacts(summary.id, &[])?;
    let known = all.iter().find(|one| change.artifact.matches(one));
    let kind = change.kind.or(known.map(|known| known.kind));
    let name = known.map_or(change.artifact.name, |known| &known.name);
    let last = all.iter().map(|one| one.ordinal).max().unwrap_or(0);
    let artifact = Artifact {
        id: None,
        kind: kind.ok_or_else(|| Error::KindNeeded(name.to_owned()))?,
        name: name.to_owned(),
        ordinal: change
            .ordinal
            .or(known.map(|known| known.ordinal))
            .unwrap_or(last + 1),
        content: change.content,
        file: None,
        model_variant: change.artifact.variant.map(str::to_owned),
        metadata: change
            .metadata
            .or_else(|| known.and_then(|known| known.metadata.clone())),
        state_blob: known.and_then(|known| known.state_blob.clone()),
        created_at: None,
        updated_at: None,
    };
    check_artifact(&artifact)?;
    match known.and_then(|known| known.id) {
        Some(id) => store.update_artifact(id, &artifact)?,
        None => drop(store.add_artifact(summary.id, &artifact)?),
    }
    Ok(ArtifactOutcome {
        skill: summary.path.to_string(),
        artifact: artifact.name,
        existed: known.is_some(),
    })
}

/// Removes an artifact of a stored skill.
pub fn remove_artifact(
    registry: &Registry,
    scope: StoreScope,
    entry: &SkillEntry,
    artifact: ArtifactName<'_>,
) -> Result<ArtifactOutcome> {
    let (store, summary) = find_stored_skill(registry, scope, entry)?;
    let all = store.get_artifacts(summary.id, &[])?;
    let known = all.iter().find(|one| artifact.matches(one));
    let id = known.and_then(|known| known.id);
    store.delete_artifact(id.ok_or_else(|| artifact.not_found(&summary))?)?;
    Ok(ArtifactOutcome {
        skill: summary.path.to_string(),
        artifact: artifact.name.to_owned(),
        existed: true,
    })
}
