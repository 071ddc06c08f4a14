//! The server over both wires and in both eras: the same bytes, the same errors, still there
//! after whatever was thrown at it.
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
use common::Place;
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use repertoire_core::{Skill, SkillReference};
use repertoire_registry::{Registry, Settings};
use serde_json::{Value, json};
use wire::{Era, Http, Piped};

/// The bytes of a read, however they were sent.
fn bytes(message: &Value) -> Vec<u8> {
    let content = &message["result"]["contents"][0];
    match (content["text"].as_str(), content["blob"].as_str()) {
        (Some(text), None) => text.as_bytes().to_vec(),
        (None, Some(blob)) => STANDARD.decode(blob).unwrap(),
        _ => panic!("no content: {message}"),
    }
}

/// A document of this name with an arbitrary body, and arbitrary files beside it.
fn files() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
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

fn percent(path: &str) -> String {
    path.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' => {
                char::from(b).to_string()
            }
            _ => format!("%{b:02X}"),
        })
        .collect()
}

/// What a host puts together from resources is what it gets as a prompt, on every surface.
#[test]
fn every_surface_gives_the_same_bytes() {
    let place = Place::new();
    let mut runner = TestRunner::new(Config::default());
    let mut skills = BTreeMap::new();
    for number in 0..40 {
        let mut files = files().new_tree(&mut runner).unwrap().current();
        let name = format!("skill-{number}");
        let body = files.remove("SKILL.md").unwrap();
        let mut document =
            format!("---\nname: {name}\ndescription: Number {number}.\n---\n").into_bytes();
        document.extend(body);
        files.insert("SKILL.md".to_owned(), document);
        for (path, bytes) in &files {
            place.write(&format!("skills/{name}/{path}"), bytes);
        }
        skills.insert(name, files);
    }
    let folder = place.work().join("skills");
    fs::create_dir_all(place.home()).unwrap();
    let folder_text = folder.to_str().unwrap();
    let http = Http::start(&place.home(), &[folder_text]);
    let session = http.session();
    let mut legacy = Piped::start(&place.home(), &[folder_text], Era::Legacy);
    let mut modern = Piped::start(&place.home(), &[folder_text], Era::Modern);
    let registry = Registry::open(Settings::of_folders([folder.clone()])).unwrap();
    for (name, files) in &skills {
        let mut read = BTreeMap::new();
        for (path, content) in files {
            let uri = format!("skill://{name}/{}", percent(path));
            let params = json!({"uri": uri});
            let fast = http.ask("resources/read", params.clone()).message();
            assert_eq!(bytes(&fast), *content, "{uri}");
            let ways = [
                http.ask_legacy(&session, "resources/read", &params),
                legacy.ask("resources/read", params.clone()),
                modern.ask("resources/read", params),
            ];
            for way in &ways {
                assert_eq!(bytes(way), *content, "{uri}");
                // The long way and the short one say the same.
                assert_eq!(
                    way["result"]["contents"], fast["result"]["contents"],
                    "{uri}"
                );
            }
            let library = registry.read(&uri.parse().unwrap()).unwrap();
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
        assert_eq!(prompt(&legacy.ask("prompts/get", params.clone())), expected);
        assert_eq!(prompt(&http.ask("prompts/get", params).message()), expected);
        let cat = place
            .command(&["--from", folder_text, "cat", "--prompt", name])
            .output();
        assert_eq!(cat.unwrap().stdout, expected.as_bytes());
        let uri = format!("skill://{name}/SKILL.md");
        let cat = place
            .command(&["--from", folder_text, "cat", &uri])
            .output();
        assert_eq!(cat.unwrap().stdout, files["SKILL.md"]);
        // Listings are the same by the long way and the short one too.
        let get = json!({"uri": uri});
        let short = http.ask("skills/get", get.clone()).message()["result"]["skill"].clone();
        assert_eq!(
            legacy.ask("skills/get", get.clone())["result"]["skill"],
            short
        );
        assert_eq!(
            http.ask_legacy(&session, "skills/get", &get)["result"]["skill"],
            short
        );
    }
    let listed = http.ask("skills/list", json!({})).message()["result"]["skills"].clone();
    assert_eq!(listed.as_array().unwrap().len(), 40);
    assert_eq!(
        legacy.ask("skills/list", json!({}))["result"]["skills"],
        listed
    );
    assert_eq!(
        http.ask_legacy(&session, "skills/list", &json!({}))["result"]["skills"],
        listed
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A skill written in code: its prompt text is its resources put together, in their order.
    #[test]
    fn a_skill_in_code_has_one_text(body in "(?s).{0,200}", bodies in prop::collection::vec("(?s).{0,80}", 0..5)) {
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
            let uri = repertoire_core::Uri::file(&entry.id, &file.path);
            let text = String::from_utf8(registry.read(&uri).unwrap().bytes.to_vec()).unwrap();
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

fn example_server() -> (Place, String) {
    let place = Place::new();
    place.skill("skills/one", "# One\n");
    place.write("skills/one/references/more.md", "More.\n");
    place.skill("skills/team/two", "# Two\n");
    fs::create_dir_all(place.home()).unwrap();
    let folder = place.work().join("skills").to_str().unwrap().to_owned();
    (place, folder)
}

/// Every error of the specification: what is asked, and the code in each era.
fn errors() -> Vec<(&'static str, Value, i64, i64)> {
    let uri = |uri: &str| json!({"uri": uri});
    vec![
        ("skills/get", uri("skill://nobody/SKILL.md"), -32602, -32602),
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
            uri("skill://nobody"),
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
            uri("skill://nobody/SKILL.md"),
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
        ("resources/read", uri("iii://nobody"), -32002, -32602),
        ("resources/read", uri("iii://fn/state/get"), -32002, -32602),
        ("resources/read", json!({}), -32602, -32602),
        ("prompts/get", json!({"name": "nobody"}), -32602, -32602),
        (
            "tools/call",
            json!({"name": "nobody", "arguments": {}}),
            -32602,
            -32602,
        ),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "nobody"},
            "argument": {"name": "x", "value": ""}}),
            -32602,
            -32602,
        ),
        ("no/such/method", json!({}), -32601, -32601),
    ]
}

