//! `state::*`: values by scope and key, durable when they are acknowledged, and the `state`
//! trigger type that tells of their changes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use repertoire_registry::{Registry, StateLimit, registered};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::oneshot;

use super::{
    super::{
        bus::{Answer, Bus, CallError},
        ops::{self, Op, OpError},
        protocol::{MAX_DEPTH, depth},
    },
    Hub, StateTrigger,
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
#[derive(Debug, Deserialize, Default)]
pub(super) struct Wanted {
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default, rename = "condition_function_id")]
    pub(super) condition: Option<String>,
}

impl Wanted {
    /// Reads a configuration; none at all wants everything.
    pub(super) fn of(config: Option<&RawValue>) -> Result<Self, String> {
        let text = config.map_or("{}", RawValue::get);
        let text = if text == "null" { "{}" } else { text };
        repertoire_core::json::from_str(text).map_err(|error| format!("cannot be used: {error}"))
    }

    pub(super) fn fits(&self, scope: &str, key: &str) -> bool {
        self.scope.as_ref().is_none_or(|wanted| wanted == scope)
            && self.key.as_ref().is_none_or(|wanted| wanted == key)
    }
}

/// Brings the catalogue along after writes: one look for all that were written before it.
///
/// Not on the store's thread, where others wait to be written.
#[derive(Debug, Default)]
pub(super) struct Written {
    asked: AtomicU64,
    /// Up to which one the catalogue is known to have come.
    followed: tokio::sync::Mutex<u64>,
}

