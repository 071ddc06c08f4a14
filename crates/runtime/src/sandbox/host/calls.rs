//! What calls are given and what they give, within bounds.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    workspace::{Page, Workspace},
};

/// The most bytes of what a call answers.
const MAX_ANSWER: usize = 8 << 20;
/// The most bytes of a name, a query or a schema.
const MAX_NAME: usize = 200;
const MAX_QUERY: usize = 4 * 1024;
const MAX_SCHEMA: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    pub(super) query: String,
    #[serde(default = "ten")]
    pub(super) limit: usize,
}

fn ten() -> usize {
    10
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Names {
    pub(super) names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Typed {
    pub(super) r#type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct History {
    pub(super) name: String,
    #[serde(default = "ten")]
    pub(super) limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    pub(super) prompt: String,
    pub(super) system: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Batch {
    pub(super) prompts: Vec<String>,
    pub(super) system: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) schema: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Valued {
    pub(super) value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Save {
    pub(super) name: String,
    pub(super) value: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunSkill {
    pub(super) skill: String,
    #[serde(default)]
    pub(super) params: Map<String, Value>,
    pub(super) artifact: Option<String>,
}

pub(super) fn refuse(call: &str, reason: String) -> Error {
    Error::Call {
        call: repertoire_core::markdown::cut(call, MAX_NAME),
        reason,
    }
}

pub(super) fn read<T: DeserializeOwned>(call: &str, args: &str) -> Result<T> {
    repertoire_core::json::from_str(args).map_err(|error| refuse(call, error.to_string()))
}

/// Several pages, and no more of them than fit into an answer.
pub(super) fn several(pages: &dyn Workspace, names: &[String]) -> Result<Vec<Page>> {
    let (mut found, mut size) = (Vec::new(), 0);
    for name in names {
        let Some(page) = pages.page(name)? else {
            continue;
        };
        size += page.text.len();
        if size > MAX_ANSWER {
            let why = format!("the answer has more than {MAX_ANSWER} bytes");
            return Err(refuse("get_pages", why));
        }
        found.push(page);
    }
    Ok(found)
}

pub(super) fn short(call: &str, text: String) -> Result<String> {
    if text.len() > MAX_QUERY {
        return Err(refuse(call, format!("takes at most {MAX_QUERY} bytes")));
    }
    Ok(text)
}

pub(super) fn fitting(call: &str, schema: Option<Value>) -> Result<Option<Value>> {
    match &schema {
        Some(told) if told.to_string().len() > MAX_SCHEMA => {
            let why = format!("a schema has at most {MAX_SCHEMA} bytes");
            Err(refuse(call, why))
        }
        _ => Ok(schema),
    }
}

pub(super) fn key(call: &str, name: String) -> Result<String> {
    if name.is_empty() || name.len() > MAX_NAME {
        let most = MAX_NAME;
        return Err(refuse(call, format!("a name has 1 to {most} bytes")));
    }
    Ok(name)
}

pub(super) fn json_of(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::Workspace(error.to_string()))
}

pub(super) fn serialised(call: &str, value: &Value) -> Result<String> {
    let text = value.to_string();
    if text.len() > MAX_ANSWER {
        return Err(refuse(
            call,
            format!("the answer has more than {MAX_ANSWER} bytes"),
        ));
    }
    Ok(text)
}
