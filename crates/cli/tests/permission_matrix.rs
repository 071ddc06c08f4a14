//! Every method, tool, function, message and path, asked for with every kind of token.
//!
//! The snapshot is the matrix. It is generated from the tables in which the surfaces declare their
//! permissions, and from what the running server answers (T40).
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod common;
mod wire;

use std::{collections::BTreeMap, fmt::Write as _, fs, sync::Arc, time::Duration};

use common::TestWorkspace;
use repertoire_core::permission::{Permission, PermissionSet};
use repertoire_serve::{
    iii::bus_client::{BusClient, IncomingCall, PeerHandler, SubscribedFunction},
    permissions::{PermissionRow, all_permissions},
};
use serde_json::{Value, json};
use wire::HttpServer;

/// Tokens of every kind: the name, the permissions and what else restricts them.
const TOKENS: [(&str, &str, &[&str]); 8] = [
    ("none", "", &[]),
    ("read", "read", &[]),
    ("run", "run", &[]),
    ("write", "write", &[]),
    ("read+write", "read,write", &[]),
    ("admin", "admin", &[]),
    ("acme-only", "read,run", &["--only", "acme/**"]),
    ("one-tool", "read,run", &["--tool", "skills_list"]),
];

/// Creates a token of each kind; returns their secrets.
fn create_tokens(place: &TestWorkspace) -> BTreeMap<&'static str, String> {
    let mut secrets = BTreeMap::from([("none", String::new())]);
    for (name, allow, more) in &TOKENS[1..] {
        let plain = name.replace('+', "-");
        let mut args = vec!["token", "create", &plain, "--allow", allow];
        args.extend(*more);
        let made = place.run_ok(&args);
        secrets.insert(name, made.trim().to_owned());
    }
    secrets
}

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

/// Whether a connection stays open after a message, which it does unless the message is refused.
fn is_allowed_message(url: &str, secret: &str, row: &PermissionRow) -> bool {
    let runtime = tokio::runtime::Handle::current();
    let token = Some(secret).filter(|secret| !secret.is_empty());
    let Ok(client) = runtime.block_on(BusClient::connect(url, token)) else {
        return false;
    };
    let message = json!({
        "type": row.name, "id": format!("probe::{}", uuid::Uuid::new_v4()),
        "function_id": "engine::health", "trigger_type": "probe", "description": "",
        "invocation_id": uuid::Uuid::new_v4(), "data": {}, "config": {},
        "previous_worker_id": uuid::Uuid::new_v4(),
    });
    client.send_text(message.to_string()).unwrap();
    let health = client.call_json("engine::health", "{}", Duration::from_secs(10));
    // An answer, also one that refuses the call, came over the open connection.
    match runtime.block_on(health) {
        Ok(_) => true,
        Err(error) if error.code == "forbidden" => true,
        Err(error) => {
            assert_eq!(error.code, "disconnected", "{error}");
            false
        }
    }
}

#[test]
fn t40_the_matrix_of_permissions_is_what_the_server_does() {
    let place = TestWorkspace::new();
    place.write_skill("skills/one", "# One\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let secrets = create_tokens(&place);
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
    for (name, ..) in TOKENS {
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
        for (name, allow, more) in TOKENS {
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
                "message" => is_allowed_message(&url, &secrets[name], &row),
                "function" => is_allowed_bus(&clients, name, &row),
                _ => is_allowed_http(&http, &secrets[name], &row),
            };
            // Without any permission there is no connection.
            let declared = declared && (row.surface != "message" || !set.is_empty());
            // What restricts a token further only takes away.
            let is_right = match more {
                [] => allowed == declared,
                _ => declared || !allowed,
            };
            assert!(is_right, "{} {} with {name}", row.surface, row.name);
            let _ = write!(matrix, " {name}:{}", if allowed { "yes" } else { "no" });
        }
        matrix.push('\n');
    }
    insta::assert_snapshot!(matrix);
}

/// A worker whose function says hello.
struct GreetingWorker;

impl PeerHandler for GreetingWorker {
    fn on_call(&self, call: IncomingCall) {
        call.respond(&Ok(json!({"content": "hello of the worker"}).to_string()));
    }

    fn on_subscribe(&self, _: &str, _: &str, _: SubscribedFunction) {}

    fn on_unsubscribe(&self, _: &str) {}

    fn on_rejected(&self, code: &str, _: Option<&str>) {
        panic!("{code}");
    }
}

