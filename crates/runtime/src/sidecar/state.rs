//! States of programs, validated before they reach DSPy.
//!
//! A state is JSON of the shape its template has and names no model endpoint. Unknown keys are
//! refused, not passed on.

use serde_json::{Map, Value};

use super::signature::Signature;
use crate::error::{Error, Result};

/// The maximum bytes of a state, and examples of a part.
const MAX_STATE: usize = 1024 * 1024;
const MAX_DEMOS: usize = 100;
/// Model settings in a saved program; they are dropped, because the host chooses the model.
const IGNORED_LM_SETTINGS: [&str; 12] = [
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

/// A validated state.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramState {
    /// The parts that are sent to the sidecar.
    pub parts: Value,
    /// The version of DSPy that saved it, if known.
    pub dspy: Option<String>,
}

/// The parts of a template, with the number of fields of each.
pub(super) fn template_parts(
    template: &str,
    signature: &Signature,
) -> Option<Vec<(&'static str, usize)>> {
    let (inputs, outputs) = (signature.inputs.len(), signature.outputs.len());
    let all = inputs + outputs;
    Some(match template {
        "predict" => vec![("self", all)],
        "chain_of_thought" => vec![("predict", all + 1)],
        // Additional fields: the trajectory, the next thought, the tool name and its arguments.
        "react" => vec![("react", inputs + 4), ("extract.predict", all + 2)],
        "draft_and_refine" => vec![
            ("draft.predict", all + 1),
            ("review", all + 1),
            ("refine.predict", all + outputs + 2),
        ],
        _ => return None,
    })
}

