//! The paths of the HTTP server, each with the permission it needs.
//!
//! A new path is a row in [`ROUTES`]. Every request passes the layers of `guard`, which look up the
//! permission here.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware,
    response::IntoResponse,
    routing::get,
};
use repertoire_app::{Caller, Permission};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;

use super::{HttpState, guard, page};
use crate::mcp::McpConnection;

/// What a caller needs to use a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteAccess {
    /// Nothing: the answer says only that the server runs, and more to those who may read.
    Public,
    /// A permission; what the caller sees is limited to its skills.
    Needs(Permission),
    /// A permission for all skills.
    NeedsForAll(Permission),
}

type StateRouter = Router<Arc<HttpState>>;

/// The path of the MCP server, whose requests have limits of their own.
pub(super) const MCP_PATH: &str = "/mcp";

/// One path of the server.
pub(super) struct RouteSpec {
    pub(super) path: &'static str,
    pub(super) access: RouteAccess,
    mount: fn(StateRouter, &'static str, &Arc<HttpState>) -> StateRouter,
}

/// Every path of the server.
pub(super) static ROUTES: [RouteSpec; 4] = [
    RouteSpec {
        path: "/",
        access: RouteAccess::Public,
        mount: |router, path, _| router.route(path, get(page::serve_page)),
    },
    RouteSpec {
        // Each method and tool needs a permission of its own besides.
        path: MCP_PATH,
        access: RouteAccess::Needs(Permission::Read),
        mount: mount_mcp,
    },
    RouteSpec {
        path: "/healthz",
        access: RouteAccess::Public,
        mount: |router, path, _| router.route(path, get(serve_health)),
    },
    RouteSpec {
        path: "/metrics",
        access: RouteAccess::NeedsForAll(Permission::Read),
        mount: |router, path, _| router.route(path, get(serve_metrics)),
    },
];

/// Returns every path with the permission it needs.
pub(crate) fn declared_routes() -> impl Iterator<Item = (&'static str, Option<Permission>)> {
    ROUTES.iter().map(|route| match route.access {
        RouteAccess::Public => (route.path, None),
        RouteAccess::Needs(permission) | RouteAccess::NeedsForAll(permission) => {
            (route.path, Some(permission))
        }
    })
}

/// Returns what a path needs. An unknown path is reported as such only to those who may read.
pub(super) fn route_access(path: &str) -> RouteAccess {
    let route = ROUTES.iter().find(|route| route.path == path);
    route.map_or(RouteAccess::Needs(Permission::Read), |route| route.access)
}

/// The routers of a server. Most requests come from programs and need no CORS, whose layers cost as
/// much as the answer to a frequent request.
#[derive(Clone)]
pub(super) struct Routers {
    programs: Router,
    pages: Router,
}

impl Routers {
    pub(super) fn new(shared: &Arc<HttpState>) -> Self {
        let mut router = Router::new();
        for route in &ROUTES {
            router = (route.mount)(router, route.path, shared);
        }
        let router = router.fallback(reject_unknown_path);
        let authenticate =
            middleware::from_fn_with_state(shared.clone(), guard::authenticate_request);
        let guard = middleware::from_fn_with_state(shared.clone(), guard::guard_page);
        let pages = router
            .clone()
            .layer(authenticate)
            .layer(guard::cors_layer(shared))
            .layer(guard);
        // The same checks in the same order, as one layer.
        let all = middleware::from_fn_with_state(shared.clone(), guard::guard_program);
        let programs = router.layer(all);
        Self {
            programs: programs.with_state(shared.clone()),
            pages: pages.with_state(shared.clone()),
        }
    }

    /// Returns the router for a request: browsers name the origin of the page that sends it.
    pub(super) fn choose(&self, headers: &HeaderMap) -> &Router {
        if headers.contains_key(header::ORIGIN) {
            &self.pages
        } else {
            &self.programs
        }
    }
}

fn mount_mcp(router: StateRouter, path: &'static str, shared: &Arc<HttpState>) -> StateRouter {
    let service = shared.service.clone();
    // The guard checks hosts and origins for all paths.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_json_response(true)
        .with_max_request_body_bytes(shared.options.max_body)
        .with_cancellation_token(shared.streams.clone());
    let mcp = StreamableHttpService::new(
        move || Ok(McpConnection::for_http(service.clone())),
        shared.sessions.clone(),
        config,
    );
    router.route_service(path, mcp)
}

/// Whether a caller may know how many skills there are.
pub(super) fn may_count_skills(request: &Request) -> bool {
    let caller = request.extensions().get::<Caller>();
    caller.is_some_and(|caller| caller.may(Permission::Read) && !caller.is_restricted())
}

/// Says that the server runs; the number of skills only to those who may list them.
async fn serve_health(State(shared): State<Arc<HttpState>>, request: Request) -> impl IntoResponse {
    let may_count = may_count_skills(&request);
    let body = |status: &str, skills: Option<usize>| {
        let version = &shared.service.options.identity.version;
        json!({"status": status, "version": version, "skills": skills}).to_string()
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    match shared.service.opened_registry() {
        Some(registry) => (
            StatusCode::OK,
            json,
            body("ok", may_count.then(|| registry.snapshot().len())),
        ),
        None => (StatusCode::SERVICE_UNAVAILABLE, json, body("opening", None)),
    }
}

async fn serve_metrics(State(shared): State<Arc<HttpState>>) -> impl IntoResponse {
    let snapshot = shared
        .service
        .opened_registry()
        .map(|registry| registry.snapshot());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = shared
        .service
        .metrics
        .render_prometheus(snapshot.as_deref());
    ([(header::CONTENT_TYPE, kind)], text)
}

async fn reject_unknown_path() -> impl IntoResponse {
    guard::error_response(
        StatusCode::NOT_FOUND,
        "not_found",
        "the paths are /, /mcp, /healthz and /metrics",
    )
}
