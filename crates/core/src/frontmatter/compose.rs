//! Builds fields from YAML events and charges every node and copy against a budget.

use std::{borrow::Cow, collections::BTreeMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use serde_json::{Number, Value};

use super::{AmbiguousYaml, Frontmatter, FrontmatterField, MAX_BYTES, UnsupportedYaml};
use crate::error::{Error, Result};

const MAX_DEPTH: usize = 16;
const MAX_ALIASES: usize = 32;

/// A node read from the event stream.
struct YamlNode {
    value: Value,
    text: Option<String>,
    line: usize,
    column: usize,
    is_mapping: bool,
    child_lines: Vec<usize>,
    /// Nodes beneath and including this one, for the alias budget.
    weight: usize,
}

/// A node that aliases can repeat, with the cost of a copy.
struct AnchoredNode {
    value: Value,
    text: Option<String>,
    weight: usize,
    bytes: usize,
}

pub(super) struct Composer<'a> {
    yaml: &'a str,
    first_line: usize,
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, AnchoredNode>,
    /// Number of lines of the YAML.
    lines: usize,
    /// Bytes that aliases added so far.
    copied: usize,
    /// Position of the last character lookup, in characters and in bytes.
    cursor: (usize, usize),
    aliases: usize,
    nodes: usize,
    max_nodes: usize,
    unsupported_yaml: Vec<(usize, UnsupportedYaml)>,
    ambiguous_yaml: Vec<(usize, AmbiguousYaml)>,
    /// The line of the last scalar, if it ends with a line break.
    last_line_break: Option<usize>,
}

impl<'a> Composer<'a> {
    pub(super) fn new(yaml: &'a str, first_line: usize, max_nodes: usize) -> Self {
        Self {
            yaml,
            first_line,
            parser: Parser::new_from_str(yaml),
            anchors: BTreeMap::new(),
            lines: yaml.lines().count().max(1),
            copied: 0,
            cursor: (0, 0),
            aliases: 0,
            nodes: 0,
            max_nodes,
            unsupported_yaml: Vec::new(),
            ambiguous_yaml: Vec::new(),
            last_line_break: None,
        }
    }

    fn document_line(&self, mark: Marker) -> usize {
        // The parser counts from 1; a mark past the end belongs to the last line.
        self.first_line + mark.line().clamp(1, self.lines) - 1
    }

    fn yaml_error<T>(&self, mark: Marker, rule: impl Into<String>) -> Result<T> {
        Err(Error::Frontmatter {
            line: self.document_line(mark),
            rule: rule.into(),
        })
    }

    fn syntax_error<T>(&self, mark: Marker, rule: impl Into<String>) -> Result<T> {
        Err(Error::FrontmatterSyntax {
            line: self.document_line(mark),
            rule: rule.into(),
        })
    }

