//! The tools that find and run skills, where they are offered.

use std::sync::Arc;

use repertoire_core::markdown::{cut, one_line};
use repertoire_registry::{
    Reference, Registry,
    search::{MEANING_THRESHOLD, Recommendation, THRESHOLD},
};
use repertoire_runtime::{
    Budget, ExecutionContext, ExecutionRecord, Metered, Model, PromptEngine, Usage,
    run::{Report, plan, run},
};
use rmcp::{
    RoleServer,
    model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations},
    service::RequestContext,
};
use serde_json::{Map, Value, json};

use super::host::{self, HostModel};
use crate::{
    activation::{Active, Runs},
    engine::Engine,
    error::shorten,
    runs::{Runnable, trace_of},
};

pub(super) const SEARCH: &str = "skills_search";
pub(super) const RUN: &str = "skill_run";
/// The most bytes of a message.
const MAX_MESSAGE: usize = 64 * 1024;

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
    name: &str,
    arguments: &JsonObject,
    context: &RequestContext<RoleServer>,
) -> Option<CallToolResult> {
    let active = engine.active()?;
    let outcome = match (name, &active.offered.run) {
        (SEARCH, _) if active.offered.search => search(active, registry, arguments).await,
        (RUN, Some(runs)) => execute(active, runs, registry, arguments, context).await,
        _ => return None,
    };
    Some(outcome.unwrap_or_else(|message| CallToolResult::error(vec![ContentBlock::text(message)])))
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

async fn execute(
    active: &Active,
    runs: &Runs,
    registry: &Arc<Registry>,
    arguments: &JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, String> {
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
    let (model, mut questions): (Arc<dyn Model>, _) = match &runs.model {
        Some(model) => (model.clone(), None),
        None if host::offers_a_model(context) => {
            let (model, questions) = HostModel::new();
            (model, Some(questions))
        }
        None => {
            return Err(
                "there is no model to ask: this server has none, and the host offers none over \
                 sampling"
                    .to_owned(),
            );
        }
    };
    let mut going = ExecutionContext::new();
    going.values = params;
    going.message = text(arguments, "message")?.map(str::to_owned);
    going.redactor = runs.redactor.clone();
    if let Some(workspace) = &runs.workspace {
        going.engine = PromptEngine::over(workspace.clone());
    }
    let budget = Arc::new(Budget::new(runs.max_tokens, runs.max_cost));
    going.model = Some(Arc::new(Metered::new(model, budget)));
    let steps = plan(&skill, &runs.dispatcher, &going.family(), &names);
    let steps = steps.map_err(|error| error.to_string())?;
    let Ok(_place) = active.room.try_acquire() else {
        return Err("too many skills are running: try again".to_owned());
    };
    let stop = going.stop.clone();
    let mut keep = |record: &ExecutionRecord| {
        if let Err(error) = registry.put_trace(trace_of(record)) {
            tracing::warn!(%error, "a trace could not be kept");
        }
    };
    let running = run(&skill, &runs.dispatcher, &steps, &mut going, &mut keep);
    tokio::pin!(running);
    let report = loop {
        let question = async {
            match &mut questions {
                Some(questions) => questions.recv().await,
                None => None,
            }
        };
        tokio::select! {
            report = &mut running => break report,
            Some(question) = question => host::put(question, context).await,
            // A run that nobody waits for ends, and leaves its trace.
            () = context.ct.cancelled(), if !stop.is_cancelled() => stop.cancel(),
        }
    };
    Ok(told(&report))
}

/// What came of a run.
fn told(report: &Report) -> CallToolResult {
    let mut usage = Usage::default();
    for record in &report.records {
        usage.add(Usage {
            input_tokens: record.input_tokens,
            output_tokens: record.output_tokens,
            cost: record.estimated_cost,
        });
    }
    let mut about = json!({
        "session": report.session_id, "warnings": report.warnings, "usage": usage,
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
            let words = shorten(&error.to_string());
            about["error"] = json!({"code": error.code(), "message": words});
            CallToolResult::error(vec![ContentBlock::text(words)])
        }
    };
    result.structured_content = Some(about);
    result
}
