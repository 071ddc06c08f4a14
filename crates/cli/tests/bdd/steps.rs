//! Step definitions of the feature files.

use std::{collections::BTreeMap, time::Instant};

use cucumber::{gherkin::Step, given, then, when};
use futures::StreamExt as _;
use iii_sdk::{
    Error as SdkError, RegisterFunction, protocol::RegisterTriggerInput, runtime::FunctionRef,
    trigger::Trigger,
};
use repertoire_core::{
    FunctionGuard, SkillId, Uri,
    markdown::MarkdownSummary,
    surface::{self, IndexEntry, IndexSection},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    bus::{self, CallError, WAIT, shared_bus},
    standby::WorkerBus,
};

struct TriggerSubscriber {
    events: mpsc::UnboundedReceiver<Value>,
    trigger: Option<Trigger>,
}

#[derive(cucumber::World)]
#[world(init = Self::fresh)]
pub(crate) struct World {
    answer: Result<Value, CallError>,
    markdown: String,
    functions: Vec<FunctionRef>,
    subscribers: Vec<TriggerSubscriber>,
    /// The scenario's own bus.
    pub(crate) worker_bus: Option<WorkerBus>,
    /// The ids of skills whose registration was acknowledged.
    pub(crate) acknowledged: Vec<Value>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("answer", &self.answer)
            .finish_non_exhaustive()
    }
}

impl World {
    async fn fresh() -> Self {
        Self {
            answer: Ok(Value::Null),
            markdown: String::new(),
            functions: Vec::new(),
            subscribers: Vec::new(),
            worker_bus: None,
            acknowledged: Vec::new(),
        }
    }

    /// Returns the next event of the last subscriber.
    pub(crate) async fn next_event(&mut self) -> Value {
        let subscriber = self.subscribers.last_mut().unwrap();
        let heard = tokio::time::timeout(WAIT, subscriber.events.recv()).await;
        heard.expect("no event arrived").unwrap()
    }

    /// Removes everything that the next scenario could see.
    pub(crate) async fn clean_up(&mut self) {
        for function in self.functions.drain(..) {
            function.unregister();
        }
        for subscriber in self.subscribers.drain(..) {
            if let Some(trigger) = subscriber.trigger {
                trigger.unregister();
            }
        }
        if let Some(own) = self.worker_bus.take() {
            own.shut_down().await;
        }
        if std::panic::catch_unwind(shared_bus).is_err() {
            return;
        }
        for (list, rows, key, remove) in [
            ("skills::list", "skills", "id", "skills::unregister"),
            ("prompts::list", "prompts", "name", "prompts::unregister"),
        ] {
            let listed = bus::call_function(list, json!({})).await.unwrap();
            let rows = listed[rows].as_array().unwrap().iter();
            let ours = rows.filter(|row| row["origin"] == "state");
            call_concurrently(ours.map(|row| (remove, json!({key: row[key]})))).await;
        }
        let files = &shared_bus().files;
        let mut had = false;
        for folder in ["skills", "more", "prompts"] {
            for entry in std::fs::read_dir(files.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                had = true;
                if path.is_dir() {
                    std::fs::remove_dir_all(path).unwrap();
                } else {
                    std::fs::remove_file(path).unwrap();
                }
            }
        }
        if had {
            wait_until(async || list_rows("skills::list", "skills").await.is_empty()).await;
            wait_until(async || list_rows("prompts::list", "prompts").await.is_empty()).await;
        }
    }

    pub(crate) fn result(&self) -> &Value {
        self.answer.as_ref().expect("the call failed")
    }

    fn content_text(&self) -> &str {
        self.result()["contents"][0]["text"].as_str().unwrap()
    }

    async fn call_function(&mut self, function: &str, payload: Value) {
        self.answer = bus::call_function(function, payload).await;
    }

    fn provide_function<F>(&mut self, id: &str, answer: F)
    where
        F: Fn(Value) -> Result<Value, SdkError> + Send + Sync + 'static,
    {
        let function = RegisterFunction::new(answer).local_dispatch(false);
        let function = shared_bus().client.register_function(id, function);
        self.functions.push(function);
    }
}

