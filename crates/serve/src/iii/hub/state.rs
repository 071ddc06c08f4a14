//! `state::*`: values by scope and key, durable once acknowledged, and the `state` trigger type
//! that reports their changes.

use std::{
    borrow::Cow,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use repertoire_registry::{Registry, StateLimit, registered};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::{mpsc::UnboundedReceiver, oneshot};
use tokio_tungstenite::tungstenite::Bytes;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        bus::{BusResult, CallError},
        protocol::{MAX_DEPTH, nesting_depth},
        update_ops::{self, UpdateOp, UpdateOpError},
    },
    Hub, StateTrigger,
    builtin::{INVALID_INPUT, parse_input},
    call_load::LoadLease,
};
use crate::resource_json::push_json_string;

/// The trigger type.
pub(super) const STATE_TRIGGER: &str = "state";

pub(super) const STATE_FUNCTIONS: [&str; 6] = [
    "state::set",
    "state::get",
    "state::delete",
    "state::list",
    "state::list_groups",
    "state::update",
];

/// The longest scope or key.
const MAX_KEY_BYTES: usize = 1024;
/// The most operations of one update.
const MAX_UPDATE_OPS: usize = 1000;
/// What a notice that waits holds beside its values.
const NOTICE_BYTES: usize = 512;
/// The most values of one page.
const MAX_LIMIT: usize = 10_000;

/// How many followers are notified at a time.
const FAN_OUT_BATCH: usize = 32;

pub(super) fn is_state_function(id: &str) -> bool {
    STATE_FUNCTIONS.contains(&id)
}

#[derive(Deserialize)]
struct StateRowInput<'a> {
    scope: String,
    key: String,
    /// An engine takes both names. `None` if there is none of them, which `null` is not.
    #[serde(borrow, default, alias = "data", deserialize_with = "read_present")]
    value: Option<&'a RawValue>,
}

fn read_present<'de, D>(input: D) -> Result<Option<&'de RawValue>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    <&RawValue>::deserialize(input).map(Some)
}

#[derive(Deserialize)]
struct StateKeyInput<'a> {
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
}

#[derive(Deserialize)]
struct UpdateStateInput {
    scope: String,
    key: String,
    ops: Vec<UpdateOp>,
}

#[derive(Deserialize)]
struct ListStateInput {
    scope: String,
    #[serde(default)]
    limit: Option<u64>,
    #[serde(default)]
    cursor: Option<String>,
}

/// The keys that a subscriber of the state is notified about.
#[derive(Debug, Deserialize, Default)]
pub(super) struct StateFilter {
    #[serde(default)]
    scope: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default, rename = "condition_function_id")]
    pub(super) condition: Option<String>,
}

impl StateFilter {
    /// Parses a configuration; without one, every key matches.
    pub(super) fn from_config(config: Option<&RawValue>) -> Result<Self, String> {
        let text = config.map_or("{}", RawValue::get);
        let text = if text == "null" { "{}" } else { text };
        repertoire_core::json::from_str(text).map_err(|error| format!("cannot be used: {error}"))
    }

    pub(super) fn matches_key(&self, scope: &str, key: &str) -> bool {
        self.scope.as_ref().is_none_or(|wanted| wanted == scope)
            && self.key.as_ref().is_none_or(|wanted| wanted == key)
    }
}

/// Updates the catalogue after writes: one update covers all writes made before it.
///
/// It does not run on the store's thread, where other writes wait.
#[derive(Debug, Default)]
pub(super) struct CatalogueSync {
    requested: AtomicU64,
    /// The number of the last write that is in the catalogue.
    synced: tokio::sync::Mutex<u64>,
}

impl CatalogueSync {
    async fn wait_synced(&self, registry: &Registry) -> Result<(), CallError> {
        let mine = self.requested.fetch_add(1, Ordering::AcqRel) + 1;
        let mut followed = self.synced.lock().await;
        if *followed < mine {
            let all = self.requested.load(Ordering::Acquire);
            registry.sync_stores()?;
            *followed = all;
        }
        Ok(())
    }
}

fn check_key(what: &str, text: &str) -> Result<(), CallError> {
    let refuse = |rule: String| Err(CallError::new("invalid_request", format!("{what}: {rule}")));
    if text.is_empty() {
        return refuse("must be non-empty".to_owned());
    }
    if text.len() > MAX_KEY_BYTES {
        return refuse(format!("too long: at most {MAX_KEY_BYTES} bytes"));
    }
    Ok(())
}

/// The previous value, once a value was set.
type SetOutcome = repertoire_registry::Result<Option<String>>;

fn state_unavailable() -> CallError {
    CallError::new("internal", "the state is not available")
}

