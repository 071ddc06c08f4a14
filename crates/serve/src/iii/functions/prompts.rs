//! Prompts: register, list, and render through the function behind them.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use repertoire_core::{Prompt, PromptArgument, PromptBody, PromptName};
use repertoire_registry::{PromptEntry, Snapshot, Trusted, registered};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    BusResult, CallError, SharedRegistry, SkillFunctions, paging::ListInput, to_json_text,
};

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "PromptArgument")]
struct Argument {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    required: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "RegisterPromptInput")]
pub(super) struct RegisterPromptInput {
    /// Lowercase letters, digits, `-` and `_`; at most 64 characters.
    name: String,
    /// What people see when they choose it.
    description: String,
    /// What people are asked for. Whether it fits is for the function to check.
    #[serde(default)]
    arguments: Option<Vec<Argument>>,
    /// The function that renders it.
    function_id: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "RegisterPromptOutput")]
pub(super) struct RegisterPromptOutput {
    name: String,
    /// RFC 3339 in UTC.
    registered_at: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "UnregisterPromptInput")]
pub(super) struct UnregisterPromptInput {
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "UnregisterPromptOutput")]
pub(super) struct UnregisterPromptOutput {
    name: String,
    /// Whether there was one.
    removed: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PromptListRow<'a> {
    name: &'a str,
    description: &'a str,
    /// How many arguments it declares.
    arguments: usize,
    /// Empty for a prompt whose text is fixed.
    function_id: &'a str,
    /// RFC 3339 in UTC; empty for a prompt that was never registered.
    registered_at: &'a str,
    /// `state` if it was registered, `fs` if it is in a file.
    origin: String,
}

#[derive(JsonSchema)]
#[schemars(title = "ListPromptsOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct ListPromptsOutput {
    prompts: Vec<PromptListRow<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
    /// The same, under the name that MCP has for it.
    #[serde(rename = "nextCursor")]
    next_cursor_of_mcp: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct McpArgument<'a> {
    name: &'a str,
    required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct McpPromptRow<'a> {
    name: &'a str,
    description: &'a str,
    arguments: Vec<McpArgument<'a>>,
}

#[derive(JsonSchema)]
#[schemars(title = "PromptsMcpListOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct PromptsMcpListOutput {
    prompts: Vec<McpPromptRow<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
    /// The same, under the name that MCP has for it.
    #[serde(rename = "nextCursor")]
    next_cursor_of_mcp: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "PromptGetInput")]
pub(super) struct PromptGetInput {
    name: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(title = "PromptGetOutput")]
pub(super) struct PromptGetOutput {
    description: String,
    messages: Vec<Value>,
}

/// The content of a rendered prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PromptContent {
    /// One text of the user.
    Text(String),
    /// Messages, passed on unchanged.
    Messages(Vec<Value>),
}

/// Parses the answer of a prompt's function.
pub(crate) fn parse_prompt_content(
    function_id: &str,
    answer: &str,
) -> Result<PromptContent, CallError> {
    match repertoire_core::json::from_str(answer) {
        Ok(Value::String(text)) => return Ok(PromptContent::Text(text)),
        Ok(Value::Object(mut object)) => {
            if let Some(Value::Array(messages)) = object.get_mut("messages") {
                return Ok(PromptContent::Messages(std::mem::take(messages)));
            }
            if let Some(Value::String(text)) = object.get_mut("content") {
                return Ok(PromptContent::Text(std::mem::take(text)));
            }
        }
        _ => {}
    }
    Err(CallError::new(
        "unsupported_shape",
        format!(
            "{function_id} answered in an unsupported shape: give a string, {{\"content\": string}} \
             or {{\"messages\": [...]}}"
        ),
    ))
}

impl SkillFunctions {
    pub(super) async fn register_prompt(&self, input: RegisterPromptInput) -> BusResult {
        let function_id = input.function_id.trim();
        let arguments = input.arguments.unwrap_or_default().into_iter();
        let prompt = Prompt {
            name: input.name.parse()?,
            description: input.description,
            arguments: arguments
                .map(|argument| PromptArgument {
                    name: argument.name,
                    description: argument.description,
                    required: argument.required.unwrap_or(false),
                })
                .collect(),
            body: PromptBody::Function(function_id.to_owned()),
        };
        let row = registered::prompt_row(&prompt, None)?;
        let registered_at = row.at.clone();
        if let Err(refused) = self.options.guard.check_function(function_id) {
            self.refused_prompts.remember(&prompt.name, &refused);
            return Err(refused.into());
        }
        self.refused_prompts.forget(&prompt.name);
        let name = prompt.name.to_string();
        self.store_row(&self.options.prompts, &name, row).await?;
        to_json_text(&RegisterPromptOutput {
            name,
            registered_at,
        })
    }