/// Resolves the escapes in a quoted text of a feature file.
fn unescape_text(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\\"", "\"")
}

fn docstring(step: &Step) -> String {
    let text = step
        .docstring
        .as_deref()
        .expect("the step has no docstring");
    text.trim_start_matches('\n').to_owned()
}

fn json_payload(step: &Step) -> Value {
    // A table turns `\n` into a line break, which JSON does not allow within a string.
    let text = docstring(step);
    let text = text.trim();
    serde_json::from_str(text)
        .or_else(|_| serde_json::from_str(&text.replace('\n', "\\n").replace('\t', "\\t")))
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Waits until a condition holds; panics after the deadline.
async fn wait_until(holds: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < WAIT, "it did not happen in time");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn list_rows(function: &str, key: &str) -> Vec<Value> {
    let listed = bus::call_function(function, json!({})).await.unwrap();
    listed[key].as_array().unwrap().clone()
}

fn is_row(row: &Value, name: &str) -> bool {
    row["id"] == name || row["name"] == name
}

// Names, URIs, markdown.

#[then(regex = r#"^"([^"]*)" is a skill id$"#)]
fn is_skill_id(_: &mut World, id: String) {
    id.parse::<SkillId>().unwrap();
}

#[then(regex = r#"^"([^"]*)" is no skill id because "([^"]*)"$"#)]
fn is_not_skill_id(_: &mut World, id: String, rule: String) {
    let error = id.parse::<SkillId>().unwrap_err().to_string();
    assert!(error.contains(&rule), "{error}");
}

fn long_id(kind: &str, number: usize) -> String {
    if kind == "with a segment" {
        return "x".repeat(number);
    }
    let mut id = vec!["x".repeat(63); 17].join("/");
    id.truncate(number);
    id
}

#[then(regex = r"^an id (with a segment) of (\d+) characters is taken$")]
fn long_id_accepted(_: &mut World, kind: String, number: usize) {
    long_id(&kind, number).parse::<SkillId>().unwrap();
}

#[then(regex = r#"^an id (with a segment )?of (\d+) characters is refused because "([^"]*)"$"#)]
fn long_id_refused(_: &mut World, kind: String, number: usize, rule: String) {
    let error = long_id(kind.trim(), number).parse::<SkillId>().unwrap_err();
    assert!(error.to_string().contains(&rule), "{error}");
}

#[then(regex = r"^an id of (\d+) segments is taken$")]
fn deep_id_accepted(_: &mut World, number: usize) {
    vec!["x"; number].join("/").parse::<SkillId>().unwrap();
}

#[then(regex = r#"^the URI "([^"]*)" means (the index|the body|the function)(?: "([^"]*)")?$"#)]
fn uri_means(_: &mut World, uri: String, kind: String, what: String) {
    let (found, name) = match uri.parse::<Uri>().unwrap() {
        Uri::Index => ("the index", String::new()),
        Uri::Body(id) => ("the body", id.to_string()),
        Uri::Function(id) => ("the function", id.to_string()),
        other => panic!("{other}"),
    };
    assert_eq!((found, name), (kind.as_str(), what));
}

#[then(regex = r#"^the URI "([^"]*)" is refused$"#)]
fn is_not_uri(_: &mut World, uri: String) {
    assert!(uri.parse::<Uri>().is_err());
}

#[then(regex = r#"^the function "([^"]*)" is (not )?guarded$"#)]
fn function_is_guarded(_: &mut World, id: String, not: String) {
    assert_eq!(
        FunctionGuard::default().check_function(&id).is_ok(),
        !not.is_empty()
    );
}

#[given("the markdown:")]
fn set_markdown(world: &mut World, step: &Step) {
    world.markdown = docstring(step);
}

#[given(regex = r#"^the markdown "([^"]*)" with a paragraph of (\d+) characters$"#)]
fn set_long_markdown(world: &mut World, title: String, number: usize) {
    world.markdown = format!("{title}\n\n{}\n", "word ".repeat(number / 5).trim_end());
}

#[then(regex = r#"^its title is "([^"]*)"$"#)]
fn title_is(world: &mut World, title: String) {
    assert_eq!(
        MarkdownSummary::from_markdown(&world.markdown).title,
        Some(title)
    );
}

#[then(regex = r#"^its description is "([^"]*)"$"#)]
fn description_is(world: &mut World, text: String) {
    assert_eq!(
        MarkdownSummary::from_markdown(&world.markdown).summary,
        Some(text)
    );
}

#[then(regex = r#"^its description has (\d+) characters and ends in "([^"]*)"$"#)]
fn description_is_cut(world: &mut World, number: usize, end: String) {
    let summary = MarkdownSummary::from_markdown(&world.markdown)
        .summary
        .unwrap();
    assert!(
        summary.chars().count() <= number,
        "{}",
        summary.chars().count()
    );
    assert!(
        summary.chars().count() > number - 10 && summary.ends_with(&end),
        "{summary}"
    );
}

#[then(regex = r#"^the index of it has one link, to "([^"]*)"$"#)]
fn index_has_one_link(world: &mut World, uri: String) {
    let head = MarkdownSummary::from_markdown(&world.markdown);
    let id: SkillId = "entry".parse().unwrap();
    let index = surface::render_index([IndexEntry {
        id: &id,
        title: head.title.as_deref(),
        description: head.summary.as_deref(),
        section: IndexSection::Registered,
    }]);
    let links: Vec<_> = index.match_indices("](").collect();
    let real: Vec<_> = links
        .iter()
        .filter(|(at, _)| !index[..*at].ends_with('\\'))
        .collect();
    assert_eq!(real.len(), 1, "{index}");
    assert!(index.contains(&format!("]({uri})")), "{index}");
}

// Calls and their results.

#[when(regex = r#"^I call "([^"]*)" with:$"#)]
async fn call_function(world: &mut World, function: String, step: &Step) {
    world.call_function(&function, json_payload(step)).await;
}

#[when(regex = r#"^I read "([^"]*)"$"#)]
async fn read_uri(world: &mut World, uri: String) {
    world
        .call_function("skills::resources-read", json!({"uri": uri}))
        .await;
}

#[when(regex = r#"^I ask for the next page of "([^"]*)"$"#)]
async fn request_next_page(world: &mut World, function: String) {
    let cursor = world.result()["next_cursor"].clone();
    assert!(cursor.is_string());
    let payload = json!({"limit": 3, "cursor": cursor});
    world.call_function(&function, payload).await;
}

#[then("it succeeds")]
fn call_succeeds(world: &mut World) {
    world.result();
}

#[then(regex = r#"^it fails with "([^"]*)"$"#)]
fn call_fails(world: &mut World, words: String) {
    let error = world.answer.as_ref().expect_err("it succeeded");
    assert!(error.message.contains(&words), "{error:?}");
}

#[then(regex = r#"^it fails with the code "([^"]*)"$"#)]
fn call_fails_with_code(world: &mut World, code: String) {
    assert_eq!(world.answer.as_ref().expect_err("it succeeded").code, code);
}

#[then("the error has no stack trace")]
fn error_has_no_stack_trace(world: &mut World) {
    assert_eq!(world.answer.as_ref().unwrap_err().stacktrace, None);
}

#[then("the result is:")]
fn result_is(world: &mut World, step: &Step) {
    assert_eq!(*world.result(), json_payload(step));
}

#[then(regex = r#"^the result is the text "((?s).*)"$"#)]
fn result_text_is(world: &mut World, text: String) {
    assert_eq!(*world.result(), json!(unescape_text(&text)));
}

#[then(regex = r#"^the result at "([^"]*)" is (missing|a time|an array|true|false|\d+|".*")$"#)]
fn result_at_is(world: &mut World, pointer: String, what: String) {
    let found = world.result().pointer(&pointer);
    match what.as_str() {
        "missing" => assert_eq!(found, None),
        "a time" => {
            let text = found.and_then(Value::as_str).unwrap();
            assert!(
                text.len() >= 20 && text.ends_with('Z') && &text[10..11] == "T",
                "{text}"
            );
        }
        "an array" => assert!(found.unwrap().is_array()),
        literal => match literal.strip_prefix('"').and_then(|l| l.strip_suffix('"')) {
            Some(text) => assert_eq!(found, Some(&json!(unescape_text(text)))),
            None => assert_eq!(found, Some(&serde_json::from_str(literal).unwrap())),
        },
    }
}

#[then(regex = r#"^the result at "([^"]*)" starts with "(.*)"$"#)]
fn result_at_starts_with(world: &mut World, pointer: String, text: String) {
    let found = world
        .result()
        .pointer(&pointer)
        .and_then(Value::as_str)
        .unwrap();
    assert!(found.starts_with(&unescape_text(&text)), "{found}");
}

#[then(regex = r#"^the type is "([^"]*)"$"#)]
fn type_is(world: &mut World, mime: String) {
    assert_eq!(world.result()["contents"][0]["mimeType"], mime);
}

#[then(regex = r#"^the text is "((?s).*)"$"#)]
fn text_is(world: &mut World, text: String) {
    assert_eq!(world.content_text(), unescape_text(&text));
}

#[then(regex = r#"^the text starts with "([^"]*)"$"#)]
fn text_starts_with(world: &mut World, text: String) {
    assert!(
        world.content_text().starts_with(&unescape_text(&text)),
        "{}",
        world.content_text()
    );
}

#[then(regex = r#"^the text has (no|the) line "(.*)"$"#)]
fn text_has_line(world: &mut World, which: String, line: String) {
    let has = world.content_text().lines().any(|found| found == line);
    assert_eq!(has, which == "the", "{}", world.content_text());
}

// Registration.

#[given(regex = r#"^the skill "([^"]*)" with "(.*)"$"#)]
#[when(regex = r#"^the skill "([^"]*)" is registered with "(.*)"$"#)]
async fn register_skill(_: &mut World, id: String, body: String) {
    let payload = json!({"id": id, "skill": unescape_text(&body)});
    bus::call_function("skills::register", payload)
        .await
        .unwrap();
}

#[when(regex = r#"^the skill "([^"]*)" is unregistered$"#)]
async fn unregister_skill(_: &mut World, id: String) {
    bus::call_function("skills::unregister", json!({"id": id}))
        .await
        .unwrap();
}

#[given(regex = r"^(\d+) skills$")]
async fn register_many_skills(_: &mut World, number: usize) {
    for n in 0..number {
        let payload = json!({"id": format!("s{n:03}"), "skill": format!("# {n}")});
        bus::call_function("skills::register", payload)
            .await
            .unwrap();
    }
}

/// Makes the calls with up to 32 of them in flight.
async fn call_concurrently(calls: impl Iterator<Item = (&str, Value)>) {
    futures::stream::iter(calls)
        .map(|(function, payload)| bus::call_function(function, payload))
        .buffer_unordered(32)
        .for_each(|answer| async move { assert!(answer.is_ok(), "{answer:?}") })
        .await;
}

#[given(regex = r"^(\d+) skills with ids and titles as long as they may be$")]
async fn register_long_skills(_: &mut World, number: usize) {
    // Each of four bytes, so that a row is several kilobytes.
    let body = format!("# {}\n", "🦀".repeat(140));
    let skills = (0..number).map(|n| {
        let segments = "/".to_owned() + &"x".repeat(63);
        let id = format!("long-{n:08}{}", segments.repeat(15));
        ("skills::register", json!({"id": id, "skill": body}))
    });
    call_concurrently(skills).await;
}

#[then(regex = r"^the answer has fewer than (\d+) bytes$")]
fn answer_has_fewer_bytes(world: &mut World, most: usize) {
    let bytes = world.result().to_string().len();
    assert!(bytes < most, "{bytes}");
}

#[then(regex = r#"^following its cursor, "([^"]*)" has (\d+) rows of "([^"]*)" in all$"#)]
async fn row_count_over_pages(world: &mut World, function: String, number: usize, key: String) {
    let mut names = Vec::new();
    loop {
        let rows = world.result()[key.as_str()].as_array().unwrap();
        names.extend(
            rows.iter()
                .map(|row| format!("{}{}", row["uri"], row["name"])),
        );
        let cursor = world.result()["next_cursor"].clone();
        if cursor.is_null() {
            break;
        }
        world
            .call_function(&function, json!({"cursor": cursor}))
            .await;
    }
    let rows = names.len();
    names.sort();
    names.dedup();
    assert_eq!((names.len(), rows), (number, number));
}

#[given(regex = r"^a skill at each of (\d+) levels$")]
async fn register_nested_skills(_: &mut World, number: usize) {
    for level in 1..=number {
        let payload = json!({"id": nested_id(level), "skill": format!("level {level}")});
        bus::call_function("skills::register", payload)
            .await
            .unwrap();
    }
}

fn nested_id(level: usize) -> String {
    let segments: Vec<String> = (1..=level).map(|n| format!("l{n}")).collect();
    segments.join("/")
}

#[when(regex = r"^I read the skill at level (\d+)$")]
async fn read_level(world: &mut World, level: usize) {
    read_uri(world, format!("iii://{}", nested_id(level))).await;
}

#[then(regex = r"^the line of level (\d+) is indented by (\d+) spaces$")]
fn line_is_indented(world: &mut World, level: usize, spaces: usize) {
    let id = nested_id(level);
    let line = format!("{:spaces$}- [`{id}`](iii://{id})", "");
    assert!(
        world.content_text().lines().any(|l| l.starts_with(&line)),
        "{}",
        world.content_text()
    );
}

#[when(regex = r#"^I register "([^"]*)" with a body of (\d+) bytes$"#)]
async fn register_sized(world: &mut World, id: String, bytes: usize) {
    let payload = json!({"id": id, "skill": "x".repeat(bytes)});
    world.call_function("skills::register", payload).await;
}

#[when(regex = r"^I register an id (with a segment )?of (\d+) characters$")]
async fn register_long(world: &mut World, kind: String, number: usize) {
    let payload = json!({"id": long_id(kind.trim(), number), "skill": "x"});
    world.call_function("skills::register", payload).await;
}

#[when(regex = r"^I register a prompt with a name of (\d+) characters$")]
async fn register_long_prompt(world: &mut World, number: usize) {
    let payload = json!({"name": "x".repeat(number), "description": "d", "function_id": "f"});
    world.call_function("prompts::register", payload).await;
}

#[given(regex = r#"^the prompt "([^"]*)" rendered by "([^"]*)"(?: that requires "([^"]*)")?$"#)]
async fn register_prompt(_: &mut World, name: String, function: String, required: String) {
    let arguments = match required.as_str() {
        "" => json!([]),
        name => json!([{"name": name, "required": true}]),
    };
    let description = format!("About {name}.");
    let payload = json!({
        "name": name, "description": description, "arguments": arguments, "function_id": function,
    });
    bus::call_function("prompts::register", payload)
        .await
        .unwrap();
}

#[then("nothing is registered")]
async fn nothing_is_registered(_: &mut World) {
    assert!(list_rows("skills::list", "skills").await.is_empty());
    assert!(list_rows("prompts::list", "prompts").await.is_empty());
}

#[then(regex = r#"^"([^"]*)" has (\d+) rows? of "([^"]*)"$"#)]
async fn row_count(_: &mut World, function: String, number: usize, key: String) {
    let rows = list_rows(&function, &key).await;
    assert_eq!(rows.len(), number, "{rows:?}");
}

#[then(regex = r#"^"([^"]*)" has the row "([^"]*)" of "([^"]*)"$"#)]
async fn has_row(_: &mut World, function: String, name: String, key: String) {
    let rows = list_rows(&function, &key).await;
    assert!(rows.iter().any(|row| is_row(row, &name)), "{rows:?}");
}

#[then(regex = r#"^eventually "([^"]*)" has the row "([^"]*)" of "([^"]*)"$"#)]
async fn eventually_has_row(_: &mut World, function: String, name: String, key: String) {
    let has = async || {
        list_rows(&function, &key)
            .await
            .iter()
            .any(|row| is_row(row, &name))
    };
    wait_until(has).await;
}

#[then(regex = r#"^eventually "([^"]*)" has (\d+) rows of "([^"]*)"$"#)]
async fn eventually_row_count(_: &mut World, function: String, number: usize, key: String) {
    wait_until(async || list_rows(&function, &key).await.len() == number).await;
}

#[then(regex = r#"^the row "([^"]*)" of "([^"]*)" has the origin "([^"]*)"$"#)]
async fn row_origin(_: &mut World, name: String, function: String, origin: String) {
    let key = function.split("::").next().unwrap().to_owned();
    let rows = list_rows(&function, &key).await;
    let row = rows.iter().find(|row| is_row(row, &name)).unwrap();
    assert_eq!(row["origin"], origin);
}

#[then(regex = r#"^the function "([^"]*)" is listed with schemas$"#)]
async fn function_has_schemas(_: &mut World, id: String) {
    let functions = list_rows("engine::functions::list", "functions").await;
    let row = functions.iter().find(|row| row["function_id"] == id);
    assert!(row.unwrap()["description"].is_string());
    let asked = json!({"function_id": id});
    let row = bus::call_function("engine::functions::info", asked).await;
    let row = row.unwrap();
    for schema in ["request_schema", "response_schema"] {
        assert_eq!(
            row[schema]["$schema"], "http://json-schema.org/draft-07/schema#",
            "{row}"
        );
    }
}

// Functions that the scenario provides.

#[given(regex = r#"^the function "([^"]*)" that answers:$"#)]
fn provide_fixed_answer(world: &mut World, id: String, step: &Step) {
    let answer = json_payload(step);
    world.provide_function(&id, move |_| Ok(answer.clone()));
}

#[given(regex = r#"^the function "([^"]*)" that fails with "([^"]*)"$"#)]
fn provide_failing_function(world: &mut World, id: String, words: String) {
    world.provide_function(&id, move |_| Err(SdkError::Handler(words.clone())));
}

#[given(regex = r#"^the function "([^"]*)" that answers with a text of (\d+) bytes$"#)]
fn provide_large_answer(world: &mut World, id: String, bytes: usize) {
    world.provide_function(&id, move |_| Ok(json!("x".repeat(bytes))));
}

#[given(regex = r#"^the function "([^"]*)" that answers with what it was given$"#)]
fn provide_echo(world: &mut World, id: String) {
    world.provide_function(&id, |given| Ok(without_caller(given)));
}

#[given(regex = r#"^the function "([^"]*)" that answers with its arguments as text$"#)]
fn provide_arguments_text(world: &mut World, id: String) {
    world.provide_function(&id, |given| {
        let given: BTreeMap<String, Value> = serde_json::from_value(without_caller(given))?;
        let words = given
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
        Ok(json!(words.collect::<Vec<_>>().join(" ")))
    });
}

fn without_caller(mut given: Value) -> Value {
    if let Value::Object(object) = &mut given {
        object.shift_remove("_caller_worker_id");
    }
    given
}

// Change notifications.

#[given(regex = r#"^a subscriber to "([^"]*)"$"#)]
#[when(regex = r#"^another subscriber to "([^"]*)" joins$"#)]
fn add_subscriber(world: &mut World, kind: String) {
    subscribe_to_trigger(world, &kind, json!({}));
}

#[given(regex = r#"^a subscriber to "([^"]*)" with:$"#)]
fn add_configured_subscriber(world: &mut World, kind: String, step: &Step) {
    subscribe_to_trigger(world, &kind, json_payload(step));
}

#[allow(
    deprecated,
    reason = "workers of the original project subscribe this way"
)]
fn subscribe_to_trigger(world: &mut World, kind: &str, config: Value) {
    let (sender, heard) = mpsc::unbounded_channel();
    let id = format!("bdd::on_change_{}", uuid::Uuid::new_v4().simple());
    world.provide_function(&id, move |event| {
        let _ = sender.send(without_caller(event));
        Ok(Value::Null)
    });
    let input = RegisterTriggerInput::new(kind, &id, config);
    let trigger = shared_bus().client.register_trigger(input).unwrap();
    world.subscribers.push(TriggerSubscriber {
        events: heard,
        trigger: Some(trigger),
    });
}

