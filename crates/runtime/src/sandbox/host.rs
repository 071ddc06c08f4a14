//! The host calls of scripts. Scripts are untrusted, so every call is checked here.

mod calls;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use repertoire_core::markdown::truncate_text;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::calls::{
    BatchArgs, CheckpointArgs, HistoryArgs, NameArgs, NamesArgs, NoArgs, PageSearchArgs, QueryArgs,
    RunSkillArgs, TextArgs, TypeArgs, ValueArgs, call_error, check_key, check_query_length,
    check_schema_size, collect_pages, parse_args, serialise_answer, to_json_value,
};
use crate::{
    dispatch::{Checkpoints, ExecutionContext, ExecutionNotes, NestedSkills},
    error::{Error, Result},
    limits::{Limits, UsageMeter},
    model::{Budget, MeteredModel, Model, ModelRequest},
    record::ResourceUse,
    redact::Redactor,
    run::{plan_run, run_plan},
    spans::{CallPurpose, SpanPlace, SpanRecorder},
    template::TemplateEngine,
    variant::family_of,
    workspace::Workspace,
};

/// The maximum bytes of the arguments of a call.
const MAX_ARGS: usize = 4 << 20;
/// The maximum prompts of a batch, and how many of them are sent concurrently.
const MAX_BATCH: usize = 1000;
const MAX_CONCURRENT_PROMPTS: usize = 8;
/// How deep skills run nested skills.
pub(super) const MAX_DEPTH: usize = 4;
/// The maximum number of nested skills in one run.
const MAX_RUNS: u64 = 500;
/// How long before its own deadline a script stops a nested skill.
const GRACE: Duration = Duration::from_millis(50);
/// The maximum bytes of a checkpoint value.
const MAX_CHECKPOINT: usize = 1 << 20;
/// The maximum number of checkpoints of one run.
const MAX_CHECKPOINTS: usize = 1000;
/// The maximum number of search results, and of pages in one call.
const MAX_RESULTS: usize = 100;
const MAX_PAGES: usize = 100;
/// The maximum bytes of all checkpoints of one run, including nested skills.
const MAX_KEPT: u64 = 16 << 20;
/// The maximum bytes of an error message for a script.
const MAX_REFUSAL: usize = 2000;
/// The calls that have spans.
const RECORDED_CALLS: [&str; 10] = [
    "workspace_search",
    "get_page",
    "get_pages",
    "get_pages_by_type",
    "get_tags",
    "get_references",
    "get_history",
    "checkpoint_load",
    "checkpoint_save",
    "submit",
];
/// The maximum bytes of the arguments of a call that has a span.
const MAX_RECORDED_ARGS: usize = 256 * 1024;
/// The maximum characters of a warning of a script.
const MAX_WARNING: usize = 300;

/// The host side of one script run: its services, limits and state.
pub(super) struct ScriptHost {
    session: String,
    artifact: String,
    engine: TemplateEngine,
    model: Option<Arc<dyn Model>>,
    max_tokens: u64,
    system: Vec<String>,
    redactor: Redactor,
    checkpoints: Arc<dyn Checkpoints>,
    nested_skills: Option<Arc<NestedSkills>>,
    depth: usize,
    /// The checkpoint bytes and the number of nested runs, shared by all skills of one run.
    checkpoint_bytes: Arc<AtomicU64>,
    nested_runs: Arc<AtomicU64>,
    /// The fuel of nested scripts that is not yet subtracted from this script's fuel.
    burnt: AtomicU64,
    pub(super) begun: Instant,
    stop: CancellationToken,
    pub(super) notes: ExecutionNotes,
    spans: SpanRecorder,
    pub(super) limits: Limits,
    pub(super) meter: Arc<UsageMeter>,
    state: Mutex<HostState>,
}

#[derive(Debug, Default)]
struct HostState {
    submitted: Option<Value>,
    /// The bytes of each saved checkpoint.
    kept: HashMap<String, u64>,
    /// The last refused call, to report its reason if the script ends with it.
    refused: Option<Error>,
    /// Why the host ended the script.
    fatal: Option<Error>,
}

/// The result of a call that does not end the script.
type CallResult = Result<Value>;

