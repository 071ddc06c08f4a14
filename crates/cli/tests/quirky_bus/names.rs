//! Namespaces of functions, by names on a hub that has none.

use serde_json::Value;

/// Between a namespace and a function's name on the hub.
const MARK: &str = "::in-namespace::";

/// Rewrites names in messages.
#[derive(Debug, Default)]
pub(super) struct Namespaces;

impl Namespaces {
    /// Names functions on the hub: those a client registers in its own namespace, those that it calls or
    /// subscribes in the namespace that the message names.
    #[allow(clippy::unused_self, reason = "the counterpart of the other direction")]
    pub(super) fn qualify_outgoing(&self, message: &mut Value, namespace: &mut Option<String>) {
        let kind = message["type"].as_str().unwrap_or_default().to_owned();
        let is_introduction = message["function_id"] == "engine::workers::register";
        if kind == "invokefunction" && is_introduction {
            let named = message["data"]["namespace"].as_str();
            *namespace = named.filter(|name| *name != "default").map(str::to_owned);
        }
        let (field, place) = match kind.as_str() {
            "registerfunction" | "unregisterfunction" => ("id", namespace.clone()),
            "invokefunction" | "registertrigger" => {
                let named = message["namespace"].as_str().map(str::to_owned);
                ("function_id", named)
            }
            "invocationresult" => ("function_id", namespace.clone()),
            _ => return,
        };
        let Some(place) = place.filter(|place| place != "default") else {
            return;
        };
        let name = message[field].as_str().unwrap_or_default();
        message[field] = format!("{place}{MARK}{name}").into();
        if let Some(fields) = message.as_object_mut() {
            fields.remove("namespace");
        }
    }

    /// Gives functions their own names again, with the namespace beside them.
    #[allow(clippy::unused_self, reason = "the counterpart of the other direction")]
    pub(super) fn simplify_incoming(&self, message: &mut Value) {
        if message["type"] == "invocationresult" {
            let listed = message.pointer_mut("/result/functions");
            let rows = listed.and_then(Value::as_array_mut);
            for row in rows.into_iter().flatten() {
                simplify(row, "function_id");
            }
        }
        simplify(message, "function_id");
    }
}

fn simplify(value: &mut Value, field: &str) {
    let name = value[field].as_str().map(str::to_owned);
    if let Some((place, name)) = name.as_deref().and_then(|name| name.split_once(MARK)) {
        value[field] = name.into();
        value["namespace"] = place.into();
    }
}
