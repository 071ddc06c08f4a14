//! What `engine::*` tells of functions, triggers and workers, in the form of engines.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{super::bus::CallError, Hub};

/// How many functions one call describes.
const MAX_DESCRIBED: usize = 32;

#[derive(Deserialize)]
pub(super) struct FunctionInfoInput {
    #[serde(default)]
    function_id: Option<String>,
    #[serde(default)]
    function_ids: Option<Vec<String>>,
}

/// The id of a trigger type or of a subscription.
#[derive(Deserialize)]
pub(super) struct IdInput {
    id: String,
}

/// The name of a worker.
#[derive(Deserialize)]
pub(super) struct WorkerInput {
    name: String,
}

/// What a listing is restricted to, as an engine takes it.
#[derive(Default, Deserialize)]
pub(super) struct ListingFilter {
    #[serde(default)]
    pub(super) include_internal: Option<bool>,
    /// The beginning of the id.
    #[serde(default)]
    prefix: Option<String>,
    /// A part of the id or the description, in any case.
    #[serde(default)]
    search: Option<String>,
    /// The name of the worker.
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    workers: Option<Vec<String>>,
    #[serde(default)]
    trigger_type: Option<String>,
    #[serde(default)]
    function_id: Option<String>,
}

impl ListingFilter {
    /// Whether a row is listed; its id is in the field `key`.
    fn matches(&self, row: &Value, key: &str) -> bool {
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        let is_given = |wanted: &Option<String>, field: &str| {
            wanted.as_deref().is_none_or(|wanted| text(field) == wanted)
        };
        let is_named = |names: &Vec<String>| names.iter().any(|name| *name == text("worker_name"));
        let has_worker = match (
            &self.worker,
            self.workers.as_ref().filter(|all| !all.is_empty()),
        ) {
            (None, None) => true,
            (Some(one), None) => one == text("worker_name"),
            (None, Some(all)) => is_named(all),
            (Some(one), Some(all)) => one == text("worker_name") || is_named(all),
        };
        let has_search = self.search.as_deref().is_none_or(|wanted| {
            let wanted = wanted.to_lowercase();
            [key, "description", "trigger_type", "function_id"]
                .iter()
                .any(|field| text(field).to_lowercase().contains(&wanted))
        });
        let has_prefix = self
            .prefix
            .as_deref()
            .is_none_or(|prefix| text(key).starts_with(prefix));
        has_worker
            && has_search
            && has_prefix
            && is_given(&self.trigger_type, "trigger_type")
            && (key == "function_id" || is_given(&self.function_id, "function_id"))
    }

    pub(super) fn apply(&self, mut rows: Vec<Value>, key: &str) -> Vec<Value> {
        rows.retain(|row| self.matches(row, key));
        rows
    }
}

/// What a listing of workers is restricted to.
#[derive(Default, Deserialize)]
pub(super) struct WorkerFilter {
    #[serde(default)]
    search: Option<String>,
    #[serde(default)]
    runtime: Option<String>,
    #[serde(default)]
    status: Option<String>,
}

impl WorkerFilter {
    pub(super) fn apply(&self, mut rows: Vec<Value>) -> Vec<Value> {
        let is_given = |wanted: &Option<String>, value: &Value| {
            wanted.as_deref().is_none_or(|wanted| value == wanted)
        };
        rows.retain(|row| {
            let name = row["name"].as_str().unwrap_or_default().to_lowercase();
            let is_found = self
                .search
                .as_deref()
                .is_none_or(|text| name.contains(&text.to_lowercase()));
            is_found
                && is_given(&self.runtime, &row["runtime"])
                && is_given(&self.status, &row["status"])
        });
        rows
    }
}

fn not_found(what: &str, id: &str) -> CallError {
    let id = crate::error::shorten_text(id);
    CallError::new("NOT_FOUND", format!("{what} {id:?} is not registered"))
}

