//! States of programs: checked before anything is made of them.
//!
//! A state is JSON, of the shape its template has, and says nothing about whom to ask. What is not
//! known is refused, not passed on.

use serde_json::{Map, Value};

use super::signature::Signature;
use crate::error::{Error, Result};

/// The most bytes of a state, and examples of a part.
const MAX_STATE: usize = 1024 * 1024;
const MAX_DEMOS: usize = 100;
/// What a saved program may say about its model; it is left out, since whom to ask is the host's.
const SETTINGS: [&str; 12] = [
    "model",
    "model_type",
    "cache",
    "temperature",
    "max_tokens",
    "num_retries",
    "rollout_id",
    "train_kwargs",
    "finetuning_model",
    "launch_kwargs",
    "top_p",
    "use_developer_role",
];

/// A state that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// What is sent to the sidecar.
    pub parts: Value,
    /// The version of DSPy it was made by, where it says so.
    pub dspy: Option<String>,
}

/// What the parts of a template are called, and how many fields each has.
pub(super) fn parts_of(
    template: &str,
    signature: &Signature,
) -> Option<Vec<(&'static str, usize)>> {
    let (inputs, outputs) = (signature.inputs.len(), signature.outputs.len());
    let all = inputs + outputs;
    Some(match template {
        "predict" => vec![("self", all)],
        "chain_of_thought" => vec![("predict", all + 1)],
        // What it has seen so far, and what it thinks, does and does it with next.
        "react" => vec![("react", inputs + 4), ("extract.predict", all + 2)],
        "draft_and_refine" => vec![
            ("draft.predict", all + 1),
            ("review", all + 1),
            ("refine.predict", all + outputs + 2),
        ],
        _ => return None,
    })
}

/// Whether a template has a value of this name itself.
pub(super) fn is_taken(template: &str, name: &str) -> bool {
    match template {
        "chain_of_thought" => name == "reasoning",
        "react" => {
            ["reasoning", "trajectory", "max_iters"].contains(&name) || name.starts_with("next_")
        }
        "draft_and_refine" => {
            ["reasoning", "problems"].contains(&name) || name.starts_with("draft_")
        }
        _ => false,
    }
}

fn refuse(reason: impl Into<String>) -> Error {
    Error::Call {
        call: "state_blob".to_owned(),
        reason: reason.into(),
    }
}

impl State {
    /// Reads a state for a template and a signature.
    pub fn read(blob: &[u8], template: &str, signature: &Signature) -> Result<Self> {
        if blob.len() > MAX_STATE {
            return Err(refuse(format!("it has more than {MAX_STATE} bytes")));
        }
        let state: Value = repertoire_core::json::from_slice(blob).map_err(|_| {
            refuse("it is no JSON: save a program with `save_program=False`; pickles are not read")
        })?;
        let Value::Object(mut state) = state else {
            return Err(refuse("it is no object"));
        };
        let dspy = state.remove("metadata").as_ref().and_then(|metadata| {
            let version = metadata.get("dependency_versions")?.get("dspy")?.as_str()?;
            Some(repertoire_core::markdown::cut(version, 40))
        });
        let expected = parts_of(template, signature)
            .ok_or_else(|| refuse(format!("there is no template `{template}`")))?;
        if template == "predict" {
            // A program that is one part is saved as that part.
            state = [("self".to_owned(), Value::Object(state))]
                .into_iter()
                .collect();
        }
        for name in state.keys() {
            if !expected.iter().any(|(known, _)| known == name) {
                return Err(refuse(format!("`{template}` has no part `{name}`")));
            }
        }
        let mut parts = Map::new();
        for (name, fields) in expected {
            let part = state.remove(name);
            let part = part.ok_or_else(|| refuse(format!("the part `{name}` is missing")))?;
            parts.insert(name.to_owned(), checked(name, part, fields)?);
        }
        Ok(Self {
            parts: Value::Object(parts),
            dspy,
        })
    }
}

impl State {
    /// The same without examples of these inputs.
    pub(crate) fn without(mut self, inputs: &[&Map<String, Value>]) -> Self {
        let Value::Object(parts) = &mut self.parts else {
            return self;
        };
        for part in parts.values_mut() {
            if let Some(Value::Array(demos)) = part.get_mut("demos") {
                demos.retain(|demo| {
                    !inputs.iter().any(|inputs| {
                        inputs
                            .iter()
                            .all(|(name, value)| demo.get(name) == Some(value))
                    })
                });
            }
        }
        self
    }
}

