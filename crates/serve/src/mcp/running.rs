//! The tools that find and run skills, where they are offered.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use repertoire_core::markdown::{cut, one_line};
use repertoire_registry::{
    Reference, Registry,
    search::{MEANING_THRESHOLD, Recommendation, THRESHOLD},
};
use repertoire_runtime::{
    Budget, Error, ExecutionContext, ExecutionRecord, Metered, Model, PromptEngine,
    run::{Report, plan, run},
};
use rmcp::{
    RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
        JsonObject, Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::host::{self, HostModel, Question};
use crate::{
    activation::{Active, Runs},
    engine::Engine,
    error::shorten,
    runs::{Runnable, equip, trace_of},
};

pub(super) const SEARCH: &str = "skills_search";
pub(super) const RUN: &str = "skill_run";
/// The most bytes of a message.
const MAX_MESSAGE: usize = 64 * 1024;
/// What a question to the host's model is called.
const ASKED: &str = "model";
/// How long a run waits for its host to come back.
const PATIENCE: Duration = Duration::from_mins(10);
/// How many runs wait at most.
const MAX_PARKED: usize = 64;

fn schema(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

/// The tools that are offered.
pub(super) fn tools(engine: &Engine) -> Vec<Tool> {
    let Some(active) = engine.active() else {
        return Vec::new();
    };
    let mut tools = Vec::new();
    if active.offered.search {
        let input = json!({
            "type": "object", "required": ["message"],
            "properties": {
                "message": {"type": "string", "description": "What the user says"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 20, "default": 5},
            },
        });
        let about = "Find the skills that fit what the user says, best first; none is an answer.";
        let reads = ToolAnnotations::new().read_only(true).open_world(false);
        tools.push(Tool::new(SEARCH, about, schema(input)).with_annotations(reads));
    }
    if active.offered.run.is_some() {
        let input = json!({
            "type": "object", "required": ["skill"],
            "properties": {
                "skill": {"type": "string", "description": "The skill's id"},
                "message": {"type": "string", "description": "What the user says"},
                "params": {"type": "object", "description": "Values for the skill's templates"},
                "artifacts": {
                    "type": "array", "items": {"type": "string"},
                    "description": "Run only these artifacts",
                },
            },
        });
        let about = "Run a skill: its prompts are put to a model, its output is checked.";
        let runs = ToolAnnotations::new()
            .read_only(false)
            .destructive(false)
            .open_world(true);
        tools.push(Tool::new(RUN, about, schema(input)).with_annotations(runs));
    }
    tools
}

/// Calls one of them; `None` if it is not offered.
pub(super) async fn call(
    engine: &Engine,
    registry: &Arc<Registry>,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Option<CallToolResponse> {
    let active = engine.active()?;
    let none = JsonObject::new();
    let arguments = request.arguments.as_ref().unwrap_or(&none);
    let outcome = match (&*request.name, &active.offered.run) {
        (SEARCH, _) if active.offered.search => {
            let found = search(active, registry, arguments).await;
            found.map(CallToolResponse::from)
        }
        (RUN, Some(runs)) => match resumed(active, request, arguments) {
            Err(message) => Err(message),
            Ok(Some(going)) => drive(active, going, context).await,
            Ok(None) => match begin(runs, registry, arguments, context) {
                Err(message) => Err(message),
                Ok(going) => drive(active, going, context).await,
            },
        },
        _ => return None,
    };
    let refuse = |message: String| CallToolResult::error(vec![ContentBlock::text(message)]).into();
    Some(outcome.unwrap_or_else(refuse))
}

fn text<'a>(arguments: &'a JsonObject, key: &str) -> Result<Option<&'a str>, String> {
    match arguments.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_MESSAGE => Ok(Some(text)),
        Some(Value::String(_)) => Err(format!("`{key}` has more than {MAX_MESSAGE} bytes")),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}

async fn search(
    active: &Arc<Active>,
    registry: &Arc<Registry>,
    arguments: &JsonObject,
) -> Result<CallToolResult, String> {
    let message = text(arguments, "message")?.ok_or("`message` must be given")?;
    let limit = match arguments.get("limit") {
        None | Some(Value::Null) => 5,
        Some(limit) => match limit.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(limit @ 1..=20) => limit,
            _ => return Err("`limit` must be a number from 1 to 20".to_owned()),
        },
    };
    let (active, message) = (active.clone(), message.to_owned());
    let catalogue = registry.clone();
    // An index may have to be built, and a message to be read.
    let looked = tokio::task::spawn_blocking(move || {
        let finding = active.finding(&catalogue)?;
        finding.find(&message, limit)
    });
    let found = looked.await.map_err(|_| "interrupted".to_owned())?;
    let mut found = found.map_err(|error| error.to_string())?;
    found.retain(|one| one.fits);
    let snapshot = registry.snapshot();
    let about = |one: &Recommendation| {
        let entry = snapshot.get(&one.id);
        let about = entry.and_then(|entry| entry.head.description.as_deref());
        cut(&one_line(about.unwrap_or_default()), 200)
    };
    let lines: Vec<String> = found
        .iter()
        .map(|one| format!("- {} ({:.0}%): {}", one.id, one.score * 100.0, about(one)))
        .collect();
    let shown = if lines.is_empty() {
        "No skill fits.".to_owned()
    } else {
        lines.join("\n")
    };
    let mut result = CallToolResult::success(vec![ContentBlock::text(shown)]);
    result.structured_content = Some(json!({
        "skills": found, "threshold": {"words": THRESHOLD, "meaning": MEANING_THRESHOLD},
    }));
    Ok(result)
}