    fn next_event(&mut self) -> Result<(Event<'a>, Marker)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start)),
            Some(Err(error)) => {
                let mark = *error.marker();
                if error.info().contains("recursion limit") {
                    return Err(Error::FrontmatterBudget {
                        line: self.document_line(mark),
                        rule: format!("nested deeper than {MAX_DEPTH} levels"),
                    });
                }
                self.syntax_error(mark, format!("not valid YAML: {}", error.info()))
            }
            None => Err(Error::FrontmatterSyntax {
                line: self.first_line,
                rule: "not valid YAML: ended early".to_owned(),
            }),
        }
    }

    pub(super) fn compose(mut self) -> Result<Frontmatter> {
        let not_mapping = "must be a mapping of fields such as `name: …`";
        loop {
            match self.next_event()? {
                (Event::MappingStart(_, tag), mark) => {
                    if tag.is_some() {
                        return self.yaml_error(mark, "tags are not allowed");
                    }
                    self.note_flow(mark);
                    let fields = self.read_mapping(1)?.0;
                    self.expect_stream_end()?;
                    if let Some(line) = self.last_line_break {
                        self.ambiguous_yaml
                            .push((line, AmbiguousYaml::LastLineBreak));
                    }
                    return Ok(Frontmatter {
                        fields,
                        unsupported_yaml: self.unsupported_yaml,
                        ambiguous_yaml: self.ambiguous_yaml,
                    });
                }
                (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
                (_, mark) => return self.syntax_error(mark, not_mapping),
            }
        }
    }

    /// Checks that nothing follows the document.
    fn expect_stream_end(&mut self) -> Result<()> {
        loop {
            match self.next_event()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, mark) => return self.yaml_error(mark, "must be a single YAML document"),
            }
        }
    }

    /// Reads the entries of a mapping after its start event; also returns its node count.
    fn read_mapping(&mut self, depth: usize) -> Result<(Vec<FrontmatterField>, usize)> {
        let mut fields: Vec<FrontmatterField> = Vec::new();
        let mut weight = 1;
        let mut child_column = None;
        loop {
            let (event, mark) = self.next_event()?;
            if matches!(event, Event::MappingEnd) {
                return Ok((fields, weight));
            }
            let key = self.read_node(event, mark, depth)?;
            let Some(key_text) = key.text else {
                return self.yaml_error(mark, "a key must be plain text");
            };
            if key_text == crate::json::RESERVED {
                return self.yaml_error(mark, format!("the key `{key_text}` is reserved"));
            }
            if fields.iter().any(|f| f.key == key_text) {
                return self.yaml_error(mark, format!("duplicate key `{key_text}`"));
            }
            let (event, value_mark) = self.next_event()?;
            let value = self.read_node(event, value_mark, depth)?;
            weight += key.weight + value.weight;
            if self.last_line_break == Some(value.line) {
                // The block begins after its key.
                self.last_line_break = Some(key.line);
            }
            if value.is_mapping && *child_column.get_or_insert(value.column) != value.column {
                self.unsupported_yaml
                    .push((value.line, UnsupportedYaml::Indentation));
            }
            fields.push(FrontmatterField {
                key: key_text,
                line: key.line,
                value: value.value,
                text: value.text,
                child_lines: value.child_lines,
            });
        }
    }

    fn read_node(&mut self, event: Event<'a>, mark: Marker, depth: usize) -> Result<YamlNode> {
        let line = self.document_line(mark);
        self.charge_nodes(1, line)?;
        if depth > MAX_DEPTH {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("nested deeper than {MAX_DEPTH} levels"),
            });
        }
        let node = |value, text, is_mapping, weight| YamlNode {
            value,
            text,
            line,
            column: mark.col(),
            is_mapping,
            child_lines: Vec::new(),
            weight,
        };
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_properties(anchor, tag.is_some(), mark)?;
                let value = parse_scalar(&text, style);
                if style == ScalarStyle::Plain && value.is_string() && is_yaml_11_value(&text) {
                    self.ambiguous_yaml
                        .push((line, AmbiguousYaml::Yaml11Scalar));
                }
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                let has_break = is_block && text.ends_with('\n');
                self.last_line_break = has_break.then_some(line);
                let text = text.into_owned();
                self.store_anchor(anchor, &value, Some(&text), 1, mark)?;
                Ok(node(value, Some(text), false, 1))
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_properties(anchor, tag.is_some(), mark)?;
                self.note_flow(mark);
                let mut items = Vec::new();
                let mut weight = 1;
                loop {
                    let (event, mark) = self.next_event()?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    let item = self.read_node(event, mark, depth + 1)?;
                    weight += item.weight;
                    items.push(item.value);
                }
                let value = Value::Array(items);
                self.store_anchor(anchor, &value, None, weight, mark)?;
                Ok(node(value, None, false, weight))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_properties(anchor, tag.is_some(), mark)?;
                self.note_flow(mark);
                let (fields, weight) = self.read_mapping(depth + 1)?;
                let child_lines = fields.iter().map(|f| f.line).collect();
                let value = Value::Object(fields.into_iter().map(|f| (f.key, f.value)).collect());
                self.store_anchor(anchor, &value, None, weight, mark)?;
                Ok(YamlNode {
                    child_lines,
                    ..node(value, None, true, weight)
                })
            }
            Event::Alias(anchor) => {
                self.unsupported_yaml.push((line, UnsupportedYaml::Anchor));
                self.aliases += 1;
                if self.aliases > MAX_ALIASES {
                    return Err(Error::FrontmatterBudget {
                        line,
                        rule: format!("more than {MAX_ALIASES} aliases"),
                    });
                }
                // Charge the budget before the copy is made.
                let Some(found) = self.anchors.get(&anchor) else {
                    return self.yaml_error(mark, "an alias must follow its anchor");
                };
                let (weight, bytes) = (found.weight, found.bytes);
                self.charge_nodes(weight, line)?;
                self.charge_copied_bytes(bytes, line)?;
                match self.anchors.get(&anchor) {
                    Some(found) => Ok(node(
                        found.value.clone(),
                        found.text.clone(),
                        found.value.is_object(),
                        weight,
                    )),
                    None => self.yaml_error(mark, "an alias must follow its anchor"),
                }
            }
            _ => self.yaml_error(mark, "not valid YAML here"),
        }
    }

    /// Stores a node for aliases; the stored copy counts against the same budget.
    fn store_anchor(
        &mut self,
        anchor: usize,
        value: &Value,
        text: Option<&String>,
        weight: usize,
        mark: Marker,
    ) -> Result<()> {
        if anchor == 0 {
            return Ok(());
        }
        let bytes = estimate_size(value);
        self.charge_copied_bytes(bytes, self.document_line(mark))?;
        let kept = AnchoredNode {
            value: value.clone(),
            text: text.cloned(),
            weight,
            bytes,
        };
        self.anchors.insert(anchor, kept);
        Ok(())
    }

    fn charge_copied_bytes(&mut self, bytes: usize, line: usize) -> Result<()> {
        self.copied += bytes;
        if self.copied > 2 * MAX_BYTES {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("aliases repeat more than {} bytes", 2 * MAX_BYTES),
            });
        }
        Ok(())
    }

    fn charge_nodes(&mut self, weight: usize, line: usize) -> Result<()> {
        self.nodes += weight;
        if self.nodes > self.max_nodes {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("more than {} values", self.max_nodes),
            });
        }
        Ok(())
    }

    fn check_properties(&mut self, anchor: usize, tagged: bool, mark: Marker) -> Result<()> {
        if tagged {
            return self.yaml_error(mark, "tags are not allowed");
        }
        if anchor != 0 {
            let line = self.document_line(mark);
            self.unsupported_yaml.push((line, UnsupportedYaml::Anchor));
        }
        Ok(())
    }

    fn note_flow(&mut self, mark: Marker) {
        // Marks count characters and arrive in order, so the search resumes where it ended.
        let (mut characters, mut bytes) = self.cursor;
        if mark.index() < characters {
            (characters, bytes) = (0, 0);
        }
        let skip = mark.index() - characters;
        let rest = self.yaml.get(bytes..).unwrap_or_default();
        let found = rest.char_indices().nth(skip);
        if let Some((at, _)) = found {
            self.cursor = (mark.index(), bytes + at);
        }
        if matches!(found, Some((_, '{' | '['))) {
            let line = self.document_line(mark);
            self.unsupported_yaml.push((line, UnsupportedYaml::Flow));
        }
    }
}

