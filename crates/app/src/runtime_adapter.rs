//! Adapts registry skills for the runtime, and runtime records for the registry.

use std::sync::Arc;

use repertoire_core::{Artifact, ArtifactKind, SkillVersion};
use repertoire_registry::{
    Origin, QualifiedSkillId, Registry, SkillEntry, StoreScope, Trusted, store::SkillKey,
};
use repertoire_runtime::{
    ArtifactDispatcher, ArtifactInfo, Checkpoints, Error, ExecutionContext, LoadableSkill,
    NestedSkills, Redactor, Result, SkillLookup, SkillOutline,
};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    skill_query::{SkillQuery, find_skill},
    trace_keeper::TraceKeeper,
};

/// The name of the implied step that sends the message to the model.
const MESSAGE_STEP: &str = "Message";

/// A registry skill that can be run.
#[derive(Debug)]
pub struct RunnableSkill {
    registry: Arc<Registry>,
    entry: Arc<SkillEntry>,
    outline: SkillOutline,
}

impl RunnableSkill {
    /// Collects the artifacts of a skill; their content is not read yet.
    ///
    /// A skill without artifacts gets its document as a description. A skill without executable
    /// artifacts gets a step that sends the message to the model.
    pub fn new(
        registry: &Arc<Registry>,
        entry: &Arc<SkillEntry>,
    ) -> repertoire_registry::Result<Self> {
        let parts = registry.skill_artifacts(entry)?;
        let mut artifacts: Vec<ArtifactInfo> = parts
            .artifacts
            .into_iter()
            .map(|(id, artifact)| ArtifactInfo { id, artifact })
            .collect();
        if artifacts.iter().all(|info| info.artifact.kind.is_context()) {
            let implied = |kind: ArtifactKind, name: &str, ordinal: i64| ArtifactInfo {
                id: format!("{}:{name}", parts.skill_id),
                artifact: Artifact {
                    ordinal,
                    ..Artifact::new(kind, name)
                },
            };
            if artifacts.is_empty() {
                artifacts.push(implied(ArtifactKind::Description, "SKILL.md", 0));
            }
            let last = artifacts.iter().map(|info| info.artifact.ordinal).max();
            let next = last.unwrap_or(0).saturating_add(1);
            artifacts.push(implied(ArtifactKind::PromptTemplate, MESSAGE_STEP, next));
        }
        let outline = SkillOutline {
            skill_id: parts.skill_id,
            skill: entry.id.to_string(),
            version: SkillVersion {
                digest: Some(entry.metadata.digest().to_string()),
                revision: registry.current_revision(entry),
            },
            artifacts,
        };
        Ok(Self {
            registry: registry.clone(),
            entry: entry.clone(),
            outline,
        })
    }
}

impl LoadableSkill for RunnableSkill {
    fn outline(&self) -> &SkillOutline {
        &self.outline
    }

    fn load_content(&self, info: &ArtifactInfo) -> Result<String> {
        let implied = info.artifact.file.is_none() && info.artifact.name == MESSAGE_STEP;
        if implied && info.artifact.kind == ArtifactKind::PromptTemplate {
            return Ok("{{ message }}".to_owned());
        }
        let content = self.registry.artifact_content(&self.entry, &info.artifact);
        content.map_err(|error| Error::Artifact {
            artifact: info.artifact.name.clone(),
            reason: error.to_string(),
        })
    }
}

/// Gives a run access to the registry: other skills to run, and storage for checkpoints.
pub(crate) fn attach_registry(
    context: &mut ExecutionContext,
    registry: &Arc<Registry>,
    dispatcher: &ArtifactDispatcher,
    redactor: &Redactor,
    traces: &TraceKeeper,
) {
    let whole = Arc::new(RegistryAccess(registry.clone(), redactor.clone()));
    let keeper = traces.clone();
    context.checkpoints = whole.clone();
    context.nested_skills = Some(Arc::new(NestedSkills {
        skills: whole,
        dispatcher: dispatcher.clone(),
        save_record: Arc::new(move |record| {
            keeper.keep_record(record);
        }),
    }));
}

