//! Arguments and results of host calls, with their size limits.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    workspace::{Workspace, WorkspacePage},
};

/// The maximum bytes of a result.
const MAX_ANSWER: usize = 8 << 20;
/// The maximum bytes of a name, a query or a schema.
const MAX_NAME: usize = 200;
const MAX_QUERY: usize = 4 * 1024;
const MAX_SCHEMA: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageSearchArgs {
    pub(super) query: String,
    #[serde(default = "ten")]
    pub(super) limit: usize,
}

fn ten() -> usize {
    10
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NameArgs {
    pub(super) name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TextArgs {
    pub(super) text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamesArgs {
    pub(super) names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TypeArgs {
    pub(super) r#type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoArgs {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryArgs {
    pub(super) name: String,
    #[serde(default = "ten")]
    pub(super) limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryArgs {
    pub(super) prompt: String,
    pub(super) system: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchArgs {
    pub(super) prompts: Vec<String>,
    pub(super) system: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueArgs {
    pub(super) value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointArgs {
    pub(super) name: String,
    pub(super) value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunSkillArgs {
    pub(super) skill: String,
    #[serde(default)]
    pub(super) params: Map<String, Value>,
    pub(super) artifact: Option<String>,
}

pub(super) fn call_error(call: &str, reason: String) -> Error {
    Error::InvalidCall {
        call: repertoire_core::markdown::truncate_text(call, MAX_NAME),
        reason,
    }
}

pub(super) fn parse_args<T: DeserializeOwned>(call: &str, args: &str) -> Result<T> {
    repertoire_core::json::from_str(args).map_err(|error| call_error(call, error.to_string()))
}

/// Reads several pages; fails if they exceed the size of a result.
pub(super) fn collect_pages(pages: &dyn Workspace, names: &[String]) -> Result<Vec<WorkspacePage>> {
    let (mut found, mut size) = (Vec::new(), 0);
    for name in names {
        let Some(page) = pages.find_page(name)? else {
            continue;
        };
        size += page.text.len();
        if size > MAX_ANSWER {
            let why = format!("the answer has more than {MAX_ANSWER} bytes");
            return Err(call_error("get_pages", why));
        }
        found.push(page);
    }
    Ok(found)
}

pub(super) fn check_query_length(call: &str, text: String) -> Result<String> {
    if text.len() > MAX_QUERY {
        return Err(call_error(call, format!("takes at most {MAX_QUERY} bytes")));
    }
    Ok(text)
}

pub(super) fn check_schema_size(call: &str, schema: Option<Value>) -> Result<Option<Value>> {
    match &schema {
        Some(value) if value.to_string().len() > MAX_SCHEMA => {
            let why = format!("a schema has at most {MAX_SCHEMA} bytes");
            Err(call_error(call, why))
        }
        _ => Ok(schema),
    }
}

pub(super) fn check_key(call: &str, name: String) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME {
        let most = MAX_NAME;
        return Err(call_error(call, format!("a name has 1 to {most} bytes")));
    }
    Ok(name)
}

pub(super) fn to_json_value(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::Workspace(error.to_string()))
}

pub(super) fn serialise_answer(call: &str, value: &Value) -> Result<String> {
    let text = value.to_string();
    if text.len() > MAX_ANSWER {
        return Err(call_error(
            call,
            format!("the answer has more than {MAX_ANSWER} bytes"),
        ));
    }
    Ok(text)
}
