//! What scripts can ask. Each call is checked here: a script can make any.

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
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::calls::{
    Batch, History, Named, Names, Nothing, Query, RunSkill, Save, Search, Typed, Valued, fitting,
    json_of, key, read, refuse, serialised, several, short,
};
use crate::{
    dispatch::{Checkpoints, ExecutionContext, Notes, Others},
    error::{Error, Result},
    limits::{Limits, Meter},
    model::{Ask, Budget, Metered, Model},
    record::Used,
    redact::Redactor,
    run::{plan, run},
    template::PromptEngine,
    variant::family_of,
    workspace::Workspace,
};

/// The most bytes of what a call is given.
const MAX_ARGS: usize = 4 << 20;
/// The most prompts of a batch, and how many of them are asked at a time.
const MAX_BATCH: usize = 1000;
const AT_ONCE: usize = 8;
/// How deep skills run skills.
pub(super) const MAX_DEPTH: usize = 4;
/// The most skills one run runs, with those they run.
const MAX_RUNS: u64 = 500;
/// How long before the end of its time a script stops what it runs.
const GRACE: Duration = Duration::from_millis(50);
/// The most bytes of a value that is kept.
const MAX_CHECKPOINT: usize = 1 << 20;
/// The most values one run keeps.
const MAX_CHECKPOINTS: usize = 1000;
/// The most results of a search, and pages at a time.
const MAX_RESULTS: usize = 100;
const MAX_PAGES: usize = 100;
/// The most bytes one run keeps, with those it runs.
const MAX_KEPT: u64 = 16 << 20;
/// The most bytes of a refusal.
const MAX_REFUSAL: usize = 2000;

/// What one run of a script can ask, and what it has said.
pub(super) struct Host {
    session: String,
    artifact: String,
    engine: PromptEngine,
    model: Option<Arc<dyn Model>>,
    max_tokens: u64,
    system: Vec<String>,
    redactor: Redactor,
    checkpoints: Arc<dyn Checkpoints>,
    others: Option<Arc<Others>>,
    depth: usize,
    /// How many bytes this run has kept, with those it runs and those that run it; how many skills
    /// they have run.
    kept: Arc<AtomicU64>,
    runs: Arc<AtomicU64>,
    /// The fuel of scripts it has run, not yet taken from its own.
    burnt: AtomicU64,
    pub(super) begun: Instant,
    stop: CancellationToken,
    pub(super) notes: Notes,
    pub(super) limits: Limits,
    pub(super) meter: Arc<Meter>,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    submitted: Option<Value>,
    /// What was kept, and how many bytes it has.
    kept: HashMap<String, u64>,
    /// The last call that was refused, so that a script that ends with it ends with its reason.
    refused: Option<Error>,
    /// Why the script was ended.
    fatal: Option<Error>,
}

/// What a call gives, when it does not end the script.
type Answer = Result<Value>;

impl Host {
    pub(super) fn new(context: &ExecutionContext, limits: Limits) -> Arc<Self> {
        let budget = Arc::new(Budget::new(Some(limits.tokens), limits.cost));
        let model = context
            .model
            .clone()
            .map(|model| -> Arc<dyn Model> { Arc::new(Metered::new(model, budget.clone())) });
        let (begun, meter): (_, Arc<Meter>) = (Instant::now(), Arc::default());
        let counted = meter.clone();
        // However it ends, what it used is known.
        context
            .notes
            .measure(move |used| counted.tell(used, &limits, begun, &budget));
        Arc::new(Self {
            session: context.session_id.clone(),
            artifact: format!("{}{}", context.within, context.notes.place()),
            engine: context.engine.clone(),
            model,
            max_tokens: context.max_tokens,
            system: context.system.clone(),
            redactor: context.redactor.clone(),
            checkpoints: context.checkpoints.clone(),
            others: context.others.clone(),
            depth: context.depth,
            kept: context.kept.clone(),
            runs: context.runs.clone(),
            burnt: AtomicU64::new(0),
            begun,
            stop: context.stop.child_token(),
            notes: context.notes.clone(),
            limits,
            meter,
            said: Mutex::default(),
        })
    }

    fn said(&self) -> std::sync::MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submitted(&self) -> Option<Value> {
        self.said().submitted.take()
    }

    /// Why the script was ended from outside.
    pub(super) fn fatal(&self) -> Option<Error> {
        self.said().fatal.take()
    }

