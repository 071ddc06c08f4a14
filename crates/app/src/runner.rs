//! Plans and runs skills, and stores a trace of each execution.

use std::{fmt, sync::Arc};

use repertoire_core::ArtifactKind;
use repertoire_registry::{QualifiedSkillId, Registry, SkillEntry, store::TraceFilter};
use repertoire_runtime::{
    ArtifactDispatcher, ArtifactInfo, Budget, Error as RunError, ExecutionContext, ExecutionRecord,
    LoadableSkill, MeteredModel, Model, Redactor, TemplateEngine, TracedModel, Workspace,
    model::ReplyListener,
    run::{RunPlan, RunReport, plan_run, run_plan},
    template::read_constants,
};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    runtime_adapter::{RunnableSkill, attach_registry},
    search_usage::UsagePolicy,
    trace_keeper::{TraceKeeper, TraceListener},
};

/// What one run may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunLimits {
    /// The most tokens of a run.
    pub max_tokens: Option<u64>,
    /// The most US dollars of a run.
    pub max_cost: Option<f64>,
    /// The most tokens of one answer.
    pub answer_tokens: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            max_tokens: None,
            max_cost: None,
            answer_tokens: 1024,
        }
    }
}

/// How skills are run.
#[derive(Clone, Default)]
pub struct RunnerSettings {
    /// The model to use. Without one, only skills that need none can be run.
    pub model: Option<Arc<dyn Model>>,
    /// The pages that skills can search.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// The handlers of the kinds of artifacts.
    pub dispatcher: ArtifactDispatcher,
    /// Removes secrets from traces.
    pub redactor: Redactor,
    /// What each run may use.
    pub limits: RunLimits,
    /// Receives records and spans as they end, for example to send them to a collector.
    pub trace_listener: Option<Arc<dyn TraceListener>>,
    /// What is kept of the skills that messages activate.
    pub usage: UsagePolicy,
}

impl fmt::Debug for RunnerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunnerSettings")
            .field("model", &self.model)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What a run is started with.
#[derive(Clone, Default)]
pub struct RunRequest {
    /// Run only these artifacts; all if empty.
    pub artifacts: Vec<String>,
    /// Values for the templates.
    pub values: Map<String, Value>,
    /// The message of the user.
    pub message: Option<String>,
    /// The session to resume.
    pub resume: Option<String>,
    /// Receives answers as they are streamed.
    pub listener: Option<ReplyListener>,
    /// Cancels the run; its trace is still stored.
    pub stop: CancellationToken,
}

impl fmt::Debug for RunRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunRequest")
            .field("artifacts", &self.artifacts)
            .field("resume", &self.resume)
            .finish_non_exhaustive()
    }
}

/// Runs the skills of a registry.
#[derive(Debug, Clone)]
pub struct Runner {
    pub(crate) registry: Arc<Registry>,
    pub(crate) settings: RunnerSettings,
}

impl Runner {
    /// Creates a runner over a registry.
    pub fn new(registry: Arc<Registry>, settings: RunnerSettings) -> Self {
        Self { registry, settings }
    }

    /// The registry whose skills are run.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns a skill as the catalogue has it now.
    pub fn find_skill(&self, skill: &QualifiedSkillId) -> Result<Arc<SkillEntry>> {
        let snapshot = self.registry.snapshot();
        let entry = snapshot.find_skill(skill).cloned();
        Ok(entry.ok_or_else(|| repertoire_registry::Error::NotFound {
            what: "skill",
            name: skill.to_string(),
        })?)
    }

    /// Plans a run without executing anything. Untrusted skills are refused.
    pub fn plan(&self, skill: &QualifiedSkillId, request: &RunRequest) -> Result<PreparedRun> {
        let entry = self.find_skill(skill)?;
        let runnable = RunnableSkill::new(&self.registry, &entry)?;
        self.plan_skill(runnable, request)
    }

    /// Returns what a run would send, without calling a model.
    pub fn dry_run(
        &self,
        skill: &QualifiedSkillId,
        request: &RunRequest,
    ) -> Result<(Vec<PlannedStep>, PreparedRun)> {
        let run = self.plan(skill, request)?;
        Ok((run.render_steps()?, run))
    }

    /// Runs a skill and stores a trace of each execution.
    pub async fn run(&self, skill: &QualifiedSkillId, request: &RunRequest) -> Result<RunReport> {
        let run = self.plan(skill, request)?;
        run.require_model()?;
        Ok(run.execute().await)
    }

    pub(crate) fn plan_skill(
        &self,
        skill: RunnableSkill,
        request: &RunRequest,
    ) -> Result<PreparedRun> {
        let context = self.new_context(request, request.resume.as_deref());
        let mut values_changed = false;
        if let Some(session) = &request.resume {
            values_changed = self.find_session(&skill, session, &context)?;
        }
        let dispatcher = &self.settings.dispatcher;
        let family = context.model_family();
        let plan = plan_run(&skill, dispatcher, &family, &request.artifacts)?;
        Ok(PreparedRun {
            traces: self.trace_keeper(),
            dispatcher: dispatcher.clone(),
            skill,
            plan,
            context,
            values_changed,
        })
    }

    pub(crate) fn trace_keeper(&self) -> TraceKeeper {
        TraceKeeper::new(self.registry.clone(), self.settings.trace_listener.clone())
    }

