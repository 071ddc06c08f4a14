//! The registry as an MCP server, in both eras of the protocol.
//!
//! [`Handlers`] is a complete `rmcp` server handler. Its methods can also be called one by one
//! from somebody's own handler, which keeps its own tools and adds the skills.

mod complete;
pub(crate) mod cursor;
pub(crate) mod fast;
mod follow;
mod host;
mod prompts;
mod resources;
mod running;
mod skills;
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
    engine::Engine,
    error::{Unknown, closed, missing, params, shorten},
};
use cursor::Page;
use follow::Session;
pub(crate) use running::Parked;

/// The tools of this server itself.
pub(crate) const OWN_TOOLS: [&str; 4] =
    ["skills_list", "skill__fetch", running::SEARCH, running::RUN];
/// The extension that says a server serves skills.
pub const EXTENSION: &str = "io.modelcontextprotocol/skills";
/// How long a handshake waits for an index that is nearly there.
const HANDSHAKE: Duration = Duration::from_millis(10);

/// Answers MCP requests about the skills of an engine: one value a connection.
///
/// Mounting them in a server of your own:
///
/// ```
/// use repertoire_serve::{Handlers, Server, Skill, rmcp};
/// use rmcp::{ErrorData, RoleServer, ServerHandler, model::*, service::RequestContext};
///
/// struct Mine {
///     skills: Handlers,
/// }
///
/// impl ServerHandler for Mine {
///     fn get_info(&self) -> ServerConfig {
///         let mut info = ServerConfig::new(ServerCapabilities::default());
///         Handlers::declare(&mut info.capabilities);
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
/// let mine = Mine { skills: skills.handlers() };
/// # let _ = mine;
/// # Ok::<(), repertoire_serve::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Handlers {
    engine: Arc<Engine>,
    session: Arc<Session>,
}

impl Handlers {
    /// The handlers of one connection.
    pub fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            session: Arc::default(),
        }
    }

    /// Adds to a server's capabilities what these handlers answer.
    pub fn declare(capabilities: &mut ServerCapabilities) {
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
        extensions.insert(EXTENSION.to_owned(), settings);
    }

    /// Runs work that needs the registry, and counts it.
    async fn answer<T>(
        &self,
        method: &str,
        work: impl AsyncFnOnce(&Arc<Registry>) -> Result<T, ErrorData>,
    ) -> Result<T, ErrorData> {
        let start = Instant::now();
        let answer = match self.engine.registry().await {
            Ok(registry) => work(registry).await,
            Err(error) => Err(closed(&error)),
        };
        let time = start.elapsed();
        self.engine.metrics.answered(method, answer.is_ok(), time);
        answer
    }

    fn page_size(&self) -> usize {
        self.engine.options.page_size.max(1)
    }

    /// Waits a moment for the index, unless there is something to say without it.
    async fn settle(&self) {
        let kept = self.engine.options.instructions_file.as_ref();
        if self.engine.opened().is_none() && !kept.is_some_and(|file| file.exists()) {
            // Late is no failure: the handshake then says less.
            let _ = tokio::time::timeout(HANDSHAKE, self.engine.registry()).await;
        }
    }
}

/// Whether a peer speaks the revision without sessions.
fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|v| v.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// A result of a method of our own, with the fields its revision asks for.
fn complete(
    context: &RequestContext<RoleServer>,
    key: &str,
    value: Value,
    next: Option<String>,
) -> CustomResult {
    let mut result = Map::with_capacity(5);
    if is_modern(context) {
        result.insert("resultType".into(), "complete".into());
        // Always live: whoever wants to keep it asks to be told of changes.
        result.insert("ttlMs".into(), 0.into());
        result.insert("cacheScope".into(), "private".into());
    }
    result.insert(key.into(), value);
    if let Some(next) = next {
        result.insert("nextCursor".into(), next.into());
    }
    CustomResult::new(Value::Object(result))
}

fn text<'a>(request: &'a CustomRequest, key: &str) -> Result<Option<&'a str>, ErrorData> {
    match request.params.as_ref().and_then(|params| params.get(key)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(params(format!(
            "{}: `{key}` must be a string",
            request.method
        ))),
    }
}

fn uri(request: &CustomRequest) -> Result<&str, ErrorData> {
    text(request, "uri")?.ok_or_else(|| params(format!("{}: `uri` must be given", request.method)))
}

fn cursor_of(request: Option<&PaginatedRequestParams>) -> Option<&str> {
    request.and_then(|params| params.cursor.as_deref())
}

