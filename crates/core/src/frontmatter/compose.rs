//! From YAML events to fields, paying for every node and every copy as it comes.

use std::{borrow::Cow, collections::BTreeMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};
use serde_json::{Number, Value};

use super::{Field, Frontmatter, MAX_BYTES, Oddity};
use crate::error::{Error, Result};

const MAX_DEPTH: usize = 16;
const MAX_NODES: usize = 4096;
const MAX_ALIASES: usize = 32;

/// A node read from the event stream.
struct Node {
    value: Value,
    text: Option<String>,
    line: usize,
    column: usize,
    is_mapping: bool,
    child_lines: Vec<usize>,
    /// Nodes beneath and including this one, for the alias budget.
    weight: usize,
}

/// A node that aliases can repeat, with what a copy of it costs.
struct Anchor {
    value: Value,
    text: Option<String>,
    weight: usize,
    bytes: usize,
}

pub(super) struct Composer<'a> {
    yaml: &'a str,
    first_line: usize,
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    anchors: BTreeMap<usize, Anchor>,
    /// How many lines there are.
    lines: usize,
    /// Bytes that aliases added so far.
    copied: usize,
    /// Where the last character was looked for: characters and bytes.
    place: (usize, usize),
    aliases: usize,
    nodes: usize,
    oddities: Vec<(usize, Oddity)>,
}

impl<'a> Composer<'a> {
    pub(super) fn new(yaml: &'a str, first_line: usize) -> Self {
        Self {
            yaml,
            first_line,
            parser: Parser::new_from_str(yaml),
            anchors: BTreeMap::new(),
            lines: yaml.lines().count().max(1),
            copied: 0,
            place: (0, 0),
            aliases: 0,
            nodes: 0,
            oddities: Vec::new(),
        }
    }

    fn line(&self, mark: Marker) -> usize {
        // The parser counts from 1; a mark past the end belongs to the last line.
        self.first_line + mark.line().clamp(1, self.lines) - 1
    }

    fn refuse<T>(&self, mark: Marker, rule: impl Into<String>) -> Result<T> {
        Err(Error::Frontmatter {
            line: self.line(mark),
            rule: rule.into(),
        })
    }

