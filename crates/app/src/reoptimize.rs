//! Optimizes states made by another version of DSPy again, in the background.
//!
//! Each checked state records the version, whether it was replaced or not, so that no version is
//! paid for twice.

use repertoire_core::{Artifact, SkillVersion, SpanKind};
use repertoire_registry::store::{OptimizedModule, Store};
use repertoire_runtime::{
    Error as RunError,
    optimize::{Effort, ExampleSplit, Optimizer, optimize_module},
    sidecar::{DspyModule, Sidecar},
};
use serde_json::{Value, json};

use crate::{
    error::{Error, Result},
    optimize::{finish_optimization, training_examples},
    runner::{RunRequest, Runner},
};

/// Optimizes stored states again. The runner's limits apply to each module.
#[derive(Debug)]
pub struct Reoptimizer {
    /// The DSPy process.
    pub sidecar: Sidecar,
    /// The registry, the model and the limits.
    pub runner: Runner,
}

impl Reoptimizer {
    /// Checks every stored state; a failure is only logged.
    pub async fn reoptimize_all(self) {
        // It costs money, so untrusted stores are skipped.
        for store in self.runner.registry.trusted_stores() {
            let modules = match store.optimized_modules() {
                Ok(modules) => modules,
                Err(error) => {
                    tracing::warn!(%error, "learned states cannot be read");
                    continue;
                }
            };
            for module in modules {
                let (skill, name) = (module.path.clone(), module.artifact.name.clone());
                let id = skill.parse().ok();
                let is_trusted = id.is_some_and(|id| {
                    let trusted = self.runner.registry.is_stored_trusted(&**store, &id);
                    trusted.unwrap_or(false)
                });
                if !is_trusted {
                    continue;
                }
                if let Err(error) = self.reoptimize_state(&**store, module).await {
                    tracing::info!("{skill}: the state of {name:?} is unchanged: {error}");
                }
            }
        }
    }

    async fn reoptimize_state(&self, store: &dyn Store, module: OptimizedModule) -> Result<()> {
        let OptimizedModule {
            skill,
            path,
            artifact,
        } = module;
        let (Some(blob), Some(id)) = (artifact.state_blob.as_deref(), artifact.id) else {
            return Ok(());
        };
        let state: Result<Value, _> = repertoire_core::json::from_slice(blob);
        let Some(mut state) = state.ok().filter(Value::is_object) else {
            let reason = format!("the state of {:?} is not a JSON object", artifact.name);
            return Err(RunError::Sidecar(reason).into());
        };
        if !state["metadata"].is_object() {
            state["metadata"] = json!({});
        }
        let version = |key: &str| -> Option<String> {
            let version = state["metadata"].pointer(key)?.as_str()?;
            Some(version.to_owned())
        };
        let made_by = version("/dependency_versions/dspy");
        let checked_by = version("/looked_at_by");
        let current = self.sidecar.dspy_version().await?;
        if [made_by, checked_by].contains(&Some(current.clone())) {
            return Ok(());
        }
        tracing::info!(
            "{path}: optimizing {:?} again for DSPy {current}",
            artifact.name
        );
        let skill = skill.to_string();
        let learned = self.optimize_artifact(&skill, &artifact, &state).await;
        let (blob, problem) = match learned {
            Ok(Some(blob)) => (blob, None),
            Err(error) if is_transient(&error) => return Err(error),
            nothing => {
                // Keep the state, and record the version so that it is not paid for again.
                state["metadata"]["looked_at_by"] = json!(current);
                (state.to_string().into_bytes(), nothing.err())
            }
        };
        store.put_learned_state(id, &artifact, &blob)?;
        problem.map_or(Ok(()), Err)
    }

    /// Returns a new state if it is not worse.
    async fn optimize_artifact(
        &self,
        skill: &str,
        artifact: &Artifact,
        state: &Value,
    ) -> Result<Option<Vec<u8>>> {
        let program = DspyModule::from_artifact(artifact)?;
        let examples = training_examples(&self.runner.registry, skill, artifact, &program)?;
        let Ok(split) = ExampleSplit::from_examples(examples) else {
            return Ok(None);
        };
        let optimizer = match state["metadata"]["optimizer"].as_str() {
            Some("random-search") => Optimizer::RandomSearch,
            Some("mipro") => Optimizer::Mipro,
            Some("gepa") => Optimizer::Gepa,
            _ => Optimizer::Bootstrap,
        };
        let mut context = self.runner.new_context(&RunRequest::default(), None);
        context.nested_skills = None;
        let spans = &context.spans;
        let mut span = spans.begin_span(context.place, SpanKind::Run, "optimize");
        span.set_skill(skill, &SkillVersion::default());
        let work = optimize_module(
            &self.sidecar,
            artifact,
            &split,
            (optimizer, Effort::default()),
            false,
            &context,
            &|_: &str| {},
        );
        let improved = work.await;
        finish_optimization(span, &improved);
        let improved = improved?;
        Ok(improved.is_not_worse().then_some(improved.state))
    }
}

/// Whether a later attempt could succeed.
fn is_transient(error: &Error) -> bool {
    matches!(
        error,
        Error::Run(
            RunError::Interrupted
                | RunError::Sidecar(_)
                | RunError::Model(_)
                | RunError::Key(_)
                | RunError::Provider { .. }
                | RunError::Timeout { .. }
        )
    )
}
