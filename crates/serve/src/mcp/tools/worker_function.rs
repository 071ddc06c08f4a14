//! Functions of workers as tools.

use std::sync::Arc;

use repertoire_core::markdown::truncate_text;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool};
use serde_json::Value;

use super::MAX_ANSWER_BYTES;
use crate::{
    error::shorten_text,
    service::{FunctionTool, SkillService},
};

/// Describes a function as a tool.
pub(super) fn to_tool(name: &str, function: &FunctionTool) -> Tool {
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
pub(super) async fn call_function(
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
