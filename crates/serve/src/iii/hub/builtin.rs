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
    inspection::{FunctionInfoInput, ListingFilter, WorkerFilter},
    routing_table::{NAMESPACE, RegistrationRefusal, WorkerId},
    state,
};

/// The functions of the bus itself, with what calling them needs.
pub(crate) static ENGINE_FUNCTIONS: [(&str, Permission); 13] = [
    // A client describes itself with it; nothing else changes.
    ("engine::workers::register", Permission::Read),
    ("engine::workers::list", Permission::Read),
    ("engine::workers::info", Permission::Write),
    ("engine::functions::list", Permission::Read),
    ("engine::functions::info", Permission::Read),
    ("engine::triggers::list", Permission::Read),
    ("engine::triggers::info", Permission::Read),
    ("engine::trigger-types::list", Permission::Read),
    // What a subscription is about, and what its subscriber keeps with it, is its own business.
    ("engine::registered-triggers::list", Permission::Write),
    ("engine::registered-triggers::info", Permission::Write),
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
const WORKER_INFO_KEYS: [&str; 7] = [
    "name",
    "description",
    "runtime",
    "version",
    "os",
    "isolation",
    "namespace",
];

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

/// The code for input that does not have the form that a function takes, as engines have it.
pub(super) const INVALID_INPUT: &str = "deserialization_error";

/// Parses the input of a function of the bus.
pub(super) fn parse_input<'a, T: Deserialize<'a>>(id: &str, data: &'a str) -> Result<T, CallError> {
    let data = if data == "null" { "{}" } else { data };
    if !data.starts_with('{') {
        let message = format!("{id}: takes an object");
        return Err(CallError::new(INVALID_INPUT, message));
    }
    repertoire_core::json::from_str(data)
        .map_err(|error| CallError::new(INVALID_INPUT, format!("{id}: {error}")))
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
            "engine::workers::list" => {
                let wanted: WorkerFilter = parse_input(id, data)?;
                json!({"workers": wanted.apply(self.lock_table().list_workers())})
            }
            "engine::workers::info" => self.describe_worker(&parse_input(id, data)?)?,
            "engine::triggers::info" => self.describe_type(&parse_input(id, data)?)?,
            "engine::registered-triggers::info" => {
                self.describe_trigger(&parse_input(id, data)?)?
            }
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
                let removed = self.lock_table().unsubscribe_own(caller, &wanted.id);
                json!({"success": true, "removed": removed})
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

    pub(super) fn list_functions(&self, internal: bool) -> Vec<Value> {
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

    /// A function of the hub, as listings show it.
    pub(super) fn native_row(&self, id: &str) -> Option<Value> {
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
