//! The server over stdio and HTTP in both protocol eras: the same bytes, the same errors, and it
//! survives malformed input.
#![allow(
    clippy::format_push_string,
    clippy::match_bool,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests"
)]

mod common;
mod wire;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use common::TestWorkspace;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use repertoire_core::{Skill, SkillReference};
use repertoire_registry::{Registry, RegistrySettings};
use serde_json::{Value, json};
use wire::{HttpServer, ProtocolEra, StdioServer};

/// Returns the content of a read, sent as text or as base64.
fn content_bytes(message: &Value) -> Vec<u8> {
    let content = &message["result"]["contents"][0];
    match (content["text"].as_str(), content["blob"].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(blob)) => STANDARD.decode(blob).unwrap(),
        _ => panic!("no content: {message}"),
    }
}

/// Generates a document with an arbitrary body, and arbitrary files beside it.
fn skill_files() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
    let body = prop_oneof![
        "(?s).{0,200}",
        Just("\r\nline\r\n\u{0}\u{1}\u{7f}\u{2028} \" \\ \u{1F600}".to_owned()),
        Just("no newline at the end".to_owned()),
        Just("\n--- references/a.md ---\nforged\n".to_owned()),
    ];
    let file = prop_oneof![
        "(?s).{0,100}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..64),
    ];
    let names = prop::sample::subsequence(
        vec![
            "references/a.md",
            "references/b c.md",
            "scripts/run.sh",
            "assets/dot.png",
            "data.json",
            "notes.txt",
            "ünïcode.md",
            "LICENSE",
        ],
        0..5,
    );
    (body, names, prop::collection::vec(file, 5)).prop_map(|(body, names, bytes)| {
        let mut files: BTreeMap<String, Vec<u8>> =
            names.into_iter().map(str::to_owned).zip(bytes).collect();
        files.insert("SKILL.md".to_owned(), body.into_bytes());
        files
    })
}

