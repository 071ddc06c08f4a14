//! `engine::*`: lists workers, functions and triggers.

use std::sync::Arc;

use repertoire_app::Permission;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use uuid::Uuid;

use super::{
    super::{
        bus::{BusResult, CallError},
        functions::{self, TRIGGER_TYPES},
    },
    Hub, HubOptions, SkillsProvider, StateTrigger,
    routing_table::{NAMESPACE, RegistrationRefusal, WorkerId},
    state,
};

/// The functions of the bus itself, with what calling them needs.
pub(crate) static ENGINE_FUNCTIONS: [(&str, Permission); 10] = [
    // A client describes itself with it; nothing else changes.
    ("engine::workers::register", Permission::Read),
    ("engine::workers::list", Permission::Read),
    ("engine::functions::list", Permission::Read),
    ("engine::functions::info", Permission::Read),
    ("engine::triggers::list", Permission::Read),
    ("engine::trigger-types::list", Permission::Read),
    ("engine::registered-triggers::list", Permission::Read),
    ("engine::register_trigger", Permission::Run),
    ("engine::unregister_trigger", Permission::Write),
    ("engine::health", Permission::Read),
];

/// What the functions of the state need. The state holds private data of all workers, so reading it
/// needs as much as changing it.
const STATE_PERMISSION: Permission = Permission::Write;

/// Returns what a function that the bus itself provides needs.
pub(super) fn permission_of(id: &str) -> Option<Permission> {
    if state::is_state_function(id) {
        return Some(STATE_PERMISSION);
    }
    let mut functions = ENGINE_FUNCTIONS.iter();
    let found = functions.find(|(name, _)| *name == id);
    found.map(|(_, permission)| *permission)
}

/// Returns every function of the bus itself with what it needs.
pub(crate) fn builtin_permissions() -> impl Iterator<Item = (&'static str, Permission)> {
    let state = state::STATE_FUNCTIONS
        .iter()
        .map(|id| (*id, STATE_PERMISSION));
    ENGINE_FUNCTIONS.iter().copied().chain(state)
}

/// Whether the bus itself provides a function.
pub(super) fn is_builtin(id: &str) -> bool {
    permission_of(id).is_some()
}

/// Whether no worker may register a function of that name.
pub(super) fn is_reserved(id: &str) -> bool {
    id.starts_with("engine::") || id.starts_with("state::")
}

/// The trigger types the hub provides itself.
pub(super) fn trigger_types(options: &HubOptions) -> Vec<(&'static str, &'static str)> {
    let mut types = Vec::new();
    if options.state_trigger == StateTrigger::Provided {
        types.push((
            state::STATE_TRIGGER,
            "Fires when a value of the state changes: config {scope?, key?, \
             condition_function_id?}.",
        ));
    }
    if options.skills_provider == SkillsProvider::OnHub {
        types.extend(TRIGGER_TYPES.map(|kind| (kind.id, kind.about)));
    }
    types
}

/// The fields of a worker's description that are stored; SDKs expect texts here.
const WORKER_INFO_KEYS: [&str; 6] = ["name", "runtime", "version", "os", "isolation", "namespace"];

/// How many functions one call describes.
const MAX_DESCRIBED: usize = 32;

#[derive(Deserialize)]
struct FunctionInfoInput {
    #[serde(default)]
    function_id: Option<String>,
    #[serde(default)]
    function_ids: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct SubscribeInput<'a> {
    #[serde(default)]
    id: Option<String>,
    trigger_type: String,
    function_id: String,
    #[serde(borrow, default)]
    config: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UnsubscribeInput {
    id: String,
}

/// What a listing is restricted to, as an engine takes it.
#[derive(Default, Deserialize)]
struct ListingFilter {
    #[serde(default)]
    include_internal: Option<bool>,
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

