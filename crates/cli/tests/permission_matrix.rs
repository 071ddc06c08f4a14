//! Every method, tool, function, message and path, asked for with every kind of token.
//!
//! The snapshot is the matrix. It is generated from the tables in which the surfaces declare their
//! permissions, and from what the running server answers (T40).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;
mod wire;

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use common::TestWorkspace;
use repertoire_core::permission::{Permission, PermissionSet};
use repertoire_serve::{
    iii::bus_client::BusClient,
    permissions::{PermissionRow, all_permissions},
};
use serde_json::json;
use wire::HttpServer;

const TOKENS: [(&str, &str); 6] = [
    ("none", ""),
    ("read", "read"),
    ("run", "run"),
    ("write", "write"),
    ("read+write", "read,write"),
    ("admin", "admin"),
];

/// Whether a request over HTTP is not refused for want of a permission.
fn is_allowed_http(http: &HttpServer, token: &str, row: &PermissionRow) -> bool {
    let header = match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    };
    let answer = match row.surface {
        "route" => http.get(row.name, &header),
        "tool" => {
            let params = json!({"name": row.name, "arguments": {}});
            http.send_request_with(&header, "tools/call", params)
        }
        _ => http.send_request_with(&header, row.name, json!({"name": "x", "uri": "skill://x"})),
    };
    let text = String::from_utf8_lossy(&answer.body);
    !matches!(answer.status, 401 | 403) && !text.contains("-32003")
}

/// The same for a function of the bus.
fn is_allowed_bus(
    clients: &BTreeMap<&str, Option<BusClient>>,
    token: &str,
    row: &PermissionRow,
) -> bool {
    let Some(client) = &clients[token] else {
        return false;
    };
    let runtime = tokio::runtime::Handle::current();
    let answer = runtime.block_on(client.call_json(row.name, "{}", Duration::from_secs(10)));
    answer.map_or_else(|error| error.code != "forbidden", |_| true)
}

#[test]
fn t40_the_matrix_of_permissions_is_what_the_server_does() {
    let place = TestWorkspace::new();
    place.write_skill("skills/one", "# One\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let mut secrets = BTreeMap::from([("none", String::new())]);
    for (name, allow) in &TOKENS[1..] {
        let plain = name.replace('+', "-");
        let made = place.run_ok(&["token", "create", &plain, "--allow", allow]);
        secrets.insert(name, made.trim().to_owned());
    }
    let folder = place.work_dir().join("skills");
    let args = [
        folder.to_str().unwrap(),
        "--offer",
        "search,run",
        "--require-token",
    ];
    let (http, hub) = HttpServer::start_with_hub(&place.home_dir(), &args);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let url = format!("ws://127.0.0.1:{hub}");
    let mut clients = BTreeMap::new();
    for (name, _) in TOKENS {
        let secret = Some(secrets[name].as_str()).filter(|secret| !secret.is_empty());
        let client = runtime.block_on(BusClient::connect(&url, secret)).ok();
        clients.insert(name, client);
    }
    assert!(clients["none"].is_none());
    let mut matrix = String::new();
    for row in all_permissions() {
        let needs = row.permission.map_or("-", Permission::as_str);
        // Writing to a string cannot fail.
        let _ = write!(matrix, "{:<9} {:<28} {needs:<6}", row.surface, row.name);
        for (name, allow) in TOKENS {
            let set: PermissionSet = allow.parse().unwrap_or_default();
            let declared = match row.permission {
                None => true,
                // Every request passes the path first, which needs `read`.
                Some(permission) if matches!(row.surface, "method" | "tool") => {
                    set.allows(permission) && set.allows(Permission::Read)
                }
                Some(permission) => set.allows(permission),
            };
            let allowed = match row.surface {
                "message" => declared && !set.is_empty(),
                "function" => is_allowed_bus(&clients, name, &row),
                _ => is_allowed_http(&http, &secrets[name], &row),
            };
            if row.surface != "message" {
                assert_eq!(
                    allowed, declared,
                    "{} {} with {name}",
                    row.surface, row.name
                );
            }
            let _ = write!(matrix, " {name}:{}", if allowed { "yes" } else { "no" });
        }
        matrix.push('\n');
    }
    insta::assert_snapshot!(matrix);
}
