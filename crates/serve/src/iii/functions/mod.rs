//! The functions of the `skills` worker, written once for every bus.
//!
//! A function takes a JSON value and gives a JSON text or an error with a code and a message.
//! Registered content is kept through the bus's own `state::*`, so that it is where every other
//! worker expects it. Listings come from the catalogue and never touch a body.

mod page;
mod prompts;
mod skills;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use repertoire_core::Guard;
use repertoire_registry::{Origin, Registry, registered::Row};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::bus::{Answer, Bus, CallError};
use crate::engine::Engine;

pub(crate) use prompts::{Said, normalise};

/// How the functions behave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionOptions {
    /// The scope of state in which skills are.
    pub skills: String,
    /// The scope of state in which prompts are.
    pub prompts: String,
    /// How long state and functions behind content may take.
    pub deadline: Duration,
    /// Functions that content and prompts never reach.
    pub guard: Guard,
}

impl Default for FunctionOptions {
    fn default() -> Self {
        Self {
            skills: repertoire_registry::registered::SKILLS.to_owned(),
            prompts: repertoire_registry::registered::PROMPTS.to_owned(),
            deadline: Duration::from_secs(10),
            guard: Guard::default(),
        }
    }
}

/// A function as the bus describes it.
#[derive(Debug)]
pub struct Described {
    /// Its id.
    pub id: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The schema of what it takes.
    pub request: Value,
    /// The schema of what it gives.
    pub response: Value,
}

/// A trigger type as the bus describes it.
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

/// Nothing is asked for.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(title = "EmptyInput")]
struct Nothing {}

/// The functions, over one catalogue.
#[derive(Debug)]
pub struct Functions {
    engine: Arc<Engine>,
    bus: Arc<dyn Bus>,
    options: FunctionOptions,
}

fn schema<T: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft07()
        .into_generator()
        .into_root_schema_for::<T>();
    // Notes on the types are for those who read the code.
    schema.remove("description");
    schema.to_value()
}

/// Every function with its schemas.
pub fn all() -> &'static [Described] {
    static ALL: LazyLock<Vec<Described>> = LazyLock::new(|| {
        let one = |id, about, request, response| Described {
            id,
            about,
            request,
            response,
        };
        vec![
            one(
                "skills::register",
                "Store a markdown skill under an id; it is served at iii://{id}.",
                schema::<skills::Register>(),
                schema::<skills::Registered>(),
            ),
            one(
                "skills::unregister",
                "Remove a registered skill. Removing one that is not there is no error.",
                schema::<skills::Unregister>(),
                schema::<skills::Unregistered>(),
            ),
            one(
                "skills::list",
                "List skills without their bodies, sorted by id.",
                schema::<page::Paged>(),
                schema::<skills::Listing>(),
            ),
            one(
                "skills::resources-list",
                "Internal: every skill as a resource entry, the index first.",
                schema::<page::Paged>(),
                schema::<skills::Resources>(),
            ),
            one(
                "skills::resources-read",
                "Internal: the content behind an iii:// URI.",
                schema::<skills::Read>(),
                schema::<skills::Contents<'_>>(),
            ),
            one(
                "skills::resources-templates",
                "Internal: the forms an iii:// URI can have.",
                schema::<Nothing>(),
                schema::<skills::Templates>(),
            ),
            one(
                "skills::fetch_skill",
                "Internal: the content behind one or more iii:// URIs as one markdown text.",
                schema::<skills::Fetch>(),
                schema::<String>(),
            ),
            one(
                "skill::fetch",
                "Read one or more iii:// URIs found in skills, as one markdown text.",
                schema::<skills::Fetch>(),
                schema::<String>(),
            ),
            one(
                "prompts::register",
                "Store a slash-command whose text a function renders.",
                schema::<prompts::Register>(),
                schema::<prompts::Registered>(),
            ),
            one(
                "prompts::unregister",
                "Remove a registered prompt. Removing one that is not there is no error.",
                schema::<prompts::Unregister>(),
                schema::<prompts::Unregistered>(),
            ),
            one(
                "prompts::list",
                "List prompts, sorted by name.",
                schema::<page::Paged>(),
                schema::<prompts::Listing>(),
            ),
            one(
                "prompts::mcp-list",
                "Internal: every prompt with its arguments.",
                schema::<page::Paged>(),
                schema::<prompts::McpListing>(),
            ),
            one(
                "prompts::mcp-get",
                "Internal: the messages of a prompt, rendered with the arguments given.",
                schema::<prompts::Get>(),
                schema::<prompts::Rendered>(),
            ),
        ]
    });
    &ALL
}

/// Whether a function of a worker is offered as a tool: it is on the list, by its id or by a
/// prefix with `*`, and is none of the bus's own.
pub(crate) fn is_tool(list: &[String], guard: &Guard, id: &str) -> bool {
    let listed = list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => id.starts_with(prefix),
        None => entry == id,
    });
    listed && guard.check(id).is_ok()
}

