//! Adds and removes one server in the text of a host's settings. Comments, order and everything else
//! stay as they are.

use std::fmt::Write as _;

use jsonc_parser::{
    ParseOptions,
    cst::{CstInputValue, CstRootNode},
};
use serde_json::{Map, Value, json};

use super::{
    ConfigForm, EntryForm,
    config::{KnownAddresses, ServerEntry},
};

/// Why a text cannot be edited.
pub(super) type EditError = String;

/// A change of a text: the new text, or none if it is as wanted.
pub(super) type EditResult = Result<Option<String>, EditError>;

impl ConfigForm {
    /// Returns the text with a server of this name. One that is there is replaced only if it was
    /// written by this program: a program of this name, or an address that this account connected.
    pub(super) fn add_server(
        self,
        text: &str,
        name: &str,
        entry: &ServerEntry,
        known: &KnownAddresses,
    ) -> EditResult {
        edit_lines(text, |text| match self {
            Self::Json(key, form) => add_json(text, key, name, &form.to_json(entry), known),
            Self::Toml => add_toml(text, name, entry, known),
            Self::Yaml => add_yaml(text, name, entry, known),
        })
    }

    /// Returns the text without the server of this name, if it was written by this program.
    pub(super) fn remove_server(
        self,
        text: &str,
        name: &str,
        known: &KnownAddresses,
    ) -> EditResult {
        edit_lines(text, |text| match self {
            Self::Json(key, _) => remove_json(text, key, name, known),
            Self::Toml => remove_toml(text, name, known),
            Self::Yaml => remove_yaml(text, name, known),
        })
    }

    /// Returns a file that has this server only.
    pub(super) fn snippet(self, name: &str, entry: &ServerEntry) -> Result<String, EditError> {
        let added = self.add_server("", name, entry, &KnownAddresses::default());
        Ok(added?.unwrap_or_default())
    }
}

