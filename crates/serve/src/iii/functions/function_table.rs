//! The table of the functions: id, schemas, needed permission and handler in one row.
//!
//! A new function is a handler and a row here.

use std::{
    pin::Pin,
    sync::{Arc, LazyLock},
};

use repertoire_app::Permission;
use repertoire_registry::Snapshot;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{SharedRegistry, SkillFunctions, paging, parse_payload, prompts, skills};
use crate::iii::bus::{BusResult, CallError};

/// A function on the bus.
#[derive(Debug)]
pub struct FunctionSpec {
    /// Its id.
    pub id: &'static str,
    /// What it does.
    pub about: &'static str,
    /// What a caller must be allowed to do.
    pub permission: Permission,
    /// The schema of its input.
    pub request: Value,
    /// The schema of its output.
    pub response: Value,
    /// Answers a call.
    pub(super) handler: for<'a> fn(FunctionCall<'a>) -> FunctionFuture<'a>,
}

type FunctionFuture<'a> = Pin<Box<dyn Future<Output = BusResult> + Send + 'a>>;

/// One call of a function.
pub(super) struct FunctionCall<'a> {
    pub(super) functions: &'a SkillFunctions,
    pub(super) registry: &'a SharedRegistry,
    pub(super) id: &'static str,
    pub(super) payload: Value,
}

impl FunctionCall<'_> {
    /// Returns the part of the catalogue that is on the bus.
    fn snapshot(&self) -> Arc<Snapshot> {
        self.functions.snapshot(self.registry)
    }

    /// Parses the payload, which is then used up.
    fn input<T: DeserializeOwned>(&mut self) -> Result<T, CallError> {
        parse_payload(self.id, self.payload.take())
    }
}

/// The input of a function without parameters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(title = "EmptyInput")]
struct EmptyInput {}

fn json_schema<T: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft07()
        .into_generator()
        .into_root_schema_for::<T>();
    // Doc comments of the types are for readers of the code, not for callers.
    schema.remove("description");
    schema.to_value()
}

/// Every function.
pub fn all_functions() -> &'static [FunctionSpec] {
    static ALL: LazyLock<Vec<FunctionSpec>> = LazyLock::new(|| {
        let mut all = skill_functions();
        all.extend(resource_functions());
        all.extend(prompt_functions());
        all
    });
    &ALL
}

fn skill_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec {
            id: "skills::register",
            about: "Store a markdown skill under an id; it is served at iii://{id}.",
            permission: Permission::Write,
            request: json_schema::<skills::RegisterSkillInput>(),
            response: json_schema::<skills::RegisterSkillOutput>(),
            handler: |mut call| {
                Box::pin(async move { call.functions.register_skill(call.input()?).await })
            },
        },
        FunctionSpec {
            id: "skills::unregister",
            about: "Remove a registered skill. Removing one that is not there is no error.",
            permission: Permission::Write,
            request: json_schema::<skills::UnregisterSkillInput>(),
            response: json_schema::<skills::UnregisterSkillOutput>(),
            handler: |mut call| {
                Box::pin(async move { call.functions.unregister_skill(call.input()?).await })
            },
        },
        FunctionSpec {
            id: "skills::list",
            about: "List skills without their bodies, sorted by id.",
            permission: Permission::Read,
            request: json_schema::<paging::ListInput>(),
            response: json_schema::<skills::ListSkillsOutput>(),
            handler: |mut call| {
                Box::pin(async move { skills::list_skills(&call.snapshot(), &call.input()?) })
            },
        },
    ]
}

