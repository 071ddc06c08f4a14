//! `skill_run`: runs a skill, with the server's model or the host's own.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use repertoire_app::{RunRequest, Runner, RunnerSettings};
use repertoire_registry::{self as registry, QualifiedSkillId};
use repertoire_runtime::{Error, Model, run::RunReport};
use rmcp::{
    RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult,
        JsonObject,
    },
    service::RequestContext,
};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{ToolCall, text_argument};
use crate::{
    error::{public_message, shorten_text},
    mcp::host_model::{self, HostModel, SamplingRequest},
    optional_tools::OptionalToolState,
};

/// The key of a request to the host's model.
const MODEL_INPUT_KEY: &str = "model";
/// How long a parked run waits for its host.
const PARKED_TIMEOUT: Duration = Duration::from_mins(10);
/// The maximum number of parked runs.
const MAX_PARKED: usize = 64;

pub(super) fn schema() -> Value {
    json!({
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
    })
}

pub(super) async fn run_skill(call: ToolCall<'_>) -> Result<CallToolResponse, String> {
    let tools = call.service.optional_tools().ok_or("not offered")?;
    let settings = tools.options.run.as_ref().ok_or("not offered")?;
    let going = if let Some(going) = resume_run(tools, call.request, call.arguments)? {
        going
    } else {
        let run = prepare_run(settings, &call)?;
        if let Some(Ok(skill)) = chosen_skill(&call) {
            let (registry, caller) = (call.registry, call.caller);
            let service = call.service;
            service.record_choice(registry, caller, &skill.id).await;
        }
        run
    };
    drive_run(tools, going, call.context).await
}

/// The skill that a call names.
fn chosen_skill(call: &ToolCall<'_>) -> Option<Result<QualifiedSkillId, String>> {
    let name = text_argument(call.arguments, "skill").ok()??;
    let parsed = name.parse();
    Some(parsed.map_err(|_| format!("{}: not a valid skill id", shorten_text(name))))
}

/// A run in progress.
pub(crate) struct ActiveRun {
    run: Pin<Box<dyn Future<Output = RunReport> + Send>>,
    /// Requests to the host's model, if the run uses it.
    requests: Option<mpsc::Receiver<SamplingRequest>>,
    stop: CancellationToken,
    /// The arguments of the call that started the run.
    arguments: JsonObject,
}

/// Prepares a run without executing anything yet.
fn prepare_run(settings: &RunnerSettings, call: &ToolCall<'_>) -> Result<ActiveRun, String> {
    let ToolCall {
        registry,
        arguments,
        context,
        caller,
        ..
    } = *call;
    let name = text_argument(arguments, "skill")?.ok_or("`skill` must be given")?;
    let skill = chosen_skill(call).ok_or("`skill` must be given")??;
    if !caller.may_see(&skill.id) {
        return Err(format!("skill {}: not found", shorten_text(name)));
    }
    let values: Map<String, Value> = match arguments.get("params") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params.clone(),
        Some(_) => return Err("`params` must be an object".to_owned()),
    };
    let artifacts: Vec<String> = match arguments.get("artifacts") {
        None | Some(Value::Null) => Vec::new(),
        Some(names) => serde_json::from_value(names.clone())
            .map_err(|_| "`artifacts` must be an array of strings".to_owned())?,
    };
    let (model, requests): (Option<Arc<dyn Model>>, _) = match &settings.model {
        Some(model) => (Some(model.clone()), None),
        None if host_model::has_sampling(context) => {
            let (model, requests) = HostModel::new();
            (Some(model), Some(requests))
        }
        None => (None, None),
    };
    let has_model = model.is_some();
    let settings = RunnerSettings {
        model,
        ..settings.clone()
    };
    let request = RunRequest {
        artifacts,
        values,
        message: text_argument(arguments, "message")?.map(str::to_owned),
        ..RunRequest::default()
    };
    let stop = request.stop.clone();
    let runner = Runner::new(registry.clone(), settings);
    let run = runner.plan(&skill, &request).map_err(|error| match error {
        repertoire_app::Error::Registry(registry::Error::NotFound { .. }) => {
            format!("skill {}: not found", shorten_text(name))
        }
        repertoire_app::Error::Registry(error) => public_message(&error),
        other => other.to_string(),
    })?;
    if !has_model && run.plan.requires_model() {
        return Err(
            "there is no model to ask: this server has none, and the host offers none over \
             sampling"
                .to_owned(),
        );
    }
    Ok(ActiveRun {
        run: Box::pin(run.execute()),
        requests,
        stop,
        arguments: arguments.clone(),
    })
}