/// The registry as seen by a running skill.
struct RegistryAccess(Arc<Registry>, Redactor);

impl RegistryAccess {
    /// Finds a package by its UUID, in the stores that are trusted.
    fn find_uuid(&self, text: &str) -> Option<QualifiedSkillId> {
        let uuid: Uuid = text.parse().ok()?;
        let scopes = [StoreScope::Workspace, StoreScope::Account];
        scopes.into_iter().find_map(|scope| {
            let is_untrusted = matches!(self.0.workspace(), Some((_, Trusted::No)));
            if scope == StoreScope::Workspace && is_untrusted {
                return None;
            }
            let store = self.0.store(scope).ok()?;
            let found = store.find_skill(SkillKey::Uuid(uuid)).ok()??;
            Some(QualifiedSkillId {
                origin: Some(Origin::from_scope(scope)),
                id: found.path,
            })
        })
    }
}

impl SkillLookup for RegistryAccess {
    fn open_skill(&self, wanted: &str) -> Result<Arc<dyn LoadableSkill>> {
        let refuse = |reason: String| Error::InvalidCall {
            call: "run_skill".to_owned(),
            reason,
        };
        // Callers may also use the name of a package or its UUID.
        let query = match (self.find_uuid(wanted), wanted.parse()) {
            (Some(id), _) | (None, Ok(id)) => SkillQuery::Id(id),
            (None, Err(_)) => SkillQuery::Name {
                origin: None,
                name: wanted.to_owned(),
            },
        };
        let entry = find_skill(&self.0, &query).map_err(|error| match error {
            crate::Error::AmbiguousSkill { .. } => refuse(error.to_string()),
            _ => refuse(format!("there is no skill {wanted:?}")),
        })?;
        let skill =
            RunnableSkill::new(&self.0, &entry).map_err(|error| refuse(error.to_string()))?;
        Ok(Arc::new(skill))
    }
}

impl Checkpoints for RegistryAccess {
    fn load_checkpoint(&self, session: &str, artifact: &str, name: &str) -> Result<Option<Value>> {
        let kept = self.0.checkpoint(session, artifact, name);
        let kept = kept.map_err(|error| checkpoint_error(&error))?;
        kept.map(|text| {
            repertoire_core::json::from_str(&text).map_err(|error| checkpoint_error(&error))
        })
        .transpose()
    }

    fn save_checkpoint(
        &self,
        session: &str,
        artifact: &str,
        name: &str,
        value: &Value,
    ) -> Result<()> {
        // Like traces, checkpoints outlive the run and hold no secret.
        let text = self.1.redact(&value.to_string());
        let kept = self.0.put_checkpoint(session, artifact, name, &text);
        kept.map_err(|error| checkpoint_error(&error))
    }
}

fn checkpoint_error(error: &dyn std::error::Error) -> Error {
    Error::InvalidCall {
        call: "checkpoint".to_owned(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use repertoire_registry::RegistrySettings;
    use serde_json::json;

    use super::*;

    #[test]
    fn t49_a_checkpoint_holds_no_secret() {
        let account = tempfile::tempdir().unwrap();
        let settings = RegistrySettings {
            account: Some(account.path().to_owned()),
            ..RegistrySettings::default()
        };
        let registry = Registry::open(settings).unwrap();
        let redactor = Redactor::new(["hunter2-hunter2".to_owned()]);
        let access = RegistryAccess(registry, redactor);
        let value = json!({"key": "hunter2-hunter2", "n": 1});
        access.save_checkpoint("s", "a", "c", &value).unwrap();
        let kept = access.load_checkpoint("s", "a", "c").unwrap().unwrap();
        assert_eq!(kept["n"], 1);
        assert!(!kept.to_string().contains("hunter2"), "{kept}");
    }
}
