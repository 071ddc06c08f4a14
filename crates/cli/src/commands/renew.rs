//! States that another version of DSPy made are learned anew, in the background.
//!
//! A state that was looked at says so, whether it was replaced or not, so that no version is paid
//! for twice.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use repertoire_core::Artifact;
use repertoire_registry::{
    Registry,
    store::{Learned, SkillRepository, Store},
};
use repertoire_runtime::{
    Budget, Error, ExecutionContext, Metered, Model, PromptEngine, Workspace,
    optimise::{Effort, Optimizer, Split, optimise},
    sidecar::{Module, Sidecar},
};
use serde_json::{Value, json};

use super::optimize::from_traces;

/// What renewing takes.
pub(super) struct Renewal {
    pub(super) sidecar: Sidecar,
    pub(super) model: Arc<dyn Model>,
    pub(super) workspace: Option<Arc<dyn Workspace>>,
    /// The most tokens and dollars for one module.
    pub(super) limits: (Option<u64>, Option<f64>),
}

impl Renewal {
    /// Goes through every state that is kept; a failure is only logged.
    pub(super) async fn go(self, registry: Arc<Registry>) {
        // It costs money, so that nothing of a stranger's is renewed.
        for store in registry.trusted_stores() {
            let learned = match store.learned() {
                Ok(learned) if !learned.is_empty() => learned,
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "learned states cannot be read");
                    continue;
                }
            };
            for one in learned {
                let (skill, name) = (one.path.clone(), one.artifact.name.clone());
                if let Err(error) = self.renew(&registry, store, one).await {
                    tracing::info!("{skill}: the state of {name:?} stays as it was: {error:#}");
                }
            }
        }
    }

    async fn renew(&self, registry: &Registry, store: &Store, learned: Learned) -> Result<()> {
        let Learned {
            skill,
            path,
            artifact,
        } = learned;
        let blob = artifact.state_blob.as_deref().context("no state")?;
        let mut state: Value = repertoire_core::json::from_slice(blob)?;
        ensure!(state.is_object(), "the state is no object");
        if !state["metadata"].is_object() {
            state["metadata"] = json!({});
        }
        let made_by = |state: &Value, key: &str| -> Option<String> {
            let told = state["metadata"].pointer(key)?.as_str()?;
            Some(told.to_owned())
        };
        let by = made_by(&state, "/dependency_versions/dspy");
        let looked = made_by(&state, "/looked_at_by");
        let now = self.sidecar.dspy().await?;
        if by.as_deref() == Some(&now) || looked.as_deref() == Some(&now) {
            return Ok(());
        }
        let id = artifact.id.context("no id")?;
        tracing::info!("{path}: learning {:?} anew for DSPy {now}", artifact.name);
        let skill = skill.to_string();
        let learned = self.learn(registry, &skill, &artifact, &state);
        let (blob, why) = match learned.await {
            Ok(Some(blob)) => (blob, None),
            Err(error) if may_pass(&error) => return Err(error),
            nothing => {
                // What there is stays, and is not paid for again for this version.
                state["metadata"]["looked_at_by"] = json!(now);
                (state.to_string().into_bytes(), nothing.err())
            }
        };
        store.learn_artifact(id, &artifact, blob)?;
        why.map_or(Ok(()), Err)
    }

    /// A new state, if it is not worse.
    async fn learn(
        &self,
        registry: &Registry,
        skill: &str,
        artifact: &Artifact,
        state: &Value,
    ) -> Result<Option<Vec<u8>>> {
        let program = Module::read(artifact)?;
        let examples = from_traces(registry, skill, artifact, &program)?;
        let Ok(split) = Split::of(examples) else {
            return Ok(None);
        };
        let how = match state["metadata"]["optimizer"].as_str() {
            Some("random-search") => Optimizer::RandomSearch,
            Some("mipro") => Optimizer::Mipro,
            Some("gepa") => Optimizer::Gepa,
            _ => Optimizer::Bootstrap,
        };
        let mut context = ExecutionContext::new();
        let (tokens, cost) = self.limits;
        let budget = Arc::new(Budget::new(tokens, cost));
        context.model = Some(Arc::new(Metered::new(self.model.clone(), budget)));
        if let Some(workspace) = &self.workspace {
            context.engine = PromptEngine::over(workspace.clone());
        }
        let (how, quiet) = ((how, Effort::default()), |_: &str| {});
        let work = optimise(
            &self.sidecar,
            artifact,
            &split,
            how,
            false,
            &context,
            &quiet,
        );
        let improved = work.await?;
        Ok(improved.is_not_worse().then_some(improved.state))
    }
}

/// Whether the same would go otherwise another time.
fn may_pass(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            Error::Interrupted
                | Error::Sidecar(_)
                | Error::Model(_)
                | Error::Key(_)
                | Error::Provider { .. }
                | Error::Timeout { .. }
        )
    )
}