impl ScriptHost {
    pub(super) fn new(context: &ExecutionContext, limits: Limits) -> Arc<Self> {
        let budget = Arc::new(Budget::new(Some(limits.tokens), limits.cost));
        let model = context
            .model
            .clone()
            .map(|model| -> Arc<dyn Model> { Arc::new(MeteredModel::new(model, budget.clone())) });
        let (begun, meter): (_, Arc<UsageMeter>) = (Instant::now(), Arc::default());
        let counted = meter.clone();
        // Resource use is reported however the script ends.
        context
            .notes
            .set_usage_source(move |used| counted.report_usage(used, &limits, begun, &budget));
        Arc::new(Self {
            session: context.session_id.clone(),
            artifact: format!(
                "{}{}",
                context.checkpoint_scope,
                context.notes.current_artifact()
            ),
            engine: context.engine.clone(),
            model,
            max_tokens: context.max_tokens,
            system: context.system.clone(),
            redactor: context.redactor.clone(),
            checkpoints: context.checkpoints.clone(),
            nested_skills: context.nested_skills.clone(),
            depth: context.depth,
            checkpoint_bytes: context.checkpoint_bytes.clone(),
            nested_runs: context.nested_runs.clone(),
            burnt: AtomicU64::new(0),
            begun,
            stop: context.stop.child_token(),
            notes: context.notes.clone(),
            spans: context.spans.clone(),
            limits,
            meter,
            state: Mutex::default(),
        })
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_submitted(&self) -> Option<Value> {
        self.lock_state().submitted.take()
    }

    /// Takes the error with which the host ended the script.
    pub(super) fn take_fatal(&self) -> Option<Error> {
        self.lock_state().fatal.take()
    }

    pub(super) fn end_script(&self, error: Error) {
        self.lock_state().fatal.get_or_insert(error);
    }

    /// Takes the last refusal if its message is the one the script ended with.
    pub(super) fn take_refusal(&self, message: &str) -> Option<Error> {
        let refused = self.lock_state().refused.take();
        let text = |error: &Error| truncate_text(&error.to_string(), MAX_REFUSAL);
        refused.filter(|error| text(error) == message)
    }

    /// Whether another script runs this one.
    pub(super) fn is_nested(&self) -> bool {
        self.depth > 0
    }

    /// Subtracts the fuel of nested scripts.
    pub(super) fn fuel_left(&self, fuel: u64) -> u64 {
        fuel.saturating_sub(self.burnt.swap(0, Ordering::Relaxed))
    }

    /// Records the fuel used so far from the fuel that is left.
    pub(super) fn note_fuel(&self, left: u64) {
        let burnt = self.limits.fuel.saturating_sub(left);
        self.meter.fuel.store(burnt, Ordering::Relaxed);
    }

    /// Handles a call: returns a value, or an error the script can catch. An outer `Err` ends it.
    pub(super) async fn handle_call(
        &self,
        name: &str,
        args: &str,
        fuel: u64,
    ) -> Result<Result<String, String>> {
        self.note_fuel(fuel);
        self.meter.count_calls(1, &self.limits)?;
        // The guest chooses name and arguments, so both are checked before anything keeps them. Model
        // calls and nested runs have spans of their own.
        let is_recorded = RECORDED_CALLS.contains(&name) && args.len() <= MAX_RECORDED_ARGS;
        let span = is_recorded.then(|| {
            let parent = self.notes.current_execution();
            self.spans.begin_host_call(parent, name, args)
        });
        let answered = match self.dispatch_call(name, args, fuel).await {
            Ok(value) => serialise_answer(name, &value),
            Err(error) => Err(error),
        };
        if let Some(span) = span {
            span.finish(answered.as_deref());
        }
        Ok(match answered {
            Ok(answer) => Ok(answer),
            Err(error @ (Error::ScriptLimit(_) | Error::Interrupted)) => return Err(error),
            Err(error) => {
                let message = truncate_text(&error.to_string(), MAX_REFUSAL);
                let refusal = json!({"code": error.code(), "message": message});
                self.lock_state().refused = Some(error);
                Err(refusal.to_string())
            }
        })
    }

    async fn dispatch_call(&self, name: &str, args: &str, fuel: u64) -> CallResult {
        if args.len() > MAX_ARGS {
            return Err(call_error(name, format!("takes at most {MAX_ARGS} bytes")));
        }
        match name {
            "workspace_search" => {
                let PageSearchArgs { query, limit } = parse_args(name, args)?;
                let query = check_query_length(name, query)?;
                self.query_workspace(move |pages| {
                    pages.search_pages(&query, limit.min(MAX_RESULTS))
                })
                .await
            }
            "get_page" => {
                let page = check_query_length(name, parse_args::<NameArgs>(name, args)?.name)?;
                self.query_workspace(move |pages| pages.find_page(&page))
                    .await
            }
            "get_pages" => {
                let names = parse_args::<NamesArgs>(name, args)?.names;
                if names.len() > MAX_PAGES {
                    return Err(call_error(name, format!("gives at most {MAX_PAGES} pages")));
                }
                let more = u64::try_from(names.len()).unwrap_or(u64::MAX);
                self.meter
                    .count_calls(more.saturating_sub(1), &self.limits)?;
                self.query_workspace(move |pages| collect_pages(pages, &names))
                    .await
            }
            "get_pages_by_type" => {
                let kind = check_query_length(name, parse_args::<TypeArgs>(name, args)?.r#type)?;
                self.query_workspace(move |pages| pages.pages_by_type(&kind))
                    .await
            }
            "get_tags" => {
                let NoArgs {} = parse_args(name, args)?;
                self.query_workspace(|pages| pages.tags()).await
            }
            "get_references" => {
                let page = check_query_length(name, parse_args::<NameArgs>(name, args)?.name)?;
                self.query_workspace(move |pages| pages.references(&page))
                    .await
            }
            "get_history" => {
                let HistoryArgs { name: page, limit } = parse_args(name, args)?;
                let page = check_query_length(name, page)?;
                self.query_workspace(move |pages| pages.history(&page, limit.min(MAX_RESULTS)))
                    .await
            }
            "llm_query" => {
                let query: QueryArgs = parse_args(name, args)?;
                let schema = check_schema_size(name, query.schema)?;
                let ask = self.build_request(query.prompt, query.system, query.max_tokens, schema);
                Ok(json!(self.query_model(&ask).await?))
            }
            "llm_query_batched" => self.query_batch(parse_args(name, args)?).await,
            "checkpoint_load" => {
                let key = check_key(name, parse_args::<NameArgs>(name, args)?.name)?;
                let kept = self
                    .checkpoints
                    .load_checkpoint(&self.session, &self.artifact, &key)?;
                Ok(json!({"kept": kept.is_some(), "value": kept}))
            }
            "checkpoint_save" => self.save_checkpoint(parse_args(name, args)?),
            "submit" => self.submit_result(parse_args::<ValueArgs>(name, args)?.value, args.len()),
            "run_skill" => self.run_skill(parse_args(name, args)?, fuel).await,
            "warn" => {
                let text = parse_args::<TextArgs>(name, args)?.text;
                self.notes.add_warning(&truncate_text(&text, MAX_WARNING));
                Ok(Value::Null)
            }
            _ => Err(call_error(name, "there is no such call".to_owned())),
        }
    }

    /// Queries the workspace on a blocking thread: it may wait for a disk, and a stopped script
    /// must not wait for it.
    async fn query_workspace<T: Serialize + Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Workspace) -> Result<T> + Send + 'static,
    ) -> CallResult {
        let workspace = self.engine.workspace().cloned();
        let workspace =
            workspace.ok_or_else(|| Error::Workspace(crate::error::NO_PAGES.to_owned()))?;
        let looked = tokio::task::spawn_blocking(move || to_json_value(ask(&*workspace)?));
        looked.await.map_err(|_| Error::Interrupted)?
    }