/// Whether readers of YAML 1.1 take a text without quotes for a date, a truth value or a number.
fn is_yaml_11_value(text: &str) -> bool {
    if matches!(
        text,
        "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "on" | "On" | "ON" | "off" | "Off" | "OFF"
    ) {
        return true;
    }
    let bytes = text.as_bytes();
    let digits = |from: usize, to: usize| {
        bytes
            .get(from..to)
            .is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit))
    };
    // 2025-10-20, alone or with a time.
    let is_date = digits(0, 4) && bytes.get(4) == Some(&b'-') && digits(5, 6);
    if is_date {
        let rest = bytes.get(5..).unwrap_or_default();
        let parts: Vec<&[u8]> = rest.splitn(2, |byte| *byte == b'-').collect();
        return parts.len() == 2 && parts[1].first().is_some_and(u8::is_ascii_digit);
    }
    // 12:30:45 in base 60, 1_000 and 0b101.
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = |extra: &[char]| {
        unsigned.starts_with(|c: char| c.is_ascii_digit())
            && unsigned.contains(extra)
            && unsigned
                .chars()
                .all(|c| c.is_ascii_digit() || c == '.' || extra.contains(&c))
    };
    is_number(&[':']) || is_number(&['_']) || unsigned.starts_with("0b")
}

/// Estimates how many bytes a copy of a value takes.
fn estimate_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => items.iter().map(estimate_size).sum::<usize>() + 8,
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| key.len() + 8 + estimate_size(value);
            map.iter().map(entry).sum::<usize>() + 8
        }
    }
}

/// Types a scalar by the YAML 1.2 core schema.
fn parse_scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => parse_number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

/// Parses a number that JSON can represent; `.inf` and `.nan` stay text.
fn parse_number(text: &str) -> Option<Number> {
    let radix = |digits: &str, radix| {
        u64::from_str_radix(digits, radix)
            .ok()
            .filter(|_| !digits.starts_with('+'))
            .map(Number::from)
    };
    if let Some(digits) = text.strip_prefix("0x") {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return radix(digits, 8);
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let starts_numeric = unsigned
        .strip_prefix('.')
        .unwrap_or(unsigned)
        .starts_with(|c: char| c.is_ascii_digit());
    let shaped = unsigned
        .bytes()
        .all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
    if !starts_numeric || !shaped {
        return None;
    }
    let plain: Cow<'_, str> = text.strip_prefix('+').unwrap_or(text).into();
    if let Ok(n) = plain.parse::<i64>() {
        return Some(n.into());
    }
    if let Ok(n) = plain.parse::<u64>() {
        return Some(n.into());
    }
    plain.parse::<f64>().ok().and_then(Number::from_f64)
}
