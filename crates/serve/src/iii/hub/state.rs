//! `state::*`: values by scope and key, durable when they are acknowledged, and the `state`
//! trigger type that tells of their changes.

use std::sync::Arc;

use repertoire_registry::{Registry, StateLimit};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    super::{
        bus::{Answer, Bus, CallError},
        ops::{self, Op},
    },
    Hub,
    builtin::input,
};

/// The trigger type.
pub(super) const TRIGGER: &str = "state";

pub(super) const FUNCTIONS: [&str; 6] = [
    "state::set",
    "state::get",
    "state::delete",
    "state::list",
    "state::list_groups",
    "state::update",
];

/// The longest scope or key.
const MAX_KEY: usize = 1024;
/// The most values of one page.
const MAX_LIMIT: usize = 10_000;

pub(super) fn is_state(id: &str) -> bool {
    FUNCTIONS.contains(&id)
}

#[derive(Deserialize)]
struct Row<'a> {
    scope: String,
    key: String,
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Update {
    scope: String,
    key: String,
    ops: Vec<Op>,
}

#[derive(Deserialize)]
struct List {
    scope: String,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    cursor: Option<String>,
}

/// What a follower of the state wants to hear of.
#[derive(Deserialize, Default)]
struct Wanted {
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    condition_function_id: Option<String>,
}

fn check(what: &str, text: &str) -> Result<(), CallError> {
    let refuse = |rule: String| Err(CallError::new("invalid_request", format!("{what}: {rule}")));
    if text.is_empty() {
        return refuse("must be non-empty".to_owned());
    }
    if text.len() > MAX_KEY {
        return refuse(format!("too long: at most {MAX_KEY} bytes"));
    }
    Ok(())
}

/// Waits for a disk where it keeps nobody waiting.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> repertoire_registry::Result<T> + Send + 'static,
) -> Result<T, CallError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(CallError::new("internal", "the state could not be used")),
    }
}

impl Hub {
    /// Answers a function of the state.
    pub(super) async fn state(&self, id: &str, data: &str) -> Answer {
        let registry = self.engine.registry().await?.clone();
        match id {
            "state::get" => {
                let row: Row<'_> = input(id, data)?;
                let value = registry.state_get(&row.scope, &row.key)?;
                Ok(value.unwrap_or_else(|| "null".to_owned()))
            }
            "state::set" => {
                let row: Row<'_> = input(id, data)?;
                check("scope", &row.scope)?;
                check("key", &row.key)?;
                let new = row.value.map_or("null", RawValue::get).to_owned();
                let (scope, key, value) = (row.scope.clone(), row.key.clone(), new.clone());
                let old = on_disk(move || registry.state_set(&scope, &key, value)).await?;
                self.changed_state(&row.scope, &row.key, old.as_deref(), Some(&new));
                let old = old.as_deref().unwrap_or("null");
                Ok(format!("{{\"old_value\":{old},\"new_value\":{new}}}"))
            }
            "state::delete" => {
                let row: Row<'_> = input(id, data)?;
                let (scope, key) = (row.scope.clone(), row.key.clone());
                let old = on_disk(move || registry.state_delete(&scope, &key)).await?;
                if let Some(old) = &old {
                    self.changed_state(&row.scope, &row.key, Some(old), None);
                }
                Ok(old.unwrap_or_else(|| "null".to_owned()))
            }
            "state::update" => self.update(registry, input(id, data)?).await,
            "state::list" => self.list_state(registry, input(id, data)?).await,
            _ => {
                let groups = on_disk(move || registry.state_scopes()).await?;
                Ok(json!({"groups": groups}).to_string())
            }
        }
    }

    async fn update(&self, registry: Arc<Registry>, update: Update) -> Answer {
        check("scope", &update.scope)?;
        check("key", &update.key)?;
        let (scope, key) = (update.scope.clone(), update.key.clone());
        let (old, new, errors) = on_disk(move || {
            registry.state_update(&scope, &key, move |old| {
                let before = old
                    .as_deref()
                    .and_then(|old| serde_json::from_str(old).ok());
                let (new, errors) = ops::apply(before.unwrap_or(Value::Null), update.ops);
                let new = new.to_string();
                Ok((new.clone(), (old, new, errors)))
            })
        })
        .await?;
        self.changed_state(&update.scope, &update.key, old.as_deref(), Some(&new));
        let old = old.as_deref().unwrap_or("null");
        let errors = if errors.is_empty() {
            String::new()
        } else {
            format!(",\"errors\":{}", json!(errors))
        };
        Ok(format!(
            "{{\"old_value\":{old},\"new_value\":{new}{errors}}}"
        ))
    }

