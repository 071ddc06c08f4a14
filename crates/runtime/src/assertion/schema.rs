//! Untrusted JSON schemas: inspected first, compiled without external references, with limits.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// The maximum bytes of a schema.
const MAX_SCHEMA: usize = 64 * 1024;
/// The maximum nesting depth of a schema.
const MAX_DEPTH: usize = 32;
/// The maximum number of subschemas, counted along every reference.
const MAX_PLACES: u64 = 20_000;
/// The maximum bytes of a compiled pattern.
const MAX_PATTERN: usize = 256 * 1024;
/// How many violations of an output are reported.
const MAX_REPORTED: usize = 3;

/// Compiles a schema.
pub(super) fn compile_schema(schema: &Value) -> Result<Validator, String> {
    let size = schema.to_string().len();
    if size > MAX_SCHEMA {
        return Err(format!("`schema` has {size} bytes: at most {MAX_SCHEMA}"));
    }
    if nesting_depth(schema) > MAX_DEPTH {
        return Err(format!("`schema` nests deeper than {MAX_DEPTH}"));
    }
    check_references(schema)?;
    let mut known = HashMap::new();
    if count_places(schema, schema, &mut known, &mut Vec::new()) > MAX_PLACES {
        return Err("`schema` leads to too many places".to_owned());
    }
    jsonschema::options()
        .offline()
        .with_pattern_options(
            PatternOptions::regex()
                .size_limit(MAX_PATTERN)
                .dfa_size_limit(MAX_PATTERN),
        )
        .build(schema)
        .map_err(|error| format!("`schema` cannot be used: {}", error.masked()))
}

fn nesting_depth(value: &Value) -> usize {
    // The JSON parser limits the depth, so this recursion is bounded.
    match value {
        Value::Array(items) => 1 + items.iter().map(nesting_depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(nesting_depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Checks that a schema refers to no other document.
fn check_references(schema: &Value) -> Result<(), String> {
    match schema {
        Value::Array(items) => items.iter().try_for_each(check_references),
        Value::Object(fields) => {
            for (name, value) in fields {
                let own = value.as_str().is_none_or(|to| to.starts_with('#'));
                match name.as_str() {
                    "$ref" if !own => {
                        return Err("`schema` refers to another document".to_owned());
                    }
                    "$dynamicRef" | "$recursiveRef" | "$id" if value.is_string() => {
                        return Err(format!("`schema` uses {name}, which is not available"));
                    }
                    _ => check_references(value)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Counts the subschemas along every reference; a cycle counts once.
fn count_places<'a>(
    root: &'a Value,
    schema: &'a Value,
    known: &mut HashMap<&'a str, u64>,
    way: &mut Vec<&'a str>,
) -> u64 {
    let inner = |items: &mut dyn Iterator<Item = &'a Value>,
                 known: &mut HashMap<&'a str, u64>,
                 way: &mut Vec<&'a str>| {
        items.fold(1u64, |sum, item| {
            sum.saturating_add(count_places(root, item, known, way))
        })
    };
    match schema {
        Value::Array(items) => inner(&mut items.iter(), known, way),
        Value::Object(fields) => {
            let mut sum = inner(&mut fields.values(), known, way);
            if let Some(to) = fields.get("$ref").and_then(Value::as_str) {
                let pointer = to.trim_start_matches('#');
                if let Some(found) = known.get(to) {
                    sum = sum.saturating_add(*found);
                } else if !way.contains(&to) && way.len() < 512 {
                    way.push(to);
                    let there = root.pointer(pointer).unwrap_or(&Value::Null);
                    let found = count_places(root, there, known, way);
                    way.pop();
                    known.insert(to, found);
                    sum = sum.saturating_add(found);
                }
            }
            sum
        }
        _ => 1,
    }
}

/// Parses an output as JSON, with or without a Markdown code fence.
pub fn parse_json_output(output: &str) -> Option<Value> {
    let text = output.trim();
    let fenced = text.strip_prefix("```").and_then(|rest| {
        let (_, rest) = rest.split_once('\n')?;
        rest.trim_end().strip_suffix("```")
    });
    let text = fenced.unwrap_or(text).trim();
    let parsed = repertoire_core::json::from_str(text);
    parsed.ok().or_else(|| {
        let repaired = replace_lone_surrogates(text)?;
        repertoire_core::json::from_str(&repaired).ok()
    })
}

/// Replaces escapes of half a character, which a model writes if a limit of its text cuts an emoji in
/// two. Returns `None` if there are none.
fn replace_lone_surrogates(text: &str) -> Option<String> {
    let escape_at = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut repaired = String::with_capacity(text.len());
    let (mut at, mut has_changed) = (0, false);
    while let Some(next) = text[at..].chars().next() {
        let mut length = next.len_utf8();
        if next == '\\' {
            length = match (escape_at(at), escape_at(at + 6)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                (Some(0xD800..=0xDFFF), _) => {
                    repaired.push('\u{FFFD}');
                    has_changed = true;
                    at += 6;
                    continue;
                }
                (Some(_), _) => 6,
                // The escaped character may be a backslash.
                (None, _) => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
            };
        }
        repaired.push_str(&text[at..at + length]);
        at += length;
    }
    has_changed.then_some(repaired)
}

/// Checks an output; reports where it does not match without repeating its text.
pub(super) fn check_output(validator: &Validator, output: &str) -> Result<(), String> {
    let Some(value) = parse_json_output(output) else {
        return Err("the output is not JSON".to_owned());
    };
    if validator.is_valid(&value) {
        return Ok(());
    }
    let faults: Vec<String> = validator
        .iter_errors(&value)
        .take(MAX_REPORTED)
        .map(|error| {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "/" } else { &place };
            format!(
                "{place}: {}",
                repertoire_core::markdown::truncate_text(&error.masked().to_string(), 200)
            )
        })
        .collect();
    Err(faults.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn half_characters_of_a_model_are_replaced() {
        for (text, expected) in [
            (r#"{"a":"x\ud83d"}"#, "x\u{FFFD}"),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, "\u{FFFD}\u{1F600}"),
            (r#"{"a":"\ude00é"}"#, "\u{FFFD}é"),
            (r#"{"a":"\\ud83d"}"#, "\\ud83d"),
            (r#"{"a":"\\\ud83d\"\n"}"#, "\\\u{FFFD}\"\n"),
        ] {
            assert_eq!(
                parse_json_output(text),
                Some(json!({"a": expected})),
                "{text}"
            );
        }
        for text in [r#"{"a":"\ud8"#, r#"{"a":"\"#, r#"{"a":"\ud83d"#, "\\"] {
            assert_eq!(parse_json_output(text), None, "{text}");
        }
    }
}