/// Edits a text without its byte order mark, and keeps that and the kind of line ends.
fn edit_lines(text: &str, edit: impl Fn(&str) -> EditResult) -> EditResult {
    let content = text.strip_prefix('\u{feff}').unwrap_or(text);
    let Some(mut edited) = edit(content)? else {
        return Ok(None);
    };
    let breaks = content.matches('\n').count();
    if breaks > 0 && content.matches("\r\n").count() == breaks {
        edited = edited.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    if content.len() < text.len() {
        edited.insert(0, '\u{feff}');
    }
    Ok(Some(edited))
}

impl EntryForm {
    fn to_json(self, entry: &ServerEntry) -> Value {
        let mut value = match (self, entry) {
            (Self::OpenCode, ServerEntry::Program { command, args }) => {
                let words: Vec<&String> = std::iter::once(command).chain(args).collect();
                json!({"type": "local", "command": words, "enabled": true})
            }
            (Self::OpenCode, ServerEntry::Address(url)) => {
                json!({"type": "remote", "url": url, "enabled": true})
            }
            (Self::ServerUrl, ServerEntry::Address(url)) => json!({"serverUrl": url}),
            (Self::Untyped, ServerEntry::Address(url)) => json!({"url": url}),
            (Self::Kimi, ServerEntry::Address(url)) => json!({"transport": "http", "url": url}),
            (Self::Cline, ServerEntry::Address(url)) => {
                json!({"type": "streamableHttp", "url": url})
            }
            (Self::Plain | Self::Copilot | Self::Zed, ServerEntry::Address(url)) => {
                json!({"type": "http", "url": url})
            }
            (Self::Copilot, ServerEntry::Program { command, args }) => {
                json!({"type": "stdio", "command": command, "args": args})
            }
            (_, ServerEntry::Program { command, args }) => {
                json!({"command": command, "args": args})
            }
        };
        match self {
            Self::Copilot => value["tools"] = json!(["*"]),
            Self::Cline => value["disabled"] = json!(false),
            Self::Zed => value["source"] = json!("custom"),
            _ => {}
        }
        value
    }
}

/// The keys that say how a server is reached; others belong to the user.
const OWN_KEYS: [&str; 10] = [
    "command",
    "args",
    "type",
    "url",
    "serverUrl",
    "transport",
    "enabled",
    "disabled",
    "tools",
    "source",
];

/// Whether an entry was written for this program, so that it may be replaced or removed.
fn is_ours(entry: &Value, known: &KnownAddresses) -> bool {
    let command = match &entry["command"] {
        Value::Array(words) => words.first().and_then(Value::as_str),
        command => command.as_str(),
    };
    let url = ["url", "serverUrl"]
        .iter()
        .find_map(|key| entry[key].as_str());
    match (command, url, entry) {
        (Some(command), _, _) => is_our_command(command),
        (None, Some(url), Value::Object(map)) => {
            known.contains(url) && map.keys().all(|key| OWN_KEYS.contains(&key.as_str()))
        }
        _ => false,
    }
}

fn is_our_command(command: &str) -> bool {
    let name = command.rsplit(['/', '\\']).next().unwrap_or(command);
    name == "repertoire" || name == "repertoire.exe"
}

fn foreign(name: &str) -> EditError {
    format!("there is another server named {name:?}")
}

fn parse_json(text: &str) -> Result<CstRootNode, EditError> {
    let text = if text.trim().is_empty() { "{}\n" } else { text };
    let options = ParseOptions {
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        ..ParseOptions::default()
    };
    CstRootNode::parse(text, &options).map_err(|error| error.to_string())
}

fn add_json(
    text: &str,
    key: &str,
    name: &str,
    entry: &Value,
    known: &KnownAddresses,
) -> EditResult {
    let root = parse_json(text)?;
    let object = root.object_value().ok_or("is not an object")?;
    let servers = object
        .object_value_or_create(key)
        .ok_or_else(|| format!("`{key}` is not an object"))?;
    let is_it = |property: &jsonc_parser::cst::CstObjectProp| {
        let found = property.name().and_then(|found| found.decoded_value().ok());
        found.as_deref() == Some(name)
    };
    if servers
        .properties()
        .iter()
        .filter(|property| is_it(property))
        .count()
        > 1
    {
        return Err(format!(
            "there are several servers named {name:?}: keep one of them"
        ));
    }
    match servers.get(name) {
        Some(old) => {
            let value = old.value().and_then(|value| value.to_serde_value());
            let value = value.unwrap_or_default();
            let is_same = |(key, wanted): (&String, &Value)| value[key] == *wanted;
            let has_all = entry
                .as_object()
                .is_some_and(|entry| entry.iter().all(is_same));
            let reach = |value: &Value| value.get("command").is_some();
            if has_all && reach(&value) == reach(entry) {
                return Ok(None);
            }
            if !is_ours(&value, known) {
                return Err(foreign(name));
            }
            // What the user added, such as `env`, stays.
            let mut merged = entry.clone();
            if let (Value::Object(merged), Value::Object(old)) = (&mut merged, value) {
                let own = old.into_iter();
                merged.extend(own.filter(|(key, _)| !OWN_KEYS.contains(&key.as_str())));
            }
            old.set_value(to_input(&merged));
        }
        None => {
            servers.append(name, to_input(entry));
        }
    }
    Ok(Some(root.to_string()))
}

fn remove_json(text: &str, key: &str, name: &str, known: &KnownAddresses) -> EditResult {
    let root = parse_json(text)?;
    let object = root.object_value().ok_or("is not an object")?;
    let servers = object.object_value(key);
    let Some(entry) = servers.as_ref().and_then(|servers| servers.get(name)) else {
        return Ok(None);
    };
    let value = entry.value().and_then(|value| value.to_serde_value());
    if !is_ours(&value.unwrap_or_default(), known) {
        return Err(foreign(name));
    }
    entry.remove();
    Ok(Some(root.to_string()))
}

fn to_input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(value) => CstInputValue::Bool(*value),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(to_input).collect()),
        Value::Object(map) => {
            let fields = map
                .iter()
                .map(|(key, value)| (key.clone(), to_input(value)));
            CstInputValue::Object(fields.collect())
        }
    }
}

