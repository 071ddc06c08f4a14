//! Prompts: register, list, and render through the function behind them.

use repertoire_core::{Prompt, PromptArgument, PromptBody, PromptName};
use repertoire_registry::{PromptEntry, registered};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Answer, CallError, Catalogue, Functions, output, page::Paged};

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
pub(super) struct Register {
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
pub(super) struct Registered {
    name: String,
    /// RFC 3339 in UTC.
    registered_at: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "UnregisterPromptInput")]
pub(super) struct Unregister {
    name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "UnregisterPromptOutput")]
pub(super) struct Unregistered {
    name: String,
    /// Whether there was one.
    removed: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Row<'a> {
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
pub(super) struct Listing {
    prompts: Vec<Row<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct McpArgument<'a> {
    name: &'a str,
    required: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct McpRow<'a> {
    name: &'a str,
    description: &'a str,
    arguments: Vec<McpArgument<'a>>,
}

#[derive(JsonSchema)]
#[schemars(title = "PromptsMcpListOutput")]
#[allow(dead_code, reason = "the schema of what is written row by row")]
pub(super) struct McpListing {
    prompts: Vec<McpRow<'static>>,
    /// Where the next page starts, if there is one.
    next_cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(title = "PromptGetInput")]
pub(super) struct Get {
    name: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(title = "PromptGetOutput")]
pub(super) struct Rendered {
    description: String,
    messages: Vec<Value>,
}

/// What a function behind a prompt said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    /// One text of the user.
    Text(String),
    /// Messages, as they are.
    Messages(Vec<Value>),
}

/// Brings what a function gave into one of the forms a prompt can have.
pub(crate) fn normalise(function_id: &str, answer: &str) -> Result<Said, CallError> {
    match repertoire_core::json::from_str(answer) {
        Ok(Value::String(text)) => return Ok(Said::Text(text)),
        Ok(Value::Object(mut object)) => {
            if let Some(Value::Array(messages)) = object.get_mut("messages") {
                return Ok(Said::Messages(std::mem::take(messages)));
            }
            if let Some(Value::String(text)) = object.get_mut("content") {
                return Ok(Said::Text(std::mem::take(text)));
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

impl Functions {
    pub(super) async fn register_prompt(&self, input: Register) -> Answer {
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
        self.options.guard.check(function_id)?;
        let name = prompt.name.to_string();
        self.keep(&self.options.prompts, &name, row).await?;
        output(&Registered {
            name,
            registered_at,
        })
    }

    pub(super) async fn unregister_prompt(&self, input: Unregister) -> Answer {
        let name: PromptName = input.name.parse()?;
        let removed = self.forget(&self.options.prompts, name.as_str()).await?;
        output(&Unregistered {
            name: name.to_string(),
            removed,
        })
    }

    pub(super) async fn get_prompt(&self, registry: &Catalogue, input: Get) -> Answer {
        let name: PromptName = input.name.parse()?;
        let entry = registry.snapshot().prompt(&name).cloned();
        let entry = entry.ok_or_else(|| {
            CallError::new("not_found", format!("prompt {:?} not found", name.as_str()))
        })?;
        let arguments = input.arguments.unwrap_or_default();
        let said = self.engine.render(registry, &entry, arguments).await?;
        let messages = match said {
            Said::Messages(messages) => messages,
            Said::Text(text) => {
                vec![json!({"role": "user", "content": {"type": "text", "text": text}})]
            }
        };
        output(&Rendered {
            description: entry.prompt.description.clone(),
            messages,
        })
    }
}

fn function_of(entry: &PromptEntry) -> &str {
    match &entry.prompt.body {
        PromptBody::Function(id) => id,
        PromptBody::Static => "",
    }
}

pub(super) fn list(registry: &Catalogue, input: &Paged) -> Answer {
    let snapshot = registry.snapshot();
    let after = input.after::<PromptName>('p')?;
    let rows = snapshot.prompts_after(after.as_ref()).map(|entry| {
        let row = Row {
            name: entry.prompt.name.as_str(),
            description: &entry.prompt.description,
            arguments: entry.prompt.arguments.len(),
            function_id: function_of(entry),
            registered_at: entry.registered_at.as_deref().unwrap_or_default(),
            origin: super::origin(&entry.origin),
        };
        (entry.prompt.name.as_str(), output(&row))
    });
    input.write("prompts", 'p', None, rows)
}

pub(super) fn mcp_list(registry: &Catalogue, input: &Paged) -> Answer {
    let snapshot = registry.snapshot();
    let after = input.after::<PromptName>('p')?;
    let rows = snapshot.prompts_after(after.as_ref()).map(|entry| {
        let arguments = entry.prompt.arguments.iter().map(|argument| McpArgument {
            name: &argument.name,
            required: argument.required,
            description: argument.description.as_deref(),
        });
        let row = McpRow {
            name: entry.prompt.name.as_str(),
            description: &entry.prompt.description,
            arguments: arguments.collect(),
        };
        (entry.prompt.name.as_str(), output(&row))
    });
    input.write("prompts", 'p', None, rows)
}