impl ServerHandler for Handlers {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::default();
        Self::declare(&mut capabilities);
        let identity = &self.engine.options.identity;
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(&identity.name, &identity.version))
            .with_instructions(&*self.engine.instructions())
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        if context.meta.protocol_version().is_some() && is_modern(&context) {
            return Err(not_found("initialize"));
        }
        self.settle().await;
        context.peer.set_peer_info(request.clone());
        self.engine
            .metrics
            .answered("initialize", true, Duration::ZERO);
        self.negotiate_initialize(&request)
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        self.settle().await;
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info()))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.session.start(&self.engine, context.peer);
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.answer("resources/list", async |registry| {
            let cursor = cursor_of(request.as_ref());
            let Page { items, next } =
                resources::list(&registry.snapshot(), cursor, self.page_size())?;
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
        if let Some(cursor) = cursor_of(request.as_ref()) {
            // There is one page, so no cursor was ever given out.
            cursor::Cursor::decode(cursor, "")?;
        }
        Ok(ListResourceTemplatesResult::with_all_items(
            resources::templates(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.answer("resources/read", async |registry| {
            let content = resources::content(&self.engine, registry, &request.uri).await?;
            let contents = resources::contents(&request.uri, content);
            Ok(ReadResourceResult::new(vec![contents]).into())
        })
        .await
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.answer("resources/subscribe", async |registry| {
            let unknown = || missing(&request.uri, Unknown::Resource);
            let parsed: Uri = request.uri.parse().map_err(|_| unknown())?;
            let snapshot = registry.snapshot();
            let known = match &parsed {
                Uri::Index | Uri::DiscoveryIndex => true,
                Uri::Body(id) => snapshot.get(id).is_some(),
                Uri::Skill(path) => snapshot.locate(path).is_some(),
                Uri::Function(_) => false,
            };
            if !known {
                return Err(unknown());
            }
            let subscriptions = self.session.subscriptions.lock();
            let mut subscriptions = subscriptions.unwrap_or_else(PoisonError::into_inner);
            if subscriptions.len() >= follow::MAX_SUBSCRIPTIONS
                && !subscriptions.contains(&request.uri)
            {
                return Err(params(format!(
                    "{}: at most {} subscriptions at a time",
                    shorten(&request.uri),
                    follow::MAX_SUBSCRIPTIONS
                )));
            }
            subscriptions.add(&snapshot, &request.uri, parsed);
            drop(subscriptions);
            self.session.start(&self.engine, context.peer.clone());
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
        Some(follow::accepted(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        follow::listen(&self.engine, context).await;
        Ok(())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        self.answer("prompts/list", async |registry| {
            let cursor = cursor_of(request.as_ref());
            let Page { items, next } = prompts::list(&registry.snapshot(), &self.engine, cursor)?;
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
        self.answer("prompts/get", async |registry| {
            let arguments = request.arguments.unwrap_or_default();
            let result = prompts::get(&self.engine, registry, &request.name, arguments).await?;
            Ok(result.into())
        })
        .await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.answer("completion/complete", async |registry| {
            let snapshot = registry.snapshot();
            let values = complete::complete(&snapshot, &self.engine, &request)?;
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
            &self.engine,
        )))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(&self.engine, name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.answer("tools/call", async |registry| {
            tools::call(&self.engine, registry, &request, &context).await
        })
        .await
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method.clone();
        self.answer(&method, async |registry| {
            let snapshot = registry.snapshot();
            let size = self.page_size();
            match method.as_str() {
                "skills/list" => {
                    let page = skills::list(&snapshot, text(&request, "cursor")?, size)?;
                    let skills = Value::Array(page.items);
                    Ok(complete(&context, "skills", skills, page.next))
                }
                "skills/get" => {
                    let skill = skills::get(&snapshot, uri(&request)?)?;
                    Ok(complete(&context, "skill", skill, None))
                }
                "resources/directory/read" => {
                    let cursor = text(&request, "cursor")?;
                    let page = skills::directory(&snapshot, uri(&request)?, cursor, size)?;
                    let children = Value::Array(page.items);
                    Ok(complete(&context, "resources", children, page.next))
                }
                gone if GONE.contains(&gone) && is_modern(&context) => Err(not_found(gone)),
                // A method we know arrives here only if its parameters could not be read.
                known if METHODS.contains(&known) => Err(params(format!(
                    "{known}: its parameters are missing or wrong"
                ))),
                unknown => Err(not_found(unknown)),
            }
        })
        .await
    }
}

fn not_found(method: &str) -> ErrorData {
    let message = format!("method {:?}: not found", shorten(method));
    let data = json!({"method": shorten(method)});
    ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, Some(data))
}

/// Methods that revision 2026-07-28 no longer has.
const GONE: [&str; 5] = [
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
];

/// Methods of the protocol that have parameters.
const METHODS: [&str; 12] = [
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