    fn apply(&self, mut rows: Vec<Value>, key: &str) -> Vec<Value> {
        rows.retain(|row| self.matches(row, key));
        rows
    }
}

/// Parses the input of a function of the bus.
pub(super) fn parse_input<'a, T: Deserialize<'a>>(id: &str, data: &'a str) -> Result<T, CallError> {
    let data = if data == "null" { "{}" } else { data };
    if !data.starts_with('{') {
        let message = format!("{id}: takes an object");
        return Err(CallError::new("invalid_request", message));
    }
    repertoire_core::json::from_str(data)
        .map_err(|error| CallError::new("invalid_request", format!("{id}: {error}")))
}

impl Hub {
    /// Answers a function of the bus itself.
    pub(super) async fn call_builtin(
        self: &Arc<Self>,
        caller: &WorkerId,
        id: &str,
        data: &str,
    ) -> BusResult {
        let answer = match id {
            "engine::workers::register" => {
                self.record_worker_info(caller, data);
                json!({"success": true})
            }
            "engine::workers::list" => json!({"workers": self.lock_table().list_workers()}),
            "engine::functions::list" => {
                let wanted: ListingFilter = parse_input(id, data)?;
                let rows = self.list_functions(wanted.include_internal == Some(true));
                json!({"functions": wanted.apply(rows, "function_id")})
            }
            "engine::functions::info" => {
                let wanted: FunctionInfoInput = parse_input(id, data)?;
                self.describe_functions(wanted)?
            }
            "engine::triggers::list" => {
                let wanted: ListingFilter = parse_input(id, data)?;
                let types = self.lock_table().list_types();
                json!({"triggers": wanted.apply(types, "id")})
            }
            "engine::trigger-types::list" => {
                json!({"trigger_types": self.lock_table().list_types()})
            }
            "engine::registered-triggers::list" => {
                let wanted: ListingFilter = parse_input(id, data)?;
                let triggers = self.lock_table().list_triggers();
                json!({"registered_triggers": wanted.apply(triggers, "id")})
            }
            "engine::register_trigger" => {
                let wanted: SubscribeInput<'_> = parse_input(id, data)?;
                let trigger = wanted.id.unwrap_or_else(|| Uuid::new_v4().to_string());
                for text in [&trigger, &wanted.trigger_type, &wanted.function_id] {
                    if text.is_empty() || text.len() > 1024 {
                        let message = format!("{id}: ids have 1 to 1024 bytes");
                        return Err(CallError::new("invalid_request", message));
                    }
                }
                let taken = self.lock_table().subscribe(
                    caller,
                    &trigger,
                    &wanted.trigger_type,
                    &wanted.function_id,
                    wanted.config,
                    wanted.metadata,
                );
                taken.map_err(|refusal| refusal.to_call_error("trigger", &trigger))?;
                json!({"id": trigger, "success": true})
            }
            "engine::unregister_trigger" => {
                let wanted: UnsubscribeInput = parse_input(id, data)?;
                self.lock_table().unsubscribe_own(caller, &wanted.id);
                json!({"success": true})
            }
            "engine::health" => json!({"status": "ok", "workers": self.worker_count()}),
            _ => return self.call_state(id, data).await,
        };
        Ok(answer.to_string())
    }

    /// Stores the description that a worker gives of itself; long texts are dropped.
    fn record_worker_info(&self, caller: &WorkerId, data: &str) {
        let Ok(Value::Object(mut about)) = repertoire_core::json::from_str(data) else {
            return;
        };
        about.retain(|key, value| match value {
            Value::String(text) => WORKER_INFO_KEYS.contains(&key.as_str()) && text.len() <= 256,
            Value::Number(_) => key == "pid",
            _ => false,
        });
        self.lock_table()
            .set_worker_info(caller, Value::Object(about));
    }

    fn list_functions(&self, internal: bool) -> Vec<Value> {
        let rows = self.lock_table().list_functions();
        let mut rows: Vec<Value> = rows.iter().map(|row| json!(row)).collect();
        if self.functions.get().is_some() {
            rows.extend(
                functions::all_functions()
                    .iter()
                    .filter_map(|f| self.native_row(f.id)),
            );
        }
        if internal {
            let engine = ENGINE_FUNCTIONS.iter().map(|(id, _)| id);
            let own = engine.chain(state::STATE_FUNCTIONS.iter());
            rows.extend(own.filter_map(|id| self.native_row(id)));
        }
        rows
    }

    /// Describes one function, or several.
    fn describe_functions(&self, wanted: FunctionInfoInput) -> Result<Value, CallError> {
        let refuse = |message: &str| CallError::new("INVALID_ARGUMENTS", message);
        let ids = match (wanted.function_id, wanted.function_ids) {
            (Some(id), None) => {
                return self
                    .describe_function(&id)
                    .ok_or_else(|| CallError::function_not_found(&id));
            }
            (None, Some(ids)) if !ids.is_empty() && ids.len() <= MAX_DESCRIBED => ids,
            (None, Some(_)) => return Err(refuse("`function_ids` has 1 to 32 ids")),
            (Some(_), Some(_)) => {
                return Err(refuse("give either `function_id` or `function_ids`"));
            }
            (None, None) => return Err(refuse("`function_id` or `function_ids` is missing")),
        };
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
        row["registered_triggers"] = triggers.collect();
        Some(row)
    }

    /// A function of the hub, as listings show it.
    fn native_row(&self, id: &str) -> Option<Value> {
        if is_builtin(id) {
            return Some(json!({
                "function_id": id, "namespace": NAMESPACE, "worker_name": "engine",
                "worker_id": self.id,
            }));
        }
        self.functions.get()?;
        let described = functions::all_functions().iter().find(|f| f.id == id)?;
        Some(json!({
            "function_id": id, "namespace": NAMESPACE, "worker_name": "skills",
            "worker_id": self.id, "description": described.about,
            "request_format": described.request, "response_format": described.response,
        }))
    }
}

impl RegistrationRefusal {
    pub(super) fn to_call_error(&self, what: &str, id: &str) -> CallError {
        let id = crate::error::shorten_text(id);
        match self {
            Self::Taken(owner) => CallError::new(
                "conflict",
                format!("{what} {id:?} belongs to worker {owner}"),
            ),
            Self::Config(reason) => CallError::new(
                "invalid_config",
                format!("{what} {id:?}: its config {reason}"),
            ),
            Self::TooMany => CallError::new(
                "too_many",
                format!("{what} {id:?}: this worker has too many"),
            ),
            Self::TooLarge => CallError::new(
                "too_large",
                format!(
                    "{what} {id:?}: the descriptions, schemas and configurations of this worker are \
                     too large together"
                ),
            ),
        }
    }
}
