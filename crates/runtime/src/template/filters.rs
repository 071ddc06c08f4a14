//! The filters, tests and functions of templates, with bounded results.

use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind, Value, value::Serde, value::ValueKind};

use super::MAX_OUTPUT;
use crate::workspace::Workspace;

type FilterResult<T> = Result<T, Error>;

fn filter_error(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Converts a scalar value to text.
fn to_text(value: &Value) -> FilterResult<String> {
    match value.kind() {
        ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None => {
            Ok(value.to_string())
        }
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        kind => Err(filter_error(format!("takes a text, not a {kind}"))),
    }
}

fn check_output_size(text: String) -> FilterResult<String> {
    if text.len() > MAX_OUTPUT {
        return Err(filter_error(format!("gives more than {MAX_OUTPUT} bytes")));
    }
    Ok(text)
}

fn to_items(value: &Value) -> FilterResult<Vec<Value>> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    value.try_iter().map(Iterator::collect)
}

fn to_json_text(value: &Value) -> FilterResult<String> {
    let json = serde_json::to_string(value);
    check_output_size(
        json.map_err(|error| filter_error(format!("cannot be written as JSON: {error}")))?,
    )
}

fn join(value: &Value, between: Option<String>) -> FilterResult<String> {
    let between = between.unwrap_or_default();
    let mut out = String::new();
    for (at, item) in to_items(value)?.iter().enumerate() {
        if at > 0 {
            out.push_str(&between);
        }
        out.push_str(&to_text(item)?);
        if out.len() > MAX_OUTPUT {
            return check_output_size(out);
        }
    }
    Ok(out)
}

fn replace(value: &Value, from: &str, to: &str) -> FilterResult<String> {
    let value = to_text(value)?;
    if from.is_empty() {
        return Err(filter_error(
            "replace: the text to replace must be non-empty",
        ));
    }
    let found = value.matches(from).count();
    if value.len().saturating_add(found.saturating_mul(to.len())) > MAX_OUTPUT {
        return Err(filter_error(format!("gives more than {MAX_OUTPUT} bytes")));
    }
    Ok(value.replace(from, to))
}

fn indent(value: &Value, width: Option<usize>) -> FilterResult<String> {
    let width = width.unwrap_or(4).min(64);
    let value = to_text(value)?;
    let mut lines = value.split('\n');
    let mut out = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        out.push('\n');
        if !line.is_empty() {
            out.push_str(&" ".repeat(width));
        }
        out.push_str(line);
    }
    check_output_size(out)
}

fn truncate(value: &Value, most: usize) -> FilterResult<String> {
    Ok(repertoire_core::markdown::truncate_text(
        &to_text(value)?,
        most,
    ))
}

fn capitalize(value: &Value) -> FilterResult<String> {
    let value = to_text(value)?;
    let mut chars = value.chars();
    Ok(chars.next().map_or_else(String::new, |first| {
        first
            .to_uppercase()
            .chain(chars.flat_map(char::to_lowercase))
            .collect()
    }))
}

fn length(value: &Value) -> FilterResult<usize> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    value.len().ok_or_else(|| filter_error("has no length"))
}

fn sort_items(value: &Value) -> FilterResult<Vec<Value>> {
    let mut all: Vec<(String, Value)> = to_items(value)?
        .into_iter()
        .map(|item| Ok((to_text(&item)?, item)))
        .collect::<FilterResult<_>>()?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all.into_iter().map(|(_, item)| item).collect())
}

fn key_value_pairs(value: &Value) -> FilterResult<Vec<Value>> {
    let keys = to_items(value)?;
    keys.into_iter()
        .map(|key| {
            let item = value.get_item(&key)?;
            Ok(Value::from(vec![key, item]))
        })
        .collect()
}

fn default_value(value: &Value, other: Option<Value>) -> Value {
    if value.is_undefined() {
        other.unwrap_or_else(|| Value::from(""))
    } else {
        value.clone()
    }
}

pub(super) fn add_filters(environment: &mut Environment<'static>) {
    for name in ["default", "d"] {
        environment.add_filter(name, default_value);
    }
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_filter("upper", |value: &Value| {
        to_text(value).map(|t| t.to_uppercase())
    });
    environment.add_filter("lower", |value: &Value| {
        to_text(value).map(|t| t.to_lowercase())
    });
    environment.add_filter("trim", |value: &Value| {
        to_text(value).map(|t| t.trim().to_owned())
    });
    environment.add_filter("string", to_text);
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("join", join);
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("tojson", to_json_text);
    environment.add_filter("sort", sort_items);
    environment.add_filter("items", key_value_pairs);
    environment.add_filter("first", |value: &Value| {
        to_items(value).map(|all| all.first().cloned().unwrap_or_default())
    });
    environment.add_filter("last", |value: &Value| {
        to_items(value).map(|all| all.last().cloned().unwrap_or_default())
    });
    environment.add_test("defined", |value: &Value| !value.is_undefined());
    environment.add_test("undefined", |value: &Value| value.is_undefined());
    environment.add_test("none", |value: &Value| value.is_none());
    for (name, wanted) in [
        ("string", ValueKind::String),
        ("number", ValueKind::Number),
        ("mapping", ValueKind::Map),
        ("sequence", ValueKind::Seq),
    ] {
        environment.add_test(name, move |value: &Value| value.kind() == wanted);
    }
    environment.add_function("range", |end: usize| {
        if end > 1000 {
            return Err(filter_error("range: at most 1000"));
        }
        Ok((0..end).map(Value::from).collect::<Vec<_>>())
    });
}

/// The maximum characters of a page in a template.
const PAGE_CHARS: usize = 8_000;

pub(super) fn add_workspace_functions(
    environment: &mut Environment<'static>,
    workspace: Option<&Arc<dyn Workspace>>,
) {
    let failed = |error: crate::Error| filter_error(error.to_string());
    let asked = workspace.cloned();
    let there = move || {
        asked
            .clone()
            .ok_or_else(|| filter_error(crate::error::NO_PAGES))
    };
    let place = there.clone();
    environment.add_function("search", move |query: &str, limit: Option<usize>| {
        let workspace = place()?;
        let limit = limit.unwrap_or(5).min(50);
        let mut found = Vec::new();
        for hit in workspace.search_pages(query, limit).map_err(failed)? {
            let page = workspace.find_page(&hit.slug).map_err(failed)?;
            found.extend(page.map(|mut page| {
                page.text = repertoire_core::markdown::truncate_text(&page.text, PAGE_CHARS);
                Value::from(Serde(page))
            }));
        }
        Ok(found)
    });
    environment.add_function("page", move |slug: &str| {
        let page = there()?.find_page(slug).map_err(failed)?;
        Ok::<_, Error>(page.map_or_else(Value::default, |page| Value::from(Serde(page))))
    });
}
