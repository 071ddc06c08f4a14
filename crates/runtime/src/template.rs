//! Renders prompts with MiniJinja; templates are untrusted.
//!
//! A template turns values into text. It opens no file and includes nothing; an undefined variable
//! is an error that names it. The engine bounds instructions, recursion and output. The work within
//! one instruction and while parsing is bounded by the checks in `template/restrictions.rs` and by
//! custom filters.

mod code;
mod filters;
mod restrictions;

use std::{collections::HashMap, sync::Arc};

use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, value::Serde};
use serde_json::Value as Json;

use crate::{
    error::{Error, Result},
    workspace::Workspace,
};

pub use code::{Hole, RenderedScript, read_constants};

/// The maximum bytes of a template.
pub const MAX_TEMPLATE: usize = 256 * 1024;
/// The maximum bytes of a rendered template.
pub const MAX_OUTPUT: usize = 1024 * 1024;
/// The maximum number of instructions of one rendering.
const FUEL: u64 = 500_000;
/// The maximum nesting of loops and conditions.
const MAX_DEPTH: usize = 50;
/// The stack size for parsing, which recurses; the checks keep the depth well below it.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// The values of a template.
pub type TemplateContext = HashMap<String, Json>;

/// Renders templates.
///
/// ```
/// use repertoire_runtime::TemplateEngine;
///
/// let engine = TemplateEngine::new();
/// let context = [("name".to_owned(), "Ada".into())].into();
/// assert_eq!(engine.render_str("Hello {{ name }}!", &context)?, "Hello Ada!");
/// let missing = engine.render_str("Hello\n{{ nam }}!", &context).unwrap_err();
/// assert_eq!(missing.code(), "undefined_variable");
/// assert!(missing.to_string().starts_with("template, line 2: `nam` is not defined"));
/// # Ok::<(), repertoire_runtime::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct TemplateEngine {
    workspace: Option<Arc<dyn Workspace>>,
}

impl TemplateEngine {
    /// An engine whose templates see only their values.
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine whose templates can also query a workspace: `search(query, limit)` and
    /// `page(slug)`.
    pub fn with_workspace(workspace: Arc<dyn Workspace>) -> Self {
        Self {
            workspace: Some(workspace),
        }
    }

    /// Renders a template with the values given.
    pub fn render_str(&self, template: &str, context: &TemplateContext) -> Result<String> {
        restrictions::check_template(template)?;
        with_large_stack(|| {
            render_template(
                &self.build_environment(),
                template,
                &to_engine_values(context),
            )
        })
    }

    /// Parses a template without rendering it.
    pub fn check_str(&self, template: &str) -> Result<()> {
        restrictions::check_template(template)?;
        let environment = self.build_environment();
        let read = environment.template_from_named_str("template", template);
        read.map(drop).map_err(|error| convert_error(&error))
    }

    /// The workspace that templates can query.
    pub fn workspace(&self) -> Option<&Arc<dyn Workspace>> {
        self.workspace.as_ref()
    }

    fn build_environment(&self) -> Environment<'static> {
        let mut environment = Environment::empty();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        // Debug mode names undefined variables. Its report repeats values and is never shown.
        environment.set_debug(true);
        filters::add_filters(&mut environment);
        filters::add_workspace_functions(&mut environment, self.workspace.as_ref());
        environment
    }
}

/// Converts the values of a template for the engine.
fn to_engine_values(context: &TemplateContext) -> HashMap<String, Value> {
    let values = context.iter();
    values
        .map(|(name, value)| (name.clone(), Value::from(Serde(value))))
        .collect()
}

/// Runs recursive work on a thread with a large stack.
fn with_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new()
            .name("repertoire-template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work);
        match work.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            _ => Err(Error::TemplateLimit("cannot be rendered".to_owned())),
        }
    })
}

fn render_template(
    environment: &Environment<'_>,
    template: &str,
    values: &HashMap<String, Value>,
) -> Result<String> {
    let template = environment
        .template_from_named_str("template", template)
        .map_err(|error| convert_error(&error))?;
    let mut out = CappedOutput(Vec::new());
    template
        .render_captured_to(Value::from_object(values.clone()), &mut out)
        .map(drop)
        .map_err(|error| convert_error(&error))?;
    String::from_utf8(out.0)
        .map_err(|_| Error::TemplateLimit("the output is not valid UTF-8".to_owned()))
}

/// A writer that fails above the maximum output size.
struct CappedOutput(Vec<u8>);

impl std::io::Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_OUTPUT {
            return Err(std::io::Error::other("too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Converts an error of the engine; the result contains no values.
fn convert_error(error: &minijinja::Error) -> Error {
    let line = error.line();
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::UndefinedError => {
            let name = detail.split('`').nth(1).unwrap_or("a value");
            Error::UndefinedVariable {
                line,
                name: name.to_owned(),
            }
        }
        ErrorKind::OutOfFuel => Error::TemplateLimit(format!(
            "takes more than {FUEL} steps to render: a loop in it is too long"
        )),
        ErrorKind::WriteFailure => {
            Error::TemplateLimit(format!("renders to more than {MAX_OUTPUT} bytes"))
        }
        kind => Error::Template {
            line,
            reason: if detail.is_empty() {
                kind.to_string()
            } else {
                format!("{kind}: {detail}")
            },
        },
    }
}

#[cfg(test)]
mod tests;
