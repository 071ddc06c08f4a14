//! The page that a browser gets.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    extract::{Request, State},
    http::header,
    response::IntoResponse,
};
use repertoire_app::{HOSTS, HostScope};

use super::{HttpState, routes::may_count_skills};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;\
padding:0 1rem;color-scheme:light dark}code{font-size:.95em}td{padding-right:1.5rem}";

/// Says what this is and how to connect to it; the number of skills only to those who may list them.
pub(super) async fn serve_page(
    State(shared): State<Arc<HttpState>>,
    request: Request,
) -> impl IntoResponse {
    let may_count = may_count_skills(&request);
    let registry = shared.service.opened_registry();
    let skills = registry.filter(|_| may_count).map(|registry| {
        let count = registry.snapshot().len();
        let word = if count == 1 { "skill" } else { "skills" };
        format!("<p>It serves <strong>{count} {word}</strong>.</p>")
    });
    let host = request.headers().get(header::HOST);
    let host = host
        .and_then(|host| host.to_str().ok())
        .unwrap_or("127.0.0.1");
    let url = format!("http://{}/mcp", escape_html(host));
    let mut rows = String::new();
    let base = std::path::Path::new("");
    let has_config =
        |scope| move |host: &repertoire_app::Host| host.config_file(scope, base).is_some();
    for host in HOSTS {
        // This one starts programs only.
        let takes_address = host.id != "claude-desktop";
        let is_connected =
            has_config(HostScope::User)(host) || has_config(HostScope::Project)(host);
        if is_connected && takes_address {
            // Writing to a string cannot fail.
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td><code>repertoire connect {} --url {url}</code></td></tr>",
                host.name, host.id
            );
        }
    }
    let token = if shared.options.auth.is_token_required() {
        "<p>This server asks for a token: <code>repertoire token create NAME --allow read</code> prints \
         one, and the host sends it as <code>Authorization: Bearer TOKEN</code>, as its own settings \
         say.</p>"
    } else {
        ""
    };
    let version = escape_html(&shared.service.options.identity.version);
    let page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Repertoire</title><style>{STYLE}</style></head>\n<body>\n\
         <h1>Repertoire</h1>\n<p>This is an MCP server that gives skills to agents (version \
         {version}). It is for programs, which connect to <code>{url}</code>.</p>\n{}\n<h2>Connect a \
         host</h2>\n<table>\n{rows}</table>\n{token}\n<p>Without <code>--url</code> the host starts \
         <code>repertoire mcp</code> itself. Hosts that read folders: <code>repertoire link \
         HOST</code>.</p>\n<h2>More</h2>\n<p><code>repertoire --help</code> lists the commands; the \
         documents are in <code>docs</code> of the source. For machines: <a \
         href=\"/healthz\">/healthz</a>, <a href=\"/metrics\">/metrics</a>.</p>\n</body>\n</html>\n",
        skills.unwrap_or_default()
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page)
}

/// Whether a browser asks for a page at the address of the MCP server.
pub(super) fn wants_page<B>(request: &hyper::Request<B>) -> bool {
    let accept = request.headers().get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    request.method() == hyper::Method::GET
        && request.uri().path() == super::routes::MCP_PATH
        && accept.is_some_and(|accept| {
            accept.contains("text/html") && !accept.contains("text/event-stream")
        })
}

fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