    /// Builds the context of a run: values, model within its budget, pages, access to the registry.
    ///
    /// Every call of its model is recorded.
    pub(crate) fn new_context(
        &self,
        request: &RunRequest,
        session: Option<&str>,
    ) -> ExecutionContext {
        let settings = &self.settings;
        let mut context = ExecutionContext::new();
        if let Some(session) = session {
            session.clone_into(&mut context.session_id);
        }
        let traces = self.trace_keeper();
        context.spans = traces.recorder(&context.session_id, &settings.redactor);
        context.values.clone_from(&request.values);
        context.message.clone_from(&request.message);
        context.listener.clone_from(&request.listener);
        context.stop = request.stop.clone();
        context.redactor = settings.redactor.clone();
        context.max_tokens = settings.limits.answer_tokens;
        if let Some(model) = &settings.model {
            let budget = Budget::new(settings.limits.max_tokens, settings.limits.max_cost);
            let metered = Arc::new(MeteredModel::new(model.clone(), Arc::new(budget)));
            let model = TracedModel::new(metered, context.spans.clone(), context.place.id);
            context.model = Some(Arc::new(model));
        }
        if let Some(workspace) = &settings.workspace {
            context.engine = TemplateEngine::with_workspace(workspace.clone());
        }
        attach_registry(
            &mut context,
            &self.registry,
            &settings.dispatcher,
            &settings.redactor,
            &traces,
        );
        context
    }

    /// Checks that a skill was run in a session; returns whether its values were different.
    fn find_session(
        &self,
        skill: &RunnableSkill,
        session: &str,
        context: &ExecutionContext,
    ) -> Result<bool> {
        let filter = TraceFilter {
            skill: Some(skill.outline().skill_id.clone()),
            session: Some(session.to_owned()),
            ..TraceFilter::default()
        };
        let traces = self.registry.traces(&filter)?;
        if traces.is_empty() {
            return Err(Error::UnknownSession {
                skill: skill.outline().skill.clone(),
                session: session.to_owned(),
            });
        }
        let mut digests = traces.iter().map(|trace| trace.details.values.as_str());
        let newest = digests.find(|values| !values.is_empty());
        Ok(newest.is_some_and(|values| values != context.fingerprint()))
    }
}

/// A step of a plan with the text it would send.
#[derive(Debug)]
pub struct PlannedStep {
    /// The artifact that would be executed.
    pub artifact: ArtifactInfo,
    /// The artifact of the skill that it replaces as a fallback, if it does.
    pub fallback_for: Option<String>,
    /// The rendered prompt or script.
    pub text: String,
}

/// A planned run that has not been executed yet.
#[derive(Debug)]
pub struct PreparedRun {
    traces: TraceKeeper,
    dispatcher: ArtifactDispatcher,
    pub(crate) skill: RunnableSkill,
    /// The steps.
    pub plan: RunPlan,
    pub(crate) context: ExecutionContext,
    /// Whether the resumed session had another message or other values: the checkpoints of its
    /// scripts are for those.
    pub values_changed: bool,
}

impl PreparedRun {
    /// The token that cancels the run.
    pub fn stop_token(&self) -> &CancellationToken {
        &self.context.stop
    }

    /// Fails if the plan needs a model and there is none.
    pub fn require_model(&self) -> Result<()> {
        if self.context.model.is_none() && self.plan.requires_model() {
            let none = "this skill asks a model, and none is configured".to_owned();
            return Err(RunError::Model(none).into());
        }
        Ok(())
    }

    /// The model of the run, which spends from its budget.
    pub fn model(&self) -> Result<Arc<dyn Model>> {
        let none = || RunError::Model("this asks a model, and none is configured".to_owned());
        Ok(self.context.model.clone().ok_or_else(none)?)
    }

    /// Renders the text of each step without calling a model.
    pub fn render_steps(&self) -> Result<Vec<PlannedStep>> {
        let mut steps = Vec::new();
        let (context, skill) = (&self.context, &self.skill);
        let family = context.model_family();
        for step in &self.plan.steps {
            let executed = self.dispatcher.executable_artifact(skill, step, &family);
            let artifact = executed.unwrap_or(step);
            let source = skill.load_content(artifact)?;
            let values = context.template_values();
            let text = match artifact.artifact.kind {
                ArtifactKind::PromptTemplate => context.engine.render_str(&source, &values)?,
                ArtifactKind::CodeTemplate => {
                    let constants = read_constants(&artifact.artifact)?;
                    let code = context.engine.render_code(&source, &values, &constants)?;
                    code.display_source()
                }
                ArtifactKind::Description
                | ArtifactKind::Approach
                | ArtifactKind::Example
                | ArtifactKind::DspyModule => source,
            };
            steps.push(PlannedStep {
                fallback_for: (artifact != step).then(|| step.artifact.name.clone()),
                artifact: artifact.clone(),
                text,
            });
        }
        Ok(steps)
    }

    /// Runs the plan and stores a trace of each execution. A trace that cannot be stored is a
    /// warning of the report.
    pub async fn execute(mut self) -> RunReport {
        let mut problems = Vec::new();
        let traces = &self.traces;
        let mut store_trace = |record: &ExecutionRecord| {
            if !traces.keep_record(record) && problems.is_empty() {
                // The report may go to another machine, so the details stay in the log.
                problems.push("a trace of this run could not be stored".to_owned());
            }
        };
        let (skill, plan) = (&self.skill, &self.plan);
        let context = &mut self.context;
        let mut report = run_plan(skill, &self.dispatcher, plan, context, &mut store_trace).await;
        context.spans.flush();
        report.warnings.append(&mut problems);
        report
    }
}