const TOML_SERVERS: &str = "mcp_servers";

fn parse_toml(text: &str) -> Result<toml_edit::DocumentMut, EditError> {
    text.parse()
        .map_err(|error: toml_edit::TomlError| error.to_string().trim_end().to_owned())
}

/// The keys of a table with an address that this program writes, and one that hosts add.
const OWN_TABLE_KEYS: [&str; 2] = ["url", "enabled"];

fn is_our_table(entry: &dyn toml_edit::TableLike, known: &KnownAddresses) -> bool {
    if let Some(command) = entry.get("command").and_then(|command| command.as_str()) {
        return is_our_command(command);
    }
    let url = entry.get("url").and_then(|url| url.as_str());
    url.is_some_and(|url| known.contains(url))
        && entry.iter().all(|(key, _)| OWN_TABLE_KEYS.contains(&key))
}

fn add_toml(text: &str, name: &str, entry: &ServerEntry, known: &KnownAddresses) -> EditResult {
    let mut document = parse_toml(text)?;
    let mut table = toml_edit::Table::new();
    match entry {
        ServerEntry::Program { command, args } => {
            table["command"] = toml_edit::value(command);
            table["args"] = toml_edit::value(args.iter().collect::<toml_edit::Array>());
        }
        ServerEntry::Address(url) => table["url"] = toml_edit::value(url),
    }
    // Also a table that is written in one line.
    let servers = document
        .entry(TOML_SERVERS)
        .or_insert_with(|| {
            let mut servers = toml_edit::Table::new();
            servers.set_implicit(true);
            toml_edit::Item::Table(servers)
        })
        .as_table_like_mut()
        .ok_or_else(|| format!("`{TOML_SERVERS}` is not a table"))?;
    match servers.get_mut(name) {
        Some(old) => {
            let Some(old) = old.as_table_like_mut() else {
                return Err(format!("`{TOML_SERVERS}.{name}` is not a table"));
            };
            let is_same = table.iter().all(|(key, value)| {
                let old = old.get(key).map(ToString::to_string);
                old.is_some_and(|old| old.trim() == value.to_string().trim())
            });
            if is_same {
                return Ok(None);
            }
            if !is_our_table(old, known) {
                return Err(foreign(name));
            }
            for key in ["command", "args", "url"] {
                old.remove(key);
            }
            for (key, value) in &table {
                old.insert(key, value.clone());
            }
        }
        None => {
            servers.insert(name, toml_edit::Item::Table(table));
        }
    }
    Ok(Some(document.to_string()))
}

fn remove_toml(text: &str, name: &str, known: &KnownAddresses) -> EditResult {
    let mut document = parse_toml(text)?;
    let servers = document.get_mut(TOML_SERVERS);
    let Some(servers) = servers.and_then(|servers| servers.as_table_like_mut()) else {
        return Ok(None);
    };
    let Some(entry) = servers.get(name) else {
        return Ok(None);
    };
    let is_ours = entry
        .as_table_like()
        .is_some_and(|entry| is_our_table(entry, known));
    if !is_ours {
        return Err(foreign(name));
    }
    servers.remove(name);
    Ok(Some(document.to_string()))
}

const YAML_SERVERS: &str = "extensions:";

/// Returns the lines of a server, as deep as the others. What the user added to it stays.
fn yaml_entry(name: &str, entry: &ServerEntry, added: &Map<String, Value>, depth: usize) -> String {
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("name", json!(name));
    put("description", json!("Skills from Repertoire"));
    match entry {
        ServerEntry::Program { command, args } => {
            put("type", json!("stdio"));
            put("cmd", json!(command));
            put("args", json!(args));
            put("envs", json!({}));
        }
        ServerEntry::Address(url) => {
            put("type", json!("streamable_http"));
            put("uri", json!(url));
        }
    }
    put("enabled", json!(true));
    put("timeout", json!(300));
    fields.extend(added.clone());
    let (outer, inner) = (" ".repeat(depth), " ".repeat(depth * 2));
    let mut text = format!("{outer}{name}:\n");
    for (key, value) in fields {
        // A JSON text is a YAML text. Writing to a string cannot fail.
        let _ = writeln!(text, "{inner}{key}: {value}");
    }
    text
}