/// Applies operations to a value. Fails if the stored value cannot be parsed.
fn apply_update(
    old: Option<&str>,
    ops: Vec<UpdateOp>,
    limit: usize,
) -> Result<(String, Vec<UpdateOpError>), String> {
    let before = match old {
        None => Value::Null,
        Some(old) => repertoire_core::json::from_str(old)
            .map_err(|error| format!("the stored value cannot be parsed: {error}"))?,
    };
    let (new, errors) = update_ops::apply_ops(before, ops);
    let new = new.to_string();
    if new.len() > limit || nesting_depth(&new) > MAX_DEPTH - 8 {
        return Err(format!("too large: {} bytes, at most {limit}", new.len()));
    }
    Ok((new, errors))
}

/// Runs disk work on a blocking thread, so that it does not block the runtime.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> repertoire_registry::Result<T> + Send + 'static,
) -> Result<T, CallError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(CallError::new("internal", "the state is not available")),
    }
}

impl Hub {
    /// Answers a function of the state.
    pub(super) async fn call_state(&self, id: &str, data: &str) -> BusResult {
        let registry = self.service.registry().await?.clone();
        match id {
            "state::get" => {
                let row: StateRowInput<'_> = parse_input(id, data)?;
                let value = registry.state_get(&row.scope, &row.key)?;
                Ok(value.unwrap_or_else(|| "null".to_owned()))
            }
            "state::set" => {
                let row: StateRowInput<'_> = parse_input(id, data)?;
                let Some(new) = row.value.map(|value| value.get().to_owned()) else {
                    let message = "state::set: `value` is missing";
                    return Err(CallError::new(INVALID_INPUT, message));
                };
                self.check_value(&new)?;
                let old = self
                    .set_value(&registry, &row.scope, &row.key, new.clone())
                    .await?;
                let old = old.as_deref().unwrap_or("null");
                Ok(format!("{{\"old_value\":{old},\"new_value\":{new}}}"))
            }
            "state::delete" => {
                let row: StateRowInput<'_> = parse_input(id, data)?;
                let old = self.delete_value(&registry, &row.scope, &row.key).await?;
                Ok(old.unwrap_or_else(|| "null".to_owned()))
            }
            "state::update" => {
                let update: UpdateStateInput = parse_input(id, data)?;
                if update.ops.len() > MAX_UPDATE_OPS {
                    let message = format!(
                        "state::update: {} operations: at most {MAX_UPDATE_OPS} in one call",
                        update.ops.len()
                    );
                    return Err(CallError::new("invalid_request", message));
                }
                let limit = self.max_value_bytes();
                let work = move |old: Option<&str>| apply_update(old, update.ops, limit);
                let (old, new, errors) = self
                    .update_value(&registry, update.scope, update.key, work)
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
            "state::list" => self.list_state(registry, parse_input(id, data)?).await,
            _ => {
                let groups = run_blocking(move || registry.state_scopes()).await?;
                Ok(json!({"groups": groups}).to_string())
            }
        }
    }

    /// The most bytes of a value: an answer and an event each contain two values.
    fn max_value_bytes(&self) -> usize {
        self.options.max_message / 4
    }

    /// Returns how many bytes a write will hold beside its input: the old value, in the answer, in the
    /// notification and while it is committed. A short request can lead to a long answer.
    pub(super) fn write_result_bytes(&self, id: &str, data: Option<&RawValue>) -> usize {
        if !matches!(id, "state::set" | "state::delete" | "state::update") {
            return 0;
        }
        let row = data.and_then(|data| {
            let row: Result<StateKeyInput<'_>, _> = repertoire_core::json::from_str(data.get());
            row.ok()
        });
        let size = row
            .zip(self.service.opened_registry())
            .map(|(row, registry)| registry.state_value_size(&row.scope, &row.key).unwrap_or(0));
        3 * size.unwrap_or(0)
    }

    fn check_value(&self, value: &str) -> Result<(), CallError> {
        if value.len() > self.max_value_bytes() {
            let most = self.max_value_bytes();
            let message = format!("value: too large: {} bytes, at most {most}", value.len());
            return Err(CallError::new("too_large", message));
        }
        if nesting_depth(value) > MAX_DEPTH - 8 {
            // Answers and events nest the value inside other objects.
            return Err(CallError::new("invalid_request", "value: nested too deep"));
        }
        Ok(())
    }

    /// Sets a value. Writes and their notifications keep the order of the calls.
    async fn set_value(
        &self,
        registry: &Arc<Registry>,
        scope: &str,
        key: &str,
        new: String,
    ) -> Result<Option<String>, CallError> {
        check_key("scope", scope)?;
        check_key("key", key)?;
        let (then, receiver, reported) = self.notify_after_set(scope, key, new.clone());
        registry.state_set_then(scope, key, new, then)?;
        let done = receiver.await.map_err(|_| state_unavailable())??;
        reported.wait().await;
        self.catalogue_sync.wait_synced(registry).await?;
        Ok(done)
    }

    /// Stores registered content, in the same order.
    pub(super) async fn store_registered(
        &self,
        scope: &str,
        key: &str,
        row: registered::RegisteredRow,
    ) -> Result<(), CallError> {
        let registry = self.service.registry().await?;
        let (then, receiver, reported) = self.notify_after_set(scope, key, row.value.clone());
        registry.state_put_row_then(scope, key, row, then)?;
        receiver.await.map_err(|_| state_unavailable())??;
        reported.wait().await;
        self.catalogue_sync.wait_synced(registry).await
    }

    /// Returns a callback that reports a set value, and a receiver for its result.
    fn notify_after_set(
        &self,
        scope: &str,
        key: &str,
        new: String,
    ) -> (
        impl FnOnce(SetOutcome) + Send + 'static,
        oneshot::Receiver<SetOutcome>,
        ChangeReported,
    ) {
        let (sender, receiver) = oneshot::channel();
        let (report_change, reported) = self.change_reporter(scope, key);
        let then = move |done: SetOutcome| {
            if let Ok(old) = &done {
                report_change(old.clone(), Some(new));
            }
            // The caller may have disconnected.
            let _ = sender.send(done);
        };
        (then, receiver, reported)
    }

    /// Returns what queues the report of one change, and what waits until the followers' calls are queued.
    /// It is called on the store's thread, where other writes wait, so it only queues.
    fn change_reporter(
        &self,
        scope: &str,
        key: &str,
    ) -> (
        impl FnOnce(Option<String>, Option<String>) + Send + 'static,
        ChangeReported,
    ) {
        let (end, ended) = oneshot::channel();
        let (changes, load) = (self.state_changes.clone(), self.load.clone());
        let (scope, key) = (scope.to_owned(), key.to_owned());
        let report_change = move |old: Option<String>, new: Option<String>| {
            let size = |value: &Option<String>| value.as_ref().map_or(0, String::len);
            let bytes = size(&old) + size(&new) + scope.len() + key.len() + NOTICE_BYTES;
            let held = load.hold(bytes);
            // The hub may be gone.
            let _ = changes.send(StateNotice {
                scope,
                key,
                old,
                new,
                held,
                end,
            });
        };
        (report_change, ChangeReported(ended))
    }

    /// Updates a value. Writes and their notifications keep the order of the calls.
    async fn update_value<T: Send + 'static>(
        &self,
        registry: &Arc<Registry>,
        scope: String,
        key: String,
        work: impl FnOnce(Option<&str>) -> Result<(String, T), String> + Send + 'static,
    ) -> Result<(Option<String>, String, T), CallError> {
        check_key("scope", &scope)?;
        check_key("key", &key)?;
        let (sender, receiver) = oneshot::channel();
        let (report_change, reported) = self.change_reporter(&scope, &key);
        let work = move |old: Option<String>| {
            let (new, answer) = work(old.as_deref()).map_err(|reason| {
                repertoire_registry::Error::InvalidStateChange(format!("state::update: {reason}"))
            })?;
            Ok((new.clone(), (old, new, answer)))
        };
        registry.state_update_then(&scope, &key, work, move |done| {
            if let Ok((old, new, _)) = &done {
                report_change(old.clone(), Some(new.clone()));
            }
            // The caller may have disconnected.
            let _ = sender.send(done);
        })?;
        let done = receiver.await.map_err(|_| state_unavailable())??;
        reported.wait().await;
        self.catalogue_sync.wait_synced(registry).await?;
        Ok(done)
    }