/// Whether this is one of the functions.
pub fn is_ours(id: &str) -> bool {
    all().iter().any(|function| function.id == id)
}

impl Functions {
    /// The functions over an engine's catalogue, on a bus.
    pub fn new(engine: Arc<Engine>, bus: Arc<dyn Bus>, options: FunctionOptions) -> Self {
        Self {
            engine,
            bus,
            options,
        }
    }

    /// The names of the scopes, and how long things may take.
    pub fn options(&self) -> &FunctionOptions {
        &self.options
    }

    /// Runs a function.
    pub async fn call(&self, id: &str, payload: Value) -> Answer {
        let registry = self.engine.registry().await;
        let registry = registry.map_err(|error| CallError::new(error.code(), error.to_string()))?;
        let start = std::time::Instant::now();
        let answer = match id {
            "skills::register" => self.register_skill(input(id, payload)?).await,
            "skills::unregister" => self.unregister_skill(input(id, payload)?).await,
            "skills::list" => skills::list(registry, &input(id, payload)?),
            "skills::resources-list" => skills::resources(registry, &input(id, payload)?),
            "skills::resources-read" => self.read(registry, &input(id, payload)?).await,
            "skills::resources-templates" => {
                input(id, payload).map(|Nothing {}| skills::templates())
            }
            "skills::fetch_skill" | "skill::fetch" => {
                self.fetch(registry, input(id, payload)?).await
            }
            "prompts::register" => self.register_prompt(input(id, payload)?).await,
            "prompts::unregister" => self.unregister_prompt(input(id, payload)?).await,
            "prompts::list" => prompts::list(registry, &input(id, payload)?),
            "prompts::mcp-list" => prompts::mcp_list(registry, &input(id, payload)?),
            "prompts::mcp-get" => self.get_prompt(registry, input(id, payload)?).await,
            _ => return Err(CallError::no_function(id)),
        };
        let time = start.elapsed();
        self.engine.metrics.called(id, answer.is_ok(), time);
        answer
    }

    /// Keeps a row through the bus.
    async fn keep(&self, scope: &str, key: &str, row: Row) -> Result<(), CallError> {
        let deadline = self.options.deadline;
        self.bus.keep(scope, key, row, deadline).await
    }

    /// Takes a row away; says whether there was one.
    async fn forget(&self, scope: &str, key: &str) -> Result<bool, CallError> {
        let payload = serde_json::json!({"scope": scope, "key": key});
        let deadline = self.options.deadline;
        let old = self.bus.call("state::delete", payload, deadline).await?;
        Ok(match repertoire_core::json::from_str::<Value>(&old) {
            // Some engines wrap the value that was there.
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
        CallError::new(error.code(), public(error))
    }
}

/// What a caller may know of an error; paths and SQL stay in the log.
fn public(error: &repertoire_registry::Error) -> String {
    use repertoire_registry::Error;
    match error {
        Error::Invalid(_)
        | Error::NotFound { .. }
        | Error::Conflict(_)
        | Error::Remote { .. }
        | Error::Tampered { .. } => error.to_string(),
        other => {
            tracing::error!(%error, "a function failed");
            format!("the registry could not do it ({})", other.code())
        }
    }
}

impl From<repertoire_core::Error> for CallError {
    fn from(error: repertoire_core::Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl From<repertoire_registry::Error> for CallError {
    fn from(error: repertoire_registry::Error) -> Self {
        Functions::registry_error(&error)
    }
}

impl From<crate::Error> for CallError {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Open(error) => Functions::registry_error(&error),
            crate::Error::Call(error) => error,
            other => Self::new(other.code(), other.to_string()),
        }
    }
}

/// Reads a payload; no payload is an empty one.
fn input<T: DeserializeOwned>(id: &str, payload: Value) -> Result<T, CallError> {
    let refuse = |why: String| CallError::new("invalid_request", format!("{id}: {why}"));
    let payload = match payload {
        Value::Null => Value::Object(serde_json::Map::new()),
        Value::Object(object) => Value::Object(object),
        _ => return Err(refuse("takes an object".to_owned())),
    };
    serde_json::from_value(payload).map_err(|error| refuse(error.to_string()))
}

/// Where an entry comes from, in the words of the bus.
fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Files(_) => "fs".to_owned(),
        other => other.to_string(),
    }
}

/// Writes an answer.
fn output(answer: &impl serde::Serialize) -> Answer {
    serde_json::to_string(answer).map_err(|error| {
        CallError::new("internal", format!("the answer cannot be written: {error}"))
    })
}

/// A registry, by the name the functions use for it.
type Catalogue = Arc<Registry>;