#[test]
fn every_error_has_its_code_and_names_the_uri_on_both_wires() {
    let (place, folder) = example_server();
    let http = Http::start(&place.home(), &[&folder]);
    let session = http.session();
    let mut legacy = Piped::start(&place.home(), &[&folder], Era::Legacy);
    let mut modern = Piped::start(&place.home(), &[&folder], Era::Modern);
    for (method, params, old, new) in errors() {
        let answers = [
            (legacy.ask(method, params.clone()), old),
            (http.ask_legacy(&session, method, &params), old),
            (modern.ask(method, params.clone()), new),
            (http.ask(method, params.clone()).message(), new),
        ];
        for (answer, code) in answers {
            assert_eq!(answer["error"]["code"], code, "{method} {params}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            let named = params["uri"].as_str().or(params["name"].as_str());
            if let Some(named) = named {
                assert!(message.contains(named), "{method} {params}: {message}");
            }
            // Nothing of this machine leaks.
            assert!(
                !message.contains(place.work().to_str().unwrap()),
                "{message}"
            );
        }
    }
    // What is a tool's business is said as a result that a model can read.
    for arguments in [
        json!({}),
        json!({"uri": " "}),
        json!({"uris": []}),
        json!({"uri": "http://x"}),
        json!({"uris": ["iii://one", "file:///etc/passwd"]}),
        json!({"uri": "iii://nobody"}),
    ] {
        let params = json!({"name": "skill__fetch", "arguments": arguments});
        let answer = legacy.ask("tools/call", params);
        assert_eq!(answer["result"]["isError"], true, "{arguments}: {answer}");
    }
}

#[test]
fn what_is_no_message_gets_an_answer() {
    let (place, folder) = example_server();
    let http = Http::start(&place.home(), &[&folder]);
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
        let answer = http.post("", body);
        assert_eq!(answer.status, status);
        assert_eq!(answer.message()["error"]["code"], code, "{body:?}");
    }
    let large = vec![b' '; 2 * 1024 * 1024];
    assert_eq!(http.post("", &large).status, 413);
    assert_eq!(http.get("/nothing", "").status, 404);
    let piped = &mut Piped::start(&place.home(), &[&folder], Era::Legacy);
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
        piped.send(line);
        let answer = piped.line(Duration::from_secs(10)).unwrap();
        assert_eq!(
            answer["error"]["code"],
            code,
            "{:?}",
            &line[..line.len().min(50)]
        );
    }
    // A notification is never answered, whatever is wrong with it.
    piped.send(br#"{"jsonrpc":"2.0","method":"notifications/nothing","params":5}"#);
    assert_eq!(piped.ask("ping", json!({}))["result"], json!({}));
}