    fn build_request(
        &self,
        prompt: String,
        system: Option<String>,
        max_tokens: Option<u64>,
        schema: Option<Value>,
    ) -> ModelRequest {
        let mut ask = ModelRequest::new(prompt);
        ask.system = system.or_else(|| {
            let system = self.system.join("\n\n");
            (!system.is_empty()).then_some(system)
        });
        let most = self.max_tokens.max(1);
        ask.max_tokens = max_tokens.map_or(most, |wanted| wanted.clamp(1, most));
        ask.schema = schema;
        ask.purpose = CallPurpose::Script;
        ask.parent_span = self.notes.current_execution();
        ask
    }

    async fn query_model(&self, ask: &ModelRequest) -> Result<String> {
        let none = || Error::Model("this skill needs a model, but none is named".to_owned());
        let model = self.model.as_ref().ok_or_else(none)?;
        self.notes.set_model(model.id());
        let reply = model.send_request(ask, None).await?;
        self.notes.add_usage(reply.usage);
        Ok(reply.text)
    }

    async fn query_batch(&self, batch: BatchArgs) -> CallResult {
        let many = batch.prompts.len();
        if many > MAX_BATCH {
            let call = "llm_query_batched";
            return Err(call_error(
                call,
                format!("takes at most {MAX_BATCH} prompts"),
            ));
        }
        let schema = check_schema_size("llm_query_batched", batch.schema)?;
        // The call itself is already counted.
        let more = u64::try_from(many).unwrap_or(u64::MAX).saturating_sub(1);
        self.meter.count_calls(more, &self.limits)?;
        let asks = batch.prompts.into_iter().map(|prompt| {
            let (system, schema) = (batch.system.clone(), schema.clone());
            self.build_request(prompt, system, batch.max_tokens, schema)
        });
        // After a failure, start no other prompt; those in progress are paid for, so wait for them.
        let over = AtomicBool::new(false);
        let mut asked = futures::stream::iter(asks)
            .map(|ask| async {
                let (ask, over) = (ask, &over);
                if over.load(Ordering::Relaxed) {
                    return None;
                }
                let answer = self.query_model(&ask).await;
                over.fetch_or(answer.is_err(), Ordering::Relaxed);
                Some(answer)
            })
            .buffered(MAX_CONCURRENT_PROMPTS);
        let (mut answers, mut failed) = (Vec::with_capacity(many), None);
        let mut number = 0;
        while let Some(answer) = asked.next().await {
            number += 1;
            match answer {
                Some(Ok(answer)) => answers.push(answer),
                Some(Err(error)) => {
                    failed = failed.or_else(|| Some(error.with_prompt_number(number, many)));
                }
                None => {}
            }
        }
        failed.map_or_else(|| Ok(json!(answers)), Err)
    }