/// One part, with nothing in it but what is known.
fn checked(name: &str, part: Value, fields: usize) -> Result<Value> {
    let Value::Object(mut part) = part else {
        return Err(refuse(format!("the part `{name}` is no object")));
    };
    whom_to_ask(name, part.remove("lm"))?;
    for key in ["traces", "train"] {
        part.remove(key);
    }
    let demos = match part.remove("demos") {
        None => Vec::new(),
        Some(Value::Array(demos)) if demos.len() <= MAX_DEMOS => demos,
        Some(_) => {
            return Err(refuse(format!(
                "`{name}`: `demos` is a list of at most {MAX_DEMOS}"
            )));
        }
    };
    if !demos.iter().all(Value::is_object) {
        return Err(refuse(format!("`{name}`: an example is an object")));
    }
    let Some(Value::Object(mut signature)) = part.remove("signature") else {
        return Err(refuse(format!("`{name}`: the signature is missing")));
    };
    if let Some(unknown) = part.keys().next() {
        return Err(refuse(format!("`{name}`: `{unknown}` is not known")));
    }
    let Some(instructions @ Value::String(_)) = signature.remove("instructions") else {
        return Err(refuse(format!("`{name}`: the instructions are missing")));
    };
    let Some(Value::Array(told)) = signature.remove("fields") else {
        return Err(refuse(format!("`{name}`: the fields are missing")));
    };
    if let Some(unknown) = signature.keys().next() {
        return Err(refuse(format!(
            "`{name}`: `signature.{unknown}` is not known"
        )));
    }
    if told.len() != fields {
        return Err(refuse(format!(
            "`{name}` is for {} fields, and this signature has {fields}",
            told.len()
        )));
    }
    let known = |field: &Value| {
        field.as_object().is_some_and(|field| {
            let keys = ["prefix", "description"];
            field.len() == keys.len()
                && keys
                    .iter()
                    .all(|key| field.get(*key).is_some_and(Value::is_string))
        })
    };
    if !told.iter().all(known) {
        return Err(refuse(format!(
            "`{name}`: a field has a `prefix` and a `description`, both texts"
        )));
    }
    Ok(serde_json::json!({
        "demos": demos,
        "signature": {"instructions": instructions, "fields": told},
    }))
}

/// What a state says about a model is left out; one that names an endpoint, a key or code is not
/// what it says it is.
fn whom_to_ask(name: &str, lm: Option<Value>) -> Result<()> {
    match lm {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(lm)) => match lm.keys().find(|key| !SETTINGS.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => Err(refuse(format!(
                "`{name}.lm.{key}`: a state does not say whom to ask"
            ))),
        },
        Some(_) => Err(refuse(format!("`{name}.lm` is no object"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(lm: &Value, fields: usize) -> Value {
        let field = json!({"prefix": "P:", "description": "d"});
        json!({
            "predict": {
                "traces": [], "train": [], "demos": [{"q": "1", "a": "2"}],
                "signature": {"instructions": "Do.", "fields": vec![field; fields]},
                "lm": lm,
            },
            "metadata": {"dependency_versions": {"python": "3.11", "dspy": "3.4.1"}},
        })
    }

    fn read(state: &Value) -> Result<State> {
        let signature = Signature::parse("q -> a").unwrap();
        State::read(state.to_string().as_bytes(), "chain_of_thought", &signature)
    }

    #[test]
    fn a_state_is_taken_without_its_model() {
        let taken = read(&state(&json!({"model": "openai/x", "temperature": 1.0}), 3)).unwrap();
        assert_eq!(taken.dspy.as_deref(), Some("3.4.1"));
        assert!(
            !taken.parts.to_string().contains("openai"),
            "{}",
            taken.parts
        );
        assert_eq!(taken.parts["predict"]["demos"][0]["a"], "2");
    }

    #[test]
    fn t32_states_that_bring_more_than_data_are_refused() {
        let good = state(&Value::Null, 3);
        let mut unknown_part = good.clone();
        unknown_part["other"] = good["predict"].clone();
        let mut unknown_key = good.clone();
        unknown_key["predict"]["__class__"] = json!("os.system");
        let mut bare_field = good.clone();
        bare_field["predict"]["signature"]["fields"][0] = json!({"description": "d"});
        let mut no_demos = good.clone();
        no_demos["predict"]["demos"] = json!("x");
        for (state, why) in [
            (
                state(&json!({"model": "x", "api_base": "http://elsewhere"}), 3),
                "whom to ask",
            ),
            (
                state(&json!({"model": "x", "api_key": "k"}), 3),
                "whom to ask",
            ),
            (
                state(&json!({"model": "x", "engine": {"class": "os:system"}}), 3),
                "whom to ask",
            ),
            (state(&json!("openai/x"), 3), "no object"),
            (state(&Value::Null, 2), "is for 2 fields"),
            (unknown_part, "no part `other`"),
            (unknown_key, "`__class__` is not known"),
            (no_demos, "a list"),
            (bare_field, "a `prefix` and a `description`"),
            (json!([]), "no object"),
            (json!({}), "is missing"),
        ] {
            let refused = read(&state).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let signature = Signature::parse("q -> a").unwrap();
        for blob in [&b"\x80\x04\x95pickle"[..], b"", b"{"] {
            let refused = State::read(blob, "predict", &signature).unwrap_err();
            assert!(
                refused.to_string().contains("pickles are not read"),
                "{refused}"
            );
        }
        let unknown = State::read(b"{}", "exec", &signature).unwrap_err();
        assert!(unknown.to_string().contains("no template"), "{unknown}");
    }

    #[test]
    fn examples_that_are_measured_on_are_taken_out() {
        let taken = read(&state(&Value::Null, 3)).unwrap();
        let (same, other) = (json!({"q": "1"}), json!({"q": "9"}));
        let (same, other) = (same.as_object().unwrap(), other.as_object().unwrap());
        let kept = taken.clone().without(&[other]);
        assert_eq!(kept, taken);
        let left = taken.without(&[other, same]);
        assert_eq!(left.parts["predict"]["demos"], json!([]));
    }
}
