//! The functions of the `skills` worker, implemented once for every bus.
//!
//! A function takes a JSON value and returns a JSON text, or an error with a code and a message.
//! Registered content is stored through the `state::*` functions of the bus, where other workers
//! expect it. Listings come from the catalogue and never read a body.

mod paging;
mod prompts;
mod skills;

use std::{
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use repertoire_core::FunctionGuard;
use repertoire_registry::{Origin, Registry, registered::RegisteredRow};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::bus::{Bus, BusResult, CallError};
use crate::service::SkillService;

pub(crate) use prompts::{PromptContent, parse_prompt_content};

/// The options of the functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionOptions {
    /// The state scope of skills.
    pub skills: String,
    /// The state scope of prompts.
    pub prompts: String,
    /// The timeout for state and for functions that produce content.
    pub deadline: Duration,
    /// Functions that content and prompts may not call.
    pub guard: FunctionGuard,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            skills: repertoire_registry::registered::SKILLS_SCOPE.to_owned(),
            prompts: repertoire_registry::registered::PROMPTS_SCOPE.to_owned(),
            deadline: Duration::from_secs(10),
            guard: FunctionGuard::default(),
        }
    }
}

/// The description of a function on the bus.
#[derive(Debug)]
pub struct FunctionSpec {
    /// Its id.
    pub id: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The schema of its input.
    pub request: Value,
    /// The schema of its output.
    pub response: Value,
}

/// The description of a trigger type on the bus.
#[derive(Debug, Clone, Copy)]
pub struct TriggerType {
    /// Its id.
    pub id: &'static str,
    /// When it fires.
    pub about: &'static str,
}

/// The two trigger types.
pub const TRIGGER_TYPES: [TriggerType; 2] = [
    TriggerType {
        id: "skills::on-change",
        about: "Fires after every change of the skills: {op: register|unregister, id}.",
    },
    TriggerType {
        id: "prompts::on-change",
        about: "Fires after every change of the prompts: {op: register|unregister, name}.",
    },
];

/// The input of a function without parameters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(title = "EmptyInput")]
struct EmptyInput {}

/// The functions, over one catalogue.
#[derive(Debug)]
pub struct SkillFunctions {
    service: Arc<SkillService>,
    /// The hub owns its functions, so they do not own the hub.
    bus: Weak<dyn Bus>,
    options: FunctionOptions,
}

fn json_schema<T: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft07()
        .into_generator()
        .into_root_schema_for::<T>();
    // Doc comments of the types are for readers of the code, not for callers.
    schema.remove("description");
    schema.to_value()
}

