//! Optimizes a DSPy module of a skill from examples and stores the result if it is not worse.

use std::{fmt, sync::Arc, time::Duration};

use repertoire_core::{Artifact, ArtifactKind, SpanKind};
use repertoire_registry::{Origin, QualifiedSkillId, Registry, StoreScope, store::TraceFilter};
use repertoire_runtime::{
    Error as RunError, ExecutionContext, LoadableSkill, ModelUsage,
    optimize::{Effort, ExampleSplit, Improvement, Optimizer, TrainingExample, optimize_module},
    sidecar::{DspyModule, Sidecar},
    spans::OpenSpan,
    variant::choose_variant,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    runner::{RunRequest, Runner},
    runtime_adapter::RunnableSkill,
    stored_skill::find_stored_skill,
};

/// How often the usage is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Where the training examples come from.
pub enum TrainingSource<'a> {
    /// Traces of the module whose assertions all held.
    Traces,
    /// Examples of the caller, which are read once the module is known.
    Examples(&'a (dyn Fn(&DspyModule) -> Result<Vec<TrainingExample>> + Sync)),
}

/// What to optimize, and how.
pub struct OptimizeRequest<'a> {
    /// The skill.
    pub skill: &'a QualifiedSkillId,
    /// The name of the module; needed if the skill has several.
    pub artifact: Option<&'a str>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How much it may try.
    pub effort: Effort,
    /// The training examples.
    pub source: TrainingSource<'a>,
    /// The scope the caller asked for, if any, and the scope to use otherwise.
    pub scope: (Option<StoreScope>, StoreScope),
    /// Whether a result that is worse is stored too.
    pub keep_worse: bool,
    /// Cancels the work.
    pub stop: CancellationToken,
    /// Receives messages about the progress.
    pub on_progress: &'a (dyn Fn(&str) + Sync),
    /// Receives the usage so far, about every second and once at the end.
    pub on_usage: &'a (dyn Fn(&ModelUsage) + Sync),
}

impl fmt::Debug for OptimizeRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimizeRequest")
            .field("skill", &self.skill)
            .field("artifact", &self.artifact)
            .finish_non_exhaustive()
    }
}

/// What an optimization came to.
#[derive(Debug)]
pub struct OptimizeReport {
    /// The name of the module.
    pub artifact: String,
    /// The measured improvement.
    pub improvement: Improvement,
    /// Whether the new state was stored.
    pub is_stored: bool,
}

impl Runner {
    /// Optimizes a module of a skill.
    ///
    /// Whether the result can be stored, and would be used, is checked before a model is called.
    pub async fn optimize(
        &self,
        sidecar: &Sidecar,
        request: OptimizeRequest<'_>,
    ) -> Result<OptimizeReport> {
        let entry = self.find_skill(request.skill)?;
        let skill = RunnableSkill::new(&self.registry, &entry)?;
        let run = RunRequest {
            stop: request.stop.clone(),
            ..RunRequest::default()
        };
        let mut context = self.new_context(&run, None);
        context.nested_skills = None;
        let module = choose_module(&skill, request.artifact, &context.model_family())?;
        let program = DspyModule::from_artifact(&module)?;
        let used = [StoreScope::Workspace, StoreScope::Account]
            .into_iter()
            .find(|scope| entry.origin == Origin::from_scope(*scope));
        let scope = match (request.scope, used) {
            ((Some(scope), _), Some(used)) if used != scope => {
                return Err(Error::UnusedScope {
                    skill: entry.id.to_string(),
                    used,
                    scope,
                });
            }
            ((_, fallback), used) => used.unwrap_or(fallback),
        };
        let (store, summary) = find_stored_skill(&self.registry, scope, &entry)?;
        let (examples, by_example) = match &request.source {
            TrainingSource::Traces => {
                let skill_id = &skill.outline().skill_id;
                let examples = training_examples(&self.registry, skill_id, &module, &program)?;
                (examples, false)
            }
            TrainingSource::Examples(read) => (read(&program)?, true),
        };
        let split = ExampleSplit::from_examples(examples)?;
        if sidecar.unavailable_reason().is_some() {
            return Err(RunError::NeedsSidecar(module.name.clone()).into());
        }
        let context = Arc::new(context);
        let span = begin_optimization(&context, &skill);
        let how = (request.optimizer, request.effort);
        let work = optimize_module(
            sidecar,
            &module,
            &split,
            how,
            by_example,
            &context,
            &request.on_progress,
        );
        let mut work = std::pin::pin!(work);
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        let improved = loop {
            tokio::select! {
                improved = &mut work => break improved,
                () = request.stop.cancelled() => break Err(RunError::Interrupted),
                _ = ticks.tick() => (request.on_usage)(&context.notes.usage_so_far()),
            }
        };
        (request.on_usage)(&context.notes.usage_so_far());
        finish_optimization(span, &improved);
        let improvement = improved?;
        let is_stored = improvement.is_not_worse() || request.keep_worse;
        if is_stored {
            let stored = store.get_artifacts(summary.id, &[ArtifactKind::DspyModule])?;
            let stored = stored
                .into_iter()
                .find(|one| one.name == module.name && one.model_variant == module.model_variant);
            let id = stored.and_then(|stored| stored.id).ok_or_else(|| {
                repertoire_registry::Error::NotFound {
                    what: "artifact",
                    name: module.name.clone(),
                }
            })?;
            store.put_learned_state(id, &module, &improvement.state)?;
        }
        Ok(OptimizeReport {
            artifact: module.name.clone(),
            improvement,
            is_stored,
        })
    }
}