/// The keys of a server in YAML that say how it is reached; others belong to the user.
const OWN_YAML_KEYS: [&str; 6] = ["name", "description", "type", "cmd", "args", "uri"];

/// Where the servers are in a text, and how deep they are.
struct YamlServers {
    start: usize,
    depth: usize,
}

fn line_depth(line: &str) -> Option<usize> {
    let content = line.trim();
    let is_text = !content.is_empty() && !content.starts_with('#');
    is_text.then(|| line.len() - line.trim_start().len())
}

fn find_yaml_servers(text: &str) -> Result<Option<YamlServers>, EditError> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        start += line.len();
        let Some(rest) = line.strip_prefix(YAML_SERVERS) else {
            continue;
        };
        let rest = rest.trim();
        if !rest.is_empty() && !rest.starts_with('#') {
            return Err("`extensions` is not written as a block".to_owned());
        }
        let first = text[start..].lines().find_map(line_depth);
        let depth = first.filter(|depth| *depth > 0).unwrap_or(2);
        return Ok(Some(YamlServers { start, depth }));
    }
    Ok(None)
}

/// Returns where the lines of a server are in a text; comments after it are not among them.
fn find_yaml_entry(text: &str, name: &str) -> Result<Option<std::ops::Range<usize>>, EditError> {
    let Some(servers) = find_yaml_servers(text)? else {
        return Ok(None);
    };
    let mut at = servers.start;
    let mut found: Option<std::ops::Range<usize>> = None;
    for line in text[servers.start..].split_inclusive('\n') {
        let end = at + line.len();
        match (line_depth(line), &mut found) {
            (Some(depth), Some(range)) if depth > servers.depth => range.end = end,
            (Some(_), Some(_)) | (Some(0), None) => break,
            (Some(_), None) if line.trim() == format!("{name}:") => found = Some(at..end),
            _ => {}
        }
        at = end;
    }
    Ok(found)
}

fn parse_yaml(text: &str) -> Result<Map<String, Value>, EditError> {
    if text.lines().all(|line| line_depth(line).is_none()) {
        return Ok(Map::new());
    }
    let front = repertoire_core::Frontmatter::parse(text, 1);
    Ok(front.map_err(|error| error.to_string())?.to_json())
}