    /// The values of a scope; with a limit, a page of keys and values.
    async fn list_state(&self, registry: Arc<Registry>, wanted: List) -> Answer {
        // Room for what surrounds the values.
        let bytes = self.options.max_message.saturating_sub(1024 * 1024) / 2;
        let paged = wanted.limit.is_some() || wanted.cursor.is_some();
        let rows = match wanted.limit.map(usize::try_from) {
            None if paged => MAX_LIMIT,
            None => usize::MAX,
            Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => limit,
            Some(_) => {
                let message = format!("state::list: limit must be between 1 and {MAX_LIMIT}");
                return Err(CallError::new("invalid_request", message));
            }
        };
        let bytes = if paged {
            bytes.min(4 * 1024 * 1024)
        } else {
            bytes
        };
        let (page, more) = on_disk(move || {
            let after = wanted.cursor.as_deref();
            let limit = StateLimit { rows, bytes };
            let page = registry.state_list(&wanted.scope, after, limit)?;
            let last = page.last().map(|row| row.0.as_str());
            let one = StateLimit { rows: 1, bytes: 0 };
            let more = last.is_some() && !registry.state_list(&wanted.scope, last, one)?.is_empty();
            Ok((page, more))
        })
        .await?;
        if !paged {
            if more {
                return Err(CallError::new(
                    "too_large",
                    "state::list: too large for one answer: give `limit`, and `cursor` from the \
                     page before",
                ));
            }
            let values: Vec<&str> = page.iter().map(|row| row.1.as_str()).collect();
            return Ok(format!("[{}]", values.join(",")));
        }
        let items: Vec<String> = page
            .iter()
            .map(|(key, value)| format!("{{\"key\":{},\"value\":{value}}}", json!(key)))
            .collect();
        let next = match page.last() {
            Some((key, _)) if more => format!(",\"next_cursor\":{}", json!(key)),
            _ => String::new(),
        };
        Ok(format!("{{\"items\":[{}]{next}}}", items.join(",")))
    }

    /// Tells followers of the state that a value has changed.
    fn changed_state(&self, scope: &str, key: &str, old: Option<&str>, new: Option<&str>) {
        let followers = {
            let table = self.lock();
            if !table.has_subscribers(TRIGGER) {
                return;
            }
            table.configured(TRIGGER)
        };
        let kind = match (old, new) {
            (_, None) => "state:deleted",
            (None, Some(_)) => "state:created",
            (Some(_), Some(_)) => "state:updated",
        };
        let value = |text: Option<&str>| -> Value {
            text.and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default()
        };
        let mut event = None;
        for (function, config) in followers {
            let wanted: Wanted = serde_json::from_str(config.get()).unwrap_or_default();
            let fits = wanted.scope.is_none_or(|wanted| wanted == scope)
                && wanted.key.is_none_or(|wanted| wanted == key);
            if !fits {
                continue;
            }
            let event = event.get_or_insert_with(|| {
                json!({
                    "type": "state", "event_type": kind, "scope": scope, "key": key,
                    "old_value": value(old), "new_value": value(new),
                })
            });
            match wanted.condition_function_id {
                None => self.fire(&function, event),
                Some(condition) => self.fire_if(condition, function, event.clone()),
            }
        }
    }

    /// Fires a function if another one says so.
    fn fire_if(&self, condition: String, function: String, event: Value) {
        let Some(hub) = self.myself() else {
            return;
        };
        let deadline = self.options.functions.deadline;
        tokio::spawn(async move {
            match hub.call(&condition, event.clone(), deadline).await {
                Ok(answer) if !matches!(answer.as_str(), "false" | "null") => {
                    hub.fire(&function, &event);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, condition, "a condition could not be asked"),
            }
        });
    }
}
