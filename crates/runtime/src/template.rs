//! Rendering prompts: one function over MiniJinja that a stranger's template cannot hurt.
//!
//! A template gets values and gives a text. It opens no file and includes nothing; a name nobody
//! gave is an error that names it. Instructions, recursion and output are bounded by the engine;
//! what the engine does in one instruction, and what it does while it reads a template, is bounded
//! by what `template/check.rs` lets through and by filters of our own.

mod check;
mod code;
mod filters;

use std::{collections::HashMap, sync::Arc};

use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value, value::Serde};
use serde_json::Value as Json;

use crate::{
    error::{Error, Result},
    workspace::Workspace,
};

pub use code::{Code, Hole, constants_of};

/// The most bytes of a template.
pub const MAX_TEMPLATE: usize = 256 * 1024;
/// The most bytes of what is rendered.
pub const MAX_OUTPUT: usize = 1024 * 1024;
/// The most instructions of one rendering.
const FUEL: u64 = 500_000;
/// How deep loops and conditions nest.
const DEPTH: usize = 50;
/// Reading a template recurses; this is more than what is let through needs.
const STACK: usize = 16 * 1024 * 1024;

/// What a template is rendered with.
pub type Context = HashMap<String, Json>;

/// Renders templates.
///
/// ```
/// use repertoire_runtime::PromptEngine;
///
/// let engine = PromptEngine::new();
/// let context = [("name".to_owned(), "Ada".into())].into();
/// assert_eq!(engine.render_str("Hello {{ name }}!", &context)?, "Hello Ada!");
/// let missing = engine.render_str("Hello\n{{ nam }}!", &context).unwrap_err();
/// assert_eq!(missing.code(), "undefined_variable");
/// assert!(missing.to_string().starts_with("template, line 2: `nam` is not defined"));
/// # Ok::<(), repertoire_runtime::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct PromptEngine {
    workspace: Option<Arc<dyn Workspace>>,
}

impl PromptEngine {
    /// An engine whose templates see nothing but their values.
    pub fn new() -> Self {
        Self::default()
    }

    /// An engine whose templates can also ask a workspace: `search(query, limit)` and
    /// `page(slug)`.
    pub fn over(workspace: Arc<dyn Workspace>) -> Self {
        Self {
            workspace: Some(workspace),
        }
    }

    /// Renders a template with the values given.
    pub fn render_str(&self, template: &str, context: &Context) -> Result<String> {
        check::check(template)?;
        on_a_stack(|| rendered(&self.environment(), template, &values_of(context)))
    }

    /// Reads a template without rendering it.
    pub fn check_str(&self, template: &str) -> Result<()> {
        check::check(template)?;
        let environment = self.environment();
        let read = environment.template_from_named_str("template", template);
        read.map(drop).map_err(|error| explain(&error))
    }

    /// What templates can ask.
    pub fn workspace(&self) -> Option<&Arc<dyn Workspace>> {
        self.workspace.as_ref()
    }

    fn environment(&self) -> Environment<'static> {
        let mut environment = Environment::empty();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        // It knows the names of what is missing. Its report, which repeats values, is never shown.
        environment.set_debug(true);
        filters::add(&mut environment);
        filters::add_queries(&mut environment, self.workspace.as_ref());
        environment
    }
}

/// The values of a template, as the engine has them.
fn values_of(context: &Context) -> HashMap<String, Value> {
    let values = context.iter();
    values
        .map(|(name, value)| (name.clone(), Value::from(Serde(value))))
        .collect()
}

/// Does something that recurses.
fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let work = std::thread::Builder::new()
            .name("repertoire-template".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work);
        match work.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(done)) => done,
            _ => Err(Error::TemplateLimit("cannot be rendered".to_owned())),
        }
    })
}

fn rendered(
    environment: &Environment<'_>,
    template: &str,
    values: &HashMap<String, Value>,
) -> Result<String> {
    let template = environment
        .template_from_named_str("template", template)
        .map_err(|error| explain(&error))?;
    let mut out = Capped(Vec::new());
    template
        .render_captured_to(Value::from_object(values.clone()), &mut out)
        .map(drop)
        .map_err(|error| explain(&error))?;
    String::from_utf8(out.0)
        .map_err(|_| Error::TemplateLimit("what it renders is no text".to_owned()))
}

/// Takes so many bytes and no more.
struct Capped(Vec<u8>);

impl std::io::Write for Capped {
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

/// An error of the engine in our words; nothing of the values is in it.
fn explain(error: &minijinja::Error) -> Error {
    let line = error.line();
    let detail = error.detail().unwrap_or_default();
    match error.kind() {
        ErrorKind::UndefinedError => {
            let name = detail.split('`').nth(1).unwrap_or("a value");
            Error::Undefined {
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