/// Every function with its schemas.
pub fn all_functions() -> &'static [FunctionSpec] {
    static ALL: LazyLock<Vec<FunctionSpec>> = LazyLock::new(|| {
        let one = |id, about, request, response| FunctionSpec {
            id,
            about,
            request,
            response,
        };
        vec![
            one(
                "skills::register",
                "Store a markdown skill under an id; it is served at iii://{id}.",
                json_schema::<skills::RegisterSkillInput>(),
                json_schema::<skills::RegisterSkillOutput>(),
            ),
            one(
                "skills::unregister",
                "Remove a registered skill. Removing one that is not there is no error.",
                json_schema::<skills::UnregisterSkillInput>(),
                json_schema::<skills::UnregisterSkillOutput>(),
            ),
            one(
                "skills::list",
                "List skills without their bodies, sorted by id.",
                json_schema::<paging::ListInput>(),
                json_schema::<skills::ListSkillsOutput>(),
            ),
            one(
                "skills::resources-list",
                "Internal: every skill as a resource entry, the index first.",
                json_schema::<paging::ListInput>(),
                json_schema::<skills::ResourcesListOutput>(),
            ),
            one(
                "skills::resources-read",
                "Internal: the content behind an iii:// URI.",
                json_schema::<skills::ReadResourceInput>(),
                json_schema::<skills::ReadResourceOutput<'_>>(),
            ),
            one(
                "skills::resources-templates",
                "Internal: the forms an iii:// URI can have.",
                json_schema::<EmptyInput>(),
                json_schema::<skills::ResourceTemplatesOutput>(),
            ),
            one(
                "skills::fetch_skill",
                "Internal: the content behind one or more iii:// URIs as one markdown text.",
                json_schema::<skills::FetchSkillInput>(),
                json_schema::<String>(),
            ),
            one(
                "skill::fetch",
                "Read one or more iii:// URIs found in skills, as one markdown text.",
                json_schema::<skills::FetchSkillInput>(),
                json_schema::<String>(),
            ),
            one(
                "prompts::register",
                "Store a slash-command whose text a function renders.",
                json_schema::<prompts::RegisterPromptInput>(),
                json_schema::<prompts::RegisterPromptOutput>(),
            ),
            one(
                "prompts::unregister",
                "Remove a registered prompt. Removing one that is not there is no error.",
                json_schema::<prompts::UnregisterPromptInput>(),
                json_schema::<prompts::UnregisterPromptOutput>(),
            ),
            one(
                "prompts::list",
                "List prompts, sorted by name.",
                json_schema::<paging::ListInput>(),
                json_schema::<prompts::ListPromptsOutput>(),
            ),
            one(
                "prompts::mcp-list",
                "Internal: every prompt with its arguments.",
                json_schema::<paging::ListInput>(),
                json_schema::<prompts::PromptsMcpListOutput>(),
            ),
            one(
                "prompts::mcp-get",
                "Internal: the messages of a prompt, rendered with the arguments given.",
                json_schema::<prompts::PromptGetInput>(),
                json_schema::<prompts::PromptGetOutput>(),
            ),
        ]
    });
    &ALL
}

/// Whether a function of a worker becomes an MCP tool: it is listed, by id or by a prefix with
/// `*`, and the guard allows it.
pub(crate) fn is_tool(list: &[String], guard: &FunctionGuard, id: &str) -> bool {
    let listed = list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => id.starts_with(prefix),
        None => entry == id,
    });
    listed && guard.check_function(id).is_ok()
}

/// Whether an id names one of the functions.
pub fn is_skill_function(id: &str) -> bool {
    all_functions().iter().any(|function| function.id == id)
}

impl SkillFunctions {
    /// Creates the functions over the catalogue of a service, on a bus.
    pub fn new(service: Arc<SkillService>, bus: Weak<dyn Bus>, options: FunctionOptions) -> Self {
        Self {
            service,
            bus,
            options,
        }
    }

    /// Returns the options of the functions.
    pub fn options(&self) -> &FunctionOptions {
        &self.options
    }

    /// Runs a function.
    pub async fn call_function(&self, id: &str, payload: Value) -> BusResult {
        let registry = self.service.registry().await;
        let registry = registry.map_err(|error| CallError::new(error.code(), error.to_string()))?;
        let start = std::time::Instant::now();
        let answer = match id {
            "skills::register" => self.register_skill(parse_payload(id, payload)?).await,
            "skills::unregister" => self.unregister_skill(parse_payload(id, payload)?).await,
            "skills::list" => skills::list_skills(registry, &parse_payload(id, payload)?),
            "skills::resources-list" => {
                skills::list_resources(registry, &parse_payload(id, payload)?)
            }
            "skills::resources-read" => {
                self.read_resource(registry, &parse_payload(id, payload)?)
                    .await
            }
            "skills::resources-templates" => {
                parse_payload(id, payload).map(|EmptyInput {}| skills::list_templates())
            }
            "skills::fetch_skill" | "skill::fetch" => {
                self.fetch_skills(registry, parse_payload(id, payload)?)
                    .await
            }
            "prompts::register" => self.register_prompt(parse_payload(id, payload)?).await,
            "prompts::unregister" => self.unregister_prompt(parse_payload(id, payload)?).await,
            "prompts::list" => prompts::list_prompts(registry, &parse_payload(id, payload)?),
            "prompts::mcp-list" => {
                prompts::list_mcp_prompts(registry, &parse_payload(id, payload)?)
            }
            "prompts::mcp-get" => self.get_prompt(registry, parse_payload(id, payload)?).await,
            _ => return Err(CallError::function_not_found(id)),
        };
        let time = start.elapsed();
        self.service.metrics.count_call(id, answer.is_ok(), time);
        answer
    }