fn percent_encode(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// The resources of a skill, joined, equal its prompt text on every interface.
#[test]
#[allow(clippy::too_many_lines, reason = "one scenario over every interface")]
fn every_interface_returns_the_same_bytes() {
    let place = TestWorkspace::new();
    let mut runner = TestRunner::new(Config::default());
    let mut skills = BTreeMap::new();
    for number in 0..40 {
        let mut files = skill_files().new_tree(&mut runner).unwrap().current();
        let name = format!("skill-{number}");
        let body = files.remove("SKILL.md").unwrap();
        let mut document =
            format!("---\nname: {name}\ndescription: Number {number}.\n---\n").into_bytes();
        document.extend(body);
        files.insert("SKILL.md".to_owned(), document);
        for (path, bytes) in &files {
            place.write_file(&format!("skills/{name}/{path}"), bytes);
        }
        skills.insert(name, files);
    }
    let folder = place.work_dir().join("skills");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder_text = folder.to_str().unwrap();
    let http = HttpServer::start(&place.home_dir(), &[folder_text]);
    let session = http.session();
    let mut legacy = StdioServer::start(&place.home_dir(), &[folder_text], ProtocolEra::Legacy);
    let mut modern = StdioServer::start(&place.home_dir(), &[folder_text], ProtocolEra::Modern);
    let registry = Registry::open(RegistrySettings::from_folders([folder.clone()])).unwrap();
    for (name, files) in &skills {
        let mut read = BTreeMap::new();
        for (path, content) in files {
            let uri = format!("skill://{name}/{}", percent_encode(path));
            let params = json!({"uri": uri});
            let fast = http
                .send_request("resources/read", params.clone())
                .rpc_message();
            assert_eq!(content_bytes(&fast), *content, "{uri}");
            let ways = [
                http.send_legacy_request(&session, "resources/read", &params),
                legacy.send_request("resources/read", params.clone()),
                modern.send_request("resources/read", params),
            ];
            for way in &ways {
                assert_eq!(content_bytes(way), *content, "{uri}");
                // The full path and the fast path return the same contents.
                assert_eq!(
                    way["result"]["contents"], fast["result"]["contents"],
                    "{uri}"
                );
            }
            let library = registry.read_uri(&uri.parse().unwrap()).unwrap();
            assert_eq!(library.bytes, content.as_slice());
            let text = fast["result"]["contents"][0]["text"].as_str();
            read.insert(path.clone(), text.map(str::to_owned));
        }
        let whole = |text: &str| match text.ends_with('\n') {
            true => text.to_owned(),
            false => format!("{text}\n"),
        };
        let mut expected = whole(read["SKILL.md"].as_deref().unwrap());
        for (path, text) in read.iter().filter(|(path, _)| *path != "SKILL.md") {
            if let Some(text) = text {
                expected += &format!("\n--- {path} ---\n{}", whole(text));
            }
        }
        let prompt = |message: &Value| message["result"]["messages"][0]["content"]["text"].clone();
        let params = json!({"name": name});
        assert_eq!(
            prompt(&legacy.send_request("prompts/get", params.clone())),
            expected
        );
        assert_eq!(
            prompt(&http.send_request("prompts/get", params).rpc_message()),
            expected
        );
        let cat = place
            .command(&["--from", folder_text, "cat", "--prompt", name])
            .output();
        assert_eq!(cat.unwrap().stdout, expected.as_bytes());
        let uri = format!("skill://{name}/SKILL.md");
        let cat = place
            .command(&["--from", folder_text, "cat", &uri])
            .output();
        assert_eq!(cat.unwrap().stdout, files["SKILL.md"]);
        // The full path and the fast path return the same listings, too.
        let get = json!({"uri": uri});
        let short =
            http.send_request("skills/get", get.clone()).rpc_message()["result"]["skill"].clone();
        assert_eq!(
            legacy.send_request("skills/get", get.clone())["result"]["skill"],
            short
        );
        assert_eq!(
            http.send_legacy_request(&session, "skills/get", &get)["result"]["skill"],
            short
        );
    }
    let listed =
        http.send_request("skills/list", json!({})).rpc_message()["result"]["skills"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 40);
    assert_eq!(
        legacy.send_request("skills/list", json!({}))["result"]["skills"],
        listed
    );
    assert_eq!(
        http.send_legacy_request(&session, "skills/list", &json!({}))["result"]["skills"],
        listed
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The prompt text of a skill written in code is its resources joined in their order.
    #[test]
    fn prompt_text_of_a_coded_skill_joins_its_resources(body in "(?s).{0,200}", bodies in prop::collection::vec("(?s).{0,80}", 0..5)) {
        let mut skill = Skill::new("demo", body.clone());
        for (number, body) in bodies.iter().enumerate() {
            // Not in the order of their names.
            let path = format!("references/{}.md", 9 - number);
            skill = skill.with_reference(SkillReference::new(path, "text/markdown", body.clone()));
        }
        let server = repertoire_serve::Server::builder()
            .bootstrap_skill_and_prompt(skill.clone(), "demo-prompt")
            .build()
            .unwrap();
        let registry = server.registry();
        let snapshot = registry.snapshot();
        let entry = snapshot.get(&"demo".parse().unwrap()).unwrap();
        let mut together = String::new();
        for file in entry.files() {
            let uri = repertoire_core::Uri::for_file(&entry.id, &file.path);
            let text = String::from_utf8(registry.read_uri(&uri).unwrap().bytes.to_vec()).unwrap();
            if !file.path.is_document() {
                together += &format!("\n--- {} ---\n", file.path);
            }
            together += &text;
            if !text.ends_with('\n') {
                together.push('\n');
            }
        }
        prop_assert_eq!(&together, &skill.as_prompt_text());
        prop_assert_eq!(&together, &registry.prompt_text(entry).unwrap());
    }
}

fn example_workspace() -> (TestWorkspace, String) {
    let place = TestWorkspace::new();
    place.write_skill("skills/one", "# One\n");
    place.write_file("skills/one/references/more.md", "More.\n");
    place.write_skill("skills/team/two", "# Two\n");
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("skills").to_str().unwrap().to_owned();
    (place, folder)
}

/// Every error of the specification: the request, and the code in each era.
fn error_cases() -> Vec<(&'static str, Value, i64, i64)> {
    let uri = |uri: &str| json!({"uri": uri});
    vec![
        ("skills/get", uri("skill://absent/SKILL.md"), -32602, -32602),
        ("skills/get", uri("skill://one"), -32602, -32602),
        (
            "skills/get",
            uri("skill://one/references/more.md"),
            -32602,
            -32602,
        ),
        (
            "skills/get",
            uri("https://one.test/SKILL.md"),
            -32602,
            -32602,
        ),
        (
            "skills/get",
            uri("skill://../../etc/passwd"),
            -32602,
            -32602,
        ),
        ("skills/get", json!({"uri": 7}), -32602, -32602),
        ("skills/get", json!({}), -32602, -32602),
        ("skills/list", json!({"cursor": "AAAA"}), -32602, -32602),
        ("skills/list", json!({"cursor": 7}), -32602, -32602),
        ("resources/list", json!({"cursor": "AAAA"}), -32602, -32602),
        ("prompts/list", json!({"cursor": "AAAA"}), -32602, -32602),
        (
            "resources/directory/read",
            uri("skill://absent"),
            -32602,
            -32602,
        ),
        (
            "resources/directory/read",
            uri("skill://one/SKILL.md"),
            -32602,
            -32602,
        ),
        (
            "resources/directory/read",
            uri("skill://one/"),
            -32602,
            -32602,
        ),
        ("resources/directory/read", uri("iii://one"), -32602, -32602),
        (
            "resources/read",
            uri("skill://absent/SKILL.md"),
            -32002,
            -32602,
        ),
        ("resources/read", uri("skill://one"), -32002, -32602),
        (
            "resources/read",
            uri("skill://one/unlisted.md"),
            -32002,
            -32602,
        ),
        (
            "resources/read",
            uri("skill://one/..%2f..%2fetc"),
            -32002,
            -32602,
        ),
        (
            "resources/read",
            uri("SKILL://one/SKILL.md"),
            -32002,
            -32602,
        ),
        ("resources/read", uri("file:///etc/passwd"), -32002, -32602),
        ("resources/read", uri("iii://absent"), -32002, -32602),
        ("resources/read", uri("iii://fn/state/get"), -32002, -32602),
        ("resources/read", json!({}), -32602, -32602),
        ("prompts/get", json!({"name": "absent"}), -32602, -32602),
        (
            "tools/call",
            json!({"name": "absent", "arguments": {}}),
            -32602,
            -32602,
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "absent"},
            "argument": {"name": "x", "value": ""}}),
            -32602,
            -32602,
        ),
        ("no/such/method", json!({}), -32601, -32601),
    ]
}

