//! The tools: two for hosts whose models cannot read resources directly, and the worker functions
//! that the owner of the server allows.

use std::{
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use repertoire_core::{
    Uri,
    markdown::{to_single_line, truncate_text},
    surface,
};
use repertoire_registry::Registry;
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool,
        ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::{
    cursor::{Cursor, take_page},
    resources::read_content,
    run_tools,
};
use crate::{
    error::shorten_text,
    service::{FunctionTool, ServeOptions, SkillService},
};

/// The maximum number of URIs in one call.
const MAX_URIS: usize = 64;
/// The maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// The built-in tools. `skills_list` comes first, because it is useful without arguments.
pub(super) fn builtin_tools() -> &'static [Tool] {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        let schema = |value: Value| match value {
            Value::Object(object) => Arc::new(object),
            _ => Arc::default(),
        };
        let reads = || ToolAnnotations::new().read_only(true).open_world(false);
        vec![
            Tool::new(
                "skills_list",
                "List the available skills: id and what each is for.",
                schema(json!({
                    "type": "object",
                    "properties": {
                        "cursor": {"type": "string", "description": "From the end of the last page"},
                    },
                })),
            )
            .with_annotations(reads()),
            Tool::new(
                "skill__fetch",
                "Read skills and their files by skill:// or iii:// URI, several at once.",
                schema(json!({
                    "type": "object",
                    "properties": {
                        "uri": {"type": "string", "description": "One URI"},
                        "uris": {
                            "type": "array", "items": {"type": "string"},
                            "description": "Several URIs; wins over uri",
                        },
                    },
                })),
            )
            .with_annotations(reads()),
        ]
    });
    &TOOLS
}

/// Lists every tool: the built-in ones, then the worker functions.
pub(super) fn list_tools(service: &SkillService) -> Vec<Tool> {
    let ours = builtin_tools()
        .iter()
        .cloned()
        .chain(run_tools::offered_tools(service));
    let tools = service.function_tools();
    let theirs = tools
        .iter()
        .map(|(name, function)| tool_from_function(name, function));
    ours.chain(theirs).collect()
}

/// Finds a tool by its name.
pub(super) fn find_tool(service: &SkillService, name: &str) -> Option<Tool> {
    let ours = builtin_tools()
        .iter()
        .cloned()
        .chain(run_tools::offered_tools(service));
    let ours = ours.into_iter().find(|tool| tool.name == name);
    ours.or_else(|| {
        let tools = service.function_tools();
        tools
            .get(name)
            .map(|function| tool_from_function(name, function))
    })
}

/// Describes a function as a tool.
fn tool_from_function(name: &str, function: &FunctionTool) -> Tool {
    // The input of a tool is always an object, whatever the function accepts.
    let object = |schema: &Option<Value>| match schema {
        Some(Value::Object(object)) if is_object_schema(object) => Some(object.clone()),
        _ => None,
    };
    let input = object(&function.request);
    let input = input.unwrap_or_else(|| JsonObject::from_iter([("type".into(), "object".into())]));
    let description = function
        .description
        .as_deref()
        .unwrap_or(&function.function_id);
    let mut tool = Tool::new(
        name.to_owned(),
        truncate_text(description, 2048),
        Arc::new(input),
    );
    tool.output_schema = object(&function.response).map(Arc::new);
    tool
}

fn is_object_schema(schema: &JsonObject) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Calls the function of a tool.
async fn call_function(
    service: &SkillService,
    function: &FunctionTool,
    arguments: &JsonObject,
) -> CallToolResult {
    let id = &function.function_id;
    let answer = service
        .call_tool(id, Value::Object(arguments.clone()))
        .await;
    let text = match answer {
        Ok(text) if text.len() <= MAX_ANSWER_BYTES => text,
        Ok(text) => {
            let message = format!(
                "{id}: too large: {} bytes, at most {MAX_ANSWER_BYTES}",
                text.len()
            );
            return CallToolResult::error(vec![ContentBlock::text(message)]);
        }
        Err(error) => {
            let words = shorten_text(&error.to_string());
            let message = if words.starts_with(id.as_str()) {
                words
            } else {
                format!("{id}: {words}")
            };
            return CallToolResult::error(vec![ContentBlock::text(message)]);
        }
    };
    let value: Value = repertoire_core::json::from_str(&text).unwrap_or_default();
    let promised = function.response.as_ref().and_then(Value::as_object);
    if promised.is_some_and(is_object_schema) && !value.is_object() {
        let message = format!("{id} did not return the object it declares");
        return CallToolResult::error(vec![ContentBlock::text(message)]);
    }
    let shown = match &value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or(text),
    };
    let mut result = CallToolResult::success(vec![ContentBlock::text(shown)]);
    result.structured_content = value.is_object().then_some(value);
    result
}