    fn bus(&self) -> Result<Arc<dyn Bus>, CallError> {
        let gone = || CallError::new("disconnected", "the bus was shut down");
        self.bus.upgrade().ok_or_else(gone)
    }

    /// Stores a row through the bus.
    async fn store_row(&self, scope: &str, key: &str, row: RegisteredRow) -> Result<(), CallError> {
        let deadline = self.options.deadline;
        self.bus()?.store_row(scope, key, row, deadline).await
    }

    /// Deletes a row; returns whether it existed.
    async fn delete_row(&self, scope: &str, key: &str) -> Result<bool, CallError> {
        let payload = serde_json::json!({"scope": scope, "key": key});
        let deadline = self.options.deadline;
        let old = self
            .bus()?
            .call_function("state::delete", payload, deadline)
            .await?;
        Ok(match repertoire_core::json::from_str::<Value>(&old) {
            // Some engines wrap the previous value.
            Ok(Value::Object(wrapped))
                if wrapped.len() == 1 && wrapped.contains_key("old_value") =>
            {
                !wrapped["old_value"].is_null()
            }
            Ok(Value::Null) | Err(_) => false,
            Ok(_) => true,
        })
    }

    fn registry_error(error: &repertoire_registry::Error) -> CallError {
        CallError::new(error.code(), public_message(error))
    }
}

/// Returns the public text of an error; paths and SQL are only logged.
fn public_message(error: &repertoire_registry::Error) -> String {
    use repertoire_registry::Error;
    match error {
        Error::Invalid(_) => error.to_string(),
        _ => match error.code() {
            // These name items, not places.
            "not_found" | "conflict" | "remote_error" | "tampered" => error.to_string(),
            code => {
                tracing::error!(%error, "a function failed");
                format!("the registry failed ({code})")
            }
        },
    }
}

impl From<repertoire_core::Error> for CallError {
    fn from(error: repertoire_core::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<repertoire_registry::Error> for CallError {
    fn from(error: repertoire_registry::Error) -> Self {
        SkillFunctions::registry_error(&error)
    }
}

impl From<crate::Error> for CallError {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Open(error) => SkillFunctions::registry_error(&error),
            crate::Error::Call(error) => error,
            other => Self::new(other.code(), other.to_string()),
        }
    }
}

/// Parses a payload; an absent payload counts as an empty object.
fn parse_payload<T: DeserializeOwned>(id: &str, payload: Value) -> Result<T, CallError> {
    let refuse = |why: String| CallError::new("invalid_request", format!("{id}: {why}"));
    let payload = match payload {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Object(object) => Value::Object(object),
        _ => return Err(refuse("takes an object".to_owned())),
    };
    serde_json::from_value(payload).map_err(|error| refuse(error.to_string()))
}

/// Returns the origin of an entry under the name that the bus uses.
fn origin_label(origin: &Origin) -> String {
    match origin {
        Origin::Files(_) => "fs".to_owned(),
        other => other.to_string(),
    }
}

/// Serializes an answer.
fn to_json_text(answer: &impl serde::Serialize) -> BusResult {
    serde_json::to_string(answer).map_err(|error| {
        CallError::new(
            "internal",
            format!("the answer cannot be serialized: {error}"),
        )
    })
}

/// The registry that the functions share.
type SharedRegistry = Arc<Registry>;
