//! Renders scripts: each template value becomes a hole, filled after the script is parsed.
//!
//! Only the script's author writes source code; a value never becomes source. Constants of the
//! artifact have the same author and are written into the source directly.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use minijinja::{Error as Broken, ErrorKind, Output, State, Value};
use repertoire_core::Artifact;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::{MAX_OUTPUT, TemplateContext, TemplateEngine, restrictions};
use crate::error::{Error, Result};

/// A script and the values of its holes.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedScript {
    /// The source; each hole is an identifier in it.
    pub source: String,
    /// The value of each hole.
    pub holes: BTreeMap<String, Hole>,
}

/// The value of a hole.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hole {
    /// The value where the hole is an expression.
    pub value: Json,
    /// The text where the hole is part of a string.
    pub text: String,
}

impl RenderedScript {
    /// The script for display, with the texts filled in. This is not the source that runs.
    pub fn display_source(&self) -> String {
        let Some(first) = self.holes.keys().next() else {
            return self.source.clone();
        };
        // All names share a prefix up to their number.
        let begins = &first[..=first[..first.len() - 1].rfind('_').unwrap_or(0)];
        let mut shown = String::with_capacity(self.source.len());
        let mut parts = self.source.split(begins);
        shown.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (number, rest) = part.split_once('_').unwrap_or((part, ""));
            match self.holes.get(&format!("{begins}{number}_")) {
                Some(hole) => shown.push_str(&hole.text),
                None => shown.push_str(number),
            }
            shown.push_str(rest);
        }
        shown
    }
}

/// Reads the constants of a script from its artifact's metadata.
pub fn read_constants(artifact: &Artifact) -> Result<Map<String, Json>> {
    match artifact
        .metadata
        .as_ref()
        .and_then(|all| all.get("constants"))
    {
        None => Ok(Map::new()),
        Some(Json::Object(constants)) => Ok(constants.clone()),
        Some(_) => Err(Error::Artifact {
            artifact: artifact.name.clone(),
            reason: "metadata.constants must be an object".to_owned(),
        }),
    }
}

impl TemplateEngine {
    /// Renders a script with the given values; `constants` come from the script's author.
    pub fn render_code(
        &self,
        template: &str,
        values: &TemplateContext,
        constants: &Map<String, Json>,
    ) -> Result<RenderedScript> {
        restrictions::check_template(template)?;
        if !template.contains("{{") && !template.contains("{%") && !template.contains("{#") {
            return Ok(RenderedScript {
                source: template.to_owned(),
                holes: BTreeMap::new(),
            });
        }
        // Hole names are random, so that no text can imitate one.
        let nonce = Uuid::new_v4().simple().to_string();
        let holes: Arc<Mutex<BTreeMap<String, Hole>>> = Arc::default();
        let mut environment = self.build_environment();
        // Holes carry values, so `tojson` must not turn a value into text.
        environment.add_filter("tojson", |value: Value| value);
        let kept = holes.clone();
        environment
            .set_formatter(move |out, state, value| emit_value(out, state, value, &nonce, &kept));
        let mut context = super::to_engine_values(values);
        for (name, constant) in constants {
            let value = match constant {
                Json::String(text) => Value::from_safe_string(text.clone()),
                other => Value::from(minijinja::value::Serde(other)),
            };
            context.insert(name.clone(), value);
        }
        let source =
            super::with_large_stack(|| super::render_template(&environment, template, &context))?;
        let holes = std::mem::take(&mut *holes.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(RenderedScript { source, holes })
    }
}

fn emit_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
    nonce: &str,
    holes: &Mutex<BTreeMap<String, Hole>>,
) -> std::result::Result<(), Broken> {
    if value.is_undefined() {
        return minijinja::escape_formatter(out, state, value);
    }
    if value.is_safe() {
        return out
            .write_str(value.as_str().unwrap_or_default())
            .map_err(Broken::from);
    }
    let mut holes = holes.lock().unwrap_or_else(PoisonError::into_inner);
    let hole = Hole {
        text: value.to_string(),
        value: serde_json::to_value(value).map_err(|error| {
            let why = format!("cannot be given to a script: {error}");
            Broken::new(ErrorKind::InvalidOperation, why)
        })?,
    };
    let size: usize = holes.values().map(|hole| hole.text.len()).sum();
    if size + hole.text.len() > MAX_OUTPUT || holes.len() >= MAX_HOLES {
        return Err(Broken::new(
            ErrorKind::InvalidOperation,
            format!("puts more than {MAX_OUTPUT} bytes or {MAX_HOLES} values into a script"),
        ));
    }
    let name = format!("hole_{nonce}_{}_", holes.len());
    out.write_str(&name)?;
    holes.insert(name, hole);
    Ok(())
}

/// The maximum number of values a template puts into a script.
const MAX_HOLES: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render_sample(template: &str, values: Json) -> RenderedScript {
        let values: TemplateContext = serde_json::from_value(values).unwrap();
        let constants = json!({"FIELDS": "a, b", "MANY": 3});
        let constants = constants.as_object().unwrap();
        TemplateEngine::new()
            .render_code(template, &values, constants)
            .unwrap()
    }

    #[test]
    fn values_become_holes_and_constants_become_source() {
        let code = render_sample(
            "{{ FIELDS }} = f('{{ kind }}', {{ kind | tojson }}, {{ MANY }})",
            json!({"kind": "x', evil('"}),
        );
        assert!(
            code.source.starts_with("a, b = f('hole_"),
            "{}",
            code.source
        );
        assert!(!code.source.contains("evil"), "{}", code.source);
        assert_eq!(code.holes.len(), 3);
        assert_eq!(
            code.display_source(),
            "a, b = f('x', evil('', x', evil(', 3)"
        );
        assert!(
            code.holes
                .values()
                .any(|hole| hole.value == json!("x', evil('"))
        );
    }

    #[test]
    fn no_filter_makes_source_of_a_value() {
        for filter in [
            "upper",
            "trim",
            "tojson",
            "default('x')",
            "replace('x', 'y')",
        ] {
            let code = render_sample(&format!("{{{{ v | {filter} }}}}"), json!({"v": " evil() "}));
            assert!(
                !code.source.to_lowercase().contains("evil"),
                "{filter}: {}",
                code.source
            );
        }
        let engine = TemplateEngine::new();
        let values: TemplateContext = [("v".to_owned(), json!("evil()"))].into();
        let unknown = engine.render_code("{{ v | safe }}", &values, &Map::new());
        assert_eq!(unknown.unwrap_err().code(), "template_error");
    }

    #[test]
    fn a_missing_value_is_named() {
        let missing = TemplateEngine::new().render_code(
            "x = {{ kind }}",
            &TemplateContext::new(),
            &Map::new(),
        );
        assert_eq!(missing.unwrap_err().code(), "undefined_variable");
    }
}