/// A small generator, so that a failure can be run again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }
}

/// A message with something wrong in it.
fn malformed(dice: &mut Dice) -> Vec<u8> {
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
    let mut pick = |from: &[Value]| from[dice.roll(from.len())].clone();
    let params = json!({
        "uri": pick(&values), "cursor": pick(&values), "name": pick(&values),
        "arguments": pick(&values), "ref": pick(&values), "_meta": pick(&values),
    });
    let method = methods[dice.roll(methods.len())];
    let id = values[dice.roll(values.len())].clone();
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let mut bytes = message.to_string().into_bytes();
    match dice.roll(6) {
        0 => bytes.truncate(dice.roll(bytes.len())),
        1 => {
            let at = dice.roll(bytes.len());
            bytes[at] = u8::try_from(dice.roll(256)).unwrap();
        }
        2 => bytes.extend_from_slice(&b"]}"[..dice.roll(3)]),
        3 => {
            let depth = dice.roll(2000);
            bytes = [vec![b'['; depth], vec![b']'; depth]].concat();
        }
        _ => {}
    }
    bytes.retain(|byte| *byte != b'\n');
    bytes
}

/// JSON in a string in JSON, and so on, each level with a limit of depth of its own: reading it
/// would use up any stack.
fn packed() -> String {
    let mut text = "[]".to_owned();
    for _ in 0..200 {
        let inner = text.replace('\\', "\\u005c").replace('"', "\\u0022");
        let (open, close) = ("[".repeat(100), "]".repeat(100));
        text = format!("{open}{{\"$serde_json::private::RawValue\":\"{inner}\"}}{close}");
    }
    text
}