    pub(super) fn end(&self, error: Error) {
        self.said().fatal.get_or_insert(error);
    }

    /// The refusal a script ended with, by what it says.
    pub(super) fn refused(&self, message: &str) -> Option<Error> {
        let refused = self.said().refused.take();
        let text = |error: &Error| repertoire_core::markdown::cut(&error.to_string(), MAX_REFUSAL);
        refused.filter(|error| text(error) == message)
    }

    /// Whether another script runs this one.
    pub(super) fn is_nested(&self) -> bool {
        self.depth > 0
    }

    /// What is left of some fuel, after what was run meanwhile.
    pub(super) fn fuel_left(&self, fuel: u64) -> u64 {
        fuel.saturating_sub(self.burnt.swap(0, Ordering::Relaxed))
    }

    /// Notes how much of its fuel a script has left.
    pub(super) fn note_fuel(&self, left: u64) {
        let burnt = self.limits.fuel.saturating_sub(left);
        self.meter.fuel.store(burnt, Ordering::Relaxed);
    }

    /// Answers a call: with a value, or with why not. A failure ends the script.
    pub(super) async fn call(
        &self,
        name: &str,
        args: &str,
        fuel: u64,
    ) -> Result<Result<String, String>> {
        self.note_fuel(fuel);
        self.meter.count_calls(1, &self.limits)?;
        let answered = match self.answer(name, args, fuel).await {
            Ok(value) => serialised(name, &value),
            Err(error) => Err(error),
        };
        Ok(match answered {
            Ok(answer) => Ok(answer),
            Err(error @ (Error::ScriptLimit(_) | Error::Interrupted)) => return Err(error),
            Err(error) => {
                let message = repertoire_core::markdown::cut(&error.to_string(), MAX_REFUSAL);
                let told = json!({"code": error.code(), "message": message});
                self.said().refused = Some(error);
                Err(told.to_string())
            }
        })
    }

