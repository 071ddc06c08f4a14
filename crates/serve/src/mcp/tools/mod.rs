//! The tools: the built-in ones in one table, and the worker functions that the owner of the server
//! allows.
//!
//! A new built-in tool is a file beside this one and a row in [`TOOLS`].

mod fetch;
mod list_skills;
mod run;
mod search;
mod worker_function;

use std::{pin::Pin, sync::Arc};

use repertoire_app::{Caller, Permission};
use repertoire_registry::Registry;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::Value;

use crate::{
    error::{forbidden_error, shorten_text},
    service::SkillService,
};

pub(crate) use run::ParkedRuns;

/// The maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// The maximum size of a text argument in bytes.
const MAX_MESSAGE: usize = 64 * 1024;

/// A built-in tool.
pub(crate) struct ToolSpec {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
    /// What a caller must be allowed to do.
    pub(crate) permission: Permission,
    /// Whether it reads content that functions of workers make.
    reads_functions: bool,
    /// Returns the schema of its arguments.
    schema: fn() -> Value,
    /// Whether a server offers it.
    is_offered: fn(&SkillService) -> bool,
    /// Answers a call.
    handler: for<'a> fn(ToolCall<'a>) -> ToolFuture<'a>,
}

type ToolFuture<'a> = Pin<Box<dyn Future<Output = Result<CallToolResponse, String>> + Send + 'a>>;

/// One call of a tool.
struct ToolCall<'a> {
    service: &'a SkillService,
    registry: &'a Arc<Registry>,
    caller: &'a Caller,
    request: &'a CallToolRequestParams,
    arguments: &'a JsonObject,
    context: &'a RequestContext<RoleServer>,
}

/// The built-in tools. `skills_list` comes first, because it is useful without arguments.
pub(crate) static TOOLS: [ToolSpec; 4] = [
    ToolSpec {
        name: "skills_list",
        about: "List the available skills: id and what each is for.",
        permission: Permission::Read,
        reads_functions: false,
        schema: list_skills::schema,
        is_offered: |_| true,
        handler: |call| Box::pin(async move { text_response(list_skills::list_text(&call)?) }),
    },
    ToolSpec {
        name: "skill__fetch",
        about: "Read skills and their files by skill:// or iii:// URI, several at once.",
        permission: Permission::Read,
        reads_functions: true,
        schema: fetch::schema,
        is_offered: |_| true,
        handler: |call| Box::pin(async move { fetch::fetch_resources(&call).await }),
    },
    ToolSpec {
        name: "skills_search",
        about: "Find the skills that fit what the user says, best first; may return none.",
        permission: Permission::Read,
        reads_functions: false,
        schema: search::schema,
        is_offered: |service| {
            let optional = service.optional_tools();
            optional.is_some_and(|tools| tools.options.search)
        },
        handler: |call| Box::pin(search::search_skills(call)),
    },
    ToolSpec {
        name: "skill_run",
        about: "Run a skill: its prompts are put to a model, its output is checked.",
        permission: Permission::Run,
        reads_functions: false,
        schema: run::schema,
        is_offered: |service| {
            let optional = service.optional_tools();
            optional.is_some_and(|tools| tools.options.run.is_some())
        },
        handler: |call| Box::pin(run::run_skill(call)),
    },
];

impl ToolSpec {
    fn to_tool(&self, service: &SkillService) -> Tool {
        let schema = match (self.schema)() {
            Value::Object(object) => Arc::new(object),
            _ => Arc::default(),
        };
        let annotations = match self.permission {
            // With a bus, a URI may be the content of a function, which can do anything.
            Permission::Read if self.reads_functions && service.bus().is_some() => {
                ToolAnnotations::new().read_only(false).open_world(true)
            }
            Permission::Read => ToolAnnotations::new().read_only(true).open_world(false),
            Permission::Run => ToolAnnotations::new()
                .read_only(false)
                .destructive(false)
                .open_world(true),
            Permission::Write | Permission::Admin => {
                ToolAnnotations::new().read_only(false).open_world(false)
            }
        };
        Tool::new(self.name, self.about, schema).with_annotations(annotations)
    }
}