/// Returns the fields of a server.
fn yaml_fields(text: &str, name: &str) -> Result<Map<String, Value>, EditError> {
    let mut all = parse_yaml(text)?;
    let servers = all.remove(YAML_SERVERS.trim_end_matches(':'));
    let entry = servers.and_then(|mut servers| Some(servers.get_mut(name)?.take()));
    match entry {
        Some(Value::Object(fields)) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Whether the fields of a server were written by this program: an address is only ours without
/// others' additions.
fn is_our_block(fields: &Map<String, Value>, known: &KnownAddresses) -> bool {
    let field = |key: &str| fields.get(key).and_then(Value::as_str);
    match (field("cmd"), field("uri")) {
        (Some(cmd), _) => is_our_command(cmd),
        (None, Some(uri)) => {
            let plain = |key: &String| {
                OWN_YAML_KEYS.contains(&key.as_str()) || ["enabled", "timeout"].contains(&&**key)
            };
            known.contains(uri) && fields.keys().all(plain)
        }
        _ => false,
    }
}

/// Checks that only the server of this name differs between two texts.
fn check_yaml(before: &str, after: &str, name: &str) -> Result<(), EditError> {
    let read = |text: &str| -> Result<Value, EditError> {
        let mut value = Value::Object(parse_yaml(text)?);
        let key = YAML_SERVERS.trim_end_matches(':');
        let mut is_empty = value.get(key).is_some_and(Value::is_null);
        if let Some(Value::Object(servers)) = value.get_mut(key) {
            servers.remove(name);
            is_empty = servers.is_empty();
        }
        if let (true, Value::Object(map)) = (is_empty, &mut value) {
            map.remove(key);
        }
        Ok(value)
    };
    if read(before)? == read(after)? {
        return Ok(());
    }
    Err("is written in a way that is not understood".to_owned())
}

fn add_yaml(text: &str, name: &str, entry: &ServerEntry, known: &KnownAddresses) -> EditResult {
    let mut new = text.to_owned();
    if !new.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    let servers = find_yaml_servers(&new)?;
    let depth = servers.as_ref().map_or(2, |servers| servers.depth);
    match (find_yaml_entry(&new, name)?, servers) {
        (Some(range), _) => {
            let old = yaml_fields(&new, name)?;
            let reached = |fields: &Map<String, Value>| {
                ["cmd", "args", "uri"].map(|key| fields.get(key).cloned())
            };
            let mut added = old.clone();
            added.retain(|key, _| !OWN_YAML_KEYS.contains(&key.as_str()));
            if matches!(entry, ServerEntry::Address(_)) {
                added.remove("envs");
            }
            let text = yaml_entry(name, entry, &added, depth);
            let wanted = yaml_fields(&format!("{YAML_SERVERS}\n{text}"), name)?;
            if reached(&old) == reached(&wanted) {
                return Ok(None);
            }
            if !is_our_block(&old, known) {
                return Err(foreign(name));
            }
            new.replace_range(range, &text);
        }
        (None, Some(servers)) => {
            let text = yaml_entry(name, entry, &Map::new(), depth);
            new.insert_str(servers.start, &text);
        }
        (None, None) => {
            new.push_str(YAML_SERVERS);
            new.push('\n');
            new.push_str(&yaml_entry(name, entry, &Map::new(), depth));
        }
    }
    check_yaml(text, &new, name)?;
    Ok(Some(new))
}

fn remove_yaml(text: &str, name: &str, known: &KnownAddresses) -> EditResult {
    let Some(range) = find_yaml_entry(text, name)? else {
        return Ok(None);
    };
    if !is_our_block(&yaml_fields(text, name)?, known) {
        return Err(foreign(name));
    }
    let mut new = text.to_owned();
    new.replace_range(range, "");
    check_yaml(text, &new, name)?;
    Ok(Some(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> ServerEntry {
        ServerEntry::Program {
            command: "/opt/repertoire".to_owned(),
            args: vec!["mcp".to_owned()],
        }
    }

    /// The addresses that were connected.
    fn known() -> KnownAddresses {
        ["http://127.0.0.1:1/mcp", "http://127.0.0.1:2/mcp"]
            .into_iter()
            .collect()
    }

    const FORMS: [(ConfigForm, &str); 10] = [
        (
            ConfigForm::Json("mcpServers", EntryForm::Plain),
            "{\n  // mine\n  \"theme\": \"dark\",\n  \"mcpServers\": {\n    \"other\": {\"command\": \
             \"x\"}, // kept\n  },\n}\n",
        ),
        (ConfigForm::Json("mcpServers", EntryForm::Untyped), "{}"),
        (ConfigForm::Json("mcpServers", EntryForm::ServerUrl), ""),
        (
            ConfigForm::Json("mcpServers", EntryForm::Copilot),
            "{\"a\": 1}",
        ),
        (
            ConfigForm::Json("mcpServers", EntryForm::Cline),
            "{\n\t\"mcpServers\": {}\n}\n",
        ),
        (ConfigForm::Json("mcpServers", EntryForm::Kimi), "{}"),
        (
            ConfigForm::Json("mcp", EntryForm::OpenCode),
            "{\"$schema\": \"x\"}",
        ),
        (
            ConfigForm::Json("context_servers", EntryForm::Zed),
            "// Zed\n{}\n",
        ),
        (
            ConfigForm::Toml,
            "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"x\" # kept\n",
        ),
        (
            ConfigForm::Yaml,
            "# mine\nextensions:\n  other:\n    cmd: x # kept\n    enabled: true\nGOOSE_MODE: auto\n",
        ),
    ];

    #[test]
    fn a_server_is_added_once_and_removed_and_the_rest_stays() {
        for (form, before) in FORMS {
            for entry in [
                program(),
                ServerEntry::Address("http://127.0.0.1:1/mcp".to_owned()),
            ] {
                let added = form
                    .add_server(before, "repertoire", &entry, &known())
                    .unwrap()
                    .unwrap();
                assert!(added.contains("repertoire"), "{form:?}: {added}");
                let again = form
                    .add_server(&added, "repertoire", &entry, &known())
                    .unwrap();
                assert_eq!(again, None, "{form:?}: {added}");
                for line in before.lines().filter(|line| line.len() > 2) {
                    let word = line.trim().trim_matches(['{', '}', ',']);
                    assert!(added.contains(word), "{form:?}: {word} in {added}");
                }
                let removed = form
                    .remove_server(&added, "repertoire", &known())
                    .unwrap()
                    .unwrap();
                assert!(!removed.contains("repertoire"), "{form:?}: {removed}");
                assert_eq!(
                    form.remove_server(&removed, "repertoire", &known())
                        .unwrap(),
                    None
                );
                for kept in ["mine", "kept", "other"] {
                    assert_eq!(
                        before.contains(kept),
                        removed.contains(kept),
                        "{form:?}: {removed}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_entry_of_ours_is_replaced_and_one_of_others_refused() {
        for (form, _) in FORMS {
            let added = form.snippet("repertoire", &program()).unwrap();
            let other = ServerEntry::Address("http://127.0.0.1:2/mcp".to_owned());
            let changed = form
                .add_server(&added, "repertoire", &other, &known())
                .unwrap()
                .unwrap();
            assert!(changed.contains("127.0.0.1:2"), "{form:?}: {changed}");
            assert!(!changed.contains("/opt/"), "{form:?}: {changed}");
            let foreign = added.replace("/opt/repertoire", "/opt/another");
            assert!(
                form.add_server(&foreign, "repertoire", &program(), &known())
                    .is_err(),
                "{form:?}"
            );
            assert!(
                form.remove_server(&foreign, "repertoire", &known())
                    .is_err(),
                "{form:?}"
            );
        }
    }

    #[test]
    fn indentation_and_comments_of_yaml_stay() {
        for before in [
            "extensions:\n    other:\n        cmd: x\n",
            "extensions:\n  # my note\n  # off:\n  #   cmd: foo\n  other:\n    cmd: x\n",
            "extensions:\n  other:\n    cmd: x\n# about the mode\nGOOSE_MODE: auto\n",
            "# nothing yet\n",
            "GOOSE_MODE: auto\nextensions:\n",
        ] {
            let form = ConfigForm::Yaml;
            let added = form.add_server(before, "repertoire", &program(), &known());
            let added = added.unwrap().unwrap();
            let removed = form
                .remove_server(&added, "repertoire", &known())
                .unwrap()
                .unwrap();
            let rest = removed.strip_prefix(before).unwrap_or("?");
            assert!(
                rest.is_empty() || rest == "extensions:\n",
                "{before}\n{removed}"
            );
        }
    }

    #[test]
    fn what_the_user_added_stays_and_servers_of_others_are_not_ours() {
        let form = FORMS[1].0;
        let with_env = "{\"mcpServers\": {\"repertoire\": {\"command\": \"/old/repertoire\", \
                        \"args\": [\"mcp\"], \"env\": {\"KEY\": \"1\"}}}}";
        let added = form.add_server(with_env, "repertoire", &program(), &known());
        let added = added.unwrap().unwrap();
        assert!(
            added.contains("KEY") && added.contains("/opt/repertoire"),
            "{added}"
        );
        let theirs = "{\"mcpServers\": {\"repertoire\": {\"url\": \"https://x.test/mcp\", \
                      \"headers\": {\"Authorization\": \"Bearer s\"}}}}";
        assert!(
            form.add_server(theirs, "repertoire", &program(), &known())
                .is_err()
        );
        assert!(form.remove_server(theirs, "repertoire", &known()).is_err());
    }

    #[test]
    fn t45_servers_of_others_at_an_address_are_not_ours() {
        for (form, theirs) in [
            (
                FORMS[0].0,
                "{\"mcpServers\":{\"linear\":{\"type\":\"http\",\"url\":\"https://linear.test/mcp\"}}}",
            ),
            (
                ConfigForm::Toml,
                "[mcp_servers.linear]\nurl = \"https://linear.test/mcp\"\n\
                 bearer_token_env_var = \"LINEAR\"\n",
            ),
            (
                ConfigForm::Yaml,
                "extensions:\n  linear:\n    uri: https://linear.test/mcp\n    env_keys: [KEY]\n",
            ),
        ] {
            assert!(form.remove_server(theirs, "linear", &known()).is_err());
            let added = form.add_server(theirs, "linear", &program(), &known());
            assert!(added.is_err(), "{form:?}");
            // Not even one with a known address, if it has more than this program writes.
            let more = theirs.replace("https://linear.test/mcp", "http://127.0.0.1:1/mcp");
            let removed = form.remove_server(&more, "linear", &known());
            assert_eq!(
                removed.is_ok(),
                matches!(form, ConfigForm::Json(..)),
                "{form:?}"
            );
        }
    }

    #[test]
    fn additions_of_the_user_stay_in_yaml() {
        let old = "extensions:\n  repertoire:\n    cmd: /old/repertoire\n    args: [mcp]\n    envs: \
                   {\"MY_KEY\": \"1\"}\n    timeout: 999\n    enabled: false\n";
        let added = ConfigForm::Yaml.add_server(old, "repertoire", &program(), &known());
        let fields = yaml_fields(&added.unwrap().unwrap(), "repertoire").unwrap();
        assert_eq!(fields["envs"], json!({"MY_KEY": "1"}));
        assert_eq!(
            (&fields["timeout"], &fields["enabled"]),
            (&json!(999), &json!(false))
        );
        assert_eq!(fields["cmd"], "/opt/repertoire");
    }

    #[test]
    fn byte_order_marks_and_line_ends_stay() {
        let entry = program();
        let json = "\u{feff}{\r\n  \"mcpServers\": {}\r\n}\r\n";
        let toml = "a = 1\r\n[mcp_servers.other]\r\ncommand = \"x\"\r\n";
        for (form, text) in [(FORMS[0].0, json), (ConfigForm::Toml, toml)] {
            let added = form.add_server(text, "repertoire", &entry, &known());
            let added = added.unwrap().unwrap();
            assert_eq!(added.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
            assert_eq!(added.matches('\n').count(), added.matches("\r\n").count());
        }
        // A table in one line is a table.
        for text in [
            "mcp_servers = {}\n",
            "mcp_servers = { foo = { command = \"x\" } }\n",
        ] {
            let added = ConfigForm::Toml.add_server(text, "repertoire", &entry, &known());
            let added = added.unwrap().unwrap();
            assert!(added.contains("repertoire = "), "{added}");
            let removed = ConfigForm::Toml.remove_server(&added, "repertoire", &known());
            assert!(!removed.unwrap().unwrap().contains("repertoire"));
        }
    }

    #[test]
    fn a_text_that_is_not_understood_is_refused() {
        for (form, text) in [
            (FORMS[0].0, "{\"mcpServers\": []}"),
            (FORMS[0].0, "[1]"),
            (FORMS[0].0, "{\"a\": "),
            (ConfigForm::Toml, "mcp_servers = 1"),
            (ConfigForm::Toml, "a = "),
            (ConfigForm::Yaml, "extensions: {}\n"),
            (ConfigForm::Yaml, "a: b: c\n"),
        ] {
            assert!(
                form.add_server(text, "repertoire", &program(), &known())
                    .is_err(),
                "{text}"
            );
        }
    }
}