#[test]
fn t7_json_packed_into_json_does_not_end_the_server() {
    let (place, folder) = example_server();
    let message = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{{\"name\":\"x\",\
         \"arguments\":{{\"a\":{}}}}}}}",
        packed()
    );
    let mut piped = Piped::start(&place.home(), &[&folder], Era::Legacy);
    piped.send(message.as_bytes());
    let answer = piped.ask("skills/get", json!({"uri": "skill://one/SKILL.md"}));
    assert_eq!(answer["result"]["skill"]["frontmatter"]["name"], "one");

    let http = Http::start(&place.home(), &[&folder]);
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
    assert_eq!(http.ask("skills/list", json!({})).status, 200);
}

#[test]
fn a_hundred_thousand_malformed_requests_leave_the_server_answering() {
    let (place, folder) = example_server();
    let mut dice = Dice(0x5eed_1234_5678_9abc);
    let mut piped = Piped::start(&place.home(), &[&folder], Era::Legacy);
    piped.ask("skills/list", json!({}));
    let mut before = 0;
    for round in 0..90 {
        for _ in 0..1000 {
            piped.send(&malformed(&mut dice));
        }
        // Whatever was answered on the way is read here, so that nothing piles up.
        let answer = piped.ask("skills/get", json!({"uri": "skill://one/SKILL.md"}));
        assert_eq!(answer["result"]["skill"]["frontmatter"]["name"], "one");
        if round == 10 {
            before = piped.memory();
        }
    }
    let after = piped.memory();
    assert!(
        after < before + 16 * 1024,
        "grew from {before} to {after} KiB"
    );
    assert!(!piped.said().contains("panicked"), "{}", piped.said());

    let http = Http::start(&place.home(), &[&folder]);
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let port = http.port;
            std::thread::spawn(move || {
                let mut dice = Dice(0xfeed + thread);
                for _ in 0..2500 {
                    let body = malformed(&mut dice);
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
    assert_eq!(http.ask("skills/list", json!({})).status, 200);
    assert!(!http.said().contains("panicked"), "{}", http.said());
}

#[test]
fn pages_stay_whole_while_skills_come_and_go() {
    let place = Place::new();
    for number in 0..250 {
        place.skill(&format!("skills/s-{number:03}"), "# S\n");
    }
    fs::create_dir_all(place.home()).unwrap();
    let folder = place.work().join("skills");
    let mut server = Piped::start(&place.home(), &[folder.to_str().unwrap()], Era::Legacy);
    let first = server.ask("skills/list", json!({}))["result"].clone();
    // One that was shown goes, one that was not comes: neither moves the others.
    fs::remove_dir_all(folder.join("s-000")).unwrap();
    place.skill("skills/s-0995", "# New\n");
    wait_for(|| {
        server.ask("skills/get", json!({"uri": "skill://s-0995/SKILL.md"}))["result"].is_object()
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
        page = server.ask("skills/list", json!({"cursor": next}))["result"].clone();
    }
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(names, sorted);
    assert_eq!(names.len(), 251);
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn which_skills_are_prompts_is_a_setting() {
    let (place, folder) = example_server();
    place.write(
        "prompts/one.md",
        "---\ndescription: A prompt of that name.\n---\nSay one.\n",
    );
    let names = |server: &mut Piped| -> Vec<String> {
        let answer = server.ask("prompts/list", json!({}));
        let prompts = answer["result"]["prompts"].as_array().unwrap().clone();
        prompts
            .iter()
            .map(|p| p["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let start = |args: &[&str]| Piped::start(&place.home(), args, Era::Legacy);
    assert_eq!(names(&mut start(&[&folder])), ["one", "team/two"]);
    assert_eq!(names(&mut start(&[&folder, "--prompts", "none"])), [""; 0]);
    assert_eq!(
        names(&mut start(&[&folder, "--prompts", "team/two"])),
        ["team/two"]
    );
    // Where a prompt and a skill share a name, neither is hidden.
    let config = format!(
        "folders = ['{folder}']\nprompts = ['{}']\nskills_as_prompts = \"all\"\n",
        place.work().join("prompts/*.md").display()
    );
    fs::write(place.home().join("config.toml"), config).unwrap();
    let mut server = start(&[]);
    assert_eq!(names(&mut server), ["one", "skill:one", "team/two"]);
    let text = |server: &mut Piped, name: &str| {
        let answer = server.ask("prompts/get", json!({"name": name}));
        answer["result"]["messages"][0]["content"]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text(&mut server, "one"), "Say one.\n");
    assert!(text(&mut server, "skill:one").contains("# One"));
}

#[test]
fn instructions_say_what_was_cut() {
    let place = Place::new();
    for number in 0..200 {
        place.skill(&format!("skills/s-{number:03}"), "# S\n");
    }
    fs::create_dir_all(place.home()).unwrap();
    let folder = place.work().join("skills");
    let folder = folder.to_str().unwrap();
    let mut server = Piped::start(&place.home(), &[folder], Era::Modern);
    let start = std::time::Instant::now();
    let text = loop {
        let answer = server.ask("server/discover", json!({}));
        let text = answer["result"]["instructions"]
            .as_str()
            .unwrap()
            .to_owned();
        // It answers before the index is there.
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