    fn save_checkpoint(&self, save: CheckpointArgs) -> CallResult {
        let call = "checkpoint_save";
        let name = check_key(call, save.name)?;
        let size = save.value.to_string().len();
        if size > MAX_CHECKPOINT {
            let most = MAX_CHECKPOINT;
            return Err(call_error(
                call,
                format!("{name:?} has {size} bytes, more than {most}"),
            ));
        }
        self.reserve_checkpoint_space(&name, size as u64)
            .map_err(|why| call_error(call, why))?;
        let (session, artifact) = (&self.session, &self.artifact);
        // This waits for the disk; other scripts continue meanwhile.
        tokio::task::block_in_place(|| {
            let checkpoints = &self.checkpoints;
            checkpoints.save_checkpoint(session, artifact, &name, &save.value)
        })?;
        Ok(Value::Null)
    }

    /// Reserves space for a checkpoint value.
    fn reserve_checkpoint_space(&self, name: &str, size: u64) -> std::result::Result<(), String> {
        let mut said = self.lock_state();
        let before = said.kept.get(name).copied();
        if before.is_none() && said.kept.len() >= MAX_CHECKPOINTS {
            return Err(format!("a run keeps at most {MAX_CHECKPOINTS} values"));
        }
        // Calls of one run, including nested skills, are never concurrent.
        let all = self.checkpoint_bytes.load(Ordering::Relaxed) - before.unwrap_or(0) + size;
        if all > MAX_KEPT {
            return Err(format!("a run keeps at most {MAX_KEPT} bytes"));
        }
        said.kept.insert(name.to_owned(), size);
        self.checkpoint_bytes.store(all, Ordering::Relaxed);
        Ok(())
    }

    fn submit_result(&self, value: Value, size: usize) -> CallResult {
        let used = self.meter.output.fetch_add(size as u64, Ordering::Relaxed);
        if used + size as u64 > self.limits.output {
            let most = self.limits.output;
            return Err(Error::ScriptLimit(format!(
                "it printed or submitted more than {most} bytes"
            )));
        }
        let mut said = self.lock_state();
        if said.submitted.is_some() {
            return Err(call_error(
                "submit",
                "a result was submitted before".to_owned(),
            ));
        }
        said.submitted = Some(value);
        Ok(Value::Null)
    }