/// Continues a run until it ends, or needs a model answer that takes another request.
async fn drive_run(
    tools: &OptionalToolState,
    mut going: ActiveRun,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, String> {
    let Ok(_place) = tools.run_permits.try_acquire() else {
        return Err("too many skills are running: try again".to_owned());
    };
    loop {
        let question = async {
            match &mut going.requests {
                Some(questions) => questions.recv().await,
                None => None,
            }
        };
        tokio::select! {
            report = &mut going.run => return Ok(run_result(&report).into()),
            Some(question) = question => {
                if crate::mcp::is_modern(context) {
                    return tools.parked_runs.park_run(going, question);
                }
                host_model::send_to_host(question, context).await;
            }
            // A cancelled call stops the run, which still writes its trace.
            () = context.ct.cancelled(), if !going.stop.is_cancelled() => going.stop.cancel(),
        }
    }
}

/// Resumes the run of a repeated call with the host's answer.
fn resume_run(
    tools: &OptionalToolState,
    request: &CallToolRequestParams,
    arguments: &JsonObject,
) -> Result<Option<ActiveRun>, String> {
    let Some(state) = &request.request_state else {
        return Ok(None);
    };
    let Some((going, question)) = tools.parked_runs.take_run(state, arguments) else {
        return Err("no run waits for that: it ended, or was for something else".to_owned());
    };
    let answers = request.input_responses.as_ref();
    match answers.and_then(|answers| answers.get(MODEL_INPUT_KEY)) {
        Some(answer) => question.send_answer(answer),
        // Without an answer the host refuses the use of its model.
        None => question.send_answer(&Value::Null),
    }
    Ok(Some(going))
}

/// Runs that wait for their host to repeat the call with an answer.
#[derive(Default)]
pub(crate) struct ParkedRuns(Mutex<HashMap<String, (Instant, ActiveRun, SamplingRequest)>>);

impl fmt::Debug for ParkedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParkedRuns").finish_non_exhaustive()
    }
}

impl ParkedRuns {
    /// Parks a run; returns its model request and the key to resume it.
    fn park_run(
        &self,
        going: ActiveRun,
        question: SamplingRequest,
    ) -> Result<CallToolResponse, String> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let late: Vec<String> = waiting
            .iter()
            .filter(|(_, (since, ..))| since.elapsed() > PARKED_TIMEOUT)
            .map(|(word, _)| word.clone())
            .collect();
        for word in late {
            if let Some((_, late, _)) = waiting.remove(&word) {
                // The stopped run still has to write its trace.
                late.stop.cancel();
                tokio::spawn(late.run);
            }
        }
        if waiting.len() >= MAX_PARKED {
            going.stop.cancel();
            tokio::spawn(going.run);
            return Err("too many runs wait for their hosts: try again".to_owned());
        }
        // The key is random, and valid for one answer.
        let word = uuid::Uuid::new_v4().to_string();
        let asked = [(MODEL_INPUT_KEY.to_owned(), question.to_input_request())].into();
        waiting.insert(word.clone(), (Instant::now(), going, question));
        Ok(CallToolResponse::InputRequired(InputRequiredResult::new(
            Some(asked),
            Some(word),
        )))
    }

    /// Returns the run with this key, if it was started with the same arguments.
    fn take_run(&self, word: &str, arguments: &JsonObject) -> Option<(ActiveRun, SamplingRequest)> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, going, _) = waiting.get(word)?;
        if going.arguments != *arguments {
            return None;
        }
        let (_, going, question) = waiting.remove(word)?;
        Some((going, question))
    }
}

/// Converts the report of a run to a tool result.
fn run_result(report: &RunReport) -> CallToolResult {
    let skipped = report.skipped.iter().map(ToString::to_string);
    let warnings: Vec<String> = skipped.chain(report.warnings.iter().cloned()).collect();
    let mut about = json!({
        "session": report.session_id, "warnings": warnings, "usage": report.usage(),
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
                // The usual message names a command line flag, which hosts do not have.
                Error::UndefinedVariable { name, .. } => {
                    format!("`{name}` must be given in `params`")
                }
                other => shorten_text(&other.to_string()),
            };
            about["error"] = json!({"code": error.code(), "message": words});
            CallToolResult::error(vec![ContentBlock::text(words)])
        }
    };
    result.structured_content = Some(about);
    result
}