/// Begins the span of an optimization.
pub(crate) fn begin_optimization(
    context: &ExecutionContext,
    skill: &dyn LoadableSkill,
) -> OpenSpan {
    let spans = &context.spans;
    let mut span = spans.begin_span(context.place, SpanKind::Run, "optimize");
    span.set_skill(&skill.outline().skill, &skill.outline().version);
    span
}

pub(crate) fn finish_optimization(
    span: OpenSpan,
    improved: &repertoire_runtime::Result<Improvement>,
) {
    match improved {
        Ok(improved) => span.finish(Ok(&format!(
            "{:.3} → {:.3}",
            improved.before, improved.after
        ))),
        Err(error) => span.finish(Err(error)),
    }
}

/// Chooses the module to optimize. Modules of one name are variants; the model selects one.
fn choose_module(skill: &RunnableSkill, name: Option<&str>, family: &str) -> Result<Artifact> {
    let outline = skill.outline();
    let modules: Vec<_> = outline
        .artifacts
        .iter()
        .filter(|info| info.artifact.kind == ArtifactKind::DspyModule)
        .filter(|info| name.is_none_or(|name| info.artifact.name.eq_ignore_ascii_case(name)))
        .collect();
    let first = modules.first().map(|info| &info.artifact.name);
    let are_variants = modules
        .iter()
        .all(|info| Some(&info.artifact.name) == first);
    match choose_variant(&modules, family).filter(|_| are_variants) {
        Some(info) => Ok(Artifact {
            content: skill.load_content(info)?,
            ..info.artifact.clone()
        }),
        None if modules.is_empty() => Err(Error::NoModule {
            skill: outline.skill.clone(),
            name: name.map(str::to_owned),
        }),
        None => Err(Error::AmbiguousModule {
            names: modules
                .iter()
                .map(|info| info.artifact.name.clone())
                .collect(),
        }),
    }
}

/// Parses examples: a JSON array, or an object on each line.
pub fn parse_examples(text: &str, program: &DspyModule) -> Result<Vec<TrainingExample>> {
    let rows: Vec<(usize, Value)> =
        if let Ok(rows) = repertoire_core::json::from_str::<Vec<Value>>(text) {
            (1..).zip(rows).collect()
        } else {
            let lines = (1..).zip(text.lines());
            let lines = lines.filter(|(_, line)| !line.trim().is_empty());
            let rows = lines.map(|(at, line)| {
                let row = repertoire_core::json::from_str(line);
                let row = row.map_err(|error| Error::Examples(format!("line {at}: {error}")))?;
                Ok((at, row))
            });
            rows.collect::<Result<_>>()?
        };
    rows.iter()
        .map(|(at, row)| {
            let read = TrainingExample::from_row(row, program);
            read.map_err(|error| Error::Examples(format!("{at}: {error}")))
        })
        .collect()
}

/// Returns the inputs and outputs of a module from the traces whose assertions all held.
pub fn training_examples(
    registry: &Registry,
    skill_id: &str,
    module: &Artifact,
    program: &DspyModule,
) -> Result<Vec<TrainingExample>> {
    let filter = TraceFilter {
        skill: Some(skill_id.to_owned()),
        ..TraceFilter::default()
    };
    let traces = registry.traces(&filter)?;
    let good = traces.iter().filter(|trace| {
        trace.artifact_kind == ArtifactKind::DspyModule
            && trace.details.artifact == module.name
            && trace.details.variant == module.model_variant
            && trace.error.is_none()
            && trace.assertions_run > 0
            && trace.assertions_passed == trace.assertions_run
    });
    let examples: Vec<TrainingExample> = good
        .filter_map(|trace| {
            let read = |text: &Option<String>| -> Option<Value> {
                repertoire_core::json::from_str(text.as_deref()?).ok()
            };
            let row = json!({
                "inputs": read(&trace.rendered_input)?, "outputs": read(&trace.raw_output)?,
            });
            TrainingExample::from_row(&row, program).ok()
        })
        .collect();
    if examples.is_empty() {
        let metadata = module.metadata.as_ref();
        return Err(Error::NoTrainingTraces {
            module: module.name.clone(),
            has_assertions: metadata.is_some_and(|all| all.contains_key("assertions")),
        });
    }
    Ok(examples)
}