/// Whether a name is that of a built-in tool, offered or not.
pub(crate) fn is_builtin_tool(name: &str) -> bool {
    TOOLS.iter().any(|tool| tool.name == name)
}

fn offered_tools(service: &SkillService) -> impl Iterator<Item = &'static ToolSpec> {
    TOOLS.iter().filter(|tool| (tool.is_offered)(service))
}

/// What calling a function of a worker needs.
pub(crate) const FUNCTION_PERMISSION: Permission = Permission::Run;

/// Lists every tool that a caller may call: the built-in ones, then the worker functions.
pub(super) fn list_tools(service: &SkillService, caller: &Caller) -> Vec<Tool> {
    let functions = service.function_tools();
    let theirs = functions
        .iter()
        .filter(|(name, _)| caller.may(FUNCTION_PERMISSION) && caller.may_use_tool(name))
        .map(|(name, function)| worker_function::to_tool(name, function));
    let ours = offered_tools(service)
        .filter(|tool| caller.may(tool.permission) && caller.may_use_tool(tool.name))
        .map(|tool| tool.to_tool(service));
    ours.chain(theirs).collect()
}

/// Refuses a caller that may not call a tool.
fn authorize_call(caller: &Caller, name: &str, permission: Permission) -> Result<(), ErrorData> {
    caller
        .require(permission)
        .and_then(|()| caller.require_tool(name))
        .map_err(|error| forbidden_error(&error))
}

/// Finds a tool by its name.
pub(super) fn find_tool(service: &SkillService, name: &str) -> Option<Tool> {
    let ours = offered_tools(service).find(|tool| tool.name == name);
    ours.map(|tool| tool.to_tool(service)).or_else(|| {
        let functions = service.function_tools();
        let function = functions.get(name)?;
        Some(worker_function::to_tool(name, function))
    })
}

/// Runs a tool. Errors of the caller are returned as a readable result, not a protocol error.
pub(super) async fn call_tool(
    service: &SkillService,
    registry: &Arc<Registry>,
    caller: &Caller,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let name = &*request.name;
    let none = JsonObject::new();
    let arguments = request.arguments.as_ref().unwrap_or(&none);
    let Some(tool) = offered_tools(service).find(|tool| tool.name == name) else {
        if let Some(function) = service.function_tools().get(name) {
            authorize_call(caller, name, FUNCTION_PERMISSION)?;
            let result = worker_function::call_function(service, function, arguments).await;
            return Ok(result.into());
        }
        let message = format!("tool {:?}: not found", shorten_text(name));
        return Err(ErrorData::invalid_params(message, None));
    };
    authorize_call(caller, name, tool.permission)?;
    let call = ToolCall {
        service,
        registry,
        caller,
        request,
        arguments,
        context,
    };
    let refuse = |message: String| CallToolResult::error(vec![ContentBlock::text(message)]).into();
    Ok((tool.handler)(call).await.unwrap_or_else(refuse))
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "the last step of a handler, which may fail before it"
)]
fn text_response(text: String) -> Result<CallToolResponse, String> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

/// Returns a flag, which is off unless it is given.
fn bool_argument(arguments: &JsonObject, key: &str) -> Result<bool, String> {
    match arguments.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(format!("`{key}` must be true or false")),
    }
}

/// Returns a text argument, if it is given.
fn text_argument<'a>(arguments: &'a JsonObject, key: &str) -> Result<Option<&'a str>, String> {
    match arguments.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.len() <= MAX_MESSAGE => Ok(Some(text)),
        Some(Value::String(_)) => Err(format!("`{key}` has more than {MAX_MESSAGE} bytes")),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}