/// A function of a worker is reached as a function, as a tool, as content and as a prompt. Each of
/// them needs `run`, and a token for some tools reaches none but those.
#[test]
fn t40_t41_a_function_of_a_worker_needs_run_however_it_is_reached() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.home_dir()).unwrap();
    let mut secrets = create_tokens(&place);
    for (name, args) in [
        ("read+run", ["--allow", "read,run"].as_slice()),
        (
            "other tool",
            &["--allow", "read,run", "--tool", "skills_search"],
        ),
        (
            "its tool",
            &["--allow", "read,run", "--tool", "demo__greet"],
        ),
        ("some skills", &["--allow", "read,run", "--only", "acme/**"]),
    ] {
        let plain = name.replace(['+', ' '], "-");
        let mut command = vec!["token", "create", &plain];
        command.extend(args);
        secrets.insert(name, place.run_ok(&command).trim().to_owned());
    }
    let args = ["--require-token", "--tool", "demo::*"];
    let (http, hub) = HttpServer::start_with_hub(&place.home_dir(), &args);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let url = format!("ws://127.0.0.1:{hub}");
    let wait = Duration::from_secs(10);
    let admin = Some(secrets["admin"].as_str());
    let worker = runtime
        .block_on(BusClient::connect_worker(
            &url,
            admin,
            Arc::new(GreetingWorker),
        ))
        .unwrap();
    let function = json!({
        "type": "registerfunction", "id": "demo::greet", "description": "Says hello.",
        "metadata": {"content": true},
    });
    worker.send_text(function.to_string()).unwrap();
    let prompt = json!({"name": "greet", "description": "Greets.", "function_id": "demo::greet"});
    runtime
        .block_on(worker.call_json("prompts::register", &prompt.to_string(), wait))
        .unwrap();
    let header = |name: &str| format!("Authorization: Bearer {}\r\n", secrets[name]);
    let is_offered = || {
        let answer = http.send_request_with(&header("admin"), "tools/list", json!({}));
        String::from_utf8_lossy(&answer.body).contains("demo__greet")
    };
    let start = std::time::Instant::now();
    while !is_offered() {
        assert!(start.elapsed() < wait, "the tool is not offered");
    }
    let mut reached = String::new();
    for name in secrets.keys() {
        if *name == "none" {
            continue;
        }
        let bus = runtime.block_on(async {
            let Ok(client) = BusClient::connect(&url, Some(&secrets[name])).await else {
                return false;
            };
            client.call_json("demo::greet", "{}", wait).await.is_ok()
        });
        let ask = |method: &str, params: Value| {
            let answer = http.send_request_with(&header(name), method, params);
            String::from_utf8_lossy(&answer.body).contains("hello of the worker")
        };
        let tool = ask(
            "tools/call",
            json!({"name": "demo__greet", "arguments": {}}),
        );
        let content = ask("resources/read", json!({"uri": "iii://fn/demo/greet"}));
        let prompt = ask("prompts/get", json!({"name": "greet"}));
        // Writing to a string cannot fail.
        let _ = writeln!(
            reached,
            "{name:<11} bus:{bus} tool:{tool} content:{content} prompt:{prompt}"
        );
    }
    insta::assert_snapshot!(reached);
}

/// A link from a skill makes a function content only if the skill is trusted.
#[test]
fn t41_a_link_from_an_untrusted_skill_makes_no_function_content() {
    let place = TestWorkspace::new();
    fs::create_dir_all(place.home_dir()).unwrap();
    // A workspace that is not trusted, as after a clone.
    let text = "# Guide\n\nSee [it](iii://fn/plain/greet).\n";
    place.write_skill(".repertoire/skills/clone", text);
    place.write_skill("sources/mine", text);
    let workspace = place.work_dir();
    let args = ["--workspace", workspace.to_str().unwrap()];
    let (http, hub) = HttpServer::start_with_hub(&place.home_dir(), &args);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let url = format!("ws://127.0.0.1:{hub}");
    let connecting = BusClient::connect_worker(&url, None, Arc::new(GreetingWorker));
    let worker = runtime.block_on(connecting).unwrap();
    let function = json!({"type": "registerfunction", "id": "plain::greet"});
    worker.send_text(function.to_string()).unwrap();
    // The hub handles messages in order, so the function is known after an answer.
    let health = worker.call_json("engine::health", "{}", Duration::from_secs(10));
    runtime.block_on(health).unwrap();
    let read = || {
        let uri = json!({"uri": "iii://fn/plain/greet"});
        let answer = http.send_request("resources/read", uri);
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    let listed = http.send_request("skills/list", json!({}));
    assert!(String::from_utf8_lossy(&listed.body).contains("clone"));
    assert!(read().contains("error"), "{}", read());
    place.run_ok(&["add", "sources/mine", "--scope", "account"]);
    common::wait_for("the trusted skill", || {
        read().contains("hello of the worker")
    });
}

/// What a caller gets of a skill: nothing, an unmarked copy, or a labelled one.
fn outcome(text: &str, marker: &str) -> &'static str {
    // A list without entries is no label.
    let text = &text.replace("\"untrusted\":[]", "");
    let has_error = text.contains("\"error\"") || text.contains("\"isError\":true");
    match (text.contains(marker), has_error) {
        (true, _) if text.contains("repertoire/trust") || text.contains("ntrusted") => "labelled",
        (true, _) => "given",
        (false, true) => "refused",
        (false, false) => "left out",
    }
}

/// Returns the entry of a listing that holds a text: the element of the innermost list around it.
fn listed_entry(text: &str, mark: &str) -> Option<String> {
    fn find(value: &Value, mark: &str) -> Option<String> {
        match value {
            Value::Array(all) => {
                let one = all.iter().find(|one| one.to_string().contains(mark))?;
                find(one, mark).or_else(|| Some(one.to_string()))
            }
            Value::Object(fields) => fields.values().find_map(|one| find(one, mark)),
            _ => None,
        }
    }
    find(&serde_json::from_str(text).ok()?, mark)
}