/// Runs a tool. Errors of the caller are returned as a readable result, not a protocol error.
pub(super) async fn call_tool(
    service: &SkillService,
    registry: &Arc<Registry>,
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    if let Some(result) = run_tools::call_run_tool(service, registry, request, context).await {
        return Ok(result);
    }
    let name = &*request.name;
    let none = JsonObject::new();
    let arguments = request.arguments.as_ref().unwrap_or(&none);
    let outcome = match name {
        "skills_list" => list_skills_text(registry, &service.options, arguments),
        "skill__fetch" => fetch_resources(service, registry, arguments).await,
        _ => {
            if let Some(function) = service.function_tools().get(name) {
                return Ok(call_function(service, function, arguments).await.into());
            }
            let message = format!("tool {:?}: not found", shorten_text(name));
            return Err(ErrorData::invalid_params(message, None));
        }
    };
    let result = match outcome {
        Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
        Err(message) => CallToolResult::error(vec![ContentBlock::text(message)]),
    };
    Ok(result.into())
}

fn list_skills_text(
    registry: &Arc<Registry>,
    options: &ServeOptions,
    arguments: &JsonObject,
) -> Result<String, String> {
    let cursor = match arguments.get("cursor") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.as_str()),
        Some(_) => return Err("`cursor` must be a string".to_owned()),
    };
    let after = cursor
        .filter(|text| !text.is_empty())
        .map(|text| Cursor::decode(text, "s"))
        .transpose()
        .map_err(|error| error.message.into_owned())?;
    let after = after.map(|cursor| cursor.key.parse()).transpose();
    let after = after.map_err(|error| format!("invalid `cursor`: {error}"))?;
    let snapshot = registry.snapshot();
    let lines = snapshot.skills_after(after.as_ref()).map(|entry| {
        let mut line = if entry.has_files() {
            format!("- {} (skill://{}/SKILL.md)", entry.id, entry.id)
        } else {
            format!("- {} (iii://{})", entry.id, entry.id)
        };
        if let Some(description) = &entry.metadata.description {
            // Writing to a string cannot fail.
            let _ = write!(
                line,
                ": {}",
                truncate_text(&to_single_line(description), 200)
            );
        }
        (Cursor::new('s', entry.id.as_str()), line.len(), line)
    });
    let page = take_page(lines, options.page_size.max(1));
    let mut text = page.items.join("\n");
    if text.is_empty() {
        text.push_str("There are no skills.");
    }
    if let Some(next) = page.next {
        let _ = write!(text, "\n\nThere are more: call again with cursor {next}");
    }
    Ok(text)
}

/// Reads every URI or none: all are checked before the first read.
async fn fetch_resources(
    service: &SkillService,
    registry: &Arc<Registry>,
    arguments: &JsonObject,
) -> Result<String, String> {
    let uris = requested_uris(arguments)?;
    let mut sections = Vec::with_capacity(uris.len());
    let mut bytes = 0;
    for uri in uris {
        let content = read_content(service, registry, &uri).await;
        let content = content.map_err(|error| error.message.into_owned())?;
        bytes += content.bytes.len();
        if bytes > MAX_ANSWER_BYTES {
            return Err(format!(
                "{uri}: more than {MAX_ANSWER_BYTES} bytes in one answer; ask for fewer URIs at a time, \
                 or read it as a resource"
            ));
        }
        let text = String::from_utf8(content.bytes.into());
        let text = text.map_err(|_| format!("{uri}: not text; read it as a resource"))?;
        sections.push((uri, text));
    }
    let sections = sections.iter().map(|(u, t)| (u.as_str(), t.as_str()));
    Ok(surface::fetch_text(sections))
}

fn requested_uris(arguments: &JsonObject) -> Result<Vec<String>, String> {
    let text = |value: &Value| match value {
        // Models write file names without percent-encoding.
        Value::String(text) => Ok(text.trim().replace(' ', "%20")),
        _ => Err("every URI must be a string".to_owned()),
    };
    let many = match arguments.get("uris") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(uris)) => uris.iter().map(text).collect::<Result<_, _>>()?,
        Some(_) => return Err("`uris` must be an array of strings".to_owned()),
    };
    let mut uris: Vec<String> = many.into_iter().filter(|uri| !uri.is_empty()).collect();
    if uris.is_empty() {
        let one = arguments.get("uri").filter(|uri| !uri.is_null());
        uris = one.map(text).transpose()?.into_iter().collect();
        uris.retain(|uri| !uri.is_empty());
    }
    if uris.is_empty() {
        return Err("give `uri` or `uris`, such as skill://ID/SKILL.md".to_owned());
    }
    if uris.len() > MAX_URIS {
        return Err(format!(
            "{} URIs: at most {MAX_URIS} in one call",
            uris.len()
        ));
    }
    for uri in &uris {
        if !uri.starts_with("skill://") && !uri.starts_with("iii://") {
            return Err(format!(
                "{}: every URI must start with skill:// or iii://",
                shorten_text(uri)
            ));
        }
        // A text that is not a URI is reported as not found.
        if uri.parse::<Uri>().is_err() {
            return Err(format!("{}: not found", shorten_text(uri)));
        }
    }
    Ok(uris)
}
