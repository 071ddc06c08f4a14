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
    error::{NotFoundKind, invalid_params, not_found_error, registry_error, shorten_text},
    service::SkillService,
};
use cursor::CursorPage;
use subscriptions::McpSession;
pub(crate) use tools::{ParkedRuns, is_builtin_tool};

/// The extension that a server with skills declares.
pub const SKILLS_EXTENSION: &str = "io.modelcontextprotocol/skills";
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
}

impl McpConnection {
    /// Creates the handler of one connection.
    pub fn new(service: Arc<SkillService>) -> Self {
        Self {
            service,
            session: Arc::default(),
        }
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

    /// Runs work that needs the registry, and records its metrics.
    async fn answer_with_registry<T>(
        &self,
        method: &str,
        work: impl AsyncFnOnce(&Arc<Registry>) -> Result<T, ErrorData>,
    ) -> Result<T, ErrorData> {
        let start = Instant::now();
        let answer = match self.service.registry().await {
            Ok(registry) => work(registry).await,
            Err(error) => Err(registry_error(&error)),
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
        self.wait_for_index().await;
        context.peer.set_peer_info(request.clone());
        self.service
            .metrics
            .count_request("initialize", true, Duration::ZERO);
        self.negotiate_initialize(&request)
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        self.wait_for_index().await;
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info()))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.session.start_notifying(&self.service, context.peer);
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.answer_with_registry("resources/list", async |registry| {
            let cursor = request_cursor(request.as_ref());
            let CursorPage { items, next } =
                resources::list_resources(&registry.snapshot(), cursor, self.page_size())?;
            let mut result = ListResourcesResult::with_all_items(items);
            result.next_cursor = next;
            Ok(result)
        })
        .await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
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
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.answer_with_registry("resources/read", async |registry| {
            let content = resources::read_content(&self.service, registry, &request.uri).await?;
            let contents = resources::resource_contents(&request.uri, content);
            Ok(ReadResourceResult::new(vec![contents]).into())
        })
        .await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.answer_with_registry("resources/subscribe", async |registry| {
            let unknown = || not_found_error(&request.uri, NotFoundKind::Resource);
            let parsed: Uri = request.uri.parse().map_err(|_| unknown())?;
            let snapshot = registry.snapshot();
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
                .start_notifying(&self.service, context.peer.clone());
            Ok(())
        })
        .await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
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
        subscriptions::serve_subscription(&self.service, context).await;
        Ok(())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.answer_with_registry("prompts/list", async |registry| {
            let cursor = request_cursor(request.as_ref());
            let CursorPage { items, next } =
                prompts::list_prompts(&registry.snapshot(), &self.service, cursor)?;
            let mut result = ListPromptsResult::with_all_items(items);
            result.next_cursor = next;
            Ok(result)
        })
        .await
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.answer_with_registry("prompts/get", async |registry| {
            let arguments = request.arguments.unwrap_or_default();
            let result =
                prompts::get_prompt(&self.service, registry, &request.name, arguments).await?;
            Ok(result.into())
        })
        .await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.answer_with_registry("completion/complete", async |registry| {
            let snapshot = registry.snapshot();
            let values = completion::complete_argument(&snapshot, &self.service, &request)?;
            Ok(CompleteResult::new(values))
        })
        .await
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list_tools(
            &self.service,
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
        self.answer_with_registry("tools/call", async |registry| {
            tools::call_tool(&self.service, registry, &request, &context).await
        })
        .await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.clone();
        self.answer_with_registry(&method, async |registry| {
            let snapshot = registry.snapshot();
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
                known if METHODS_WITH_PARAMS.contains(&known) => Err(invalid_params(format!(
                    "{known}: its parameters are missing or wrong"
                ))),
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

/// Methods of the protocol that have parameters.
const METHODS_WITH_PARAMS: [&str; 12] = [
    "initialize",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "tools/list",
    "tools/call",
    "completion/complete",
    "subscriptions/listen",
];