impl Written {
    async fn follow(&self, registry: &Registry) -> Result<(), CallError> {
        let mine = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut followed = self.followed.lock().await;
        if *followed < mine {
            let all = self.asked.load(Ordering::Acquire);
            registry.sync()?;
            *followed = all;
        }
        Ok(())
    }
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

/// What was there before a value was set.
type Set = repertoire_registry::Result<Option<String>>;

fn stopped() -> CallError {
    CallError::new("internal", "the state could not be used")
}

/// A value after some operations; one that cannot be read is left alone.
fn apply(old: Option<&str>, ops: Vec<Op>, limit: usize) -> Result<(String, Vec<OpError>), String> {
    let before = match old {
        None => Value::Null,
        Some(old) => repertoire_core::json::from_str(old)
            .map_err(|error| format!("the value that is there cannot be changed: {error}"))?,
    };
    let (new, errors) = ops::apply(before, ops);
    let new = new.to_string();
    if new.len() > limit || depth(&new) > MAX_DEPTH - 8 {
        return Err(format!("too large: {} bytes, at most {limit}", new.len()));
    }
    Ok((new, errors))
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
                let new = row.value.map_or("null", RawValue::get).to_owned();
                self.check_value(&new)?;
                let old = self
                    .set(&registry, &row.scope, &row.key, new.clone())
                    .await?;
                let old = old.as_deref().unwrap_or("null");
                Ok(format!("{{\"old_value\":{old},\"new_value\":{new}}}"))
            }
            "state::delete" => {
                let row: Row<'_> = input(id, data)?;
                let old = self.delete(&registry, &row.scope, &row.key).await?;
                Ok(old.unwrap_or_else(|| "null".to_owned()))
            }
            "state::update" => {
                let update: Update = input(id, data)?;
                let limit = self.max_value();
                let work = move |old: Option<&str>| apply(old, update.ops, limit);
                let (old, new, errors) = self
                    .change(&registry, update.scope, update.key, work)
                    .await?;
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
            "state::list" => self.list_state(registry, input(id, data)?).await,
            _ => {
                let groups = on_disk(move || registry.state_scopes()).await?;
                Ok(json!({"groups": groups}).to_string())
            }
        }
    }

    /// The most bytes of a value: an answer and an event hold two of them.
    fn max_value(&self) -> usize {
        self.options.max_message / 4
    }

    fn check_value(&self, value: &str) -> Result<(), CallError> {
        if value.len() > self.max_value() {
            let most = self.max_value();
            let message = format!("value: too large: {} bytes, at most {most}", value.len());
            return Err(CallError::new("too_large", message));
        }
        if depth(value) > MAX_DEPTH - 8 {
            // Whoever reads it gets it within something else.
            return Err(CallError::new("invalid_request", "value: nested too deep"));
        }
        Ok(())
    }

    /// Sets a value. Changes are made, and told of, in the order in which this is called.
    async fn set(
        &self,
        registry: &Arc<Registry>,
        scope: &str,
        key: &str,
        new: String,
    ) -> Result<Option<String>, CallError> {
        check("scope", scope)?;
        check("key", key)?;
        let (then, told) = self.telling(scope, key, new.clone());
        registry.state_set_then(scope, key, new, then)?;
        let done = told.await.map_err(|_| stopped())??;
        self.written.follow(registry).await?;
        Ok(done)
    }

    /// Keeps registered content, in the same order.
    pub(super) async fn keep_row(
        &self,
        scope: &str,
        key: &str,
        row: registered::Row,
    ) -> Result<(), CallError> {
        let registry = self.engine.registry().await?;
        let (then, told) = self.telling(scope, key, row.value.clone());
        registry.state_keep_then(scope, key, row, then)?;
        told.await.map_err(|_| stopped())??;
        self.written.follow(registry).await
    }

    /// Tells followers of a value once it is set, and then whoever waits for that.
    fn telling(
        &self,
        scope: &str,
        key: &str,
        new: String,
    ) -> (impl FnOnce(Set) + Send + 'static, oneshot::Receiver<Set>) {
        let (tell, told) = oneshot::channel();
        let hub = self.myself();
        let (scope, key) = (scope.to_owned(), key.to_owned());
        let then = move |done: Set| {
            if let (Some(hub), Ok(old)) = (hub, &done) {
                hub.changed_state(&scope, &key, old.as_deref(), Some(&new));
            }
            // Whoever asked may have gone.
            let _ = tell.send(done);
        };
        (then, told)
    }

    /// Changes a value. Changes are made, and told of, in the order in which this is called.
    async fn change<T: Send + 'static>(
        &self,
        registry: &Arc<Registry>,
        scope: String,
        key: String,
        work: impl FnOnce(Option<&str>) -> Result<(String, T), String> + Send + 'static,
    ) -> Result<(Option<String>, String, T), CallError> {
        check("scope", &scope)?;
        check("key", &key)?;
        let (tell, told) = oneshot::channel();
        let hub = self.myself();
        let (about_scope, about_key) = (scope.clone(), key.clone());
        let work = move |old: Option<String>| {
            let (new, answer) = work(old.as_deref()).map_err(|reason| {
                repertoire_registry::Error::Conflict(format!("state::update: {reason}"))
            })?;
            Ok((new.clone(), (old, new, answer)))
        };
        registry.state_update_then(&scope, &key, work, move |done| {
            if let (Some(hub), Ok((old, new, _))) = (hub, &done) {
                hub.changed_state(&about_scope, &about_key, old.as_deref(), Some(new));
            }
            // Whoever asked may have gone.
            let _ = tell.send(done);
        })?;
        let done = told.await.map_err(|_| stopped())??;
        self.written.follow(registry).await?;
        Ok(done)
    }

    async fn delete(
        &self,
        registry: &Arc<Registry>,
        scope: &str,
        key: &str,
    ) -> Result<Option<String>, CallError> {
        let (tell, told) = oneshot::channel();
        let hub = self.myself();
        let (about_scope, about_key) = (scope.to_owned(), key.to_owned());
        registry.state_delete_then(scope, key, move |done| {
            if let (Some(hub), Ok(Some(old))) = (hub, &done) {
                hub.changed_state(&about_scope, &about_key, Some(old), None);
            }
            let _ = tell.send(done);
        })?;
        let done = told.await.map_err(|_| stopped())??;
        self.written.follow(registry).await?;
        Ok(done)
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
        if self.options.state == StateTrigger::Missing {
            return;
        }
        let (followers, conditional) = {
            let table = self.lock();
            let row = Some((scope, key));
            (
                table.subscribers(TRIGGER, row),
                table.conditional(scope, key),
            )
        };
        if followers.is_empty() && conditional.is_empty() {
            return;
        }
        let kind = match (old, new) {
            (_, None) => "state:deleted",
            (None, Some(_)) => "state:created",
            (Some(_), Some(_)) => "state:updated",
        };
        let value = |text: Option<&str>| -> Value {
            text.and_then(|text| repertoire_core::json::from_str(text).ok())
                .unwrap_or_default()
        };
        let event = json!({
            "type": "state", "event_type": kind, "scope": scope, "key": key,
            "old_value": value(old), "new_value": value(new),
        });
        for function in followers {
            self.fire(&function, &event);
        }
        for (function, condition) in conditional {
            self.fire_if(condition, function, event.clone());
        }
    }

    /// Fires a function if another one says so.
    fn fire_if(&self, condition: String, function: String, event: Value) {
        let Some(hub) = self.myself() else {
            return;
        };
        let deadline = self.options.functions.deadline;
        // Called from the store's thread, which is none of the runtime's.
        self.runtime.spawn(async move {
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