/// Functions by which gateways serve skills as resources.
fn resource_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec {
            id: "skills::resources-list",
            about: "Internal: every skill as a resource entry, the index first.",
            permission: Permission::Read,
            request: json_schema::<paging::ListInput>(),
            response: json_schema::<skills::ResourcesListOutput>(),
            handler: |mut call| {
                Box::pin(async move { skills::list_resources(&call.snapshot(), &call.input()?) })
            },
        },
        FunctionSpec {
            id: "skills::resources-read",
            about: "Internal: the content behind an iii:// URI.",
            permission: Permission::Read,
            request: json_schema::<skills::ReadResourceInput>(),
            response: json_schema::<skills::ReadResourceOutput<'_>>(),
            handler: |mut call| {
                Box::pin(async move {
                    let input = call.input()?;
                    call.functions.read_resource(call.registry, &input).await
                })
            },
        },
        FunctionSpec {
            id: "skills::resources-templates",
            about: "Internal: the forms an iii:// URI can have.",
            permission: Permission::Read,
            request: json_schema::<EmptyInput>(),
            response: json_schema::<skills::ResourceTemplatesOutput>(),
            handler: |mut call| {
                Box::pin(async move {
                    let EmptyInput {} = call.input()?;
                    Ok(skills::list_templates())
                })
            },
        },
        FunctionSpec {
            id: "skills::fetch_skill",
            about: "Internal: the content behind one or more iii:// URIs as one markdown text.",
            permission: Permission::Read,
            request: json_schema::<skills::FetchSkillInput>(),
            response: json_schema::<String>(),
            handler: |mut call| {
                Box::pin(async move {
                    call.functions
                        .fetch_skills(call.registry, call.input()?)
                        .await
                })
            },
        },
        FunctionSpec {
            id: "skill::fetch",
            about: "Read one or more iii:// URIs found in skills, as one markdown text.",
            permission: Permission::Read,
            request: json_schema::<skills::FetchSkillInput>(),
            response: json_schema::<String>(),
            handler: |mut call| {
                Box::pin(async move {
                    call.functions
                        .fetch_skills(call.registry, call.input()?)
                        .await
                })
            },
        },
    ]
}

fn prompt_functions() -> Vec<FunctionSpec> {
    vec![
        FunctionSpec {
            id: "prompts::register",
            about: "Store a slash-command whose text a function renders.",
            permission: Permission::Write,
            request: json_schema::<prompts::RegisterPromptInput>(),
            response: json_schema::<prompts::RegisterPromptOutput>(),
            handler: |mut call| {
                Box::pin(async move { call.functions.register_prompt(call.input()?).await })
            },
        },
        FunctionSpec {
            id: "prompts::unregister",
            about: "Remove a registered prompt. Removing one that is not there is no error.",
            permission: Permission::Write,
            request: json_schema::<prompts::UnregisterPromptInput>(),
            response: json_schema::<prompts::UnregisterPromptOutput>(),
            handler: |mut call| {
                Box::pin(async move { call.functions.unregister_prompt(call.input()?).await })
            },
        },
        FunctionSpec {
            id: "prompts::list",
            about: "List prompts, sorted by name.",
            permission: Permission::Read,
            request: json_schema::<paging::ListInput>(),
            response: json_schema::<prompts::ListPromptsOutput>(),
            handler: |mut call| {
                Box::pin(async move { prompts::list_prompts(call.registry, &call.input()?) })
            },
        },
        FunctionSpec {
            id: "prompts::mcp-list",
            about: "Internal: every prompt with its arguments.",
            permission: Permission::Read,
            request: json_schema::<paging::ListInput>(),
            response: json_schema::<prompts::PromptsMcpListOutput>(),
            handler: |mut call| {
                Box::pin(async move { prompts::list_mcp_prompts(call.registry, &call.input()?) })
            },
        },
        FunctionSpec {
            id: "prompts::mcp-get",
            about: "Internal: the messages of a prompt, rendered with the arguments given.",
            permission: Permission::Read,
            request: json_schema::<prompts::PromptGetInput>(),
            response: json_schema::<prompts::PromptGetOutput>(),
            handler: |mut call| {
                Box::pin(async move {
                    call.functions
                        .get_prompt(call.registry, call.input()?)
                        .await
                })
            },
        },
    ]
}

/// Finds a function by its id.
pub fn find_function(id: &str) -> Option<&'static FunctionSpec> {
    all_functions().iter().find(|function| function.id == id)
}
