//! The baseline: a server on bare `rmcp` that answers every request with a constant.
//!
//! `bare stdio SIZE` or `bare http SIZE`; the latter prints its port. It measures the cost of the
//! protocol itself.

use std::sync::Arc;

use anyhow::Result;
use repertoire_serve::rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CustomRequest, CustomResult, ReadResourceRequestParams, ReadResourceResponse,
        ReadResourceResult, ResourceContents, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    transport::{
        io::stdio_pipes,
        streamable_http_server::{
            StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
        },
    },
};
use serde_json::{Value, json};

#[derive(Clone)]
struct ConstantServer {
    text: Arc<str>,
    entry: Arc<Value>,
}

impl ConstantServer {
    fn new(size: usize) -> Self {
        let resources: Vec<_> = ["SKILL.md", "references/more.md"]
            .map(|file| {
                json!({"uri": format!("skill://skill-00000/{file}"),
                       "digest": format!("sha256:{:064}", 0), "size": size})
            })
            .into();
        let entry = json!({
            "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
            "skill": {
                "uri": "skill://skill-00000/SKILL.md",
                "frontmatter": {"name": "skill-00000", "description": "d".repeat(100)},
                "resources": resources,
            },
        });
        Self {
            text: "x".repeat(size).into(),
            entry: Arc::new(entry),
        }
    }
}

impl ServerHandler for ConstantServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_resources().build())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = ResourceContents::text(&*self.text, request.uri);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn on_custom_request(
        &self,
        _request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        Ok(CustomResult::new((*self.entry).clone()))
    }
}

pub(crate) fn run(transport: &str, size: usize) -> Result<()> {
    let bare = ConstantServer::new(size);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        if transport == "stdio" {
            bare.serve(stdio_pipes()).await?.waiting().await?;
            return Ok(());
        }
        let service = StreamableHttpService::new(
            move || Ok(bare.clone()),
            Arc::new(LocalSessionManager::default()),
            StreamableHttpServerConfig::default().with_json_response(true),
        );
        let app = axum::Router::new().route_service("/mcp", service);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        axum::serve(listener, app).await?;
        Ok(())
    })
}