impl Hub {
    /// Describes one function, or several.
    pub(super) fn describe_functions(&self, wanted: FunctionInfoInput) -> Result<Value, CallError> {
        let refuse = |message: &str| CallError::new("INVALID_ARGUMENTS", message);
        let mut ids = match (wanted.function_id, wanted.function_ids) {
            (Some(id), None) => {
                return self
                    .describe_function(&id)
                    .ok_or_else(|| not_found("function", &id));
            }
            (None, Some(ids)) if !ids.is_empty() => ids,
            (None, Some(_)) => return Err(refuse("`function_ids` has 1 to 32 ids")),
            (Some(_), Some(_)) => {
                return Err(refuse("give either `function_id` or `function_ids`"));
            }
            (None, None) => return Err(refuse("`function_id` or `function_ids` is missing")),
        };
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(id.clone()));
        if ids.len() > MAX_DESCRIBED {
            return Err(refuse("`function_ids` has 1 to 32 ids"));
        }
        let described = ids.into_iter().map(|id| {
            self.describe_function(&id)
                .unwrap_or_else(|| json!({"function_id": id, "error": "not_found"}))
        });
        Ok(json!({"functions": described.collect::<Vec<_>>()}))
    }

    /// Describes one function, with its schemas under the names of a listing and of an engine.
    fn describe_function(&self, id: &str) -> Option<Value> {
        let found = self.lock_table().find_function(id);
        let mut row = found
            .map(|row| json!(row))
            .or_else(|| self.native_row(id))?;
        for (ours, theirs) in [
            ("request_format", "request_schema"),
            ("response_format", "response_schema"),
        ] {
            if let Some(schema) = row.get(ours).cloned() {
                row[theirs] = schema;
            }
        }
        let triggers = self.lock_table().list_triggers().into_iter();
        let triggers = triggers.filter(|trigger| trigger["function_id"] == id);
        // Without what they are about, which needs more than reading.
        let triggers = triggers
            .map(|trigger| json!({"id": trigger["id"], "trigger_type": trigger["trigger_type"]}));
        row["registered_triggers"] = triggers.collect();
        Some(row)
    }

    /// Describes a trigger type.
    pub(super) fn describe_type(&self, wanted: &IdInput) -> Result<Value, CallError> {
        let (types, triggers) = {
            let table = self.lock_table();
            (table.list_types(), table.list_triggers())
        };
        let found = types.into_iter().find(|row| row["id"] == wanted.id);
        let mut row = found.ok_or_else(|| not_found("trigger type", &wanted.id))?;
        let instances = triggers
            .iter()
            .filter(|trigger| trigger["trigger_type"] == wanted.id);
        row["instance_count"] = instances.count().into();
        Ok(row)
    }

    /// Describes a subscription, with its type and its function.
    pub(super) fn describe_trigger(&self, wanted: &IdInput) -> Result<Value, CallError> {
        let (triggers, metadata) = {
            let table = self.lock_table();
            (table.list_triggers(), table.trigger_metadata(&wanted.id))
        };
        let found = triggers.into_iter().find(|row| row["id"] == wanted.id);
        let mut row = found.ok_or_else(|| not_found("trigger", &wanted.id))?;
        let kind = IdInput {
            id: row["trigger_type"].as_str().unwrap_or_default().to_owned(),
        };
        row["trigger"] = self.describe_type(&kind).unwrap_or_default();
        let function = row["function_id"].as_str().unwrap_or_default();
        row["function"] = self.describe_function(function).unwrap_or_default();
        if let Some(metadata) = metadata {
            row["metadata"] = metadata;
        }
        Ok(row)
    }

    /// Describes a worker with what it registered.
    pub(super) fn describe_worker(&self, wanted: &WorkerInput) -> Result<Value, CallError> {
        let (workers, types, triggers) = {
            let table = self.lock_table();
            (
                table.list_workers(),
                table.list_types(),
                table.list_triggers(),
            )
        };
        let found = workers.into_iter().find(|row| row["name"] == wanted.name);
        let mut worker = found.ok_or_else(|| not_found("worker", &wanted.name))?;
        worker["internal"] = false.into();
        let own = |mut rows: Vec<Value>, key: &str| {
            rows.retain(|row| row["worker_name"] == wanted.name);
            rows.sort_by_key(|row| row[key].as_str().unwrap_or_default().to_owned());
            rows
        };
        Ok(json!({
            "worker": worker,
            "functions": own(self.list_functions(false), "function_id"),
            "trigger_types": own(types, "id"),
            "registered_triggers": own(triggers, "id"),
        }))
    }
}