    fn next(&mut self) -> Result<(Event<'a>, Marker)> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start)),
            Some(Err(error)) => {
                let mark = *error.marker();
                if error.info().contains("recursion limit") {
                    return Err(Error::FrontmatterBudget {
                        line: self.line(mark),
                        rule: format!("nested deeper than {MAX_DEPTH} levels"),
                    });
                }
                self.refuse(mark, format!("not valid YAML: {}", error.info()))
            }
            None => Err(Error::Frontmatter {
                line: self.first_line,
                rule: "not valid YAML: ended early".to_owned(),
            }),
        }
    }

    pub(super) fn compose(mut self) -> Result<Frontmatter> {
        let not_mapping = "must be a mapping of fields such as `name: …`";
        loop {
            match self.next()? {
                (Event::MappingStart(_, tag), mark) => {
                    if tag.is_some() {
                        return self.refuse(mark, "tags are not allowed");
                    }
                    self.note_flow(mark);
                    let fields = self.mapping(1)?.0;
                    self.finish()?;
                    return Ok(Frontmatter {
                        fields,
                        oddities: self.oddities,
                    });
                }
                (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
                (_, mark) => return self.refuse(mark, not_mapping),
            }
        }
    }

    /// After the one document nothing may follow.
    fn finish(&mut self) -> Result<()> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(()),
                (Event::DocumentEnd, _) => {}
                (_, mark) => return self.refuse(mark, "must be a single YAML document"),
            }
        }
    }

    /// Reads the entries of a mapping whose start was read; also says how heavy it is.
    fn mapping(&mut self, depth: usize) -> Result<(Vec<Field>, usize)> {
        let mut fields: Vec<Field> = Vec::new();
        let mut weight = 1;
        let mut child_column = None;
        loop {
            let (event, mark) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok((fields, weight));
            }
            let key = self.node(event, mark, depth)?;
            let Some(key_text) = key.text else {
                return self.refuse(mark, "a key must be plain text");
            };
            if key_text == crate::json::RESERVED {
                return self.refuse(mark, format!("the key `{key_text}` is reserved"));
            }
            if fields.iter().any(|f| f.key == key_text) {
                return self.refuse(mark, format!("duplicate key `{key_text}`"));
            }
            let (event, value_mark) = self.next()?;
            let value = self.node(event, value_mark, depth)?;
            weight += key.weight + value.weight;
            if value.is_mapping && *child_column.get_or_insert(value.column) != value.column {
                self.oddities.push((value.line, Oddity::Indentation));
            }
            fields.push(Field {
                key: key_text,
                line: key.line,
                value: value.value,
                text: value.text,
                child_lines: value.child_lines,
            });
        }
    }

    fn node(&mut self, event: Event<'a>, mark: Marker, depth: usize) -> Result<Node> {
        let line = self.line(mark);
        self.spend(1, line)?;
        if depth > MAX_DEPTH {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("nested deeper than {MAX_DEPTH} levels"),
            });
        }
        let node = |value, text, is_mapping, weight| Node {
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
                self.check(anchor, tag.is_some(), mark)?;
                let value = scalar(&text, style);
                let text = text.into_owned();
                self.keep(anchor, &value, Some(&text), 1, mark)?;
                Ok(node(value, Some(text), false, 1))
            }
            Event::SequenceStart(anchor, tag) => {
                self.check(anchor, tag.is_some(), mark)?;
                self.note_flow(mark);
                let mut items = Vec::new();
                let mut weight = 1;
                loop {
                    let (event, mark) = self.next()?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    let item = self.node(event, mark, depth + 1)?;
                    weight += item.weight;
                    items.push(item.value);
                }
                let value = Value::Array(items);
                self.keep(anchor, &value, None, weight, mark)?;
                Ok(node(value, None, false, weight))
            }
            Event::MappingStart(anchor, tag) => {
                self.check(anchor, tag.is_some(), mark)?;
                self.note_flow(mark);
                let (fields, weight) = self.mapping(depth + 1)?;
                let child_lines = fields.iter().map(|f| f.line).collect();
                let value = Value::Object(fields.into_iter().map(|f| (f.key, f.value)).collect());
                self.keep(anchor, &value, None, weight, mark)?;
                Ok(Node {
                    child_lines,
                    ..node(value, None, true, weight)
                })
            }
            Event::Alias(anchor) => {
                self.oddities.push((line, Oddity::Anchor));
                self.aliases += 1;
                if self.aliases > MAX_ALIASES {
                    return Err(Error::FrontmatterBudget {
                        line,
                        rule: format!("more than {MAX_ALIASES} aliases"),
                    });
                }
                // The price is paid before the copy is made.
                let Some(found) = self.anchors.get(&anchor) else {
                    return self.refuse(mark, "an alias must follow its anchor");
                };
                let (weight, bytes) = (found.weight, found.bytes);
                self.spend(weight, line)?;
                self.copy(bytes, line)?;
                match self.anchors.get(&anchor) {
                    Some(found) => Ok(node(
                        found.value.clone(),
                        found.text.clone(),
                        found.value.is_object(),
                        weight,
                    )),
                    None => self.refuse(mark, "an alias must follow its anchor"),
                }
            }
            _ => self.refuse(mark, "not valid YAML here"),
        }
    }

    /// Remembers a node for aliases; the copy kept for them counts like theirs.
    fn keep(
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
        let bytes = size_of_value(value);
        self.copy(bytes, self.line(mark))?;
        let kept = Anchor {
            value: value.clone(),
            text: text.cloned(),
            weight,
            bytes,
        };
        self.anchors.insert(anchor, kept);
        Ok(())
    }

    fn copy(&mut self, bytes: usize, line: usize) -> Result<()> {
        self.copied += bytes;
        if self.copied > 2 * MAX_BYTES {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("aliases repeat more than {} bytes", 2 * MAX_BYTES),
            });
        }
        Ok(())
    }

    fn spend(&mut self, weight: usize, line: usize) -> Result<()> {
        self.nodes += weight;
        if self.nodes > MAX_NODES {
            return Err(Error::FrontmatterBudget {
                line,
                rule: format!("more than {MAX_NODES} values"),
            });
        }
        Ok(())
    }

    fn check(&mut self, anchor: usize, tagged: bool, mark: Marker) -> Result<()> {
        if tagged {
            return self.refuse(mark, "tags are not allowed");
        }
        if anchor != 0 {
            let line = self.line(mark);
            self.oddities.push((line, Oddity::Anchor));
        }
        Ok(())
    }

    fn note_flow(&mut self, mark: Marker) {
        // Marks count characters and come in order, so the search goes on where it ended.
        let (mut characters, mut bytes) = self.place;
        if mark.index() < characters {
            (characters, bytes) = (0, 0);
        }
        let skip = mark.index() - characters;
        let rest = self.yaml.get(bytes..).unwrap_or_default();
        let found = rest.char_indices().nth(skip);
        if let Some((at, _)) = found {
            self.place = (mark.index(), bytes + at);
        }
        if matches!(found, Some((_, '{' | '['))) {
            let line = self.line(mark);
            self.oddities.push((line, Oddity::Flow));
        }
    }
}

/// About how many bytes a copy of a value takes.
fn size_of_value(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 8,
        Value::Array(items) => items.iter().map(size_of_value).sum::<usize>() + 8,
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| key.len() + 8 + size_of_value(value);
            map.iter().map(entry).sum::<usize>() + 8
        }
    }
}

/// Types a scalar by the YAML 1.2 core schema.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

/// A number JSON can hold; `.inf` and `.nan` stay the text they are.
fn number(text: &str) -> Option<Number> {
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
