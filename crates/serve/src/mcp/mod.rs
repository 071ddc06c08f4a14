//! The registry as an MCP server, in both eras of the protocol.
//!
//! [`McpConnection`] is a complete `rmcp` server handler. Its methods can also be called one by one
//! from another handler, which keeps its own tools and adds the skills.

mod completion;
pub(crate) mod cursor;
pub(crate) mod fast_path;
mod host_model;
mod prompts;
mod resources;
mod skills;
mod subscriptions;
mod tools;

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use repertoire_app::{Caller, Permission};
use repertoire_core::Uri;
use repertoire_registry::Registry;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult,
        CustomRequest, CustomResult, DiscoverResult, ErrorCode, GetPromptRequestParams,
        GetPromptResponse, Implementation, InitializeRequestParams, InitializeResult, JsonObject,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ServerCapabilities, ServerConfig, SubscribeRequestParams,
        SubscriptionFilter, Tool, UnsubscribeRequestParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use serde_json::{Map, Value, json};

use crate::{
    error::{
        NotFoundKind, forbidden_error, invalid_params, not_found_error, registry_error,
        shorten_text,
    },
    service::SkillService,
};
use cursor::CursorPage;
use subscriptions::McpSession;
pub(crate) use tools::{ParkedRuns, TOOLS, is_builtin_tool};

pub use repertoire_core::listed_skill::SKILLS_EXTENSION;
/// How long a handshake waits for an index that is still loading.
const HANDSHAKE_WAIT: Duration = Duration::from_millis(10);

/// Answers the MCP requests of one connection about the skills of a service.
///
/// To mount it in a server of your own:
///
/// ```
/// use repertoire_serve::{McpConnection, Server, Skill, rmcp};
/// use rmcp::{ErrorData, RoleServer, ServerHandler, model::*, service::RequestContext};
///
/// struct Mine {
///     skills: McpConnection,
/// }
///
/// impl ServerHandler for Mine {
///     fn get_info(&self) -> ServerConfig {
///         let mut info = ServerConfig::new(ServerCapabilities::default());
///         McpConnection::declare_capabilities(&mut info.capabilities);
///         info
///     }
///
///     async fn read_resource(
///         &self,
///         request: ReadResourceRequestParams,
///         context: RequestContext<RoleServer>,
///     ) -> Result<ReadResourceResponse, ErrorData> {
///         self.skills.read_resource(request, context).await
///     }
///
///     async fn on_custom_request(
///         &self,
///         request: CustomRequest,
///         context: RequestContext<RoleServer>,
///     ) -> Result<CustomResult, ErrorData> {
///         // `skills/list`, `skills/get` and `resources/directory/read`
///         self.skills.on_custom_request(request, context).await
///     }
/// }
///
/// let skills = Server::builder().skill(Skill::new("demo", "# Demo")).build()?;
/// let mine = Mine { skills: skills.mcp_connection() };
/// # let _ = mine;
/// # Ok::<(), repertoire_serve::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct McpConnection {
    service: Arc<SkillService>,
    session: Arc<McpSession>,
    /// The caller of requests that do not carry one.
    caller: Caller,
}

impl McpConnection {
    /// Creates the handler of one connection of the user who started it, who may do everything.
    pub fn new(service: Arc<SkillService>) -> Self {
        Self::with_caller(service, Caller::local_user())
    }

    /// Creates the handler of a connection over HTTP, where each request carries its caller.
    pub(crate) fn for_http(service: Arc<SkillService>) -> Self {
        Self::with_caller(service, Caller::without_permissions())
    }

    fn with_caller(service: Arc<SkillService>, caller: Caller) -> Self {
        Self {
            service,
            session: Arc::default(),
            caller,
        }
    }

    /// Returns who sent a request.
    fn caller_of(&self, context: &RequestContext<RoleServer>) -> Caller {
        let parts = context.extensions.get::<axum::http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        caller.unwrap_or(&self.caller).clone()
    }

