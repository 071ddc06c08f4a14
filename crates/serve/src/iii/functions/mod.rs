//! The functions of the `skills` worker, implemented once for every bus.
//!
//! A function takes a JSON value and returns a JSON text, or an error with a code and a message.
//! Registered content is stored through the `state::*` functions of the bus, where other workers
//! expect it. Listings come from the catalogue and never read a body.

mod function_table;
mod paging;
mod prompts;
mod skills;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use repertoire_core::{FunctionGuard, PromptBody, PromptName, Uri};
use repertoire_registry::{AccountSkills, Origin, Registry, Snapshot, registered::RegisteredRow};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::bus::{Bus, BusResult, CallError};
use crate::service::SkillService;

use function_table::FunctionCall;
pub use function_table::{FunctionSpec, all_functions, find_function};
use prompts::RefusedPrompts;
pub(crate) use prompts::{PromptContent, parse_prompt_content};
pub(crate) use skills::list_templates;

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
    /// Functions whose content may be read over MCP although no trusted skill links to them: ids, or
    /// prefixes with `*` at the end.
    pub content: Vec<String>,
    /// Whether the packages of the account's store, the system skills among them, are on the bus.
    pub account: AccountSkills,
    /// How much of everything.
    pub limits: FunctionLimits,
    /// Who writes the scopes of the state, where a bus has the state.
    pub state: StateWriters,
}

/// Who writes the scopes that hold skills and prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StateWriters {
    /// Any program on the bus. Following its changes costs the bus something for each write.
    #[default]
    Others,
    /// Only workers with these functions, one of which serves at a time.
    WorkersOnly,
}

/// How much the functions do for one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FunctionLimits {
    /// The most URIs in one fetch.
    pub fetch_uris: usize,
    /// The most calls of one function for content or a prompt at the same time.
    pub content_calls: usize,
    /// The most bytes of the index; a longer one is summarised.
    pub index_bytes: usize,
}

impl Default for FunctionLimits {
    fn default() -> Self {
        Self {
            fetch_uris: 64,
            content_calls: 64,
            index_bytes: 1024 * 1024,
        }
    }
}

impl FunctionLimits {
    /// Says which value cannot be used, and what can.
    pub fn check(self) -> Result<Self, String> {
        let rules = [
            ("fetch_uris", self.fetch_uris, 1..=4096),
            ("content_calls", self.content_calls, 1..=4096),
            ("index_bytes", self.index_bytes, 4096..=32 * 1024 * 1024),
        ];
        for (name, value, allowed) in rules {
            if !allowed.contains(&value) {
                let (least, most) = allowed.into_inner();
                return Err(format!("{name} must be between {least} and {most}"));
            }
        }
        Ok(self)
    }
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            skills: repertoire_registry::registered::SKILLS_SCOPE.to_owned(),
            prompts: repertoire_registry::registered::PROMPTS_SCOPE.to_owned(),
            deadline: Duration::from_secs(10),
            guard: FunctionGuard::default(),
            content: Vec::new(),
            account: AccountSkills::Hidden,
            limits: FunctionLimits::default(),
            state: StateWriters::Others,
        }
    }
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

/// The functions, over one catalogue.
#[derive(Debug)]
pub struct SkillFunctions {
    service: Arc<SkillService>,
    /// The hub owns its functions, so they do not own the hub.
    bus: Weak<dyn Bus>,
    options: FunctionOptions,
    refused_prompts: RefusedPrompts,
}

/// Returns the part of the catalogue that is on a bus.
pub(crate) fn bus_snapshot(registry: &Registry, account: AccountSkills) -> Arc<Snapshot> {
    let snapshot = registry.snapshot();
    match account {
        AccountSkills::Shown => snapshot,
        AccountSkills::Hidden => Arc::new(snapshot.without_account()),
    }
}

/// Whether a function of a worker becomes an MCP tool: it is listed, by id or by a prefix with
/// `*`, and the guard allows it.
pub(crate) fn is_tool(list: &[String], guard: &FunctionGuard, id: &str) -> bool {
    is_listed(list, id) && guard.check_function(id).is_ok()
}

/// Whether a function is in a list of ids, and prefixes with `*` at the end.
pub(crate) fn is_listed(list: &[String], id: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => id.starts_with(prefix),
        None => entry == id,
    })
}

impl SkillFunctions {
    /// Creates the functions over the catalogue of a service, on a bus.
    pub fn new(service: Arc<SkillService>, bus: Weak<dyn Bus>, options: FunctionOptions) -> Self {
        Self {
            service,
            bus,
            options,
            refused_prompts: RefusedPrompts::default(),
        }
    }

    /// Returns the options of the functions.
    pub fn options(&self) -> &FunctionOptions {
        &self.options
    }

    /// Runs a function.
    pub async fn call_function(&self, id: &str, payload: Value) -> BusResult {
        let registry = self.service.registry().await;
        let registry = registry.map_err(|error| CallError::from(error.clone()))?;
        let start = std::time::Instant::now();
        let function = find_function(id).ok_or_else(|| CallError::function_not_found(id))?;
        let call = FunctionCall {
            functions: self,
            registry,
            id: function.id,
            payload,
        };
        let answer = (function.handler)(call).await;
        let time = start.elapsed();
        self.service.metrics.count_call(id, answer.is_ok(), time);
        answer
    }

    /// Returns the part of the catalogue that is on the bus.
    fn snapshot(&self, registry: &Registry) -> Arc<Snapshot> {
        bus_snapshot(registry, self.options.account)
    }

    fn bus(&self) -> Result<Arc<dyn Bus>, CallError> {
        let gone = || CallError::new("disconnected", "the bus was shut down");
        self.bus.upgrade().ok_or_else(gone)
    }

    /// Stores a row through the bus.
    async fn store_row(&self, scope: &str, key: &str, row: RegisteredRow) -> Result<(), CallError> {
        let deadline = self.options.deadline;
        self.bus()?.store_row(scope, key, row, deadline).await?;
        self.service.publish_pending();
        Ok(())
    }

    /// Deletes a row; returns whether it existed.
    async fn delete_row(&self, scope: &str, key: &str) -> Result<bool, CallError> {
        let payload = serde_json::json!({"scope": scope, "key": key});
        let deadline = self.options.deadline;
        let old = self
            .bus()?
            .call_function("state::delete", payload, deadline)
            .await?;
        self.service.publish_pending();
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
        CallError::new(error.code(), crate::error::public_message(error))
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

/// Whether a call of a function of the registry would call a function of a worker: for the content of
/// an `iii://fn/…` URI, or for the text of a prompt.
pub(crate) fn calls_other_function(snapshot: Option<&Snapshot>, id: &str, payload: &Value) -> bool {
    let is_function = |uri: &Value| {
        let uri = uri.as_str().unwrap_or_default().trim();
        matches!(uri.parse(), Ok(Uri::Function(_)))
    };
    match id {
        "skills::resources-read" => is_function(&payload["uri"]),
        "skills::fetch_skill" | "skill::fetch" => {
            let many = payload["uris"].as_array();
            is_function(&payload["uri"]) || many.is_some_and(|uris| uris.iter().any(is_function))
        }
        "prompts::mcp-get" => {
            let name = payload["name"].as_str().and_then(|name| name.parse().ok());
            // While the catalogue is loaded, it is not known.
            let Some(snapshot) = snapshot else {
                return true;
            };
            let entry = name.and_then(|name: PromptName| snapshot.find_prompt(&name).cloned());
            entry.is_some_and(|entry| matches!(entry.prompt.body, PromptBody::Function(_)))
        }
        _ => false,
    }
}