    async fn delete_value(
        &self,
        registry: &Arc<Registry>,
        scope: &str,
        key: &str,
    ) -> Result<Option<String>, CallError> {
        let (sender, receiver) = oneshot::channel();
        let (report_change, reported) = self.change_reporter(scope, key);
        registry.state_delete_then(scope, key, move |done| {
            if let Ok(Some(old)) = &done {
                report_change(Some(old.clone()), None);
            }
            let _ = sender.send(done);
        })?;
        let done = receiver.await.map_err(|_| state_unavailable())??;
        reported.wait().await;
        self.catalogue_sync.wait_synced(registry).await?;
        Ok(done)
    }

    /// Lists the values of a scope; with a limit, a page of keys and values.
    async fn list_state(&self, registry: Arc<Registry>, wanted: ListStateInput) -> BusResult {
        // Leaves room for the JSON around the values.
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
        let (page, more) = run_blocking(move || {
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

    /// Reports changes of the state to their followers, one after the other.
    pub(super) async fn report_state_changes(
        hub: Weak<Self>,
        mut notices: UnboundedReceiver<StateNotice>,
        stop: CancellationToken,
    ) {
        loop {
            let notice = tokio::select! {
                notice = notices.recv() => notice,
                () = stop.cancelled() => return,
            };
            let (Some(notice), Some(hub)) = (notice, hub.upgrade()) else {
                return;
            };
            hub.report_state_change(&notice).await;
        }
    }

    async fn report_state_change(self: &Arc<Self>, notice: &StateNotice) {
        if self.options.state_trigger == StateTrigger::Missing {
            return;
        }
        let (scope, key) = (notice.scope.as_str(), notice.key.as_str());
        let (followers, conditional) = {
            let table = self.lock_table();
            let row = Some((scope, key));
            (
                table.subscribers(STATE_TRIGGER, row),
                table.conditional_subscribers(scope, key),
            )
        };
        if followers.is_empty() && conditional.is_empty() {
            return;
        }
        // Once for all followers.
        let event = self.queued.share(notice.event_text(&self.id));
        for (at, function) in followers.into_iter().enumerate() {
            self.fire_with_data(&function, &event);
            if at % FAN_OUT_BATCH == FAN_OUT_BATCH - 1 {
                // Others are served meanwhile.
                tokio::task::yield_now().await;
            }
        }
        for (function, condition) in conditional {
            self.fire_if_condition(condition, function, event.clone());
        }
    }

    /// Calls a function if a condition function returns neither false nor null.
    fn fire_if_condition(self: &Arc<Self>, condition: String, function: String, event: Bytes) {
        let hub = self.clone();
        let deadline = self.options.functions.deadline;
        let Ok(permit) = self.conditions.clone().try_acquire_owned() else {
            tracing::warn!(
                condition,
                function,
                "not notified: too many conditions are open"
            );
            return;
        };
        tokio::spawn(async move {
            let _permit = permit;
            match hub.call_with_data(&condition, &event, deadline).await {
                Ok(answer) if !matches!(answer.as_str(), "false" | "null") => {
                    hub.fire_with_data(&function, &event);
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, condition, "a condition function failed"),
            }
        });
    }
}

/// A change of the state that is not reported yet.
#[derive(Debug)]
pub(super) struct StateNotice {
    scope: String,
    key: String,
    old: Option<String>,
    new: Option<String>,
    /// Counts the values while they wait here.
    #[expect(dead_code, reason = "held until the change is reported")]
    held: LoadLease,
    /// Dropped with the notice, which informs [`ChangeReported`].
    #[expect(dead_code, reason = "its end is what counts")]
    end: oneshot::Sender<()>,
}

/// The report of one change. A writer is answered after it, so that a call that the writer makes next
/// reaches a follower after the event.
struct ChangeReported(oneshot::Receiver<()>);

impl ChangeReported {
    async fn wait(self) {
        // An error is the end of the notice, and so is a value.
        let _ = self.0.await;
    }
}

impl StateNotice {
    /// Writes the event as the data of a call by the hub. Values keep their original text.
    fn event_text(&self, caller: &str) -> String {
        let kind = match (&self.old, &self.new) {
            (_, None) => "state:deleted",
            (None, Some(_)) => "state:created",
            (Some(_), Some(_)) => "state:updated",
        };
        let old = self.old.as_deref().unwrap_or("null");
        let new = self.new.as_deref().unwrap_or("null");
        let mut text = String::with_capacity(old.len() + new.len() + 256);
        for (name, value) in [
            ("{\"_caller_worker_id\":", caller),
            (",\"type\":", "state"),
            (",\"event_type\":", kind),
            (",\"scope\":", &self.scope),
            (",\"key\":", &self.key),
        ] {
            text.push_str(name);
            push_json_string(&mut text, value);
        }
        text.push_str(",\"old_value\":");
        text.push_str(old);
        text.push_str(",\"new_value\":");
        text.push_str(new);
        text.push('}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_hold_the_values_as_they_are() {
        let notice = StateNotice {
            scope: "a \"scope\"".to_owned(),
            key: "k".to_owned(),
            old: None,
            new: Some("{\"n\":1.50}".to_owned()),
            held: Arc::<super::super::CallLoad>::default().hold(0),
            end: oneshot::channel().0,
        };
        let text = notice.event_text("hub");
        assert!(text.contains("\"new_value\":{\"n\":1.50}"), "{text}");
        let event: Value = repertoire_core::json::from_str(&text).unwrap_or_default();
        assert_eq!(event["event_type"], "state:created");
        assert_eq!(event["scope"], "a \"scope\"");
        assert_eq!(event["old_value"], Value::Null);
        assert_eq!(event["_caller_worker_id"], "hub");
    }
}