/// A run on its way.
pub(crate) struct Going {
    run: Pin<Box<dyn Future<Output = Report> + Send>>,
    /// Where questions to the host's model come out, if that is the model.
    questions: Option<mpsc::Receiver<Question>>,
    stop: CancellationToken,
    /// What it was asked for with.
    arguments: JsonObject,
}

/// Prepares a run; nothing is executed yet.
fn begin(
    runs: &Runs,
    registry: &Arc<Registry>,
    arguments: &JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<Going, String> {
    let name = text(arguments, "skill")?.ok_or("`skill` must be given")?;
    let reference: Reference = name
        .parse()
        .map_err(|_| format!("{}: no id of a skill", shorten(name)))?;
    let params: Map<String, Value> = match arguments.get("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params.clone(),
        Some(_) => return Err("`params` must be an object".to_owned()),
    };
    let names: Vec<String> = match arguments.get("artifacts") {
        None | Some(Value::Null) => Vec::new(),
        Some(names) => serde_json::from_value(names.clone())
            .map_err(|_| "`artifacts` must be an array of strings".to_owned())?,
    };
    let entry = registry.snapshot().skill(&reference).cloned();
    let entry = entry.ok_or_else(|| format!("skill {}: not found", shorten(name)))?;
    let skill = Runnable::new(registry, &entry).map_err(|error| error.to_string())?;
    let (model, questions): (Option<Arc<dyn Model>>, _) = match &runs.model {
        Some(model) => (Some(model.clone()), None),
        None if host::offers_a_model(context) => {
            let (model, questions) = HostModel::new();
            (Some(model), Some(questions))
        }
        None => (None, None),
    };
    let mut going = ExecutionContext::new();
    going.values = params;
    going.message = text(arguments, "message")?.map(str::to_owned);
    going.redactor = runs.redactor.clone();
    if let Some(workspace) = &runs.workspace {
        going.engine = PromptEngine::over(workspace.clone());
    }
    let budget = Arc::new(Budget::new(runs.max_tokens, runs.max_cost));
    going.model = model.map(|model| -> Arc<dyn Model> { Arc::new(Metered::new(model, budget)) });
    let dispatcher = runs.dispatcher.clone();
    equip(&mut going, registry, &dispatcher);
    let steps = plan(&skill, &dispatcher, &going.family(), &names);
    let steps = steps.map_err(|error| error.to_string())?;
    if going.model.is_none() && steps.asks_a_model() {
        return Err(
            "there is no model to ask: this server has none, and the host offers none over \
             sampling"
                .to_owned(),
        );
    }
    let stop = going.stop.clone();
    let registry = registry.clone();
    let running = async move {
        let mut keep = |record: &ExecutionRecord| {
            if let Err(error) = registry.put_trace(trace_of(record)) {
                tracing::warn!(%error, "a trace could not be kept");
            }
        };
        run(&skill, &dispatcher, &steps, &mut going, &mut keep).await
    };
    Ok(Going {
        run: Box::pin(running),
        questions,
        stop,
        arguments: arguments.clone(),
    })
}

/// Goes on until the run has ended, or has a question that takes another request to answer.
async fn drive(
    active: &Active,
    mut going: Going,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, String> {
    let Ok(_place) = active.room.try_acquire() else {
        return Err("too many skills are running: try again".to_owned());
    };
    loop {
        let question = async {
            match &mut going.questions {
                Some(questions) => questions.recv().await,
                None => None,
            }
        };
        tokio::select! {
            report = &mut going.run => return Ok(told(&report).into()),
            Some(question) = question => {
                if super::is_modern(context) {
                    return active.parked.park(going, question);
                }
                host::put(question, context).await;
            }
            // A run that nobody waits for ends, and leaves its trace.
            () = context.ct.cancelled(), if !going.stop.is_cancelled() => going.stop.cancel(),
        }
    }
}

/// The run that a host comes back to, with the answer it brings.
fn resumed(
    active: &Active,
    request: &CallToolRequestParams,
    arguments: &JsonObject,
) -> Result<Option<Going>, String> {
    let Some(state) = &request.request_state else {
        return Ok(None);
    };
    let Some((going, question)) = active.parked.take(state, arguments) else {
        return Err("no run waits for that: it ended, or was for something else".to_owned());
    };
    let answers = request.input_responses.as_ref();
    match answers.and_then(|answers| answers.get(ASKED)) {
        Some(answer) => question.answer(answer),
        // A host that comes back with nothing does not let its model be asked.
        None => question.answer(&Value::Null),
    }
    Ok(Some(going))
}

/// Runs that wait for their host to come back with an answer.
#[derive(Default)]
pub(crate) struct Parked(Mutex<HashMap<String, (Instant, Going, Question)>>);

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked").finish_non_exhaustive()
    }
}