    /// Adds the capabilities of this handler to those of a server.
    pub fn declare_capabilities(capabilities: &mut ServerCapabilities) {
        let ours = ServerCapabilities::builder()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_completions()
            .build();
        capabilities.resources = ours.resources;
        capabilities.prompts = ours.prompts;
        capabilities.tools = capabilities.tools.take().or(ours.tools);
        capabilities.completions = ours.completions;
        let mut settings = JsonObject::new();
        settings.insert("directoryRead".to_owned(), Value::Bool(true));
        let extensions = capabilities.extensions.get_or_insert_default();
        extensions.insert(SKILLS_EXTENSION.to_owned(), settings);
    }

    /// Returns who sent a request, if they may use the method.
    fn authorize(
        &self,
        method: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<Caller, ErrorData> {
        let caller = self.caller_of(context);
        let allowed = caller.require(method_permission(method));
        allowed.map_err(|error| forbidden_error(&error))?;
        Ok(caller)
    }

    /// Runs work that needs the registry, if the caller may use the method; records its metrics.
    async fn answer_with_registry<T>(
        &self,
        method: &str,
        context: &RequestContext<RoleServer>,
        work: impl AsyncFnOnce(&Arc<Registry>, &Caller) -> Result<T, ErrorData>,
    ) -> Result<T, ErrorData> {
        let registry = async { self.service.registry().await.cloned() };
        self.answer_with(method, context, registry, work).await
    }

    /// The same with a registry that is chosen for the request.
    async fn answer_with<T>(
        &self,
        method: &str,
        context: &RequestContext<RoleServer>,
        registry: impl Future<Output = crate::error::Result<Arc<Registry>>>,
        work: impl AsyncFnOnce(&Arc<Registry>, &Caller) -> Result<T, ErrorData>,
    ) -> Result<T, ErrorData> {
        let start = Instant::now();
        let answer = match self.authorize(method, context) {
            Err(refused) => Err(refused),
            Ok(caller) => match registry.await {
                Ok(registry) => work(&registry, &caller).await,
                Err(error) => Err(registry_error(&error)),
            },
        };
        let time = start.elapsed();
        self.service
            .metrics
            .count_request(method, answer.is_ok(), time);
        answer
    }

    fn page_size(&self) -> usize {
        self.service.options.page_size.max(1)
    }

    /// Waits briefly for the index, unless saved instructions exist.
    async fn wait_for_index(&self) {
        let kept = self.service.options.instructions_file.as_ref();
        if self.service.opened_registry().is_none() && !kept.is_some_and(|file| file.exists()) {
            // A timeout is fine: the handshake then has shorter instructions.
            let _ = tokio::time::timeout(HANDSHAKE_WAIT, self.service.registry()).await;
        }
    }
}

/// Whether a peer uses the revision without sessions.
fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|v| v.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Builds the result of a custom method, with the fields its revision requires.
fn custom_result(
    context: &RequestContext<RoleServer>,
    key: &str,
    value: Value,
    next: Option<String>,
) -> CustomResult {
    let mut result = Map::with_capacity(5);
    if is_modern(context) {
        result.insert("resultType".into(), "complete".into());
        // Never cached: a client that caches should subscribe to changes.
        result.insert("ttlMs".into(), 0.into());
        result.insert("cacheScope".into(), "private".into());
    }
    result.insert(key.into(), value);
    if let Some(next) = next {
        result.insert("nextCursor".into(), next.into());
    }
    CustomResult::new(Value::Object(result))
}

fn string_param<'a>(request: &'a CustomRequest, key: &str) -> Result<Option<&'a str>, ErrorData> {
    match request.params.as_ref().and_then(|params| params.get(key)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid_params(format!(
            "{}: `{key}` must be a string",
            request.method
        ))),
    }
}

fn uri_param(request: &CustomRequest) -> Result<&str, ErrorData> {
    string_param(request, "uri")?
        .ok_or_else(|| invalid_params(format!("{}: `uri` must be given", request.method)))
}

fn request_cursor(request: Option<&PaginatedRequestParams>) -> Option<&str> {
    request.and_then(|params| params.cursor.as_deref())
}