#[test]
fn every_error_has_its_code_and_names_the_uri_on_both_transports() {
    let (place, folder) = example_workspace();
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    let session = http.session();
    let mut legacy = StdioServer::start(&place.home_dir(), &[&folder], ProtocolEra::Legacy);
    let mut modern = StdioServer::start(&place.home_dir(), &[&folder], ProtocolEra::Modern);
    for (method, params, old, new) in error_cases() {
        let answers = [
            (legacy.send_request(method, params.clone()), old),
            (http.send_legacy_request(&session, method, &params), old),
            (modern.send_request(method, params.clone()), new),
            (http.send_request(method, params.clone()).rpc_message(), new),
        ];
        for (answer, code) in answers {
            assert_eq!(answer["error"]["code"], code, "{method} {params}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            let named = params["uri"].as_str().or(params["name"].as_str());
            if let Some(named) = named {
                assert!(message.contains(named), "{method} {params}: {message}");
            }
            // No path of this machine leaks.
            assert!(
                !message.contains(place.work_dir().to_str().unwrap()),
                "{message}"
            );
        }
    }
    // Errors of a tool are results that a model can read.
    for arguments in [
        json!({}),
        json!({"uri": " "}),
        json!({"uris": []}),
        json!({"uri": "http://x"}),
        json!({"uris": ["iii://one", "file:///etc/passwd"]}),
        json!({"uri": "iii://absent"}),
    ] {
        let params = json!({"name": "skill__fetch", "arguments": arguments});
        let answer = legacy.send_request("tools/call", params);
        assert_eq!(answer["result"]["isError"], true, "{arguments}: {answer}");
    }
}

#[test]
fn malformed_messages_get_an_error_response() {
    let (place, folder) = example_workspace();
    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    for (body, status, code) in [
        (&b"{bad"[..], 400, -32700),
        (b"", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[]", 400, -32600),
        (
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            400,
            -32600,
        ),
    ] {
        let answer = http.post_message("", body);
        assert_eq!(answer.status, status);
        assert_eq!(answer.rpc_message()["error"]["code"], code, "{body:?}");
    }
    let large = vec![b' '; 2 * 1024 * 1024];
    assert_eq!(http.post_message("", &large).status, 413);
    assert_eq!(http.get("/nothing", "").status, 404);
    let piped = &mut StdioServer::start(&place.home_dir(), &[&folder], ProtocolEra::Legacy);
    for (line, code) in [
        (&b"{bad"[..], -32700),
        (b"\xff\xfe", -32700),
        (b"[]", -32600),
        (b"\"text\"", -32600),
        (
            b"{\"jsonrpc\":\"1.0\",\"id\":5,\"method\":\"ping\"}",
            -32600,
        ),
        (&vec![b'x'; 5 * 1024 * 1024], -32600),
    ] {
        piped.send_line(line);
        let answer = piped.read_message(Duration::from_secs(10)).unwrap();
        assert_eq!(
            answer["error"]["code"],
            code,
            "{:?}",
            &line[..line.len().min(50)]
        );
    }
    // A notification never gets a response, even when it is malformed.
    piped.send_line(br#"{"jsonrpc":"2.0","method":"notifications/nothing","params":5}"#);
    assert_eq!(piped.send_request("ping", json!({}))["result"], json!({}));
}

/// A small seeded generator, so that a failure can be reproduced.
struct SeededRandom(u64);

impl SeededRandom {
    fn next_below(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

/// Generates a message with an error in it.
fn malformed_message(dice: &mut SeededRandom) -> Vec<u8> {
    let methods = [
        "skills/list",
        "skills/get",
        "resources/read",
        "resources/directory/read",
        "prompts/get",
        "resources/list",
        "tools/call",
        "completion/complete",
        "resources/subscribe",
        "ping",
        "subscriptions/listen",
        "initialize",
        "server/discover",
        "nonsense",
    ];
    let values = [
        json!(null),
        json!(-1),
        json!(1e308),
        json!("skill://one/SKILL.md"),
        json!({"a": []}),
        json!([[[[[[]]]]]]),
        json!("\u{0}\u{202e}"),
        json!("x".repeat(2000)),
        json!(true),
        json!("skill://%ff"),
        json!("iii://../.."),
        json!({"name": 5}),
    ];
    let mut pick = |from: &[Value]| from[dice.next_below(from.len())].clone();
    let params = json!({
        "uri": pick(&values), "cursor": pick(&values), "name": pick(&values),
        "arguments": pick(&values), "ref": pick(&values), "_meta": pick(&values),
    });
    let method = methods[dice.next_below(methods.len())];
    let id = values[dice.next_below(values.len())].clone();
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let mut bytes = message.to_string().into_bytes();
    match dice.next_below(6) {
        0 => bytes.truncate(dice.next_below(bytes.len())),
        1 => {
            let at = dice.next_below(bytes.len());
            bytes[at] = u8::try_from(dice.next_below(256)).unwrap();
        }
        2 => bytes.extend_from_slice(&b"]}"[..dice.next_below(3)]),
        3 => {
            let depth = dice.next_below(2000);
            bytes = [vec![b'['; depth], vec![b']'; depth]].concat();
        }
        _ => {}
    }
    bytes.retain(|byte| *byte != b'\n');
    bytes
}

/// JSON in a string in JSON, 200 levels deep; the depth limit restarts at each level, so a
/// recursive parser would overflow any stack.
fn nested_json_strings() -> String {
    let mut text = "[]".to_owned();
    for _ in 0..200 {
        let inner = text.replace('\\', "\\u005c").replace('"', "\\u0022");
        let (open, close) = ("[".repeat(100), "]".repeat(100));
        text = format!("{open}{{\"$serde_json::private::RawValue\":\"{inner}\"}}{close}");
    }
    text
}

#[test]
fn t7_json_nested_in_json_strings_does_not_stop_the_server() {
    let (place, folder) = example_workspace();
    let message = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"name\":\"x\",\
         \"arguments\":{{\"a\":{}}}}}}}",
        nested_json_strings()
    );
    let mut piped = StdioServer::start(&place.home_dir(), &[&folder], ProtocolEra::Legacy);
    piped.send_line(message.as_bytes());
    let answer = piped.send_request("skills/get", json!({"uri": "skill://one/SKILL.md"}));
    assert_eq!(answer["result"]["skill"]["frontmatter"]["name"], "one");

    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", http.port)).unwrap();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: \
         application/json, text/event-stream\r\nConnection: close\r\nMCP-Protocol-Version: \
         2026-07-28\r\nContent-Length: {}\r\n\r\n",
        message.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(message.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("reserved"), "{answer}");
    assert_eq!(http.send_request("skills/list", json!({})).status, 200);
}

#[test]
fn a_hundred_thousand_malformed_requests_leave_the_server_answering() {
    let (place, folder) = example_workspace();
    let mut dice = SeededRandom(0x5eed_1234_5678_9abc);
    let mut piped = StdioServer::start(&place.home_dir(), &[&folder], ProtocolEra::Legacy);
    piped.send_request("skills/list", json!({}));
    let mut before = 0;
    for round in 0..90 {
        for _ in 0..1000 {
            piped.send_line(&malformed_message(&mut dice));
        }
        // The responses so far are read here, so that the pipe does not fill up.
        let answer = piped.send_request("skills/get", json!({"uri": "skill://one/SKILL.md"}));
        assert_eq!(answer["result"]["skill"]["frontmatter"]["name"], "one");
        if round == 10 {
            before = piped.memory_kib();
        }
    }
    let after = piped.memory_kib();
    assert!(
        after < before + 16 * 1024,
        "grew from {before} to {after} KiB"
    );
    assert!(
        !piped.stderr_text().contains("panicked"),
        "{}",
        piped.stderr_text()
    );

    let http = HttpServer::start(&place.home_dir(), &[&folder]);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let port = http.port;
            std::thread::spawn(move || {
                let mut dice = SeededRandom(0xfeed + thread);
                for _ in 0..2500 {
                    let body = malformed_message(&mut dice);
                    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                    let head = format!(
                        "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                         Accept: application/json, text/event-stream\r\nConnection: close\r\n\
                         MCP-Protocol-Version: 2026-07-28\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let mut out = &stream;
                    let _ = out.write_all(head.as_bytes());
                    let _ = out.write_all(&body);
                    let mut first = [0; 12];
                    let mut from = &stream;
                    let read = from.read(&mut first).unwrap_or(0);
                    assert!(read == 0 || first.starts_with(b"HTTP/1.1"));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(http.send_request("skills/list", json!({})).status, 200);
    assert!(
        !http.stderr_text().contains("panicked"),
        "{}",
        http.stderr_text()
    );
}

#[test]
fn pagination_is_stable_while_skills_are_added_and_removed() {
    let place = TestWorkspace::new();
    for number in 0..250 {
        place.write_skill(&format!("skills/s-{number:03}"), "# S\n");
    }
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("skills");
    let mut server = StdioServer::start(
        &place.home_dir(),
        &[folder.to_str().unwrap()],
        ProtocolEra::Legacy,
    );
    let first = server.send_request("skills/list", json!({}))["result"].clone();
    // Remove a skill that was listed and add one that was not: the others keep their place.
    fs::remove_dir_all(folder.join("s-000")).unwrap();
    place.write_skill("skills/s-0995", "# New\n");
    wait_until(|| {
        server.send_request("skills/get", json!({"uri": "skill://s-0995/SKILL.md"}))["result"]
            .is_object()
    });
    let mut names: Vec<String> = Vec::new();
    let mut page = first;
    loop {
        for skill in page["skills"].as_array().unwrap() {
            names.push(skill["frontmatter"]["name"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["nextCursor"].as_str().map(str::to_owned) else {
            break;
        };
        page = server.send_request("skills/list", json!({"cursor": next}))["result"].clone();
    }
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(names, sorted);
    assert_eq!(names.len(), 251);
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "timed out");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_setting_selects_which_skills_are_prompts() {
    let (place, folder) = example_workspace();
    place.write_file(
        "prompts/one.md",
        "---\ndescription: A prompt of that name.\n---\nSay one.\n",
    );
    let names = |server: &mut StdioServer| -> Vec<String> {
        let answer = server.send_request("prompts/list", json!({}));
        let prompts = answer["result"]["prompts"].as_array().unwrap().clone();
        prompts
            .iter()
            .map(|p| p["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let start = |args: &[&str]| StdioServer::start(&place.home_dir(), args, ProtocolEra::Legacy);
    assert_eq!(names(&mut start(&[&folder])), ["one", "team/two"]);
    assert_eq!(names(&mut start(&[&folder, "--prompts", "none"])), [""; 0]);
    assert_eq!(
        names(&mut start(&[&folder, "--prompts", "team/two"])),
        ["team/two"]
    );
    // If a prompt and a skill share a name, both stay reachable.
    let config = format!(
        "folders = ['{folder}']\nprompts = ['{}']\nskills_as_prompts = \"all\"\n",
        place.work_dir().join("prompts/*.md").display()
    );
    fs::write(place.home_dir().join("config.toml"), config).unwrap();
    let mut server = start(&[]);
    assert_eq!(names(&mut server), ["one", "skill:one", "team/two"]);
    let text = |server: &mut StdioServer, name: &str| {
        let answer = server.send_request("prompts/get", json!({"name": name}));
        answer["result"]["messages"][0]["content"]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text(&mut server, "one"), "Say one.\n");
    assert!(text(&mut server, "skill:one").contains("# One"));
}

#[test]
fn instructions_state_how_many_skills_were_cut() {
    let place = TestWorkspace::new();
    for number in 0..200 {
        place.write_skill(&format!("skills/s-{number:03}"), "# S\n");
    }
    fs::create_dir_all(place.home_dir()).unwrap();
    let folder = place.work_dir().join("skills");
    let folder = folder.to_str().unwrap();
    let mut server = StdioServer::start(&place.home_dir(), &[folder], ProtocolEra::Modern);
    let start = std::time::Instant::now();
    let text = loop {
        let answer = server.send_request("server/discover", json!({}));
        let text = answer["result"]["instructions"]
            .as_str()
            .unwrap()
            .to_owned();
        // The server responds before the index is complete.
        if text.contains("s-000") {
            break text;
        }
        assert!(start.elapsed() < Duration::from_mins(1), "{text}");
    };
    assert!(text.len() <= 2048, "{} bytes", text.len());
    let shown = text.lines().filter(|line| line.starts_with("- s-")).count();
    let left = format!("… and {} more", 200 - shown);
    assert!(shown > 5 && text.contains(&left), "{text}");
}