    pub(super) async fn unregister_prompt(&self, input: UnregisterPromptInput) -> BusResult {
        let name: PromptName = input.name.parse()?;
        let removed = self
            .delete_row(&self.options.prompts, name.as_str())
            .await?;
        to_json_text(&UnregisterPromptOutput {
            name: name.to_string(),
            removed,
        })
    }

    pub(super) async fn get_prompt(
        &self,
        registry: &SharedRegistry,
        input: PromptGetInput,
    ) -> BusResult {
        let name: PromptName = input.name.parse()?;
        let entry = registry.snapshot().find_prompt(&name).cloned();
        let entry = entry.filter(|entry| entry.trusted == Trusted::Yes);
        let entry = entry.ok_or_else(|| {
            let refused = self.refused_prompts.reason(&name);
            let refused =
                refused.map_or_else(String::new, |why| format!("; it was refused: {why}"));
            let message = format!("prompt {:?} not found{refused}", name.as_str());
            CallError::new("not_found", message)
        })?;
        let arguments = input.arguments.unwrap_or_default();
        let said = self
            .service
            .render_prompt(registry, &entry, arguments)
            .await?;
        let messages = match said {
            PromptContent::Messages(messages) => messages,
            PromptContent::Text(text) => {
                vec![json!({"role": "user", "content": {"type": "text", "text": text}})]
            }
        };
        to_json_text(&PromptGetOutput {
            description: entry.prompt.description.clone(),
            messages,
        })
    }
}

/// Why prompts were refused when they were registered. Workers often do not look at that answer, so the
/// reason is given again when the prompt is asked for.
#[derive(Debug, Default)]
pub(super) struct RefusedPrompts(Mutex<VecDeque<(PromptName, String)>>);

/// The most refusals that are remembered.
const MAX_REFUSED: usize = 64;

impl RefusedPrompts {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(PromptName, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, name: &PromptName, why: &repertoire_core::Error) {
        self.forget(name);
        let mut refused = self.lock();
        if refused.len() >= MAX_REFUSED {
            refused.pop_front();
        }
        refused.push_back((name.clone(), why.to_string()));
    }

    fn forget(&self, name: &PromptName) {
        self.lock().retain(|(known, _)| known != name);
    }

    fn reason(&self, name: &PromptName) -> Option<String> {
        let refused = self.lock();
        let found = refused.iter().find(|(known, _)| known == name);
        found.map(|(_, why)| why.clone())
    }
}

fn render_function(entry: &PromptEntry) -> &str {
    match &entry.prompt.body {
        PromptBody::Function(id) => id,
        PromptBody::Static => "",
    }
}

/// Returns the prompts of trusted origins. A prompt has no place for a label (T44).
fn trusted_prompts<'a>(
    snapshot: &'a Snapshot,
    after: Option<&PromptName>,
) -> impl Iterator<Item = &'a Arc<PromptEntry>> {
    let prompts = snapshot.prompts_after(after);
    prompts.filter(|entry| entry.trusted == Trusted::Yes)
}

pub(super) fn list_prompts(registry: &SharedRegistry, input: &ListInput) -> BusResult {
    let snapshot = registry.snapshot();
    let after = input.after_key::<PromptName>('p')?;
    let rows = trusted_prompts(&snapshot, after.as_ref()).map(|entry| {
        let row = PromptListRow {
            name: entry.prompt.name.as_str(),
            description: &entry.prompt.description,
            arguments: entry.prompt.arguments.len(),
            function_id: render_function(entry),
            registered_at: entry.registered_at.as_deref().unwrap_or_default(),
            origin: super::origin_label(&entry.origin),
        };
        (entry.prompt.name.as_str(), to_json_text(&row))
    });
    input.write_page("prompts", 'p', None, rows)
}

pub(super) fn list_mcp_prompts(registry: &SharedRegistry, input: &ListInput) -> BusResult {
    let snapshot = registry.snapshot();
    let after = input.after_key::<PromptName>('p')?;
    let rows = trusted_prompts(&snapshot, after.as_ref()).map(|entry| {
        let arguments = entry.prompt.arguments.iter().map(|argument| McpArgument {
            name: &argument.name,
            required: argument.required,
            description: argument.description.as_deref(),
        });
        let row = McpPromptRow {
            name: entry.prompt.name.as_str(),
            description: &entry.prompt.description,
            arguments: arguments.collect(),
        };
        (entry.prompt.name.as_str(), to_json_text(&row))
    });
    input.write_page("prompts", 'p', None, rows)
}