impl ServerHandler for McpConnection {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        Self::declare_capabilities(&mut capabilities);
        let identity = &self.service.options.identity;
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(&identity.name, &identity.version))
            .with_instructions(&*self.service.instructions())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if context.meta.protocol_version().is_some() && is_modern(&context) {
            return Err(method_not_found("initialize"));
        }
        let caller = self.authorize("initialize", &context)?;
        self.wait_for_index().await;
        context.peer.set_peer_info(request.clone());
        self.service
            .metrics
            .count_request("initialize", true, Duration::ZERO);
        let mut result = self.negotiate_initialize(&request)?;
        let instructions = self.service.instructions_for(&caller);
        result.instructions = Some(instructions.to_string());
        Ok(result)
    }

    async fn discover(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        let caller = self.authorize("server/discover", &context)?;
        self.wait_for_index().await;
        let versions = self.supported_protocol_versions().into_owned();
        let info = self
            .get_info()
            .with_instructions(&*self.service.instructions_for(&caller));
        Ok(DiscoverResult::from_server_info(versions, info))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let parts = context.extensions.get::<axum::http::request::Parts>();
        let caller = parts.and_then(|parts| parts.extensions.get::<Caller>());
        let caller = caller.unwrap_or(&self.caller).clone();
        self.session
            .start_notifying(&self.service, context.peer, caller);
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.answer_with_registry("resources/list", &context, async |registry, caller| {
            let cursor = request_cursor(request.as_ref());
            let CursorPage { items, next } = resources::list_resources(
                &self.service.visible_snapshot(registry, caller),
                cursor,
                self.page_size(),
            )?;
            let mut result = ListResourcesResult::with_all_items(items);
            result.next_cursor = next;
            Ok(result)
        })
        .await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.authorize("resources/templates/list", &context)?;
        if let Some(cursor) = request_cursor(request.as_ref()) {
            // There is only one page, so every cursor is invalid.
            cursor::Cursor::decode(cursor, "")?;
        }
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::resource_templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        // A part of the catalogue for a restricted caller is made from the whole one.
        let skill_file = match request.uri.parse() {
            Ok(Uri::Skill(path)) if !self.caller_of(&context).is_restricted() => Some(path),
            _ => None,
        };
        let method = "resources/read";
        let work = async |registry: &Arc<Registry>, caller: &Caller| {
            let read =
                resources::read_content(&self.service, registry, caller, &request.uri).await?;
            let mut contents = resources::resource_contents(&request.uri, read);
            let snapshot = self.service.visible_snapshot(registry, caller);
            if let Some(entry) = resources::untrusted_entry(&snapshot, &request.uri) {
                contents =
                    contents.with_meta(resources::untrusted_meta(&entry).unwrap_or_default());
            }
            Ok(ReadResourceResult::new(vec![contents]).into())
        };
        match skill_file {
            None => self.answer_with_registry(method, &context, work).await,
            Some(path) => {
                let registry = self.service.registry_for_file(&path);
                self.answer_with(method, &context, registry, work).await
            }
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.answer_with_registry("resources/subscribe", &context, async |registry, caller| {
            let unknown = || not_found_error(&request.uri, NotFoundKind::Resource);
            let parsed: Uri = request.uri.parse().map_err(|_| unknown())?;
            let snapshot = self.service.visible_snapshot(registry, caller);
            let known = match &parsed {
                Uri::Index | Uri::DiscoveryIndex => true,
                Uri::Body(id) => snapshot.get(id).is_some(),
                Uri::Skill(path) => snapshot.locate_file(path).is_some(),
                Uri::Function(_) => false,
            };
            if !known {
                return Err(unknown());
            }
            let subscriptions = self.session.subscriptions.lock();
            let mut subscriptions = subscriptions.unwrap_or_else(PoisonError::into_inner);
            if subscriptions.len() >= subscriptions::MAX_SUBSCRIPTIONS
                && !subscriptions.contains(&request.uri)
            {
                return Err(invalid_params(format!(
                    "{}: at most {} subscriptions at a time",
                    shorten_text(&request.uri),
                    subscriptions::MAX_SUBSCRIPTIONS
                )));
            }
            subscriptions.add(&snapshot, &request.uri, parsed);
            drop(subscriptions);
            self.session
                .start_notifying(&self.service, context.peer.clone(), caller.clone());
            Ok(())
        })
        .await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.authorize("resources/unsubscribe", &context)?;
        let subscriptions = self.session.subscriptions.lock();
        subscriptions
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(subscriptions::accepted_filter(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let caller = self.authorize("subscriptions/listen", context.request_context())?;
        subscriptions::serve_subscription(&self.service, context, &caller).await;
        Ok(())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.answer_with_registry("prompts/list", &context, async |registry, caller| {
            let cursor = request_cursor(request.as_ref());
            let CursorPage { items, next } = prompts::list_prompts(
                &self.service.visible_snapshot(registry, caller),
                &self.service,
                cursor,
            )?;
            let mut result = ListPromptsResult::with_all_items(items);
            result.next_cursor = next;
            Ok(result)
        })
        .await
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.answer_with_registry("prompts/get", &context, async |registry, caller| {
            let arguments = request.arguments.unwrap_or_default();
            let result =
                prompts::get_prompt(&self.service, registry, caller, &request.name, arguments)
                    .await?;
            Ok(result.into())
        })
        .await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.answer_with_registry("completion/complete", &context, async |registry, caller| {
            let snapshot = self.service.visible_snapshot(registry, caller);
            let values = completion::complete_argument(&snapshot, &self.service, &request)?;
            Ok(CompleteResult::new(values))
        })
        .await
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.authorize("tools/list", &context)?;
        Ok(ListToolsResult::with_all_items(tools::list_tools(
            &self.service,
            &caller,
        )))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find_tool(&self.service, name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.answer_with_registry("tools/call", &context, async |registry, caller| {
            tools::call_tool(&self.service, registry, caller, &request, &context).await
        })
        .await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.clone();
        self.answer_with_registry(&method, &context, async |registry, caller| {
            let snapshot = self.service.visible_snapshot(registry, caller);
            let size = self.page_size();
            match method.as_str() {
                "skills/list" => {
                    let page =
                        skills::list_skills(&snapshot, string_param(&request, "cursor")?, size)?;
                    let skills = Value::Array(page.items);
                    Ok(custom_result(&context, "skills", skills, page.next))
                }
                "skills/get" => {
                    let skill = skills::get_skill(&snapshot, uri_param(&request)?)?;
                    Ok(custom_result(&context, "skill", skill, None))
                }
                "resources/directory/read" => {
                    let cursor = string_param(&request, "cursor")?;
                    let page =
                        skills::list_directory(&snapshot, uri_param(&request)?, cursor, size)?;
                    let children = Value::Array(page.items);
                    Ok(custom_result(&context, "resources", children, page.next))
                }
                gone if REMOVED_METHODS.contains(&gone) && is_modern(&context) => {
                    Err(method_not_found(gone))
                }
                // A known method arrives here only if its parameters could not be parsed.
                known if find_method(known).is_some_and(|m| m.has_params) => Err(invalid_params(
                    format!("{known}: its parameters are missing or wrong"),
                )),
                unknown => Err(method_not_found(unknown)),
            }
        })
        .await
    }
}

fn method_not_found(method: &str) -> ErrorData {
    let message = format!("method {:?}: not found", shorten_text(method));
    let data = json!({"method": shorten_text(method)});
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, Some(data))
}

/// Methods that revision 2026-07-28 removed.
const REMOVED_METHODS: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// A method of the protocol that is answered here.
pub(crate) struct MethodSpec {
    pub(crate) name: &'static str,
    /// What a caller must be allowed to do. Tools and functions behind a method need more.
    pub(crate) permission: Permission,
    has_params: bool,
}

const fn method(name: &'static str, has_params: bool) -> MethodSpec {
    MethodSpec {
        name,
        permission: Permission::Read,
        has_params,
    }
}

/// Every method.
pub(crate) static METHODS: [MethodSpec; 16] = [
    method("initialize", true),
    method("server/discover", false),
    method("resources/list", true),
    method("resources/templates/list", true),
    method("resources/read", true),
    method("resources/subscribe", true),
    method("resources/unsubscribe", true),
    method("resources/directory/read", false),
    method("skills/list", false),
    method("skills/get", false),
    method("prompts/list", true),
    method("prompts/get", true),
    method("tools/list", true),
    method("tools/call", true),
    method("completion/complete", true),
    method("subscriptions/listen", true),
];

fn find_method(name: &str) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|method| method.name == name)
}

/// Returns what a method needs. An unknown method is reported as such only to those who may read.
fn method_permission(name: &str) -> Permission {
    find_method(name).map_or(Permission::Read, |method| method.permission)
}
