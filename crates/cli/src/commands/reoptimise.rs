//! Optimises states made by another version of DSPy again, in the background.
//!
//! Each checked state records the version, whether it was replaced or not, so that no version is
//! paid for twice.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use repertoire_core::Artifact;
use repertoire_registry::{
    Registry,
    store::{OptimizedModule, SkillRepository, Store},
};
use repertoire_runtime::{
    Budget, Error, ExecutionContext, MeteredModel, Model, PromptEngine, Workspace,
    optimise::{Effort, ExampleSplit, Optimizer, optimise_module},
    sidecar::{DspyModule, Sidecar},
};
use serde_json::{Value, json};

use super::optimize::examples_from_traces;

/// The parts and limits of re-optimisation.
pub(super) struct Reoptimiser {
    pub(super) sidecar: Sidecar,
    pub(super) model: Arc<dyn Model>,
    pub(super) workspace: Option<Arc<dyn Workspace>>,
    /// The most tokens and dollars for one module.
    pub(super) limits: (Option<u64>, Option<f64>),
}

impl Reoptimiser {
    /// Checks every stored state; a failure is only logged.
    pub(super) async fn reoptimise_all(self, registry: Arc<Registry>) {
        // It costs money, so untrusted stores are skipped.
        for store in registry.trusted_stores() {
            let learned = match store.optimized_modules() {
                Ok(learned) if !learned.is_empty() => learned,
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(%error, "learned states cannot be read");
                    continue;
                }
            };
            for one in learned {
                let (skill, name) = (one.path.clone(), one.artifact.name.clone());
                if let Err(error) = self.reoptimise_state(&registry, store, one).await {
                    tracing::info!("{skill}: the state of {name:?} is unchanged: {error:#}");
                }
            }
        }
    }

    async fn reoptimise_state(
        &self,
        registry: &Registry,
        store: &Store,
        learned: OptimizedModule,
    ) -> Result<()> {
        let OptimizedModule {
            skill,
            path,
            artifact,
        } = learned;
        let blob = artifact.state_blob.as_deref().context("no state")?;
        let mut state: Value = repertoire_core::json::from_slice(blob)?;
        ensure!(state.is_object(), "the state is not an object");
        if !state["metadata"].is_object() {
            state["metadata"] = json!({});
        }
        let made_by = |state: &Value, key: &str| -> Option<String> {
            let version = state["metadata"].pointer(key)?.as_str()?;
            Some(version.to_owned())
        };
        let by = made_by(&state, "/dependency_versions/dspy");
        let looked = made_by(&state, "/looked_at_by");
        let now = self.sidecar.dspy_version().await?;
        if by.as_deref() == Some(&now) || looked.as_deref() == Some(&now) {
            return Ok(());
        }
        let id = artifact.id.context("no id")?;
        tracing::info!(
            "{path}: optimising {:?} again for DSPy {now}",
            artifact.name
        );
        let skill = skill.to_string();
        let learned = self.optimise_artifact(registry, &skill, &artifact, &state);
        let (blob, why) = match learned.await {
            Ok(Some(blob)) => (blob, None),
            Err(error) if is_transient(&error) => return Err(error),
            nothing => {
                // Keep the state, and record the version so that it is not paid for again.
                state["metadata"]["looked_at_by"] = json!(now);
                (state.to_string().into_bytes(), nothing.err())
            }
        };
        store.put_learned_state(id, &artifact, blob)?;
        why.map_or(Ok(()), Err)
    }

    /// Returns a new state if it is not worse.
    async fn optimise_artifact(
        &self,
        registry: &Registry,
        skill: &str,
        artifact: &Artifact,
        state: &Value,
    ) -> Result<Option<Vec<u8>>> {
        let program = DspyModule::from_artifact(artifact)?;
        let examples = examples_from_traces(registry, skill, artifact, &program)?;
        let Ok(split) = ExampleSplit::from_examples(examples) else {
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
        context.model = Some(Arc::new(MeteredModel::new(self.model.clone(), budget)));
        if let Some(workspace) = &self.workspace {
            context.engine = PromptEngine::with_workspace(workspace.clone());
        }
        let (how, quiet) = ((how, Effort::default()), |_: &str| {});
        let work = optimise_module(
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

/// Whether a later attempt could succeed.
fn is_transient(error: &anyhow::Error) -> bool {
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