#[then("it hears:")]
async fn subscriber_receives(world: &mut World, step: &Step) {
    let subscriber = world.subscribers.last_mut().unwrap();
    let heard = tokio::time::timeout(WAIT, subscriber.events.recv()).await;
    assert_eq!(
        heard.expect("no event arrived").unwrap(),
        json_payload(step)
    );
}

#[when("it stops following")]
fn unsubscribe_last(world: &mut World) {
    let trigger = world.subscribers.last_mut().unwrap().trigger.take();
    trigger.unwrap().unregister();
}

#[then("the first one heard nothing")]
async fn first_received_nothing(world: &mut World) {
    let last = world.subscribers.last_mut().unwrap();
    let mark = tokio::time::timeout(WAIT, last.events.recv())
        .await
        .unwrap();
    assert_eq!(mark.unwrap(), json!({"op": "register", "id": "mark"}));
    assert!(world.subscribers[0].events.try_recv().is_err());
}

// Files.

#[when(regex = r#"^the file "([^"]*)" is written:$"#)]
fn write_file(_: &mut World, path: String, step: &Step) {
    let path = shared_bus().files.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, unescape_text(&docstring(step)) + "\n").unwrap();
}

#[when(regex = r#"^the file "([^"]*)" is removed$"#)]
fn remove_file(_: &mut World, path: String) {
    std::fs::remove_file(shared_bus().files.join(path)).unwrap();
}