    async fn run_skill(&self, wanted: RunSkillArgs, fuel: u64) -> CallResult {
        let call = "run_skill";
        let Some(others) = &self.nested_skills else {
            return Err(call_error(
                call,
                "no other skill can be run here".to_owned(),
            ));
        };
        if self.depth >= MAX_DEPTH {
            return Err(call_error(
                call,
                format!("skills run skills at most {MAX_DEPTH} deep"),
            ));
        }
        if self.nested_runs.fetch_add(1, Ordering::Relaxed) >= MAX_RUNS {
            return Err(call_error(
                call,
                format!("a run runs at most {MAX_RUNS} skills"),
            ));
        }
        let skill = others.skills.open_skill(&wanted.skill)?;
        let mut context = ExecutionContext::new();
        context.session_id.clone_from(&self.session);
        context.values = wanted.params;
        // Scope checkpoints by the input values, so that the same nested call finds them again.
        context.checkpoint_scope = format!("{}>{}>", self.artifact, context.fingerprint());
        context.remaining_limits = Some(self.remaining_limits(fuel));
        context.nested_runs = self.nested_runs.clone();
        context.model.clone_from(&self.model);
        context.engine = self.engine.clone();
        context.max_tokens = self.max_tokens;
        context.redactor = self.redactor.clone();
        context.spans = self.spans.clone();
        context.place = SpanPlace::below(self.notes.current_execution());
        // Stop it shortly before this script's own deadline, so that it leaves its record.
        context.stop = self.stop.child_token();
        let until = tokio::time::Instant::from_std(self.begun) + self.limits.time();
        let stop = context.stop.clone();
        let _timer = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep_until(until.checked_sub(GRACE).unwrap_or(until)).await;
            stop.cancel();
        }));
        context.checkpoints = self.checkpoints.clone();
        context.nested_skills = Some(others.clone());
        context.depth = self.depth + 1;
        context.checkpoint_bytes = self.checkpoint_bytes.clone();
        let family = self.model.as_ref().map(|model| family_of(model.id()));
        let names: Vec<String> = wanted.artifact.into_iter().collect();
        let dispatcher = &others.dispatcher;
        let steps = plan_run(&*skill, dispatcher, &family.unwrap_or_default(), &names)?;
        let mut keep = |record: &crate::ExecutionRecord| (others.save_record)(record);
        // Boxed, because this call can recurse.
        let report = Box::pin(run_plan(
            &*skill,
            dispatcher,
            &steps,
            &mut context,
            &mut keep,
        ))
        .await;
        for record in &report.records {
            self.charge_nested_usage(&record.details.used);
        }
        self.notes.add_nested_usage(report.usage());
        match report.outcome {
            Ok(output) => Ok(output.value.unwrap_or_else(|| json!(output.text))),
            // A limit of the nested skill is an error the calling script can handle.
            Err(Error::ScriptLimit(why)) => {
                Err(call_error(call, format!("{}: {why}", wanted.skill)))
            }
            Err(Error::Interrupted) if !self.stop.is_cancelled() => Err(Error::ScriptLimit(
                format!("it took more than {} s", self.limits.seconds),
            )),
            Err(error) => Err(error),
        }
    }

    /// The limits that are left for a nested skill.
    fn remaining_limits(&self, fuel: u64) -> Limits {
        let calls = self.meter.host_calls.load(Ordering::Relaxed);
        Limits {
            fuel,
            host_calls: self.limits.host_calls.saturating_sub(calls),
            ..self.limits
        }
    }

    /// Adds the resource use of a nested skill to this script.
    fn charge_nested_usage(&self, used: &BTreeMap<String, ResourceUse>) {
        let of = |what: &str| used.get(what).map_or(0, |used| used.used);
        self.burnt.fetch_add(of("fuel"), Ordering::Relaxed);
        let calls = &self.meter.host_calls;
        calls.fetch_add(of("host_calls"), Ordering::Relaxed);
    }
}