/// Whether a template uses this field name itself.
pub(super) fn is_reserved_name(template: &str, name: &str) -> bool {
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

fn state_error(reason: impl Into<String>) -> Error {
    Error::InvalidCall {
        call: "state_blob".to_owned(),
        reason: reason.into(),
    }
}

impl ProgramState {
    /// Parses and validates a state for a template and a signature.
    pub fn from_blob(blob: &[u8], template: &str, signature: &Signature) -> Result<Self> {
        if blob.len() > MAX_STATE {
            return Err(state_error(format!("it has more than {MAX_STATE} bytes")));
        }
        let state: Value = repertoire_core::json::from_slice(blob).map_err(|_| {
            state_error(
                "it is no JSON: save a program with `save_program=False`; pickles are not read",
            )
        })?;
        let Value::Object(mut state) = state else {
            return Err(state_error("it is no object"));
        };
        let dspy = state.remove("metadata").as_ref().and_then(|metadata| {
            let version = metadata.get("dependency_versions")?.get("dspy")?.as_str()?;
            Some(repertoire_core::markdown::truncate_text(version, 40))
        });
        let expected = template_parts(template, signature)
            .ok_or_else(|| state_error(format!("there is no template `{template}`")))?;
        if template == "predict" {
            // A program with one part is saved as that part.
            state = [("self".to_owned(), Value::Object(state))]
                .into_iter()
                .collect();
        }
        for name in state.keys() {
            if !expected.iter().any(|(known, _)| known == name) {
                return Err(state_error(format!("`{template}` has no part `{name}`")));
            }
        }
        let mut parts = Map::new();
        for (name, fields) in expected {
            let part = state.remove(name);
            let part = part.ok_or_else(|| state_error(format!("the part `{name}` is missing")))?;
            parts.insert(name.to_owned(), check_part(name, part, fields)?);
        }
        Ok(Self {
            parts: Value::Object(parts),
            dspy,
        })
    }
}

impl ProgramState {
    /// Removes the examples with these inputs.
    pub(crate) fn without_examples(mut self, inputs: &[&Map<String, Value>]) -> Self {
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

/// Validates one part and keeps only known keys.
fn check_part(name: &str, part: Value, fields: usize) -> Result<Value> {
    let Value::Object(mut part) = part else {
        return Err(state_error(format!("the part `{name}` is no object")));
    };
    check_lm_settings(name, part.remove("lm"))?;
    for key in ["traces", "train"] {
        part.remove(key);
    }
    let demos = match part.remove("demos") {
        None => Vec::new(),
        Some(Value::Array(demos)) if demos.len() <= MAX_DEMOS => demos,
        Some(_) => {
            return Err(state_error(format!(
                "`{name}`: `demos` is a list of at most {MAX_DEMOS}"
            )));
        }
    };
    if !demos.iter().all(Value::is_object) {
        return Err(state_error(format!("`{name}`: an example is an object")));
    }
    let Some(Value::Object(mut signature)) = part.remove("signature") else {
        return Err(state_error(format!("`{name}`: the signature is missing")));
    };
    if let Some(unknown) = part.keys().next() {
        return Err(state_error(format!("`{name}`: `{unknown}` is not known")));
    }
    let Some(instructions @ Value::String(_)) = signature.remove("instructions") else {
        return Err(state_error(format!(
            "`{name}`: the instructions are missing"
        )));
    };
    let Some(Value::Array(field_list)) = signature.remove("fields") else {
        return Err(state_error(format!("`{name}`: the fields are missing")));
    };
    if let Some(unknown) = signature.keys().next() {
        return Err(state_error(format!(
            "`{name}`: `signature.{unknown}` is not known"
        )));
    }
    if field_list.len() != fields {
        return Err(state_error(format!(
            "`{name}` is for {} fields, and this signature has {fields}",
            field_list.len()
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
    if !field_list.iter().all(known) {
        return Err(state_error(format!(
            "`{name}`: a field has a `prefix` and a `description`, both texts"
        )));
    }
    Ok(serde_json::json!({
        "demos": demos,
        "signature": {"instructions": instructions, "fields": field_list},
    }))
}

/// Checks the model settings of a state, which are dropped. A state with an endpoint, a key or code
/// is refused.
fn check_lm_settings(name: &str, lm: Option<Value>) -> Result<()> {
    match lm {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(lm)) => match lm
            .keys()
            .find(|key| !IGNORED_LM_SETTINGS.contains(&key.as_str()))
        {
            None => Ok(()),
            Some(key) => Err(state_error(format!(
                "`{name}.lm.{key}`: a state must not configure the model"
            ))),
        },
        Some(_) => Err(state_error(format!("`{name}.lm` is no object"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample_state(lm: &Value, fields: usize) -> Value {
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

    fn parse_sample(state: &Value) -> Result<ProgramState> {
        let signature = Signature::parse("q -> a").unwrap();
        ProgramState::from_blob(state.to_string().as_bytes(), "chain_of_thought", &signature)
    }

    #[test]
    fn a_state_is_read_without_its_model_settings() {
        let taken = parse_sample(&sample_state(
            &json!({"model": "openai/x", "temperature": 1.0}),
            3,
        ))
        .unwrap();
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
        let good = sample_state(&Value::Null, 3);
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
                sample_state(&json!({"model": "x", "api_base": "http://elsewhere"}), 3),
                "must not configure the model",
            ),
            (
                sample_state(&json!({"model": "x", "api_key": "k"}), 3),
                "must not configure the model",
            ),
            (
                sample_state(&json!({"model": "x", "engine": {"class": "os:system"}}), 3),
                "must not configure the model",
            ),
            (sample_state(&json!("openai/x"), 3), "no object"),
            (sample_state(&Value::Null, 2), "is for 2 fields"),
            (unknown_part, "no part `other`"),
            (unknown_key, "`__class__` is not known"),
            (no_demos, "a list"),
            (bare_field, "a `prefix` and a `description`"),
            (json!([]), "no object"),
            (json!({}), "is missing"),
        ] {
            let refused = parse_sample(&state).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let signature = Signature::parse("q -> a").unwrap();
        for blob in [&b"\x80\x04\x95pickle"[..], b"", b"{"] {
            let refused = ProgramState::from_blob(blob, "predict", &signature).unwrap_err();
            assert!(
                refused.to_string().contains("pickles are not read"),
                "{refused}"
            );
        }
        let unknown = ProgramState::from_blob(b"{}", "exec", &signature).unwrap_err();
        assert!(unknown.to_string().contains("no template"), "{unknown}");
    }

    #[test]
    fn evaluation_examples_are_removed_from_a_state() {
        let taken = parse_sample(&sample_state(&Value::Null, 3)).unwrap();
        let (same, other) = (json!({"q": "1"}), json!({"q": "9"}));
        let (same, other) = (same.as_object().unwrap(), other.as_object().unwrap());
        let kept = taken.clone().without_examples(&[other]);
        assert_eq!(kept, taken);
        let left = taken.without_examples(&[other, same]);
        assert_eq!(left.parts["predict"]["demos"], json!([]));
    }
}