#[then(regex = r#"^eventually reading "([^"]*)" gives a text that starts with "([^"]*)"$"#)]
async fn eventually_reads(_: &mut World, uri: String, text: String) {
    wait_until(async || {
        let read = bus::call_function("skills::resources-read", json!({"uri": uri})).await;
        read.is_ok_and(|read| {
            let found = read["contents"][0]["text"].as_str().unwrap();
            found.starts_with(&text)
        })
    })
    .await;
}

// MCP.

#[when(regex = r#"^an MCP client asks "([^"]*)" with:$"#)]
async fn mcp_client_requests(world: &mut World, method: String, step: &Step) {
    world.answer = bus::send_mcp_request(&method, json_payload(step)).await;
}

#[when(regex = r#"^an MCP client calls the tool "([^"]*)" with:$"#)]
async fn mcp_client_calls_tool(world: &mut World, name: String, step: &Step) {
    let params = json!({"name": name, "arguments": json_payload(step)});
    world.answer = bus::send_mcp_request("tools/call", params).await;
}

async fn list_mcp_tools() -> Vec<Value> {
    let listed = bus::send_mcp_request("tools/list", json!({}))
        .await
        .unwrap();
    listed["tools"].as_array().unwrap().clone()
}

#[then(regex = r#"^eventually the MCP tools have "([^"]*)"$"#)]
async fn eventually_has_tool(_: &mut World, name: String) {
    wait_until(async || {
        list_mcp_tools()
            .await
            .iter()
            .any(|tool| tool["name"] == name)
    })
    .await;
}

#[then(regex = r#"^the MCP tools (have|do not have) "([^"]*)"$"#)]
async fn has_tool(_: &mut World, which: String, name: String) {
    let has = list_mcp_tools()
        .await
        .iter()
        .any(|tool| tool["name"] == name);
    assert_eq!(has, which == "have");
}

#[then(regex = r#"^the result has the prompt "([^"]*)" with the required argument "([^"]*)"$"#)]
fn has_prompt(world: &mut World, name: String, argument: String) {
    let prompts = world.result()["prompts"].as_array().unwrap();
    let prompt = prompts
        .iter()
        .find(|prompt| prompt["name"] == name)
        .unwrap();
    assert_eq!(prompt["arguments"][0]["name"], argument);
    assert_eq!(prompt["arguments"][0]["required"], true);
}