    async fn answer(&self, name: &str, args: &str, fuel: u64) -> Answer {
        if args.len() > MAX_ARGS {
            return Err(refuse(name, format!("takes at most {MAX_ARGS} bytes")));
        }
        match name {
            "workspace_search" => {
                let Search { query, limit } = read(name, args)?;
                let query = short(name, query)?;
                self.look(move |pages| pages.search(&query, limit.min(MAX_RESULTS)))
                    .await
            }
            "get_page" => {
                let page = short(name, read::<Named>(name, args)?.name)?;
                self.look(move |pages| pages.page(&page)).await
            }
            "get_pages" => {
                let names = read::<Names>(name, args)?.names;
                if names.len() > MAX_PAGES {
                    return Err(refuse(name, format!("gives at most {MAX_PAGES} pages")));
                }
                let more = u64::try_from(names.len()).unwrap_or(u64::MAX);
                self.meter
                    .count_calls(more.saturating_sub(1), &self.limits)?;
                self.look(move |pages| several(pages, &names)).await
            }
            "get_pages_by_type" => {
                let kind = short(name, read::<Typed>(name, args)?.r#type)?;
                self.look(move |pages| pages.pages_by_type(&kind)).await
            }
            "get_tags" => {
                let Nothing {} = read(name, args)?;
                self.look(|pages| pages.tags()).await
            }
            "get_references" => {
                let page = short(name, read::<Named>(name, args)?.name)?;
                self.look(move |pages| pages.references(&page)).await
            }
            "get_history" => {
                let History { name: page, limit } = read(name, args)?;
                let page = short(name, page)?;
                self.look(move |pages| pages.history(&page, limit.min(MAX_RESULTS)))
                    .await
            }
            "llm_query" => {
                let query: Query = read(name, args)?;
                let schema = fitting(name, query.schema)?;
                let ask = self.ask(query.prompt, query.system, query.max_tokens, schema);
                Ok(json!(self.query(&ask).await?))
            }
            "llm_query_batched" => self.batch(read(name, args)?).await,
            "checkpoint_load" => {
                let key = key(name, read::<Named>(name, args)?.name)?;
                let kept = self.checkpoints.load(&self.session, &self.artifact, &key)?;
                Ok(json!({"kept": kept.is_some(), "value": kept}))
            }
            "checkpoint_save" => self.save(read(name, args)?),
            "submit" => self.submit(read::<Valued>(name, args)?.value, args.len()),
            "run_skill" => self.run_skill(read(name, args)?, fuel).await,
            _ => Err(refuse(name, "there is no such call".to_owned())),
        }
    }

    /// Asks the workspace, elsewhere: it may wait for a disk, and a script that is stopped does not
    /// wait for it.
    async fn look<T: Serialize + Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Workspace) -> Result<T> + Send + 'static,
    ) -> Answer {
        let workspace = self.engine.workspace().cloned().ok_or_else(|| {
            Error::Workspace("there is none: give a folder of pages with --vault".to_owned())
        })?;
        let looked = tokio::task::spawn_blocking(move || json_of(ask(&*workspace)?));
        looked.await.map_err(|_| Error::Interrupted)?
    }

    fn ask(
        &self,
        prompt: String,
        system: Option<String>,
        max_tokens: Option<u64>,
        schema: Option<Value>,
    ) -> Ask {
        let mut ask = Ask::new(prompt);
        ask.system = system.or_else(|| {
            let system = self.system.join("\n\n");
            (!system.is_empty()).then_some(system)
        });
        let most = self.max_tokens.max(1);
        ask.max_tokens = max_tokens.map_or(most, |wanted| wanted.clamp(1, most));
        ask.schema = schema;
        ask
    }

    async fn query(&self, ask: &Ask) -> Result<String> {
        let none = || Error::Model("this skill asks a model, and none was named".to_owned());
        let model = self.model.as_ref().ok_or_else(none)?;
        self.notes.model(model.id());
        let reply = model.ask(ask, None).await?;
        self.notes.usage(reply.usage);
        Ok(reply.text)
    }

    async fn batch(&self, batch: Batch) -> Answer {
        let many = batch.prompts.len();
        if many > MAX_BATCH {
            let call = "llm_query_batched";
            return Err(refuse(call, format!("takes at most {MAX_BATCH} prompts")));
        }
        let schema = fitting("llm_query_batched", batch.schema)?;
        // The call itself was counted.
        let more = u64::try_from(many).unwrap_or(u64::MAX).saturating_sub(1);
        self.meter.count_calls(more, &self.limits)?;
        let asks = batch.prompts.into_iter().map(|prompt| {
            let (system, schema) = (batch.system.clone(), schema.clone());
            self.ask(prompt, system, batch.max_tokens, schema)
        });
        // If one fails, those under way are waited for, since they are paid for; no other is begun.
        let over = AtomicBool::new(false);
        let mut asked = futures::stream::iter(asks)
            .map(|ask| async {
                let (ask, over) = (ask, &over);
                if over.load(Ordering::Relaxed) {
                    return None;
                }
                let answer = self.query(&ask).await;
                over.fetch_or(answer.is_err(), Ordering::Relaxed);
                Some(answer)
            })
            .buffered(AT_ONCE);
        let (mut answers, mut failed) = (Vec::with_capacity(many), None);
        let mut number = 0;
        while let Some(answer) = asked.next().await {
            number += 1;
            match answer {
                Some(Ok(answer)) => answers.push(answer),
                Some(Err(error)) => failed = failed.or_else(|| Some(error.of_prompt(number, many))),
                None => {}
            }
        }
        failed.map_or_else(|| Ok(json!(answers)), Err)
    }

    fn save(&self, save: Save) -> Answer {
        let call = "checkpoint_save";
        let name = key(call, save.name)?;
        let size = save.value.to_string().len();
        if size > MAX_CHECKPOINT {
            let most = MAX_CHECKPOINT;
            return Err(refuse(
                call,
                format!("{name:?} has {size} bytes, more than {most}"),
            ));
        }
        self.make_room(&name, size as u64)
            .map_err(|why| refuse(call, why))?;
        let (session, artifact) = (&self.session, &self.artifact);
        // It waits for the disk; other scripts go on meanwhile.
        tokio::task::block_in_place(|| {
            let checkpoints = &self.checkpoints;
            checkpoints.save(session, artifact, &name, &save.value)
        })?;
        Ok(Value::Null)
    }

    /// Makes room for a value among those that are kept.
    fn make_room(&self, name: &str, size: u64) -> std::result::Result<(), String> {
        let mut said = self.said();
        let before = said.kept.get(name).copied();
        if before.is_none() && said.kept.len() >= MAX_CHECKPOINTS {
            return Err(format!("a run keeps at most {MAX_CHECKPOINTS} values"));
        }
        // One call is made at a time, also by those it runs.
        let all = self.kept.load(Ordering::Relaxed) - before.unwrap_or(0) + size;
        if all > MAX_KEPT {
            return Err(format!("a run keeps at most {MAX_KEPT} bytes"));
        }
        said.kept.insert(name.to_owned(), size);
        self.kept.store(all, Ordering::Relaxed);
        Ok(())
    }

    fn submit(&self, value: Value, size: usize) -> Answer {
        let used = self.meter.output.fetch_add(size as u64, Ordering::Relaxed);
        if used + size as u64 > self.limits.output {
            let most = self.limits.output;
            return Err(Error::ScriptLimit(format!(
                "it printed or submitted more than {most} bytes"
            )));
        }
        let mut said = self.said();
        if said.submitted.is_some() {
            return Err(refuse("submit", "a result was submitted before".to_owned()));
        }
        said.submitted = Some(value);
        Ok(Value::Null)
    }

    async fn run_skill(&self, wanted: RunSkill, fuel: u64) -> Answer {
        let call = "run_skill";
        let Some(others) = &self.others else {
            return Err(refuse(call, "no other skill can be run here".to_owned()));
        };
        if self.depth >= MAX_DEPTH {
            return Err(refuse(
                call,
                format!("skills run skills at most {MAX_DEPTH} deep"),
            ));
        }
        if self.runs.fetch_add(1, Ordering::Relaxed) >= MAX_RUNS {
            return Err(refuse(
                call,
                format!("a run runs at most {MAX_RUNS} skills"),
            ));
        }
        let skill = others.skills.open(&wanted.skill)?;
        let mut context = ExecutionContext::new();
        context.session_id.clone_from(&self.session);
        context.values = wanted.params;
        // What it keeps is its own: by what it is asked, so that it has it when it is asked again.
        context.within = format!("{}>{}>", self.artifact, context.fingerprint());
        context.left = Some(self.left(fuel));
        context.runs = self.runs.clone();
        context.model.clone_from(&self.model);
        context.engine = self.engine.clone();
        context.max_tokens = self.max_tokens;
        context.redactor = self.redactor.clone();
        // Shortly before this one's time is up, so that it leaves its record.
        context.stop = self.stop.child_token();
        let until = tokio::time::Instant::from_std(self.begun) + self.limits.time();
        let stop = context.stop.clone();
        let _timer = AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep_until(until.checked_sub(GRACE).unwrap_or(until)).await;
            stop.cancel();
        }));
        context.checkpoints = self.checkpoints.clone();
        context.others = Some(others.clone());
        context.depth = self.depth + 1;
        context.kept = self.kept.clone();
        let family = self.model.as_ref().map(|model| family_of(model.id()));
        let names: Vec<String> = wanted.artifact.into_iter().collect();
        let dispatcher = &others.dispatcher;
        let steps = plan(&*skill, dispatcher, &family.unwrap_or_default(), &names)?;
        let mut keep = |record: &crate::ExecutionRecord| (others.keep)(record);
        // Boxed, since it may come by here again.
        let report = Box::pin(run(&*skill, dispatcher, &steps, &mut context, &mut keep)).await;
        for record in &report.records {
            self.charge(&record.details.used);
        }
        self.notes.others(report.usage());
        match report.outcome {
            Ok(output) => Ok(output.value.unwrap_or_else(|| json!(output.text))),
            // What it may not is no fault of whoever runs it, who may go on.
            Err(Error::ScriptLimit(why)) => Err(refuse(call, format!("{}: {why}", wanted.skill))),
            Err(Error::Interrupted) if !self.stop.is_cancelled() => Err(Error::ScriptLimit(
                format!("it took more than {} s", self.limits.seconds),
            )),
            Err(error) => Err(error),
        }
    }

    /// What is left for a skill that is run now.
    fn left(&self, fuel: u64) -> Limits {
        let calls = self.meter.host_calls.load(Ordering::Relaxed);
        Limits {
            fuel,
            host_calls: self.limits.host_calls.saturating_sub(calls),
            ..self.limits
        }
    }

    /// Counts what a skill that was run has used.
    fn charge(&self, used: &BTreeMap<String, Used>) {
        let of = |what: &str| used.get(what).map_or(0, |used| used.used);
        self.burnt.fetch_add(of("fuel"), Ordering::Relaxed);
        let calls = &self.meter.host_calls;
        calls.fetch_add(of("host_calls"), Ordering::Relaxed);
    }
}