impl Parked {
    /// Lets a run wait; gives the question, and the word by which to come back.
    fn park(&self, going: Going, question: Question) -> Result<CallToolResponse, String> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let late: Vec<String> = waiting
            .iter()
            .filter(|(_, (since, ..))| since.elapsed() > PATIENCE)
            .map(|(word, _)| word.clone())
            .collect();
        for word in late {
            if let Some((_, late, _)) = waiting.remove(&word) {
                // It ends by itself, so that it leaves its trace.
                late.stop.cancel();
                tokio::spawn(late.run);
            }
        }
        if waiting.len() >= MAX_PARKED {
            going.stop.cancel();
            tokio::spawn(going.run);
            return Err("too many runs wait for their hosts: try again".to_owned());
        }
        // Nobody can guess it, and it is good for one answer.
        let word = uuid::Uuid::new_v4().to_string();
        let asked = [(ASKED.to_owned(), question.request())].into();
        waiting.insert(word.clone(), (Instant::now(), going, question));
        Ok(CallToolResponse::InputRequired(InputRequiredResult::new(
            Some(asked),
            Some(word),
        )))
    }

    /// The run behind a word, if it was asked for with these arguments.
    fn take(&self, word: &str, arguments: &JsonObject) -> Option<(Going, Question)> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, going, _) = waiting.get(word)?;
        if going.arguments != *arguments {
            return None;
        }
        let (_, going, question) = waiting.remove(word)?;
        Some((going, question))
    }
}

/// What came of a run.
fn told(report: &Report) -> CallToolResult {
    let mut about = json!({
        "session": report.session_id, "warnings": report.warnings, "usage": report.usage(),
        "artifacts": report.records.iter().map(|record| json!({
            "artifact": record.details.artifact, "kind": record.artifact_kind,
            "duration_ms": record.duration_ms, "assertions_run": record.assertions_run,
            "assertions_passed": record.assertions_passed,
        })).collect::<Vec<_>>(),
    });
    let mut result = match &report.outcome {
        Ok(done) => {
            about["output"] = json!(done.text);
            about["value"] = json!(done.value);
            CallToolResult::success(vec![ContentBlock::text(&done.text)])
        }
        Err(error) => {
            let words = match error {
                // A host has no command line.
                Error::Undefined { name, .. } => format!("`{name}` must be given in `params`"),
                other => shorten(&other.to_string()),
            };
            about["error"] = json!({"code": error.code(), "message": words});
            CallToolResult::error(vec![ContentBlock::text(words)])
        }
    };
    result.structured_content = Some(about);
    result
}