/// The parameters with which a method, tool or function is asked for one skill.
fn params_for(name: &str, id: &str) -> Value {
    let document = format!("skill://{id}/SKILL.md");
    let body = format!("iii://{id}");
    match name {
        "resources/read" | "skills/get" | "resources/subscribe" | "resources/unsubscribe" => {
            json!({"uri": document})
        }
        "resources/directory/read" => json!({"uri": format!("skill://{id}")}),
        "prompts/get" => json!({"name": id}),
        "prompts::mcp-get" => json!({"name": format!("{id}-prompt")}),
        "completion/complete" => json!({
            "ref": {"type": "ref/resource", "uri": "skill://{+id}/SKILL.md"},
            "argument": {"name": "id", "value": id},
        }),
        "skill__fetch" | "skills::fetch_skill" | "skill::fetch" | "skills::resources-read" => {
            json!({"uri": body})
        }
        "skills_search" => json!({"message": format!("do {id} as it is asked for")}),
        "skill_run" => json!({"skill": id, "message": "x"}),
        _ => json!({}),
    }
}

/// What every method, tool and function gives of a trusted and of an untrusted skill, for every kind
/// of token (T40, T44).
#[test]
fn t44_the_matrix_of_origins_is_what_the_server_does() {
    let place = TestWorkspace::new();
    place.write_skill("sources/mine", "# marker-mine\n");
    place.run_ok(&["add", "sources/mine", "--scope", "account"]);
    // A workspace that is not trusted, as after a clone.
    place.write_skill(".repertoire/skills/clone", "# marker-clone\n");
    let prompt = |word: &str| format!("---\ndescription: Says {word}.\n---\nmarker-{word}\n");
    place.write_file("prompts/clone-prompt.md", prompt("clone"));
    place.write_file(".repertoire/config.toml", "prompts = [\"prompts/*.md\"]\n");
    // One that the user has.
    let account = place.home_dir();
    fs::create_dir_all(account.join("prompts")).unwrap();
    fs::write(account.join("prompts/mine-prompt.md"), prompt("mine")).unwrap();
    fs::write(
        account.join("config.toml"),
        "prompts = [\"prompts/*.md\"]\n",
    )
    .unwrap();
    let secrets = create_tokens(&place);
    let workspace = place.work_dir();
    let args = [
        "--workspace",
        workspace.to_str().unwrap(),
        "--offer",
        "search,run",
        "--require-token",
        "--share-account",
    ];
    let (http, hub) = HttpServer::start_with_hub(&place.home_dir(), &args);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let url = format!("ws://127.0.0.1:{hub}");
    let mut matrix = String::new();
    for row in all_permissions() {
        if matches!(row.surface, "route" | "message") {
            continue;
        }
        let _ = write!(matrix, "{:<9} {:<28}", row.surface, row.name);
        for (name, ..) in TOKENS {
            let secret = &secrets[name];
            let ask = |id: &str| -> &'static str {
                let params = params_for(row.name, id);
                let text = if row.surface == "function" {
                    let token = Some(secret.as_str()).filter(|secret| !secret.is_empty());
                    let Ok(client) = runtime.block_on(BusClient::connect(&url, token)) else {
                        return "refused";
                    };
                    let wait = Duration::from_secs(10);
                    let payload = params.to_string();
                    let call = client.call_json(row.name, &payload, wait);
                    match runtime.block_on(call) {
                        Ok(text) => text,
                        Err(error) => format!("\"error\" {error}"),
                    }
                } else {
                    let header = match secret.as_str() {
                        "" => String::new(),
                        token => format!("Authorization: Bearer {token}\r\n"),
                    };
                    let answer = if row.surface == "tool" {
                        let params = json!({"name": row.name, "arguments": params});
                        http.send_request_with(&header, "tools/call", params)
                    } else {
                        http.send_request_with(&header, row.name, params)
                    };
                    String::from_utf8_lossy(&answer.body).into_owned()
                };
                // Listings name the skill, reads give its body.
                let marks = [
                    format!("marker-{id}"),
                    format!("Does {id}."),
                    format!("Says {id}."),
                    format!("\"id\":\"{id}\""),
                    // A completion lists ids only.
                    format!("[\"{id}\""),
                ];
                let is_listing = row.name.contains("list");
                let found = marks.iter().map(|mark| match listed_entry(&text, mark) {
                    Some(entry) if is_listing => outcome(&entry, mark),
                    _ => outcome(&text, mark),
                });
                let mut found = found.filter(|found| *found != "left out");
                found.next().unwrap_or("left out")
            };
            let _ = write!(matrix, " {name}:{}/{}", ask("mine"), ask("clone"));
        }
        matrix.push('\n');
    }
    assert!(
        !matrix.contains("/given"),
        "untrusted text without a label:\n{matrix}"
    );
    insta::assert_snapshot!(matrix);
}
